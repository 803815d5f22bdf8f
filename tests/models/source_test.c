// mlx_source_*: GGUF files and Hugging Face directories, opened from a temporary folder.
#include <unistd.h>

#include "base/file.h"
#include "models/model.h"
#include "tests/support/check.h"
#include "tests/support/import_files.h"

#define CONFIG                                                                                             \
  "{\"model_type\":\"llama\",\"hidden_size\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"eos_" \
  "token_id\":7,"                                                                                          \
  "\"rope_parameters\":{\"rope_theta\":10000},\"rope_scaling\":null,\"huge\":18446744073709551615,"        \
  "\"architectures\":[\"L\",\"M\"]}"
#define A "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
#define BC                                                                                                  \
  "{\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},\"c\":{\"dtype\":\"F16\",\"shape\":[1]," \
  "\"data_offsets\":[4,6]}}"

static char folder[64];

static void begin(void) {
  strcpy(folder, "/tmp/mlx_source_test_XXXXXX");
  CHECK(mkdtemp(folder));
}
static void end(void) { CHECK_OK(mlx_remove_tree(folder)); }

static const char *path_of(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}
static void write_text(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(path_of(name), text, strlen(text)));
}
static void write_safetensors(const char *name, const char *header, size_t data_size) {
  bytes_t bytes = {0};
  put_safetensors(&bytes, header, data_size);
  CHECK_OK(mlx_write_file(path_of(name), bytes.data, bytes.length));
  mlx_text_clear(&bytes);
}
static mlx_source_t *open_folder(void) {
  mlx_source_t *source;
  CHECK_OK(mlx_source_open(folder, &source));
  return source;
}
static void check_refused(mlx_code_t code, const char *part) {
  mlx_source_t *source;
  CHECK_ERROR(mlx_source_open(folder, &source), code, part);
  CHECK(!source);
}

TEST(a_gguf_file_is_opened) {
  begin();
  bytes_t bytes = {0};
  put_sample_gguf(&bytes);
  CHECK_OK(mlx_write_file(path_of("m.gguf"), bytes.data, bytes.length));
  mlx_text_clear(&bytes);
  mlx_source_t *source;
  CHECK_OK(mlx_source_open(path_of("m.gguf"), &source));
  CHECK(mlx_source_is_gguf(source));
  CHECK_TEXT(mlx_source_path(source), path_of("m.gguf"));
  CHECK_TEXT(mlx_source_architecture(source), "llama");
  CHECK_TEXT(mlx_source_file(source, 0), path_of("m.gguf"));
  CHECK(!mlx_source_file(source, 1));
  int64_t layers;
  bool found;
  CHECK_OK(mlx_source_int(source, "num_hidden_layers", ".block_count", 1, 1000, &layers, NULL));
  CHECK_INT(layers, 30);
  CHECK_OK(mlx_source_int(source, "only_in_hf", NULL, 1, 1000, &layers, &found));
  CHECK(!found);
  CHECK_ERROR(mlx_source_int(source, "only_in_hf", NULL, 1, 1000, &layers, NULL), MLX_INTERNAL,
              "field 'only_in_hf' has no name in this format");
  CHECK_INT(mlx_source_array_length(source, NULL, "tokenizer.ggml.tokens"), 7);
  CHECK_INT(mlx_source_array_length(source, NULL, ".block_count"), 0);
  CHECK(mlx_source_has(source, NULL, ".list") && !mlx_source_has(source, "hidden_size", NULL));
  CHECK(mlx_source_tensor(source, "x", "b.weight") == mlx_source_tensor_at(source, 1));
  CHECK(!mlx_source_tensor_at(source, 2));
  CHECK_ERROR(mlx_source_field_error(source, "a", ".b", MLX_UNSUPPORTED, "is %d", 3), MLX_UNSUPPORTED,
              "m.gguf: field 'llama.b' is 3");
  char *json;
  size_t length;
  int32_t ids[4];
  CHECK_OK(mlx_source_tokenizer_json(source, &json, &length));
  CHECK_INT(strlen(json), length);
  mlx_free(json);
  CHECK_OK(mlx_source_eos_ids(source, ids, 4, &length));
  CHECK(length == 1 && ids[0] == 0);
  mlx_source_close(source);
  end();
}

TEST(a_hugging_face_directory_is_opened) {
  begin();
  write_text("config.json", CONFIG);
  write_text("tokenizer.json", "{\"version\":\"1.0\"}");
  write_safetensors("model.safetensors", A, 8);
  mlx_source_t *source = open_folder();
  int64_t integer = 0;
  double number = 0;
  bool truth = false;
  const char *text;
  CHECK(!mlx_source_is_gguf(source));
  CHECK_TEXT(mlx_source_architecture(source), "llama");
  CHECK_OK(mlx_source_int(source, "hidden_size", ".x", 1, 100, &integer, NULL));
  CHECK_INT(integer, 64);
  CHECK_OK(mlx_source_number(source, "rope_parameters.rope_theta", NULL, &number, NULL));
  CHECK(number == 10000.0);
  CHECK_OK(mlx_source_number(source, "rms_norm_eps", NULL, &number, NULL));
  CHECK(number == 1e-5);
  CHECK_OK(mlx_source_bool(source, "tie_word_embeddings", NULL, &truth, NULL));
  CHECK(truth);
  CHECK_OK(mlx_source_string(source, "model_type", NULL, &text, NULL));
  CHECK_TEXT(text, "llama");
  CHECK_INT(mlx_source_array_length(source, "architectures", NULL), 2);
  CHECK(mlx_source_has(source, "rope_parameters.rope_theta", NULL) &&
        !mlx_source_has(source, "rope_scaling", NULL));
  CHECK_INT(mlx_source_tensor_count(source), 1);
  CHECK_INT(mlx_source_tensor(source, "a", NULL)->size, 8);
  char *json;
  size_t length;
  CHECK_OK(mlx_source_tokenizer_json(source, &json, &length));
  CHECK_TEXT(json, "{\"version\":\"1.0\"}");
  mlx_free(json);
  CHECK_TEXT(mlx_source_file(source, 0), path_of("config.json"));
  CHECK_TEXT(mlx_source_file(source, 1), path_of("tokenizer.json"));
  CHECK_TEXT(mlx_source_file(source, 2), path_of("model.safetensors"));
  CHECK(!mlx_source_file(source, 3));
  mlx_source_close(source);
  end();
}

TEST(wrong_types_name_the_field) {
  begin();
  write_text("config.json", CONFIG);
  write_safetensors("model.safetensors", A, 8);
  mlx_source_t *source = open_folder();
  int64_t integer = 5;
  double number;
  bool truth, found;
  const char *text;
  char *json;
  size_t length;
  CHECK_ERROR(mlx_source_int(source, "rms_norm_eps", NULL, 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "config.json: field 'rms_norm_eps' must be an integer");
  CHECK_ERROR(mlx_source_int(source, "hidden_size", NULL, 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "field 'hidden_size' must be between 0 and 9");
  CHECK_ERROR(mlx_source_int(source, "huge", NULL, INT64_MIN, INT64_MAX, &integer, NULL), MLX_INVALID_INPUT,
              "field 'huge' must be between");
  CHECK_ERROR(mlx_source_number(source, "model_type", NULL, &number, NULL), MLX_INVALID_INPUT,
              "field 'model_type' must be a number");
  CHECK_ERROR(mlx_source_bool(source, "hidden_size", NULL, &truth, NULL), MLX_INVALID_INPUT,
              "field 'hidden_size' must be true or false");
  CHECK_ERROR(mlx_source_string(source, "hidden_size", NULL, &text, NULL), MLX_INVALID_INPUT,
              "field 'hidden_size' must be a string");
  CHECK_ERROR(mlx_source_int(source, "hidden_size.more", NULL, 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "field 'hidden_size.more' is missing");
  CHECK_ERROR(mlx_source_int(source, "rope_scaling", NULL, 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "field 'rope_scaling' is missing");
  CHECK_OK(mlx_source_int(source, "nothing", NULL, 0, 9, &integer, &found));
  CHECK(!found && integer == 5);
  CHECK_ERROR(mlx_source_field_error(source, "a.b", ".c", MLX_UNSUPPORTED, "is %d", 3), MLX_UNSUPPORTED,
              "config.json: field 'a.b' is 3");
  CHECK_ERROR(mlx_source_tokenizer_json(source, &json, &length), MLX_NOT_FOUND,
              "has neither tokenizer.json nor vocab.txt");
  mlx_source_close(source);
  end();
}

TEST(shards_are_joined_by_their_index) {
  begin();
  write_text("config.json", CONFIG);
  write_text("model.safetensors.index.json",
             "{\"metadata\":{},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
  write_safetensors("one.safetensors", A, 8);
  write_safetensors("two.safetensors", BC, 6);
  mlx_source_t *source = open_folder();
  CHECK_INT(mlx_source_tensor_count(source), 2);  // c is in a shard but not in the map
  CHECK_TEXT(mlx_source_tensor_at(source, 0)->name, "a");
  CHECK_INT(mlx_source_tensor(source, "b", NULL)->size, 4);
  CHECK(!mlx_source_tensor(source, "c", NULL));
  CHECK_TEXT(mlx_source_file(source, 1), path_of("model.safetensors.index.json"));
  CHECK_TEXT(mlx_source_file(source, 2), path_of("two.safetensors"));
  CHECK_TEXT(mlx_source_file(source, 3), path_of("one.safetensors"));
  CHECK(!mlx_source_file(source, 4));
  mlx_source_close(source);
  end();
}

TEST(a_wrong_index_is_refused) {
  static const char *const escapes[] = {
      "../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "", "a\\\\b", "x\\u0000y"};
  begin();
  write_text("config.json", CONFIG);
  write_safetensors("one.safetensors", A, 8);
  for (size_t i = 0; i < sizeof escapes / sizeof *escapes; ++i) {
    char index[200];
    snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", escapes[i]);
    write_text("model.safetensors.index.json", index);
    check_refused(MLX_INVALID_INPUT,
                  "index.json: field 'weight_map': tensor 'a' must name a file in the same folder");
  }
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":7}}");
  check_refused(MLX_INVALID_INPUT, "tensor 'a' must name a file in the same folder");
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"z\":\"one.safetensors\"}}");
  check_refused(MLX_INVALID_INPUT,
                "index.json: tensor 'z' is not in 'one.safetensors', where the index lists it");
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
  check_refused(MLX_NOT_FOUND, "gone.safetensors");
  write_text("model.safetensors.index.json", "{\"weight_map\":{}}");
  check_refused(MLX_INVALID_INPUT, "field 'weight_map' must be an object with tensors");
  write_text("model.safetensors.index.json", "{}");
  check_refused(MLX_INVALID_INPUT, "field 'weight_map' is missing");
  end();
}

static void check_eos(const char *config_eos, const char *generation, const char *expected) {
  char text[200], *cursor = text;
  int32_t ids[3];
  size_t count;
  snprintf(text, sizeof text, "{\"model_type\":\"llama\",\"eos_token_id\":%s}", config_eos);
  write_text("config.json", text);
  if (generation) write_text("generation_config.json", generation);
  mlx_source_t *source = open_folder();
  mlx_status_t status = mlx_source_eos_ids(source, ids, 3, &count);
  text[0] = 0;
  if (status) snprintf(text, sizeof text, "%s", strstr(mlx_status_message(status), "field"));
  for (size_t i = 0; !status && i < count; ++i) cursor += sprintf(cursor, "%d ", ids[i]);
  mlx_status_free(status);
  mlx_source_close(source);
  CHECK_TEXT(text, expected);
}

TEST(eos_ids_come_from_generation_config_before_config) {
  begin();
  write_safetensors("model.safetensors", A, 8);
  check_eos("7", NULL, "7 ");
  check_eos("[7, 8, 7]", NULL, "7 8 ");
  check_eos("null", NULL, "");
  check_eos("\"x\"", NULL, "field 'eos_token_id' must be an integer");
  check_eos("-1", NULL, "field 'eos_token_id' must be between 0 and 2147483647");
  check_eos("[1,2,3,4]", NULL, "field 'eos_token_id' has too many ids");
  check_eos("7", "{\"eos_token_id\":[9,5]}", "9 5 ");
  check_eos("7", "{\"eos_token_id\":null}", "7 ");
  check_eos("7", "{}", "7 ");
  end();
}

TEST(paths_that_are_not_models_are_refused) {
  begin();
  mlx_source_t *source;
  CHECK_ERROR(mlx_source_open(path_of("nothing"), &source), MLX_NOT_FOUND, path_of("nothing"));
  check_refused(MLX_NOT_FOUND, "has no config.json: is it a Hugging Face model directory?");
  write_text("config.json", "{}");
  check_refused(MLX_INVALID_INPUT, "config.json: field 'model_type' is missing");
  write_text("config.json", "{\"model_type\":\"llama\"");
  check_refused(MLX_INVALID_INPUT, "config.json: not valid JSON");
  write_text("config.json", CONFIG);
  check_refused(MLX_NOT_FOUND, "has neither model.safetensors nor model.safetensors.index.json");
  write_text("pytorch_model.bin", "");
  mlx_status_t status = mlx_source_open(folder, &source);
  CHECK_CONTAINS(mlx_status_hint_text(status), "convert them to safetensors");
  mlx_status_free(status);
  write_text("generation_config.json", "[]");
  check_refused(MLX_INVALID_INPUT, "generation_config.json: the JSON value must be an object");
  CHECK_ERROR(mlx_source_open(path_of("pytorch_model.bin"), &source), MLX_INVALID_INPUT,
              "is not a model: expected a GGUF file or a Hugging Face model directory");
  end();
}

TEST(every_allocation_failure_is_reported) {
  begin();
  write_text("config.json", CONFIG);
  write_text("generation_config.json", "{}");
  write_text("tokenizer.json", "{}");
  write_text("model.safetensors.index.json",
             "{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
  write_safetensors("one.safetensors", A, 8);
  write_safetensors("two.safetensors", BC, 6);
  mlx_status_t status;
  size_t nth = 0;
  mlx_memory_set_calls(&counting_calls);
  do {
    mlx_source_t *source;
    allocations_left = ++nth;
    status = mlx_source_open(folder, &source);
    CHECK(!allocations_left == (mlx_status_code(status) == MLX_OUT_OF_MEMORY));
    allocations_left = 0;
    mlx_source_close(source);
    mlx_status_free(status);
  } while (status);
  mlx_memory_set_calls(NULL);
  CHECK(nth > 20);
  end();
}

TEST_MAIN(CASE(a_gguf_file_is_opened), CASE(a_hugging_face_directory_is_opened),
          CASE(wrong_types_name_the_field), CASE(shards_are_joined_by_their_index),
          CASE(a_wrong_index_is_refused), CASE(eos_ids_come_from_generation_config_before_config),
          CASE(paths_that_are_not_models_are_refused), CASE(every_allocation_failure_is_reported))
