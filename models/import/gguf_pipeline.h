// The first part of tokenizer.json, which all kinds of tokenizer share: added tokens, normalizer,
// pre-tokenizer and post-processor. The decoder and the model follow it in the same object.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_PIPELINE_H_
#define MLXCEL_MODELS_IMPORT_GGUF_PIPELINE_H_

#include "models/import/gguf_vocabulary.h"

typedef struct mlx_gguf_pipeline {
  const char *normalizer, *pre_tokenizer;  // JSON
  const char *bos_key, *eos_key;           // fields with the ids of BOS and EOS
  bool add_bos, add_eos;                   // defaults for add_bos_token and add_eos_token
} mlx_gguf_pipeline_t;

// Writes the members up to "post_processor", which adds BOS and EOS.
mlx_status_t mlx_gguf_write_pipeline(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                     const mlx_gguf_pipeline_t *pipeline,
                                     mlx_json_writer_t *json) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_GGUF_PIPELINE_H_
