// Token rules: which tokens a sequence may generate, by their ids: only some, none that end it too early, and
// no banned sequences.
//
// Ownership: the caller owns it. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_TOKEN_RULES_H_
#define MLXCEL_RUNTIME_TOKEN_RULES_H_

#include "runtime/mlxcel.h"

typedef struct mlx_token_rules {
  size_t words;       // of a mask: one bit for each token
  uint64_t *allowed;  // [words] owned; NULL: all tokens
  uint64_t *ends;     // [words] owned: tokens that end the sequence; NULL: they are never excluded
  int64_t min_tokens;
  mlx_token_list_t *banned;  // [banned_count] owned, with the ids in |banned_ids|
  size_t banned_count, longest;
  int32_t *banned_ids;  // owned
  int64_t generated;    // tokens
  int32_t *tail;        // [longest - 1] owned: the last tokens that were generated, the latest one last
  size_t tail_count;
} mlx_token_rules_t;

// Copies the rules of |options|. |eos| are the end-of-text tokens. Fails if an id is not in the vocabulary.
// Release with mlx_token_rules_clear, also after a failure.
mlx_status_t mlx_token_rules_initialize(const mlx_generate_options_t *options, const int32_t *eos,
                                        size_t eos_count, int64_t vocab,
                                        mlx_token_rules_t *out_rules) MLX_MUST_USE;
void mlx_token_rules_clear(mlx_token_rules_t *rules);
// Whether the next token may depend on the rules. Once false, it stays false.
bool mlx_token_rules_apply_next(const mlx_token_rules_t *rules);
// Excludes tokens from |mask|, which has |words| words.
void mlx_token_rules_filter(const mlx_token_rules_t *rules, uint64_t *mask);
// Notes a generated token.
void mlx_token_rules_accept(mlx_token_rules_t *rules, int32_t id);

#endif  // MLXCEL_RUNTIME_TOKEN_RULES_H_
