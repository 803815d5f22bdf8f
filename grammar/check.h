// Check: whether a matcher can follow a grammar.
#ifndef MLXCEL_GRAMMAR_CHECK_H_
#define MLXCEL_GRAMMAR_CHECK_H_

#include "base/budget.h"
#include "grammar/rules.h"

// Fails if the root matches no finite text, on left recursion, and on a rule that a matcher cannot begin.
// Removes alternates that match no finite text.
mlx_status_t mlx_grammar_check(mlx_grammar_t *grammar, mlx_budget_t *budget) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_CHECK_H_
