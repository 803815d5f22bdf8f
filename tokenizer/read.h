// How the readers of a tokenizer.json look at its fields: every error names the field by its whole path.
#ifndef MLXCEL_TOKENIZER_READ_H_
#define MLXCEL_TOKENIZER_READ_H_

#include "tokenizer/internal.h"

#define MLX_MAX_ID ((1 << 21) - 1)  // eight times the largest vocabulary there is; bounds the table by id
#define MLX_PATH_SIZE 160

mlx_status_t mlx_field_error(const mlx_json_t *json, mlx_code_t code, const char *path, const char *fmt, ...)
    MLX_PRINTF(4, 5) MLX_MUST_USE;
// A path that grows too long (sequences inside sequences) is cut; it only names a place to a person.
const char *mlx_field_path(char out[MLX_PATH_SIZE], const char *fmt, ...) MLX_PRINTF(2, 3);
const char *mlx_field_join(char out[MLX_PATH_SIZE], const char *path, const char *key);
const char *mlx_field_index(char out[MLX_PATH_SIZE], const char *path, size_t index);

mlx_status_t mlx_field_container(const mlx_json_t *json, const char *path, yyjson_val *value,
                                 bool array) MLX_MUST_USE;
mlx_status_t mlx_field_bool(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                            bool fallback, bool *out) MLX_MUST_USE;
// A string that must be there; borrowed from the document.
mlx_status_t mlx_field_string(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                              const char **out, size_t *out_length) MLX_MUST_USE;
// A string of one character.
mlx_status_t mlx_field_character(const mlx_json_t *json, const char *path, yyjson_val *object,
                                 const char *key, uint32_t *out) MLX_MUST_USE;
mlx_status_t mlx_field_size(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                            size_t *out) MLX_MUST_USE;
// An id; the path is given in two halves, because this runs for every token and a path is only made for an
// error.
mlx_status_t mlx_field_id(const mlx_json_t *json, const char *path, const char *rest, yyjson_val *value,
                          int32_t *out_id) MLX_MUST_USE;
// The "type" of a component; "" when it has none.
mlx_status_t mlx_field_type(const mlx_json_t *json, const char *path, yyjson_val *object,
                            const char **out_type) MLX_MUST_USE;
mlx_status_t mlx_field_refuse_type(const mlx_json_t *json, const char *path, const char *type,
                                   const char *supported) MLX_MUST_USE;

// tokenizer_read_steps.c: normalizer, pre_tokenizer and decoder. They come first: added tokens are
// normalized, and byte-level tokens are spelled otherwise.
mlx_status_t mlx_read_steps(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) MLX_MUST_USE;
// tokenizer_read_model.c
mlx_status_t mlx_read_kind(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) MLX_MUST_USE;
mlx_status_t mlx_read_model(const mlx_json_t *json,
                            mlx_tokenizer_t *tokenizer) MLX_MUST_USE;  // and added_tokens

#endif  // MLXCEL_TOKENIZER_READ_H_
