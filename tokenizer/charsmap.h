// The Precompiled normalizer of SentencePiece models (T5, XLM-R): a compiled map of character replacements.
#ifndef MLXCEL_TOKENIZER_CHARSMAP_H_
#define MLXCEL_TOKENIZER_CHARSMAP_H_

#include "base/status.h"
#include "base/text.h"

typedef struct mlx_charsmap mlx_charsmap_t;

// Reads the base64 text of precompiled_charsmap. Release with mlx_charsmap_free.
mlx_status_t mlx_charsmap_create(const char *base64, size_t length,
                                 mlx_charsmap_t **out_charsmap) MLX_MUST_USE;
// Appends |text| with its replacements. Stops early once |out| is longer than |max| bytes.
void mlx_charsmap_run(const mlx_charsmap_t *charsmap, const char *text, size_t length, size_t max,
                      mlx_text_t *out);
void mlx_charsmap_free(mlx_charsmap_t *charsmap);  // NULL is fine

#endif  // MLXCEL_TOKENIZER_CHARSMAP_H_
