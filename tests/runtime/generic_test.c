// The generic path on the CPU: architectures against Hugging Face, and texts longer than a chunk of attention
// against the CPU kernel. MLXCEL_ARCH=NAME runs one fixture.
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "compiler/kernels.h"
#include "tests/support/architectures.h"
#include "tests/support/compiled.h"
#include "tests/support/listed.h"
#include "tests/support/random_llama.h"
#include "tests/support/wide_fixtures.h"

// Sliding windows and softcap; sinks and experts; QK norm and windows; learned positions; rotated halves;
// experts with sigmoids and a bias of the choice; experts without a gate; groups of experts; heads of
// different sizes and shared keys and values; factors of experts; experts near the best one; ops with sums
// over a row; latent attention.
static const char *const fixtures[] = {"gemma2",
                                       "gpt_oss",
                                       "exaone4",
                                       "gpt2",
                                       "llama-llama3",
                                       "lfm2_moe-attention",
                                       "nemotron_h-attention",
                                       "glm4_moe-groups",
                                       "phimoe",
                                       "gemma3n",
                                       "gemma4-embeddings",
                                       "gemma4-experts",
                                       "deepseek_v2",
                                       "deepseek_v3-row"};

TEST(generic_path_matches_hf_token_for_token) {
  size_t checked = 0;
  for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; ++i) {
    char folder[] = "/tmp/mlxcel-generic-XXXXXX", path[512];
    if (!is_architecture(fixtures[i])) continue;
    CHECK(mkdtemp(folder));
    link_model(fixtures[i], folder);
    const mlx_compile_options_t options = {.context = CONTEXT, .kernels = MLX_KERNELS_OFF};
    mlx_engine_t *engine = open_compiled(folder, &options, NULL, 0);
    CHECK_TEXT(mlx_engine_info(engine).kernels, "none (generic path)");
    snprintf(path, sizeof path, GOLDENS "%s.json", fixtures[i]);
    check_goldens(engine, fixtures[i], path);
    mlx_engine_close(engine);
    CHECK_OK(mlx_remove_tree(folder));
    ++checked;
  }
  check_compared(checked, sizeof fixtures / sizeof *fixtures);
}

// ----------------------------------------------------------------------------------------------------------
// Texts of several chunks

#define LENGTH 600
#define RANDOM_VOCAB 320

// Logits after |ids|, and the tokens that follow.
static void read_text(const char *model, mlx_compile_options_t options, const int32_t *ids, float *logits,
                      int32_t *tokens, size_t count) {
  options.context = 1024;
  mlx_engine_t *engine = open_compiled(model, &options, NULL, 0);
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, LENGTH, tokens));
  CHECK_OK(mlx_session_logits(session, logits, RANDOM_VOCAB));
  CHECK_OK(mlx_session_steps(session, tokens + 1, count - 1));
  mlx_session_free(session);
  mlx_engine_close(engine);
}

static void random_text(int32_t *ids) {
  uint64_t state = 5;
  for (int i = 0; i < LENGTH; ++i) ids[i] = (int32_t)(random_bits(&state) % RANDOM_VOCAB);
}

static void check_logits(const float *logits, const float *expected, double bound) {
  double worst = 0, largest = 0;
  for (int i = 0; i < RANDOM_VOCAB; ++i) {
    worst = fmax(worst, fabs((double)logits[i] - (double)expected[i]));
    largest = fmax(largest, fabs((double)expected[i]));
  }
  if (!(worst <= bound * largest)) CHECK_FAIL("logits differ by %g of the largest", worst / largest);
}

TEST(text_of_several_chunks_matches_the_cpu_kernel) {
  if (!mlx_kernels_cpu_level("host")) SKIP("this build has no CPU kernel for this machine");
  static const random_llama_t shape = {64, 96, 4, 2, 16, 2, RANDOM_VOCAB, false, 10000};
  char root[] = "/tmp/mlxcel-generic-XXXXXX";
  int32_t ids[LENGTH], tokens[2][16];
  float logits[2][RANDOM_VOCAB];
  CHECK(mkdtemp(root));
  const char *model = random_llama_write(&shape, root, "chunks");
  random_text(ids);
  read_text(model, (mlx_compile_options_t){.kernels = MLX_KERNELS_OFF, .dtype = MLX_F32}, ids, logits[0],
            tokens[0], 16);
  read_text(model, (mlx_compile_options_t){.kernels = MLX_KERNELS_REQUIRED, .dtype = MLX_F32}, ids, logits[1],
            tokens[1], 16);
  check_logits(logits[0], logits[1], 1e-4);
  for (int i = 0; i < 16; ++i) CHECK_INT(tokens[0][i], tokens[1][i]);
  CHECK_OK(mlx_remove_tree(root));
}

// Products of heads in Q8_0 and more pages than the kernel reads at a time.
TEST(latent_attention_of_several_chunks_matches_the_cpu_kernel) {
  const char *model = MLXCEL_SOURCE_DIR "/tests/fixtures/gguf/deepseek_v3-whole-q8.gguf";
  int32_t ids[LENGTH], tokens[2][16];
  float logits[2][RANDOM_VOCAB];
  if (!mlx_kernels_cpu_level("host")) SKIP("this build has no CPU kernel for this machine");
  random_text(ids);
  read_text(model, (mlx_compile_options_t){.kernels = MLX_KERNELS_OFF}, ids, logits[0], tokens[0], 16);
  read_text(model, (mlx_compile_options_t){.kernels = MLX_KERNELS_REQUIRED, .weights = MLX_WEIGHTS_QUANTIZED},
            ids, logits[1], tokens[1], 16);
  check_logits(logits[0], logits[1], 1e-4);
  for (int i = 0; i < 16; ++i) CHECK_INT(tokens[0][i], tokens[1][i]);
}

// Modules read weights as words of 32 bits. Matrices of 33 x 25 end within one.
TEST(weights_of_16_bits_may_have_an_odd_number_of_elements) {
  static const random_llama_t shape = {25, 33, 2, 1, 8, 2, RANDOM_VOCAB, false, 10000};
  char root[] = "/tmp/mlxcel-generic-XXXXXX";
  int32_t ids[LENGTH], tokens[2];
  float logits[2][RANDOM_VOCAB];
  CHECK(mkdtemp(root));
  const char *model = random_llama_write(&shape, root, "odd");
  random_text(ids);
  read_text(model, (mlx_compile_options_t){.kernels = MLX_KERNELS_OFF, .dtype = MLX_F32}, ids, logits[0],
            &tokens[0], 1);
  read_text(model, (mlx_compile_options_t){.kernels = MLX_KERNELS_OFF, .dtype = MLX_BF16}, ids, logits[1],
            &tokens[1], 1);
  check_logits(logits[1], logits[0], 0.03);
  CHECK_OK(mlx_remove_tree(root));
}

// A Qwen3.5 without recurrent layers: its queries and gates are columns of the heads of one product.
static const char gated_attention[] =
    "{\"seed\": 3, \"config\": {\"model_type\": \"qwen3_5_text\", \"hidden_size\": 64, "
    "\"intermediate_size\": 96,"
    "\"num_hidden_layers\": 1, \"layer_types\": [\"full_attention\"], \"num_attention_heads\": 4,"
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 320, \"max_position_embeddings\": 1024,"
    "\"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": true, \"bos_token_id\": 0, \"eos_token_id\": 2},"
    "\"tensors\": [[\"model.embed_tokens.weight\", \"BF16\", [320, 64], 4e-6, 0],"
    "[\"model.norm.weight\", \"BF16\", [64], 4e-6, 0],"
    "[\"model.layers.0.input_layernorm.weight\", \"BF16\", [64], 4e-6, 0],"
    "[\"model.layers.0.post_attention_layernorm.weight\", \"BF16\", [64], 4e-6, 0],"
    "[\"model.layers.0.self_attn.q_proj.weight\", \"BF16\", [128, 64], 4e-6, 0],"
    "[\"model.layers.0.self_attn.k_proj.weight\", \"BF16\", [32, 64], 4e-6, 0],"
    "[\"model.layers.0.self_attn.v_proj.weight\", \"BF16\", [32, 64], 4e-6, 0],"
    "[\"model.layers.0.self_attn.o_proj.weight\", \"BF16\", [64, 64], 4e-6, 0],"
    "[\"model.layers.0.self_attn.q_norm.weight\", \"BF16\", [16], 4e-6, 0],"
    "[\"model.layers.0.self_attn.k_norm.weight\", \"BF16\", [16], 4e-6, 0],"
    "[\"model.layers.0.mlp.gate_proj.weight\", \"BF16\", [96, 64], 4e-6, 0],"
    "[\"model.layers.0.mlp.up_proj.weight\", \"BF16\", [96, 64], 4e-6, 0],"
    "[\"model.layers.0.mlp.down_proj.weight\", \"BF16\", [64, 96], 4e-6, 0]]}";

TEST(columns_of_heads_are_slices_of_each_head) {
  const mlx_compile_options_t options = {.context = 64};
  char root[] = "/tmp/mlxcel-generic-XXXXXX", file[64], *text;
  CHECK(mkdtemp(root));
  snprintf(file, sizeof file, "%s/network.json", root);
  CHECK_OK(mlx_write_file(file, gated_attention, sizeof gated_attention - 1));
  write_wide_file(file, root);
  CHECK_OK(mlx_compile_stablehlo(root, &options, &text, NULL));
  CHECK_CONTAINS(text, "%layer0.each_head_columns = stablehlo.slice %layer0.each_head [0:64, 0:16] : ");
  CHECK_CONTAINS(text,
                 "%layer0.q = stablehlo.reshape %layer0.each_head_columns : (tensor<64x16xf32>) -> "
                 "tensor<16x64xf32>");
  CHECK_CONTAINS(text, "%layer0.each_head_columns_2 = stablehlo.slice %layer0.each_head_4 [0:64, 16:32] : ");
  mlx_free(text);
  CHECK_OK(mlx_remove_tree(root));
}

TEST_MAIN(CASE(generic_path_matches_hf_token_for_token), CASE(text_of_several_chunks_matches_the_cpu_kernel),
          CASE(latent_attention_of_several_chunks_matches_the_cpu_kernel),
          CASE(weights_of_16_bits_may_have_an_odd_number_of_elements),
          CASE(columns_of_heads_are_slices_of_each_head))
