// Listed values of a JSON schema: enum and const.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_VALUES_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_VALUES_H_

#include "grammar/json_schema_builder.h"

typedef struct mlx_schema_values {
  yyjson_val **items;  // owned; different from each other
  size_t count, capacity;
} mlx_schema_values_t;

// The values that |c| allows, if it lists them by 'enum' or 'const'. *out_listed is false otherwise. Release
// out->items with mlx_free.
mlx_status_t mlx_schema_list_values(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                    mlx_schema_values_t *out, bool *out_listed) MLX_MUST_USE;
// Whether two values are equal in JSON schema: 1 and 1.0 do.
bool mlx_schema_equals(yyjson_val *x, yyjson_val *y);
// Appends the JSON of |value| as a GBNF literal.
mlx_status_t mlx_schema_put_value(mlx_text_t *out, yyjson_val *value) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_VALUES_H_
