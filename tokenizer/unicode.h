// Unicode: UTF-8, the character classes and lower case that normalizers and pre-tokenizers use, and the four
// normal forms. The results are those of Hugging Face's `tokenizers` package.
#ifndef MLXCEL_TOKENIZER_UNICODE_H_
#define MLXCEL_TOKENIZER_UNICODE_H_

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

bool mlx_utf8_is_valid(const char *text, size_t length);
// The character at |text|, which must be valid UTF-8. *out_length is its length in bytes.
uint32_t mlx_character_at(const char *text, size_t *out_length);
// Writes |character| as UTF-8 and returns the number of bytes.
size_t mlx_character_write(uint32_t character, char out[4]);
void mlx_character_append(mlx_text_t *out, uint32_t character);
// Appends the lower case of |character|, which may be two characters.
void mlx_character_append_lower(mlx_text_t *out, uint32_t character);

bool mlx_character_is_space(uint32_t character);
bool mlx_character_is_mark(uint32_t character);             // category M
bool mlx_character_is_nonspacing_mark(uint32_t character);  // category Mn
bool mlx_character_is_control(uint32_t character);          // removed by BertNormalizer's clean_text
bool mlx_character_is_punctuation(uint32_t character);

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

#endif  // MLXCEL_TOKENIZER_UNICODE_H_
