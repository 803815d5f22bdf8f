// Finding and making entries. What makes a kill harmless, in order: an entry is made in a folder of tmp/ that
// nothing ever reads; its files are on the disk before its record names them; one rename makes it visible;
// and a reader believes the record only as far as every file's digest agrees with it.
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
#include "cache/inner.h"
#include "cache/lock.h"

void mlx_cache_release(mlx_cache_entry_t *entry) {
  if (entry->folder) mlx_lease_end(entry->lease);
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
    status = mlx_error(MLX_INVALID_INPUT, "'%s' has another size", path);
  if (!status) status = mlx_cache_digest_file(cache, path, hex);
  if (!status && strcmp(hex, file->sha256))
    status = mlx_error(MLX_INVALID_INPUT, "'%s' has another content", path);
  mlx_free(path);
  return status;
}

// Succeeds when the entry in |folder| is exactly what its record says.
static mlx_status_t check_entry(mlx_cache_t *cache, const char *folder, const char *record_path,
                                const char *id) {
  char *bytes;
  size_t length;
  mlx_record_t record = {0};
  MLX_TRY(mlx_read_file(record_path, MLX_RECORD_MAX, &bytes, &length));
  mlx_status_t status = mlx_record_parse(record_path, bytes, length, &record);
  if (!status && strcmp(record.id, id)) {
    status = mlx_error(MLX_INVALID_INPUT, "'%s' is about another entry", record_path);
  }
  for (size_t i = 0; i < record.file_count && !status; ++i)
    status = check_file(cache, folder, &record.files[i]);
  mlx_record_free(&record);
  mlx_free(bytes);
  return status;
}

// The lease comes before the look, and is compared with the path after it: what was checked is what is held.
static mlx_status_t lease_valid_entry(mlx_cache_t *cache, const char *folder, const char *id,
                                      int *out_lease) {
  char *record_path;
  MLX_TRY(mlx_join_path(folder, MLX_RECORD_NAME, &record_path));
  *out_lease = mlx_lease_take(record_path);
  mlx_status_t status = *out_lease >= 0 ? NULL : mlx_error(MLX_NOT_FOUND, "no entry in '%s'", folder);
  if (!status) status = check_entry(cache, folder, record_path, id);
  if (!status && !mlx_lease_holds(*out_lease, record_path)) {
    status = mlx_error(MLX_NOT_FOUND, "the entry in '%s' was replaced", folder);
  }
  if (!status)
    (void)!futimens(*out_lease,
                    NULL);  // the record's time is that of the last use; a read-only cache has none
  if (status) mlx_lease_end(*out_lease);
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
  int lease = -1;
  MLX_TRY(check_names(kind, key));
  mlx_status_t status = mlx_format(&id, "%s-%s", kind, key);
  if (!status) status = mlx_cache_path(cache, kind, key, &folder);
  if (!status) status = lease_valid_entry(cache, folder, id, &lease);
  mlx_free(id);
  if (!status) {
    *out_entry = (mlx_cache_entry_t){.folder = folder, .hit = true, .lease = lease};
    return NULL;
  }
  mlx_free(folder);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_free(status);  // missing or damaged in whatever way: a miss
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Making

// One entry on its way into the cache.
typedef struct making {
  mlx_cache_t *cache;
  const mlx_cache_request_t *request;
  const char *id;   // KIND-KEY
  char *folder;     // where it will be
  char *temporary;  // where it is made
  char *replaced;   // where a damaged entry goes that is in its way
  char *log_path;
  mlx_record_t record;
} making_t;

// Through a descriptor of our own: the file was written by fill or its tool, and closed long ago.
static mlx_status_t sync_file(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return mlx_io_error("open", path);
  mlx_status_t status = fsync(fd) && errno != EINVAL ? mlx_io_error("sync", path) : NULL;
  close(fd);
  return status;
}

// Puts the file's digest in the record, and in the memo of the path it is about to have. The settling rule of
// memo.c is not asked for here: this file is ours, its writer has ended and nobody else knows the folder.
// Without this memo a large entry would be hashed once more by the first process that finds it.
static mlx_status_t record_digest(making_t *making, const char *name, const char *path) {
  mlx_record_t *record = &making->record;
  mlx_file_stamp_t before, after;
  char *final_path;
  MLX_TRY(mlx_reserve(record->file_count + 1, sizeof *record->files, &record->file_capacity, &record->files));
  mlx_record_file_t *file = &record->files[record->file_count];
  MLX_TRY(sync_file(path));
  MLX_TRY(mlx_file_stamp(path, &before));
  MLX_TRY(mlx_digest_file(path, file->sha256));
  MLX_TRY(mlx_file_stamp(path, &after));
  if (memcmp(&before, &after, sizeof after))
    return mlx_error(MLX_INTERNAL, "'%s' is still being written to", path);
  file->size = after.size;
  MLX_TRY(mlx_copy_text(name, strlen(name), &file->name));
  ++record->file_count;
  MLX_TRY(mlx_join_path(making->folder, name, &final_path));
  mlx_cache_remember(making->cache, final_path, &after, file->sha256);
  mlx_free(final_path);
  return NULL;
}

static mlx_status_t record_file(void *user, const char *name) {
  making_t *making = user;
  char *path;
  struct stat info;
  MLX_TRY(mlx_join_path(making->temporary, name, &path));
  mlx_status_t status;
  if (lstat(path, &info)) {
    status = mlx_io_error("stat", path);
  } else if (!S_ISREG(info.st_mode) || !mlx_is_entry_file(name)) {
    status = mlx_error(MLX_INTERNAL, "'%s' cannot be part of a cache entry", path);
  } else {
    status = record_digest(making, name, path);
  }
  mlx_free(path);
  return status;
}

static mlx_status_t write_record(making_t *making, const char *path) {
  mlx_record_t *record = &making->record;
  const char *title = making->request->title;
  MLX_TRY(mlx_copy_text(making->id, strlen(making->id), &record->id));
  MLX_TRY(mlx_copy_text(title, strlen(title), &record->title));
  record->created = (int64_t)time(NULL);
  mlx_text_t text = {0};
  mlx_record_write(record, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_write_file(path, text.data, text.length);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t move_into_place(making_t *making) {
  struct stat info;
  if (!lstat(making->folder, &info)) MLX_TRY(mlx_rename(making->folder, making->replaced));
  MLX_TRY(mlx_rename(making->temporary, making->folder));
  mlx_status_free(mlx_remove_tree(making->replaced));  // failing that, a leftover
  return NULL;
}

// The lease is taken in place (Windows moves no folder with an open file in it) and while the id is still
// locked, so a clear that comes right after it finds the entry in use.
static mlx_status_t publish(making_t *making, int *out_lease) {
  char *path, *final_path = NULL;
  MLX_TRY(mlx_list_dir(making->temporary, record_file, making));
  MLX_TRY(mlx_join_path(making->temporary, MLX_RECORD_NAME, &path));
  mlx_status_t status = write_record(making, path);
  if (!status) status = mlx_join_path(making->folder, MLX_RECORD_NAME, &final_path);
  if (!status) status = move_into_place(making);
  *out_lease = status ? -1 : mlx_lease_take(final_path);
  mlx_free(final_path);
  mlx_free(path);
  return status;
}

static mlx_status_t fill_and_publish(making_t *making, const mlx_report_t *report, int *out_lease) {
  const mlx_cache_request_t *request = making->request;
  MLX_TRY(mlx_make_dirs(making->temporary, 0700));
  mlx_status_t status = request->fill(request->user, making->temporary, making->log_path);
  if (!status) {
    mlx_report_progress(report, "storing %s ...", request->title);
    status = publish(making, out_lease);
    mlx_report_done(report);
  }
  if (status) mlx_status_free(mlx_remove_tree(making->temporary));
  return status;
}

// The caller holds the lock of the id.
static mlx_status_t make_entry(mlx_cache_t *cache, const mlx_cache_request_t *request, const char *id,
                               const mlx_report_t *report, mlx_cache_entry_t *out_entry) {
  making_t making = {.cache = cache, .request = request, .id = id};
  int lease = -1;
  mlx_status_t status = mlx_cache_remove_leftovers(cache, "tmp", id, NULL);
  if (!status) status = mlx_cache_path(cache, request->kind, request->key, &making.folder);
  if (!status) status = mlx_cache_fresh_path(cache, id, &making.temporary);
  if (!status) status = mlx_format(&making.replaced, "%s.replaced", making.temporary);
  if (!status) status = mlx_format(&making.log_path, "%s/logs/%s.log", cache->folder, id);
  if (!status) status = fill_and_publish(&making, report, &lease);
  if (!status) {
    *out_entry = (mlx_cache_entry_t){.folder = making.folder, .lease = lease};
    making.folder = NULL;
  }
  mlx_free(making.folder);
  mlx_free(making.temporary);
  mlx_free(making.replaced);
  mlx_free(making.log_path);
  mlx_record_free(&making.record);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Finding or making

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
  status = mlx_cache_find(cache, request->kind, request->key,
                          out_entry);  // whoever held the lock has made it by now
  if (!status && !out_entry->folder) status = make_entry(cache, request, id, report, out_entry);
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
  return status;
}
