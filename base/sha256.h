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
// The fastest function that this CPU runs. *|out_name| is "SHA-NI", "ARMv8 SHA2" or "portable C"; |out_name|
// may be NULL.
mlx_sha256_fn_t mlx_sha256_fastest(const char **out_name);

// Adds |count| blocks to each of several states at once. |states| is [8][lanes]: word 0 of every state first.
// State n gets the blocks at |blocks| + n |stride|.
typedef void (*mlx_sha256_lanes_fn_t)(uint32_t *states, const uint8_t *blocks, size_t stride, size_t count);
typedef struct mlx_sha256_lanes {
  mlx_sha256_lanes_fn_t add_blocks;  // NULL with one lane
  size_t lanes;                      // 1, 4, 8 or 16
} mlx_sha256_lanes_t;
// The widest vectors of this CPU, with at most |most| lanes. 16 lanes of AVX-512 hash 6 to 8 times as many
// bytes per second as mlx_sha256_portable.
mlx_sha256_lanes_t mlx_sha256_lanes(size_t most);

extern const uint32_t mlx_sha256_constants[64];  // K of FIPS 180-4, section 4.2.2

#endif  // MLXCEL_BASE_SHA256_H_
