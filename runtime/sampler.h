// Sampler: logits and a mask of allowed tokens in, a token id out. The chain of steps is llama.cpp's
// (docs/sampling.md has the order).
//
// The same options, seed, position and logits give the same token on every machine and device: the arithmetic
// is that of kernels/sample.h. The sampler does not depend on a model or a device.
//
// Ownership: the caller owns the sampler. It copies the options that it keeps.
// Threads: a sampler must be used by one thread at a time.
#ifndef MLXCEL_RUNTIME_SAMPLER_H_
#define MLXCEL_RUNTIME_SAMPLER_H_

#include "runtime/mlxcel.h"

typedef struct mlx_sampler mlx_sampler_t;

// False if an option (DRY, XTC, top-n-sigma, Mirostat) needs mlx_sampler_sample on the host.
bool mlx_sampling_runs_on_device(const mlx_sampling_t *options);
// Fills |words|, a sampling record of kernels/step.h, so that the device samples with these options. Options
// that need the host are left out. Sets the flag MLX_SAMPLE_TOKEN. The caller sets the offsets of mask and
// biases, the target and the number of log-probabilities, which are 0, and further flags. |context| is the
// length of a look-back window of -1.
void mlx_sampling_to_words(const mlx_sampling_t *options, int64_t context, int32_t *words);
// Writes the biases as [options->bias_count][2] words, for MLX_SAMPLING_BIAS_AT.
void mlx_sampling_biases_to_words(const mlx_sampling_t *options, int32_t *words);

// Fails if a bias names a token that is not in the vocabulary.
mlx_status_t mlx_sampling_check_biases(const mlx_sampling_t *options, size_t vocab) MLX_MUST_USE;
// |vocab| is the number of logits. |context| is the length of a look-back window of -1. Release with
// mlx_sampler_free.
mlx_status_t mlx_sampler_create(const mlx_sampling_t *options, size_t vocab, int64_t context,
                                mlx_sampler_t **out_sampler) MLX_MUST_USE;
void mlx_sampler_free(mlx_sampler_t *sampler);  // NULL is fine

// Appends a token to the history that penalties look back on: each prompt token, and each sampled token. The
// number of accepted tokens is the position of the next one, on which its random number depends. |piece| is
// the token's text, for DRY's sequence breakers.
mlx_status_t mlx_sampler_accept(mlx_sampler_t *sampler, int32_t id, const char *piece,
                                size_t length) MLX_MUST_USE;

typedef struct mlx_sampler_token {
  int32_t id;
  float score;      // after all steps, less the best one
  uint64_t weight;  // floor(exp(score) * 2^40)
  double probability;
} mlx_sampler_token_t;

// Runs the chain up to the draw. The result is the remaining candidates, most likely first (ties by id), with
// probabilities that add up to 1; it is borrowed until the next call. |allowed| has one bit per token; NULL
// allows all. Fails if no candidate remains.
mlx_status_t mlx_sampler_filter(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                                const mlx_sampler_token_t **out_tokens, size_t *out_count) MLX_MUST_USE;
// Filters, then draws one token. The caller adds it to the history with mlx_sampler_accept.
mlx_status_t mlx_sampler_sample(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                                int32_t *out_id) MLX_MUST_USE;
// The same token, and the candidates that it was drawn from, as of mlx_sampler_filter.
mlx_status_t mlx_sampler_sample_listed(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                                       int32_t *out_id, const mlx_sampler_token_t **out_tokens,
                                       size_t *out_count) MLX_MUST_USE;

// Log-probabilities of the |count| most likely tokens and of |chosen|: the log-softmax of |logits|, the same
// bits as on a device. |out| has room for count + 1 entries; the last is |chosen|.
mlx_status_t mlx_logprobs(const float *logits, size_t vocab, int32_t chosen, size_t count,
                          mlx_logprob_t *out) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SAMPLER_H_
