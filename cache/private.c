// Checks that only the user (and root) can write to the parts of the cache that are trusted: entries hold
// code that runs, and a cached digest replaces hashing.
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/user.h"
#include "cache/internal.h"

// The mode hint repairs the whole cache at once, because other folders may have the same problem.
static mlx_status_t check_stat(const mlx_cache_t *cache, const struct stat *info, const char *path) {
  char *owner_hint = NULL, *mode_hint = NULL;
  mlx_status_t status =
      mlx_format(&owner_hint,
                 "another user may have put it there: remove it (`sudo rm -r '%s'`), or set MLXCEL_CACHE to "
                 "another folder",
                 path);
  if (!status)
    status = mlx_format(&mode_hint,
                        "run `chmod -R go-w '%s'` if you trust its contents, or set MLXCEL_CACHE to another "
                        "folder",
                        cache->folder);
  if (!status)
    status = mlx_user_check_stat(info, path, S_ISDIR(info->st_mode) ? "the cache folder" : "the cache file",
                                 owner_hint, mode_hint);
  mlx_free(mode_hint);
  mlx_free(owner_hint);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Folders directly below the cache folder

static mlx_status_t check_folder(void *user, const char *name) {
  const mlx_cache_t *cache = user;
  struct stat info;
  char *path;
  MLX_TRY(mlx_join_path(cache->folder, name, &path));
  // Follows a link: the user may have moved a folder to another disk.
  mlx_status_t status = !stat(path, &info) && S_ISDIR(info.st_mode) ? check_stat(cache, &info, path) : NULL;
  mlx_free(path);
  return status;
}

mlx_status_t mlx_cache_check_folders(const mlx_cache_t *cache) {
  return mlx_list_dir(cache->folder, check_folder, (void *)(uintptr_t)cache);
}

// ----------------------------------------------------------------------------------------------------------
// Trees

typedef struct walk {
  const mlx_cache_t *cache;
  const char *folder;
} walk_t;

static mlx_status_t check_below(const mlx_cache_t *cache, const char *path);

static mlx_status_t check_child(void *user, const char *name) {
  const walk_t *walk = user;
  char *path;
  MLX_TRY(mlx_join_path(walk->folder, name, &path));
  mlx_status_t status = check_below(walk->cache, path);
  mlx_free(path);
  return status;
}

// A file with another hard link may be part of a bundle, and its owner or mode may have been changed there.
// It is not refused here, where that would be an error, but where an entry's files are compared with their
// record: there it makes the entry invalid.
static bool has_other_links(const struct stat *info) { return S_ISREG(info->st_mode) && info->st_nlink > 1; }

// A symbolic link is as safe as its target: only a user who can write to the folder could have made it.
static mlx_status_t check_below(const mlx_cache_t *cache, const char *path) {
  struct stat info;
  if (stat(path, &info)) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return NULL;
    return mlx_io_error("stat", path);
  }
  if (!has_other_links(&info)) MLX_TRY(check_stat(cache, &info, path));
  walk_t walk = {.cache = cache, .folder = path};
  if (!S_ISDIR(info.st_mode)) return NULL;
  struct stat link;
  if (!lstat(path, &link) && S_ISLNK(link.st_mode)) return NULL;  // no loops
  return mlx_list_dir(path, check_child, &walk);
}

// Checks each folder of |path| below the cache folder, from the top.
static mlx_status_t check_parents(const mlx_cache_t *cache, char *path) {
  const size_t start = strlen(cache->folder);
  mlx_status_t status = NULL;
  for (char *slash = path + start; !status && slash && (slash = strchr(slash + 1, '/'));) {
    struct stat info;
    *slash = 0;
    if (!stat(path, &info)) status = check_stat(cache, &info, path);
    *slash = '/';
  }
  return status;
}

mlx_status_t mlx_cache_check_tree(const mlx_cache_t *cache, const char *path) {
  const size_t length = strlen(cache->folder);
  char *copy;
  if (strncmp(path, cache->folder, length) || path[length] != '/')
    return mlx_error(MLX_INTERNAL, "'%s' is not below the cache folder '%s'", path, cache->folder);
  MLX_TRY(mlx_copy_text(path, strlen(path), &copy));
  mlx_status_t status = check_parents(cache, copy);
  if (!status) status = check_below(cache, path);
  mlx_free(copy);
  if (mlx_status_code(status) != MLX_NOT_FOUND) return status;
  mlx_status_free(status);  // another process removed it meanwhile
  return NULL;
}

bool mlx_cache_is_private(const char *path) {
  struct stat info;
  if (lstat(path, &info) || !S_ISREG(info.st_mode)) return false;
  mlx_status_t status = mlx_user_check_stat(&info, path, "", "", "");
  const bool is_private = !status;
  mlx_status_free(status);
  return is_private;
}
