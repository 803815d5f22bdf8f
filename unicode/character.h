// Characters as Hugging Face's `tokenizers` package classifies them, and their lower case.
#ifndef MLXCEL_UNICODE_CHARACTER_H_
#define MLXCEL_UNICODE_CHARACTER_H_

#include "unicode/tables.h"
#include "unicode/utf8.h"

bool mlx_character_is_space(uint32_t character);
bool mlx_character_is_mark(uint32_t character);             // category M
bool mlx_character_is_nonspacing_mark(uint32_t character);  // category Mn
bool mlx_character_is_control(uint32_t character);          // removed by BertNormalizer's clean_text
bool mlx_character_is_punctuation(uint32_t character);
// Appends the lower case of |character|, which may be two characters.
void mlx_character_append_lower(mlx_text_t *out, uint32_t character);

#endif  // MLXCEL_UNICODE_CHARACTER_H_
