// The four normal forms of Unicode. The results are those of Hugging Face's `tokenizers` package.
#ifndef MLXCEL_UNICODE_NORMAL_FORM_H_
#define MLXCEL_UNICODE_NORMAL_FORM_H_

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef enum mlx_normal_form { MLX_NFC, MLX_NFD, MLX_NFKC, MLX_NFKD } mlx_normal_form_t;

// Working memory of mlx_normal_form_append: the combining marks after one character. Zero-initialize to
// start; the owner frees |items|.
typedef struct mlx_marks {
  uint32_t *items;
  size_t count, capacity;
} mlx_marks_t;

// Appends the normal form of |text|, which must be valid UTF-8.
mlx_status_t mlx_normal_form_append(mlx_normal_form_t form, const char *text, size_t length,
                                    mlx_marks_t *marks, mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_UNICODE_NORMAL_FORM_H_
