// Matcher: follows one text through a grammar and computes which tokens may come next.
#ifndef MLXCEL_GRAMMAR_MATCHER_H_
#define MLXCEL_GRAMMAR_MATCHER_H_

#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

typedef struct mlx_matcher mlx_matcher_t;

// Starts at the beginning of a text. Release with mlx_matcher_free before the grammar is released. Every call
// fails with MLX_TIMEOUT after MLX_GRAMMAR_SECONDS.
mlx_status_t mlx_matcher_create(const mlx_grammar_t *grammar, mlx_matcher_t **out_matcher) MLX_MUST_USE;
// The same, but the first call that needs the beginning of the grammar computes it. mlx_matcher_is_complete
// needs such a call first.
mlx_status_t mlx_matcher_create_later(const mlx_grammar_t *grammar, mlx_matcher_t **out_matcher) MLX_MUST_USE;
void mlx_matcher_free(mlx_matcher_t *matcher);
void mlx_matcher_restart(mlx_matcher_t *matcher);

// Advances over |bytes|. If no text of the grammar continues with them, *|out_accepted| is false and the
// matcher does not move.
mlx_status_t mlx_matcher_accept(mlx_matcher_t *matcher, const char *bytes, size_t length,
                                bool *out_accepted) MLX_MUST_USE;
// The same without moving the matcher.
mlx_status_t mlx_matcher_allows(mlx_matcher_t *matcher, const char *bytes, size_t length,
                                bool *out_allowed) MLX_MUST_USE;
// Limits the work of the next calls of mask and allows together; a unit takes a few nanoseconds. A call that
// uses up the rest has no result, and mlx_matcher_is_paused is true after it. With more work, the same call
// goes on where it stopped; |allowed| of a mask must not change between them. accept ends the limit: it uses
// what the mask has found. |work| must be at least MLX_MATCHER_LEAST_WORK, else no call gets further.
#define MLX_MATCHER_LEAST_WORK 16
void mlx_matcher_allow_work(mlx_matcher_t *matcher, uint64_t work);
bool mlx_matcher_is_paused(const mlx_matcher_t *matcher);
bool mlx_matcher_is_complete(const mlx_matcher_t *matcher);  // the text may end here
// Sets the bit of every token that may follow and clears all others. |allowed| has one bit for each token of
// the vocabulary.
mlx_status_t mlx_matcher_mask(mlx_matcher_t *matcher, const mlx_vocabulary_t *vocabulary,
                              uint64_t *allowed) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_MATCHER_H_
