// SentencePiece's compiled map of characters, the Precompiled normalizer: not done yet, so such a file is refused.
#include "runtime/tokenizer_internal.h"

mlx_status_t mlx_charsmap_create(const char *base64, size_t length, struct mlx_charsmap **out_charsmap) {
  (void)base64;
  *out_charsmap = NULL;
  return mlx_error(MLX_UNSUPPORTED, "a compiled map of %zu characters in base64 is not supported", length);
}

void mlx_charsmap_run(const struct mlx_charsmap *charsmap, const char *text, size_t length, mlx_text_t *out) {
  (void)charsmap;
  mlx_text_append(out, text, length);
}

void mlx_charsmap_free(struct mlx_charsmap *charsmap) { mlx_free(charsmap); }
