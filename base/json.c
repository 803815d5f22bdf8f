// JSON parsing and lookups, on yyjson.
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MAX_DEPTH 64

mlx_status_t mlx_json_error(const mlx_json_t *json, const char *key, const char *what) {
  return mlx_error(MLX_INVALID_INPUT, "%s: field '%s' %s", json->name, key, what);
}

// ----------------------------------------------------------------------------------------------------------
// Parsing

static int compare_keys(const void *a, const void *b) {
  yyjson_val *left = *(yyjson_val *const *)a, *right = *(yyjson_val *const *)b;
  size_t left_length = yyjson_get_len(left), right_length = yyjson_get_len(right);
  int order = memcmp(yyjson_get_str(left), yyjson_get_str(right),
                     left_length < right_length ? left_length : right_length);
  return order ? order : (left_length > right_length) - (left_length < right_length);
}

static mlx_status_t check_unique_keys(const mlx_json_t *json, yyjson_val *object) {
  size_t count = yyjson_obj_size(object), index, max;
  if (count < 2) return NULL;
  yyjson_val **keys, *key, *value;
  MLX_TRY(mlx_alloc(count, sizeof *keys, &keys));
  yyjson_obj_foreach(object, index, max, key, value) { keys[index] = key; }
  qsort(keys, count, sizeof *keys, compare_keys);
  mlx_status_t status = NULL;
  for (size_t i = 1; i < count && !status; ++i) {
    if (!compare_keys(&keys[i - 1], &keys[i]))
      status = mlx_json_error(json, yyjson_get_str(keys[i]), "is given twice");
  }
  mlx_free(keys);
  return status;
}

static mlx_status_t check_tree(const mlx_json_t *json, yyjson_val *value, int depth) {
  size_t index, max;
  yyjson_val *key, *child;
  if (!yyjson_is_ctn(value)) return NULL;
  if (depth > MAX_DEPTH)
    return mlx_error(MLX_INVALID_INPUT, "%s: nested deeper than %d levels", json->name, MAX_DEPTH);
  if (yyjson_is_arr(value)) {
    yyjson_arr_foreach(value, index, max, child) { MLX_TRY(check_tree(json, child, depth + 1)); }
    return NULL;
  }
  MLX_TRY(check_unique_keys(json, value));
  yyjson_obj_foreach(value, index, max, key, child) { MLX_TRY(check_tree(json, child, depth + 1)); }
  return NULL;
}

static mlx_status_t parse(const char *name, const char *bytes, size_t length, bool allow_list,
                          mlx_json_t *out_json) {
  *out_json = (mlx_json_t){.name = name};
  yyjson_read_err error;
  out_json->doc = yyjson_read_opts((char *)(uintptr_t)bytes, length, YYJSON_READ_NOFLAG, NULL, &error);
  if (!out_json->doc) {
    return mlx_error(
        error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION ? MLX_OUT_OF_MEMORY : MLX_INVALID_INPUT,
        "%s: not valid JSON at byte %zu: %s", name, error.pos, error.msg);
  }
  out_json->root = yyjson_doc_get_root(out_json->doc);
  const bool valid = yyjson_is_obj(out_json->root) || (allow_list && yyjson_is_arr(out_json->root));
  mlx_status_t status = valid ? check_tree(out_json, out_json->root, 0)
                              : mlx_error(MLX_INVALID_INPUT, "%s: the JSON value must be %s", name,
                                          allow_list ? "a list or an object" : "an object");
  if (status) mlx_json_close(out_json);
  return status;
}

mlx_status_t mlx_json_parse(const char *name, const char *bytes, size_t length, mlx_json_t *out_json) {
  return parse(name, bytes, length, false, out_json);
}

mlx_status_t mlx_json_parse_any(const char *name, const char *bytes, size_t length, mlx_json_t *out_json) {
  return parse(name, bytes, length, true, out_json);
}

void mlx_json_close(mlx_json_t *json) {
  yyjson_doc_free(json->doc);
  json->doc = NULL;
  json->root = NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Lookups

yyjson_val *mlx_json_find(yyjson_val *object, const char *key) {
  yyjson_val *value = yyjson_obj_get(object, key);
  return yyjson_is_null(value) ? NULL : value;
}

mlx_status_t mlx_json_need(const mlx_json_t *json, yyjson_val *object, const char *key, yyjson_val **out) {
  *out = mlx_json_find(object, key);
  return *out ? NULL : mlx_json_error(json, key, "is missing");
}

mlx_status_t mlx_json_check_int(const mlx_json_t *json, yyjson_val *value, const char *key, int64_t min,
                                int64_t max, int64_t *out) {
  if (!yyjson_is_int(value)) return mlx_json_error(json, key, "must be an integer");
  bool too_large = yyjson_is_uint(value) && yyjson_get_uint(value) > INT64_MAX;
  int64_t number = too_large ? 0 : yyjson_get_sint(value);
  if (too_large || number < min || number > max) {
    return mlx_error(MLX_INVALID_INPUT, "%s: field '%s' must be between %lld and %lld", json->name, key,
                     (long long)min, (long long)max);
  }
  *out = number;
  return NULL;
}

mlx_status_t mlx_json_int(const mlx_json_t *json, yyjson_val *object, const char *key, int64_t min,
                          int64_t max, int64_t *out) {
  yyjson_val *value;
  *out = 0;
  MLX_TRY(mlx_json_need(json, object, key, &value));
  return mlx_json_check_int(json, value, key, min, max, out);
}

mlx_status_t mlx_json_string(const mlx_json_t *json, yyjson_val *object, const char *key, const char **out) {
  yyjson_val *value;
  MLX_TRY(mlx_json_need(json, object, key, &value));
  return mlx_json_string_or(json, object, key, NULL, out);
}

mlx_status_t mlx_json_string_or(const mlx_json_t *json, yyjson_val *object, const char *key,
                                const char *fallback, const char **out) {
  yyjson_val *value = mlx_json_find(object, key);
  *out = fallback;
  if (!value) return NULL;
  if (!yyjson_is_str(value)) return mlx_json_error(json, key, "must be a string");
  if (strlen(yyjson_get_str(value)) != yyjson_get_len(value))
    return mlx_json_error(json, key, "contains a NUL character");
  *out = yyjson_get_str(value);
  return NULL;
}
