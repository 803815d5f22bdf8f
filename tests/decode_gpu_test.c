// The decode kernel on networks that differ from Llama's, against Hugging Face in f32: fixtures whose heads
// have a size that the kernel supports. arch_gpu_test.c has all architectures on the generic path.
#include "base/memory.h"
#include "tests/architectures.h"
#include "tests/gpu.h"

static const char *const fixtures[] = {
    "llama-yarn",       "mimo",  "qwen3", "gemma2",  "gemma3",    "ernie4_5", "glm4",         "ministral3",
    "hunyuan_v1_dense", "olmo2", "olmo3", "exaone4", "qwen3_moe", "gpt_oss",  "gpt_oss-mxfp4"};
#define COUNT (sizeof fixtures / sizeof *fixtures)

// MLXCEL_ARCH selects one fixture.
static bool is_selected(const char *name) {
  const char *only = getenv("MLXCEL_ARCH");
  return !only || !strcmp(only, name);
}

static void prepare(void) {
  for (size_t i = 0; i < COUNT; ++i) {
    char folder[] = "/tmp/mlxcel-decode-XXXXXX", path[512], file[64];
    if (!is_selected(fixtures[i])) continue;
    CHECK(mkdtemp(folder));
    link_model(fixtures[i], folder);
    snprintf(file, sizeof file, "decode-%s.mlxb", fixtures[i]);
    gpu_compile(folder,
                &(mlx_compile_options_t){.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_AUTO},
                file);
    snprintf(path, sizeof path, GOLDENS "%s.json", fixtures[i]);
    snprintf(file, sizeof file, "decode-%s.json", fixtures[i]);
    gpu_copy(path, file);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(each_form_of_network_matches_hf_token_for_token_on_the_decode_kernel) {
  for (size_t i = 0; i < COUNT; ++i) {
    char file[64];
    snprintf(file, sizeof file, "decode-%s.mlxb", fixtures[i]);
    if (!is_selected(fixtures[i]) || !gpu_runs(file, 90)) continue;
    mlx_engine_t *engine = gpu_open(file);
    CHECK_CONTAINS(mlx_engine_info(engine).kernels, "decode");
    CHECK_TEXT(mlx_engine_info(engine).activations, "f32");
    snprintf(file, sizeof file, "decode-%s.json", fixtures[i]);
    check_goldens(engine, fixtures[i], gpu_file(file));
    mlx_engine_close(engine);
  }
}

GPU_TEST_MAIN(prepare, CASE(each_form_of_network_matches_hf_token_for_token_on_the_decode_kernel))
