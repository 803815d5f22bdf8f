// crowd_test.c on a GPU: bf16 weights as stored, quantized weights, and the generic path. --dtype bf16 is not
// part of it: it rounds activations, so its tokens depend on the batch (docs/internals/scheduler.md).
#include "tests/runtime/crowd.h"

#include "runtime/rooms.h"
#include "tests/support/gpu.h"
#include "tests/support/random_llama.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"

// An odd number of layers: few.cu uses two sets of buffers in turn.
static const random_llama_t shape = {256, 512, 4, 2, 64, 3, 320, true, 10000};

static void prepare(void) {
  char folder[] = "/tmp/mlxcel-crowd-XXXXXX";
  CHECK(mkdtemp(folder));
  random_llama_dtype = "BF16";
  const char *model = random_llama_write(&shape, folder, "crowd");
  mlx_compile_options_t options = {
      .target = "cuda:sm_90", .weights = MLX_WEIGHTS_AUTO, .kernels = MLX_KERNELS_REQUIRED};
  gpu_compile(model, &options, "crowd-bf16.mlxb");
  options.quantize = MLX_QUANTIZE_Q4_0;
  gpu_compile(model, &options, "crowd-q4_0.mlxb");
  gpu_compile(FIXTURES "tiny-llama",
              &(mlx_compile_options_t){.target = "cuda:sm_80", .kernels = MLX_KERNELS_OFF},
              "crowd-generic.mlxb");
  CHECK_OK(mlx_remove_tree(folder));
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

TEST(a_crowd_on_the_gpu_changes_no_tokens) { run("crowd-bf16.mlxb", 200); }

TEST(a_crowd_with_quantized_weights_changes_no_tokens) { run("crowd-q4_0.mlxb", 100); }

TEST(a_crowd_on_the_generic_path_of_a_gpu_changes_no_tokens) { run("crowd-generic.mlxb", 20); }

TEST(many_sequences_at_once_on_the_gpu_change_no_tokens) {
  static const char *const bundles[] = {"crowd-bf16.mlxb", "crowd-q4_0.mlxb"};
  for (int i = 0; i < 4; ++i) {
    const int count = i % 2 ? CROWD_MANY : 64;
    mlx_engine_t *engine = crowd_open_many(open_bundle, bundles[i / 2], MLX_USE_CUDA, count);
    crowd_run_many(engine, count);
    mlx_engine_close(engine);
  }
}

GPU_TEST_MAIN(prepare, CASE(a_crowd_on_the_gpu_changes_no_tokens),
              CASE(a_crowd_with_quantized_weights_changes_no_tokens),
              CASE(a_crowd_on_the_generic_path_of_a_gpu_changes_no_tokens),
              CASE(many_sequences_at_once_on_the_gpu_change_no_tokens))
