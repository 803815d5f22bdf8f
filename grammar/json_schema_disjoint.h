// Whether two schemas exclude each other, for oneOf.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_DISJOINT_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_DISJOINT_H_

#include "grammar/json_schema_builder.h"

// True if no value satisfies both schemas: by type, by listed values, or by a property that both require and
// whose schemas are disjoint. False if it is not known.
bool mlx_schema_are_disjoint(mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y);

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_DISJOINT_H_
