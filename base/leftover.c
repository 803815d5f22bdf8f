// Removes temporary files of killed processes. See leftover.h.
#include "base/leftover.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

typedef struct sweep {
  const char *folder;
  const char *name;  // of the final file; NULL for any
} sweep_t;

static mlx_status_t sweep_name(void *user, const char *name) {
  const sweep_t *sweep = user;
  const size_t length = sweep->name ? strlen(sweep->name) : 0;
  const char *suffix = sweep->name ? name + length : strstr(name, ".tmp.");
  struct stat info;
  char *path;
  long pid;
  if (sweep->name && strncmp(name, sweep->name, length)) return NULL;
  if (!suffix || !mlx_is_temporary_suffix(suffix) || sscanf(suffix, ".tmp.%ld", &pid) != 1) return NULL;
  if (mlx_process_is_running(pid)) return NULL;
  MLX_TRY(mlx_join_path(sweep->folder, name, &path));
  if (!lstat(path, &info) && S_ISREG(info.st_mode)) unlink(path);
  mlx_free(path);
  return NULL;
}

void mlx_leftover_remove(const char *path) {
  const mlx_file_name_t name = mlx_file_name(path);
  char *folder;
  mlx_status_t status = mlx_folder_of(path, &folder);
  sweep_t sweep = {.folder = folder, .name = name.text};
  if (!status && mlx_is_dir(folder)) status = mlx_list_dir(folder, sweep_name, &sweep);
  mlx_status_free(status);
  mlx_free(folder);
}

void mlx_leftover_remove_in(const char *folder) {
  sweep_t sweep = {.folder = folder};
  if (mlx_is_dir(folder)) mlx_status_free(mlx_list_dir(folder, sweep_name, &sweep));
}
