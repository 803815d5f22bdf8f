// Strings of a JSON schema, and the names of properties.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_STRING_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_STRING_H_

#include "grammar/json_schema_builder.h"

// Writes a JSON string that |c| accepts.
mlx_status_t mlx_schema_put_string(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                   mlx_text_t *out) MLX_MUST_USE;
// Whether |schema| accepts the string |value|.
mlx_status_t mlx_schema_string_fits(mlx_schema_builder_t *b, yyjson_val *schema, yyjson_val *value,
                                    bool *out) MLX_MUST_USE;

// The regular expression of a known 'format' of strings, or NULL.
const char *mlx_schema_format_regex(const char *format);
// Parses a regular expression of |schema|; an error names |keyword|. Release with mlx_nfa_free.
mlx_status_t mlx_schema_parse_regex(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                    const char *regex, size_t length, mlx_nfa_t *out) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_STRING_H_
