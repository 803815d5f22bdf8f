// Keywords of JSON schemas that are supported, and the types that they belong to.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_

#include "grammar/json_schema_builder.h"

// NULL-terminated.
extern const char *const mlx_schema_object_keywords[], *const mlx_schema_enum_keywords[];

// Fails on a keyword of |schema| that is neither in |keywords| nor an annotation. |beside| (or NULL) is
// the keyword of |schema| that excludes all others; the error names it.
mlx_status_t mlx_schema_check_keywords(const mlx_schema_builder_t *b, yyjson_val *schema,
                                       const char *const *keywords, const char *beside) MLX_MUST_USE;
// The same with the keywords of all types.
mlx_status_t mlx_schema_check_type_keywords(const mlx_schema_builder_t *b, yyjson_val *schema) MLX_MUST_USE;

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
// The types that the other keywords of a schema without 'type' apply to.
unsigned mlx_schema_implied_types(yyjson_val *schema);

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_
