// Chooser: where the host has a say in which token comes next, for generate.c. Holds the sampler, and brings
// it the logits. Not needed, and not there, when the device's own choice is what was asked for.
#ifndef MLXCEL_RUNTIME_CHOOSER_H_
#define MLXCEL_RUNTIME_CHOOSER_H_

#include "runtime/engine_internal.h"

typedef struct mlx_chooser mlx_chooser_t;

bool mlx_chooser_is_needed(const mlx_generate_options_t *options);
// |ids| are the prompt's. Release with mlx_chooser_free.
mlx_status_t mlx_chooser_create(mlx_engine_t *engine, const mlx_generate_options_t *options,
                                const int32_t *ids, size_t count, mlx_chooser_t **out_chooser) MLX_MUST_USE;
void mlx_chooser_free(mlx_chooser_t *chooser);

// *|inout_id| is the model's own choice and becomes ours. *|out_complete|: nothing can follow, and there is
// no token. |out_logprobs| has room for options.logprobs + 1, or is NULL.
mlx_status_t mlx_chooser_next(mlx_chooser_t *chooser, mlx_session_t *session, int32_t *inout_id,
                              bool *out_complete, mlx_logprob_t *out_logprobs) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_CHOOSER_H_
