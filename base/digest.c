// SHA-256 of bytes, fields and files.
#include "base/digest.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

void mlx_digest_begin(mlx_digest_t *digest) {
  *digest = (mlx_digest_t){.add_blocks = mlx_sha256_fastest(NULL),
                           .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                     0x1f83d9ab, 0x5be0cd19}};
}

void mlx_digest_add(mlx_digest_t *digest, const void *bytes, size_t length) {
  const uint8_t *from = bytes;
  const size_t used = digest->length % MLX_SHA256_BLOCK;
  digest->length += length;
  if (used) {
    const size_t missing = MLX_SHA256_BLOCK - used, part = length < missing ? length : missing;
    memcpy(digest->block + used, from, part);
    if (part < missing) return;
    digest->add_blocks(digest->state, digest->block, 1);
    from += part;
    length -= part;
  }
  digest->add_blocks(digest->state, from, length / MLX_SHA256_BLOCK);
  if (length % MLX_SHA256_BLOCK)
    memcpy(digest->block, from + length - length % MLX_SHA256_BLOCK, length % MLX_SHA256_BLOCK);
}

static void digest_add_sized(mlx_digest_t *digest, const void *bytes, size_t length) {
  uint8_t size[8];  // little-endian on every machine
  for (int i = 0; i < 8; ++i) size[i] = (uint8_t)((uint64_t)length >> (8 * i));
  mlx_digest_add(digest, size, sizeof size);
  mlx_digest_add(digest, bytes, length);
}

void mlx_digest_field(mlx_digest_t *digest, const char *label, const void *bytes, size_t length) {
  digest_add_sized(digest, label, strlen(label));
  digest_add_sized(digest, bytes, length);
}

// A digest ends with a 1 bit, zeros up to a block's last 8 bytes, and the length in bits, big-endian.
void mlx_digest_end_bytes(mlx_digest_t *digest, uint8_t out[MLX_DIGEST_BYTES]) {
  const uint64_t bits = digest->length * 8;
  const size_t used = digest->length % MLX_SHA256_BLOCK;
  uint8_t padding[MLX_SHA256_BLOCK + 8] = {0x80};
  const size_t zeros_end = used < 56 ? 56 - used : 56 + MLX_SHA256_BLOCK - used;
  for (int i = 0; i < 8; ++i) padding[zeros_end + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  mlx_digest_add(digest, padding, zeros_end + 8);
  for (int i = 0; i < MLX_DIGEST_BYTES; ++i) out[i] = (uint8_t)(digest->state[i / 4] >> (24 - 8 * (i % 4)));
}

void mlx_digest_end(mlx_digest_t *digest, char out_hex[MLX_DIGEST_HEX]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t bytes[MLX_DIGEST_BYTES];
  mlx_digest_end_bytes(digest, bytes);
  for (size_t i = 0; i < sizeof bytes; ++i) {
    out_hex[2 * i] = digits[bytes[i] >> 4];
    out_hex[2 * i + 1] = digits[bytes[i] & 15];
  }
  out_hex[MLX_DIGEST_HEX - 1] = 0;
}

void mlx_digest_bytes(const void *bytes, size_t length, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_add(&digest, bytes, length);
  mlx_digest_end(&digest, out_hex);
}

// ----------------------------------------------------------------------------------------------------------
// Files

typedef struct file_digest {
  mlx_digest_t digest;
  uint64_t size;
  const mlx_digest_watch_t *watch;
} file_digest_t;

static mlx_status_t digest_piece(void *user, const char *bytes, size_t length) {
  file_digest_t *file = user;
  mlx_digest_add(&file->digest, bytes, length);
  mlx_digest_notify(file->watch, file->digest.length, file->size);
  return NULL;
}

mlx_status_t mlx_digest_file(const char *path, const mlx_digest_watch_t *watch,
                             char out_hex[MLX_DIGEST_HEX]) {
  int fd;
  file_digest_t file = {.watch = watch};
  MLX_TRY(mlx_open_file(path, &fd, &file.size));
  mlx_digest_begin(&file.digest);
  mlx_status_t status = mlx_read_pieces(fd, path, digest_piece, &file);
  close(fd);
  if (!status) mlx_digest_end(&file.digest, out_hex);
  return status;
}

// The file is read, not mapped: a file that is truncated meanwhile is an error instead of SIGBUS.
mlx_status_t mlx_digest_part(const char *path, uint64_t offset, uint64_t size,
                             const mlx_digest_watch_t *watch, char out_hex[MLX_DIGEST_HEX]) {
  uint8_t buffer[16 << 10];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  int fd;
  const uint64_t total = size;
  MLX_TRY(mlx_open_file(path, &fd, NULL));
  mlx_status_t status = NULL;
  while (size && !status) {
    const ssize_t length =
        pread(fd, buffer, size < sizeof buffer ? (size_t)size : sizeof buffer, (int64_t)offset);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) {
      status = length ? mlx_io_error("read", path)
                      : mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", path);
      break;
    }
    mlx_digest_add(&digest, buffer, (size_t)length);
    offset += (uint64_t)length;
    size -= (uint64_t)length;
    mlx_digest_notify(watch, total - size, total);
  }
  close(fd);
  if (!status) mlx_digest_end(&digest, out_hex);
  return status;
}
