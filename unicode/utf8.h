// UTF-8: reading and writing single characters. base/text.h has the length of one.
#ifndef MLXCEL_UNICODE_UTF8_H_
#define MLXCEL_UNICODE_UTF8_H_

#include <stdint.h>

#include "base/text.h"

bool mlx_utf8_is_valid(const char *text, size_t length);
// The character at |text|, which must be valid UTF-8. *out_length is its length in bytes.
uint32_t mlx_character_at(const char *text, size_t *out_length);
// The same for |length| bytes that may be no UTF-8: a byte that begins no character counts as one.
uint32_t mlx_character_or_byte_at(const char *text, size_t length, size_t *out_length);
// Writes |character| as UTF-8 and returns the number of bytes.
size_t mlx_character_write(uint32_t character, char out[4]);
void mlx_character_append(mlx_text_t *out, uint32_t character);

#endif  // MLXCEL_UNICODE_UTF8_H_
