// Embed: POST /v1/embeddings (OpenAI), /api/embed and /api/embeddings (Ollama), /embed (TEI). The embedding
// of a text is what an encoder's pooling makes of it; of a decoder, the final hidden state of its last token,
// scaled to length 1.
#ifndef MLXCEL_SERVER_CORE_EMBED_H_
#define MLXCEL_SERVER_CORE_EMBED_H_

#include "server/api/embeddings.h"
#include "server/core/job.h"

// Loop thread: begins the stages of |job|, in the form of |api|.
mlx_status_t mlx_embed_start(mlx_job_t *job, const mlx_embeddings_api_t *api) MLX_MUST_USE;

// True for a folder of sentence-transformers: before it is loaded, that tells that it is an embedding model.
bool mlx_embed_is_sentence_folder(const mlx_served_model_t *model);

// The name of the model for a request that names none: clients of text-embeddings-inference never do. It is
// the first one that is known to be an encoder, because it is a sentence-transformers folder or is loaded.
// NULL: the server's first model.
const char *mlx_embed_default_model(mlx_models_t *models);

#endif  // MLXCEL_SERVER_CORE_EMBED_H_
