// Parses arbitrary bytes as a store of kernel images, with the digest of the table made right, and looks up
// every key of the table.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cache/image_store.h"

#define DIGEST_AT 16
#define COUNT_AT 48
#define ROWS_AT 56
#define ROW_BYTES 80

// Without it, nearly every input would be refused at the digest.
static void set_digest(uint8_t *bytes, size_t size) {
  uint64_t count = 0;
  mlx_digest_t digest;
  if (size < ROWS_AT) return;
  for (int i = 0; i < 8; ++i) count |= (uint64_t)bytes[COUNT_AT + i] << 8 * i;
  if (count > (size - ROWS_AT) / ROW_BYTES) return;
  mlx_digest_begin(&digest);
  mlx_digest_add(&digest, bytes + COUNT_AT, 8 + (size_t)count * ROW_BYTES);
  mlx_digest_end_bytes(&digest, bytes + DIGEST_AT);
}

static void look_up(const mlx_image_store_t *store, const uint8_t *row) {
  char key[MLX_DIGEST_HEX];
  const void *bytes;
  size_t length;
  for (size_t i = 0; i < MLX_DIGEST_BYTES; ++i) snprintf(key + 2 * i, 3, "%02x", row[i]);
  mlx_status_t status = mlx_image_store_find(store, key, &bytes, &length);
  const uint8_t *found = bytes;
  if (!status && found &&
      (found < store->map.data || length > (size_t)(store->map.data + store->map.size - found)))
    abort();
  mlx_status_free(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_image_store_t store;
  uint8_t *bytes;
  mlx_status_t status = mlx_alloc(size, 1, &bytes);
  if (!status) {
    if (size) memcpy(bytes, data, size);
    set_digest(bytes, size);
    status = mlx_image_store_parse("fuzz", (mlx_map_t){.data = bytes, .size = size}, &store);
  }
  for (size_t i = 0; !status && i < store.count; ++i) look_up(&store, store.rows + i * ROW_BYTES);
  mlx_status_free(status);
  mlx_free(bytes);
  return 0;
}
