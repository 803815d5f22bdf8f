// Printable bytes spell themselves. The other 68 (controls, space, 0x7f to 0xa0, 0xad) are spelled as U+0100
// and up, in order.
#include "tokenizer/byte_level.h"

static uint32_t byte_to_character(uint8_t byte) {
  if (byte <= 0x20) return 0x100u + byte;
  if (byte >= 0x7f && byte <= 0xa0) return 0x121u + (byte - 0x7fu);
  return byte == 0xad ? 0x143u : byte;
}

// The byte that |character| spells, or -1.
static int character_to_byte(uint32_t character) {
  if (character > 0x143) return -1;
  if (character == 0x143) return 0xad;
  if (character >= 0x121) return (int)(character - 0x121 + 0x7f);
  if (character >= 0x100) return (int)(character - 0x100);
  return byte_to_character((uint8_t)character) == character ? (int)character : -1;
}

size_t mlx_byte_level_spell(uint8_t byte, char out[2]) {
  uint32_t character = byte_to_character(byte);
  if (character < 0x80) {
    out[0] = (char)character;
    return 1;
  }
  out[0] = (char)(0xc0 | character >> 6);
  out[1] = (char)(0x80 | (character & 0x3f));
  return 2;
}

bool mlx_byte_level_unspell(const char *text, size_t length, char *out, size_t *out_length) {
  size_t count = 0;
  for (size_t i = 0; i < length;) {
    uint8_t lead = (uint8_t)text[i];
    uint32_t character = lead;
    if (lead >= 0x80) {
      if (lead >= 0xe0 || i + 1 >= length) return false;  // above U+07FF, which spells no byte
      character = (lead & 0x1fu) << 6 | ((uint8_t)text[i + 1] & 0x3fu);
    }
    int byte = character_to_byte(character);
    if (byte < 0) return false;
    out[count++] = (char)byte;
    i += lead < 0x80 ? 1 : 2;
  }
  *out_length = count;
  return true;
}
