// Checks that more tokens fit into a sequence.
#ifndef MLXCEL_RUNTIME_PROMPT_H_
#define MLXCEL_RUNTIME_PROMPT_H_

#include <stdint.h>

#include "base/status.h"

// The positions of a sequence, and the most that the model supports: a larger -c can give that many.
typedef struct mlx_context_limit {
  int64_t positions, model;
} mlx_context_limit_t;

// Fails if |count| more tokens do not fit into the context, of which |length| positions are in use.
mlx_status_t mlx_context_check(size_t count, int64_t length, mlx_context_limit_t context) MLX_MUST_USE;
// Also fails if there are no tokens, or if one of them is not in the model's vocabulary.
mlx_status_t mlx_prompt_check(const int32_t *ids, size_t count, int64_t length, mlx_context_limit_t context,
                              int64_t vocab) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_PROMPT_H_
