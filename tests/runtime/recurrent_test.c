// Networks with a recurrent state: any division of a sequence into steps, rewinding, resuming, several
// sequences and scoring give what one pass gives, bit for bit.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "runtime/engine_internal.h"
#include "runtime/pool.h"
#include "runtime/rooms.h"
#include "runtime/scheduler_internal.h"
#include "tests/support/architectures.h"
#include "tests/support/compiled.h"

#define LENGTH 150  // tokens of the prompt: longer than a chunk of Hugging Face's scan
#define NEW 24      // tokens that are decoded

// The first MODELS have a GGUF file in tests/fixtures/hybrid.
static const char *const models[] = {"lfm2",   "qwen3_5", "falcon_h1", "granitemoehybrid",
                                     "mamba2", "mamba",   "jamba",     "olmo_hybrid"};
#define ALL (sizeof models / sizeof *models)
#define MODELS (ALL - 1)

static mlx_engine_t *open_model(const char *name, int64_t sequences) {
  char folder[] = "/tmp/mlxcel-recurrent-XXXXXX", path[512];
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, FIXTURES "%s/generation_config.json", name);
  if (mlx_is_file(path)) {
    link_model(name, folder);
  } else {  // a directory of tests/parity/hybrid_pairs.py
    link_file(name, folder, "config.json");
    link_file(name, folder, "model.safetensors");
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    CHECK(!symlink(TOKENIZER, path));
  }
  const mlx_compile_options_t options = {.context = CONTEXT, .weights = MLX_WEIGHTS_AUTO};
  mlx_engine_t *engine = open_parallel(folder, &options, NULL, 2, sequences);
  CHECK_OK(mlx_remove_tree(folder));
  return engine;
}

static int32_t token_at(int text, int position) {
  return (int32_t)(3 + (37 * position + 101 * text + position * position) % 300);
}

typedef struct answer {
  int32_t first, ids[NEW];
  float logits[VOCAB];
} answer_t;

// Reads tokens [from, LENGTH) of a text in parts of |part| tokens, then decodes.
static void continue_text(mlx_session_t *session, int text, int from, int part, answer_t *out) {
  int32_t ids[LENGTH];
  for (int i = 0; i < LENGTH; ++i) ids[i] = token_at(text, i);
  for (int at = from; at < LENGTH; at += part) {
    const int count = LENGTH - at < part ? LENGTH - at : part;
    CHECK_OK(mlx_session_read(session, ids + at, (size_t)count, &out->first));
  }
  CHECK_OK(mlx_session_steps(session, out->ids, NEW));
  CHECK_OK(mlx_session_logits(session, out->logits, VOCAB));
}

static answer_t answer_to(mlx_engine_t *engine, int text) {
  mlx_session_t *session;
  answer_t answer;
  CHECK_OK(mlx_session_create(engine, &session));
  continue_text(session, text, 0, LENGTH, &answer);
  mlx_session_free(session);
  return answer;
}

TEST(parts_of_a_prompt_give_the_bits_of_the_whole) {
  const int parts[] = {1, 2, 7, 64, 149};
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 1);
    const answer_t whole = answer_to(engine, 1);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
      mlx_session_t *session;
      answer_t answer;
      CHECK_OK(mlx_session_create(engine, &session));
      continue_text(session, 1, 0, parts[i], &answer);
      CHECK(!memcmp(answer.ids, whole.ids, sizeof whole.ids));
      CHECK(!memcmp(answer.logits, whole.logits, sizeof whole.logits));
      mlx_session_free(session);
    }
    mlx_engine_close(engine);
  }
}

// The state has seen tokens that the rewound session does not have: they are read again.
TEST(a_rewound_session_has_the_state_of_its_tokens) {
  const int lengths[] = {0, 1, 16, 100, LENGTH};
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 1);
    const answer_t whole = answer_to(engine, 2);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
      mlx_session_t *session;
      answer_t answer;
      CHECK_OK(mlx_session_create(engine, &session));
      continue_text(session, 2, 0, LENGTH, &answer);
      CHECK_OK(mlx_session_rewind(session, lengths[i]));
      if (lengths[i] == LENGTH) {  // the last token again
        CHECK_OK(mlx_session_rewind(session, LENGTH - 1));
        continue_text(session, 2, LENGTH - 1, 1, &answer);
      } else {
        continue_text(session, 2, lengths[i], LENGTH, &answer);
      }
      CHECK(!memcmp(answer.ids, whole.ids, sizeof whole.ids));
      CHECK(!memcmp(answer.logits, whole.logits, sizeof whole.logits));
      mlx_session_free(session);
    }
    mlx_engine_close(engine);
  }
}

TEST(sessions_do_not_share_a_state) {
  enum { SESSIONS = 3 };
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], SESSIONS);
    answer_t alone[SESSIONS], answer;
    mlx_session_t *sessions[SESSIONS];
    int32_t next[SESSIONS];
    for (int s = 0; s < SESSIONS; ++s) alone[s] = answer_to(engine, s);
    for (int s = 0; s < SESSIONS; ++s) CHECK_OK(mlx_session_create(engine, &sessions[s]));
    for (int i = 0; i < LENGTH - 1; ++i) {  // token by token, in turns
      for (int s = 0; s < SESSIONS; ++s) {
        const int32_t id = token_at(s, i);
        CHECK_OK(mlx_session_read(sessions[s], &id, 1, &next[s]));
      }
    }
    for (int s = 0; s < SESSIONS; ++s) {
      continue_text(sessions[s], s, LENGTH - 1, 1, &answer);
      CHECK(!memcmp(answer.ids, alone[s].ids, sizeof answer.ids));
      CHECK(!memcmp(answer.logits, alone[s].logits, sizeof answer.logits));
      mlx_session_free(sessions[s]);
    }
    mlx_engine_close(engine);
  }
}

// A chat: each turn continues the sequence, or a part of it.
TEST(generating_in_turns_equals_generating_at_once) {
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 2);
    mlx_generate_options_t options;
    mlx_generate_options_initialize(&options);
    options.max_tokens = 9;
    options.ignore_eos = true;
    mlx_session_t *session, *fresh;
    int32_t ids[CONTEXT];
    size_t count = 0, kept;
    CHECK_OK(mlx_session_create(engine, &session));
    for (int turn = 0; turn < 5; ++turn) {
      mlx_generation_t generation, expected;
      if (turn == 3) count -= 4;  // the template writes the last answer in another way
      for (int i = 0; i < 11; ++i) ids[count++] = token_at(turn, i);
      CHECK_OK(mlx_session_resume(session, ids, count, &kept));
      CHECK_OK(mlx_session_generate(session, ids + kept, count - kept, &options, &generation));
      CHECK_OK(mlx_session_create(engine, &fresh));
      CHECK_OK(mlx_session_generate(fresh, ids, count, &options, &expected));
      CHECK_INT(generation.count, expected.count);
      CHECK(!memcmp(generation.ids, expected.ids, expected.count * sizeof *expected.ids));
      memcpy(ids + count, expected.ids, expected.count * sizeof *ids);
      count += expected.count;
      mlx_session_free(fresh);
      mlx_generation_clear(&generation);
      mlx_generation_clear(&expected);
    }
    mlx_session_free(session);
    mlx_engine_close(engine);
  }
}

// Generates the next answer of a chat, and checks that only the tokens after |kept| were computed, and that a
// fresh session gets the same answer.
static void take_turn(mlx_engine_t *engine, mlx_scheduler_t *scheduler, int32_t *ids, size_t *count,
                      size_t kept, int64_t tokens) {
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = tokens;
  options.ignore_eos = true;
  mlx_request_t *request;
  mlx_session_t *session;
  mlx_generation_t expected;
  CHECK_OK(mlx_scheduler_submit(scheduler, ids, *count, &options, &request));
  CHECK_OK(mlx_scheduler_run(scheduler));
  CHECK_OK(mlx_request_take_status(request));
  const mlx_generation_t *generation = mlx_request_generation(request);
  CHECK_INT(generation->cached_tokens, (int64_t)kept);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_generate(session, ids, *count, &options, &expected));
  CHECK_INT(generation->count, expected.count);
  CHECK(!memcmp(generation->ids, expected.ids, expected.count * sizeof *expected.ids));
  memcpy(ids + *count, expected.ids, expected.count * sizeof *ids);
  *count += expected.count;
  mlx_generation_clear(&expected);
  mlx_session_free(session);
  mlx_request_free(request);
}

// Each turn goes on from the state after the last answer, whose last token was not computed yet.
TEST(each_turn_of_a_chat_computes_only_its_new_tokens) {
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 2);
    mlx_scheduler_options_t options;
    mlx_scheduler_options_initialize(&options);
    mlx_scheduler_t *scheduler;
    CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
    int32_t ids[CONTEXT];
    size_t count = 0;
    for (int turn = 0; turn < 20; ++turn) {
      const size_t kept = count ? count - 1 : 0;
      for (int i = 0; i < 3 + turn % 5; ++i) ids[count++] = token_at(turn, i);
      take_turn(engine, scheduler, ids, &count, kept, 2 + turn % 4);
    }
    mlx_scheduler_free(scheduler);
    mlx_engine_close(engine);
  }
}

// The next prompt has another text in place of the answer: it goes on from the last full page of the prompt.
TEST(a_turn_that_rewrites_the_last_answer_goes_on_from_the_prompt) {
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 2);
    mlx_scheduler_options_t options;
    mlx_scheduler_options_initialize(&options);
    mlx_scheduler_t *scheduler;
    CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
    int32_t ids[CONTEXT];
    size_t count = 0, prompt = 0;
    for (int turn = 0; turn < 6; ++turn) {
      const size_t kept = prompt ? (prompt - 1) / 16 * 16 : 0;
      count = prompt;
      for (int i = 0; i < 25; ++i) ids[count++] = token_at(turn, i);
      prompt = count;
      take_turn(engine, scheduler, ids, &count, kept, 5);
    }
    mlx_scheduler_free(scheduler);
    mlx_engine_close(engine);
  }
}

// The same in a session, as `mlxcel run` chats: it has a snapshot of its own.
TEST(a_session_that_resumes_another_answer_goes_on_from_the_prompt) {
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 2);
    mlx_session_t *chat;
    int32_t ids[CONTEXT];
    size_t prompt = 0;
    CHECK_OK(mlx_session_create(engine, &chat));
    for (int turn = 0; turn < 6; ++turn) {
      const size_t expected = prompt ? (prompt - 1) / 16 * 16 : 0;
      int32_t next[2], answers[2][5];
      float logits[2][VOCAB];
      size_t kept;
      for (int i = 0; i < 25; ++i) ids[prompt++] = token_at(turn, i);
      CHECK_OK(mlx_session_resume(chat, ids, prompt, &kept));
      CHECK_INT(kept, expected);
      mlx_session_t *fresh, *sessions[] = {chat, NULL};
      CHECK_OK(mlx_session_create(engine, &fresh));
      sessions[1] = fresh;
      for (int i = 0; i < 2; ++i) {
        const size_t from = i ? 0 : kept;
        CHECK_OK(mlx_session_read(sessions[i], ids + from, prompt - from, &next[i]));
        CHECK_OK(mlx_session_steps(sessions[i], answers[i], 5));
        CHECK_OK(mlx_session_logits(sessions[i], logits[i], VOCAB));
      }
      CHECK_INT(next[0], next[1]);
      CHECK(!memcmp(answers[0], answers[1], sizeof answers[0]));
      CHECK(!memcmp(logits[0], logits[1], sizeof logits[0]));
      mlx_session_free(fresh);
      // Another token in place of the answer: the state of the session is not that of the next prompt.
      ids[prompt++] = answers[0][0] == 7 ? 8 : 7;
    }
    mlx_session_free(chat);
    const mlx_pool_counts_t states = mlx_pool_state_counts(engine->scheduler->pages.pool);
    CHECK_INT(states.used, 0);
    mlx_engine_close(engine);
  }
}

// llama.cpp's converter writes the value heads of the Qwen models in another order, other numbers for the
// rates, and the products of weights and factors of Falcon-H1, so the bits differ.
TEST(a_gguf_file_gives_the_tokens_of_its_directory) {
  const mlx_compile_options_t options = {.context = CONTEXT, .weights = MLX_WEIGHTS_AUTO};
  static const char *const more[] = {"granitemoehybrid-dense",
                                     "bamba",
                                     "nemotron_h",
                                     "nemotron_h_moe",
                                     "qwen3_5_moe",
                                     "qwen3_next",
                                     "lfm2_moe"};
  for (size_t m = 0; m < MODELS + sizeof more / sizeof *more; ++m) {
    char name[64], path[512];
    snprintf(name, sizeof name, "hybrid/%s", m < MODELS ? models[m] : more[m - MODELS]);
    snprintf(path, sizeof path, FIXTURES "%s.gguf", name);
    mlx_engine_t *directory = open_model(name, 1), *file = open_compiled(path, &options, NULL, 2);
    for (int text = 0; text < 3; ++text) {
      const answer_t expected = answer_to(directory, text), answer = answer_to(file, text);
      double worst = 0, largest = 0;
      CHECK(!memcmp(answer.ids, expected.ids, sizeof expected.ids));
      for (int i = 0; i < VOCAB; ++i) {
        worst = fmax(worst, fabs((double)answer.logits[i] - (double)expected.logits[i]));
        largest = fmax(largest, fabs((double)expected.logits[i]));
      }
      CHECK(worst < 1e-5 * largest);
    }
    mlx_engine_close(directory);
    mlx_engine_close(file);
  }
}

// The texts start after the session's own tokens, each with the state after them.
TEST(texts_are_scored_from_the_state_of_the_session) {
  enum { TEXTS = 3, TEXT = 12 };
  for (size_t m = 0; m < ALL; ++m) {
    mlx_engine_t *engine = open_model(models[m], 1);
    int32_t ids[TEXTS * TEXT], prefix[20], next;
    float together[TEXTS * (TEXT - 1)], alone[TEXT - 1];
    for (int i = 0; i < TEXTS * TEXT; ++i) ids[i] = token_at(i / TEXT, i % TEXT);
    for (int i = 0; i < 20; ++i) prefix[i] = token_at(7, i);
    for (int with_prefix = 0; with_prefix < 2; ++with_prefix) {
      mlx_session_t *session;
      CHECK_OK(mlx_session_create(engine, &session));
      if (with_prefix) CHECK_OK(mlx_session_read(session, prefix, 20, &next));
      CHECK_OK(mlx_session_score_texts(
          session, &(mlx_texts_t){.ids = ids, .count = TEXTS, .length = TEXT, .logprobs = together}));
      mlx_session_free(session);
      for (int t = 0; t < TEXTS; ++t) {
        CHECK_OK(mlx_session_create(engine, &session));
        if (with_prefix) CHECK_OK(mlx_session_read(session, prefix, 20, &next));
        CHECK_OK(mlx_session_score(session, ids + t * TEXT, TEXT, alone, NULL, NULL));
        CHECK(!memcmp(alone, together + t * (TEXT - 1), sizeof alone));
        mlx_session_free(session);
      }
    }
    mlx_engine_close(engine);
  }
}

TEST_MAIN(CASE(parts_of_a_prompt_give_the_bits_of_the_whole),
          CASE(a_rewound_session_has_the_state_of_its_tokens), CASE(sessions_do_not_share_a_state),
          CASE(generating_in_turns_equals_generating_at_once),
          CASE(each_turn_of_a_chat_computes_only_its_new_tokens),
          CASE(a_turn_that_rewrites_the_last_answer_goes_on_from_the_prompt),
          CASE(a_session_that_resumes_another_answer_goes_on_from_the_prompt),
          CASE(a_gguf_file_gives_the_tokens_of_its_directory),
          CASE(texts_are_scored_from_the_state_of_the_session))
