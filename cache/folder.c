// Location of the cache folder, its ownership check, and the paths inside it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/memory.h"
#include "base/user.h"
#include "cache/entry.h"
#include "cache/internal.h"
#include "cache/lock.h"

#ifndef EDQUOT  // Windows has no error for a disk quota
#define EDQUOT ENOSPC
#endif

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

static bool is_about(mlx_status_t status, const char *folder) {
  return strstr(mlx_status_message(status), folder) != NULL;
}

static bool has_reason(mlx_status_t status, int error) {
  return strstr(mlx_status_message(status), strerror(error)) != NULL;
}

// Tools report a full disk in their own words: the folder need not be in them.
mlx_status_t mlx_cache_hint(const char *folder, mlx_status_t status) {
  const mlx_code_t code = mlx_status_code(status);
  const bool is_full = has_reason(status, ENOSPC) || has_reason(status, EDQUOT);
  const bool is_locked = has_reason(status, EROFS) || has_reason(status, EACCES) || has_reason(status, EPERM);
  char *chosen;
  if ((code != MLX_IO && code != MLX_TOOL_FAILED) || (!is_full && !is_locked)) return status;
  mlx_status_t no_folder = choose_folder(folder, &chosen);
  if (!no_folder && (is_about(status, chosen) || (is_full && code == MLX_TOOL_FAILED))) {
    status =
        mlx_status_rehint(status,
                          is_full ? "free space on the disk of the cache folder '%s', or set MLXCEL_CACHE "
                                    "to a folder on another disk"
                                  : "make the cache folder '%s' writable, or set MLXCEL_CACHE to a folder "
                                    "that you can write to",
                          chosen);
  }
  if (!no_folder) mlx_free(chosen);
  mlx_status_free(no_folder);
  return status;
}

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

bool mlx_cache_split_id(const char *id, char *kind, const char **out_key) {
  const char *dash = strchr(id, '-');
  if (!dash || dash - id > 32) return false;
  memcpy(kind, id, (size_t)(dash - id));
  kind[dash - id] = 0;
  *out_key = dash + 1;
  return mlx_is_entry_kind(kind) && mlx_is_digest(*out_key);
}

bool mlx_cache_id_of(const char *name, char out_id[MLX_CACHE_ID]) {
  char kind[33];
  const char *key;
  const size_t length = strcspn(name, ".");
  if (length >= MLX_CACHE_ID) return false;
  memcpy(out_id, name, length);
  out_id[length] = 0;
  return mlx_cache_split_id(out_id, kind, &key);
}

// ----------------------------------------------------------------------------------------------------------
// Opening

// Removes what killed processes left of an entry. A live process that creates or removes this entry holds its
// lock; another process id namespace (a container with the same cache) makes no difference.
static mlx_status_t sweep_entry(void *user, const char *name) {
  const mlx_cache_t *cache = user;
  char id[MLX_CACHE_ID], *path;
  mlx_lock_t lock;
  if (!mlx_cache_id_of(name, id)) return NULL;
  MLX_TRY(mlx_cache_path(cache, "locks", id, &path));
  mlx_status_t status = mlx_lock_try(path, &lock);
  mlx_free(path);
  if (status || lock.fd < 0) return status;
  status = mlx_cache_remove_leftovers(cache, "tmp", id, NULL);
  mlx_lock_release_and_remove(&lock);
  return status;
}

// Removes temporary files of killed processes. Failures are ignored: leftovers only take space.
static void sweep(mlx_cache_t *cache) {
  char *digests = NULL, *tmp = NULL;
  mlx_status_t status = mlx_join_path(cache->folder, "digests", &digests);
  if (!status) mlx_leftover_remove_in(digests);
  if (!status) status = mlx_join_path(cache->folder, "tmp", &tmp);
  if (!status && mlx_is_dir(tmp)) status = mlx_list_dir(tmp, sweep_entry, cache);
  mlx_status_free(status);
  mlx_free(tmp);
  mlx_free(digests);
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
    sweep(cache);
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
