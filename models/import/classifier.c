// Reads the settings of a classifier from config.json, tokenizer_config.json and
// config_sentence_transformers.json.
#include "models/import/classifier.h"

#include <string.h>

#include "base/text.h"
#include "models/import/side_file.h"

static mlx_status_t is_classifier(const mlx_source_t *source, bool *out) {
  const char *name;
  *out = false;
  if (mlx_source_is_gguf(source) || !mlx_source_array_length(source, "architectures", NULL)) return NULL;
  MLX_TRY(mlx_source_string_at(source, "architectures", 0, &name));
  *out = mlx_ends_with(name, "ForSequenceClassification");
  return NULL;
}

// The rows of the last matrix of the class head.
static mlx_status_t count_labels(const mlx_source_t *source, int64_t *out) {
  static const char *const names[] = {"classifier.out_proj.weight", "classifier.weight"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    const mlx_tensor_t *tensor = mlx_source_tensor(source, names[i], NULL);
    if (!tensor || tensor->rank != 2) continue;
    *out = tensor->dims[0];
    return NULL;
  }
  return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is missing: the class head", mlx_source_path(source),
                   names[1]);
}

// ----------------------------------------------------------------------------------------------------------
// Activation

static mlx_status_t read_activation(const mlx_source_t *source, const char *key, const char *name,
                                    mlx_classifier_t *out) {
  const char *dot = strrchr(name, '.'), *type = dot ? dot + 1 : name;
  out->sigmoid = !strcmp(type, "Sigmoid");
  if (out->sigmoid || !strcmp(type, "Identity")) return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED,
                                "is '%s'; only Sigmoid and Identity are supported", name);
}

// sentence-transformers looks for it in this order.
static mlx_status_t find_activation(const mlx_source_t *source, mlx_classifier_t *out) {
  static const char *const keys[] = {"sentence_transformers.activation_fn",
                                     "sbert_ce_default_activation_function"};
  mlx_side_file_t file;
  bool found = false;
  mlx_status_t status = mlx_side_file_read(source, "", "config_sentence_transformers.json", &file);
  const char *name = status ? NULL : yyjson_get_str(yyjson_obj_get(file.json.root, "activation_fn"));
  if (name) {
    status = read_activation(source, "activation_fn", name, out);
    found = true;
  }
  if (!status && yyjson_is_str(yyjson_obj_get(file.json.root, "default_prompt_name")))
    status = mlx_json_error(&file.json, "default_prompt_name",
                            "is set, and prompts of classifiers are not supported");
  mlx_side_file_close(&file);
  for (size_t i = 0; i < 2 && !status && !found; ++i) {
    if (!mlx_source_has(source, keys[i], NULL)) continue;
    MLX_TRY(mlx_source_string(source, keys[i], NULL, &name, &found));
    status = read_activation(source, keys[i], name, out);
  }
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Tokenizer

static void read_inputs(yyjson_val *inputs, mlx_classifier_t *out) {
  yyjson_val *name;
  size_t index, count;
  if (!yyjson_is_arr(inputs)) return;
  out->typed = false;
  yyjson_arr_foreach(inputs, index, count, name) {
    if (yyjson_equals_str(name, "token_type_ids")) out->typed = true;
  }
}

static mlx_status_t read_tokenizer_config(const mlx_source_t *source, mlx_classifier_t *out) {
  mlx_side_file_t file;
  mlx_status_t status = mlx_side_file_read(source, "", "tokenizer_config.json", &file);
  if (!status && file.json.root) {
    // transformers writes a huge number, even a float, if there is no limit.
    yyjson_val *limit = yyjson_obj_get(file.json.root, "model_max_length");
    const double tokens = yyjson_is_num(limit) ? yyjson_get_num(limit) : 0;
    if (tokens >= 1 && tokens < INT32_MAX) out->max_tokens = (int64_t)tokens;
    read_inputs(yyjson_obj_get(file.json.root, "model_input_names"), out);
    if (yyjson_equals_str(yyjson_obj_get(file.json.root, "truncation_side"), "left"))
      status = mlx_json_error(&file.json, "truncation_side", "is 'left'; only right is supported");
  }
  mlx_side_file_close(&file);
  return status;
}

mlx_status_t mlx_classifier_read(const mlx_source_t *source, mlx_classifier_t *out) {
  bool found;
  *out = (mlx_classifier_t){.typed = true};
  MLX_TRY(is_classifier(source, &found));
  if (!found) return NULL;
  MLX_TRY(count_labels(source, &out->labels));
  out->sigmoid = out->labels == 1;
  MLX_TRY(find_activation(source, out));
  return read_tokenizer_config(source, out);
}
