// SHA-256 of whole 64-byte blocks: portable C, and the instructions of x86-64 (SHA-NI) and ARMv8 (SHA2).
// base/digest.h has the digests of bytes and files.
//
// Threads: every function may be called from any thread.
#ifndef MLXCEL_BASE_SHA256_H_
#define MLXCEL_BASE_SHA256_H_

#include <stddef.h>
#include <stdint.h>

#define MLX_SHA256_BLOCK 64  // bytes

// Adds |count| blocks to |state|.
typedef void (*mlx_sha256_fn_t)(uint32_t state[8], const uint8_t *blocks, size_t count);

void mlx_sha256_portable(uint32_t state[8], const uint8_t *blocks, size_t count);
// Adds the same |count| blocks to two states. With SHA-NI this takes 1.4 to 1.5 times as long as one state:
// the message schedule is shared, and the rounds of the two states do not wait for each other.
typedef void (*mlx_sha256_pair_fn_t)(uint32_t a[8], uint32_t b[8], const uint8_t *blocks, size_t count);
void mlx_sha256_pair_portable(uint32_t a[8], uint32_t b[8], const uint8_t *blocks, size_t count);
mlx_sha256_pair_fn_t mlx_sha256_fastest_pair(void);
// The fastest function that this CPU runs. *|out_name| is "SHA-NI", "ARMv8 SHA2" or "portable C"; |out_name|
// may be NULL.
mlx_sha256_fn_t mlx_sha256_fastest(const char **out_name);

#endif  // MLXCEL_BASE_SHA256_H_
