// Multimodal Hugging Face directories open as their text model. arch_test.c compares the tokens of the
// fixtures gemma3-mm, gemma4-mm, qwen2_5_vl, qwen3_vl, qwen3_5-mm, qwen3_5_moe-mm, mistral3, llava,
// muse_glimmer-mm and smolvlm with Hugging Face.
#include <unistd.h>

#include "base/json.h"
#include "models/import/hf.h"
#include "models/model.h"
#include "tests/support/command.h"
#include "tests/support/packed_files.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/"

static mlx_json_t read_json(const char *path) {
  char *text;
  size_t length;
  mlx_json_t json;
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  CHECK_OK(mlx_json_parse(path, text, length, &json));
  mlx_free(text);
  return json;
}

TEST(missing_fields_of_text_config_have_the_defaults_of_transformers) {
  mlx_json_t golden = read_json(GOLDENS "text_defaults.json"), ours;
  yyjson_val *types = mlx_json_find(golden.root, "types"), *type, *fields, *key, *value;
  size_t i, j, count, field_count;
  CHECK_INT(yyjson_obj_size(types), 13);
  yyjson_obj_foreach(types, i, count, type, fields) {
    const char *name = yyjson_get_str(type), *text = mlx_hf_text_defaults(name);
    CHECK(text);
    CHECK_OK(mlx_json_parse(name, text, strlen(text), &ours));
    yyjson_obj_foreach(ours.root, j, field_count, key, value) {
      yyjson_val *expected = mlx_json_find(fields, yyjson_get_str(key));
      if (yyjson_is_obj(value)) {  // {"rope_theta": …}
        value = mlx_json_find(value, "rope_theta");
        expected = mlx_json_find(expected, "rope_theta");
      }
      CHECK(value && expected);
      if (yyjson_get_num(value) != yyjson_get_num(expected))
        CHECK_FAIL("%s: %s is %g, expected %g", name, yyjson_get_str(key), yyjson_get_num(value),
                   yyjson_get_num(expected));
    }
    mlx_json_close(&ours);
  }
  mlx_json_close(&golden);
}

// The fields that the published Gemma 3 4B has in its text_config.
TEST(a_short_text_config_is_completed) {
  folder_t f;
  mlx_model_t *model;
  begin(&f);
  write_text(
      &f, "config.json",
      "{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], \"text_config\": {\"hidden_size\": 2560,"
      "\"intermediate_size\": 10240, \"model_type\": \"gemma3_text\", \"num_hidden_layers\": 34,"
      "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024},"
      "\"vision_config\": {\"hidden_size\": 1152}}");
  put(&f, "vision_tower.vision_model.embeddings.patch_embedding.weight", MLX_F16, 4, 4, NULL);
  write_tensors(&f);
  // The config is complete: the first thing missing is a tensor, under the name of a text directory.
  CHECK_ERROR(mlx_model_open(f.path, &model), MLX_INVALID_INPUT,
              "tensor 'model.embed_tokens.weight' is missing");
  end(&f);
}

static mlx_status_t open_fixture(const char *name, mlx_model_t **out_model) {
  char path[256];
  snprintf(path, sizeof path, FIXTURES "%s", name);
  return mlx_model_open(path, out_model);
}

TEST(vision_tensors_are_skipped_and_listed) {
  static const char *const names[] = {"gemma3-mm", "qwen2_5_vl", "qwen3_vl", "qwen3_5-mm", "qwen3_5_moe-mm",
                                      "mistral3",  "llava",      "smolvlm",  "gemma4-mm",  "muse_glimmer-mm"};
  static const char *const archs[] = {"gemma3_text", "qwen2", "qwen3", "qwen3_5_text", "qwen3_5_moe_text",
                                      "mistral",     "llama", "llama", "gemma4_text",  "muse_glimmer_text"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    mlx_model_t *model;
    size_t skipped = 0;
    const char *name;
    CHECK_OK(open_fixture(names[i], &model));
    CHECK(mlx_source_multimodal(model->source));
    CHECK_TEXT(mlx_source_architecture(model->source), archs[i]);
    for (; (name = mlx_source_skipped(model->source, skipped)); ++skipped)
      CHECK(strstr(name, "vis") || strstr(name, "projector") || strstr(name, "connector"));
    CHECK(skipped > 3);
    CHECK_TEXT(model->weights[0].name, "model.embed_tokens.weight");
    mlx_model_close(model);
  }
  mlx_model_t *text;
  CHECK_OK(open_fixture("qwen2", &text));
  CHECK(!mlx_source_multimodal(text->source));
  CHECK(!mlx_source_skipped(text->source, 0));
  mlx_model_close(text);
}

static void check_refused(const char *config, const char *tensor, const char *other, mlx_code_t code,
                          const char *message) {
  folder_t f;
  mlx_source_t *source = NULL;
  begin(&f);
  write_text(&f, "config.json", config);
  put(&f, tensor, MLX_F16, 4, 4, NULL);
  if (other) put(&f, other, MLX_F16, 4, 4, NULL);
  write_tensors(&f);
  CHECK_ERROR(mlx_source_open(f.path, &source), code, message);
  end(&f);
}

TEST(what_is_not_exact_is_refused) {
  check_refused("{\"model_type\": \"mllama\", \"text_config\": {}}", "a", NULL, MLX_UNSUPPORTED,
                "field 'model_type' is 'mllama', whose cross-attention layers are unsupported");
  check_refused("{\"model_type\": \"gemma3\"}", "a", NULL, MLX_INVALID_INPUT,
                "field 'text_config' must be an object");
  check_refused("{\"model_type\": \"qwen2_vl\", \"text_config\": 1}", "a", NULL, MLX_INVALID_INPUT,
                "field 'text_config' must be an object");
  check_refused("{\"model_type\": \"llava\", \"text_config\": {}}", "language_model.model.norm.weight",
                "model.language_model.norm.weight", MLX_INVALID_INPUT,
                "tensor 'model.norm.weight' of the text model is stored under two names");
}

TEST(quantization_overrides_have_the_names_of_the_tensors) {
  folder_t f;
  mlx_source_t *source;
  mlx_packing_t packing;
  begin(&f);
  write_text(
      &f, "config.json",
      "{\"model_type\": \"llava\", \"text_config\": {}, \"quantization\": {\"group_size\": 64, \"bits\": 4, "
      "\"language_model.model.m\": {\"group_size\": 32, \"bits\": 8}, \"vision_tower.m\": false}}");
  put(&f, "language_model.model.m.weight", MLX_U32, 8, 16, NULL);
  put(&f, "language_model.model.m.scales", MLX_BF16, 8, 2, NULL);
  put(&f, "language_model.model.m.biases", MLX_BF16, 8, 2, NULL);
  write_tensors(&f);
  CHECK_OK(mlx_source_open(f.path, &source));
  CHECK_OK(mlx_source_packing(source, "model.m.weight", 0, 8, 64, &packing));
  CHECK_INT(packing.kind, MLX_PACKED_MLX);
  CHECK_INT(packing.bits, 8);
  CHECK_INT(packing.group, 32);
  mlx_source_close(source);
  end(&f);
}

static size_t count_of(const char *text, const char *part) {
  size_t count = 0;
  while ((text = strstr(text, part))) ++count, text += strlen(part);
  return count;
}

TEST(a_note_says_once_that_images_are_not_supported) {
  static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
  folder_t f;
  command_t run;
  begin(&f);
  for (size_t i = 0; i < 3; ++i) {
    char from[256];
    snprintf(from, sizeof from, FIXTURES "llava/%s", files[i]);
    CHECK(!symlink(from, path_in(&f, files[i])));
  }
  CHECK(!symlink(FIXTURES "tiny-llama/tokenizer.json", path_in(&f, "tokenizer.json")));
  RUN(&run, "run", "-m", f.path, "-p", "a", "-n", "1", "--device", "cpu", "-c", "64", "-v");
  CHECK_INT(run.exit_code, 0);
  CHECK_INT(count_of(run.err, "images are not supported: running the text model of mlxcel-packing-"), 1);
  CHECK_INT(count_of(run.err, "skipped tensor: vision_tower."), 23);
  command_free(&run);
  end(&f);
}

TEST_MAIN(CASE(missing_fields_of_text_config_have_the_defaults_of_transformers),
          CASE(a_short_text_config_is_completed), CASE(vision_tensors_are_skipped_and_listed),
          CASE(what_is_not_exact_is_refused), CASE(quantization_overrides_have_the_names_of_the_tensors),
          CASE(a_note_says_once_that_images_are_not_supported))
