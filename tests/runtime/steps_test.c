// Sessions and the engine's stepper on a module that counts: groups, rewinding, resuming, and steps that are
// queued before the last one is done.
//
// The module is written by hand (tests/fixtures/counting.mlir). Its next token is (5 * token + position) mod
// 320, where position is that of the token it read. So one wrong token or position makes all later tokens
// wrong.
#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/driver.h"
#include "runtime/engine_internal.h"
#include "runtime/rooms.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tokenizer/tokenizer.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define CONTEXT 200

static int32_t after(int32_t token, int64_t position) { return (int32_t)((5 * token + position) % 320); }

// ----------------------------------------------------------------------------------------------------------
// The module

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures"
#define BURST 8  // tokens that the module's burst computes

static char folder[32];  // holds the module, the weight archive and the compiler's log

static const char *in_folder(const char *name) {
  static char paths[4][64];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static void compile_module(const char *mlir, const char *vmfb) {
  static const char *const flags[] = {"--iree-hal-target-device=local",
                                      "--iree-hal-local-target-device-backends=llvm-cpu",
                                      "--iree-llvmcpu-target-cpu=host", "--iree-input-type=stablehlo",
                                      "--iree-execution-model=async-external"};
  mlx_iree_compiler_t compiler;
  mlx_cache_t *cache;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_iree_compiler_find(cache, NULL, NULL, &compiler));
  const mlx_iree_job_t job = {.name = "counting",
                              .mlir_path = mlir,
                              .out_path = in_folder(vmfb),
                              .flags = flags,
                              .flag_count = sizeof flags / sizeof *flags,
                              .log_path = in_folder("log")};
  CHECK_OK(mlx_iree_compile(&compiler, &job, NULL, NULL));
  mlx_iree_compiler_release(&compiler);
  mlx_cache_close(cache);
}

static void write_weights(void) {
  static const mlx_archive_item_t items[] = {{"lm_head.weight", 64}, {"model.embed_tokens.weight", 128}};
  static const uint8_t bytes[128];
  mlx_archive_writer_t writer;
  CHECK_OK(mlx_archive_create(in_folder("w.irpa"), items, 2, false, &writer));
  for (int i = 0; i < 2; ++i) CHECK_OK(mlx_archive_write(&writer, bytes, items[i].size));
  CHECK_OK(mlx_archive_finish(&writer));
}

// The module is compiled once, and the folder removed at exit.
static void remove_folder(void) { mlx_status_free(mlx_remove_tree(folder)); }

// What a test wants of the engine.
typedef struct wish {
  int64_t step, burst;  // N of step_N; 0: 16
  int32_t eos;
  int64_t context, sequences;
  uint64_t memory;
  int64_t page_bytes;  // 0: 64
  bool generic;        // not ragged, does not sample, bf16 pool
} wish_t;

static mlx_status_t try_open(wish_t wish, mlx_engine_t **out_engine) {
  if (!folder[0]) {
    strcpy(folder, "/tmp/mlxcel-steps-XXXXXX");
    CHECK(mkdtemp(folder));
    atexit(remove_folder);
    compile_module(FIXTURES "/counting.mlir", "m.vmfb");
    compile_module(FIXTURES "/counting-generic.mlir", "generic.vmfb");
    write_weights();
  }
  mlx_manifest_t m = {.architecture = "counting",
                      .source = "counting",
                      .contract = MLX_CONTRACT_VERSION,
                      .vocab = 320,
                      .context = CONTEXT,
                      .eos = {wish.eos},
                      .eos_count = 1,
                      .variant_count = 1};
  mlx_variant_t *v = &m.variants[0];
  *v = (mlx_variant_t){.dtype = "f32",
                       .module = "model.vmfb",
                       .weights = "weights.irpa",
                       .kv = "bf16",
                       .activations = "f32",
                       .steps = {{wish.step ? wish.step : 16, 16}},
                       .step_count = 1,
                       .burst = wish.burst,
                       .ragged = !wish.generic,
                       .samples = !wish.generic,
                       .chunk_positions = wish.generic ? 32 : 0,
                       .kv_row = wish.generic ? 4 : 0,
                       .page_bytes = wish.page_bytes ? wish.page_bytes : 64,
                       .hidden = 4,
                       .kernels = {"decode"},
                       .kernel_count = 1,
                       .kv_bytes = 4};
  snprintf(v->target, sizeof v->target, "cpu:%s", mlx_cpu_level_here()->name);
  char *manifest, *json;
  size_t manifest_length, json_length;
  mlx_tokenizer_t *tokenizer;
  CHECK_OK(mlx_manifest_write(&m, &manifest, &manifest_length));
  CHECK_OK(mlx_read_file(TOKENIZER, SIZE_MAX, &json, &json_length));
  CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, json_length, &tokenizer));
  const mlx_model_parts_t parts = {.name = "counting",
                                   .manifest_name = "m.json",
                                   .manifest = manifest,
                                   .manifest_length = manifest_length,
                                   .tokenizer = tokenizer,
                                   .vmfb_path = in_folder(wish.generic ? "generic.vmfb" : "m.vmfb"),
                                   .weights_path = in_folder("w.irpa")};
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.context = wish.context;
  options.sequences = wish.sequences;
  options.memory = wish.memory;
  mlx_status_t status = mlx_engine_open(&parts, &options, out_engine);
  mlx_free(manifest);
  mlx_free(json);
  return status;
}

static mlx_engine_t *open_engine(bool groups, int32_t eos) {
  mlx_engine_t *engine;
  CHECK_OK(try_open((wish_t){.burst = groups ? BURST : 0, .eos = eos}, &engine));
  return engine;
}

// ----------------------------------------------------------------------------------------------------------
// Sessions

static const int32_t prompt[] = {7, 300, 12};

static mlx_session_t *read_prompt(mlx_engine_t *engine, int32_t *out_next) {
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, 3, out_next));
  CHECK_INT(*out_next, after(12, 2));
  return session;
}

TEST(grouped_steps_give_the_same_tokens_as_single_steps) {
  mlx_engine_t *engine = open_engine(true, 0);
  CHECK_TEXT(mlx_engine_info(engine).kernels, "decode");
  CHECK_INT(mlx_engine_info(engine).weight_bytes, 192);
  CHECK_INT(mlx_engine_info(engine).token_weight_bytes, 64);
  for (size_t count = 0; count < 40; ++count) {
    int32_t next, ids[40], expected;
    mlx_session_t *session = read_prompt(engine, &next);
    CHECK_OK(mlx_session_steps(session, ids, count));
    CHECK_INT(mlx_session_length(session), 3 + count);
    expected = next;
    for (size_t i = 0; i < count; ++i) CHECK_INT(ids[i], expected = after(expected, 3 + (int64_t)i));
    CHECK_OK(mlx_session_step(session, &next));
    CHECK_INT(next, after(expected, 3 + (int64_t)count));
    mlx_session_free(session);
  }
  mlx_engine_close(engine);
}

TEST(steps_that_exceed_the_context_are_refused_before_any_work) {
  mlx_engine_t *engine = open_engine(true, 0);
  int32_t next, ids[CONTEXT];
  float logits[320];
  mlx_session_t *session = read_prompt(engine, &next);
  CHECK_ERROR(mlx_session_steps(session, ids, 198), MLX_USAGE,
              "198 more tokens do not fit: the context holds 200, of which 3");
  CHECK_INT(mlx_session_length(session), 3);
  CHECK_OK(mlx_session_steps(session, ids, 196));
  CHECK_OK(mlx_session_step(session, &next));
  CHECK_OK(mlx_session_logits(session, logits, 320));
  CHECK_INT(logits[0], next);
  CHECK_ERROR(mlx_session_step(session, &next), MLX_USAGE, "1 more tokens do not fit");
  mlx_session_free(session);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_ERROR(mlx_session_steps(session, ids, 4), MLX_USAGE, "must read at least one token first");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(a_rewound_session_can_read_on_and_frees_its_pages) {
  mlx_engine_t *engine = open_engine(true, 0);
  int32_t next, ids[197];
  float logits[320];
  mlx_session_t *session = read_prompt(engine, &next);
  const int64_t free_pages = mlx_pool_counts(engine->pool).free;
  CHECK_OK(mlx_session_steps(session, ids, 40));
  CHECK(mlx_pool_counts(engine->pool).free < free_pages);
  CHECK_ERROR(mlx_session_rewind(session, 44), MLX_USAGE, "cannot rewind a session of 43 positions to 44");
  CHECK_ERROR(mlx_session_rewind(session, -1), MLX_USAGE, "positions to -1");
  CHECK_OK(mlx_session_rewind(session, 43));  // the current length: nothing changes
  CHECK_OK(mlx_session_step(session, &next));
  CHECK_INT(next, after(ids[39], 43));
  CHECK_OK(mlx_session_rewind(session, 16));
  CHECK_INT(mlx_pool_counts(engine->pool).free, free_pages);
  CHECK_ERROR(mlx_session_step(session, &next), MLX_USAGE, "must read at least one token first");
  CHECK_ERROR(mlx_session_logits(session, logits, 320), MLX_USAGE, "must read at least one token first");
  CHECK_OK(mlx_session_read(session, &ids[12], 1, &next));  // the token that was at position 16
  CHECK_INT(next, ids[13]);
  CHECK_OK(mlx_session_step(session, &next));
  CHECK_INT(next, ids[14]);
  CHECK_OK(mlx_session_rewind(session, 0));
  CHECK_OK(mlx_session_read(session, prompt, 3, &next));
  CHECK_INT(next, after(12, 2));
  mlx_session_free(session);
  mlx_engine_close(engine);
}

// Tokens decoded in a group are part of the sequence, so a longer prompt can reuse them.
TEST(a_session_resumes_after_grouped_steps) {
  mlx_engine_t *engine = open_engine(true, 0);
  int32_t next, steps[64], all[3 + 64 + 1], again;
  size_t kept;
  mlx_session_t *session = read_prompt(engine, &next);
  CHECK_OK(mlx_session_steps(session, steps, 64));
  memcpy(all, prompt, sizeof prompt);
  all[3] = next;
  memcpy(all + 4, steps, sizeof steps);
  CHECK_OK(mlx_session_resume(session, all, 68, &kept));
  CHECK_INT(kept, 67);  // the last token is not part of the sequence yet
  CHECK_OK(mlx_session_read(session, all + kept, 1, &again));
  CHECK_INT(again, after(all[67], 67));
  all[40] = (all[40] + 1) % 320;
  CHECK_OK(mlx_session_resume(session, all, 68, &kept));
  CHECK_INT(kept, 40);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(a_module_without_a_listed_function_is_refused) {
  mlx_engine_t *engine;
  CHECK_ERROR(try_open((wish_t){.step = 32}, &engine), MLX_INVALID_INPUT,
              "the module has no function 'step_32'");
}

// The logits of both sessions are in the same row on the device.
TEST(two_sessions_keep_their_logits_apart) {
  mlx_engine_t *engine;
  mlx_session_t *sessions[2], *third;
  int32_t next[2];
  float logits[320];
  CHECK_OK(try_open((wish_t){.burst = BURST, .sequences = 2}, &engine));
  CHECK_INT(mlx_engine_info(engine).sequences, 2);
  for (int i = 0; i < 2; ++i) CHECK_OK(mlx_session_create(engine, &sessions[i]));
  CHECK_ERROR(mlx_session_create(engine, &third), MLX_UNAVAILABLE,
              "all 2 sequences of the engine are in use");
  for (int i = 0; i < 2; ++i) CHECK_OK(mlx_session_read(sessions[i], prompt, (size_t)i + 1, &next[i]));
  CHECK_INT(next[0], after(7, 0));
  CHECK_INT(next[1], after(300, 1));
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(mlx_session_logits(sessions[i], logits, 320));
    CHECK_INT(logits[5], next[i]);
  }
  CHECK_OK(mlx_session_step(sessions[0], &next[0]));
  CHECK_INT(next[0], after(after(7, 0), 1));
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(mlx_session_logits(sessions[i], logits, 320));
    CHECK_INT(logits[5], next[i]);
  }
  for (int i = 0; i < 2; ++i) mlx_session_free(sessions[i]);
  mlx_engine_close(engine);
}

// ----------------------------------------------------------------------------------------------------------
// The stepper

// Each step reads the token that the step before it sampled, which the host does not know yet.
TEST(steps_are_queued_before_the_last_one_is_done) {
  static const mlx_step_sampling_t greedy = {.flags = MLX_SAMPLE_TOKEN};
  mlx_engine_t *engine;
  CHECK_OK(try_open((wish_t){.sequences = 2}, &engine));
  mlx_stepper_t *stepper = engine->stepper;
  mlx_ticket_t *tickets[3];
  const mlx_step_result_t *results;
  size_t count;
  float logits[320];
  const int32_t first = 7;
  int32_t expected = first;
  mlx_segment_t segment = {.slot = 1, .count = 1, .ids = &first, .wanted = &greedy};
  CHECK_ERROR(stepper->submit(stepper, &segment, 1, &tickets[0]), MLX_INTERNAL, "slot 1 has no page");
  for (int32_t i = 0; i < 3; ++i) CHECK_OK(stepper->set_page(stepper, 1, i, 3 - i));
  CHECK_OK(stepper->submit(stepper, &segment, 1, &tickets[0]));
  segment.ids = NULL;
  for (int32_t i = 1; i < 40; ++i) {
    segment.position = i;
    CHECK_OK(stepper->submit(stepper, &segment, 1, &tickets[i % 3]));
    CHECK_OK(stepper->wait(stepper, tickets[(i - 1) % 3], &results, &count));
    CHECK_INT(count, 1);
    CHECK_INT(results[0].token, expected = after(expected, i - 1));
    CHECK_ERROR(stepper->read_logits(stepper, 0, logits), MLX_INTERNAL, "a later step");
  }
  CHECK_OK(stepper->wait(stepper, tickets[39 % 3], &results, &count));
  CHECK_INT(results[0].token, after(expected, 39));
  CHECK_OK(stepper->read_logits(stepper, 0, logits));
  CHECK_INT(logits[0], after(expected, 39));
  // Tokens that a shared page holds are stored in the order of the calls.
  const int32_t shared[] = {1, 2, 3};
  segment.position = 42;
  CHECK_OK(stepper->set_tokens(stepper, 1, 40, shared, 3));
  CHECK_OK(stepper->submit(stepper, &segment, 1, &tickets[0]));
  CHECK_OK(stepper->wait(stepper, tickets[0], &results, &count));
  CHECK_INT(results[0].token, after(3, 42));
  mlx_engine_close(engine);
}

// Such a module gets the number of chunks of attention, and the host chooses the token.
TEST(a_module_that_does_not_sample_computes_one_segment) {
  static const mlx_step_sampling_t greedy = {.flags = MLX_SAMPLE_TOKEN};
  mlx_engine_t *engine;
  CHECK_OK(try_open((wish_t){.generic = true}, &engine));
  mlx_stepper_t *stepper = engine->stepper;
  int32_t next, ids[100];
  float hidden[4];
  mlx_session_t *session = read_prompt(engine, &next);
  CHECK_OK(mlx_session_steps(session, ids, 100));
  for (int32_t i = 0; i < 100; ++i) CHECK_INT(ids[i], next = after(next, 3 + i));
  CHECK_OK(stepper->read_hidden(stepper, 0, hidden));
  CHECK_INT(hidden[0], 4);  // 103 positions in chunks of 32
  mlx_session_free(session);
  mlx_ticket_t *ticket;
  const mlx_segment_t segments[2] = {{.count = 1, .ids = &next, .wanted = &greedy},
                                     {.count = 1, .wanted = &greedy}};
  CHECK_ERROR(stepper->submit(stepper, segments, 2, &ticket), MLX_INTERNAL, "cannot have 2 segments");
  CHECK_ERROR(stepper->submit(stepper, segments + 1, 1, &ticket), MLX_INTERNAL, "are missing");
  mlx_engine_close(engine);
}

TEST(a_burst_ends_at_an_end_of_text_token) {
  static const mlx_step_sampling_t greedy = {.flags = MLX_SAMPLE_TOKEN};
  mlx_engine_t *engine;
  CHECK_OK(try_open((wish_t){.burst = BURST}, &engine));
  mlx_stepper_t *stepper = engine->stepper;
  mlx_ticket_t *ticket;
  const mlx_step_result_t *results;
  size_t count;
  int32_t expected[BURST], token = 7;
  for (int32_t i = 0; i < BURST; ++i) expected[i] = token = after(token, i);
  const int32_t first = 7;
  const mlx_segment_t segment = {.count = 1, .ids = &first, .wanted = &greedy};
  CHECK_OK(stepper->set_page(stepper, 0, 0, 1));
  for (int32_t end = 0; end < BURST; ++end) {
    CHECK_OK(stepper->submit_burst(stepper, &segment, BURST, &expected[end], 1, &ticket));
    CHECK_OK(stepper->wait(stepper, ticket, &results, &count));
    CHECK_INT(count, end + 1);
    for (size_t i = 0; i < count; ++i) CHECK_INT(results[i].token, expected[i]);
  }
  CHECK_ERROR(stepper->submit_burst(stepper, &segment, BURST + 1, NULL, 0, &ticket), MLX_INTERNAL, "a burst");
  mlx_engine_close(engine);
}

// ----------------------------------------------------------------------------------------------------------
// Sizes

TEST(context_sequences_and_memory_are_chosen_at_load) {
  static const struct {
    wish_t wish;
    int64_t context, pages;
  } cases[] = {
      {{0}, 200, 14},
      {{.context = 17}, 17, 3},
      {{.context = -1}, 200, 14},
      {{.sequences = 4}, 200, 53},
      {{.context = 20, .sequences = 4}, 20, 9},
      {{.sequences = 4, .memory = 20 * 64}, 200, 20},  // one sequence fits, four do not
      {{.memory = 5 * 64 + 63}, 64, 5},                // the default context is what fits
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_engine_t *engine;
    CHECK_OK(try_open(cases[i].wish, &engine));
    CHECK_INT(mlx_engine_info(engine).context, cases[i].context);
    CHECK_INT(engine->stepper->pool_pages, cases[i].pages);
    mlx_engine_close(engine);
  }
  mlx_engine_t *engine;
  CHECK_ERROR(try_open((wish_t){.context = 201}, &engine), MLX_USAGE,
              "counting supports a context of 1 to 200 tokens, not 201");
  CHECK_ERROR(try_open((wish_t){.sequences = 5000}, &engine), MLX_USAGE, "use --parallel 1 to 4096");
  CHECK_ERROR(try_open((wish_t){.context = 100, .memory = 5 * 64}, &engine), MLX_OUT_OF_MEMORY,
              "a context of 100 tokens needs 0.0 MiB of memory for its KV cache; 0.0 MiB are allowed");
  CHECK_ERROR(try_open((wish_t){.memory = UINT64_MAX}, &engine), MLX_OUT_OF_MEMORY, "--memory wants");
  CHECK_ERROR(try_open((wish_t){.context = 200, .page_bytes = (int64_t)1 << 39}, &engine), MLX_OUT_OF_MEMORY,
              "of memory for its KV cache");
}

// ----------------------------------------------------------------------------------------------------------
// Generating

typedef struct callback {
  size_t calls, stop_after;  // 0: never stop
} callback_t;

static bool on_text(void *user, const char *text, size_t length) {
  callback_t *callback = user;
  (void)text, (void)length;
  return ++callback->calls != callback->stop_after;
}

static void generate(mlx_engine_t *engine, int64_t max_tokens, bool ignore_eos, callback_t *callback,
                     mlx_generation_t *out, mlx_session_t **out_session) {
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = max_tokens;
  options.ignore_eos = ignore_eos;
  options.on_text = callback ? on_text : NULL;
  options.user = callback;
  CHECK_OK(mlx_session_create(engine, out_session));
  CHECK_OK(mlx_session_generate(*out_session, prompt, 3, &options, out));
}

// Groups must give the same tokens, text and finish reason as single steps, wherever in a group the text
// ends. Reading the last token then continues the sequence, as mlxcel.h says.
static void check_same(int32_t eos, int64_t max_tokens, bool ignore_eos) {
  mlx_engine_t *engines[2] = {open_engine(false, eos), open_engine(true, eos)};
  mlx_session_t *sessions[2];
  mlx_generation_t g[2];
  for (int i = 0; i < 2; ++i) generate(engines[i], max_tokens, ignore_eos, NULL, &g[i], &sessions[i]);
  CHECK_INT(g[0].count, g[1].count);
  CHECK(!memcmp(g[0].ids, g[1].ids, g[0].count * sizeof *g[0].ids));
  CHECK_TEXT(g[1].text, g[0].text);
  CHECK_INT(g[0].finish_reason, g[1].finish_reason);
  CHECK_INT(mlx_session_length(sessions[1]), 3 + g[1].count - 1);
  CHECK_INT(mlx_session_length(sessions[0]), mlx_session_length(sessions[1]));
  if (g[1].finish_reason != MLX_FINISH_CONTEXT) {
    int32_t next, last = g[1].ids[g[1].count - 1];
    CHECK_OK(mlx_session_read(sessions[1], &last, 1, &next));
    CHECK_INT(next, after(last, 3 + (int64_t)g[1].count - 1));
  }
  for (int i = 0; i < 2; ++i) {
    mlx_generation_clear(&g[i]);
    mlx_session_free(sessions[i]);
    mlx_engine_close(engines[i]);
  }
}

TEST(generated_text_does_not_depend_on_the_group_sizes) {
  int32_t token = 12;
  for (int64_t i = 0; i < 24; ++i) {
    token = after(token, 2 + i);
    check_same(token, -1, false);    // end-of-text at every position of a group
    check_same(token, i + 1, true);  // max_tokens at every position of a group
  }
  check_same(0, -1, true);  // until the context is full
}

TEST(text_is_streamed_after_each_group_and_the_callback_can_stop_it) {
  mlx_engine_t *engine = open_engine(true, 0);
  mlx_session_t *session;
  mlx_generation_t g;
  callback_t callback = {0};
  generate(engine, 14, true, &callback, &g, &session);
  CHECK_INT(g.count, 14);
  // The token from prefill, and groups of 1, 8 and 4. On a machine so slow that a group takes 20 ms: 1, 2,
  // 4, 6.
  CHECK(callback.calls >= 4 && callback.calls <= 5);
  mlx_generation_clear(&g);
  mlx_session_free(session);
  callback = (callback_t){.stop_after = 4};
  generate(engine, 100, true, &callback, &g, &session);
  CHECK_INT(g.finish_reason, MLX_FINISH_CANCELLED);
  CHECK(g.count >= 8 &&
        g.count <= 50);  // the token from prefill, and groups of 1, 8 and 40; or of 1, 2 and 4
  CHECK_INT(mlx_session_length(session), (int64_t)g.count + 2);
  mlx_generation_clear(&g);
  mlx_session_free(session);
  generate(engine, 0, true, NULL, &g, &session);
  CHECK_INT(g.count, 0);
  CHECK_INT(g.finish_reason, MLX_FINISH_LENGTH);
  mlx_generation_clear(&g);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(grouped_steps_give_the_same_tokens_as_single_steps),
          CASE(a_session_resumes_after_grouped_steps),
          CASE(steps_that_exceed_the_context_are_refused_before_any_work),
          CASE(a_rewound_session_can_read_on_and_frees_its_pages),
          CASE(a_module_without_a_listed_function_is_refused), CASE(two_sessions_keep_their_logits_apart),
          CASE(steps_are_queued_before_the_last_one_is_done),
          CASE(a_module_that_does_not_sample_computes_one_segment),
          CASE(a_burst_ends_at_an_end_of_text_token), CASE(context_sequences_and_memory_are_chosen_at_load),
          CASE(generated_text_does_not_depend_on_the_group_sizes),
          CASE(text_is_streamed_after_each_group_and_the_callback_can_stop_it))
