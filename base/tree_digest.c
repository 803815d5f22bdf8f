// Tree digests: threads hash the chunks of a file, then one digest covers the chunks' digests; or both
// digests of a file are computed while it is written. See digest.h.
//
// The file is read, not mapped: reading into a small buffer is faster than page faults on first use, and a
// file that is truncated meanwhile is an error instead of SIGBUS.
#include <errno.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/parallel.h"

#define BUFFER ((size_t)256 << 10)  // bytes; stays in a core's L2 cache between read and hash

typedef struct tree {
  const char *path;
  int fd;
  uint64_t offset, size, chunks;
  uint8_t *buffers;                   // [workers][BUFFER]
  uint8_t (*sums)[MLX_DIGEST_BYTES];  // [chunks]
} tree_t;

static mlx_status_t hash_chunk(void *user, int worker, uint64_t chunk) {
  tree_t *tree = user;
  uint8_t *buffer = tree->buffers + (size_t)worker * BUFFER;
  const uint64_t begin = chunk * MLX_TREE_CHUNK, left = tree->size - begin;
  uint64_t at = tree->offset + begin;
  const uint64_t end = at + (left < MLX_TREE_CHUNK ? left : MLX_TREE_CHUNK);
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  while (at < end) {
    const size_t wanted = end - at < BUFFER ? (size_t)(end - at) : BUFFER;
    const ssize_t length = pread(tree->fd, buffer, wanted, (int64_t)at);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return mlx_io_error("read", tree->path);
    if (!length) return mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", tree->path);
    mlx_digest_add(&digest, buffer, (size_t)length);
    at += (uint64_t)length;
  }
  mlx_digest_end_bytes(&digest, tree->sums[chunk]);
  mlx_digest_notify(begin, tree->size);  // only the calling thread may have a watch
  return NULL;
}

static mlx_status_t hash_all(tree_t *tree, int threads) {
  const int workers = mlx_parallel_workers(tree->chunks, threads);
  MLX_TRY(mlx_alloc((size_t)workers, BUFFER, &tree->buffers));
  mlx_status_t status = mlx_parallel(tree->chunks, workers, hash_chunk, tree);
  mlx_free(tree->buffers);
  return status;
}

mlx_status_t mlx_tree_digest_part(const char *path, uint64_t offset, uint64_t size, int threads,
                                  char out_hex[MLX_DIGEST_HEX]) {
  tree_t tree = {.path = path, .offset = offset, .size = size};
  tree.chunks = size / MLX_TREE_CHUNK + (size % MLX_TREE_CHUNK != 0);
  if (offset > INT64_MAX || size > INT64_MAX - offset)
    return mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", path);
  MLX_TRY(mlx_open_file(path, &tree.fd, NULL));
  mlx_status_t status = mlx_alloc(tree.chunks + 1, sizeof *tree.sums, &tree.sums);
  if (!status) status = hash_all(&tree, threads);
  close(tree.fd);
  if (!status) mlx_digest_bytes(tree.sums, tree.chunks * sizeof *tree.sums, out_hex);
  if (!status) mlx_digest_notify(size, size);
  mlx_free(tree.sums);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Both digests while a file is written

void mlx_file_hasher_begin(mlx_file_hasher_t *hasher) {
  hasher->add_blocks = mlx_sha256_fastest_pair();
  mlx_digest_begin(&hasher->whole);
  mlx_digest_begin(&hasher->chunk);
  mlx_digest_begin(&hasher->tree);
}

static void end_chunk(mlx_file_hasher_t *hasher) {
  uint8_t sum[MLX_DIGEST_BYTES];
  mlx_digest_end_bytes(&hasher->chunk, sum);
  mlx_digest_add(&hasher->tree, sum, sizeof sum);
  mlx_digest_begin(&hasher->chunk);
}

// Adds bytes of one chunk. A chunk is a multiple of a block, so both digests have equal incomplete blocks.
static void add_to_chunk(mlx_file_hasher_t *hasher, const uint8_t *bytes, size_t length) {
  const size_t used = hasher->whole.length % MLX_SHA256_BLOCK;
  size_t head = used ? MLX_SHA256_BLOCK - used : 0;
  if (head > length) head = length;
  const size_t blocks = (length - head) / MLX_SHA256_BLOCK, middle = blocks * MLX_SHA256_BLOCK;
  mlx_digest_add(&hasher->whole, bytes, head);
  mlx_digest_add(&hasher->chunk, bytes, head);
  hasher->add_blocks(hasher->whole.state, hasher->chunk.state, bytes + head, blocks);
  hasher->whole.length += middle;
  hasher->chunk.length += middle;
  mlx_digest_add(&hasher->whole, bytes + head + middle, length - head - middle);
  mlx_digest_add(&hasher->chunk, bytes + head + middle, length - head - middle);
}

void mlx_file_hasher_add(mlx_file_hasher_t *hasher, const void *bytes, size_t length) {
  const uint8_t *from = bytes;
  while (length) {
    const uint64_t space = MLX_TREE_CHUNK - hasher->chunk.length;
    const size_t part = length < space ? length : (size_t)space;
    add_to_chunk(hasher, from, part);
    if (hasher->chunk.length == MLX_TREE_CHUNK) end_chunk(hasher);
    from += part;
    length -= part;
  }
}

void mlx_file_hasher_end(mlx_file_hasher_t *hasher, mlx_file_digests_t *out_digests) {
  if (hasher->chunk.length) end_chunk(hasher);
  mlx_digest_end(&hasher->whole, out_digests->sha256);
  mlx_digest_end(&hasher->tree, out_digests->tree);
}
