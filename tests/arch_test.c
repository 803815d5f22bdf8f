// Every architecture, on the CPU in f32, against Hugging Face: the same tokens, and the logits within one in ten thousand.
//
// A fixture is a folder in tests/fixtures with goldens of the same name that tests/parity/make_fixtures.py made, or numpy_models.py for
// those that Hugging Face has no class of: what is found there is run. MLXCEL_ARCH=NAME runs one. The fixtures have no
// tokenizer: the tests feed ids, and lend them another model's.
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "compiler/compile.h"
#include "compiler/graph.h"
#include "compiler/weights.h"
#include "models/model.h"
#include "runtime/mlxcel.h"
#include "tests/golden.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/"
#define TOKENIZER FIXTURES "tiny-llama/tokenizer.json"
#define VOCAB 320
#define STEPS 48

static mlx_engine_t *open_compiled(const char *model) {
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_compile(model, &(mlx_compile_options_t){.context = 256}, cache, &compiled));
  const mlx_model_parts_t parts = {.name = model,
                                   .manifest_name = model,
                                   .tokenizer_name = TOKENIZER,
                                   .manifest = compiled.manifest,
                                   .manifest_length = compiled.manifest_length,
                                   .tokenizer = compiled.tokenizer,
                                   .tokenizer_length = compiled.tokenizer_length,
                                   .vmfb_path = compiled.vmfb_path,
                                   .weights_path = compiled.weights_path};
  CHECK_OK(mlx_engine_open(&parts, &options, &engine));
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return engine;
}

static void link_file(const char *name, const char *folder, const char *file) {
  char from[512], to[512];
  snprintf(from, sizeof from, FIXTURES "%s/%s", name, file);
  snprintf(to, sizeof to, "%s/%s", folder, file);
  CHECK(!symlink(from, to));
}

// The fixture beside a tokenizer, as links in a folder of their own.
static void link_model(const char *name, const char *folder) {
  static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
  char to[512];
  for (int i = 0; i < 3; ++i) link_file(name, folder, files[i]);
  snprintf(to, sizeof to, "%s/tokenizer.json", folder);
  CHECK(!symlink(TOKENIZER, to));
}

// How far the logits are from the golden ones, as a share of the largest.
static double logits_error(mlx_session_t *session, yyjson_val *expected) {
  float logits[VOCAB];
  double worst = 0, largest = 0;
  CHECK_OK(mlx_session_logits(session, logits, VOCAB));
  for (size_t i = 0; i < VOCAB; ++i) {
    const double want = yyjson_get_num(yyjson_arr_get(expected, i));
    worst = fmax(worst, fabs(logits[i] - want));
    largest = fmax(largest, fabs(want));
  }
  return worst / largest;
}

static double check_prompt(mlx_engine_t *engine, const char *name, size_t number, yyjson_val *result) {
  int32_t ids[256], expected[STEPS], chosen[STEPS];
  const size_t length = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, 256);
  CHECK_INT(golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, STEPS), STEPS);
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, length, chosen));
  CHECK_OK(mlx_session_steps(session, chosen + 1, STEPS - 1));
  for (int i = 0; i < STEPS; ++i) {
    if (chosen[i] != expected[i]) CHECK_FAIL("%s: prompt %zu: token %d is %d, expected %d", name, number, i, chosen[i], expected[i]);
  }
  const double error = logits_error(session, yyjson_obj_get(result, "last_logits"));
  if (!(error <= 1e-4)) CHECK_FAIL("%s: prompt %zu: logits differ by %g of the largest", name, number, error);
  mlx_session_free(session);
  return error;
}

static mlx_status_t check_fixture(void *user, const char *name) {
  size_t *checked = user, number, count;
  const char *only = getenv("MLXCEL_ARCH");
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512];
  yyjson_val *result;
  double worst = 0;
  snprintf(path, sizeof path, GOLDENS "%s.json", name);
  if (!mlx_is_file(path) || (only && strcmp(only, name))) return NULL;
  golden_t golden = golden_open(path);
  if (yyjson_obj_get(yyjson_arr_get(golden.results, 0), "last_logits")) {
    CHECK(mkdtemp(folder));
    link_model(name, folder);
    mlx_engine_t *engine = open_compiled(folder);
    yyjson_arr_foreach(golden.results, number, count, result) { worst = fmax(worst, check_prompt(engine, name, number, result)); }
    mlx_engine_close(engine);
    CHECK_OK(mlx_remove_tree(folder));
    fprintf(stderr, "  %-16s %zu x %d tokens equal, logits within %.1e\n", name, yyjson_arr_size(golden.results), STEPS, worst);
    ++*checked;
  }
  golden_close(&golden);
  return NULL;
}

TEST(every_architecture_matches_hf_token_for_token) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(FIXTURES, check_fixture, &checked));
  CHECK(checked > 0);
}

// |field| takes the place of that of the fixture's config.
static void check_refused(const char *name, const char *field, mlx_code_t code, const char *message) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512], key[64], *config, *old;
  size_t length;
  mlx_text_t text = {0};
  mlx_model_t *model;
  snprintf(path, sizeof path, FIXTURES "%s/config.json", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &config, &length));
  snprintf(key, sizeof key, "%.*s", (int)strcspn(field, ":"), field);
  if ((old = strstr(config, key))) old[1] = '-';  // a name that nothing asks for
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

TEST(what_would_change_the_maths_is_refused_by_its_name) {
  check_refused("granitemoe", "\"logits_scaling\":0", MLX_INVALID_INPUT, "field 'logits_scaling' must not be 0");
  check_refused("granitemoe", "\"num_local_experts\":5", MLX_INVALID_INPUT, "has shape [6, 32]; the model's fields say [5, 32]");
  check_refused("granitemoe", "\"intermediate_size\":48", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.block_sparse_moe.input_linear.weight' has shape [6, 48, 32]; the model's fields say [6, 96, 32]");
  check_refused("gpt_oss", "\"rope_parameters\":null", MLX_UNSUPPORTED, "field 'rope_parameters' is missing");
  check_refused("gpt_oss", "\"swiglu_limit\":0", MLX_INVALID_INPUT, "field 'swiglu_limit' must be greater than 0");
  check_refused("gpt_oss", "\"layer_types\":[\"chunked_attention\",\"full_attention\"]", MLX_UNSUPPORTED, "field 'layer_types' has 'chunked_attention'");
  check_refused("gpt_oss", "\"intermediate_size\":12", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.experts.gate_up_proj' has shape [6, 32, 48]; the model's fields say [6, 32, 24]");
  check_refused("gpt_oss-mxfp4", "\"quantization_config\":null", MLX_INVALID_INPUT, "tensor 'model.layers.0.mlp.experts.gate_up_proj' is missing");
  check_refused("gpt_oss-mxfp4", "\"num_local_experts\":3", MLX_INVALID_INPUT, "tensor 'model.layers.0.mlp.router.weight' has shape [6, 32]");
  check_refused("gpt_oss-mxfp4", "\"intermediate_size\":64", MLX_INVALID_INPUT,
                "tensor 'model.layers.0.mlp.experts.gate_up_proj_blocks' has shape [6, 64, 1, 16]; the model's fields say [6, 128, 1, 16]");
  check_refused("internlm3", "\"rope_scaling\":{\"rope_type\":\"magic\"}", MLX_UNSUPPORTED, "field 'rope_scaling.rope_type' is 'magic'");
  check_refused("internlm3", "\"qkv_bias\":false", MLX_UNSUPPORTED, "_proj.bias' is not part of the internlm3 architecture");
  check_refused("minicpm", "\"sparse_config\":{\"topk\":64}", MLX_UNSUPPORTED, "field 'sparse_config' is given; sparse attention is not supported");
  check_refused("minicpm", "\"num_experts\":8", MLX_UNSUPPORTED, "field 'num_experts' is 8; experts are not supported");
  check_refused("minicpm", "\"pretraining_tp\":2", MLX_UNSUPPORTED, "field 'pretraining_tp' is 2; only 1 is supported");
  check_refused("minicpm", "\"hidden_act\":\"fatrelu\"", MLX_UNSUPPORTED, "field 'hidden_act' is 'fatrelu'");
  check_refused("minicpm", "\"dim_model_base\":0", MLX_INVALID_INPUT, "field 'dim_model_base' must be greater than 0");
  check_refused("minicpm-long", "\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2.0,\"original_max_position_embeddings\":128,"
                "\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,1]}", MLX_UNSUPPORTED, "field 'rope_scaling.factor' is given");
  check_refused("minicpm-long", "\"max_position_embeddings\":64", MLX_UNSUPPORTED, "field 'rope_scaling.original_max_position_embeddings' means");
  check_refused("mimo", "\"attention_bias\":false", MLX_UNSUPPORTED, "field 'attention_bias' is false, which is not supported");
}

// What a model is read as: the network, as text that has every number the config decides, and the weights.
typedef struct reading {
  char *network, *weights;
  size_t network_length, weights_length;
} reading_t;

static reading_t read_model(const char *path) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", archive[64];
  reading_t r;
  mlx_model_t *model;
  mlx_graph_options_t options;
  CHECK_OK(mlx_model_open(path, &model));
  mlx_graph_options_initialize(256, &options);
  CHECK_OK(mlx_graph_emit(model, &options, &r.network, &r.network_length));
  CHECK(mkdtemp(folder));
  snprintf(archive, sizeof archive, "%s/w.irpa", folder);
  CHECK_OK(mlx_weights_write(model, MLX_F32, archive, NULL));
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
    if (a == 0x80000000 && !b) continue;  // ggml's MXFP4 has one zero
    if (a != b) CHECK_FAIL("%s: the weights differ at byte %zu", name, at);
  }
}

// tests/parity/make_gguf.py wrote the files as llama.cpp's converter does.
TEST(a_gguf_file_is_read_as_the_directory_it_was_made_from) {
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

TEST_MAIN(CASE(a_gguf_file_is_read_as_the_directory_it_was_made_from), CASE(what_would_change_the_maths_is_refused_by_its_name), CASE(every_architecture_matches_hf_token_for_token))
