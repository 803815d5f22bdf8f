// The request of Anthropic's messages API. For anthropic.c only.
#ifndef MLXCEL_SERVER_API_ANTHROPIC_INPUT_H_
#define MLXCEL_SERVER_API_ANTHROPIC_INPUT_H_

#include "server/api/fields.h"

// Reads "system" and "messages" into call->messages. An assistant message at the end is continued.
mlx_status_t mlx_anthropic_read_history(const mlx_place_t *root, mlx_api_call_t *call) MLX_MUST_USE;
// Reads "tools" and "tool_choice".
mlx_status_t mlx_anthropic_read_tools(const mlx_place_t *root, mlx_api_call_t *call) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_ANTHROPIC_INPUT_H_
