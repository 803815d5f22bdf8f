// Embeddings: POST /v1/embeddings (OpenAI) and POST /api/embed (Ollama). The embedding of a text is the final
// hidden state of its last token, scaled to length 1.
#ifndef MLXCEL_SERVER_EMBEDDINGS_H_
#define MLXCEL_SERVER_EMBEDDINGS_H_

#include "server/errand.h"

// Loop thread. |ollama|: in the form of /api/embed.
mlx_status_t mlx_embeddings_start(mlx_service_t *service, bool ollama, mlx_exchange_t *exchange) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_EMBEDDINGS_H_
