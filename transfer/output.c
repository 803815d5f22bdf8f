#include "transfer/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static mlx_status_t check_free(const char *path) {
  if (!mlx_is_dir(path) && !mlx_is_file(path)) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is there already", path),
                         "give -o a name that is free, or remove it");
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

mlx_status_t mlx_output_hold(const char *path, const mlx_report_t *report, mlx_lock_t *out_lock) {
  *out_lock = (mlx_lock_t){.fd = -1};
  MLX_TRY(check_free(path));
  MLX_TRY(take_lock(path, report, out_lock));
  mlx_status_t status = check_free(path);  // whoever was waited for may have brought it
  if (status) mlx_output_release(out_lock);
  return status;
}

void mlx_output_release(mlx_lock_t *lock) { mlx_lock_release_and_remove(lock); }

mlx_status_t mlx_output_stage(const char *staging) {
  struct stat info;
  if (lstat(staging, &info)) return mlx_make_dirs(staging, 0755);
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid()) return NULL;
  return mlx_status_hint(mlx_error(MLX_IO, "'%s' is not a folder of yours", staging),
                         "what is pulled would come there: remove it");
}
