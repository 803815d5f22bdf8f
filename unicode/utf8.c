// See utf8.h.
#include "unicode/utf8.h"

bool mlx_utf8_is_valid(const char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    int size = mlx_utf8_length(text + i, length - i);
    if (size <= 0) return false;
    i += (size_t)size;
  }
  return true;
}

uint32_t mlx_character_at(const char *text, size_t *out_length) {
  const uint8_t *s = (const uint8_t *)text;
  *out_length = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  if (s[0] < 0x80) return s[0];
  if (s[0] < 0xe0) return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
  if (s[0] < 0xf0) return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
  return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

uint32_t mlx_character_or_byte_at(const char *text, size_t length, size_t *out_length) {
  const int size = mlx_utf8_length(text, length);
  uint32_t code = (unsigned char)text[0];
  *out_length = size > 0 ? (size_t)size : 1;
  if (size > 1) code &= 0xffu >> (size + 1);
  for (int i = 1; i < size; ++i) code = code << 6 | ((unsigned char)text[i] & 0x3f);
  return code;
}

size_t mlx_character_write(uint32_t character, char out[4]) {
  if (character < 0x80) {
    out[0] = (char)character;
    return 1;
  }
  size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
  for (size_t i = length - 1; i > 0; --i, character >>= 6) out[i] = (char)(0x80 | (character & 0x3f));
  out[0] = (char)((0xf00 >> length & 0xff) | character);
  return length;
}

void mlx_character_append(mlx_text_t *out, uint32_t character) {
  char bytes[4];
  mlx_text_append(out, bytes, mlx_character_write(character, bytes));
}
