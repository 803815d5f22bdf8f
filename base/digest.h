// SHA-256 of bytes, fields and files, and tree digests of files. SHA-256 identifies the files of a bundle, as
// registries and hubs do. Tree digests identify compilers, source files and the files of the cache.
//
// Threads: a digest belongs to one thread at a time; the other functions may be called from any thread.
#ifndef MLXCEL_BASE_DIGEST_H_
#define MLXCEL_BASE_DIGEST_H_

#include <stdint.h>

#include "base/sha256.h"
#include "base/status.h"

#define MLX_DIGEST_HEX 65  // 64 hexadecimal digits and a NUL
#define MLX_DIGEST_BYTES 32

typedef struct mlx_digest {
  mlx_sha256_fn_t add_blocks;
  uint32_t state[8];
  uint64_t length;                  // bytes so far
  uint8_t block[MLX_SHA256_BLOCK];  // the current, incomplete block
} mlx_digest_t;

void mlx_digest_begin(mlx_digest_t *digest);
void mlx_digest_add(mlx_digest_t *digest, const void *bytes, size_t length);
// Adds a label and a value with their lengths, so that two different lists of fields never hash alike.
void mlx_digest_field(mlx_digest_t *digest, const char *label, const void *bytes, size_t length);
void mlx_digest_end(mlx_digest_t *digest, char out_hex[MLX_DIGEST_HEX]);
void mlx_digest_end_bytes(mlx_digest_t *digest, uint8_t out[MLX_DIGEST_BYTES]);

// One-shot digest of |bytes|.
void mlx_digest_bytes(const void *bytes, size_t length, char out_hex[MLX_DIGEST_HEX]);

// Observes a function that hashes a file; NULL for none. The function calls |on_bytes| on the calling thread,
// many times per second, with the bytes hashed so far and the bytes of the whole file or part.
typedef struct mlx_digest_watch {
  void (*on_bytes)(void *user, uint64_t done, uint64_t total);
  void *user;
} mlx_digest_watch_t;
static inline void mlx_digest_notify(const mlx_digest_watch_t *watch, uint64_t done, uint64_t total) {
  if (watch) watch->on_bytes(watch->user, done, total);
}
mlx_status_t mlx_digest_file(const char *path, const mlx_digest_watch_t *watch,
                             char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// Digest of |size| bytes at |offset| of a file; an error if the file is shorter.
mlx_status_t mlx_digest_part(const char *path, uint64_t offset, uint64_t size,
                             const mlx_digest_watch_t *watch, char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// ---- tree digests (base/tree_digest.c) ----

// The tree digest of a file: SHA-256 over the concatenated SHA-256 digests (32 bytes each) of its 64 KiB
// chunks, of which the last may be shorter. SHA-256 of a whole file is one long chain. Chunks are
// independent: several threads hash them, and on a CPU without SHA instructions each thread hashes up to 16
// at once.
#define MLX_TREE_CHUNK ((uint64_t)64 << 10)  // bytes
// Tree digest of |size| bytes at |offset| of a file, with at most |threads| threads; 0 is one per CPU.
mlx_status_t mlx_tree_digest_part(const char *path, uint64_t offset, uint64_t size, int threads,
                                  const mlx_digest_watch_t *watch, char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// The tree digest of bytes that come front to back.
typedef struct mlx_tree_hasher {
  mlx_digest_t chunk, root;  // of the incomplete chunk, and of the digests of the chunks before
} mlx_tree_hasher_t;

void mlx_tree_hasher_begin(mlx_tree_hasher_t *hasher);
void mlx_tree_hasher_add(mlx_tree_hasher_t *hasher, const void *bytes, size_t length);
void mlx_tree_hasher_end(mlx_tree_hasher_t *hasher, char out_hex[MLX_DIGEST_HEX]);

#endif  // MLXCEL_BASE_DIGEST_H_
