// Every architecture on the CPU with default options, as one call of the CPU kernel, against Hugging Face
// fp32: the same tokens, and logits that differ by less than 1e-4 of the largest logit.
//
// Runs all fixtures in tests/fixtures that have goldens, and all in tests/fixtures/wide. MLXCEL_ARCH=NAME
// runs one fixture.
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "compiler/emit.h"
#include "compiler/kernels.h"
#include "compiler/weights.h"
#include "models/model.h"
#include "tests/architectures.h"
#include "tests/compiled.h"
#include "tests/wide_fixtures.h"

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
  CHECK(checked > 0);
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
  CHECK(checked > 0);
}

// Opens the fixture with |field|, a JSON member, in place of the field of that name in its config.
static void check_refused(const char *name, const char *field, mlx_code_t code, const char *message) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512], key[64], *config, *old;
  size_t length;
  mlx_text_t text = {0};
  mlx_model_t *model;
  snprintf(path, sizeof path, FIXTURES "%s/config.json", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &config, &length));
  snprintf(key, sizeof key, "%.*s", (int)strcspn(field, ":"), field);
  if ((old = strstr(config, key))) old[1] = '-';  // renamed, so no reader finds it
  mlx_text_printf(&text, "{%s,%.*s", field, (int)length - 1, config + 1);
  CHECK(mkdtemp(folder));
  link_file(name, folder, "model.safetensors");
  snprintf(path, sizeof path, "%s/config.json", folder);
  CHECK_OK(mlx_write_file(path, text.data, text.length));
  CHECK_ERROR(mlx_model_open(folder, &model), code, message);
  mlx_text_clear(&text);
  mlx_free(config);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(unsupported_config_values_are_refused_by_field) {
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
  static const char *const names[] = {"granitemoe", "gpt_oss-mxfp4", "minicpm"};
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

TEST_MAIN(CASE(a_gguf_file_equals_the_directory_it_was_converted_from),
          CASE(unsupported_config_values_are_refused_by_field),
          CASE(every_architecture_matches_hf_token_for_token),
          CASE(every_architecture_at_the_sizes_of_the_gpu_kernels_matches_hf_token_for_token))
