// What grammar_parse.c, grammar_bytes.c, grammar_check.c and grammar_match.c share.
#ifndef MLXCEL_GRAMMAR_INTERNAL_H_
#define MLXCEL_GRAMMAR_INTERNAL_H_

#include "grammar/grammar.h"

typedef enum mlx_symbol_kind { MLX_SYMBOL_END, MLX_SYMBOL_BYTE, MLX_SYMBOL_RULE } mlx_symbol_kind_t;

typedef struct mlx_symbol {
  uint32_t kind : 2;    // mlx_symbol_kind_t
  uint32_t value : 30;  // of BYTE: a byte set; of RULE: a rule
} mlx_symbol_t;

typedef struct mlx_byte_set {
  uint64_t bits[4];
} mlx_byte_set_t;

static inline bool mlx_byte_set_has(const mlx_byte_set_t *set, uint8_t byte) {
  return set->bits[byte / 64] >> byte % 64 & 1;
}

typedef struct mlx_alternate {
  uint32_t start;  // into symbols; up to an END
  int32_t next;    // of the same rule, or -1
} mlx_alternate_t;

#define MLX_NO_ALTERNATE -1

typedef struct mlx_rule {
  uint32_t name;        // into names; parts of a rule have the rule's own
  uint32_t line;        // where it was met first
  int32_t first, last;  // alternates
} mlx_rule_t;

struct mlx_grammar {
  char *source;  // owned: what errors call it
  mlx_symbol_t *symbols;
  size_t symbol_count, symbol_capacity;
  mlx_alternate_t *alternates;
  size_t alternate_count, alternate_capacity;
  mlx_rule_t *rules;
  size_t rule_count, rule_capacity;
  mlx_byte_set_t *sets;  // the first 256 have one byte each
  size_t set_count, set_capacity;
  char *names;  // all of them, each ended by NUL
  size_t name_length, name_capacity;
  uint32_t root;
  uint8_t classes[256];         // bytes that no rule tells apart have the same number
  uint8_t representative[256];  // a byte of each class
  size_t class_count;
};

// ---- building ----

mlx_status_t mlx_grammar_add_rule(mlx_grammar_t *grammar, uint32_t name, uint32_t line,
                                  uint32_t *out_rule) MLX_MUST_USE;
// The symbols are copied, and ended.
mlx_status_t mlx_grammar_add_alternate(mlx_grammar_t *grammar, uint32_t rule, const mlx_symbol_t *symbols,
                                       size_t count) MLX_MUST_USE;

typedef struct mlx_char_range {
  uint32_t first, last;
} mlx_char_range_t;

// A symbol that stands for one character of |ranges| (or none of them), spelled in UTF-8 (grammar_bytes.c).
// Sorts |ranges|.
mlx_status_t mlx_grammar_add_class(mlx_grammar_t *grammar, mlx_char_range_t *ranges, size_t count,
                                   bool negated, uint32_t name, uint32_t line,
                                   mlx_symbol_t *out_symbol) MLX_MUST_USE;
void mlx_grammar_find_classes(mlx_grammar_t *grammar);  // fills in |classes|

// Every rule comes to an end, and none begins with itself (grammar_check.c).
mlx_status_t mlx_grammar_check(const mlx_grammar_t *grammar) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_INTERNAL_H_
