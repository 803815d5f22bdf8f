// The decode kernel on networks that differ from Llama's, against Hugging Face in f32: fixtures whose heads
// have a size that the kernel supports, and wide fixtures. arch_gpu_test.c has all architectures on the
// generic path, and all wide fixtures.
#include "base/memory.h"
#include "tests/architectures.h"
#include "tests/gpu.h"
#include "tests/wide_fixtures.h"

static const char *const fixtures[] = {
    "llama-yarn",       "mimo",  "qwen3", "gemma2",  "gemma3",    "ernie4_5", "glm4",         "ministral3",
    "hunyuan_v1_dense", "olmo2", "olmo3", "exaone4", "qwen3_moe", "gpt_oss",  "gpt_oss-mxfp4"};
#define SMALL (sizeof fixtures / sizeof *fixtures)

static const char *const wide_fixtures[] = {"arcee",
                                            "starcoder2",
                                            "olmo",
                                            "gpt2",
                                            "cohere",
                                            "cohere2",
                                            "phi",
                                            "gpt_neox",
                                            "gpt_neox-serial",
                                            "stablelm",
                                            "stablelm-parallel",
                                            "olmoe",
                                            "qwen2_moe"};
#define COUNT (SMALL + sizeof wide_fixtures / sizeof *wide_fixtures)

static const char *fixture_at(size_t i) { return i < SMALL ? fixtures[i] : wide_fixtures[i - SMALL]; }

// MLXCEL_ARCH selects one fixture.
static bool is_selected(const char *name) {
  const char *only = getenv("MLXCEL_ARCH");
  return !only || !strcmp(only, name);
}

static void prepare(void) {
  for (size_t i = 0; i < COUNT; ++i) {
    char folder[] = "/tmp/mlxcel-decode-XXXXXX", path[512], file[64];
    const char *name = fixture_at(i);
    if (!is_selected(name)) continue;
    CHECK(mkdtemp(folder));
    if (i < SMALL)
      link_model(name, folder);
    else
      write_wide_model(name, folder);
    snprintf(file, sizeof file, "decode-%s.mlxb", name);
    gpu_compile(folder,
                &(mlx_compile_options_t){.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_AUTO},
                file);
    snprintf(path, sizeof path, "%s%s.json", i < SMALL ? GOLDENS : WIDE_GOLDENS, name);
    snprintf(file, sizeof file, "decode-%s.json", name);
    gpu_copy(path, file);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(each_form_of_network_matches_hf_token_for_token_on_the_decode_kernel) {
  for (size_t i = 0; i < COUNT; ++i) {
    char file[64];
    const char *name = fixture_at(i);
    snprintf(file, sizeof file, "decode-%s.mlxb", name);
    if (!is_selected(name) || !gpu_runs(file, 90)) continue;
    mlx_engine_t *engine = gpu_open(file);
    CHECK_CONTAINS(mlx_engine_info(engine).kernels, "decode");
    CHECK_TEXT(mlx_engine_info(engine).activations, "f32");
    snprintf(file, sizeof file, "decode-%s.json", name);
    check_goldens(engine, name, gpu_file(file));
    mlx_engine_close(engine);
  }
}

GPU_TEST_MAIN(prepare, CASE(each_form_of_network_matches_hf_token_for_token_on_the_decode_kernel))
