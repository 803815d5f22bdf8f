// Regular expressions (ECMA-262) as automata. Back references, lookaheads and \b are not supported.
#ifndef MLXCEL_GRAMMAR_REGEX_H_
#define MLXCEL_GRAMMAR_REGEX_H_

#include "grammar/nfa.h"

// The texts in which |regex| matches, or that it matches as a whole. *out_problem is the reason if the
// regular expression is not supported, or NULL. Release with mlx_nfa_free.
mlx_status_t mlx_regex_parse(const char *regex, size_t length, bool whole, mlx_nfa_t *out_nfa,
                             const char **out_problem) MLX_MUST_USE;

// A grammar (GBNF) of the texts that |regex| matches as a whole. Fails with MLX_UNSUPPORTED and the reason;
// |name| is the beginning of the message. Release with mlx_free.
mlx_status_t mlx_regex_to_gbnf(const char *name, const char *regex, size_t length, char **out_gbnf,
                               size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_REGEX_H_
