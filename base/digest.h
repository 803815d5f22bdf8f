// SHA-256 (libsodium). The digests identify cache entries, compilers and source files.
#ifndef MLXCEL_BASE_DIGEST_H_
#define MLXCEL_BASE_DIGEST_H_

#include <sodium/crypto_hash_sha256.h>
#include <stdint.h>

#include "base/status.h"

#define MLX_DIGEST_HEX 65  // 64 hexadecimal digits and a NUL

typedef crypto_hash_sha256_state mlx_digest_t;

void mlx_digest_begin(mlx_digest_t *digest);
void mlx_digest_add(mlx_digest_t *digest, const void *bytes, size_t length);
// Adds a label and a value with their lengths, so that two different lists of fields never hash alike.
void mlx_digest_field(mlx_digest_t *digest, const char *label, const void *bytes, size_t length);
void mlx_digest_end(mlx_digest_t *digest, char out_hex[MLX_DIGEST_HEX]);

// One-shot digest of |bytes|.
void mlx_digest_bytes(const void *bytes, size_t length, char out_hex[MLX_DIGEST_HEX]);
mlx_status_t mlx_digest_file(const char *path, char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// Digest of |size| bytes at |offset| of a file; an error if the file is shorter.
mlx_status_t mlx_digest_part(const char *path, uint64_t offset, uint64_t size,
                             char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

#endif  // MLXCEL_BASE_DIGEST_H_
