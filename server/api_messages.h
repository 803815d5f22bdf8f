// What the server needs of Anthropic's API beside mlx_shape_messages: counting tokens.
#ifndef MLXCEL_SERVER_API_MESSAGES_H_
#define MLXCEL_SERVER_API_MESSAGES_H_

#include "server/shape.h"

// mlx_shape_messages.parse for POST /v1/messages/count_tokens: max_tokens is optional. Release the details
// with mlx_shape_messages.free_details.
mlx_status_t mlx_messages_parse_count(const char *body, size_t length, const char *query,
                                      mlx_call_t *inout_call) MLX_MUST_USE;
// The body of its response.
void mlx_messages_write_count(int64_t tokens, mlx_text_t *out);

#endif  // MLXCEL_SERVER_API_MESSAGES_H_
