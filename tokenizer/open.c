// Finds the image of a tokenizer in the cache, or creates the tokenizer and stores its image.
//
// The key of an entry also covers the sources that read a vocabulary (MLXCEL_TOKENIZER_SOURCES, from CMake):
// a new version of mlxcel never uses tables that an older version has made.
#include "tokenizer/open.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/components.h"
#include "tokenizer/image.h"

#ifndef MLXCEL_TOKENIZER_SOURCES
#error "MLXCEL_TOKENIZER_SOURCES must be the digest of the sources that read a vocabulary"
#endif

// Bytes of a tokenizer.json whose image is stored. A smaller text is parsed in a few milliseconds.
#define MIN_STORED ((size_t)1 << 20)

static void key_of(const mlx_tokenizer_text_t *text, char out_key[MLX_DIGEST_HEX]) {
  const uint16_t one = 1;  // the order of its bytes is that of the image
  const uint8_t widths[] = {sizeof(size_t), sizeof(double)};
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "sources", MLXCEL_TOKENIZER_SOURCES, strlen(MLXCEL_TOKENIZER_SOURCES));
  mlx_digest_field(&digest, "byte order", &one, sizeof one);
  mlx_digest_field(&digest, "widths", widths, sizeof widths);
  mlx_digest_field(&digest, "text", text->key, strlen(text->key));
  mlx_digest_end(&digest, out_key);
}

// *|out_tokenizer| is NULL if the cache has no usable image. Removes an image that cannot be used.
static void find_image(mlx_cache_t *cache, const char *key, mlx_tokenizer_t **out_tokenizer) {
  mlx_cache_entry_t entry;
  mlx_cache_cleared_t cleared = {0};
  char *path = NULL;
  *out_tokenizer = NULL;
  mlx_status_t status = mlx_cache_find(cache, MLX_TOKENIZER_KIND, key, &entry);
  const bool found = !status && entry.folder;
  if (found) status = mlx_join_path(entry.folder, MLX_TOKENIZER_IMAGE, &path);
  if (found && !status) status = mlx_tokenizer_image_open(path, out_tokenizer);
  mlx_free(path);
  mlx_cache_release(&entry);  // the mapping stays
  if (found && status) mlx_status_free(mlx_cache_remove(cache, MLX_TOKENIZER_KIND, key, NULL, &cleared));
  mlx_status_free(status);
}

// Errors are ignored: the next start parses the text again.
static void store_image(const mlx_cache_t *cache, const mlx_tokenizer_text_t *text, const char *key,
                        mlx_tokenizer_t *tokenizer) {
  char *title = NULL;
  uint8_t *bytes;
  size_t size;
  mlx_status_t status = mlx_format(&title, "tokenizer of %.64s", text->model);
  if (!status) status = mlx_tokenizer_image_make(tokenizer, &bytes, &size);
  if (!status) status = mlx_image_writer_start(cache, key, title, bytes, size, &tokenizer->writer);
  mlx_status_free(status);
  mlx_free(title);
}

mlx_status_t mlx_tokenizer_open(mlx_cache_t *cache, const mlx_tokenizer_text_t *text,
                                mlx_tokenizer_t **out_tokenizer) {
  char key[MLX_DIGEST_HEX], *json;
  size_t length;
  const bool is_cached = cache && text->key && text->key[0];
  *out_tokenizer = NULL;
  if (is_cached) {
    key_of(text, key);
    find_image(cache, key, out_tokenizer);
  }
  if (*out_tokenizer) return NULL;
  mlx_meter_t meter;
  mlx_meter_begin(&meter, text->report,
                  is_cached ? "building the tokenizer (once)" : "building the tokenizer", 0);
  MLX_TRY(text->read(text->user, &json, &length));
  mlx_status_t status = mlx_tokenizer_build(text->name, json, length, &meter, out_tokenizer);
  mlx_meter_end(&meter);
  mlx_free(json);
  if (!status && is_cached && length >= MIN_STORED) store_image(cache, text, key, *out_tokenizer);
  return status;
}
