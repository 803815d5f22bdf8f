// SHA-256 of bytes, fields and files, and tree digests of large files. The digests identify cache entries,
// compilers, source files and the files of a bundle.
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
mlx_status_t mlx_digest_file(const char *path, char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// Digest of |size| bytes at |offset| of a file; an error if the file is shorter.
mlx_status_t mlx_digest_part(const char *path, uint64_t offset, uint64_t size,
                             char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// Observes the functions that hash a file. They call |on_bytes| on the calling thread, many times per second,
// with the bytes hashed so far and the bytes of the whole file or part.
typedef struct mlx_digest_watch {
  void (*on_bytes)(void *user, uint64_t done, uint64_t total);
  void *user;
} mlx_digest_watch_t;
// Sets the watch of the calling thread, which is borrowed until it is replaced; NULL for none. Returns the
// previous one, so that a caller can restore it.
const mlx_digest_watch_t *mlx_digest_set_watch(const mlx_digest_watch_t *watch);
void mlx_digest_notify(uint64_t done, uint64_t total);  // calls the watch of this thread, if there is one

// ---- tree digests (base/tree_digest.c) ----

// The tree digest of a file: SHA-256 over the concatenated SHA-256 digests (32 bytes each) of its 4 MiB
// chunks, of which the last may be shorter. SHA-256 of a whole file runs on one thread; chunks are hashed by
// several threads.
#define MLX_TREE_CHUNK ((uint64_t)4 << 20)  // bytes
// Tree digest of |size| bytes at |offset| of a file, with at most |threads| threads; 0 is one per CPU.
mlx_status_t mlx_tree_digest_part(const char *path, uint64_t offset, uint64_t size, int threads,
                                  char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// SHA-256 and tree digest of a file, computed together while it is written front to back.
typedef struct mlx_file_digests {
  char sha256[MLX_DIGEST_HEX], tree[MLX_DIGEST_HEX];
} mlx_file_digests_t;

typedef struct mlx_file_hasher {
  mlx_sha256_pair_fn_t add_blocks;
  mlx_digest_t whole, chunk, tree;  // of the file, of its current chunk, of the digests of the chunks before
} mlx_file_hasher_t;

void mlx_file_hasher_begin(mlx_file_hasher_t *hasher);
void mlx_file_hasher_add(mlx_file_hasher_t *hasher, const void *bytes, size_t length);
void mlx_file_hasher_end(mlx_file_hasher_t *hasher, mlx_file_digests_t *out_digests);

#endif  // MLXCEL_BASE_DIGEST_H_
