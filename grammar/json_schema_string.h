// Strings of a JSON schema.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_STRING_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_STRING_H_

#include "grammar/json_schema_builder.h"

// Writes a JSON string that |schema| accepts.
mlx_status_t mlx_schema_put_string(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_STRING_H_
