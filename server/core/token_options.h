// Token options: the texts of a call that stand for tokens, as token ids: bad words and biases of texts.
#ifndef MLXCEL_SERVER_CORE_TOKEN_OPTIONS_H_
#define MLXCEL_SERVER_CORE_TOKEN_OPTIONS_H_

#include "server/api/call.h"

// Zero-initialize; release with mlx_token_options_clear.
typedef struct mlx_token_options {
  mlx_token_list_t *banned;  // [count] their ids are owned
  size_t count;
} mlx_token_options_t;

// Tokenizes the bad words of |call|, appends the biases of its texts to call->sampling, and checks all ids.
// Errors begin with the JSON path of a field.
mlx_status_t mlx_token_options_prepare(const mlx_engine_t *engine, mlx_api_call_t *call,
                                       mlx_token_options_t *out_options) MLX_MUST_USE;
void mlx_token_options_clear(mlx_token_options_t *options);

#endif  // MLXCEL_SERVER_CORE_TOKEN_OPTIONS_H_
