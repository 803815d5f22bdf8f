// crowd_test.c on a GPU: 16-bit, quantized and generic modules.
#include "tests/crowd.h"

#include "tests/gpu.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"

// PTX for sm_80 runs on every later GPU.
static void prepare(void) {
  gpu_compile(FIXTURES "tiny-llama", &(mlx_compile_options_t){.target = "cuda:sm_80"}, "crowd.mlxb");
  gpu_compile(FIXTURES "tiny-llama", &(mlx_compile_options_t){.target = "cuda:sm_80", .dtype = MLX_BF16},
              "crowd-bf16.mlxb");
  gpu_compile(FIXTURES "tiny-llama",
              &(mlx_compile_options_t){.target = "cuda:sm_80", .kernels = MLX_KERNELS_OFF},
              "crowd-generic.mlxb");
}

static mlx_status_t open_bundle(const void *name, const mlx_engine_options_t *options,
                                mlx_engine_t **out_engine) {
  return mlx_engine_open_bundle(gpu_file(name), options, out_engine);
}

static void run(const char *name, uint64_t mixes) {
  mlx_engine_t *engine = crowd_open(open_bundle, name, MLX_USE_CUDA);
  fprintf(stderr, "  %s, kernels: %s\n", name, mlx_engine_info(engine).kernels);
  crowd_run(engine, mixes);
  mlx_engine_close(engine);
}

TEST(a_crowd_on_the_gpu_changes_no_tokens) { run("crowd.mlxb", 200); }

TEST(a_crowd_on_the_gpu_in_bf16_changes_no_tokens) { run("crowd-bf16.mlxb", 200); }

TEST(a_crowd_on_the_generic_path_of_a_gpu_changes_no_tokens) { run("crowd-generic.mlxb", 20); }

GPU_TEST_MAIN(prepare, CASE(a_crowd_on_the_gpu_changes_no_tokens),
              CASE(a_crowd_on_the_gpu_in_bf16_changes_no_tokens),
              CASE(a_crowd_on_the_generic_path_of_a_gpu_changes_no_tokens))
