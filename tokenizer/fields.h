// Readers for the fields of a tokenizer.json. Every error names the field by its full path.
#ifndef MLXCEL_TOKENIZER_FIELDS_H_
#define MLXCEL_TOKENIZER_FIELDS_H_

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

#define MLX_MAX_ID ((1 << 21) - 1)  // bounds the token table; eight times the largest vocabulary in use
#define MLX_PATH_SIZE 160           // bytes; a longer path (deeply nested Sequences) is truncated

// "NAME: field 'PATH' ...", where |fmt| gives the rest ("must be a string").
mlx_status_t mlx_tokenizer_field_error(const mlx_json_t *json, mlx_code_t code, const char *path,
                                       const char *fmt, ...) MLX_PRINTF(4, 5) MLX_MUST_USE;

// Write a path into |out| and return it: from a format, PATH.KEY, or PATH[INDEX].
const char *mlx_field_path(char out[MLX_PATH_SIZE], const char *fmt, ...) MLX_PRINTF(2, 3);
const char *mlx_field_join(char out[MLX_PATH_SIZE], const char *path, const char *key);
const char *mlx_field_index(char out[MLX_PATH_SIZE], const char *path, size_t index);

// Checks that |value| is an array or, with |array| false, an object.
mlx_status_t mlx_field_container(const mlx_json_t *json, const char *path, yyjson_val *value,
                                 bool array) MLX_MUST_USE;
// An optional boolean.
mlx_status_t mlx_tokenizer_field_bool(const mlx_json_t *json, const char *path, yyjson_val *object,
                                      const char *key, bool fallback, bool *out) MLX_MUST_USE;
// A required string, borrowed from the document.
mlx_status_t mlx_field_string(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                              const char **out, size_t *out_length) MLX_MUST_USE;
// A required string of one character.
mlx_status_t mlx_field_character(const mlx_json_t *json, const char *path, yyjson_val *object,
                                 const char *key, uint32_t *out) MLX_MUST_USE;
// A required whole number.
mlx_status_t mlx_field_size(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                            size_t *out) MLX_MUST_USE;
// A token id. The path comes in two halves that are joined only for an error, because this runs for every
// token.
mlx_status_t mlx_field_id(const mlx_json_t *json, const char *path, const char *rest, yyjson_val *value,
                          int32_t *out_id) MLX_MUST_USE;
// The "type" of a component; "" if it has none.
mlx_status_t mlx_field_type(const mlx_json_t *json, const char *path, yyjson_val *object,
                            const char **out_type) MLX_MUST_USE;
// The error about a type that is not supported. |supported| is a list that ends in "are".
mlx_status_t mlx_field_refuse_type(const mlx_json_t *json, const char *path, const char *type,
                                   const char *supported) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_FIELDS_H_
