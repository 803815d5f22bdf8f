// Reads a JSON file beside config.json.
#include "models/import/side_file.h"

#include "base/file.h"
#include "base/memory.h"

#define MAX_FILE ((size_t)16 << 20)  // some tokenizer_config.json list a thousand added tokens

void mlx_side_file_close(mlx_side_file_t *file) {
  mlx_json_close(&file->json);
  mlx_free(file->path);
}

mlx_status_t mlx_side_file_read(const mlx_source_t *source, const char *folder, const char *name,
                                mlx_side_file_t *out) {
  char *bytes;
  size_t length;
  *out = (mlx_side_file_t){0};
  MLX_TRY(mlx_format(&out->path, "%s/%s%s%s", mlx_source_path(source), folder, folder[0] ? "/" : "", name));
  if (!mlx_is_file(out->path)) return NULL;
  MLX_TRY(mlx_read_file(out->path, MAX_FILE, &bytes, &length));
  mlx_status_t status = mlx_json_parse_any(out->path, bytes, length, &out->json);
  mlx_free(bytes);
  return status;
}
