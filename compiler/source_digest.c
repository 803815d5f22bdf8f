#include "compiler/source_digest.h"

#include <string.h>

#include "base/file.h"
#include "compiler/compile.h"

// The file whose name comes next after |last|; NULL after the last of them.
static const char *next_by_name(const mlx_source_t *source, const char *last) {
  const char *next = NULL, *path;
  for (size_t i = 0; (path = mlx_source_file(source, i)); ++i) {
    const bool later = !last || strcmp(mlx_file_name(path).text, mlx_file_name(last).text) > 0;
    if (later && (!next || strcmp(mlx_file_name(path).text, mlx_file_name(next).text) < 0)) next = path;
  }
  return next;
}

mlx_status_t mlx_source_digest(mlx_cache_t *cache, const mlx_source_t *source, const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  size_t count = 0;
  out_hex[0] = 0;
  mlx_digest_begin(&digest);
  for (const char *path = NULL; (path = next_by_name(source, path)); ++count) {
    mlx_report_progress(report, "reading %s", path);
    MLX_TRY(mlx_cache_digest_file(cache, path, out_hex));
    const mlx_file_name_t name = mlx_file_name(path);
    mlx_digest_add(&digest, out_hex, strlen(out_hex));
    mlx_digest_add(&digest, "  ", 2);
    mlx_digest_add(&digest, name.text, strlen(name.text));
    mlx_digest_add(&digest, "\n", 1);
  }
  mlx_report_done(report);
  if (count > 1) mlx_digest_end(&digest, out_hex);
  return NULL;
}

mlx_status_t mlx_compile_source_digest(const char *model_path, const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) {
  mlx_source_t *source = NULL;
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_source_open(model_path, &source);
  if (!status) status = mlx_source_digest(cache, source, report, out_hex);
  mlx_source_close(source);
  mlx_cache_close(cache);
  return status;
}
