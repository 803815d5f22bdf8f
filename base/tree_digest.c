// Tree digests: threads hash the chunks of a file, then one digest covers the chunks' digests; or both
// digests of a file are computed while it is written. See digest.h.
//
// The file is read, not mapped: reading into a small buffer is faster than page faults on first use, and a
// file that is truncated meanwhile is an error instead of SIGBUS.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"

#define MAX_WORKERS 32
#define BUFFER ((size_t)256 << 10)  // bytes; stays in a core's L2 cache between read and hash

typedef struct tree {
  const char *path;
  int fd;
  uint64_t offset, size, chunks;
  _Atomic uint64_t next;              // first chunk that no thread has taken
  _Atomic int error;                  // errno of the first failure; 0 if none
  _Atomic bool is_short;              // the file ended early
  uint8_t (*sums)[MLX_DIGEST_BYTES];  // [chunks]
} tree_t;

// Returns false after recording an error in the tree.
static bool hash_chunk(tree_t *tree, uint64_t chunk, uint8_t *buffer) {
  const uint64_t begin = chunk * MLX_TREE_CHUNK, left = tree->size - begin;
  uint64_t at = tree->offset + begin;
  const uint64_t end = at + (left < MLX_TREE_CHUNK ? left : MLX_TREE_CHUNK);
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  while (at < end) {
    const size_t wanted = end - at < BUFFER ? (size_t)(end - at) : BUFFER;
    const ssize_t length = pread(tree->fd, buffer, wanted, (int64_t)at);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return atomic_store(&tree->error, errno), false;
    if (!length) return atomic_store(&tree->is_short, true), false;
    mlx_digest_add(&digest, buffer, (size_t)length);
    at += (uint64_t)length;
  }
  mlx_digest_end_bytes(&digest, tree->sums[chunk]);
  return true;
}

static void *hash_chunks(void *user) {
  tree_t *tree = user;
  uint8_t *buffer;
  mlx_status_t status = mlx_alloc(BUFFER, 1, &buffer);
  if (status) {
    mlx_status_free(status);
    atomic_store(&tree->error, ENOMEM);
    return NULL;
  }
  for (uint64_t chunk; !atomic_load(&tree->error) && !atomic_load(&tree->is_short);) {
    if ((chunk = atomic_fetch_add(&tree->next, 1)) >= tree->chunks || !hash_chunk(tree, chunk, buffer)) break;
    mlx_digest_notify(chunk * MLX_TREE_CHUNK, tree->size);  // only the calling thread may have a watch
  }
  mlx_free(buffer);
  return NULL;
}

// The calling thread works too. If a thread cannot be started, the other threads hash its chunks.
static mlx_status_t hash_all(tree_t *tree, int threads) {
  pthread_t workers[MAX_WORKERS];
  uint64_t wanted = (uint64_t)(threads > 0 ? threads : mlx_cpu_count()), started = 0;
  if (wanted > tree->chunks) wanted = tree->chunks;
  if (wanted > MAX_WORKERS) wanted = MAX_WORKERS;
  while (started + 1 < wanted && !pthread_create(&workers[started], NULL, hash_chunks, tree)) ++started;
  hash_chunks(tree);
  for (uint64_t i = 0; i < started; ++i) pthread_join(workers[i], NULL);
  if (atomic_load(&tree->is_short))
    return mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", tree->path);
  errno = atomic_load(&tree->error);
  return errno ? mlx_io_error("read", tree->path) : NULL;
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
