// Check: whether a matcher can follow a grammar.
#ifndef MLXCEL_GRAMMAR_CHECK_H_
#define MLXCEL_GRAMMAR_CHECK_H_

#include "grammar/rules.h"

// Fails on a rule that matches no finite text and on left recursion.
mlx_status_t mlx_grammar_check(const mlx_grammar_t *grammar) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_CHECK_H_
