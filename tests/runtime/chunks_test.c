// One numeric path: the logits of a sequence do not depend on how its tokens were divided between calls.
// Tokens are equal, and logits differ by less than 1e-5 of the largest logit. With weights in f32, f16 or
// bf16 they are equal bit for bit.
#include "tests/support/chunks.h"
#include "compiler/kernels.h"
#include "tests/support/architectures.h"
#include "tests/support/compiled.h"
#include "tests/support/random_gguf.h"

#define RANDOM_VOCAB 300
#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"

static char root[] = "/tmp/mlxcel-chunks-XXXXXX";

// Widths that AMX tiles support, and widths that they do not.
static const random_llama_t even = {256, 512, 4, 2, 64, 3, RANDOM_VOCAB, true, 10000};
static const random_llama_t odd = {200, 328, 5, 5, 48, 2, RANDOM_VOCAB, false, 10000};

// |bits|: the logits must be equal.
static void check_model(const char *name, const char *model, mlx_compile_options_t options, bool bits) {
  options.context = 192;
  mlx_engine_t *engine = open_compiled(model, &options, NULL, 2);
  check_chunks(engine, name, bits ? 0 : 1e-5);
  mlx_engine_close(engine);
}

TEST(float_weights_give_the_same_bits_for_any_chunks) {
  static const struct {
    const char *name;
    mlx_compile_options_t options;
  } modes[] = {{"f32", {.dtype = MLX_F32}},
               {"--dtype bf16", {.dtype = MLX_BF16}},
               {"--dtype f16", {.dtype = MLX_F16}},
               {"--dtype bf16 --kv q8", {.dtype = MLX_BF16, .kv = MLX_Q8_0, .kv_given = true}}};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; ++i) {
    check_model(modes[i].name, random_llama_write(&even, root, "even"), modes[i].options, true);
    check_model(modes[i].name, random_llama_write(&odd, root, "odd"), modes[i].options, true);
  }
}

// Fixtures in bf16: sliding window and softcap, QK norm, experts and sinks, learned positions.
TEST(bf16_checkpoints_with_default_options_give_the_same_bits_for_any_chunks) {
  static const char *const names[] = {"gemma2", "qwen3", "gpt_oss", "gpt2"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char folder[] = "/tmp/mlxcel-chunks-XXXXXX";
    CHECK(mkdtemp(folder));
    link_model(names[i], folder);
    check_model(names[i], folder, (mlx_compile_options_t){.weights = MLX_WEIGHTS_AUTO}, true);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

// Rows of 20 + 8 and of 512 + 64 numbers.
TEST(latent_attention_gives_the_same_bits_for_any_chunks) {
  static const char *const names[] = {"deepseek_v2", "deepseek_v3-row"};
  static const mlx_dtype_t kv[] = {MLX_F32, MLX_F16, MLX_BF16, MLX_Q8_0};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char folder[] = "/tmp/mlxcel-chunks-XXXXXX";
    CHECK(mkdtemp(folder));
    link_model(names[i], folder);
    for (size_t k = 0; k < sizeof kv / sizeof *kv; ++k)
      check_model(names[i], folder,
                  (mlx_compile_options_t){.weights = MLX_WEIGHTS_AUTO, .kv = kv[k], .kv_given = true}, true);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(quantized_weights_give_the_same_logits_for_any_chunks) {
  static const mlx_dtype_t kv[] = {MLX_F32, MLX_F16, MLX_BF16, MLX_Q8_0};
  char path[128], name[64];
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    const mlx_dtype_t dtype = random_packed_types[i].dtype;
    if (dtype != MLX_Q4_0 && dtype != MLX_Q4_K && dtype != MLX_Q8_0) continue;
    snprintf(path, sizeof path, "%s/%s.gguf", root, mlx_dtype_info(dtype)->name);
    random_gguf_write(&even, &random_packed_types[i], 1, path);
    for (size_t k = 0; k < sizeof kv / sizeof *kv; ++k) {
      snprintf(name, sizeof name, "%s, KV %s", mlx_dtype_info(dtype)->name, mlx_dtype_info(kv[k])->name);
      check_model(name, path,
                  (mlx_compile_options_t){.weights = MLX_WEIGHTS_QUANTIZED, .kv = kv[k], .kv_given = true},
                  false);
    }
  }
}

TEST(smollm2_gives_the_same_logits_for_any_chunks) {
  check_model("SmolLM2 Q4_1", SMOLLM2, (mlx_compile_options_t){.weights = MLX_WEIGHTS_AUTO}, false);
  check_model("SmolLM2 --dtype bf16", SMOLLM2, (mlx_compile_options_t){.dtype = MLX_BF16}, true);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(float_weights_give_the_same_bits_for_any_chunks),
      CASE(bf16_checkpoints_with_default_options_give_the_same_bits_for_any_chunks),
      CASE(latent_attention_gives_the_same_bits_for_any_chunks),
      CASE(quantized_weights_give_the_same_logits_for_any_chunks),
      CASE(smollm2_gives_the_same_logits_for_any_chunks)};
  if (!mkdtemp(root)) return 1;
  const bool has_kernels = mlx_kernels_cpu_level("host");
  if (!has_kernels) fprintf(stderr, "skipped: there is no CPU kernel for this machine\n");
  const int failed = has_kernels ? check_run(cases, sizeof cases / sizeof *cases, argc, argv) : CHECK_SKIPPED;
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
