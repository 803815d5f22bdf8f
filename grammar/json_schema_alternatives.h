// Alternatives of a JSON schema: nullable, anyOf, oneOf, if and not.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_ALTERNATIVES_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_ALTERNATIVES_H_

#include "grammar/json_schema_builder.h"

// Writes the alternatives of the first keyword of |c| that has alternatives and is not done. *out_found is
// false if there is none.
mlx_status_t mlx_schema_put_alternatives(mlx_schema_builder_t *b, const mlx_conjunction_t *c, mlx_text_t *out,
                                         bool *out_found) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_ALTERNATIVES_H_
