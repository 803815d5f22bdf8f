// Location of the cache folder, its ownership check, and the paths inside it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/memory.h"
#include "base/user.h"
#include "cache/internal.h"

static const char *environment(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static mlx_status_t choose_folder(const char *given, char **out_folder) {
  if (!given || !*given) given = environment("MLXCEL_CACHE");
  if (given) return mlx_copy_text(given, strlen(given), out_folder);
  MLX_TRY(mlx_user_folder(MLX_USER_CACHE, out_folder));
  if (*out_folder) return NULL;
  mlx_status_t status = mlx_error(MLX_NOT_FOUND, "no cache folder: MLXCEL_CACHE, %s not set",
                                  mlx_user_variables(MLX_USER_CACHE));
  return mlx_status_hint(status, "set MLXCEL_CACHE to a folder that you own");
}

// Removes temporary files of killed processes from the folder of digests. The folders of entries are cleaned
// when an entry is made.
static void sweep_digests(const mlx_cache_t *cache) {
  char *folder = NULL;
  mlx_status_t status = mlx_join_path(cache->folder, "digests", &folder);
  if (!status) mlx_leftover_remove_in(folder);
  mlx_status_free(status);
  mlx_free(folder);
}

mlx_status_t mlx_cache_open(const char *folder, mlx_cache_t **out_cache) {
  *out_cache = NULL;
  char *chosen;
  MLX_TRY(choose_folder(folder, &chosen));
  mlx_cache_t *cache = NULL;
  mlx_status_t status = mlx_is_dir(chosen) ? NULL : mlx_make_dirs(chosen, 0700);
  status = mlx_status_hint(mlx_status_annotate(status, "the cache"),
                           "set MLXCEL_CACHE to a folder you can write to");
  if (!status) status = mlx_alloc(1, sizeof *cache, &cache);
  if (!status) status = mlx_real_path(chosen, &cache->folder);
  if (!status)  // the cache holds code that is loaded and run
    status = mlx_user_check_owner(cache->folder, "the cache folder", "MLXCEL_CACHE");
  if (!status) status = mlx_cache_check_folders(cache);
  if (status) {
    mlx_cache_close(cache);
  } else {
    sweep_digests(cache);
    *out_cache = cache;
  }
  mlx_free(chosen);
  return status;
}

void mlx_cache_close(mlx_cache_t *cache) {
  if (!cache) return;
  mlx_free(cache->folder);
  mlx_free(cache);
}

const char *mlx_cache_folder(const mlx_cache_t *cache) { return cache->folder; }

// ----------------------------------------------------------------------------------------------------------
// Paths and sizes

mlx_status_t mlx_cache_path(const mlx_cache_t *cache, const char *part, const char *name, char **out_path) {
  return mlx_format(out_path, "%s/%s/%s", cache->folder, part, name);
}

mlx_status_t mlx_cache_fresh_path(const mlx_cache_t *cache, const char *id, char **out_path) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  // The form of mlx_temporary_path, which errors leave out.
  return mlx_format(out_path, "%s/tmp/%s.tmp.%ld.%llx-%lx", cache->folder, id, (long)getpid(),
                    (unsigned long long)now.tv_sec, (unsigned long)now.tv_nsec);
}

typedef struct tree_sum {
  const char *folder;
  uint64_t bytes;
} tree_sum_t;

static mlx_status_t add_child_bytes(void *user, const char *name) {
  tree_sum_t *sum = user;
  char *path;
  MLX_TRY(mlx_join_path(sum->folder, name, &path));
  sum->bytes += mlx_cache_tree_bytes(path);
  mlx_free(path);
  return NULL;
}

// For display only: unreadable files count as 0 bytes.
uint64_t mlx_cache_tree_bytes(const char *path) {
  struct stat info;
  if (lstat(path, &info)) return 0;
  if (S_ISREG(info.st_mode)) return (uint64_t)info.st_size;
  if (!S_ISDIR(info.st_mode)) return 0;
  tree_sum_t sum = {.folder = path};
  mlx_status_free(mlx_list_dir(path, add_child_bytes, &sum));
  return sum.bytes;
}

typedef struct leftovers {
  const char *folder;
  const char *id;
  uint64_t bytes;
} leftovers_t;

static mlx_status_t remove_leftover(void *user, const char *name) {
  leftovers_t *leftovers = user;
  size_t length = strlen(leftovers->id);
  if (strncmp(name, leftovers->id, length) || name[length] != '.') return NULL;
  char *path;
  MLX_TRY(mlx_join_path(leftovers->folder, name, &path));
  uint64_t bytes = mlx_cache_tree_bytes(path);
  mlx_status_t status = mlx_remove_tree(path);
  if (!status) leftovers->bytes += bytes;
  mlx_status_free(status);
  mlx_free(path);
  return NULL;
}

mlx_status_t mlx_cache_remove_leftovers(const mlx_cache_t *cache, const char *part, const char *id,
                                        uint64_t *bytes) {
  char *folder;
  MLX_TRY(mlx_join_path(cache->folder, part, &folder));
  leftovers_t leftovers = {.folder = folder, .id = id};
  mlx_status_t status = mlx_list_dir(folder, remove_leftover, &leftovers);
  if (bytes) *bytes += leftovers.bytes;
  mlx_free(folder);
  return status;
}
