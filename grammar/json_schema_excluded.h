// Values that a JSON schema excludes: 'not' with listed values.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_EXCLUDED_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_EXCLUDED_H_

#include "grammar/json_schema_builder.h"

// Whether |schema| has no keywords but listed values and their type. The values of a negated one are
// excluded.
bool mlx_schema_only_lists(yyjson_val *schema);
// The types of the excluded values of |c|.
unsigned mlx_schema_excluded_types(const mlx_conjunction_t *c);
bool mlx_schema_excludes_bool(const mlx_conjunction_t *c, bool value);
// The excluded strings of |c|, borrowed. Release *out_names with mlx_free.
mlx_status_t mlx_schema_excluded_strings(const mlx_conjunction_t *c, mlx_nfa_name_t **out_names,
                                         size_t *out_count) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_EXCLUDED_H_
