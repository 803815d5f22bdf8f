// Connects compilations with a remote cache.
#include "open/remote_modules.h"

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/user.h"

static mlx_status_t fetch(void *remote, const mlx_module_wanted_t *wanted, const char *path,
                          mlx_module_record_t *out_record) {
  return mlx_remote_cache_fetch(remote, wanted, path, out_record);
}

mlx_status_t mlx_remote_modules_open(mlx_compile_options_t *options, mlx_remote_cache_t **out_remote) {
  const char *place = mlx_environment("MLXCEL_REMOTE_CACHE");
  *out_remote = NULL;
  if (!place) return NULL;
  MLX_TRY(
      mlx_status_annotate(mlx_remote_cache_open(place, options->report, out_remote), "MLXCEL_REMOTE_CACHE"));
  options->fetch = fetch;
  options->remote = *out_remote;
  return NULL;
}

mlx_status_t mlx_remote_modules_put(mlx_remote_cache_t *remote, const char *folder,
                                    const mlx_secret_key_t *key, bool *out_added) {
  mlx_module_record_t record;
  char *path, *module = NULL, *text = NULL;
  size_t length;
  *out_added = false;
  MLX_TRY(mlx_join_path(folder, MLX_MODULE_RECORD, &path));
  mlx_status_t status = mlx_is_file(path) ? mlx_read_file(path, MLX_MAX_MODULE_RECORD, &text, &length) : NULL;
  if (!status && text) {
    status = mlx_module_record_read(path, text, length, &record);
    if (!status) status = mlx_join_path(folder, MLX_BUNDLE_VMFB, &module);
    if (!status) status = mlx_remote_cache_put(remote, &record, module, key, out_added);
  }
  mlx_free(module);
  mlx_free(text);
  mlx_free(path);
  return status;
}
