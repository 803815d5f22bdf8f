// The tokenizer of a Hugging Face directory that has vocab.txt and no tokenizer.json: WordPiece, as BERT's
// class in transformers builds it.
#ifndef MLXCEL_MODELS_IMPORT_HF_VOCAB_H_
#define MLXCEL_MODELS_IMPORT_HF_VOCAB_H_

#include "base/json.h"

#define MLX_VOCAB_NAME "vocab.txt"

// Writes tokenizer.json. |text| [length] is the file |name|: a token on each line, whose number is the
// token's ID. |config| is tokenizer_config.json; its root may be NULL. Release with mlx_free.
mlx_status_t mlx_hf_vocab_tokenizer(const char *name, const char *text, size_t length,
                                    const mlx_json_t *config, char **out_json,
                                    size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_HF_VOCAB_H_
