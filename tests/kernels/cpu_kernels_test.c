// The CPU kernel path against the generic path of the same model: shapes that fill no panel and no tile,
// every weight format, and the same bits for every number of threads.
#include <math.h>

#include "base/cpu.h"
#include "compiler/kernels.h"
#include "compiler/panels.h"
#include "graph/codes.h"
#include "tests/support/compiled.h"
#include "tests/support/distance.h"
#include "tests/support/golden.h"
#include "tests/support/random_gguf.h"

#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define SMOLLM2_GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/smollm2-135m-instruct.hf-fp32.json"
#define MAX_VOCAB 1024
#if defined(__aarch64__)  // under an emulator iree-compile runs on the host machine, so "host" would be wrong
#define TARGET "cpu:aarch64"
#else
#define TARGET "cpu"
#endif
#define STEPS 21  // decode groups of 16 and 4, and a single step

static char root[] = "/tmp/mlxcel-cpu-kernels-XXXXXX";

// Compiles |model| and opens it with |threads| threads.
static mlx_engine_t *open_model(const char *model, mlx_compile_options_t compile, int threads) {
  mlx_engine_t *engine = open_compiled(model, &compile, NULL, threads);
  CHECK_TEXT(mlx_engine_info(engine).kernels,
             compile.kernels == MLX_KERNELS_OFF ? "none (generic path)" : "network");
  return engine;
}

// ----------------------------------------------------------------------------------------------------------
// Logits and tokens of a model

typedef struct record {
  float logits[2][MAX_VOCAB];  // after the prompt, and after STEPS more
  int32_t ids[STEPS + 1];
  size_t vocab;
} record_t;

static void read_prompt(mlx_session_t *session, size_t length, size_t vocab, int32_t *out_next) {
  int32_t ids[700];
  uint64_t state = 7 + length;
  for (size_t i = 0; i < length; ++i) ids[i] = (int32_t)(random_bits(&state) % (uint32_t)vocab);
  CHECK_OK(mlx_session_read(session, ids, length, out_next));
}

static void record_session(mlx_engine_t *engine, size_t length, const int32_t *forced_ids, record_t *out) {
  mlx_session_t *session;
  *out = (record_t){.vocab = (size_t)mlx_engine_info(engine).vocab};
  CHECK(out->vocab <= MAX_VOCAB);
  CHECK_OK(mlx_session_create(engine, &session));
  read_prompt(session, length, out->vocab, &out->ids[0]);
  CHECK_OK(mlx_session_logits(session, out->logits[0], out->vocab));
  if (forced_ids) {  // if two logits nearly tie, the paths may sample different tokens: feed the given ones
    CHECK_OK(mlx_session_read(session, forced_ids, STEPS, &out->ids[STEPS]));
  } else {
    CHECK_OK(mlx_session_steps(session, out->ids + 1, STEPS));
  }
  CHECK_OK(mlx_session_logits(session, out->logits[1], out->vocab));
  mlx_session_free(session);
}

static int32_t first_largest(const float *logits, size_t count) {
  size_t best = 0;
  for (size_t i = 1; i < count; ++i) best = logits[i] > logits[best] ? i : best;
  return (int32_t)best;
}

// |ours| gives the same bits with 1, 2 and 3 threads, and logits within |tolerance| of |generic| for the same
// tokens. Prompt length plus decoded tokens must fit in |context|.
static void check_model(const char *name, const char *model, mlx_compile_options_t ours,
                        mlx_compile_options_t generic, int64_t context, double tolerance) {
  static const size_t lengths[] = {1, 5, 17, 100, 530};
  const int count = context < 600 ? 4 : 5;
  static record_t first[5], again, expected;
  double worst = 0;
  ours.kernels = MLX_KERNELS_REQUIRED;
  generic.kernels = MLX_KERNELS_OFF;
  ours.context = generic.context = context;
  for (int threads = 1; threads <= 3; ++threads) {
    mlx_engine_t *engine = open_model(model, ours, threads);
    for (int i = 0; i < count; ++i) {
      record_t *record = threads == 1 ? &first[i] : &again;
      record_session(engine, lengths[i], NULL, record);
      const bool same = !memcmp(record, &first[i], sizeof *record);
      if (!same)
        CHECK_FAIL("%s, %zu tokens: %d threads give other bits than one thread", name, lengths[i], threads);
      CHECK_INT(record->ids[0], first_largest(record->logits[0], record->vocab));
      CHECK_INT(record->ids[STEPS], first_largest(record->logits[1], record->vocab));
    }
    mlx_engine_close(engine);
  }
  mlx_engine_t *engine = open_model(model, generic, 2);
  for (int i = 0; i < count; ++i) {
    record_session(engine, lengths[i], first[i].ids, &expected);
    for (int k = 0; k < 2; ++k) {
      const double error = distance(first[i].logits[k], expected.logits[k], expected.vocab);
      if (!(error < tolerance)) {  // also true for NaN
        CHECK_FAIL("%s, %zu tokens, %s: logits differ by %g, tolerance %g", name, lengths[i],
                   k ? "decoded" : "read", error, tolerance);
      }
      worst = error > worst ? error : worst;
    }
  }
  mlx_engine_close(engine);
  fprintf(stderr, "  %s: largest difference %.2g, tolerance %.2g\n", name, worst, tolerance);
}

// ----------------------------------------------------------------------------------------------------------
// Tests

// odd: widths that are no multiple of 16, heads of 48, a vocabulary that ends within a panel. one_kv_head:
// one KV head for all query heads. even: widths that AMX tiles support. wide: heads of 128 and a wide MLP.
static const random_llama_t odd = {200, 328, 5, 5, 48, 2, 1003, false, 10000};
static const random_llama_t one_kv_head = {264, 136, 6, 1, 32, 2, 509, true, 500000};
static const random_llama_t even = {96, 160, 3, 1, 32, 2, 300, true, 10000};
static const random_llama_t wide = {136, 1224, 6, 2, 128, 1, 411, true, 10000};

TEST(float_weights_match_the_generic_path_for_any_thread_count) {
  static const struct {
    const char *name;
    const random_llama_t *shape;
    mlx_dtype_t dtype;
    double tolerance;
  } cases[] = {{"odd", &odd, MLX_F32, 1e-5},
               {"odd", &odd, MLX_BF16, 3e-3},
               {"one-kv-head", &one_kv_head, MLX_F32, 1e-5},
               {"one-kv-head", &one_kv_head, MLX_F16, 1e-3},
               {"wide", &wide, MLX_F32, 1e-5},
               {"even", &even, MLX_BF16, 3e-3},
               {"even", &even, MLX_F16, 1e-3}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const char *model = random_llama_write(cases[i].shape, root, cases[i].name);
    const mlx_compile_options_t options = {.target = TARGET, .dtype = cases[i].dtype};
    check_model(cases[i].name, model, options, options, 640, cases[i].tolerance);
  }
}

TEST(every_cpu_level_of_this_machine_matches_the_generic_path) {
  const char *model = random_llama_write(&even, root, "even");
  const mlx_cpu_level_t *level;
  for (size_t i = 0; (level = mlx_cpu_level(i)); ++i) {
    char target[64];
    snprintf(target, sizeof target, "cpu:%s", level->name);
    if (!mlx_cpu_has_level(level->name) || !mlx_kernels_cpu_level(level->name)) continue;
    const mlx_compile_options_t options = {.target = target};
    check_model(target, model, options, options, 640, 1e-5);
  }
}

static const random_llama_t packed_shape = {256, 512, 4, 2, 64, 2, 7, true, 10000};

// Each type alone, then all types in one file.
TEST(quantized_weights_match_dequantized_weights) {
  char path[128];
  for (size_t i = 0; i <= RANDOM_PACKED_TYPES; ++i) {
    const bool all = i == RANDOM_PACKED_TYPES;
    const char *name = all ? "all" : mlx_dtype_info(random_packed_types[i].dtype)->name;
    snprintf(path, sizeof path, "%s/%s.gguf", root, name);
    random_gguf_write(&packed_shape, all ? random_packed_types : &random_packed_types[i],
                      all ? RANDOM_PACKED_TYPES : 1, path);
    const mlx_compile_options_t generic = {.target = TARGET},
                                packed = {.target = TARGET, .weights = MLX_WEIGHTS_QUANTIZED};
    check_model(name, path, packed, generic, all ? 640 : 128, 2e-5);
  }
}

TEST(codes_dequantize_to_the_reference_values) {
  uint64_t state = 3;
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info(random_packed_types[i].dtype);
    for (int round = 0; round < 100; ++round) {
      uint8_t block[256];
      float expected[256];
      mlx_codes_t codes;
      random_block(&random_packed_types[i], &state, block);
      info->to_f32(block, 1, expected);
      for (size_t k = 0; k < info->block_elements; ++k) {
        CHECK(mlx_codes_read(random_packed_types[i].dtype, block, k / MLX_CODES, &codes));
        const float product = codes.scale[k % MLX_CODES / 16] * (float)codes.code[k % MLX_CODES];
        const float value = product + codes.offset[k % MLX_CODES / 16];
        if (value != expected[k])
          CHECK_FAIL("%s: element %zu is %g, expected %g", info->name, k, (double)value, (double)expected[k]);
      }
    }
  }
}

// A KV cache with fewer bits changes the logits a little, and not at all in f32.
static void check_kv_formats(const random_llama_t *shape, const char *name) {
  static const struct {
    mlx_dtype_t kv;
    double least, most;
  } cases[] = {{MLX_F32, 0, 1e-5}, {MLX_F16, 1e-6, 1e-3}, {MLX_BF16, 1e-5, 1e-2}, {MLX_Q8_0, 1e-5, 2e-2}};
  static record_t expected, have;
  const char *model = random_llama_write(shape, root, name);
  mlx_compile_options_t options = {.target = TARGET, .context = 256, .kernels = MLX_KERNELS_OFF};
  mlx_engine_t *engine = open_model(model, options, 2);
  record_session(engine, 100, NULL, &expected);
  mlx_engine_close(engine);
  options.kernels = MLX_KERNELS_REQUIRED;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    options.kv = cases[i].kv;
    options.kv_given = true;
    engine = open_model(model, options, 2);
    record_session(engine, 100, expected.ids, &have);
    const double error = distance(have.logits[1], expected.logits[1], expected.vocab);
    fprintf(stderr, "  %s, KV cache in %s: logits differ by %.2g\n", name, mlx_dtype_info(cases[i].kv)->name,
            error);
    CHECK(error >= cases[i].least && error <= cases[i].most);
    mlx_engine_close(engine);
  }
}

TEST(kv_formats_keep_the_logits_within_their_precision) {
  static const random_llama_t wide_heads = {128, 192, 2, 1, 128, 2, 300, true, 10000};
  check_kv_formats(&even, "even");
  check_kv_formats(&wide_heads, "heads of 128");
}

TEST(a_kv_cache_of_8_bits_needs_the_cpu_kernel) {
  command_t run;
  RUN(&run, "compile", random_llama_write(&even, root, "even"), "--kv", "q8", "--kernels", "off", "-o",
      "/tmp/mlxcel-never.mlxb");
  CHECK(run.exit_code);
  CHECK_CONTAINS(run.err, "only the attention kernels support it");
  command_free(&run);
}

TEST(a_bundle_keeps_its_kv_format) {
  command_t run;
  char bundle[128];
  snprintf(bundle, sizeof bundle, "%s/kv.mlxb", root);
  RUN(&run, "compile", random_llama_write(&even, root, "even"), "--kv", "f16", "-c", "64", "-o", bundle);
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "run", "-m", bundle, "-p", "x", "--kv", "q8");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "was compiled with KV format f16, not with q8");
  command_free(&run);
}

// Two sequences with interleaved steps give the same tokens as each sequence alone. tests/kernels/cpu_batch.c
// has several sequences in one call.
TEST(sequences_do_not_affect_each_other) {
  const char *model = random_llama_write(&odd, root, "odd");
  mlx_engine_t *alone = open_model(model, (mlx_compile_options_t){.target = TARGET, .context = 128}, 2);
  mlx_engine_t *both =
      open_parallel(model, &(mlx_compile_options_t){.target = TARGET, .context = 128}, NULL, 2, 2);
  mlx_session_t *sessions[2], *single;
  int32_t expected[2][10], ids[2][10];
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(mlx_session_create(alone, &single));
    read_prompt(single, 20 + 17 * (size_t)i, 1003, expected[i]);
    CHECK_OK(mlx_session_steps(single, expected[i] + 1, 9));
    mlx_session_free(single);
    CHECK_OK(mlx_session_create(both, &sessions[i]));
    read_prompt(sessions[i], 20 + 17 * (size_t)i, 1003, ids[i]);
  }
  for (int step = 1; step < 10; ++step) {
    for (int i = 0; i < 2; ++i) CHECK_OK(mlx_session_step(sessions[i], &ids[i][step]));
  }
  CHECK(!memcmp(ids, expected, sizeof ids));
  for (int i = 0; i < 2; ++i) mlx_session_free(sessions[i]);
  mlx_engine_close(alone);
  mlx_engine_close(both);
}

TEST(quantized_gguf_stays_quantized_by_default_and_matches_hf_token_for_token) {
  command_t run;
  RUN(&run, "run", "-m", SMOLLM2, "-p", "Hello", "-n", "1", "-v", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, ", quantized\ntarget: cpu:host\nkernels: network\n");
  command_free(&run);
  const long peak_kib = check_golden_runs(SMOLLM2, "auto", SMOLLM2_GOLDENS, "rendered");
  // Size of the archive, and of the KV pool for a context of 2048.
  const long packed_kib = 94310, kv_kib = 2064L * 30 * 2 * 192 * 4 / 1024;
  fprintf(stderr, "  peak memory of run: %ld MiB; quantized weights and KV cache: %ld MiB\n", peak_kib / 1024,
          (packed_kib + kv_kib) / 1024);
  if (!MLXCEL_SANITIZED) CHECK(peak_kib < packed_kib + kv_kib + 200 * 1024);
}

TEST(unsupported_quantized_weights_are_rejected_with_the_reason) {
  const char *model = random_llama_write(&odd, root, "odd");
  command_t run;
  RUN(&run, "compile", model, "--dtype", "quantized", "-o", "/tmp/mlxcel-never.mlxb");
  CHECK(run.exit_code);
  CHECK_CONTAINS(run.err,
                 "cannot use quantized weights for this model: its file has none that the kernels support");
  command_free(&run);
  RUN(&run, "compile", SMOLLM2, "--dtype", "quantized", "--kernels", "off", "-o", "/tmp/mlxcel-never.mlxb");
  CHECK(run.exit_code);
  CHECK_CONTAINS(run.err, "cannot use quantized weights for this model: only the kernel path supports them");
  command_free(&run);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(codes_dequantize_to_the_reference_values),
      CASE(float_weights_match_the_generic_path_for_any_thread_count),
      CASE(every_cpu_level_of_this_machine_matches_the_generic_path),
      CASE(quantized_weights_match_dequantized_weights),
      CASE(kv_formats_keep_the_logits_within_their_precision),
      CASE(a_kv_cache_of_8_bits_needs_the_cpu_kernel),
      CASE(a_bundle_keeps_its_kv_format),
      CASE(sequences_do_not_affect_each_other),
      CASE(quantized_gguf_stays_quantized_by_default_and_matches_hf_token_for_token),
      CASE(unsupported_quantized_weights_are_rejected_with_the_reason)};
  if (!mkdtemp(root)) return 1;
  const bool has_kernels = mlx_kernels_cpu_level("host");
  if (!has_kernels) fprintf(stderr, "skipped: there is no CPU kernel for this machine\n");
  const int failed = has_kernels ? check_run(cases, sizeof cases / sizeof *cases, argc, argv) : CHECK_SKIPPED;
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
