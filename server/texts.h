// Texts: endpoints that use a model's tokenizer, template or properties, but do not run it: /tokenize,
// /detokenize, /apply-template, /v1/messages/count_tokens, /props, /model_info and /api/show.
#ifndef MLXCEL_SERVER_TEXTS_H_
#define MLXCEL_SERVER_TEXTS_H_

#include "server/errand.h"

typedef enum mlx_text_endpoint {
  MLX_TEXT_TOKENIZE,
  MLX_TEXT_DETOKENIZE,
  MLX_TEXT_TEMPLATE,
  MLX_TEXT_COUNT,
  MLX_TEXT_PROPS,
  MLX_TEXT_MODEL_INFO,
  MLX_TEXT_SHOW
} mlx_text_endpoint_t;

// Loop thread.
mlx_status_t mlx_text_start(mlx_service_t *service, mlx_text_endpoint_t endpoint,
                            mlx_exchange_t *exchange) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_TEXTS_H_
