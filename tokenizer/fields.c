// Each reader checks the type of its field, and reports "NAME: field 'PATH' ..." if it is wrong.
#include "tokenizer/fields.h"

#include <stdarg.h>
#include <stdio.h>

#include "unicode/utf8.h"

mlx_status_t mlx_tokenizer_field_error(const mlx_json_t *json, mlx_code_t code, const char *path,
                                       const char *fmt, ...) {
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
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path,
                                   value ? "must be an %s" : "is missing; it must be an %s",
                                   array ? "array" : "object");
}

mlx_status_t mlx_tokenizer_field_bool(const mlx_json_t *json, const char *path, yyjson_val *object,
                                      const char *key, bool fallback, bool *out) {
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = value ? yyjson_is_true(value) : fallback;
  if (!value || yyjson_is_bool(value)) return NULL;
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key),
                                   "must be true or false");
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
  if (!yyjson_is_uint(value))
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, full, "must be a token id");
  return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, full, "is %llu; ids up to %d are supported",
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
                   : mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, "type"),
                                               "must be a string");
}

mlx_status_t mlx_field_refuse_type(const mlx_json_t *json, const char *path, const char *type,
                                   const char *supported) {
  char full[MLX_PATH_SIZE];
  mlx_field_join(full, path, "type");
  return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, full, "is '%.60s'; only %s supported", type,
                                   supported);
}

mlx_status_t mlx_field_string(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                              const char **out, size_t *out_length) {
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = yyjson_get_str(value);
  *out_length = yyjson_get_len(value);
  return *out ? NULL
              : mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key),
                                          "must be a string");
}

mlx_status_t mlx_field_character(const mlx_json_t *json, const char *path, yyjson_val *object,
                                 const char *key, uint32_t *out) {
  char full[MLX_PATH_SIZE];
  const char *text;
  size_t length, character = 0;
  MLX_TRY(mlx_field_string(json, path, object, key, &text, &length));
  if (length) *out = mlx_character_at(text, &character);  // the JSON parser accepts only UTF-8
  if (length && length == character && *out) return NULL;
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key),
                                   "must be one character");
}

mlx_status_t mlx_field_size(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                            size_t *out) {
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = (size_t)yyjson_get_uint(value);
  if (yyjson_is_uint(value)) return NULL;
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, key),
                                   "must be a whole number");
}
