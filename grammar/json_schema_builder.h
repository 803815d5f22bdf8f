// Schema builder: the GBNF of a JSON schema while it is written.
//
// A rule s<n> stands for a conjunction: the schemas that one value has to satisfy at once. $ref and allOf add
// schemas to a conjunction. anyOf and the like lead to one conjunction for each alternative. So keywords work
// beside each other wherever they are written. The same conjunction is written once, which ends recursion.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_BUILDER_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_BUILDER_H_

#include "base/json.h"
#include "grammar/nfa.h"
#include "tokenizer/pair_map.h"

#define MLX_MAX_SCHEMAS 20000      // rules s<n>, and schemas added by $ref and allOf to one conjunction
#define MLX_MAX_SCHEMA_TERMS 1000  // of one conjunction
#define MLX_MAX_TERMS 200000       // of all conjunctions

typedef struct mlx_schema_term {
  yyjson_val *schema;
  uint64_t flags;  // mlx_schema_flag_t: branches that are already chosen, so that their keywords are done
} mlx_schema_term_t;

typedef enum mlx_schema_flag {
  MLX_SCHEMA_NEGATED = 1,  // the value must not satisfy the schema
  MLX_SCHEMA_NULLABLE_DONE = 2,
  MLX_SCHEMA_ANY_OF_DONE = 4,
  MLX_SCHEMA_ONE_OF_DONE = 8,
  MLX_SCHEMA_IF_DONE = 16,
} mlx_schema_flag_t;

typedef struct mlx_conjunction {
  mlx_schema_term_t *terms;  // owned; objects only
  size_t count, capacity;
  bool never;         // no value satisfies it
} mlx_conjunction_t;  // zero-initialize: any value. Release with mlx_conjunction_free

// The keyword that mlx_schema_unsupported was called for.
typedef struct mlx_schema_refusal {
  mlx_text_t path;   // JSON pointer to its schema
  char keyword[64];  // "": none
} mlx_schema_refusal_t;

typedef struct mlx_schema_builder {
  const char *name;  // of the schema file, for errors
  yyjson_val *root;
  mlx_schema_refusal_t *refusal;  // borrowed; NULL: not wanted
  mlx_text_t *formats;            // borrowed; unknown formats, as "NAME#PATH: format"; NULL: not wanted
  size_t format_count;            // that were looked up for |formats|
  mlx_text_t out;                 // finished rules
  mlx_conjunction_t *entries;     // entry n is rule s<n>
  size_t count, capacity;
  mlx_pair_map_t rules;    // hash of a conjunction -> the index of its entry
  mlx_budget_t *budget;    // borrowed
  size_t current;          // the entry that is being written; |count| or more: none
  size_t next_part;        // number of the next helper rule
  size_t multiples;        // rules for multipleOf
  size_t terms;            // of all entries
  mlx_pair_map_t checked;  // the addresses of schemas whose keywords are checked
  size_t checked_count, checked_capacity;
  mlx_nfa_writer_t nfas;
  mlx_name_table_t strings;  // description of a string -> rule p<n>; and the rules of multiples
  mlx_name_table_t made;     // text of a schema that is not in the file -> index into docs
  yyjson_doc **docs;
  char **texts;  // owned: the names of |strings| and |made|
  size_t doc_count, doc_capacity, text_count, text_capacity;
} mlx_schema_builder_t;

// MLX_UNSUPPORTED: "NAME: PATH: 'KEYWORD' WHAT", with the path of |schema|.
mlx_status_t mlx_schema_unsupported(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                    const char *what) MLX_MUST_USE;
// The same with code MLX_INVALID_INPUT.
// A string's format that is unknown, and so not enforced: adds it to b->formats, unless those are many.
void mlx_schema_note_format(mlx_schema_builder_t *b, yyjson_val *schema);
mlx_status_t mlx_schema_invalid(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                const char *what) MLX_MUST_USE;

// Adds |schema| and the schemas that $ref and allOf bring. Unsupported keywords are errors.
mlx_status_t mlx_conjunction_add(mlx_schema_builder_t *b, mlx_conjunction_t *c, yyjson_val *schema,
                                 uint64_t flags) MLX_MUST_USE;
// A copy of |from| in which the branch |flag| of term |index| is done. A negated term is left out.
mlx_status_t mlx_conjunction_choose(mlx_schema_builder_t *b, const mlx_conjunction_t *from, size_t index,
                                    uint64_t flag, mlx_conjunction_t *out) MLX_MUST_USE;
void mlx_conjunction_free(mlx_conjunction_t *c);
// The first term from *inout_at on that has |keyword| and is not negated; advances *inout_at past it. NULL:
// none.
yyjson_val *mlx_conjunction_next(const mlx_conjunction_t *c, const char *keyword, size_t *inout_at);
bool mlx_conjunction_has(const mlx_conjunction_t *c, const char *keyword);

// Writes the name of the rule for |c|, which is queued if it is new. Takes |c| over.
mlx_status_t mlx_schema_put_rule(mlx_schema_builder_t *b, mlx_text_t *out, mlx_conjunction_t *c) MLX_MUST_USE;
// The schema that |ref|, the value of $ref in |schema|, points to.
mlx_status_t mlx_schema_resolve(const mlx_schema_builder_t *b, yyjson_val *schema, yyjson_val *ref,
                                yyjson_val **out) MLX_MUST_USE;
// A schema with the JSON |text|, which is cleared.
mlx_status_t mlx_schema_make(mlx_schema_builder_t *b, mlx_text_t *text, yyjson_val **out) MLX_MUST_USE;
// Keeps a copy of |text| until the builder is released.
mlx_status_t mlx_schema_keep_text(mlx_schema_builder_t *b, const char *text, size_t length,
                                  const char **out) MLX_MUST_USE;

// The largest of a keyword that is a lower count, such as minLength, or the smallest of an upper one.
// Without the keyword, *|out| is |fallback|: 0 for a lower count, UINT64_MAX for an upper one.
mlx_status_t mlx_schema_read_count(const mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                   const char *keyword, uint64_t fallback, uint64_t *out) MLX_MUST_USE;

// Fails if one schema has a lower count above its upper one. Two schemas of a conjunction may: no value then
// satisfies both.
mlx_status_t mlx_schema_check_counts(const mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                     const char *min, const char *max) MLX_MUST_USE;

// Appends a GBNF literal with its quotes.
void mlx_gbnf_put_literal(mlx_text_t *out, const char *bytes, size_t length);
// Appends {min,max}. A |max| of UINT64_MAX means no limit.
void mlx_gbnf_put_repetition(mlx_text_t *out, uint64_t min, uint64_t max);

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_BUILDER_H_
