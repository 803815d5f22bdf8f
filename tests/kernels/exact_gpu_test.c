// The default mode on a GPU: 16-bit and quantized weights as stored, f32 activations. Logits equal those of
// the generic path in f32, and do not depend on how a prompt was divided. Every KV format keeps that.
// MLXCEL_SUBJECT=TEXT prepares and runs only bundles with TEXT in their names.
#include "tests/support/chunks.h"
#include "tests/support/distance.h"
#include "tests/support/gpu.h"

#define CONTEXT 256
#define VOCAB 300

static const random_llama_t even = {256, 512, 4, 2, 64, 3, VOCAB, true, 10000};
static const random_llama_t odd = {224, 416, 6, 2, 48, 2, VOCAB, false, 10000};
// Heads that are no multiple of 16, and heads of 240, whose keys 8 lanes of a warp share.
static const random_llama_t heads8 = {64, 96, 8, 4, 8, 2, VOCAB, true, 10000};
static const random_llama_t heads24 = {192, 416, 8, 2, 24, 2, VOCAB, false, 10000};
static const random_llama_t heads120 = {480, 512, 4, 2, 120, 2, VOCAB, true, 10000};
static const random_llama_t heads240 = {480, 512, 2, 1, 240, 2, VOCAB, true, 10000};

typedef struct subject {
  const char *name, *generic;
  const random_llama_t *shape;
  const char *dtype;  // of the checkpoint
  int sm;
  mlx_dtype_t kv;
  mlx_quantize_t quantize;
  double tolerance;  // of the logits, against f32: the KV format and --quantize round
} subject_t;

static const subject_t subjects[] = {
    {"exact-even-bf16-80.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 80, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-even-bf16-90.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 90, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-odd-bf16-90.mlxb", "exact-odd-bf16.mlxb", &odd, "BF16", 90, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-even-f16-90.mlxb", "exact-even-f16.mlxb", &even, "F16", 90, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-odd-f16-80.mlxb", "exact-odd-f16.mlxb", &odd, "F16", 80, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-kv-bf16.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 90, MLX_BF16, MLX_QUANTIZE_NONE, 2e-2},
    {"exact-kv-f16.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 90, MLX_F16, MLX_QUANTIZE_NONE, 2e-3},
    {"exact-kv-q8.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 90, MLX_Q8_0, MLX_QUANTIZE_NONE, 3e-2},
    {"exact-kv-q8-odd.mlxb", "exact-odd-bf16.mlxb", &odd, "BF16", 80, MLX_Q8_0, MLX_QUANTIZE_NONE, 3e-2},
    {"exact-heads8.mlxb", "exact-heads8-off.mlxb", &heads8, "BF16", 90, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-heads8-q8.mlxb", "exact-heads8-off.mlxb", &heads8, "BF16", 80, MLX_Q8_0, MLX_QUANTIZE_NONE, 3e-2},
    {"exact-heads24.mlxb", "exact-heads24-off.mlxb", &heads24, "F16", 90, MLX_F32, MLX_QUANTIZE_NONE, 3e-6},
    {"exact-heads24-f16.mlxb", "exact-heads24-off.mlxb", &heads24, "F16", 90, MLX_F16, MLX_QUANTIZE_NONE,
     2e-3},
    {"exact-heads120.mlxb", "exact-heads120-off.mlxb", &heads120, "BF16", 90, MLX_F32, MLX_QUANTIZE_NONE,
     3e-6},
    {"exact-heads120-q8.mlxb", "exact-heads120-off.mlxb", &heads120, "BF16", 90, MLX_Q8_0, MLX_QUANTIZE_NONE,
     3e-2},
    {"exact-heads240.mlxb", "exact-heads240-off.mlxb", &heads240, "BF16", 90, MLX_F32, MLX_QUANTIZE_NONE,
     3e-6},
    {"exact-q8_0-kv-f16.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 90, MLX_F16, MLX_QUANTIZE_Q8_0, 3e-2},
    {"exact-q8_0-kv-q8.mlxb", "exact-even-bf16.mlxb", &even, "BF16", 90, MLX_Q8_0, MLX_QUANTIZE_Q8_0, 4e-2},
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

static bool is_wanted(const subject_t *s) {
  const char *only = getenv("MLXCEL_SUBJECT");
  return !only || strstr(s->name, only);
}

static void prepare(void) {
  char folder[] = "/tmp/mlxcel-exact-XXXXXX", name[64];
  CHECK(mkdtemp(folder));
  for (size_t i = 0; i < SUBJECTS; ++i) {
    const subject_t *s = &subjects[i];
    if (!is_wanted(s)) continue;
    random_llama_dtype = s->dtype;
    snprintf(name, sizeof name, "%s", s->generic);
    const char *model = random_llama_write(s->shape, folder, name);
    gpu_compile(model,
                &(mlx_compile_options_t){.target = "cuda:sm_80",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_OFF},
                s->generic);
    gpu_compile(model,
                &(mlx_compile_options_t){.target = s->sm == 90 ? "cuda:sm_90" : "cuda:sm_80",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kv = s->kv,
                                         .kv_given = true,
                                         .quantize = s->quantize,
                                         .kernels = MLX_KERNELS_REQUIRED},
                s->name);
  }
  CHECK_OK(mlx_remove_tree(folder));
}

// Largest distance of the logits over prompts of several lengths and tokens decoded after them.
static double worst_distance(mlx_engine_t *ours, mlx_engine_t *generic) {
  static const size_t lengths[] = {1, 5, 16, 17, 130, 200};
  int32_t ids[CONTEXT], next, other;
  float a[VOCAB], b[VOCAB];
  double worst = 0;
  for (size_t i = 0; i < CONTEXT; ++i) ids[i] = (int32_t)((i * 37 + 11) % VOCAB);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    mlx_session_t *one, *two;
    CHECK_OK(mlx_session_create(ours, &one));
    CHECK_OK(mlx_session_create(generic, &two));
    CHECK_OK(mlx_session_read(one, ids, lengths[i], &next));
    CHECK_OK(mlx_session_read(two, ids, lengths[i], &other));
    for (int step = 0; step < 20 && next == other; ++step) {
      CHECK_OK(mlx_session_step(one, &next));
      CHECK_OK(mlx_session_step(two, &other));
    }
    CHECK_OK(mlx_session_logits(one, a, VOCAB));
    CHECK_OK(mlx_session_logits(two, b, VOCAB));
    worst = fmax(worst, distance(a, b, VOCAB));
    mlx_session_free(one);
    mlx_session_free(two);
  }
  return worst;
}

TEST(weights_as_stored_give_the_logits_of_f32) {
  for (size_t i = 0; i < SUBJECTS; ++i) {
    const subject_t *s = &subjects[i];
    if (!is_wanted(s) || !gpu_runs(s->name, s->sm)) continue;
    mlx_engine_t *ours = gpu_open(s->name), *generic = gpu_open(s->generic);
    CHECK_CONTAINS(mlx_engine_info(ours).kernels, "decode");
    CHECK_TEXT(mlx_engine_info(ours).activations, "f32");
    const double worst = worst_distance(ours, generic);
    fprintf(stderr, "  %s: largest difference %.2g, tolerance %.2g\n", s->name, worst, s->tolerance);
    CHECK(worst < s->tolerance);
    mlx_engine_close(ours);
    mlx_engine_close(generic);
  }
}

TEST(logits_do_not_depend_on_how_a_prompt_is_divided) {
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (!is_wanted(&subjects[i]) || !gpu_runs(subjects[i].name, subjects[i].sm)) continue;
    mlx_engine_t *engine = gpu_open(subjects[i].name);
    // The product kernels differ in the last bits. If keys and values are rounded, such a bit can decide to
    // which of two neighbours.
    const double tolerance = subjects[i].kv == MLX_F32 ? 1e-5 : subjects[i].kv == MLX_Q8_0 ? 3e-4 : 2e-5;
    check_chunks(engine, subjects[i].name, tolerance);
    mlx_engine_close(engine);
  }
}

GPU_TEST_MAIN(prepare, CASE(weights_as_stored_give_the_logits_of_f32),
              CASE(logits_do_not_depend_on_how_a_prompt_is_divided))
