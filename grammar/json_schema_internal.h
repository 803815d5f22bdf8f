// What json_schema.c shares with json_schema_pattern.c and json_schema_number.c.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_INTERNAL_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_INTERNAL_H_

#include "base/json.h"
#include "base/text.h"

// |value| bytes as a GBNF literal with its quotes.
void mlx_gbnf_literal(mlx_text_t *out, const char *bytes, size_t length);

// What stands between the quotes of a JSON string that |pattern| (ECMA-262, the plain part of it) finds
// something in. *out_problem: why it cannot be done; NULL when it was.
void mlx_gbnf_pattern(mlx_text_t *out, const char *pattern, size_t length, const char **out_problem);

typedef struct mlx_bounds {
  double min, max;  // -INFINITY and INFINITY: none
  bool min_excluded, max_excluded;
} mlx_bounds_t;

// A JSON number inside |bounds|; false when none can be written.
bool mlx_gbnf_number(mlx_text_t *out, const mlx_bounds_t *bounds, bool whole);

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_INTERNAL_H_
