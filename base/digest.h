// SHA-256, by libsodium: names cache entries, compilers and source files.
#ifndef MLXCEL_BASE_DIGEST_H_
#define MLXCEL_BASE_DIGEST_H_

#include <sodium/crypto_hash_sha256.h>
#include <stdint.h>

#include "base/status.h"

#define MLX_DIGEST_HEX 65  // 64 hexadecimal digits and a NUL

typedef crypto_hash_sha256_state mlx_digest_t;

void mlx_digest_begin(mlx_digest_t *digest);
void mlx_digest_add(mlx_digest_t *digest, const void *bytes, size_t length);
// Adds a label and a value with their lengths, so that no two different lists of fields hash alike.
void mlx_digest_field(mlx_digest_t *digest, const char *label, const void *bytes, size_t length);
void mlx_digest_end(mlx_digest_t *digest, char out_hex[MLX_DIGEST_HEX]);

void mlx_digest_bytes(const void *bytes, size_t length,
                      char out_hex[MLX_DIGEST_HEX]);  // all of it in one call
mlx_status_t mlx_digest_file(const char *path, char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// Of |size| bytes at |offset| of a file, which must have them.
mlx_status_t mlx_digest_part(const char *path, uint64_t offset, uint64_t size,
                             char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

#endif  // MLXCEL_BASE_DIGEST_H_
