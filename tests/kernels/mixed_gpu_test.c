// Networks that differ from Llama's, against the generic path of the same model on the same GPU: Gemma 2
// (softcap, windows), Gemma 3 (one layer with a sliding window, one without) and gpt-oss (windows, sinks,
// biases; experts on the generic path, because their matrices have 24 columns, and in MXFP4 with kernels).
// Gemma 3 in 8 bits has no decode kernel: a step is a launch per op. Small matrices whose columns are no
// multiple of 32 have the kernel of routers (experts.cu).
#include <math.h>

#include "tests/support/architectures.h"
#include "tests/support/distance.h"
#include "tests/support/gpu.h"

// |generic|: a bundle without kernels. |dtype|: of --dtype, MLX_F32 means auto. |quantize|: of the bundle
// with kernels.
static const struct {
  const char *name, *fixture, *generic;
  mlx_dtype_t dtype;
  mlx_quantize_t quantize;
  const char *kernels;  // that the bundle must contain
  double tolerance;     // of the logits: ||ours - generic|| / ||generic||
} subjects[] = {
    {"mixed-gemma3.mlxb", "gemma3", "mixed-gemma3-generic.mlxb", MLX_F32, MLX_QUANTIZE_NONE,
     "decode, packed, attention_f32, place, sample, rows, experts", 1e-5},
    {"mixed-gemma2.mlxb", "gemma2", "mixed-gemma2-generic.mlxb", MLX_F32, MLX_QUANTIZE_NONE,
     "decode, packed, attention_f32, place, sample, rows, experts", 1e-5},
    {"mixed-gpt_oss.mlxb", "gpt_oss", "mixed-gpt_oss-generic.mlxb", MLX_F32, MLX_QUANTIZE_NONE,
     "decode, packed, attention_f32, place, sample, rows", 1e-5},
    {"mixed-gpt_oss-mxfp4.mlxb", "gpt_oss-mxfp4", "mixed-gpt_oss-mxfp4-generic.mlxb", MLX_F32,
     MLX_QUANTIZE_NONE, "decode, packed, attention_f32, place, sample, rows, experts", 1e-5},
    {"mixed-gpt_oss-bf16.mlxb", "gpt_oss", "mixed-gpt_oss-generic.mlxb", MLX_BF16, MLX_QUANTIZE_NONE,
     "decode, linear, attention, attention_f32, place, sample, rows",
     0.15},  // rounding may choose other experts
    {"mixed-gemma2-bf16.mlxb", "gemma2", "mixed-gemma2-generic.mlxb", MLX_BF16, MLX_QUANTIZE_NONE,
     "decode, linear, attention, attention_f32, place, sample, rows", 2e-2},
    {"mixed-gemma3-bf16.mlxb", "gemma3", "mixed-gemma3-generic.mlxb", MLX_BF16, MLX_QUANTIZE_NONE,
     "decode, linear, attention, attention_f32, place, sample, rows", 2e-2},
    {"mixed-gemma3-q8.mlxb", "gemma3", "mixed-gemma3-generic.mlxb", MLX_F32, MLX_QUANTIZE_Q8_0,
     "packed, attention_f32, place, sample, rows, experts", 5e-2},
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

// PTX for sm_80 runs on every later GPU.
static void compile_fixture(const char *fixture, mlx_compile_options_t options, const char *name) {
  char folder[] = "/tmp/mlxcel-mixed-XXXXXX";
  CHECK(mkdtemp(folder));
  link_model(fixture, folder);
  options.target = "cuda:sm_80";
  options.context = CONTEXT;
  gpu_compile(folder, &options, name);
  CHECK_OK(mlx_remove_tree(folder));
}

static void prepare(void) {
  for (size_t i = 0; i < SUBJECTS; ++i) {
    compile_fixture(subjects[i].fixture,
                    (mlx_compile_options_t){.weights = MLX_WEIGHTS_AUTO, .kernels = MLX_KERNELS_OFF},
                    subjects[i].generic);
    compile_fixture(subjects[i].fixture,
                    (mlx_compile_options_t){
                        .dtype = subjects[i].dtype,
                        .quantize = subjects[i].quantize,
                        .weights = subjects[i].dtype == MLX_F32 ? MLX_WEIGHTS_AUTO : MLX_WEIGHTS_FLOAT},
                    subjects[i].name);
  }
}

static double compare(mlx_session_t *ours, mlx_session_t *generic) {
  float a[VOCAB], b[VOCAB];
  CHECK_OK(mlx_session_logits(ours, a, VOCAB));
  CHECK_OK(mlx_session_logits(generic, b, VOCAB));
  return distance(a, b, VOCAB);
}

// A prompt of |length| tokens in one read, then one token per call. |ours| continues from the token that it
// sampled on the device, as long as both choose the same token.
static double worst_error(mlx_engine_t *ours_engine, mlx_engine_t *generic_engine, size_t length) {
  int32_t ids[CONTEXT], ours_next, generic_next;
  mlx_session_t *ours, *generic;
  CHECK_OK(mlx_session_create(ours_engine, &ours));
  CHECK_OK(mlx_session_create(generic_engine, &generic));
  for (size_t i = 0; i < length; ++i) ids[i] = (int32_t)((i * 37 + 11) % VOCAB);
  CHECK_OK(mlx_session_read(ours, ids, length, &ours_next));
  CHECK_OK(mlx_session_read(generic, ids, length, &generic_next));
  double worst = compare(ours, generic);
  for (int step = 0; step < 40; ++step) {
    const int32_t fed = generic_next;
    if (ours_next == fed) {
      CHECK_OK(mlx_session_step(ours, &ours_next));
    } else {
      CHECK_OK(mlx_session_read(ours, &fed, 1, &ours_next));
    }
    CHECK_OK(mlx_session_step(generic, &generic_next));
    worst = fmax(worst, compare(ours, generic));
  }
  mlx_session_free(ours);
  mlx_session_free(generic);
  return worst;
}

// The window of both fixtures is 12: all lengths but the first cross it.
TEST(network_with_some_kernels_matches_the_generic_path) {
  static const size_t lengths[] = {1, 16, 17, 100, 200};
  for (size_t i = 0; i < SUBJECTS; ++i) {
    mlx_engine_t *ours = gpu_open(subjects[i].name), *generic = gpu_open(subjects[i].generic);
    CHECK_TEXT(mlx_engine_info(ours).kernels, subjects[i].kernels);
    double worst = 0;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; ++k)
      worst = fmax(worst, worst_error(ours, generic, lengths[k]));
    fprintf(stderr, "  %s: largest difference %.2g, tolerance %.2g\n", subjects[i].name, worst,
            subjects[i].tolerance);
    CHECK(worst < subjects[i].tolerance);
    mlx_engine_close(ours);
    mlx_engine_close(generic);
  }
}

GPU_TEST_MAIN(prepare, CASE(network_with_some_kernels_matches_the_generic_path))
