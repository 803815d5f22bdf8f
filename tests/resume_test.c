// A session that goes on from what it holds writes what a fresh one writes: the promise that lets a chat not
// read everything again.
#include "base/memory.h"
#include "tests/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define CONTEXT 256
#define NEW_TOKENS 24

static mlx_engine_t *open_tiny(void) {
  return open_compiled(TINY, &(mlx_compile_options_t){.sequences = 2, .context = CONTEXT}, NULL, 0);
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
      CHECK_FAIL("%s: token %zu is %d, in a fresh session %d", what, i, a->ids[i], b->ids[i]);
  }
}

static void check_against_fresh(mlx_engine_t *engine, mlx_session_t *session, const int32_t *ids,
                                size_t count, const mlx_generate_options_t *options, size_t expected_kept,
                                const char *what) {
  mlx_session_t *fresh;
  mlx_generation_t ours, theirs;
  size_t kept;
  CHECK_OK(mlx_session_resume(session, ids, count, &kept));
  CHECK_INT(kept, expected_kept);
  CHECK_INT(mlx_session_length(session), kept);
  CHECK_OK(mlx_session_generate(session, ids + kept, count - kept, options, &ours));
  CHECK_OK(mlx_session_create(engine, &fresh));
  CHECK_OK(mlx_session_generate(fresh, ids, count, options, &theirs));
  check_equal(&ours, &theirs, what);
  mlx_generation_clear(&ours);
  mlx_generation_clear(&theirs);
  mlx_session_free(fresh);
}

// Three turns: each prompt is the one before, the answer, and something new.
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
                        "a turn");  // the answer's last token was never read
    CHECK_OK(mlx_session_resume(session, ids, count, &kept));
    CHECK_INT(kept, count - 1);
    CHECK_OK(mlx_session_generate(session, ids + kept, 1, &options, &answer));
  }
  mlx_generation_clear(&answer);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(a_resumed_session_writes_what_a_fresh_one_writes) { check_turns(NULL); }

// Penalties look back on tokens that were read turns ago.
TEST(a_resumed_session_samples_as_a_fresh_one_does) {
  mlx_sampling_t sampling;
  mlx_sampling_initialize(&sampling);
  sampling.seed = 7;
  sampling.repeat_last_n = -1;
  sampling.repeat_penalty = 1.3;
  sampling.dry_multiplier = 0.8;
  check_turns(&sampling);
}

TEST(whatever_part_is_shared_the_rest_is_read) {
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
  check_against_fresh(engine, session, ids, 30, &options, 29, "a beginning of it");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(resuming_with_nothing_empties_the_session) {
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
  CHECK_ERROR(mlx_session_step(session, &next), MLX_USAGE, "must read something");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(a_resumed_session_writes_what_a_fresh_one_writes),
          CASE(a_resumed_session_samples_as_a_fresh_one_does), CASE(whatever_part_is_shared_the_rest_is_read),
          CASE(resuming_with_nothing_empties_the_session))
