// Keywords of JSON schemas that are supported, and the types that they belong to.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_

#include "base/json_writer.h"
#include "grammar/json_schema_builder.h"

// Fails on a keyword of |schema| that is not supported.
mlx_status_t mlx_schema_check_keywords(const mlx_schema_builder_t *b, yyjson_val *schema) MLX_MUST_USE;
// Whether |name| is a keyword, not an annotation.
bool mlx_schema_is_keyword(const char *name);
// Whether every value satisfies |schema|, because all its keywords are annotations.
bool mlx_schema_only_describes(yyjson_val *schema);
// Whether |schema| restricts values by a keyword other than $ref, allOf and the branches in |flags|.
bool mlx_schema_has_effect(yyjson_val *schema, uint64_t flags);

// A set of types is a bit mask.
typedef enum mlx_schema_type {
  MLX_SCHEMA_NULL = 1,
  MLX_SCHEMA_BOOLEAN = 2,
  MLX_SCHEMA_INTEGER = 4,
  MLX_SCHEMA_FRACTION = 8,
  MLX_SCHEMA_STRING = 16,
  MLX_SCHEMA_ARRAY = 32,
  MLX_SCHEMA_OBJECT = 64,
  MLX_SCHEMA_ALL = 127
} mlx_schema_type_t;

unsigned mlx_schema_value_type(yyjson_val *value);
// The types that the keyword 'type' lists: all if it is NULL, 0 if it is malformed.
unsigned mlx_schema_listed_types(yyjson_val *type);
// The types that all terms allow by 'type'.
unsigned mlx_schema_types_of(const mlx_conjunction_t *c);
// The types that the other keywords apply to.
unsigned mlx_schema_implied_types(const mlx_conjunction_t *c);
// Writes a list of type names.
void mlx_schema_put_type_names(mlx_json_writer_t *json, const char *key, unsigned types);

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_
