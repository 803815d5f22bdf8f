// A crowd changes nothing: random mixes of requests on the CPU, with the CPU kernel and on the generic path.
#include "tests/crowd.h"

#include "tests/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

// Opens the tiny model with a pool that is too small for all sequences.
static mlx_engine_t *open_small(const mlx_compile_options_t *compile) {
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  mlx_engine_t *engine = open_compiled_with(TINY, compile, NULL, &options);
  crowd_options(&options, MLX_USE_CPU, mlx_engine_info(engine).kv_bytes);
  mlx_engine_close(engine);
  return open_compiled_with(TINY, compile, NULL, &options);
}

TEST(a_crowd_on_the_cpu_kernel_changes_no_tokens) {
  mlx_engine_t *engine = open_small(&(mlx_compile_options_t){0});
  crowd_run(engine, MLXCEL_SANITIZED ? 20 : 200);
  mlx_engine_close(engine);
}

TEST(a_crowd_on_the_generic_path_changes_no_tokens) {
  mlx_engine_t *engine = open_small(&(mlx_compile_options_t){.kernels = MLX_KERNELS_OFF});
  crowd_run(engine, MLXCEL_SANITIZED ? 5 : 40);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(a_crowd_on_the_cpu_kernel_changes_no_tokens),
          CASE(a_crowd_on_the_generic_path_changes_no_tokens))
