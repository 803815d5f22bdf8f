// What the server needs of Anthropic's API beside mlx_api_messages: counting tokens, and errors.
#ifndef MLXCEL_SERVER_API_ANTHROPIC_H_
#define MLXCEL_SERVER_API_ANTHROPIC_H_

#include "server/api/api.h"

// mlx_api_messages.parse for POST /v1/messages/count_tokens: max_tokens is optional. Release the details
// with mlx_api_messages.free_details.
mlx_status_t mlx_anthropic_parse_count(const char *body, size_t length, const char *query,
                                       mlx_api_call_t *inout_call) MLX_MUST_USE;
void mlx_anthropic_write_error(const mlx_api_error_t *error, mlx_text_t *out);

#endif  // MLXCEL_SERVER_API_ANTHROPIC_H_
