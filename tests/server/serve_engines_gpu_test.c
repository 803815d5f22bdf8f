// A model with two engines on one GPU (tests/server/serve_engines_test.c has more cases, on a CPU).
#include "tests/server/engines.h"
#include "tests/support/gpu.h"
#include "tests/support/random_llama.h"

static const random_llama_t shape = {256, 512, 4, 2, 64, 3, 320, true, 10000};

static void prepare(void) {
  char folder[] = "/tmp/mlxcel-engines-XXXXXX";
  CHECK(mkdtemp(folder));
  random_llama_dtype = "BF16";
  const char *model = random_llama_write(&shape, folder, "engines");
  gpu_compile(model,
              &(mlx_compile_options_t){
                  .target = "cuda:sm_90", .weights = MLX_WEIGHTS_AUTO, .kernels = MLX_KERNELS_REQUIRED},
              "engines.mlxb");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(two_engines_on_one_gpu_write_the_tokens_of_one) {
  engines_check_tokens(gpu_file("engines.mlxb"), MLX_USE_CUDA);
}

TEST(an_engine_of_two_on_one_gpu_that_fails_ends_its_streams_only) {
  engines_check_failure(gpu_file("engines.mlxb"), MLX_USE_CUDA);
}

GPU_TEST_MAIN(prepare, CASE(two_engines_on_one_gpu_write_the_tokens_of_one),
              CASE(an_engine_of_two_on_one_gpu_that_fails_ends_its_streams_only))
