// Chooses, locks and stages the output of a pull. See output.h.
#include "transfer/output.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

mlx_status_t mlx_output_bundle_path(const char *name, const char *output, char **out_path) {
  *out_path = NULL;
  const size_t length = strlen(name);
  const bool suffixed = length > 5 && !strcmp(name + length - 5, ".mlxb");
  if (!output && !mlx_is_safe_path(name))
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is not a valid output folder name", name),
                           "name the output with -o");
  MLX_TRY(output ? mlx_copy_text(output, strlen(output), out_path)
                 : mlx_format(out_path, suffixed ? "%s" : "%s.mlxb", name));
  for (size_t end = strlen(*out_path); end > 1 && (*out_path)[end - 1] == '/'; --end)
    (*out_path)[end - 1] = 0;
  return NULL;
}

static mlx_status_t check_free(const char *path) {
  if (!mlx_is_dir(path) && !mlx_is_file(path)) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' already exists", path),
                         "choose another name with -o, or remove it");
}

static mlx_status_t take_lock(const char *path, const mlx_report_t *report, mlx_lock_t *out_lock) {
  char *folder = NULL, *lock_path = NULL;
  mlx_status_t status = mlx_folder_of(path, &folder);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) status = mlx_format(&lock_path, "%s.part.lock", path);
  if (!status) status = mlx_lock_take(lock_path, mlx_file_name(path).text, report, out_lock);
  mlx_free(lock_path);
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_output_lock(const char *path, const mlx_report_t *report, mlx_lock_t *out_lock) {
  *out_lock = (mlx_lock_t){.fd = -1};
  MLX_TRY(check_free(path));
  MLX_TRY(take_lock(path, report, out_lock));
  mlx_status_t status = check_free(path);  // the other process may have created it
  if (status) mlx_output_unlock(out_lock);
  return status;
}

void mlx_output_unlock(mlx_lock_t *lock) { mlx_lock_release_and_remove(lock); }

mlx_status_t mlx_output_make_staging(const char *staging) {
  struct stat info;
  if (lstat(staging, &info)) return mlx_make_dirs(staging, 0755);
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid()) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_IO, "cannot stage the pull: '%s' is not a folder owned by you", staging),
      "remove it and run the command again");
}
