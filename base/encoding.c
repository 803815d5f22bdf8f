// See encoding.h.
#include "base/encoding.h"

#include "base/memory.h"

int mlx_hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void mlx_base64_append(mlx_text_t *out, const void *bytes, size_t length) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint8_t *in = bytes;
  for (size_t i = 0; i < length; i += 3) {
    const size_t left = length - i;
    const uint32_t group =
        (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) | (left > 2 ? in[i + 2] : 0);
    const char four[4] = {digits[group >> 18], digits[group >> 12 & 63],
                          left > 1 ? digits[group >> 6 & 63] : '=', left > 2 ? digits[group & 63] : '='};
    mlx_text_append(out, four, sizeof four);
  }
}

static int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

mlx_status_t mlx_base64_decode(const char *text, size_t length, uint8_t **out_bytes, size_t *out_length) {
  uint8_t *bytes;
  size_t count = 0,
         padding = length && text[length - 1] == '=' ? 1 + (length > 1 && text[length - 2] == '=') : 0;
  uint32_t bits = 0;
  *out_bytes = NULL;
  if (length % 4) return mlx_error(MLX_INVALID_INPUT, "not valid base64");
  MLX_TRY(mlx_alloc(length / 4 * 3, 1, &bytes));
  for (size_t i = 0; i < length - padding; ++i) {
    int value = base64_value(text[i]);
    if (value < 0) {
      mlx_free(bytes);
      return mlx_error(MLX_INVALID_INPUT, "not valid base64");
    }
    bits = bits << 6 | (uint32_t)value;
    if (i % 4) bytes[count++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
  }
  *out_bytes = bytes;
  *out_length = count;
  return NULL;
}
