// A crowd changes nothing: random mixes of requests on the CPU, with the CPU kernel and on the generic path.
#include "tests/runtime/crowd.h"

#include "tests/support/architectures.h"
#include "tests/support/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static mlx_status_t open_tiny(const void *model, const mlx_engine_options_t *options,
                              mlx_engine_t **out_engine) {
  return try_open_compiled(TINY, model, NULL, options, out_engine);
}

TEST(a_crowd_on_the_cpu_kernel_changes_no_tokens) {
  mlx_engine_t *engine = crowd_open(open_tiny, &(mlx_compile_options_t){0}, MLX_USE_CPU);
  crowd_run(engine, MLXCEL_SANITIZED ? 20 : 200);
  mlx_engine_close(engine);
}

TEST(a_crowd_with_quantized_weights_changes_no_tokens) {
  const mlx_compile_options_t quantized = {.weights = MLX_WEIGHTS_AUTO, .quantize = MLX_QUANTIZE_Q4_0};
  mlx_engine_t *engine = crowd_open(open_tiny, &quantized, MLX_USE_CPU);
  crowd_run(engine, MLXCEL_SANITIZED ? 5 : 40);
  mlx_engine_close(engine);
}

TEST(a_crowd_on_the_generic_path_changes_no_tokens) {
  mlx_engine_t *engine =
      crowd_open(open_tiny, &(mlx_compile_options_t){.kernels = MLX_KERNELS_OFF}, MLX_USE_CPU);
  crowd_run(engine, MLXCEL_SANITIZED ? 5 : 40);
  mlx_engine_close(engine);
}

static mlx_status_t open_fixture(const char *name, const mlx_compile_options_t *compile,
                                 const mlx_engine_options_t *options, mlx_engine_t **out_engine) {
  char folder[] = "/tmp/mlxcel-crowd-XXXXXX";
  CHECK(mkdtemp(folder));
  link_model(name, folder);
  mlx_status_t status = try_open_compiled(folder, compile, NULL, options, out_engine);
  CHECK_OK(mlx_remove_tree(folder));
  return status;
}

static mlx_status_t open_mixed(const void *model, const mlx_engine_options_t *options,
                               mlx_engine_t **out_engine) {
  return open_fixture("gemma3", model, options, out_engine);
}

static mlx_status_t open_experts(const void *model, const mlx_engine_options_t *options,
                                 mlx_engine_t **out_engine) {
  return open_fixture("qwen3_moe", model, options, out_engine);
}

// One layer has a sliding window, one sees all positions: the pool has window pages, and too few of them.
TEST(a_crowd_with_window_pages_changes_no_tokens) {
  const mlx_compile_options_t kernel = {0}, generic = {.kernels = MLX_KERNELS_OFF};
  for (int i = 0; i < 2; ++i) {
    mlx_engine_t *engine = crowd_open(open_mixed, i ? &generic : &kernel, MLX_USE_CPU);
    crowd_run(engine, MLXCEL_SANITIZED ? 5 : i ? 20 : 100);
    mlx_engine_close(engine);
  }
}

TEST(a_crowd_of_a_mixture_of_experts_changes_no_tokens) {
  mlx_engine_t *engine = crowd_open(open_experts, &(mlx_compile_options_t){0}, MLX_USE_CPU);
  crowd_run(engine, MLXCEL_SANITIZED ? 5 : 40);
  mlx_engine_close(engine);
}

static mlx_status_t open_recurrent(const void *model, const mlx_engine_options_t *options,
                                   mlx_engine_t **out_engine) {
  return open_fixture(model, &(mlx_compile_options_t){0}, options, out_engine);
}

TEST(a_crowd_of_a_recurrent_network_changes_no_tokens) {
  const char *const names[] = {"qwen3_5", "lfm2", "falcon_h1", "mamba2", "mamba"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    mlx_engine_t *engine = crowd_open(open_recurrent, names[i], MLX_USE_CPU);
    crowd_run(engine, MLXCEL_SANITIZED ? 5 : 40);
    mlx_engine_close(engine);
  }
}

TEST(many_sequences_at_once_change_no_tokens) {
  const int counts[] = {64, CROWD_MANY};
  for (size_t i = 0; i < (MLXCEL_SANITIZED ? 1 : 2); ++i) {
    mlx_engine_t *engine = crowd_open_many(open_tiny, &(mlx_compile_options_t){0}, MLX_USE_CPU, counts[i]);
    crowd_run_many(engine, counts[i]);
    mlx_engine_close(engine);
  }
}

TEST_MAIN(CASE(a_crowd_on_the_cpu_kernel_changes_no_tokens),
          CASE(a_crowd_with_quantized_weights_changes_no_tokens),
          CASE(a_crowd_on_the_generic_path_changes_no_tokens),
          CASE(a_crowd_of_a_mixture_of_experts_changes_no_tokens),
          CASE(a_crowd_of_a_recurrent_network_changes_no_tokens),
          CASE(a_crowd_with_window_pages_changes_no_tokens), CASE(many_sequences_at_once_change_no_tokens))
