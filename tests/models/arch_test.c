// Every architecture on the CPU with default options, as one call of the CPU kernel, against Hugging Face
// fp32: the same tokens, and logits that differ by less than 1e-4 of the largest logit.
//
// Runs all fixtures in tests/fixtures that have goldens, and all in tests/fixtures/wide. MLXCEL_ARCH=NAME
// runs one fixture.
#include <math.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "compiler/emit.h"
#include "compiler/kernels.h"
#include "compiler/weights.h"
#include "models/model.h"
#include "tests/support/architectures.h"
#include "tests/support/compiled.h"
#include "tests/support/listed.h"
#include "tests/support/wide_fixtures.h"

static mlx_status_t check_fixture(void *user, const char *name) {
  size_t *checked = user;
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512];
  if (!is_architecture(name)) return NULL;
  CHECK(mkdtemp(folder));
  link_model(name, folder);
  const mlx_compile_options_t options = {.context = CONTEXT, .weights = MLX_WEIGHTS_AUTO};
  mlx_engine_t *engine = open_compiled(folder, &options, NULL, 0);
  if (mlx_kernels_cpu_level("host")) CHECK_TEXT(mlx_engine_info(engine).kernels, "network");
  snprintf(path, sizeof path, GOLDENS "%s.json", name);
  check_goldens(engine, name, path);
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
  ++*checked;
  return NULL;
}

TEST(every_architecture_matches_hf_token_for_token) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(FIXTURES, check_fixture, &checked));
  check_compared(checked, listed_architectures());
}

// The sizes that the GPU kernels take, with kernels required.
static mlx_status_t check_wide(void *user, const char *file) {
  size_t *checked = user;
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", name[64], path[512];
  if (!wide_name(file, name)) return NULL;
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  const mlx_compile_options_t options = {
      .context = CONTEXT, .weights = MLX_WEIGHTS_AUTO, .kernels = MLX_KERNELS_REQUIRED};
  mlx_engine_t *engine = open_compiled(folder, &options, NULL, 0);
  CHECK_TEXT(mlx_engine_info(engine).kernels, "network");
  snprintf(path, sizeof path, WIDE_GOLDENS "%s.json", name);
  check_goldens(engine, name, path);
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
  ++*checked;
  return NULL;
}

TEST(every_architecture_at_the_sizes_of_the_gpu_kernels_matches_hf_token_for_token) {
  size_t checked = 0;
  if (!mlx_kernels_cpu_level("host")) SKIP("this build has no kernel for this CPU");
  CHECK_OK(mlx_list_dir(WIDE_FIXTURES, check_wide, &checked));
  check_compared(checked, listed_files("fixtures/wide/", ".json"));
}

// Fails if |fixture| of the golden file |name| is missing. Goldens without logits have other tests.
static void check_has_fixture(const char *goldens, const char *name, const char *fixture) {
  char path[512];
  snprintf(path, sizeof path, "%s%s", goldens, name);
  golden_t golden = golden_open(path);
  const bool with_logits = yyjson_obj_get(yyjson_arr_get(golden.results, 0), "last_logits");
  golden_close(&golden);
  if (with_logits && !mlx_is_file(fixture)) CHECK_FAIL("%s has no fixture %s", path, fixture);
}

enum { OTHERS = 4 };  // goldens of other tests
static mlx_status_t check_golden(void *user, const char *file) {
  size_t *checked = user;
  char fixture[512];
  const size_t length = strlen(file);
  static const char *const others[OTHERS] = {"chat_formats.json", "config_defaults.json", "templates.json",
                                             "text_defaults.json"};
  if (length < 6 || strcmp(file + length - 5, ".json")) return NULL;
  for (size_t i = 0; i < OTHERS; ++i) {
    if (!strcmp(file, others[i])) return NULL;
  }
  snprintf(fixture, sizeof fixture, FIXTURES "%.*s/config.json", (int)length - 5, file);
  check_has_fixture(GOLDENS, file, fixture);
  ++*checked;
  return NULL;
}

static mlx_status_t check_wide_golden(void *user, const char *file) {
  size_t *checked = user;
  char fixture[512];
  snprintf(fixture, sizeof fixture, WIDE_FIXTURES "%s", file);
  check_has_fixture(WIDE_GOLDENS, file, fixture);
  ++*checked;
  return NULL;
}

// The other tests go through the fixtures, so that one without goldens fails.
TEST(every_golden_has_its_fixture) {
  size_t checked = 0, wide = 0;
  CHECK_OK(mlx_list_dir(GOLDENS, check_golden, &checked));
  CHECK_OK(mlx_list_dir(WIDE_GOLDENS, check_wide_golden, &wide));
  CHECK_INT(checked, listed_files("goldens/", ".json") - OTHERS);
  CHECK_INT(wide, listed_files("goldens/wide/", ".json"));
}

// Opens the fixture with |field|, a JSON member, in place of the field of that name in its config.
static mlx_status_t open_with(const char *name, const char *field, mlx_model_t **out_model) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512], key[64], *config, *old;
  size_t length;
  mlx_text_t text = {0};
  snprintf(path, sizeof path, FIXTURES "%s/config.json", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &config, &length));
  snprintf(key, sizeof key, "%.*s", (int)strcspn(field, ":"), field);
  if ((old = strstr(config, key))) old[1] = '-';  // renamed, so no reader finds it
  mlx_text_printf(&text, "{%s,%.*s", field, (int)length - 1, config + 1);
  CHECK(mkdtemp(folder));
  link_file(name, folder, "model.safetensors");
  snprintf(path, sizeof path, "%s/config.json", folder);
  CHECK_OK(mlx_write_file(path, text.data, text.length));
  mlx_status_t status = mlx_model_open(folder, out_model);
  mlx_text_clear(&text);
  mlx_free(config);
  CHECK_OK(mlx_remove_tree(folder));
  return status;
}

static void check_refused(const char *name, const char *field, mlx_code_t code, const char *message) {
  mlx_model_t *model;
  CHECK_ERROR(open_with(name, field, &model), code, message);
}

TEST(an_infinite_limit_may_be_written_as_python_writes_it) {
  static const struct {
    const char *field;
    double limit;
  } cases[] = {{"\"time_step_limit\":[0.0, Infinity]", INFINITY},
               {"\"time_step_limit\":[0.0, {\"__float__\":\"Infinity\"}]", INFINITY},
               {"\"time_step_limit\":null", INFINITY},
               {"\"time_step_limit\":[0.25, 2]", 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_model_t *model;
    CHECK_OK(open_with("falcon_h1", cases[i].field, &model));
    CHECK(model->config.scan.max_step == cases[i].limit);
    mlx_model_close(model);
  }
}

// transformers writes per_layer_config; published files have global_head_dim and num_global_key_value_heads.
TEST(heads_of_gemma4_layers_without_a_window_have_two_forms) {
  mlx_model_t *model;
  CHECK_OK(open_with(
      "gemma4", "\"per_layer_config\":null,\"global_head_dim\":32,\"num_global_key_value_heads\":1", &model));
  CHECK_INT(model->config.global_head_dim, 32);
  CHECK_INT(model->config.global_kv_heads, 1);
  CHECK_INT(model->config.head_dim, 16);
  CHECK_INT(model->kv_numbers, 256);
  CHECK_INT(model->window_kv_numbers, 128);
  mlx_model_close(model);
}

static void gemma4_is_refused_by_field(void) {
  check_refused("gemma4", "\"use_bidirectional_attention\":\"all\"", MLX_UNSUPPORTED,
                "field 'use_bidirectional_attention' is 'all', which is not supported");
  check_refused("gemma4", "\"num_kv_shared_layers\":5", MLX_INVALID_INPUT,
                "field 'num_kv_shared_layers' leaves layer 1 without keys to share");
  check_refused("gemma4", "\"per_layer_config\":{\"1\":{\"head_dim\":32},\"3\":{\"head_dim\":16}}",
                MLX_UNSUPPORTED, "field 'per_layer_config' has layers of one type with different heads");
  check_refused("gemma4", "\"per_layer_config\":null,\"global_head_dim\":32,\"num_global_key_value_heads\":3",
                MLX_INVALID_INPUT, "3 KV heads do not divide 4 heads");
  check_refused("gemma4", "\"per_layer_config\":null,\"global_head_dim\":31,\"num_global_key_value_heads\":1",
                MLX_INVALID_INPUT, "field 'global_head_dim' is 31; it must be even and at most 1024");
  check_refused("gemma4-embeddings", "\"vocab_size_per_layer_input\":319", MLX_UNSUPPORTED,
                "field 'vocab_size_per_layer_input' is less than the vocabulary size");
}

static void gemma3n_is_refused_by_field(void) {
  check_refused("gemma3n", "\"altup_num_inputs\":3", MLX_INVALID_INPUT, "field 'altup_num_inputs'");
  check_refused("gemma3n", "\"altup_active_idx\":1", MLX_INVALID_INPUT, "field 'altup_active_idx'");
  check_refused("gemma3n", "\"activation_sparsity_pattern\":[0.5,0,0,0]", MLX_INVALID_INPUT,
                "field 'activation_sparsity_pattern' must have one number for each of the 5 layers");
  check_refused("gemma3n", "\"activation_sparsity_pattern\":[1.5,0,0,0,0]", MLX_INVALID_INPUT,
                "field 'activation_sparsity_pattern' has 1.5, which is out of range");
  check_refused("gemma3n", "\"intermediate_size\":[48,48,48,48,40]", MLX_UNSUPPORTED,
                "field 'intermediate_size' must have the same width");
  check_refused("gemma3n", "\"num_kv_shared_layers\":4", MLX_INVALID_INPUT,
                "field 'num_kv_shared_layers' leaves layer 1 without keys to share");
}

TEST(unsupported_config_values_are_refused_by_field) {
  gemma4_is_refused_by_field();
  gemma3n_is_refused_by_field();
  check_refused("muse_glimmer", "\"layer_rope_theta\":[0,10000,20000]", MLX_UNSUPPORTED,
                "field 'layer_rope_theta' has 10000 and 20000; only one base besides 0 is supported");
  check_refused("mistral4", "\"qk_nope_head_dim\":65528", MLX_UNSUPPORTED,
                "means 26214 dimensions; at most 1024 are supported");
  check_refused("granitemoe", "\"logits_scaling\":0", MLX_INVALID_INPUT,
                "field 'logits_scaling' must not be 0");
  check_refused("granitemoe", "\"num_local_experts\":5", MLX_INVALID_INPUT,
                "has shape [6, 32]; expected [5, 32]");
  check_refused("granitemoe", "\"intermediate_size\":48", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.block_sparse_moe.input_linear.weight' has shape [6, 48, 32]; "
                "expected [6, 96, 32]");
  check_refused("gpt_oss", "\"rope_parameters\":null", MLX_UNSUPPORTED, "field 'rope_parameters' is missing");
  check_refused("gpt_oss", "\"swiglu_limit\":0", MLX_INVALID_INPUT,
                "field 'swiglu_limit' must be greater than 0");
  check_refused("gpt_oss", "\"layer_types\":[\"chunked_attention\",\"full_attention\"]", MLX_UNSUPPORTED,
                "field 'layer_types' has 'chunked_attention'");
  check_refused("gpt_oss", "\"intermediate_size\":12", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.experts.gate_up_proj' has shape [6, 32, 48]; "
                "expected [6, 32, 24]");
  check_refused("gpt_oss-mxfp4", "\"quantization_config\":null", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.experts.gate_up_proj' is missing");
  check_refused("gpt_oss-mxfp4", "\"num_local_experts\":3", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.router.weight' has shape [6, 32]");
  check_refused("gpt_oss-mxfp4", "\"intermediate_size\":64", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.experts.gate_up_proj_blocks' has shape [6, 64, 1, 16]; "
                "expected [6, 128, 1, 16]");
  check_refused("qwen3_5",
                "\"layer_types\":[\"linear_attention\",\"mamba\",\"full_attention\",\"full_attention\"]",
                MLX_UNSUPPORTED, "field 'layer_types' has 'mamba', an unsupported layer type");
  check_refused("qwen3_5", "\"linear_num_key_heads\":3", MLX_INVALID_INPUT,
                "field 'linear_num_key_heads' is 3, which does not divide the 4 value heads");
  check_refused("qwen3_5", "\"linear_conv_kernel_dim\":3", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.linear_attn.conv1d.weight' has shape [160, 4]; expected [160, 3]");
  check_refused("qwen3_5_moe", "\"norm_topk_prob\":false", MLX_UNSUPPORTED,
                "field 'norm_topk_prob' is false, which is not supported");
  check_refused("qwen3_5_moe", "\"num_experts\":5", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.gate.weight' has shape [6, 32]; expected [5, 32]");
  check_refused("qwen3_5_moe", "\"shared_expert_intermediate_size\":16", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.shared_expert.gate_proj.weight' has shape [24, 32]; "
                "expected [16, 32]");
  check_refused("qwen3_next", "\"linear_num_value_heads\":2", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.linear_attn.in_proj_qkvz.weight' has shape [256, 32]; "
                "expected [160, 32]");
  check_refused("qwen3_next", "\"decoder_sparse_step\":2", MLX_UNSUPPORTED,
                "field 'decoder_sparse_step' is 2; only 1 is supported");
  check_refused("qwen3_next", "\"mlp_only_layers\":[0]", MLX_UNSUPPORTED,
                "field 'mlp_only_layers' is not empty");
  check_refused("lfm2_moe", "\"num_dense_layers\":5", MLX_INVALID_INPUT,
                "field 'num_dense_layers' must be between 0 and 4");
  check_refused("lfm2_moe", "\"use_expert_bias\":false", MLX_UNSUPPORTED,
                "tensor 'model.layers.1.feed_forward.expert_bias' is not part of the lfm2_moe architecture");
  check_refused("lfm2_moe", "\"num_experts\":7", MLX_INVALID_INPUT,
                "tensor 'model.layers.1.feed_forward.gate.weight' has shape [6, 32]; expected [7, 32]");
  check_refused("lfm2_moe", "\"routed_scaling_factor\":\"a\"", MLX_INVALID_INPUT,
                "field 'routed_scaling_factor' must be a number");
  check_refused("lfm2", "\"layer_types\":[\"conv\",\"conv\",\"conv\"]", MLX_INVALID_INPUT,
                "tensor 'model.layers.1.conv.in_proj.weight' is missing");
  check_refused("lfm2", "\"block_ffn_dim_multiplier\":-1", MLX_INVALID_INPUT,
                "field 'block_ffn_dim_multiplier' gives an MLP of no possible width");
  check_refused("falcon_h1", "\"mamba_n_groups\":3", MLX_INVALID_INPUT,
                "field 'mamba_n_groups' is 3, which does not divide the 8 heads");
  check_refused("falcon_h1", "\"mamba_d_state\":32", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mamba.in_proj.weight' has shape [232, 32]; expected [264, 32]");
  check_refused("falcon_h1", "\"mamba_d_state\":257", MLX_INVALID_INPUT, "field 'mamba_d_state' must be");
  check_refused("falcon_h1", "\"mamba_d_ssm\":40", MLX_INVALID_INPUT,
                "field 'mamba_d_head' is wrong: 8 heads cannot have 40 numbers together");
  check_refused("falcon_h1", "\"mamba_conv_bias\":false", MLX_UNSUPPORTED,
                "tensor 'model.layers.0.mamba.conv1d.bias' is not part of the falcon_h1 architecture");
  check_refused("falcon_h1-plain", "\"mamba_conv_bias\":true", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mamba.conv1d.bias' is missing");
  check_refused("falcon_h1", "\"ssm_multipliers\":[1, 2]", MLX_INVALID_INPUT,
                "field 'ssm_multipliers' must be a list of 5 numbers");
  check_refused("falcon_h1", "\"time_step_limit\":[0.0]", MLX_INVALID_INPUT,
                "field 'time_step_limit' must be a list of two numbers");
  check_refused("falcon_h1", "\"time_step_limit\":[Infinity, 1.0]", MLX_INVALID_INPUT,
                "field 'time_step_limit' must be a smallest step of at least 0 and a largest step");
  check_refused("falcon_h1", "\"time_step_limit\":[0.0, NaN]", MLX_INVALID_INPUT,
                "field 'time_step_limit' must be a list of numbers");
  check_refused("falcon_h1", "\"key_multiplier\":Infinity", MLX_INVALID_INPUT,
                "field 'key_multiplier' must be finite");
  check_refused("falcon_h1", "\"hidden_act\":\"gelu\"", MLX_UNSUPPORTED, "field 'hidden_act' must be silu");
  check_refused("granitemoehybrid", "\"layer_types\":[\"mamba\",\"attention\",\"conv\"]", MLX_UNSUPPORTED,
                "field 'layer_types' has 'conv', an unsupported layer type");
  check_refused("granitemoehybrid", "\"layer_types\":[\"mamba\",\"attention\"]", MLX_INVALID_INPUT,
                "field 'layer_types' must have one entry for each of the 3 layers");
  check_refused("granitemoehybrid", "\"position_embedding_type\":\"alibi\"", MLX_UNSUPPORTED,
                "field 'position_embedding_type' is 'alibi'; must be rope or nope");
  check_refused("granitemoehybrid", "\"num_experts_per_tok\":7", MLX_INVALID_INPUT,
                "field 'num_experts_per_tok' must be from 1 to the number of experts, 6");
  check_refused("bamba", "\"attn_layer_indices\":[3]", MLX_INVALID_INPUT,
                "field 'attn_layer_indices' has a layer that the model does not have");
  check_refused("jamba", "\"attn_layer_offset\":4", MLX_INVALID_INPUT,
                "field 'attn_layer_offset' is 4, but must be less than attn_layer_period, 4");
  check_refused("jamba", "\"mamba_dt_rank\":4", MLX_INVALID_INPUT, "has shape [40, 64]; expected [36, 64]");
  check_refused("mamba2", "\"num_heads\":4", MLX_INVALID_INPUT,
                "field 'head_dim' is wrong: 4 heads cannot have 64 numbers together");
  check_refused("nemotron_h", "\"layers_block_type\":[\"mamba\",\"conv\"]", MLX_UNSUPPORTED,
                "field 'layers_block_type' has 'conv', an unsupported layer type");
  check_refused("nemotron_h", "\"num_hidden_layers\":4", MLX_INVALID_INPUT,
                "field 'layers_block_type' must have one entry for each of the 4 layers");
  check_refused("nemotron_h-experts", "\"n_group\":2", MLX_UNSUPPORTED,
                "field 'n_group' is 2; groups of experts are not supported");
  check_refused("nemotron_h-experts", "\"num_experts_per_tok\":7", MLX_INVALID_INPUT,
                "field 'num_experts_per_tok' must be from 1 to the number of experts, 6");
  check_refused(
      "nemotron_h-experts", "\"moe_latent_size\":32", MLX_INVALID_INPUT,
      "tensor 'backbone.layers.1.mixer.experts.0.up_proj.weight' has shape [16, 16]; expected [16, 32]");
  check_refused("internlm3", "\"rope_scaling\":{\"rope_type\":\"magic\"}", MLX_UNSUPPORTED,
                "field 'rope_scaling.rope_type' is 'magic'");
  check_refused("internlm3", "\"qkv_bias\":false", MLX_UNSUPPORTED,
                "_proj.bias' is not part of the internlm3 architecture");
  check_refused("minicpm", "\"sparse_config\":{\"topk\":64}", MLX_UNSUPPORTED,
                "field 'sparse_config' is given; sparse attention is not supported");
  check_refused("minicpm", "\"num_experts\":8", MLX_UNSUPPORTED,
                "field 'num_experts' is 8; experts are not supported");
  check_refused("minicpm", "\"pretraining_tp\":2", MLX_UNSUPPORTED,
                "field 'pretraining_tp' is 2; only 1 is supported");
  check_refused("minicpm", "\"hidden_act\":\"fatrelu\"", MLX_UNSUPPORTED, "field 'hidden_act' is 'fatrelu'");
  check_refused("minicpm", "\"dim_model_base\":0", MLX_INVALID_INPUT,
                "field 'dim_model_base' must be greater than 0");
  check_refused(
      "minicpm-long",
      "\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2.0,\"original_max_position_embeddings\":128,"
      "\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,1]}",
      MLX_UNSUPPORTED, "field 'rope_scaling.factor' is given");
  check_refused("minicpm-long", "\"max_position_embeddings\":64", MLX_UNSUPPORTED,
                "field 'rope_scaling.original_max_position_embeddings' means");
  check_refused("mimo", "\"attention_bias\":false", MLX_UNSUPPORTED,
                "field 'attention_bias' is false, which is not supported");
}

// A model as the compiler sees it: the network as MLIR text, with every number of the config, and the
// weights.
typedef struct reading {
  char *network, *weights;
  size_t network_length, weights_length;
} reading_t;

static reading_t read_model(const char *path) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", archive[64];
  reading_t r;
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  CHECK_OK(mlx_model_open(path, &model));
  mlx_module_options_initialize(256, &options);
  CHECK_OK(mlx_model_build_graph(model, options.context, &graph));
  CHECK_OK(mlx_module_emit(model, graph, &options, &r.network, &r.network_length));
  mlx_graph_free(graph);
  CHECK(mkdtemp(folder));
  snprintf(archive, sizeof archive, "%s/w.irpa", folder);
  CHECK_OK(mlx_weights_write(model, (mlx_storage_t){.dtype = MLX_F32}, archive, NULL));
  CHECK_OK(mlx_read_file(archive, 1 << 24, &r.weights, &r.weights_length));
  CHECK_OK(mlx_remove_tree(folder));
  mlx_model_close(model);
  return r;
}

static void check_same_weights(const char *name, const reading_t *hf, const reading_t *gguf) {
  CHECK_INT(hf->weights_length, gguf->weights_length);
  for (size_t at = 0; at < hf->weights_length; at += 4) {
    uint32_t a, b;
    memcpy(&a, hf->weights + at, 4);
    memcpy(&b, gguf->weights + at, 4);
    if (a == 0x80000000 && !b) continue;  // MXFP4 in GGUF has no negative zero
    if (a != b) CHECK_FAIL("%s: the weights differ at byte %zu", name, at);
  }
}

// tests/parity/make_gguf.py writes the files as llama.cpp's converter does.
TEST(a_gguf_file_equals_the_directory_it_was_converted_from) {
  static const char *const names[] = {"granitemoe", "gpt_oss-mxfp4", "minicpm", "internlm2", "baichuan"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    reading_t readings[2];
    for (int k = 0; k < 2; ++k) {
      char path[512];
      snprintf(path, sizeof path, FIXTURES "%s%s", names[i], k ? ".gguf" : "");
      readings[k] = read_model(path);
    }
    CHECK_INT(readings[0].network_length, readings[1].network_length);
    if (strcmp(readings[0].network, readings[1].network)) CHECK_FAIL("%s: the network differs", names[i]);
    check_same_weights(names[i], &readings[0], &readings[1]);
    for (int k = 0; k < 2; ++k) {
      mlx_free(readings[k].network);
      mlx_free(readings[k].weights);
    }
  }
}

TEST_MAIN(CASE(heads_of_gemma4_layers_without_a_window_have_two_forms), CASE(every_golden_has_its_fixture),
          CASE(a_gguf_file_equals_the_directory_it_was_converted_from),
          CASE(unsupported_config_values_are_refused_by_field),
          CASE(an_infinite_limit_may_be_written_as_python_writes_it),
          CASE(every_architecture_matches_hf_token_for_token),
          CASE(every_architecture_at_the_sizes_of_the_gpu_kernels_matches_hf_token_for_token))
