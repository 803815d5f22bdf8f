// JSON from untrusted files, on yyjson: parsing that rejects duplicate keys, and typed lookups whose errors
// name the file and the field ("config.json: field 'hidden_size' is missing").
#ifndef MLXCEL_BASE_JSON_H_
#define MLXCEL_BASE_JSON_H_

#include <stdint.h>
#include <yyjson.h>

#include "base/status.h"
#include "base/text.h"

// A parsed document. Release with mlx_json_close.
typedef struct mlx_json {
  yyjson_doc *doc;
  yyjson_val *root;  // an object; borrowed from doc
  const char *name;  // borrowed: the file's path, for messages
} mlx_json_t;

// Parses |bytes| (not kept). The root must be an object, nested at most 64 deep, with unique keys in every
// object.
mlx_status_t mlx_json_parse(const char *name, const char *bytes, size_t length,
                            mlx_json_t *out_json) MLX_MUST_USE;
// The same, but the root may also be an array.
mlx_status_t mlx_json_parse_any(const char *name, const char *bytes, size_t length,
                                mlx_json_t *out_json) MLX_MUST_USE;
// mlx_json_parse for files that Python wrote: numbers may also be Infinity, -Infinity or NaN.
mlx_status_t mlx_json_parse_python(const char *name, const char *bytes, size_t length,
                                   mlx_json_t *out_json) MLX_MUST_USE;
void mlx_json_close(mlx_json_t *json);

// Lookups in |object|, a value inside |json|. A missing key and a JSON null give NULL, the fallback, or an
// error if the key is required.
yyjson_val *mlx_json_find(yyjson_val *object, const char *key);
mlx_status_t mlx_json_need(const mlx_json_t *json, yyjson_val *object, const char *key,
                           yyjson_val **out) MLX_MUST_USE;
mlx_status_t mlx_json_int(const mlx_json_t *json, yyjson_val *object, const char *key, int64_t min,
                          int64_t max, int64_t *out) MLX_MUST_USE;
// The same for a value already found; |key| is for the error.
mlx_status_t mlx_json_check_int(const mlx_json_t *json, yyjson_val *value, const char *key, int64_t min,
                                int64_t max, int64_t *out) MLX_MUST_USE;
// The string belongs to the document. The fallback may be NULL.
mlx_status_t mlx_json_string(const mlx_json_t *json, yyjson_val *object, const char *key,
                             const char **out) MLX_MUST_USE;
mlx_status_t mlx_json_string_or(const mlx_json_t *json, yyjson_val *object, const char *key,
                                const char *fallback, const char **out) MLX_MUST_USE;

// Appends |value| as JSON text. Fails if this or an earlier append to |out| failed.
mlx_status_t mlx_json_put(yyjson_val *value, mlx_text_t *out) MLX_MUST_USE;

// "NAME: field 'KEY' WHAT", for checks that the caller does itself.
mlx_status_t mlx_json_error(const mlx_json_t *json, const char *key, const char *what) MLX_MUST_USE;

#endif  // MLXCEL_BASE_JSON_H_
