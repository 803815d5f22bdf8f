// Decode calls that generate several tokens (groups): their sizes, and sessions that step, rewind and resume.
//
// The module is written by hand, because the generic path has only decode_1. Its next token is
// (5 * token + position) mod 320, where position is that of the token it read. So one wrong token or position
// makes all later tokens wrong.
#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/driver.h"
#include "runtime/session_internal.h"
#include "tests/check.h"
#include "tests/command.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define CONTEXT 200

static int32_t after(int32_t token, int64_t position) { return (int32_t)((5 * token + position) % 320); }

// ----------------------------------------------------------------------------------------------------------
// The module

// clang-format off
#define CONSTANTS \
  "    %five = stablehlo.constant dense<5> : tensor<1xi32>\n" \
  "    %one = stablehlo.constant dense<1> : tensor<1xi32>\n" \
  "    %vocab = stablehlo.constant dense<320> : tensor<1xi32>\n"
#define LOAD_STATE \
  "    %t0 = util.global.load @token : tensor<1xi32>\n" \
  "    %p0 = util.global.load @position : tensor<1xi32>\n"
#define STEP(from, to) \
  "    %m" to " = stablehlo.multiply %t" from ", %five : tensor<1xi32>\n" \
  "    %s" to " = stablehlo.add %m" to ", %p" from " : tensor<1xi32>\n" \
  "    %t" to " = stablehlo.remainder %s" to ", %vocab : tensor<1xi32>\n" \
  "    %p" to " = stablehlo.add %p" from ", %one : tensor<1xi32>\n" \
  "    %c" to " = stablehlo.reshape %t" to " : (tensor<1xi32>) -> tensor<1x1xi32>\n"
#define STORE_STATE(last) \
  "    util.global.store %t" last ", @token : tensor<1xi32>\n" \
  "    util.global.store %p" last ", @position : tensor<1xi32>\n"

static const char module[] =
    "module @mlxcel {\n"
    "  util.global private mutable @token = dense<1> : tensor<1xi32>\n"
    "  util.global private mutable @position = dense<2> : tensor<1xi32>\n"
    "  func.func @prefill_16(%tokens: tensor<1x16xi32>, %start: tensor<1xi32>, %count: tensor<1xi32>, "
    "%pages: tensor<1x13xi32>) -> tensor<1xi32> {\n"
    CONSTANTS
    "    %end = stablehlo.add %start, %count : tensor<1xi32>\n"
    "    %p0 = stablehlo.subtract %end, %one : tensor<1xi32>\n"
    "    %last = stablehlo.subtract %count, %one : tensor<1xi32>\n"
    "    %index = stablehlo.reshape %last : (tensor<1xi32>) -> tensor<i32>\n"
    "    %row = stablehlo.constant dense<0> : tensor<i32>\n"
    "    %cell = stablehlo.dynamic_slice %tokens, %row, %index, sizes = [1, 1] : "
    "(tensor<1x16xi32>, tensor<i32>, tensor<i32>) -> tensor<1x1xi32>\n"
    "    %t0 = stablehlo.reshape %cell : (tensor<1x1xi32>) -> tensor<1xi32>\n"
    STEP("0", "1")
    STORE_STATE("1")
    "    return %t1 : tensor<1xi32>\n"
    "  }\n"
    "  func.func @decode_1(%active: tensor<1xi32>, %pages: tensor<1x13xi32>) -> tensor<1x1xi32> {\n"
    CONSTANTS
    LOAD_STATE
    STEP("0", "1")
    STORE_STATE("1")
    "    return %c1 : tensor<1x1xi32>\n"
    "  }\n"
    "  func.func @decode_4(%active: tensor<1xi32>, %pages: tensor<1x13xi32>) -> tensor<1x4xi32> {\n"
    CONSTANTS
    LOAD_STATE
    STEP("0", "1")
    STEP("1", "2")
    STEP("2", "3")
    STEP("3", "4")
    STORE_STATE("4")
    "    %all = stablehlo.concatenate %c1, %c2, %c3, %c4, dim = 1 : "
    "(tensor<1x1xi32>, tensor<1x1xi32>, tensor<1x1xi32>, tensor<1x1xi32>) -> tensor<1x4xi32>\n"
    "    return %all : tensor<1x4xi32>\n"
    "  }\n"
    "  func.func @logits() -> tensor<1x320xf32> {\n"
    "    %token = util.global.load @token : tensor<1xi32>\n"
    "    %number = stablehlo.convert %token : (tensor<1xi32>) -> tensor<1xf32>\n"
    "    %wide = stablehlo.broadcast_in_dim %number, dims = [0] : (tensor<1xf32>) -> tensor<1x320xf32>\n"
    "    return %wide : tensor<1x320xf32>\n"
    "  }\n"
    "}\n";
// clang-format on

static char folder[32];  // holds the module, the weight archive and the compiler's log

static const char *in_folder(const char *name) {
  static char paths[4][64];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static void compile_module(void) {
  static const char *const flags[] = {"--iree-hal-target-device=local",
                                      "--iree-hal-local-target-device-backends=llvm-cpu",
                                      "--iree-llvmcpu-target-cpu=host", "--iree-input-type=stablehlo"};
  mlx_iree_compiler_t compiler;
  mlx_cache_t *cache;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_iree_compiler_find(cache, NULL, NULL, &compiler));
  CHECK_OK(mlx_write_file(in_folder("m.mlir"), module, strlen(module)));
  const mlx_iree_job_t job = {.name = "counting",
                              .mlir_path = in_folder("m.mlir"),
                              .out_path = in_folder("m.vmfb"),
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
  CHECK_OK(mlx_archive_create(in_folder("w.irpa"), items, 2, &writer));
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(mlx_archive_next(&writer));
    CHECK_OK(mlx_archive_write(&writer, bytes, items[i].size));
  }
  CHECK_OK(mlx_archive_finish(&writer));
}

// The module is compiled once, and the folder removed at exit.
static void remove_folder(void) { mlx_status_free(mlx_remove_tree(folder)); }

static mlx_status_t try_open(const int64_t *decode, size_t decode_count, int32_t eos,
                             mlx_engine_t **out_engine) {
  if (!folder[0]) {
    strcpy(folder, "/tmp/mlxcel-steps-XXXXXX");
    CHECK(mkdtemp(folder));
    atexit(remove_folder);
    compile_module();
    write_weights();
  }
  mlx_manifest_t m = {.architecture = "counting",
                      .source = "counting",
                      .contract = MLX_CONTRACT_VERSION,
                      .vocab = 320,
                      .eos = {eos},
                      .eos_count = 1,
                      .variant_count = 1};
  mlx_variant_t *v = &m.variants[0];
  *v = (mlx_variant_t){.dtype = "f32",
                       .module = "model.vmfb",
                       .weights = "weights.irpa",
                       .context = CONTEXT,
                       .sequences = 1,
                       .page_size = 16,
                       .sequence_pages = 13,
                       .pool_pages = 14,
                       .prefill = {16},
                       .prefill_count = 1,
                       .decode_count = decode_count,
                       .kernels = {"decode"},
                       .kernel_count = 1,
                       .kv_bytes = 8};
  snprintf(v->target, sizeof v->target, "cpu:%s", mlx_cpu_level_here()->name);
  memcpy(v->decode, decode, decode_count * sizeof *decode);
  char *manifest, *tokenizer;
  size_t manifest_length, tokenizer_length;
  CHECK_OK(mlx_manifest_write(&m, &manifest, &manifest_length));
  CHECK_OK(mlx_read_file(TOKENIZER, SIZE_MAX, &tokenizer, &tokenizer_length));
  const mlx_model_parts_t parts = {.name = "counting",
                                   .manifest_name = "m.json",
                                   .tokenizer_name = TOKENIZER,
                                   .manifest = manifest,
                                   .manifest_length = manifest_length,
                                   .tokenizer = tokenizer,
                                   .tokenizer_length = tokenizer_length,
                                   .vmfb_path = in_folder("m.vmfb"),
                                   .weights_path = in_folder("w.irpa")};
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  mlx_status_t status = mlx_engine_open(&parts, &options, out_engine);
  mlx_free(manifest);
  mlx_free(tokenizer);
  return status;
}

static mlx_engine_t *open_engine(bool groups, int32_t eos) {
  mlx_engine_t *engine;
  CHECK_OK(try_open((int64_t[]){1, 4}, groups ? 2 : 1, eos, &engine));
  return engine;
}

// ----------------------------------------------------------------------------------------------------------
// Group sizes

TEST(groups_grow_with_the_output_and_never_exceed_the_limit) {
  const mlx_variant_t single = {.decode = {1}, .decode_count = 1},
                      grouped = {.decode = {1, 8, 32}, .decode_count = 3};
  for (size_t written = 1; written < 100; ++written)
    CHECK_INT(mlx_decode_group_next(&single, written, 1000), 1);
  static const size_t sizes[] = {1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 32, 32, 8, 8, 8, 1, 1, 1};
  size_t written = 1;  // the first token comes from prefill
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    CHECK_INT(mlx_decode_group_next(&grouped, written, 123 - written), sizes[i]);
    written += sizes[i];
  }
  CHECK_INT(written, 123);
  for (size_t left = 1; left < 100; ++left) {
    size_t group = mlx_decode_group_next(&grouped, 1000, left);
    CHECK(group <= left && group >= 1);
    CHECK_INT(group, left >= 32 ? 32 : left >= 8 ? 8 : 1);
    CHECK_INT(group, mlx_decode_group_largest(&grouped, left));
  }
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
  CHECK_OK(mlx_session_steps(session, ids, 197));
  CHECK_OK(mlx_session_logits(session, logits, 320));
  CHECK_INT(logits[0], ids[196]);
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
  const size_t free_pages = engine->free_page_count;
  CHECK_OK(mlx_session_steps(session, ids, 40));
  CHECK(engine->free_page_count < free_pages);
  CHECK_ERROR(mlx_session_rewind(session, 44), MLX_USAGE, "cannot rewind a session of 43 positions to 44");
  CHECK_ERROR(mlx_session_rewind(session, -1), MLX_USAGE, "positions to -1");
  CHECK_OK(mlx_session_rewind(session, 43));  // the current length: nothing changes
  CHECK_OK(mlx_session_step(session, &next));
  CHECK_INT(next, after(ids[39], 43));
  CHECK_OK(mlx_session_rewind(session, 16));
  CHECK_INT(engine->free_page_count, free_pages);
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

TEST(a_module_without_a_listed_decode_function_is_refused) {
  mlx_engine_t *engine;
  CHECK_ERROR(try_open((int64_t[]){1, 4, 8}, 3, 0, &engine), MLX_INVALID_INPUT,
              "the module has no function 'decode_8'");
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
  CHECK_INT(callback.calls, 8);  // the token from prefill, 3 groups of 1, 2 of 4, 2 of 1
  mlx_generation_clear(&g);
  mlx_session_free(session);
  callback = (callback_t){.stop_after = 5};
  generate(engine, 100, true, &callback, &g, &session);
  CHECK_INT(g.finish_reason, MLX_FINISH_CANCELLED);
  CHECK_INT(g.count, 8);  // the token from prefill, 3 groups of 1, 1 of 4
  CHECK_INT(mlx_session_length(session), 10);
  mlx_generation_clear(&g);
  mlx_session_free(session);
  generate(engine, 0, true, NULL, &g, &session);
  CHECK_INT(g.count, 0);
  CHECK_INT(g.finish_reason, MLX_FINISH_LENGTH);
  mlx_generation_clear(&g);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(groups_grow_with_the_output_and_never_exceed_the_limit),
          CASE(grouped_steps_give_the_same_tokens_as_single_steps),
          CASE(a_session_resumes_after_grouped_steps),
          CASE(steps_that_exceed_the_context_are_refused_before_any_work),
          CASE(a_rewound_session_can_read_on_and_frees_its_pages),
          CASE(a_module_without_a_listed_decode_function_is_refused),
          CASE(generated_text_does_not_depend_on_the_group_sizes),
          CASE(text_is_streamed_after_each_group_and_the_callback_can_stop_it))
