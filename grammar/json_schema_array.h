// Arrays of a JSON schema.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_ARRAY_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_ARRAY_H_

#include "grammar/json_schema_builder.h"

// Writes a JSON array that |c| accepts.
mlx_status_t mlx_schema_put_array(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                  mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_ARRAY_H_
