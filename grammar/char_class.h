// Character class: [a-z] as rules over the bytes of UTF-8.
#ifndef MLXCEL_GRAMMAR_CHAR_CLASS_H_
#define MLXCEL_GRAMMAR_CHAR_CLASS_H_

#include "grammar/rules.h"

typedef struct mlx_char_range {
  uint32_t first, last;
} mlx_char_range_t;

// Adds a symbol that matches one character inside |ranges|, or outside of them if |negated|. Sorts |ranges|.
// |name| and |line| belong to the rule around the class.
mlx_status_t mlx_grammar_add_class(mlx_grammar_t *grammar, mlx_char_range_t *ranges, size_t count,
                                   bool negated, uint32_t name, uint32_t line,
                                   mlx_symbol_t *out_symbol) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_CHAR_CLASS_H_
