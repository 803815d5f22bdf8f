// See character.h.
#include "unicode/character.h"

bool mlx_character_is_mark(uint32_t character) {
  return character >= 0x300 && mlx_ranges_have(&mlx_hf_marks, character);
}
bool mlx_character_is_nonspacing_mark(uint32_t character) {
  return character >= 0x300 && mlx_ranges_have(&mlx_hf_nonspacing, character);
}
bool mlx_character_is_control(uint32_t character) { return mlx_ranges_have(&mlx_hf_controls, character); }
bool mlx_character_is_punctuation(uint32_t character) {
  return mlx_ranges_have(&mlx_hf_punctuation, character);
}

bool mlx_character_is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void mlx_character_append_lower(mlx_text_t *out, uint32_t character) {
  uint32_t lower;
  const char *text = mlx_case_find(&mlx_hf_lower, character, &lower);
  if (text)
    mlx_text_puts(out, text);
  else
    mlx_character_append(out, lower);
}
