// Rules: a grammar compiled to rules over bytes. The parser builds it, and matchers read it.
#ifndef MLXCEL_GRAMMAR_RULES_H_
#define MLXCEL_GRAMMAR_RULES_H_

#include <stdint.h>

#include "grammar/grammar.h"
#include "grammar/name_table.h"

typedef enum mlx_symbol_kind { MLX_SYMBOL_END, MLX_SYMBOL_BYTE, MLX_SYMBOL_RULE } mlx_symbol_kind_t;

typedef struct mlx_symbol {
  uint32_t kind : 2;    // mlx_symbol_kind_t
  uint32_t value : 30;  // BYTE: index of a byte set; RULE: index of a rule
} mlx_symbol_t;

typedef struct mlx_byte_set {
  uint64_t bits[4];
} mlx_byte_set_t;

static inline bool mlx_byte_set_has(const mlx_byte_set_t *set, uint8_t byte) {
  return set->bits[byte / 64] >> byte % 64 & 1;
}

typedef struct mlx_alternate {
  uint32_t start;  // index of its first symbol; an END symbol follows its last
  int32_t next;    // the next alternate of the same rule, or MLX_NO_ALTERNATE
} mlx_alternate_t;

#define MLX_NO_ALTERNATE -1

typedef struct mlx_rule {
  uint32_t name;        // offset into names; groups and repetitions have the name of the rule around them
  uint32_t line;        // of its first mention
  int32_t first, last;  // alternates
} mlx_rule_t;

struct mlx_grammar {
  char *source;  // owned: the name that errors use
  mlx_symbol_t *symbols;
  size_t symbol_count, symbol_capacity;
  mlx_alternate_t *alternates;
  size_t alternate_count, alternate_capacity;
  mlx_rule_t *rules;
  size_t rule_count, rule_capacity;
  mlx_byte_set_t *sets;  // set i < 256 contains only byte i
  size_t set_count, set_capacity;
  char *names;  // each ended by NUL and followed by the index of its rule (uint32_t)
  size_t name_length, name_capacity;
  mlx_name_table_t name_table;  // name -> rule, while the grammar is read; borrows the source text
  uint32_t root;
  uint8_t byte_class[256];      // bytes that no rule distinguishes have the same class
  uint8_t representative[256];  // one byte of each class
  size_t byte_class_count;
};

static inline mlx_symbol_t mlx_rule_symbol(uint32_t rule) {
  return (mlx_symbol_t){MLX_SYMBOL_RULE, rule & 0x3fffffff};
}

// Adds the 256 sets that contain one byte each.
mlx_status_t mlx_grammar_add_bytes(mlx_grammar_t *grammar) MLX_MUST_USE;
mlx_status_t mlx_grammar_add_set(mlx_grammar_t *grammar, const mlx_byte_set_t *set,
                                 mlx_symbol_t *out_symbol) MLX_MUST_USE;
// Adds a rule without alternates. |name| is an offset into names.
mlx_status_t mlx_grammar_add_rule(mlx_grammar_t *grammar, uint32_t name, uint32_t line,
                                  uint32_t *out_rule) MLX_MUST_USE;
// Copies the symbols and adds the END symbol.
mlx_status_t mlx_grammar_add_alternate(mlx_grammar_t *grammar, uint32_t rule, const mlx_symbol_t *symbols,
                                       size_t count) MLX_MUST_USE;
// The rule of that name, which is added if it is new. |name| must stay valid while the grammar is read.
mlx_status_t mlx_grammar_find_or_add_name(mlx_grammar_t *grammar, const char *name, size_t length,
                                          uint32_t line, uint32_t *out_rule) MLX_MUST_USE;
// False for the rule of a group, repetition or character class.
bool mlx_grammar_is_named(const mlx_grammar_t *grammar, uint32_t rule);
// Fills in byte_class and representative. Call it after all rules are added.
void mlx_grammar_find_byte_classes(mlx_grammar_t *grammar);

#endif  // MLXCEL_GRAMMAR_RULES_H_
