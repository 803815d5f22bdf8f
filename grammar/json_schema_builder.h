// Schema builder: the GBNF of a JSON schema while it is written.
//
// Every subschema becomes a rule s<n>. A subschema inside another schema is written as a reference to its
// rule; json_schema.c writes the rules one after the other.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_BUILDER_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_BUILDER_H_

#include "base/budget.h"
#include "base/json.h"
#include "base/text.h"
#include "tokenizer/pair_map.h"

#define MLX_MAX_SCHEMA_DEPTH 64  // allOf and $ref inside one another

typedef struct mlx_schema_entry {
  yyjson_val *schema;
  char *path;  // owned: "#/properties/a"
} mlx_schema_entry_t;

typedef struct mlx_schema_builder {
  const char *name;  // of the schema file, for errors
  yyjson_val *root;
  mlx_text_t out;               // finished rules
  mlx_schema_entry_t *entries;  // entry n is rule s<n>
  size_t count, capacity;
  mlx_pair_map_t rules;  // the address of a schema -> the index of its entry
  mlx_budget_t *budget;  // borrowed
  size_t current;        // the entry that is being written; |count| or more: none
  size_t next_part;      // number of the next helper rule
} mlx_schema_builder_t;

#define MLX_MAX_SCHEMAS 20000

// MLX_UNSUPPORTED: "NAME: PATH: 'KEYWORD' WHAT", with the path of the current schema.
mlx_status_t mlx_schema_unsupported(const mlx_schema_builder_t *b, const char *keyword,
                                    const char *what) MLX_MUST_USE;
// The same with code MLX_INVALID_INPUT.
mlx_status_t mlx_schema_invalid(const mlx_schema_builder_t *b, const char *keyword,
                                const char *what) MLX_MUST_USE;

// The number of the rule for |schema|, which is queued if it is new. |step| and |key| extend the current
// path; a |step| that begins with '#' is the whole path.
mlx_status_t mlx_schema_find_rule(mlx_schema_builder_t *b, yyjson_val *schema, const char *step,
                                  const char *key, size_t *out) MLX_MUST_USE;
// Writes the name of that rule.
mlx_status_t mlx_schema_put_rule(mlx_schema_builder_t *b, mlx_text_t *out, yyjson_val *schema,
                                 const char *step, const char *key) MLX_MUST_USE;
// The schema that |ref|, the value of a $ref, points to.
mlx_status_t mlx_schema_resolve(const mlx_schema_builder_t *b, yyjson_val *ref,
                                yyjson_val **out) MLX_MUST_USE;
// Reads a keyword that is a count, such as minLength. Without the keyword, *|out| is |fallback|.
mlx_status_t mlx_schema_read_count(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                   uint64_t fallback, uint64_t *out) MLX_MUST_USE;

// Appends a GBNF literal with its quotes.
void mlx_gbnf_put_literal(mlx_text_t *out, const char *bytes, size_t length);
// Appends {min,max}. A |max| of UINT64_MAX means no limit.
void mlx_gbnf_put_repetition(mlx_text_t *out, uint64_t min, uint64_t max);

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_BUILDER_H_
