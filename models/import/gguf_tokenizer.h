// The tokenizer of a GGUF file.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_H_
#define MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_H_

#include <stdint.h>

#include "models/import/gguf.h"

// Writes Hugging Face's tokenizer.json from the tokenizer.* fields. Release with mlx_free.
mlx_status_t mlx_gguf_tokenizer_json(const mlx_gguf_t *gguf, char **out_json,
                                     size_t *out_length) MLX_MUST_USE;
// The ids of the end-of-sequence, end-of-turn and end-of-message tokens, without repeats. More than
// |capacity| ids are an error.
mlx_status_t mlx_gguf_eos_ids(const mlx_gguf_t *gguf, int32_t *out_ids, size_t capacity,
                              size_t *out_count) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_H_
