// Names of the properties of a JSON object: patternProperties, additionalProperties and propertyNames.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_NAMES_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_NAMES_H_

#include "grammar/json_schema_builder.h"
#include "grammar/name_table.h"

typedef struct mlx_schema_pattern {  // one of patternProperties
  yyjson_val *term;                  // the schema that has it
  yyjson_val *schema;                // of the values
  mlx_nfa_t nfa;
} mlx_schema_pattern_t;

typedef struct mlx_schema_property {  // one of properties
  yyjson_val *term;                   // the schema that has it
  yyjson_val *schema;                 // of the value
  size_t next;                        // index of another one of the same name; 0: none
} mlx_schema_property_t;

typedef struct mlx_schema_names {
  mlx_schema_property_t *properties;  // of all terms
  size_t property_count, property_capacity;
  mlx_name_table_t index;  // name -> index of the first property with that name
  mlx_schema_pattern_t *patterns;
  size_t pattern_count, pattern_capacity;
  mlx_nfa_t *rules;  // of propertyNames: every name matches all of them
  size_t rule_count, rule_capacity;
  uint64_t min, max;  // characters of a name
  bool never;         // propertyNames allows no name
} mlx_schema_names_t;

// Reads the keywords of |c|. Release with mlx_schema_names_free, also after an error.
mlx_status_t mlx_schema_names_read(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                   mlx_schema_names_t *out) MLX_MUST_USE;
void mlx_schema_names_free(mlx_schema_names_t *names);

// Adds the schemas that the value of the property |name| has to satisfy. |out| becomes 'never' if no property
// may have this name.
mlx_status_t mlx_schema_names_add_value(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                        const mlx_schema_names_t *names, const char *name, size_t length,
                                        mlx_conjunction_t *out) MLX_MUST_USE;
// Writes rule o<part>-other: a property whose name is not in |known|. *out_any is false if there is none.
mlx_status_t mlx_schema_names_put_other(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                        const mlx_schema_names_t *names, mlx_nfa_name_t *known,
                                        size_t known_count, size_t part, bool *out_any) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_NAMES_H_
