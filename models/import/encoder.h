// Encoder: names of model families that compute embeddings and generate no text.
#ifndef MLXCEL_MODELS_IMPORT_ENCODER_H_
#define MLXCEL_MODELS_IMPORT_ENCODER_H_

#include "base/status.h"

// Fails if |type|, a model_type of Hugging Face or a general.architecture of GGUF, is an encoder. |path| is
// the model.
mlx_status_t mlx_encoder_refuse(const char *path, const char *type) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_ENCODER_H_
