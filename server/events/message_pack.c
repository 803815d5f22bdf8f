// See message_pack.h.
#include "server/events/message_pack.h"

#include <string.h>

// A byte that tells the type, and |size| bytes of |value|, the most significant first.
static void put(mlx_text_t *out, int type, uint64_t value, int size) {
  char bytes[9] = {(char)type};
  for (int i = 0; i < size; ++i) bytes[1 + i] = (char)(value >> (8 * (size - 1 - i)));
  mlx_text_append(out, bytes, 1 + (size_t)size);
}

void mlx_message_pack_array(mlx_text_t *out, size_t count) {
  if (count < 16)
    put(out, 0x90 | (int)count, 0, 0);
  else if (count <= UINT16_MAX)
    put(out, 0xdc, count, 2);
  else
    put(out, 0xdd, count, 4);
}

void mlx_message_pack_nil(mlx_text_t *out) { put(out, 0xc0, 0, 0); }

void mlx_message_pack_text(mlx_text_t *out, const char *text) {
  const size_t length = strlen(text);
  if (length < 32)
    put(out, 0xa0 | (int)length, 0, 0);
  else
    put(out, 0xd9, length, 1);
  mlx_text_append(out, text, length);
}

void mlx_message_pack_double(mlx_text_t *out, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  put(out, 0xcb, bits, 8);
}

void mlx_message_pack_uint(mlx_text_t *out, uint64_t value) {
  if (value < 128)
    put(out, (int)value, 0, 0);
  else if (value <= UINT8_MAX)
    put(out, 0xcc, value, 1);
  else if (value <= UINT16_MAX)
    put(out, 0xcd, value, 2);
  else if (value <= UINT32_MAX)
    put(out, 0xce, value, 4);
  else
    put(out, 0xcf, value, 8);
}

void mlx_message_pack_uint64(mlx_text_t *out, uint64_t value) { put(out, 0xcf, value, 8); }
