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

// ----------------------------------------------------------------------------------------------------------
// Leftovers

typedef struct siblings {
  const char *folder, *name;
} siblings_t;

// True for the name of a staging folder of |output|: "OUTPUT.DIGEST.part", where text may follow the digest.
static bool is_staging_name(const char *name, const char *output) {
  const size_t length = strlen(output), all = strlen(name), ending = strlen(".part");
  if (strncmp(name, output, length) || name[length] != '.' || all < length + ending) return false;
  return strspn(name + length + 1, "0123456789abcdef") >= 16 && !strcmp(name + all - ending, ".part");
}

static mlx_status_t remove_staging(void *user, const char *name) {
  const siblings_t *siblings = user;
  struct stat info;
  char *path;
  if (!is_staging_name(name, siblings->name)) return NULL;
  MLX_TRY(mlx_join_path(siblings->folder, name, &path));
  if (!lstat(path, &info) && S_ISDIR(info.st_mode) && info.st_uid == geteuid())
    mlx_status_free(mlx_remove_tree(path));
  mlx_free(path);
  return NULL;
}

void mlx_output_remove_leftovers(const char *path) {
  const mlx_file_name_t name = mlx_file_name(path);
  char *folder = NULL, *lock_path = NULL;
  mlx_lock_t lock = {.fd = -1};
  siblings_t siblings = {.name = name.text};
  mlx_status_t status = mlx_folder_of(path, &folder);
  if (!status) status = mlx_format(&lock_path, "%s.part.lock", path);
  siblings.folder = folder;
  if (!status) status = mlx_lock_try(lock_path, &lock);
  if (!status && lock.fd >= 0 && (mlx_is_dir(path) || mlx_is_file(path)))
    status = mlx_list_dir(folder, remove_staging, &siblings);
  mlx_output_unlock(&lock);
  mlx_status_free(status);
  mlx_free(lock_path);
  mlx_free(folder);
}

typedef struct sweep {
  const char *folder;    // current folder
  const char *relative;  // its path relative to the staging folder; "" at the top
  mlx_output_keep_fn_t is_kept;
  const void *user;
} sweep_t;

static mlx_status_t sweep_name(void *user, const char *name);

static mlx_status_t sweep_path(const sweep_t *sweep, const char *path, const char *relative) {
  struct stat info;
  if (lstat(path, &info)) return mlx_io_error("stat", path);
  if (!S_ISDIR(info.st_mode)) return sweep->is_kept(sweep->user, relative) ? NULL : mlx_remove_tree(path);
  sweep_t below = {.folder = path, .relative = relative, .is_kept = sweep->is_kept, .user = sweep->user};
  MLX_TRY(mlx_list_dir(path, sweep_name, &below));
  rmdir(path);  // fails unless it is empty
  return NULL;
}

static mlx_status_t sweep_name(void *user, const char *name) {
  const sweep_t *sweep = user;
  char *path = NULL, *relative = NULL;
  mlx_status_t status = mlx_join_path(sweep->folder, name, &path);
  if (!status) status = mlx_format(&relative, "%s%s%s", sweep->relative, *sweep->relative ? "/" : "", name);
  if (!status) status = sweep_path(sweep, path, relative);
  mlx_free(relative);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_output_sweep(const char *staging, mlx_output_keep_fn_t is_kept, const void *user) {
  sweep_t sweep = {.folder = staging, .relative = "", .is_kept = is_kept, .user = user};
  return mlx_list_dir(staging, sweep_name, &sweep);
}

// ----------------------------------------------------------------------------------------------------------
// Locking and staging

mlx_status_t mlx_output_lock(const char *path, const mlx_report_t *report, mlx_lock_t *out_lock) {
  *out_lock = (mlx_lock_t){.fd = -1};
  mlx_status_t exists = check_free(path);
  if (exists) mlx_output_remove_leftovers(path);
  MLX_TRY(exists);
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
