// Reads and writes the file of kernel images that a package ships. See image_store.h.
#include "cache/image_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

#define MAGIC "mlxcel-images-1\n"  // stored without the NUL
#define MAGIC_BYTES (sizeof MAGIC - 1)
#define COUNT_AT (MAGIC_BYTES + MLX_DIGEST_BYTES)
#define ROWS_AT (COUNT_AT + 8)
#define DIGEST_AT MLX_DIGEST_BYTES  // in a row, after the key
#define OFFSET_AT (2 * MLX_DIGEST_BYTES)
#define ROW_BYTES (2 * MLX_DIGEST_BYTES + 16)

static uint64_t get_u64(const uint8_t *at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= (uint64_t)at[i] << 8 * i;
  return value;
}

static void put_u64(uint8_t *at, uint64_t value) {
  for (int i = 0; i < 8; ++i) at[i] = (uint8_t)(value >> 8 * i);
}

static void digest_of(const void *bytes, size_t length, uint8_t out[MLX_DIGEST_BYTES]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_add(&digest, bytes, length);
  mlx_digest_end_bytes(&digest, out);
}

mlx_status_t mlx_image_store_path(int sm, char **out_path) {
  const char *named = getenv("MLXCEL_IMAGES");
  char *folder = NULL;
  *out_path = NULL;
  mlx_status_t status = NULL;
  if (named && *named) {
    status = mlx_format(out_path, "%s/sm_%d.images", named, sm);
  } else {
    status = mlx_own_folder(&folder);
    if (!status && folder)
      status = mlx_format(out_path, "%s/../share/mlxcel/images/sm_%d.images", folder, sm);
  }
  mlx_free(folder);
  if (*out_path && !mlx_is_file(*out_path)) {
    mlx_free(*out_path);
    *out_path = NULL;
  }
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static mlx_status_t damaged(const char *name, const char *why) {
  return mlx_error(MLX_INVALID_INPUT, "the kernel images in '%s' are damaged: %s", name, why);
}

mlx_status_t mlx_image_store_parse(const char *name, mlx_map_t bytes, mlx_image_store_t *out_store) {
  uint8_t digest[MLX_DIGEST_BYTES];
  *out_store = (mlx_image_store_t){0};
  if (bytes.size < ROWS_AT || memcmp(bytes.data, MAGIC, MAGIC_BYTES))
    return damaged(name, "the header is incomplete");
  const uint64_t count = get_u64(bytes.data + COUNT_AT);
  if (count > (bytes.size - ROWS_AT) / ROW_BYTES) return damaged(name, "the table is incomplete");
  digest_of(bytes.data + COUNT_AT, 8 + (size_t)count * ROW_BYTES, digest);
  if (memcmp(digest, bytes.data + MAGIC_BYTES, sizeof digest))
    return damaged(name, "the table does not have its digest");
  *out_store = (mlx_image_store_t){.map = bytes, .rows = bytes.data + ROWS_AT, .count = (size_t)count};
  return NULL;
}

mlx_status_t mlx_image_store_open(const char *path, mlx_image_store_t *out_store) {
  mlx_map_t map;
  *out_store = (mlx_image_store_t){0};
  MLX_TRY(mlx_map_file(path, &map));
  mlx_status_t status = mlx_image_store_parse(path, map, out_store);
  if (status) mlx_unmap(&map);
  return status;
}

void mlx_image_store_close(mlx_image_store_t *store) {
  mlx_unmap(&store->map);
  *store = (mlx_image_store_t){0};
}

static bool parse_key(const char *hex, uint8_t out[MLX_DIGEST_BYTES]) {
  for (size_t i = 0; i < MLX_DIGEST_BYTES; ++i) {
    unsigned value;
    if (sscanf(hex + 2 * i, "%2x", &value) != 1) return false;
    out[i] = (uint8_t)value;
  }
  return true;
}

// The first row whose key is not less than |key|; NULL if it has another key.
static const uint8_t *find_row(const mlx_image_store_t *store, const uint8_t key[MLX_DIGEST_BYTES]) {
  size_t low = 0, high = store->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (memcmp(store->rows + middle * ROW_BYTES, key, MLX_DIGEST_BYTES) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  const uint8_t *row = store->rows + low * ROW_BYTES;
  return low < store->count && !memcmp(row, key, MLX_DIGEST_BYTES) ? row : NULL;
}

mlx_status_t mlx_image_store_find(const mlx_image_store_t *store, const char *key, const void **out_bytes,
                                  size_t *out_length) {
  uint8_t wanted[MLX_DIGEST_BYTES], digest[MLX_DIGEST_BYTES];
  *out_bytes = NULL;
  *out_length = 0;
  if (!store->count) return NULL;
  if (!parse_key(key, wanted)) return mlx_error(MLX_INTERNAL, "'%s' is not the key of an image", key);
  const uint8_t *row = find_row(store, wanted);
  if (!row) return NULL;
  const uint64_t offset = get_u64(row + OFFSET_AT), length = get_u64(row + OFFSET_AT + 8);
  if (offset > store->map.size || length > store->map.size - offset)
    return mlx_error(MLX_INVALID_INPUT, "image %.12s is incomplete", key);
  digest_of(store->map.data + offset, (size_t)length, digest);
  if (memcmp(digest, row + DIGEST_AT, sizeof digest))
    return mlx_error(MLX_INVALID_INPUT, "image %.12s does not have its digest", key);
  *out_bytes = store->map.data + offset;
  *out_length = (size_t)length;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

static int compare_keys(const void *a, const void *b) {
  return strcmp(((const mlx_stored_image_t *)a)->key, ((const mlx_stored_image_t *)b)->key);
}

mlx_status_t mlx_image_store_write(const char *path, mlx_stored_image_t *images, size_t count) {
  size_t table, size;
  uint8_t *bytes;
  if (!mlx_mul(count, ROW_BYTES, &table) || !mlx_add(table, ROWS_AT, &size))
    return mlx_error(MLX_OUT_OF_MEMORY, "too many kernel images");
  uint64_t at = size;
  for (size_t i = 0; i < count; ++i) {
    if (!mlx_add(size, images[i].length, &size))
      return mlx_error(MLX_OUT_OF_MEMORY, "the kernel images are too large");
  }
  MLX_TRY(mlx_alloc(size, 1, &bytes));
  if (count) qsort(images, count, sizeof *images, compare_keys);
  memcpy(bytes, MAGIC, MAGIC_BYTES);
  put_u64(bytes + COUNT_AT, count);
  mlx_status_t status = NULL;
  for (size_t i = 0; !status && i < count; ++i) {
    uint8_t *row = bytes + ROWS_AT + i * ROW_BYTES;
    if (!parse_key(images[i].key, row)) status = mlx_error(MLX_INTERNAL, "image %zu has no key", i);
    digest_of(images[i].bytes, images[i].length, row + DIGEST_AT);
    put_u64(row + OFFSET_AT, at);
    put_u64(row + OFFSET_AT + 8, images[i].length);
    memcpy(bytes + at, images[i].bytes, images[i].length);
    at += images[i].length;
  }
  digest_of(bytes + COUNT_AT, 8 + table, bytes + MAGIC_BYTES);
  if (!status) status = mlx_write_file(path, bytes, size);
  mlx_free(bytes);
  return status;
}
