// Listing, searching and clearing. Clear tries the lock of each entry without waiting and skips entries in
// use. So it can run at any time next to processes that create and use entries.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cache/cache.h"
#include "cache/entry.h"
#include "cache/internal.h"
#include "cache/lock.h"

// ----------------------------------------------------------------------------------------------------------
// Walking the entries

typedef mlx_status_t (*on_entry_fn_t)(void *user, const char *kind, const char *key);

typedef struct walk {
  const mlx_cache_t *cache;
  on_entry_fn_t on_entry;
  void *user;
  const char *kind;  // current kind
} walk_t;

static mlx_status_t walk_key(void *user, const char *name) {
  walk_t *walk = user;
  return mlx_is_digest(name) ? walk->on_entry(walk->user, walk->kind, name) : NULL;
}

static mlx_status_t walk_kind(void *user, const char *name) {
  walk_t *walk = user;
  if (!mlx_is_entry_kind(name)) return NULL;
  char *path;
  MLX_TRY(mlx_join_path(walk->cache->folder, name, &path));
  walk->kind = name;
  mlx_status_t status = mlx_is_dir(path) ? mlx_list_dir(path, walk_key, walk) : NULL;
  mlx_free(path);
  return status;
}

static mlx_status_t walk_entries(const mlx_cache_t *cache, on_entry_fn_t on_entry, void *user) {
  walk_t walk = {.cache = cache, .on_entry = on_entry, .user = user};
  return mlx_list_dir(cache->folder, walk_kind, &walk);
}

// ----------------------------------------------------------------------------------------------------------
// Listing

typedef struct listing {
  const mlx_cache_t *cache;
  mlx_cache_visit_fn_t visit;
  void *user;
} listing_t;

static mlx_status_t read_record(const char *folder, mlx_entry_record_t *out_record, int64_t *out_used) {
  mlx_file_stamp_t stamp = {0};
  char *path, *bytes = NULL;
  size_t length = 0;
  *out_record = (mlx_entry_record_t){0};
  MLX_TRY(mlx_join_path(folder, MLX_RECORD_NAME, &path));
  mlx_status_t status = mlx_read_file(path, MLX_RECORD_MAX, &bytes, &length);
  if (!status) status = mlx_record_parse(path, bytes, length, out_record);
  if (!status) status = mlx_file_stamp(path, &stamp);
  *out_used = stamp.modified_ns / 1000000000;
  mlx_free(bytes);
  mlx_free(path);
  return status;
}

static mlx_status_t list_entry(void *user, const char *kind, const char *key) {
  listing_t *listing = user;
  char *folder;
  mlx_entry_record_t record;
  int64_t used = 0;
  MLX_TRY(mlx_cache_path(listing->cache, kind, key, &folder));
  mlx_status_t status = read_record(folder, &record, &used);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) {
    mlx_free(folder);
    return status;
  }
  mlx_status_free(status);  // a damaged entry is listed without a title
  mlx_cache_item_t item = {
      .kind = kind,
      .key = key,
      .title = record.title,
      .bytes = mlx_cache_tree_bytes(folder),
      .created = record.created,
      .used = used,
  };
  status = listing->visit(listing->user, &item);
  mlx_record_free(&record);
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_cache_list(mlx_cache_t *cache, mlx_cache_visit_fn_t visit, void *user) {
  listing_t listing = {.cache = cache, .visit = visit, .user = user};
  return walk_entries(cache, list_entry, &listing);
}

// ----------------------------------------------------------------------------------------------------------
// Finding by content

typedef struct search {
  mlx_cache_t *cache;
  const char *kind, *tree;
  mlx_cache_entry_t *entry;
  char **path;
} search_t;

static const char *file_with(const mlx_entry_record_t *record, const char *tree) {
  for (size_t i = 0; i < record->file_count; ++i) {
    if (!strcmp(record->files[i].digest, tree)) return record->files[i].name;
  }
  return NULL;
}

// An unreadable record is skipped.
static mlx_status_t search_entry(void *user, const char *kind, const char *key) {
  search_t *search = user;
  char *folder;
  mlx_entry_record_t record;
  int64_t used;
  if (*search->path || strcmp(kind, search->kind)) return NULL;
  MLX_TRY(mlx_cache_path(search->cache, kind, key, &folder));
  mlx_status_free(read_record(folder, &record, &used));
  const char *name = file_with(&record, search->tree);
  mlx_status_t status = name ? mlx_cache_find(search->cache, kind, key, search->entry) : NULL;
  if (!status && name && search->entry->folder)
    status = mlx_join_path(search->entry->folder, name, search->path);
  mlx_record_free(&record);
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_cache_find_file(mlx_cache_t *cache, const char *kind, const char *tree,
                                 mlx_cache_entry_t *out_entry, char **out_path) {
  search_t search = {.cache = cache, .kind = kind, .tree = tree, .entry = out_entry, .path = out_path};
  *out_entry = (mlx_cache_entry_t){0};
  *out_path = NULL;
  mlx_status_t status = walk_entries(cache, search_entry, &search);
  if (status) mlx_cache_release(out_entry);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Clearing

// The ids ("KIND-KEY") that have anything on disk: an entry, a lock, a file in tmp/, or a log.
typedef struct id_list {
  char **ids;
  size_t count, capacity;
} id_list_t;

static mlx_status_t add_id(id_list_t *list, const char *id, size_t length) {
  MLX_TRY(mlx_reserve(list->count + 1, sizeof *list->ids, &list->capacity, &list->ids));
  MLX_TRY(mlx_copy_text(id, length, &list->ids[list->count]));
  ++list->count;
  return NULL;
}

static mlx_status_t add_entry_id(void *user, const char *kind, const char *key) {
  char *id;
  MLX_TRY(mlx_format(&id, "%s-%s", kind, key));
  mlx_status_t status = add_id(user, id, strlen(id));
  mlx_free(id);
  return status;
}

// Names in locks/, tmp/ and logs/ have the form ID or ID.SUFFIX. Other names are not removed.
static mlx_status_t add_name_id(void *user, const char *name) {
  char id[MLX_CACHE_ID];
  return mlx_cache_id_of(name, id) ? add_id(user, id, strlen(id)) : NULL;
}

static int compare_ids(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

// Adds the ids in locks/, tmp/ and logs/, and creates missing folders. |list| may be NULL.
static mlx_status_t open_work_folders(const mlx_cache_t *cache, id_list_t *list) {
  static const char *const folders[] = {"locks", "tmp", "logs"};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i) {
    char *path;
    MLX_TRY(mlx_join_path(cache->folder, folders[i], &path));
    mlx_status_t status = mlx_is_dir(path) ? NULL : mlx_make_dirs(path, 0700);
    if (!status && list) status = mlx_list_dir(path, add_name_id, list);
    mlx_free(path);
    MLX_TRY(status);
  }
  return NULL;
}

static mlx_status_t collect_ids(const mlx_cache_t *cache, id_list_t *list) {
  MLX_TRY(walk_entries(cache, add_entry_id, list));
  MLX_TRY(open_work_folders(cache, list));
  if (list->count) qsort(list->ids, list->count, sizeof *list->ids, compare_ids);
  return NULL;
}

// Moves the entry to tmp/ with one rename, so that it disappears atomically. The caller removes it there.
static mlx_status_t remove_entry(const mlx_cache_t *cache, const char *id, const char *folder,
                                 mlx_cache_cleared_t *cleared) {
  if (!mlx_is_dir(folder)) return mlx_remove_tree(folder);
  char *temporary;
  MLX_TRY(mlx_cache_fresh_path(cache, id, &temporary));
  mlx_status_t status = mlx_rename(folder, temporary);
  if (!status) ++cleared->removed;
  mlx_free(temporary);
  return status;
}

// A damaged record names no files, so its entry is not needed.
static bool is_needed(const char *folder, const mlx_cache_keep_t *keep) {
  mlx_entry_record_t record;
  int64_t used;
  bool needed = false;
  if (!keep) return false;
  mlx_status_free(read_record(folder, &record, &used));
  for (size_t i = 0; i < record.file_count && !needed; ++i)
    needed = keep->needs(keep->user, record.files[i].digest);
  mlx_record_free(&record);
  return needed;
}

// Clears everything of one id; the caller holds its lock. *|out_kept| is true if the entry is in use or
// needed: then only its files in tmp/ are removed.
static mlx_status_t clear_locked(const mlx_cache_t *cache, const char *id, const mlx_cache_keep_t *keep,
                                 mlx_cache_cleared_t *cleared, bool *out_kept) {
  char kind[33], *folder = NULL, *record = NULL;
  const char *key;
  int lock_fd = -1;
  if (!mlx_cache_split_id(id, kind, &key)) return mlx_error(MLX_INTERNAL, "'%s' is not a cache entry id", id);
  mlx_status_t status = mlx_cache_path(cache, kind, key, &folder);
  if (!status) status = mlx_join_path(folder, MLX_RECORD_NAME, &record);
  if (!status) {
    const bool needed = is_needed(folder, keep);
    *out_kept = needed || mlx_entry_lock_try_exclusive(record, &lock_fd) == MLX_ENTRY_LOCK_IN_USE;
    cleared->kept += needed;
    cleared->in_use += *out_kept && !needed;
    if (!*out_kept) mlx_entry_lock_allow_rename(&lock_fd);
    if (!*out_kept) status = remove_entry(cache, id, folder, cleared);
    if (!*out_kept)
      status = mlx_status_join(status, mlx_cache_remove_leftovers(cache, "logs", id, &cleared->bytes));
  }
  status = mlx_status_join(status, mlx_cache_remove_leftovers(cache, "tmp", id, &cleared->bytes));
  mlx_entry_lock_release(lock_fd);
  mlx_free(record);
  mlx_free(folder);
  return status;
}

static mlx_status_t clear_id(const mlx_cache_t *cache, const char *id, const mlx_cache_keep_t *keep,
                             mlx_cache_cleared_t *cleared) {
  char *path;
  mlx_lock_t lock;
  bool kept = true;
  MLX_TRY(mlx_cache_path(cache, "locks", id, &path));
  mlx_status_t status = mlx_lock_try(path, &lock);
  const bool is_free = !status && lock.fd >= 0;
  if (is_free) status = clear_locked(cache, id, keep, cleared, &kept);
  if (!is_free && !status) ++cleared->in_use;
  if (kept || status) {
    mlx_lock_release(&lock);
  } else {
    mlx_lock_release_and_remove(&lock);
  }
  mlx_free(path);
  return status;
}

typedef struct clearing {
  const char *folder;
  mlx_cache_cleared_t *cleared;
} clearing_t;

// Another process may write a cached digest at the same time; its file may be gone already, or reappear.
static mlx_status_t remove_cached_digest(void *user, const char *name) {
  clearing_t *clearing = user;
  char *path;
  MLX_TRY(mlx_join_path(clearing->folder, name, &path));
  uint64_t bytes = mlx_cache_tree_bytes(path);
  mlx_status_t status = mlx_remove_tree(path);
  if (!status) clearing->cleared->bytes += bytes;
  mlx_free(path);
  return status;
}

static mlx_status_t remove_cached_digests(const mlx_cache_t *cache, mlx_cache_cleared_t *cleared) {
  char *folder;
  MLX_TRY(mlx_join_path(cache->folder, "digests", &folder));
  clearing_t clearing = {.folder = folder, .cleared = cleared};
  mlx_status_t status = mlx_is_dir(folder) ? mlx_list_dir(folder, remove_cached_digest, &clearing) : NULL;
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_cache_clear(mlx_cache_t *cache, const mlx_cache_keep_t *keep,
                             mlx_cache_cleared_t *out_cleared) {
  *out_cleared = (mlx_cache_cleared_t){0};
  id_list_t list = {0};
  mlx_status_t status = collect_ids(cache, &list);
  for (size_t i = 0; i < list.count; ++i) {
    bool again = i && !strcmp(list.ids[i], list.ids[i - 1]);
    if (!again && mlx_status_code(status) != MLX_OUT_OF_MEMORY) {
      status = mlx_status_join(status, clear_id(cache, list.ids[i], keep, out_cleared));
    }
  }
  for (size_t i = 0; i < list.count; ++i) mlx_free(list.ids[i]);
  mlx_free(list.ids);
  return mlx_status_join(status, remove_cached_digests(cache, out_cleared));
}

mlx_status_t mlx_cache_remove(mlx_cache_t *cache, const char *kind, const char *key,
                              const mlx_cache_keep_t *keep, mlx_cache_cleared_t *inout_cleared) {
  char *id;
  MLX_TRY(open_work_folders(cache, NULL));
  MLX_TRY(mlx_format(&id, "%s-%s", kind, key));
  mlx_status_t status = clear_id(cache, id, keep, inout_cleared);
  mlx_free(id);
  return status;
}
