// JSON parsing and lookups, on yyjson.
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

#define MAX_DEPTH 64
#define MIN_HASHED_KEYS 64  // fewer are sorted
#define MAX_PROBES 64

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

static mlx_status_t check_sorted_keys(const mlx_json_t *json, yyjson_val **keys, size_t count) {
  qsort(keys, count, sizeof *keys, compare_keys);
  for (size_t i = 1; i < count; ++i) {
    if (!compare_keys(&keys[i - 1], &keys[i]))
      return mlx_json_error(json, yyjson_get_str(keys[i]), "is given twice");
  }
  return NULL;
}

// Looks up each key in a hash table of those before. A vocabulary has 100,000 keys and more: this takes a
// tenth of the time of sorting them. False also if many keys share a slot, so that prepared keys cannot make
// this slow.
static bool are_distinct(yyjson_val *const *keys, size_t count, uint32_t *slots, size_t mask) {
  for (size_t i = 0; i < count; ++i) {
    const char *bytes = yyjson_get_str(keys[i]);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);  // FNV-1a
    for (size_t k = 0; k < yyjson_get_len(keys[i]); ++k)
      hash = (hash ^ (unsigned char)bytes[k]) * UINT64_C(0x100000001b3);
    size_t at = (size_t)(hash ^ hash >> 32) & mask;
    for (int probes = 0; slots[at]; at = (at + 1) & mask) {
      if (++probes > MAX_PROBES || !compare_keys(&keys[slots[at] - 1], &keys[i])) return false;
    }
    slots[at] = (uint32_t)i + 1;
  }
  return true;
}

static mlx_status_t check_unique_keys(const mlx_json_t *json, yyjson_val *object) {
  size_t count = yyjson_obj_size(object), index, max, size = MIN_HASHED_KEYS;
  if (count < 2) return NULL;
  yyjson_val **keys, *key, *value;
  uint32_t *slots = NULL;
  MLX_TRY(mlx_alloc(count, sizeof *keys, &keys));
  yyjson_obj_foreach(object, index, max, key, value) { keys[index] = key; }
  const bool hashed = count >= MIN_HASHED_KEYS && count < UINT32_MAX / 4;
  while (size < 2 * count) size *= 2;
  mlx_status_t status = hashed ? mlx_alloc(size, sizeof *slots, &slots) : NULL;
  if (!status && !(hashed && are_distinct(keys, count, slots, size - 1)))
    status = check_sorted_keys(json, keys, count);
  mlx_free(slots);
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
                          yyjson_read_flag flags, mlx_json_t *out_json) {
  *out_json = (mlx_json_t){.name = name};
  yyjson_read_err error;
  out_json->doc = yyjson_read_opts((char *)(uintptr_t)bytes, length, flags, NULL, &error);
  if (!out_json->doc) {
    MLX_TRY(mlx_lfs_check(name, bytes, length));
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
  return parse(name, bytes, length, false, YYJSON_READ_NOFLAG, out_json);
}

mlx_status_t mlx_json_parse_python(const char *name, const char *bytes, size_t length, mlx_json_t *out_json) {
  return parse(name, bytes, length, false, YYJSON_READ_ALLOW_INF_AND_NAN, out_json);
}

mlx_status_t mlx_json_parse_any(const char *name, const char *bytes, size_t length, mlx_json_t *out_json) {
  return parse(name, bytes, length, true, YYJSON_READ_NOFLAG, out_json);
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

mlx_status_t mlx_json_put(yyjson_val *value, mlx_text_t *out) {
  size_t length;
  char *json = yyjson_val_write(value, 0, &length);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "no memory to write JSON");
  mlx_text_append(out, json, length);
  free(json);
  return mlx_text_finish(out);
}
