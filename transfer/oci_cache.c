// Finds and locks pulled registry models in the cache folder. See oci_cache.h.
#include "transfer/oci_cache.h"

#include <string.h>

#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "transfer/http.h"

static mlx_status_t repository_folder(const mlx_oci_ref_t *ref, char **out_folder) {
  mlx_cache_t *cache;
  mlx_text_t name = {0};
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_http_escape(&name, ref->layout ? "layout" : ref->host, false);
  mlx_text_puts(&name, "%2F");
  mlx_http_escape(&name, ref->layout ? mlx_file_name(ref->name).text : ref->name, false);
  mlx_status_t status = mlx_text_finish(&name);
  if (!status) status = mlx_format(out_folder, "%s/models/oci/%s", mlx_cache_folder(cache), name.data);
  mlx_text_clear(&name);
  mlx_cache_close(cache);
  return status;
}

static mlx_status_t ref_path(const char *folder, const mlx_oci_ref_t *ref, char **out_path) {
  mlx_text_t path = {0};
  mlx_text_printf(&path, "%s/refs/", folder);
  mlx_http_escape(&path, ref->reference, false);
  mlx_status_t status = mlx_text_take(&path, out_path, NULL);
  mlx_text_clear(&path);
  return status;
}

static mlx_status_t folder_of_digest(const char *folder, const char *digest, char **out_folder) {
  return mlx_join_path(folder, digest + strlen("sha256:"), out_folder);
}

mlx_status_t mlx_oci_cache_lock(const mlx_oci_ref_t *ref, const mlx_report_t *report, mlx_oci_cache_t *out) {
  char *lock_path = NULL;
  *out = (mlx_oci_cache_t){0};
  mlx_status_t status = repository_folder(ref, &out->folder);
  if (!status) status = mlx_make_dirs(out->folder, 0755);
  if (!status) status = mlx_join_path(out->folder, ".lock", &lock_path);
  if (!status) status = mlx_lock_take(lock_path, ref->name, report, &out->lock);
  if (status) mlx_free(out->folder);
  mlx_free(lock_path);
  return status;
}

void mlx_oci_cache_unlock(mlx_oci_cache_t *cache) {
  mlx_lock_release(&cache->lock);
  mlx_free(cache->folder);
}

mlx_status_t mlx_oci_cache_folder(const mlx_oci_cache_t *cache, const char *digest, char **out_folder) {
  return folder_of_digest(cache->folder, digest, out_folder);
}

mlx_status_t mlx_oci_cache_set_ref(const mlx_oci_cache_t *cache, const mlx_oci_ref_t *ref,
                                   const char *digest) {
  char *path, *refs = NULL;
  if (ref->layout) return NULL;
  MLX_TRY(ref_path(cache->folder, ref, &path));
  mlx_status_t status = mlx_folder_of(path, &refs);
  if (!status) status = mlx_make_dirs(refs, 0755);
  if (!status) {
    mlx_leftover_remove_in(refs);
    status = mlx_write_file(path, digest, strlen(digest));
  }
  mlx_free(refs);
  mlx_free(path);
  return status;
}

// Fails if another user may have changed a pulled model: its digests were checked only when it was pulled.
static mlx_status_t check_private(const char *ref, const char *folder) {
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_cache_check_tree(cache, ref);
  if (!status) status = mlx_cache_check_tree(cache, folder);
  mlx_cache_close(cache);
  return status;
}

mlx_status_t mlx_oci_cache_find(const mlx_oci_ref_t *ref, char **out_folder) {
  char *repository = NULL, *path = NULL, *digest = NULL, *folder = NULL;
  *out_folder = NULL;
  if (ref->layout) return NULL;
  mlx_status_t status = repository_folder(ref, &repository);
  if (!status) status = ref_path(repository, ref, &path);
  if (!status && mlx_is_file(path)) status = mlx_read_file(path, MLX_OCI_DIGEST, &digest, NULL);
  if (!status && digest && mlx_oci_is_digest(digest)) status = folder_of_digest(repository, digest, &folder);
  if (!status && folder) status = check_private(path, folder);
  if (!status && folder && mlx_is_dir(folder)) *out_folder = folder, folder = NULL;
  mlx_free(folder);
  mlx_free(digest);
  mlx_free(path);
  mlx_free(repository);
  return status;
}

mlx_status_t mlx_oci_cache_remove_ref(const mlx_oci_ref_t *ref) {
  char *repository, *path = NULL;
  if (ref->layout) return NULL;
  MLX_TRY(repository_folder(ref, &repository));
  mlx_status_t status = ref_path(repository, ref, &path);
  if (!status) status = mlx_remove_tree(path);
  mlx_free(path);
  mlx_free(repository);
  return status;
}
