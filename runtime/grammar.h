// Grammar: which texts may be written, and at every place which tokens lead to one of them.
//
// A grammar is GBNF, llama.cpp's notation (docs/sampling.md), or made from a JSON schema (json_schema.h). It is compiled to
// rules over bytes, so that a token may end inside a character. A matcher follows a text: all ways through the rules at once,
// as a set of stacks; sets that were met before are numbered states with known transitions, so that most of a text costs a
// table lookup a byte.
//
// Grammars are foreign input: rules without an end, left recursion and anything beyond the limits below are refused by name.
//
// Ownership: a grammar never changes after create; matchers borrow it. Threads: a matcher belongs to one at a time.
#ifndef MLXCEL_RUNTIME_GRAMMAR_H_
#define MLXCEL_RUNTIME_GRAMMAR_H_

#include "runtime/mlxcel.h"
#include "runtime/vocabulary.h"

#define MLX_GRAMMAR_MAX_SYMBOLS (1u << 20)  // of all rules, after repetitions are written out
#define MLX_GRAMMAR_MAX_REPEAT 10000        // {n}
#define MLX_GRAMMAR_MAX_NESTING 100         // of parentheses
#define MLX_GRAMMAR_MAX_DEPTH 2000          // of rules inside rules while matching; what lies deeper is not allowed
#define MLX_GRAMMAR_MAX_STACKS 20000        // ways through the rules at one place
#define MLX_GRAMMAR_MAX_STATES (1u << 20)

typedef struct mlx_matcher mlx_matcher_t;

// At the beginning of a text. Release with mlx_matcher_free, before the grammar.
mlx_status_t mlx_matcher_create(const mlx_grammar_t *grammar, mlx_matcher_t **out_matcher) MLX_MUST_USE;
void mlx_matcher_free(mlx_matcher_t *matcher);
void mlx_matcher_restart(mlx_matcher_t *matcher);

// Follows |bytes|. *out_accepted: no text of the grammar goes on like this when false, and the matcher stays where it was.
mlx_status_t mlx_matcher_accept(mlx_matcher_t *matcher, const char *bytes, size_t length, bool *out_accepted) MLX_MUST_USE;
bool mlx_matcher_is_complete(const mlx_matcher_t *matcher);  // the text may end here
// Sets the bit of every token that may follow and clears all others; |allowed| has a bit for each of the vocabulary's ids.
mlx_status_t mlx_matcher_mask(mlx_matcher_t *matcher, const mlx_vocabulary_t *vocabulary, uint64_t *allowed) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_GRAMMAR_H_
