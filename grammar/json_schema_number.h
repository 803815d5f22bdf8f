// Numbers of a JSON schema.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_NUMBER_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_NUMBER_H_

#include "grammar/json_schema_builder.h"

// Writes a JSON number that |c| accepts; |whole|: an integer.
mlx_status_t mlx_schema_put_number(mlx_schema_builder_t *b, const mlx_conjunction_t *c, bool whole,
                                   mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_NUMBER_H_
