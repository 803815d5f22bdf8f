// Finding and creating entries. Four rules make a kill at any point harmless:
//   - an entry is built in a folder below tmp/, where no process looks for entries
//   - its files are synced before its record names them
//   - one rename publishes it
//   - a reader accepts it only if the digest of every file matches the record
#include "cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cache/entry.h"
#include "cache/internal.h"
#include "cache/lock.h"

void mlx_cache_release(mlx_cache_entry_t *entry) {
  if (entry->folder) mlx_entry_lock_release(entry->lock_fd);
  mlx_free(entry->folder);
  *entry = (mlx_cache_entry_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Finding

static mlx_status_t check_file(mlx_cache_t *cache, const char *folder, const mlx_record_file_t *file) {
  char *path, hex[MLX_DIGEST_HEX];
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_join_path(folder, file->name, &path));
  mlx_status_t status = mlx_file_stamp(path, &stamp);
  if (!status && stamp.size != file->size)
    status = mlx_error(MLX_INVALID_INPUT, "the size of '%s' does not match its cache record", path);
  if (!status && !mlx_cache_is_private(path))  // see check_below in private.c
    status = mlx_error(MLX_INVALID_INPUT, "another user may write to '%s'", path);
  if (!status) status = mlx_cache_tree_digest_file(cache, path, NULL, hex);
  if (!status && strcmp(hex, file->digest))
    status = mlx_error(MLX_INVALID_INPUT, "the content of '%s' does not match its cache record", path);
  mlx_free(path);
  return status;
}

// Succeeds if the record in |folder| is the record of entry |id| and every file matches it.
static mlx_status_t check_entry(mlx_cache_t *cache, const char *folder, const char *record_path,
                                const char *id) {
  char *bytes;
  size_t length;
  mlx_entry_record_t record = {0};
  MLX_TRY(mlx_read_file(record_path, MLX_RECORD_MAX, &bytes, &length));
  mlx_status_t status = mlx_record_parse(record_path, bytes, length, &record);
  if (!status && strcmp(record.id, id)) {
    status = mlx_error(MLX_INVALID_INPUT, "'%s' is the record of another cache entry", record_path);
  }
  for (size_t i = 0; i < record.file_count && !status; ++i)
    status = check_file(cache, folder, &record.files[i]);
  mlx_record_free(&record);
  mlx_free(bytes);
  return status;
}

// Locks the record before reading it, and compares the lock with the path afterwards: so the entry that was
// checked is the entry that is locked.
static mlx_status_t lock_valid_entry(mlx_cache_t *cache, const char *folder, const char *id,
                                     int *out_lock_fd) {
  char *record_path;
  MLX_TRY(mlx_join_path(folder, MLX_RECORD_NAME, &record_path));
  *out_lock_fd = mlx_entry_lock_share(record_path);
  mlx_status_t status = *out_lock_fd >= 0 ? NULL : mlx_error(MLX_NOT_FOUND, "no cache entry in '%s'", folder);
  if (!status) status = check_entry(cache, folder, record_path, id);
  if (!status && !mlx_entry_lock_is_current(*out_lock_fd, record_path)) {
    status = mlx_error(MLX_NOT_FOUND, "the cache entry in '%s' was replaced", folder);
  }
  // The modification time of the record is the time of the last use. In a read-only cache this fails.
  if (!status) (void)!futimens(*out_lock_fd, NULL);
  if (status) mlx_entry_lock_release(*out_lock_fd);
  mlx_free(record_path);
  return status;
}

static mlx_status_t check_names(const char *kind, const char *key) {
  if (!mlx_is_entry_kind(kind)) return mlx_error(MLX_INTERNAL, "'%s' is not a kind of cache entry", kind);
  if (!mlx_is_digest(key)) return mlx_error(MLX_INTERNAL, "'%s' is not a cache key", key);
  return NULL;
}

mlx_status_t mlx_cache_find(mlx_cache_t *cache, const char *kind, const char *key,
                            mlx_cache_entry_t *out_entry) {
  *out_entry = (mlx_cache_entry_t){0};
  char *folder = NULL, *id = NULL;
  int lock_fd = -1;
  MLX_TRY(check_names(kind, key));
  mlx_status_t status = mlx_cache_path(cache, kind, key, &folder);
  if (!status) status = mlx_cache_check_tree(cache, folder);
  if (status) {
    mlx_free(folder);
    return status;
  }
  status = mlx_format(&id, "%s-%s", kind, key);
  if (!status) status = lock_valid_entry(cache, folder, id, &lock_fd);
  mlx_free(id);
  if (!status) {
    *out_entry = (mlx_cache_entry_t){.folder = folder, .hit = true, .lock_fd = lock_fd};
    return NULL;
  }
  mlx_free(folder);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_free(status);  // a missing entry and any kind of damage are a cache miss
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Creating

// An entry that is being created.
typedef struct build {
  mlx_cache_t *cache;
  const mlx_cache_request_t *request;
  const char *id;   // KIND-KEY
  char *folder;     // final path
  char *temporary;  // path while it is built
  char *replaced;   // where a damaged entry at the final path is moved to
  char *log_path;
  mlx_entry_record_t record;
} build_t;

// Opens the file again, because its writer (the fill function or a tool) has closed it already. A tool may
// have created it with write permission for a group.
static mlx_status_t sync_file(const char *path) {
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return mlx_io_error("open", path);
  mlx_status_t status = fstat(fd, &info) || fchmod(fd, info.st_mode & 07755)
                            ? mlx_io_error("set the permissions of", path)
                            : NULL;
  if (!status && fsync(fd) && errno != EINVAL) status = mlx_io_error("sync", path);
  close(fd);
  return status;
}

static const mlx_cache_hashed_file_t *find_hashed(const build_t *build, const char *name, uint64_t size) {
  const mlx_cache_hashed_file_t *hashed = build->request->hashed;
  return hashed && !strcmp(hashed->name, name) && hashed->size == size ? hashed : NULL;
}

// Adds the digest of a file to the record, and to the digest cache under the file's final path. The age rule
// of digest_cache.c does not apply here: the writer has ended and no other process knows the folder. Without
// this, the first process that finds a large entry would hash it again.
static mlx_status_t record_digest(build_t *build, const char *name, const char *path) {
  mlx_entry_record_t *record = &build->record;
  mlx_file_stamp_t before, after;
  char *final_path;
  MLX_TRY(mlx_reserve(record->file_count + 1, sizeof *record->files, &record->file_capacity, &record->files));
  mlx_record_file_t *file = &record->files[record->file_count];
  MLX_TRY(sync_file(path));
  MLX_TRY(mlx_file_stamp(path, &before));
  const mlx_cache_hashed_file_t *hashed = find_hashed(build, name, before.size);
  if (hashed)
    memcpy(file->digest, hashed->tree, MLX_DIGEST_HEX);
  else
    MLX_TRY(mlx_tree_digest_part(path, 0, before.size, 0, NULL, file->digest));
  MLX_TRY(mlx_file_stamp(path, &after));
  if (memcmp(&before, &after, sizeof after))
    return mlx_error(MLX_INTERNAL, "'%s' is still being written to", path);
  file->size = after.size;
  MLX_TRY(mlx_copy_text(name, strlen(name), &file->name));
  ++record->file_count;
  MLX_TRY(mlx_join_path(build->folder, name, &final_path));
  mlx_cache_store_tree_digest(build->cache, final_path, &after, file->digest);
  if (hashed && hashed->sha256[0]) mlx_cache_store_digest(build->cache, final_path, &after, hashed->sha256);
  mlx_free(final_path);
  return NULL;
}

static mlx_status_t record_file(void *user, const char *name) {
  build_t *build = user;
  char *path;
  struct stat info;
  MLX_TRY(mlx_join_path(build->temporary, name, &path));
  mlx_status_t status;
  if (lstat(path, &info)) {
    status = mlx_io_error("stat", path);
  } else if (!S_ISREG(info.st_mode) || !mlx_is_entry_file(name)) {
    status = mlx_error(MLX_INTERNAL, "'%s' must not be part of a cache entry", path);
  } else {
    status = record_digest(build, name, path);
  }
  mlx_free(path);
  return status;
}

static mlx_status_t write_record(build_t *build, const char *path) {
  mlx_entry_record_t *record = &build->record;
  const char *title = build->request->title;
  MLX_TRY(mlx_copy_text(build->id, strlen(build->id), &record->id));
  MLX_TRY(mlx_copy_text(title, strlen(title), &record->title));
  record->created = (int64_t)time(NULL);
  mlx_text_t text = {0};
  mlx_record_write(record, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_write_file(path, text.data, text.length);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t move_into_place(build_t *build) {
  struct stat info;
  if (!lstat(build->folder, &info)) MLX_TRY(mlx_rename(build->folder, build->replaced));
  MLX_TRY(mlx_rename(build->temporary, build->folder));
  mlx_status_free(mlx_remove_tree(build->replaced));  // on failure it stays as a leftover
  return NULL;
}

// Takes the shared lock after the rename, because Windows cannot move a folder with an open file. The id is
// still locked, so a `clear` that runs right after this finds the entry in use.
static mlx_status_t publish(build_t *build, int *out_lock_fd) {
  char *path, *final_path = NULL;
  MLX_TRY(mlx_list_dir(build->temporary, record_file, build));
  MLX_TRY(mlx_join_path(build->temporary, MLX_RECORD_NAME, &path));
  mlx_status_t status = write_record(build, path);
  if (!status) status = mlx_join_path(build->folder, MLX_RECORD_NAME, &final_path);
  if (!status) status = move_into_place(build);
  *out_lock_fd = status ? -1 : mlx_entry_lock_share(final_path);
  mlx_free(final_path);
  mlx_free(path);
  return status;
}

static mlx_status_t fill_and_publish(build_t *build, int *out_lock_fd) {
  const mlx_cache_request_t *request = build->request;
  MLX_TRY(mlx_make_dirs(build->temporary, 0700));
  mlx_status_t status = request->fill(request->user, build->temporary, build->log_path);
  if (!status) status = publish(build, out_lock_fd);
  if (status) mlx_status_free(mlx_remove_tree(build->temporary));
  return status;
}

// The caller holds the lock of the id.
static mlx_status_t make_entry(mlx_cache_t *cache, const mlx_cache_request_t *request, const char *id,
                               mlx_cache_entry_t *out_entry) {
  build_t build = {.cache = cache, .request = request, .id = id};
  int lock_fd = -1;
  mlx_status_t status = mlx_cache_remove_leftovers(cache, "tmp", id, NULL);
  if (!status) status = mlx_cache_path(cache, request->kind, request->key, &build.folder);
  if (!status) status = mlx_cache_fresh_path(cache, id, &build.temporary);
  if (!status) status = mlx_format(&build.replaced, "%s.replaced", build.temporary);
  if (!status) status = mlx_format(&build.log_path, "%s/logs/%s.log", cache->folder, id);
  if (!status) status = fill_and_publish(&build, &lock_fd);
  if (!status) {
    *out_entry = (mlx_cache_entry_t){.folder = build.folder, .lock_fd = lock_fd};
    build.folder = NULL;
  }
  mlx_free(build.folder);
  mlx_free(build.temporary);
  mlx_free(build.replaced);
  mlx_free(build.log_path);
  mlx_record_free(&build.record);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Finding or creating

static mlx_status_t make_folders(mlx_cache_t *cache, const char *kind) {
  const char *names[] = {"locks", "tmp", "logs", kind};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char *path;
    MLX_TRY(mlx_join_path(cache->folder, names[i], &path));
    mlx_status_t status = mlx_is_dir(path) ? NULL : mlx_make_dirs(path, 0700);
    mlx_free(path);
    if (status) return mlx_status_hint(status, "set MLXCEL_CACHE to a folder you can write to");
  }
  return NULL;
}

static mlx_status_t wait_and_make(mlx_cache_t *cache, const mlx_cache_request_t *request, const char *id,
                                  const mlx_report_t *report, mlx_cache_entry_t *out_entry) {
  char *lock_path;
  mlx_lock_t lock;
  MLX_TRY(mlx_cache_path(cache, "locks", id, &lock_path));
  mlx_status_t status = mlx_lock_take(lock_path, request->title, report, &lock);
  mlx_free(lock_path);
  if (status) return status;
  // The process that held the lock may have created the entry.
  status = mlx_cache_find(cache, request->kind, request->key, out_entry);
  if (!status && !out_entry->folder) status = make_entry(cache, request, id, out_entry);
  mlx_lock_release(&lock);
  return status;
}

mlx_status_t mlx_cache_get(mlx_cache_t *cache, const mlx_cache_request_t *request, const mlx_report_t *report,
                           mlx_cache_entry_t *out_entry) {
  MLX_TRY(mlx_cache_find(cache, request->kind, request->key, out_entry));
  if (out_entry->folder) return NULL;
  char *id = NULL;
  mlx_status_t status = make_folders(cache, request->kind);
  if (!status) status = mlx_format(&id, "%s-%s", request->kind, request->key);
  if (!status) status = wait_and_make(cache, request, id, report, out_entry);
  mlx_free(id);
  return mlx_cache_hint(cache->folder, status);
}
