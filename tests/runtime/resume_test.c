// Prefix reuse: a resumed session generates the same tokens as a new session that reads the whole prompt. A
// chat relies on this to read only the new part of each turn.
#include "base/memory.h"
#include "tests/support/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define CONTEXT 256
#define NEW_TOKENS 24

static mlx_engine_t *open_tiny(void) {
  return open_parallel(TINY, &(mlx_compile_options_t){.context = CONTEXT}, NULL, 0, 2);
}

static void fill_ids(int32_t *ids, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids[i] = (int32_t)(seed >> 8) % 300 + 10;
  }
}

static void options_for(mlx_generate_options_t *out, const mlx_sampling_t *sampling) {
  mlx_generate_options_initialize(out);
  out->max_tokens = NEW_TOKENS;
  out->ignore_eos = true;
  out->sampling = sampling;
}

static void check_equal(const mlx_generation_t *a, const mlx_generation_t *b, const char *what) {
  CHECK_INT(a->count, b->count);
  for (size_t i = 0; i < a->count; ++i) {
    if (a->ids[i] != b->ids[i])
      CHECK_FAIL("%s: token %zu is %d, in a new session %d", what, i, a->ids[i], b->ids[i]);
  }
}

static void check_against_fresh(mlx_engine_t *engine, mlx_session_t *session, const int32_t *ids,
                                size_t count, const mlx_generate_options_t *options, size_t expected_kept,
                                const char *what) {
  mlx_session_t *fresh;
  mlx_generation_t resumed, expected;
  size_t kept;
  CHECK_OK(mlx_session_resume(session, ids, count, &kept));
  CHECK_INT(kept, expected_kept);
  CHECK_INT(mlx_session_length(session), kept);
  CHECK_OK(mlx_session_generate(session, ids + kept, count - kept, options, &resumed));
  CHECK_OK(mlx_session_create(engine, &fresh));
  CHECK_OK(mlx_session_generate(fresh, ids, count, options, &expected));
  check_equal(&resumed, &expected, what);
  mlx_generation_clear(&resumed);
  mlx_generation_clear(&expected);
  mlx_session_free(fresh);
}

// Three turns. Each prompt is the previous prompt, the answer, and some new tokens.
static void check_turns(const mlx_sampling_t *sampling) {
  mlx_engine_t *engine = open_tiny();
  mlx_session_t *session;
  mlx_generate_options_t options;
  mlx_generation_t answer;
  int32_t ids[CONTEXT];
  size_t count = 20, kept;
  options_for(&options, sampling);
  CHECK_OK(mlx_session_create(engine, &session));
  fill_ids(ids, count, 1);
  CHECK_OK(mlx_session_generate(session, ids, count, &options, &answer));
  for (uint32_t turn = 0; turn < 3; ++turn) {
    memcpy(ids + count, answer.ids, answer.count * sizeof *ids);
    count += answer.count;
    fill_ids(ids + count, 11, turn + 2);
    count += 11;
    mlx_generation_clear(&answer);
    check_against_fresh(engine, session, ids, count, &options, count - 12,
                        "a turn");  // the session has not read the answer's last token
    CHECK_OK(mlx_session_resume(session, ids, count, &kept));
    CHECK_INT(kept, count - 1);
    CHECK_OK(mlx_session_generate(session, ids + kept, 1, &options, &answer));
  }
  mlx_generation_clear(&answer);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(a_resumed_session_generates_the_same_tokens_as_a_new_one) { check_turns(NULL); }

// The penalties must see tokens of earlier turns.
TEST(a_resumed_session_samples_the_same_tokens_as_a_new_one) {
  mlx_sampling_t sampling;
  mlx_sampling_initialize(&sampling);
  sampling.seed = 7;
  sampling.repeat_last_n = -1;
  sampling.repeat_penalty = 1.3;
  sampling.dry_multiplier = 0.8;
  check_turns(&sampling);
}

TEST(any_common_prefix_can_be_reused) {
  mlx_engine_t *engine = open_tiny();
  mlx_session_t *session;
  mlx_generate_options_t options;
  int32_t ids[100];
  static const size_t shared[] = {0, 1, 15, 16, 17, 50, 98};
  options_for(&options, NULL);
  CHECK_OK(mlx_session_create(engine, &session));
  fill_ids(ids, 100, 9);
  check_against_fresh(engine, session, ids, 100, &options, 0, "all");
  for (size_t i = 0; i < sizeof shared / sizeof *shared; ++i) {
    ids[shared[i]] = ids[shared[i]] == 40 ? 41 : 40;
    check_against_fresh(engine, session, ids, 100, &options, shared[i], "after a change");
  }
  check_against_fresh(engine, session, ids, 100, &options, 99, "the same again");
  check_against_fresh(engine, session, ids, 30, &options, 29, "a prefix of it");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(resuming_with_no_ids_empties_the_session) {
  mlx_engine_t *engine = open_tiny();
  mlx_session_t *session;
  int32_t ids[5], next;
  size_t kept;
  fill_ids(ids, 5, 3);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, 5, &next));
  CHECK_OK(mlx_session_resume(session, ids, 0, &kept));
  CHECK_INT(kept, 0);
  CHECK_INT(mlx_session_length(session), 0);
  CHECK_ERROR(mlx_session_step(session, &next), MLX_USAGE, "must read at least one token first");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(a_resumed_session_generates_the_same_tokens_as_a_new_one),
          CASE(a_resumed_session_samples_the_same_tokens_as_a_new_one), CASE(any_common_prefix_can_be_reused),
          CASE(resuming_with_no_ids_empties_the_session))
