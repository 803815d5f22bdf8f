// Visible tokens: the special tokens that are part of the generated text
// (mlx_generate_options_t.visible_tokens), as ids.
//
// Ownership: a plain struct; mlx_visible_clear releases it. Threads: it does not change after it is created.
#ifndef MLXCEL_RUNTIME_VISIBLE_H_
#define MLXCEL_RUNTIME_VISIBLE_H_

#include "runtime/mlxcel.h"
#include "tokenizer/tokenizer.h"

typedef struct mlx_visible {
  int32_t *ids;  // [count]
  size_t count;
} mlx_visible_t;

// Finds the tokens of |options|. Texts that are no special token of |tokenizer| are left out, and so are
// end-of-text tokens. Release with mlx_visible_clear, also after a failure.
mlx_status_t mlx_visible_initialize(const mlx_generate_options_t *options, const mlx_tokenizer_t *tokenizer,
                                    const int32_t *eos, size_t eos_count,
                                    mlx_visible_t *out_visible) MLX_MUST_USE;
void mlx_visible_clear(mlx_visible_t *visible);
bool mlx_visible_has(const mlx_visible_t *visible, int32_t id);

#endif  // MLXCEL_RUNTIME_VISIBLE_H_
