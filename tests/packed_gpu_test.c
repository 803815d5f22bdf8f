// Packed weights on the GPU: our kernels there against our kernel for CPUs, which tests/cpu_kernels_test.c
// holds against the plain lowering, over the same file; all formats, shapes that fill no tile, the code for
// Hopper and the portable one.
#include <math.h>

#include "tests/distance.h"
#include "tests/gpu.h"
#include "tests/random_gguf.h"

#define MAX_VOCAB 1003
#define TOLERANCE 2e-5  // of the logits, ||GPU's - CPU's|| / ||CPU's||
#define STEPS 41        // groups of 32 and 8, and one

typedef struct subject {
  const char *name, *cpu;  // bundles
  int sm;                  // oldest GPU it runs on
} subject_t;

static const subject_t subjects[] = {
    {"q4_0-sm_80.mlxb", "q4_0-cpu.mlxb", 80}, {"q4_0-sm_90.mlxb", "q4_0-cpu.mlxb", 90},
    {"q4_1-sm_90.mlxb", "q4_1-cpu.mlxb", 90}, {"q8_0-sm_90.mlxb", "q8_0-cpu.mlxb", 90},
    {"q4_k-sm_90.mlxb", "q4_k-cpu.mlxb", 90}, {"q6_k-sm_90.mlxb", "q6_k-cpu.mlxb", 90},
    {"all-sm_80.mlxb", "all-cpu.mlxb", 80},   {"all-sm_90.mlxb", "all-cpu.mlxb", 90},
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

// ----------------------------------------------------------------------------------------------------------
// Making them

static void compile(const char *model, const char *target, mlx_quantize_t quantize, const char *name) {
  const char *level = strchr(target, ':') + 1;
  char bundle[64];
  snprintf(bundle, sizeof bundle, "%s-%s.mlxb", name, strncmp(target, "cpu", 3) ? level : "cpu");
  gpu_compile(model,
              &(mlx_compile_options_t){.target = target,
                                       .weights = quantize ? MLX_WEIGHTS_AUTO : MLX_WEIGHTS_QUANTIZED,
                                       .quantize = quantize,
                                       .context = 640,
                                       .kernels = MLX_KERNELS_REQUIRED},
              bundle);
}

static void compile_quantised(const random_llama_t *shape, const char *folder, mlx_quantize_t quantize,
                              bool portable) {
  const char *name = mlx_quantize_name(quantize), *model = random_llama_write(shape, folder, name);
  compile(model, "cpu:x86-64-v3", quantize, name);
  if (portable) compile(model, "cuda:sm_80", quantize, name);
  compile(model, "cuda:sm_90", quantize, name);
}

static void compile_types(const char *folder, const char *name, size_t first, size_t count, bool portable) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 2, 7, true, 10000};
  char path[128];
  snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
  random_gguf_write(&shape, &random_packed_types[first], count, path);
  compile(path, "cpu:x86-64-v3", MLX_QUANTIZE_NONE, name);
  if (portable) compile(path, "cuda:sm_80", MLX_QUANTIZE_NONE, name);
  compile(path, "cuda:sm_90", MLX_QUANTIZE_NONE, name);
}

static size_t type_number(mlx_dtype_t dtype) {
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    if (random_packed_types[i].dtype == dtype) return i;
  }
  CHECK_FAIL("there is no random matrix of this type");
  return 0;
}

// 576 columns are four tiles and a half; heads of 48 and 128; a vocabulary that ends within a tile.
static const random_llama_t grouped = {576, 1536, 9, 3, 64, 2, 1003, true, 10000};
static const random_llama_t long_heads = {160, 1056, 6, 2, 128, 2, 509, false, 500000};
static const random_llama_t many_heads = {224, 352, 14, 14, 48, 1, 1003, true, 10000};

static void prepare(void) {
  char folder[] = "/tmp/mlxcel-packed-XXXXXX";
  CHECK(mkdtemp(folder));
  compile_quantised(&grouped, folder, MLX_QUANTIZE_Q4_0, true);
  compile_quantised(&long_heads, folder, MLX_QUANTIZE_Q4_1, false);
  compile_quantised(&many_heads, folder, MLX_QUANTIZE_Q8_0, false);
  compile_types(folder, "q4_k", type_number(MLX_Q4_K), 1, false);
  compile_types(folder, "q6_k", type_number(MLX_Q6_K), 1, false);
  compile_types(folder, "all", 0, type_number(MLX_Q6_K) + 1,
                true);  // of all types in turn: one role has several
  CHECK_OK(mlx_remove_tree(folder));
}

// ----------------------------------------------------------------------------------------------------------
// What they say

typedef struct record {
  float logits[3][MAX_VOCAB];  // after the prompt, after half of STEPS and after all
  int32_t ids[STEPS + 1];
} record_t;

static void read_prompt(mlx_session_t *session, const mlx_engine_t *engine, size_t length,
                        int32_t *out_next) {
  int32_t ids[640];
  uint64_t state = 7 + length;
  for (size_t i = 0; i < length; ++i)
    ids[i] = (int32_t)(random_bits(&state) % (uint32_t)mlx_engine_info(engine).vocab);
  CHECK_OK(mlx_session_read(session, ids, length, out_next));
}

// One by one when |told| says what comes (where two logits nearly tie each may choose its own), else by
// itself: in groups, or step by step.
static void say(mlx_engine_t *engine, size_t length, const int32_t *told, bool grouped_steps, record_t *out) {
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab, half = STEPS / 2;
  mlx_session_t *session;
  *out = (record_t){0};
  CHECK(vocab <= MAX_VOCAB);
  CHECK_OK(mlx_session_create(engine, &session));
  read_prompt(session, engine, length, &out->ids[0]);
  CHECK_OK(mlx_session_logits(session, out->logits[0], vocab));
  for (int part = 0; part < 2; ++part) {
    const size_t first = part ? half : 0, count = part ? STEPS - half : half;
    if (told)
      CHECK_OK(mlx_session_read(session, told + first, count, &out->ids[first + count]));
    else if (grouped_steps)
      CHECK_OK(mlx_session_steps(session, out->ids + 1 + first, count));
    else
      for (size_t i = 0; i < count; ++i) CHECK_OK(mlx_session_step(session, &out->ids[1 + first + i]));
    CHECK_OK(mlx_session_logits(session, out->logits[1 + part], vocab));
  }
  mlx_session_free(session);
}

static mlx_engine_t *open_cpu(const char *name) {
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.allow_unsigned = true;
  CHECK_OK(mlx_engine_open_bundle(gpu_file(name), &options, &engine));
  return engine;
}

static const size_t lengths[] = {1, 8, 9, 16, 17, 100, 129, 250, 511, 590};
#define LENGTHS (sizeof lengths / sizeof *lengths)

static void agree(const subject_t *subject) {
  static record_t ours, theirs;
  mlx_engine_t *gpu = gpu_open(subject->name), *cpu = open_cpu(subject->cpu);
  double worst = 0;
  CHECK_TEXT(mlx_engine_info(gpu).kernels, "decode, packed, attention_f32");
  for (size_t i = 0; i < LENGTHS; ++i) {
    say(gpu, lengths[i], NULL, true, &ours);
    say(cpu, lengths[i], ours.ids, true, &theirs);
    for (int k = 0; k < 3; ++k) {
      const double error = distance(ours.logits[k], theirs.logits[k], (size_t)mlx_engine_info(gpu).vocab);
      if (!(error < TOLERANCE))
        CHECK_FAIL("%s, %zu tokens, place %d: logits differ by %g", subject->name, lengths[i], k, error);
      worst = error > worst ? error : worst;
    }
  }
  fprintf(stderr, "  %s: largest difference %.2g of %.2g\n", subject->name, worst, TOLERANCE);
  mlx_engine_close(gpu);
  mlx_engine_close(cpu);
}

TEST(packed_weights_compute_on_the_gpu_what_they_do_on_the_cpu) {
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (gpu_runs(subjects[i].name, subjects[i].sm)) agree(&subjects[i]);
  }
}

TEST(every_run_gives_the_same_bytes_in_groups_or_single_steps) {
  static record_t first, again;
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (!gpu_runs(subjects[i].name, subjects[i].sm)) continue;
    mlx_engine_t *gpu = gpu_open(subjects[i].name);
    for (size_t k = 0; k < LENGTHS; k += 3) {
      say(gpu, lengths[k], NULL, true, &first);
      for (int turn = 0; turn < 3; ++turn) {
        say(gpu, lengths[k], NULL, turn != 1, &again);
        if (memcmp(&first, &again, sizeof first))
          CHECK_FAIL("%s, %zu tokens: other bytes the next time", subjects[i].name, lengths[k]);
      }
    }
    mlx_engine_close(gpu);
  }
}

static void sample(mlx_engine_t *engine, uint64_t seed, mlx_generation_t *out) {
  static const int32_t prompt[] = {3, 141, 59, 26};
  mlx_session_t *session;
  mlx_sampling_t sampling;
  mlx_generate_options_t options;
  mlx_sampling_initialize(&sampling);
  mlx_generate_options_initialize(&options);
  sampling.seed = seed;
  options.sampling = &sampling;
  options.max_tokens = 100;
  options.ignore_eos = true;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_generate(session, prompt, sizeof prompt / sizeof *prompt, &options, out));
  mlx_session_free(session);
}

TEST(the_same_seed_gives_the_same_tokens_on_the_gpu_and_on_the_cpu) {
  if (!gpu_runs(subjects[0].name, subjects[0].sm)) return;
  mlx_engine_t *gpu = gpu_open(subjects[0].name), *cpu = open_cpu(subjects[0].cpu);
  mlx_generation_t ours, theirs;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sample(gpu, seed, &ours);
    sample(cpu, seed, &theirs);
    CHECK_INT(ours.count, 100);
    if (ours.count != theirs.count || memcmp(ours.ids, theirs.ids, ours.count * sizeof *ours.ids))
      CHECK_FAIL("seed %d gives other tokens", (int)seed);
    mlx_generation_clear(&ours);
    mlx_generation_clear(&theirs);
  }
  mlx_engine_close(gpu);
  mlx_engine_close(cpu);
}

GPU_TEST_MAIN(prepare, CASE(packed_weights_compute_on_the_gpu_what_they_do_on_the_cpu),
              CASE(the_same_seed_gives_the_same_tokens_on_the_gpu_and_on_the_cpu),
              CASE(every_run_gives_the_same_bytes_in_groups_or_single_steps))
