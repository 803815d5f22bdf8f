// Alternatives of a JSON schema: enum, const, anyOf and oneOf.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_ALTERNATIVES_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_ALTERNATIVES_H_

#include "grammar/json_schema_builder.h"

// Writes the values of 'enum' or 'const'.
mlx_status_t mlx_schema_put_enum(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) MLX_MUST_USE;
// Writes the schemas of |keyword|, which is "anyOf" or "oneOf".
mlx_status_t mlx_schema_put_alternatives(mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                         mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_ALTERNATIVES_H_
