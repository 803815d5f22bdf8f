// Stores an image in the cache on a thread of its own.
#include "tokenizer/image_writer.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

struct mlx_image_writer {
  pthread_t thread;
  bool has_thread;
  char *folder, *title;  // owned: the folder of the cache, the title of the entry
  char key[MLX_DIGEST_HEX];
  uint8_t *bytes;  // owned
  size_t size;
};

static mlx_status_t write_file(void *user, const char *folder, const char *log_path) {
  const mlx_image_writer_t *writer = user;
  char *path;
  (void)log_path;
  MLX_TRY(mlx_join_path(folder, MLX_TOKENIZER_IMAGE, &path));
  mlx_status_t status = mlx_write_scratch_file(path, writer->bytes, writer->size);  // the cache syncs it
  mlx_free(path);
  return status;
}

static void *store(void *user) {
  mlx_image_writer_t *writer = user;
  mlx_cache_entry_t entry = {0};
  mlx_cache_t *cache = NULL;
  const mlx_cache_request_t request = {.kind = MLX_TOKENIZER_KIND,
                                       .key = writer->key,
                                       .title = writer->title,
                                       .fill = write_file,
                                       .user = writer};
  mlx_status_t status = mlx_cache_open(writer->folder, &cache);
  if (!status) status = mlx_cache_get(cache, &request, NULL, &entry);
  mlx_cache_release(&entry);
  mlx_cache_close(cache);
  mlx_status_free(status);
  return NULL;
}

mlx_status_t mlx_image_writer_start(const mlx_cache_t *cache, const char *key, const char *title,
                                    uint8_t *bytes, size_t size, mlx_image_writer_t **out) {
  const char *folder = mlx_cache_folder(cache);
  mlx_image_writer_t *writer;
  mlx_status_t status = mlx_alloc(1, sizeof *writer, &writer);
  *out = NULL;
  if (status) {
    mlx_free(bytes);
    return status;
  }
  writer->bytes = bytes;
  writer->size = size;
  snprintf(writer->key, sizeof writer->key, "%s", key);
  status = mlx_copy_text(folder, strlen(folder), &writer->folder);
  if (!status) status = mlx_copy_text(title, strlen(title), &writer->title);
  if (status) {
    mlx_image_writer_finish(writer);
    return status;
  }
  writer->has_thread = !pthread_create(&writer->thread, NULL, store, writer);
  if (!writer->has_thread) store(writer);
  *out = writer;
  return NULL;
}

void mlx_image_writer_finish(mlx_image_writer_t *writer) {
  if (!writer) return;
  if (writer->has_thread) pthread_join(writer->thread, NULL);
  mlx_free(writer->folder);
  mlx_free(writer->title);
  mlx_free(writer->bytes);
  mlx_free(writer);
}
