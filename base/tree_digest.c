// Tree digests of files. See digest.h.
//
// The file is read, not mapped: reading into a small buffer is faster than page faults on first use, and a
// file that is truncated meanwhile is an error instead of SIGBUS.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/parallel.h"

#define MOST_LANES 16
#define GROUP_CHUNKS 16  // that a thread reads at a time: they stay in its L2 cache
#define GROUP (GROUP_CHUNKS * MLX_TREE_CHUNK)

// ----------------------------------------------------------------------------------------------------------
// Chunks

static void put_digest(const uint32_t *words, size_t stride, uint8_t out[MLX_DIGEST_BYTES]) {
  for (int i = 0; i < MLX_DIGEST_BYTES; ++i)
    out[i] = (uint8_t)(words[(size_t)(i / 4) * stride] >> (24 - 8 * (i % 4)));
}

// The padding of FIPS 180-4, section 5.1.1, is one more block, the same for every chunk.
static void hash_lanes(mlx_sha256_lanes_t lanes, const uint8_t *bytes, uint8_t (*out)[MLX_DIGEST_BYTES]) {
  const uint64_t bits = MLX_TREE_CHUNK * 8;
  uint8_t padding[MLX_SHA256_BLOCK] = {0x80};
  uint32_t states[8 * MOST_LANES];
  mlx_digest_t start;
  mlx_digest_begin(&start);
  for (size_t i = 0; i < 8 * lanes.lanes; ++i) states[i] = start.state[i / lanes.lanes];
  for (int i = 0; i < 8; ++i) padding[56 + i] = (uint8_t)(bits >> (56 - 8 * i));
  lanes.add_blocks(states, bytes, MLX_TREE_CHUNK, MLX_TREE_CHUNK / MLX_SHA256_BLOCK);
  lanes.add_blocks(states, padding, 0, 1);
  for (size_t i = 0; i < lanes.lanes; ++i) put_digest(states + i, lanes.lanes, out[i]);
}

static void hash_chunk(const uint8_t *bytes, size_t length, uint8_t out[MLX_DIGEST_BYTES]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_add(&digest, bytes, length);
  mlx_digest_end_bytes(&digest, out);
}

// The digests of |count| whole chunks.
static void hash_chunks(const uint8_t *bytes, size_t count, uint8_t (*out)[MLX_DIGEST_BYTES]) {
  const bool has_instructions = mlx_sha256_fastest(NULL) != mlx_sha256_portable;
  for (size_t done = 0, part; done < count; done += part) {
    const mlx_sha256_lanes_t lanes = mlx_sha256_lanes(has_instructions ? 1 : count - done);
    part = lanes.lanes;
    if (part > 1)
      hash_lanes(lanes, bytes + done * MLX_TREE_CHUNK, out + done);
    else
      hash_chunk(bytes + done * MLX_TREE_CHUNK, MLX_TREE_CHUNK, out[done]);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Files

typedef struct tree {
  const char *path;
  int fd;
  uint64_t offset, size, chunks;
  const mlx_digest_watch_t *watch;
  uint8_t *buffers;                   // [workers][GROUP]
  uint8_t (*sums)[MLX_DIGEST_BYTES];  // [chunks]
} tree_t;

static mlx_status_t hash_group(void *user, int worker, uint64_t group) {
  tree_t *tree = user;
  uint8_t *buffer = tree->buffers + (size_t)worker * GROUP;
  const uint64_t begin = group * GROUP, left = tree->size - begin;
  const size_t size = left < GROUP ? (size_t)left : GROUP, whole = size / MLX_TREE_CHUNK;
  for (size_t done = 0; done < size;) {
    const ssize_t length =
        pread(tree->fd, buffer + done, size - done, (int64_t)(tree->offset + begin + done));
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return mlx_io_error("read", tree->path);
    if (!length) return mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", tree->path);
    done += (size_t)length;
  }
  uint8_t(*sums)[MLX_DIGEST_BYTES] = tree->sums + group * GROUP_CHUNKS;
  hash_chunks(buffer, whole, sums);
  if (size % MLX_TREE_CHUNK) hash_chunk(buffer + whole * MLX_TREE_CHUNK, size % MLX_TREE_CHUNK, sums[whole]);
  if (!worker) mlx_digest_notify(tree->watch, begin, tree->size);  // worker 0 is the calling thread
  return NULL;
}

static mlx_status_t hash_all(tree_t *tree, int threads) {
  const uint64_t groups = tree->size / GROUP + (tree->size % GROUP != 0);
  const int workers = mlx_parallel_workers(groups, threads);
  MLX_TRY(mlx_alloc((size_t)workers, GROUP, &tree->buffers));
  mlx_status_t status = mlx_parallel(groups, workers, hash_group, tree);
  mlx_free(tree->buffers);
  return status;
}

mlx_status_t mlx_tree_digest_part(const char *path, uint64_t offset, uint64_t size, int threads,
                                  const mlx_digest_watch_t *watch, char out_hex[MLX_DIGEST_HEX]) {
  tree_t tree = {.path = path, .offset = offset, .size = size, .watch = watch};
  tree.chunks = size / MLX_TREE_CHUNK + (size % MLX_TREE_CHUNK != 0);
  if (offset > INT64_MAX || size > INT64_MAX - offset)
    return mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", path);
  MLX_TRY(mlx_open_file(path, &tree.fd, NULL));
  mlx_status_t status = mlx_alloc(tree.chunks + 1, sizeof *tree.sums, &tree.sums);
  if (!status) status = hash_all(&tree, threads);
  close(tree.fd);
  if (!status) mlx_digest_bytes(tree.sums, tree.chunks * sizeof *tree.sums, out_hex);
  if (!status) mlx_digest_notify(watch, size, size);
  mlx_free(tree.sums);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Bytes

void mlx_tree_hasher_begin(mlx_tree_hasher_t *hasher) {
  mlx_digest_begin(&hasher->chunk);
  mlx_digest_begin(&hasher->root);
}

static void end_chunk(mlx_tree_hasher_t *hasher) {
  uint8_t sum[MLX_DIGEST_BYTES];
  mlx_digest_end_bytes(&hasher->chunk, sum);
  mlx_digest_add(&hasher->root, sum, sizeof sum);
  mlx_digest_begin(&hasher->chunk);
}

void mlx_tree_hasher_add(mlx_tree_hasher_t *hasher, const void *bytes, size_t length) {
  uint8_t sums[MOST_LANES][MLX_DIGEST_BYTES];
  const uint8_t *from = bytes;
  for (size_t part; length; from += part, length -= part) {
    size_t whole = hasher->chunk.length ? 0 : length / MLX_TREE_CHUNK;
    if (whole > MOST_LANES) whole = MOST_LANES;
    if (whole) {
      part = whole * MLX_TREE_CHUNK;
      hash_chunks(from, whole, sums);
      mlx_digest_add(&hasher->root, sums, whole * sizeof *sums);
      continue;
    }
    const uint64_t space = MLX_TREE_CHUNK - hasher->chunk.length;
    part = length < space ? length : (size_t)space;
    mlx_digest_add(&hasher->chunk, from, part);
    if (hasher->chunk.length == MLX_TREE_CHUNK) end_chunk(hasher);
  }
}

void mlx_tree_hasher_end(mlx_tree_hasher_t *hasher, char out_hex[MLX_DIGEST_HEX]) {
  if (hasher->chunk.length) end_chunk(hasher);
  mlx_digest_end(&hasher->root, out_hex);
}
