// Checks that more tokens fit into a sequence.
#ifndef MLXCEL_RUNTIME_PROMPT_H_
#define MLXCEL_RUNTIME_PROMPT_H_

#include <stdint.h>

#include "base/status.h"

// Fails if |count| more tokens do not fit into a context of |context| positions, of which |length| are in
// use.
mlx_status_t mlx_context_check(size_t count, int64_t length, int64_t context) MLX_MUST_USE;
// Also fails if there are no tokens, or if one of them is not in the model's vocabulary.
mlx_status_t mlx_prompt_check(const int32_t *ids, size_t count, int64_t length, int64_t context,
                              int64_t vocab) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_PROMPT_H_
