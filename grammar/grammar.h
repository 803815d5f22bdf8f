// Grammar: which texts may be written, and at every place which tokens lead to one of them.
//
// A grammar is GBNF, llama.cpp's notation (docs/sampling.md), or made from a JSON schema (json_schema.h). It
// is compiled to rules over bytes, so that a token may end inside a character. A matcher follows a text: all
// ways through the rules at once, as a set of stacks; sets that were met before are numbered states with
// known transitions, so that most of a text costs a table lookup a byte.
//
// Grammars are foreign input: rules without an end, left recursion and anything beyond the limits below are
// refused by name.
//
// Ownership: a grammar never changes after create; matchers borrow it. Threads: a matcher belongs to one at a
// time.
#ifndef MLXCEL_GRAMMAR_GRAMMAR_H_
#define MLXCEL_GRAMMAR_GRAMMAR_H_

#include <stddef.h>

#include "base/status.h"

#define MLX_GRAMMAR_MAX_SYMBOLS (1u << 20)  // of all rules, after repetitions are written out
#define MLX_GRAMMAR_MAX_REPEAT 10000        // {n}
#define MLX_GRAMMAR_MAX_NESTING 100         // of parentheses
#define MLX_GRAMMAR_MAX_DEPTH 2000    // of rules inside rules while matching; what lies deeper is not allowed
#define MLX_GRAMMAR_MAX_STACKS 20000  // ways through the rules at one place
#define MLX_GRAMMAR_MAX_STATES (1u << 20)

// What a text must look like. |name| is what errors call it. Release with mlx_grammar_free.
typedef struct mlx_grammar mlx_grammar_t;
mlx_status_t mlx_grammar_create(const char *name, const char *gbnf, size_t length,
                                mlx_grammar_t **out_grammar) MLX_MUST_USE;
mlx_status_t mlx_grammar_create_from_schema(const char *name, const char *json_schema, size_t length,
                                            mlx_grammar_t **out_grammar) MLX_MUST_USE;
void mlx_grammar_free(mlx_grammar_t *grammar);

#endif  // MLXCEL_GRAMMAR_GRAMMAR_H_
