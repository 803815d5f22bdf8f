// Encoding: hexadecimal digits and base64. Secrets are encoded by libsodium, in constant time.
#ifndef MLXCEL_BASE_ENCODING_H_
#define MLXCEL_BASE_ENCODING_H_

#include <stdint.h>

#include "base/text.h"

int mlx_hex_digit(char c);  // 0 to 15; -1: none

void mlx_base64_append(mlx_text_t *out, const void *bytes, size_t length);  // with padding
// Decodes base64 with padding. Release *out_bytes with mlx_free.
mlx_status_t mlx_base64_decode(const char *text, size_t length, uint8_t **out_bytes,
                               size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_BASE_ENCODING_H_
