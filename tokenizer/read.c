// tokenizer.json -> struct mlx_tokenizer: the fields, the order of the parts, and the post-processor.
//
// The file is foreign: every id, string and merge is checked before it is used, and whatever we do not do
// exactly as Hugging Face does is refused by the name of its field. Nothing is guessed or skipped, except
// fields that cannot change an id (trim_offsets, the pair template, type ids).
#include "tokenizer/read.h"

#include <stdio.h>
#include <string.h>

#define MAX_TEMPLATE 256

// ----------------------------------------------------------------------------------------------------------
// Fields, named by their whole path

mlx_status_t mlx_field_error(const mlx_json_t *json, mlx_code_t code, const char *path, const char *fmt,
                             ...) {
  char what[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  return mlx_error(code, "%s: field '%s' %s", json->name, path, what);
}

const char *mlx_field_path(char out[MLX_PATH_SIZE], const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(out, MLX_PATH_SIZE, fmt, args);
  va_end(args);
  return out;
}

const char *mlx_field_join(char out[MLX_PATH_SIZE], const char *path, const char *key) {
  return mlx_field_path(out, "%s.%s", path, key);
}

const char *mlx_field_index(char out[MLX_PATH_SIZE], const char *path, size_t index) {
  return mlx_field_path(out, "%s[%zu]", path, index);
}

mlx_status_t mlx_field_container(const mlx_json_t *json, const char *path, yyjson_val *value, bool array) {
  if (array ? yyjson_is_arr(value) : yyjson_is_obj(value)) return NULL;
  return mlx_field_error(json, MLX_INVALID_INPUT, path,
                         value ? "must be an %s" : "is missing; it must be an %s",
                         array ? "array" : "object");
}

mlx_status_t mlx_field_bool(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                            bool fallback, bool *out) {
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = value ? yyjson_is_true(value) : fallback;
  if (!value || yyjson_is_bool(value)) return NULL;
  return mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key), "must be true or false");
}

mlx_status_t mlx_field_id(const mlx_json_t *json, const char *path, const char *rest, yyjson_val *value,
                          int32_t *out_id) {
  char full[MLX_PATH_SIZE];
  *out_id = -1;
  if (yyjson_is_uint(value) && yyjson_get_uint(value) <= MLX_MAX_ID) {
    *out_id = (int32_t)yyjson_get_uint(value);
    return NULL;
  }
  mlx_field_path(full, "%s%.80s", path, rest);
  if (!yyjson_is_uint(value)) return mlx_field_error(json, MLX_INVALID_INPUT, full, "must be a token id");
  return mlx_field_error(json, MLX_UNSUPPORTED, full, "is %llu; ids up to %d are supported",
                         (unsigned long long)yyjson_get_uint(value), MLX_MAX_ID);
}

mlx_status_t mlx_field_type(const mlx_json_t *json, const char *path, yyjson_val *object,
                            const char **out_type) {
  char full[MLX_PATH_SIZE];
  *out_type = "";
  MLX_TRY(mlx_field_container(json, path, object, false));
  yyjson_val *type = mlx_json_find(object, "type");
  if (!type) return NULL;
  *out_type = yyjson_get_str(type);
  return *out_type ? NULL
                   : mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, "type"),
                                     "must be a string");
}

mlx_status_t mlx_field_refuse_type(const mlx_json_t *json, const char *path, const char *type,
                                   const char *supported) {
  char full[MLX_PATH_SIZE];
  mlx_field_join(full, path, "type");
  return mlx_field_error(json, MLX_UNSUPPORTED, full, "is '%.60s'; only %s supported", type, supported);
}

mlx_status_t mlx_field_string(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                              const char **out, size_t *out_length) {
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = yyjson_get_str(value);
  *out_length = yyjson_get_len(value);
  return *out ? NULL
              : mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key), "must be a string");
}

mlx_status_t mlx_field_character(const mlx_json_t *json, const char *path, yyjson_val *object,
                                 const char *key, uint32_t *out) {
  char full[MLX_PATH_SIZE];
  const char *text;
  size_t length, character = 0;
  MLX_TRY(mlx_field_string(json, path, object, key, &text, &length));
  if (length) *out = mlx_character_at(text, &character);  // the JSON reader took UTF-8 only
  if (length && length == character && *out) return NULL;
  return mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key), "must be one character");
}

mlx_status_t mlx_field_size(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                            size_t *out) {
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = (size_t)yyjson_get_uint(value);
  if (yyjson_is_uint(value)) return NULL;
  return mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key), "must be a whole number");
}

// ----------------------------------------------------------------------------------------------------------
// post_processor

static mlx_status_t add_template_id(const mlx_json_t *json, const char *path, int32_t id,
                                    mlx_tokenizer_t *tokenizer) {
  if (tokenizer->template_count >= MAX_TEMPLATE) {
    return mlx_field_error(json, MLX_UNSUPPORTED, path, "is longer than %d tokens", MAX_TEMPLATE);
  }
  tokenizer->template_ids[tokenizer->template_count++] = id;
  return NULL;
}

static mlx_status_t begin_template(const mlx_json_t *json, const char *path, mlx_tokenizer_t *tokenizer) {
  if (tokenizer->template_ids) return mlx_field_error(json, MLX_UNSUPPORTED, path, "is a second template");
  return mlx_alloc(MAX_TEMPLATE, sizeof *tokenizer->template_ids, &tokenizer->template_ids);
}

static mlx_status_t check_template_id(const mlx_json_t *json, const char *path, int32_t id,
                                      const mlx_tokenizer_t *tokenizer) {
  if ((size_t)id < tokenizer->vocab_size && tokenizer->tokens[id].text) return NULL;
  return mlx_field_error(json, MLX_INVALID_INPUT, path, "has id %d, which no token has", id);
}

// One item of a template: {"SpecialToken": {"id": "<s>"}} or {"Sequence": {"id": "A"}}.
static mlx_status_t read_template_item(const mlx_json_t *json, yyjson_val *special_tokens, yyjson_val *item,
                                       const char *path, mlx_tokenizer_t *tokenizer) {
  char ids_path[MLX_PATH_SIZE];
  size_t index, max;
  yyjson_val *value, *sequence = mlx_json_find(item, "Sequence"),
                     *special = mlx_json_find(item, "SpecialToken");
  const char *name = yyjson_get_str(mlx_json_find(sequence ? sequence : special, "id"));
  if (!name)
    return mlx_field_error(json, MLX_INVALID_INPUT, path, "must be a Sequence or a SpecialToken with an id");
  if (sequence) {
    if (!strcmp(name, "A")) return add_template_id(json, path, MLX_TEMPLATE_TEXT, tokenizer);
    return mlx_field_error(json, MLX_UNSUPPORTED, path, "is sequence '%.60s'; only A is supported", name);
  }
  mlx_field_path(ids_path, "%s (special token '%.60s')", path, name);
  yyjson_val *ids = mlx_json_find(mlx_json_find(special_tokens, name), "ids");
  MLX_TRY(mlx_field_container(json, ids_path, ids, true));
  yyjson_arr_foreach(ids, index, max, value) {
    int32_t id;
    MLX_TRY(mlx_field_id(json, ids_path, "", value, &id));
    MLX_TRY(check_template_id(json, ids_path, id, tokenizer));
    MLX_TRY(add_template_id(json, ids_path, id, tokenizer));
  }
  return NULL;
}

// BERT's and RoBERTa's: cls, the text, sep. Each is ["[CLS]", 101].
static mlx_status_t read_bert(const mlx_json_t *json, yyjson_val *object, const char *path,
                              mlx_tokenizer_t *tokenizer) {
  static const char *const keys[] = {"cls", "sep"};
  char full[MLX_PATH_SIZE];
  MLX_TRY(begin_template(json, path, tokenizer));
  for (size_t i = 0; i < 2; ++i) {
    int32_t id;
    yyjson_val *pair = mlx_json_find(object, keys[i]);
    MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, keys[i]), pair, true));
    MLX_TRY(mlx_field_id(json, full, "[1]", yyjson_arr_get(pair, 1), &id));
    MLX_TRY(check_template_id(json, full, id, tokenizer));
    if (i) MLX_TRY(add_template_id(json, full, MLX_TEMPLATE_TEXT, tokenizer));
    MLX_TRY(add_template_id(json, full, id, tokenizer));
  }
  return NULL;
}

static mlx_status_t read_template(const mlx_json_t *json, yyjson_val *object, const char *path,
                                  mlx_tokenizer_t *tokenizer) {
  char full[MLX_PATH_SIZE], item_path[MLX_PATH_SIZE];
  size_t index, max;
  yyjson_val *item, *single = mlx_json_find(object, "single");
  MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, "single"), single, true));
  MLX_TRY(begin_template(json, path, tokenizer));
  yyjson_arr_foreach(single, index, max, item) {
    MLX_TRY(read_template_item(json, mlx_json_find(object, "special_tokens"), item,
                               mlx_field_index(item_path, full, index), tokenizer));
  }
  return NULL;
}

static mlx_status_t read_post_processor(const mlx_json_t *json, yyjson_val *object, const char *path,
                                        mlx_tokenizer_t *tokenizer) {
  char full[MLX_PATH_SIZE], item[MLX_PATH_SIZE];
  const char *type;
  size_t index, max;
  yyjson_val *child;
  if (!object) return NULL;
  MLX_TRY(mlx_field_type(json, path, object, &type));
  if (!strcmp(type, "ByteLevel")) return NULL;  // moves offsets only
  if (!strcmp(type, "TemplateProcessing")) return read_template(json, object, path, tokenizer);
  if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
    return read_bert(json, object, path, tokenizer);
  if (strcmp(type, "Sequence")) {
    return mlx_field_refuse_type(
        json, path, type,
        "BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing and Sequence are");
  }
  yyjson_val *list = mlx_json_find(object, "processors");
  MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, "processors"), list, true));
  yyjson_arr_foreach(list, index, max, child) {
    MLX_TRY(read_post_processor(json, child, mlx_field_index(item, full, index), tokenizer));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t refuse_unless_null(const mlx_json_t *json, const char *key) {
  if (!mlx_json_find(json->root, key)) return NULL;
  return mlx_field_error(json, MLX_UNSUPPORTED, key, "is set; only null is supported");
}

mlx_status_t mlx_tokenizer_read(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  MLX_TRY(refuse_unless_null(json, "truncation"));
  MLX_TRY(refuse_unless_null(json, "padding"));
  MLX_TRY(mlx_read_kind(json, tokenizer));
  MLX_TRY(mlx_read_steps(json, tokenizer));
  MLX_TRY(mlx_read_model(json, tokenizer));
  return read_post_processor(json, mlx_json_find(json->root, "post_processor"), "post_processor", tokenizer);
}
