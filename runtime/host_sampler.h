// Host sampler: chooses the next token of a session on the host, for generate.c.
//
// It reads the logits from the device, applies the grammar's mask and runs the sampler (sampler.h). Plain
// greedy decoding needs no host sampler: the device's own argmax is the next token.
#ifndef MLXCEL_RUNTIME_HOST_SAMPLER_H_
#define MLXCEL_RUNTIME_HOST_SAMPLER_H_

#include "runtime/engine_internal.h"

typedef struct mlx_host_sampler mlx_host_sampler_t;

// False if |options| always choose the device's argmax and report no log-probabilities.
bool mlx_host_sampler_is_needed(const mlx_generate_options_t *options);
// |ids| are all tokens of the sequence so far, for the penalties. |options| are borrowed only for the call,
// except the grammar, which must outlive the sampler. Release with mlx_host_sampler_free.
mlx_status_t mlx_host_sampler_create(mlx_engine_t *engine, const mlx_generate_options_t *options,
                                     const int32_t *ids, size_t count,
                                     mlx_host_sampler_t **out_sampler) MLX_MUST_USE;
void mlx_host_sampler_free(mlx_host_sampler_t *sampler);  // NULL is fine

// Chooses the next token and adds it to the sampler's history. *|out_complete| is true, and no token is
// chosen, if the grammar allows no further text. |out_logprobs| has room for options.logprobs + 1, or is
// NULL.
mlx_status_t mlx_host_sampler_next(mlx_host_sampler_t *sampler, mlx_session_t *session, int32_t *out_id,
                                   bool *out_complete, mlx_logprob_t *out_logprobs) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_HOST_SAMPLER_H_
