// Infill: the prompt of a model that was trained to fill in the middle of a text, from the text before and
// after the gap. The model's tokens are found by their names.
#ifndef MLXCEL_SERVER_CORE_INFILL_H_
#define MLXCEL_SERVER_CORE_INFILL_H_

#include "server/api/call.h"

// Makes the ids of the only prompt of |call|, whose |infill| is set: llama.cpp's pattern of repository,
// files, prefix, suffix and middle. If they do not fit into the context beside max_tokens, the oldest files
// are left out, then the beginning of the prefix and the end of the suffix. Tokens that begin another file
// become stop_ids. Fails with MLX_UNSUPPORTED if the model has no such tokens.
mlx_status_t mlx_infill_prepare(const mlx_engine_t *engine, mlx_api_call_t *call) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_INFILL_H_
