// SHA-256 of bytes, fields and files.
#include "base/digest.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

void mlx_digest_begin(mlx_digest_t *digest) { crypto_hash_sha256_init(digest); }

void mlx_digest_add(mlx_digest_t *digest, const void *bytes, size_t length) {
  crypto_hash_sha256_update(digest, bytes, length);
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

void mlx_digest_end(mlx_digest_t *digest, char out_hex[MLX_DIGEST_HEX]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t bytes[crypto_hash_sha256_BYTES];
  crypto_hash_sha256_final(digest, bytes);
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

static mlx_status_t digest_piece(void *user, const char *bytes, size_t length) {
  mlx_digest_add(user, bytes, length);
  return NULL;
}

mlx_status_t mlx_digest_file(const char *path, char out_hex[MLX_DIGEST_HEX]) {
  int fd;
  MLX_TRY(mlx_open_file(path, &fd, NULL));
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_status_t status = mlx_read_pieces(fd, path, digest_piece, &digest);
  close(fd);
  if (!status) mlx_digest_end(&digest, out_hex);
  return status;
}

mlx_status_t mlx_digest_part(const char *path, uint64_t offset, uint64_t size, char out_hex[MLX_DIGEST_HEX]) {
  mlx_map_t map;
  MLX_TRY(mlx_map_file(path, &map));
  const bool fits = offset <= map.size && size <= map.size - offset;
  if (fits) mlx_digest_bytes(size ? map.data + offset : (const uint8_t *)"", (size_t)size, out_hex);
  mlx_unmap(&map);
  return fits ? NULL : mlx_error(MLX_INVALID_INPUT, "'%s' is shorter than expected", path);
}
