// SHA-1, which git uses to identify files. It detects damaged downloads; it is not secure against attackers.
#ifndef MLXCEL_BASE_SHA1_H_
#define MLXCEL_BASE_SHA1_H_

#include <stddef.h>
#include <stdint.h>

#define MLX_SHA1_HEX 41  // 40 hexadecimal digits and a NUL

typedef struct mlx_sha1 {
  uint32_t state[5];
  uint64_t length;    // bytes so far
  uint8_t block[64];  // the current, incomplete block
} mlx_sha1_t;

void mlx_sha1_begin(mlx_sha1_t *sha1);
void mlx_sha1_add(mlx_sha1_t *sha1, const void *bytes, size_t length);
void mlx_sha1_end(mlx_sha1_t *sha1, char out_hex[MLX_SHA1_HEX]);

#endif  // MLXCEL_BASE_SHA1_H_
