// Reads the settings of a classifier from config.json, tokenizer_config.json, modules.json,
// sentence_bert_config.json and config_sentence_transformers.json.
#include "models/import/classifier.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/import/hf.h"
#include "models/import/side_file.h"

#define ROW "score.weight"            // of a decoder: Hugging Face's name
#define GGUF_ROW "cls.output.weight"  // that of GGUF, where it may be two rows: of "yes" and of "no"

static mlx_status_t has_class(const mlx_source_t *source, bool *out) {
  const char *name;
  *out = false;
  if (!mlx_source_array_length(source, "architectures", NULL)) return NULL;
  MLX_TRY(mlx_source_string_at(source, "architectures", 0, &name));
  *out = mlx_ends_with(name, "ForSequenceClassification");
  return NULL;
}

// The rows of the last matrix of the class head.
static mlx_status_t count_labels(const mlx_source_t *source, int64_t *out) {
  static const char *const names[] = {"classifier.out_proj.weight", "classifier.weight", ROW};
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
// Decoders

static mlx_status_t read_logit_score(const mlx_json_t *json, mlx_classifier_t *out) {
  const int64_t most = INT32_MAX;
  out->labels = 1;
  out->has_tokens = true;
  out->no = -1;
  MLX_TRY(mlx_json_int(json, json->root, "true_token_id", 0, most, &out->yes));
  if (!mlx_json_find(json->root, "false_token_id")) return NULL;
  return mlx_json_int(json, json->root, "false_token_id", 0, most, &out->no);
}

static mlx_status_t read_score_folder(const mlx_source_t *source, const mlx_json_t *modules,
                                      const char *folder, mlx_classifier_t *out) {
  mlx_side_file_t file;
  if (!mlx_hf_is_module_folder(folder))
    return mlx_json_error(modules, "path", "must be the name of a folder in the model's folder");
  mlx_status_t status = mlx_side_file_read(source, folder, "config.json", &file);
  if (!status && !file.json.root) status = mlx_error(MLX_NOT_FOUND, "%s is missing", file.path);
  if (!status) status = read_logit_score(&file.json, out);
  mlx_side_file_close(&file);
  return status;
}

// The module LogitScore of sentence-transformers.
static mlx_status_t find_logit_score(const mlx_source_t *source, mlx_classifier_t *out) {
  mlx_side_file_t file;
  yyjson_val *module;
  size_t index, count;
  mlx_status_t status = mlx_side_file_read(source, "", "modules.json", &file);
  yyjson_arr_foreach(file.json.root, index, count, module) {
    if (status || strcmp(mlx_hf_module_class(module), "LogitScore")) continue;
    status = read_score_folder(source, &file.json, yyjson_get_str(yyjson_obj_get(module, "path")), out);
  }
  mlx_side_file_close(&file);
  return status;
}

static mlx_status_t read_template_options(const mlx_json_t *json, mlx_classifier_t *out) {
  yyjson_val *options = yyjson_obj_get(mlx_json_find(json->root, "processing_kwargs"), "chat_template");
  yyjson_val *key, *value;
  size_t index, count;
  yyjson_obj_foreach(options, index, count, key, value) {
    if (!yyjson_equals_str(key, "add_generation_prompt") || !yyjson_is_bool(value))
      return mlx_json_error(json, "processing_kwargs",
                            "has an option of the chat template other than add_generation_prompt");
    out->generation_prompt = yyjson_get_bool(value);
  }
  return NULL;
}

static mlx_status_t read_template(const mlx_source_t *source, mlx_classifier_t *out) {
  mlx_side_file_t file;
  mlx_status_t status = mlx_side_file_read(source, "", "sentence_bert_config.json", &file);
  if (!status && file.json.root) status = read_template_options(&file.json, out);
  mlx_side_file_close(&file);
  return status;
}

// llama.cpp's converter writes the rows of "yes" and "no", in this order, for Qwen3-Reranker. The sigmoid of
// their difference is the softmax that llama.cpp computes.
static mlx_status_t read_gguf(const mlx_source_t *source, mlx_classifier_t *out) {
  const mlx_tensor_t *row = mlx_source_tensor(source, NULL, GGUF_ROW);
  int64_t pooling = 0;
  bool found;
  MLX_TRY(mlx_source_int(source, NULL, ".pooling_type", 0, MLX_GGUF_RANK, &pooling, &found));
  if (pooling != MLX_GGUF_RANK && !row) return NULL;
  if (!row || row->rank != 2)
    return mlx_error(MLX_UNSUPPORTED, "%s: tensor '" GGUF_ROW "' is missing: the class head",
                     mlx_source_path(source));
  mlx_source_array_length(source, NULL, ".classifier.output_labels");  // names of the rows
  const char *architecture = mlx_source_architecture(source);
  const bool judges = row->dims[0] == 2 && !strncmp(architecture, "qwen3", 5);
  out->labels = judges ? 1 : row->dims[0];
  out->sigmoid = out->labels == 1;
  return NULL;
}

bool mlx_classifier_is_row(const char *name) { return !strcmp(name, ROW) || !strcmp(name, GGUF_ROW); }

// Row |nth| of a matrix of floats or of GGUF's formats.
static mlx_status_t read_row(const mlx_source_t *source, const mlx_tensor_t *tensor, int64_t nth,
                             int64_t columns, float *out) {
  const mlx_dtype_info_t *info = mlx_dtype_info(tensor->dtype);
  if (tensor->rank != 2 || tensor->dims[1] != columns || nth >= tensor->dims[0])
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' has no row %lld with %lld numbers",
                     mlx_source_path(source), tensor->name, (long long)nth, (long long)columns);
  if (!info->to_f32 || columns % (int64_t)info->block_elements)
    return mlx_error(MLX_UNSUPPORTED, "%s: tensor '%s' has the type %s, which a class head cannot have",
                     mlx_source_path(source), tensor->name, info->name);
  const size_t blocks = (size_t)columns / info->block_elements;
  info->to_f32(tensor->data + (size_t)nth * blocks * info->block_bytes, blocks, out);
  return NULL;
}

// The row of token |id| in the LM head, which may be quantized.
static mlx_status_t read_token_row(const mlx_source_t *source, const mlx_config_t *c, int64_t id,
                                   float *out) {
  const char *name = c->tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
  mlx_packing_t packing;
  if (id >= c->vocab)
    return mlx_error(MLX_INVALID_INPUT, "%s: LogitScore has the token %lld, and the vocabulary %lld",
                     mlx_source_path(source), (long long)id, (long long)c->vocab);
  MLX_TRY(mlx_source_packing(source, name, 0, c->vocab, c->hidden, &packing));
  if (packing.kind != MLX_NOT_PACKED) {
    mlx_packing_dequantize(&packing, id, 1, out);
    return NULL;
  }
  const mlx_tensor_t *tensor = mlx_source_tensor(source, name, NULL);
  if (!tensor)
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is missing: LogitScore needs it",
                     mlx_source_path(source), name);
  return read_row(source, tensor, id, c->hidden, out);
}

// |out| -= the row that |nth| of |tensor|, or of the LM head without a tensor, has.
static mlx_status_t subtract_row(const mlx_source_t *source, const mlx_tensor_t *tensor, int64_t nth,
                                 const mlx_config_t *c, float *out) {
  float *other;
  MLX_TRY(mlx_alloc((size_t)c->hidden, sizeof *other, &other));
  mlx_status_t status =
      tensor ? read_row(source, tensor, nth, c->hidden, other) : read_token_row(source, c, nth, other);
  for (int64_t i = 0; i < c->hidden && !status; ++i) out[i] -= other[i];
  mlx_free(other);
  return status;
}

mlx_status_t mlx_classifier_row(const mlx_source_t *source, const mlx_classifier_t *classifier,
                                const mlx_config_t *c, float *out) {
  const mlx_tensor_t *tensor = mlx_source_tensor(source, ROW, GGUF_ROW);
  if (classifier->has_tokens) {
    MLX_TRY(read_token_row(source, c, classifier->yes, out));
    return classifier->no < 0 ? NULL : subtract_row(source, NULL, classifier->no, c, out);
  }
  if (!tensor)
    return mlx_error(MLX_INVALID_INPUT, "%s: the class head has no tensor", mlx_source_path(source));
  MLX_TRY(read_row(source, tensor, 0, c->hidden, out));
  return tensor->dims[0] == 1 ? NULL : subtract_row(source, tensor, 1, c, out);
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
  if (!status && !out->has_tokens && yyjson_is_str(yyjson_obj_get(file.json.root, "default_prompt_name")))
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
  if (mlx_source_is_gguf(source)) return read_gguf(source, out);
  MLX_TRY(find_logit_score(source, out));
  MLX_TRY(has_class(source, &found));
  if (found && !out->labels) MLX_TRY(count_labels(source, &out->labels));
  if (!out->labels) return NULL;
  out->sigmoid = out->labels == 1;
  MLX_TRY(read_template(source, out));
  MLX_TRY(find_activation(source, out));
  return read_tokenizer_config(source, out);
}
