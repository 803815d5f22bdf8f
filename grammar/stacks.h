// Stacks: whether a matcher can begin every rule of a grammar.
#ifndef MLXCEL_GRAMMAR_STACKS_H_
#define MLXCEL_GRAMMAR_STACKS_H_

#include "base/budget.h"
#include "grammar/rules.h"

// Fails on a rule that the root can reach and that begins with more than MLX_GRAMMAR_MAX_STACKS bytes at
// once: a matcher would fail there, in the middle of a text. |nullable| is true for each rule that matches
// the empty text.
mlx_status_t mlx_grammar_check_stacks(const mlx_grammar_t *grammar, const bool *nullable,
                                      mlx_budget_t *budget) MLX_MUST_USE;

// Expands the beginning of |rule| as a matcher does. matcher.c has it.
mlx_status_t mlx_grammar_try_rule(const mlx_grammar_t *grammar, uint32_t rule) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_STACKS_H_
