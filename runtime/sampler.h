// Sampler: from logits to a token, as llama.cpp documents it (docs/sampling.md has the order).
//
// It knows nothing of models or devices: logits and a mask of allowed tokens come in, a token id goes out.
// The same options, seed and logits give the same tokens on every machine: the generator is our own, and so
// are exp and log (exact_math.h).
//
// Ownership: a sampler belongs to whoever created it and copies what it keeps of the options.
// Threads: one at a time.
#ifndef MLXCEL_RUNTIME_SAMPLER_H_
#define MLXCEL_RUNTIME_SAMPLER_H_

#include "runtime/mlxcel.h"

typedef struct mlx_sampler mlx_sampler_t;

// xoshiro256** by Blackman and Vigna, its state filled by splitmix64 from the seed.
typedef struct mlx_random {
  uint64_t state[4];
} mlx_random_t;
void mlx_random_seed(mlx_random_t *random, uint64_t seed);
uint64_t mlx_random_next(mlx_random_t *random);
double mlx_random_unit(mlx_random_t *random);  // the upper 53 bits: at least 0, less than 1

// True when these options always choose the largest logit, so that nobody needs to see logits.
bool mlx_sampling_is_argmax(const mlx_sampling_t *options);

// |vocab| logits come with each choice. |context| is what a window of -1 stands for. Release with
// mlx_sampler_free.
mlx_status_t mlx_sampler_create(const mlx_sampling_t *options, size_t vocab, int64_t context,
                                mlx_sampler_t **out_sampler) MLX_MUST_USE;
void mlx_sampler_free(mlx_sampler_t *sampler);

// Tells the sampler of a token in the sequence: the prompt's, and every one that was chosen. |piece| is its
// text, for DRY's breakers.
mlx_status_t mlx_sampler_accept(mlx_sampler_t *sampler, int32_t id, const char *piece,
                                size_t length) MLX_MUST_USE;

typedef struct mlx_sampler_token {
  int32_t id;
  double score;  // its logit after all that was done to it
  double probability;
} mlx_sampler_token_t;

// What is left to draw from, likeliest first (equals by id); probabilities add up to 1. Borrowed until the
// next call. |allowed| has a bit for every token that may be chosen; NULL: all may. Fails when nothing is
// left.
mlx_status_t mlx_sampler_filter(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                                const mlx_sampler_token_t **out_tokens, size_t *out_count) MLX_MUST_USE;
// Filters and draws. It does not accept what it drew.
mlx_status_t mlx_sampler_choose(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                                int32_t *out_id) MLX_MUST_USE;

// The |count| best tokens by |logits| alone, and |chosen|: exact log-softmax, added up in double. |out| has
// room for count + 1 and ends with the chosen one.
mlx_status_t mlx_logprobs(const float *logits, size_t vocab, int32_t chosen, size_t count,
                          mlx_logprob_t *out) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SAMPLER_H_
