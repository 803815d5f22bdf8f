// NFA: a nondeterministic finite automaton over characters, for the strings and the property names of a JSON
// schema.
//
// An automaton is built from a regular expression (regex.h) or from names that it excludes. The product of
// several automata and a range of lengths becomes GBNF, with one rule for each reachable state.
#ifndef MLXCEL_GRAMMAR_NFA_H_
#define MLXCEL_GRAMMAR_NFA_H_

#include <stdint.h>

#include "base/budget.h"
#include "base/text.h"
#include "grammar/name_table.h"

#define MLX_LAST_CHARACTER 0x10ffffu
#define MLX_NFA_MAX_STATES 40000  // of one automaton, and of one product

typedef enum mlx_nfa_kind {
  MLX_NFA_SET,    // a character of |set|, then out[0]
  MLX_NFA_SPLIT,  // out[0] or out[1], without a character
  MLX_NFA_BEGIN,  // out[0], at the beginning of the text only
  MLX_NFA_END,    // out[0], at the end of the text only
  MLX_NFA_ACCEPT
} mlx_nfa_kind_t;

typedef struct mlx_nfa_state {
  mlx_nfa_kind_t kind;
  uint32_t out[2];
  uint32_t first_range, range_count;  // SET: sorted ranges that do not touch
} mlx_nfa_state_t;

typedef struct mlx_nfa_range {
  uint32_t first, last;
} mlx_nfa_range_t;

typedef struct mlx_nfa {
  mlx_nfa_state_t *states;
  size_t count, capacity;
  mlx_nfa_range_t *ranges;
  size_t range_count, range_capacity;
  uint32_t start;
} mlx_nfa_t;  // zero-initialize; release with mlx_nfa_free

mlx_status_t mlx_nfa_add(mlx_nfa_t *nfa, mlx_nfa_kind_t kind, uint32_t out0, uint32_t out1,
                         uint32_t *out_state) MLX_MUST_USE;
// Sorts |ranges| and merges those that touch.
mlx_status_t mlx_nfa_add_set(mlx_nfa_t *nfa, mlx_nfa_range_t *ranges, size_t count, uint32_t target,
                             uint32_t *out_state) MLX_MUST_USE;
void mlx_nfa_free(mlx_nfa_t *nfa);

// Every text except |names|, which are valid UTF-8.
typedef struct mlx_nfa_name {
  const char *bytes;
  size_t length;
} mlx_nfa_name_t;
mlx_status_t mlx_nfa_exclude_names(mlx_nfa_name_t *names, size_t count, mlx_nfa_t *out_nfa) MLX_MUST_USE;

// Whether the automaton accepts |text|, which is valid UTF-8.
mlx_status_t mlx_nfa_accepts(const mlx_nfa_t *nfa, const char *text, size_t length,
                             bool *out_accepted) MLX_MUST_USE;

typedef enum mlx_nfa_place {
  MLX_NFA_IN_STRING,  // the content of a JSON string: characters that need it are escaped
  MLX_NFA_IN_NAME,    // the same without the characters that need an escape
  MLX_NFA_IN_TEXT     // a plain text
} mlx_nfa_place_t;

// A grammar that gets the rules of products: p<n> for states and c<n> for character classes.
typedef struct mlx_nfa_writer {
  mlx_text_t *out;
  mlx_budget_t *budget;
  size_t states;              // states written so far
  mlx_name_table_t class_of;  // GBNF of a class -> n of its rule
  char **classes;             // owned: the names of class_of
  size_t class_count, class_capacity;
} mlx_nfa_writer_t;

// Writes the rules of the texts of |min| to |max| characters (UINT64_MAX: no limit) that all |count| automata
// accept. *out_rule is the number of the first rule. *out_problem is the reason if there are no such texts or
// too many states, or NULL; the rules are not written then. The rule char must exist for MLX_NFA_IN_STRING.
mlx_status_t mlx_nfa_write(mlx_nfa_writer_t *writer, const mlx_nfa_t *const *nfas, size_t count, uint64_t min,
                           uint64_t max, mlx_nfa_place_t place, size_t *out_rule,
                           const char **out_problem) MLX_MUST_USE;
void mlx_nfa_writer_free(mlx_nfa_writer_t *writer);

#define MLX_NFA_NO_TEXT "leaves no text"  // the |out_problem| of an empty product

#endif  // MLXCEL_GRAMMAR_NFA_H_
