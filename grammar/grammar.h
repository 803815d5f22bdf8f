// Grammar: constrains the generated text to a language.
//
// A grammar is written in GBNF, llama.cpp's notation (docs/sampling.md), or made from a JSON schema
// (json_schema.h). It is compiled to rules over bytes, so a token may end inside a character. A matcher
// (matcher.h) follows a text through all alternates at once and caches its states, so most bytes cost one
// table lookup.
//
// Grammars are untrusted input. Rules that match no finite text, left recursion, and grammars over the limits
// below are errors that name the rule. A grammar that is created has no rule that a matcher cannot begin.
//
// Ownership: a grammar does not change after it is created; matchers borrow it. Threads: any number of
// threads may use a grammar, but only one thread at a time may use a matcher.
#ifndef MLXCEL_GRAMMAR_GRAMMAR_H_
#define MLXCEL_GRAMMAR_GRAMMAR_H_

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MLX_GRAMMAR_MAX_SYMBOLS (1u << 20)  // of all rules, after repetitions are expanded
#define MLX_GRAMMAR_MAX_REPEAT 10000        // n of {n}
#define MLX_GRAMMAR_MAX_NESTING 100         // parentheses inside parentheses
#define MLX_GRAMMAR_MAX_DEPTH 2000          // rules inside rules while matching; deeper text is not accepted
#define MLX_GRAMMAR_MAX_STACKS 20000        // stacks of one matcher state
#define MLX_GRAMMAR_MAX_STATES (1u << 20)
#define MLX_GRAMMAR_SECONDS 10  // for one call of a matcher; a call normally takes less than 10 ms

// |name| appears in errors. Release with mlx_grammar_free.
typedef struct mlx_grammar mlx_grammar_t;
mlx_status_t mlx_grammar_create(const char *name, const char *gbnf, size_t length,
                                mlx_grammar_t **out_grammar) MLX_MUST_USE;
mlx_status_t mlx_grammar_create_from_schema(const char *name, const char *json_schema, size_t length,
                                            mlx_grammar_t **out_grammar) MLX_MUST_USE;
void mlx_grammar_free(mlx_grammar_t *grammar);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_GRAMMAR_GRAMMAR_H_
