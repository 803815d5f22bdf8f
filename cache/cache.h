// Cache: a content-addressed store of folders that are expensive to make.
//
// It knows nothing about models or compilers. A caller names what it wants by a kind ("vmfb", "weights") and
// a key (a SHA-256 over everything the content depends on) and gives a function that makes it. The cache
// promises:
//   - an entry is handed out only when every file of it has the size and the digest its record (entry.json)
//   says;
//   - a process killed at any point leaves nothing that a later one would trust, and no lock that stays
//   taken;
//   - of many processes that want the same entry, one makes it and the others wait, and say so.
// It is not a place for secrets or for anything that cannot be made again: `clear` may run at any time.
//
// On disk, below the cache folder (which must be private to the user):
//   KIND/KEY/          an entry: its files and entry.json, put there by one rename
//   locks/KIND-KEY     held (flock) by the one who makes that entry; its text is the holder's process id
//   tmp/KIND-KEY.*     entries being made or removed; left over only by a killed process
//   logs/KIND-KEY.log  what the tool said when the entry was last made, kept after success and failure alike
//   digests/*.json     digests of files, by path and stamp, so that a large file is hashed once
//
// Threads: a cache may be used by several threads at once (it holds no state but its folder). An entry
// belongs to one.
#ifndef MLXCEL_CACHE_CACHE_H_
#define MLXCEL_CACHE_CACHE_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/report.h"
#include "base/status.h"

typedef struct mlx_cache mlx_cache_t;

// Opens |folder|, or when that is NULL or "": $MLXCEL_CACHE, $XDG_CACHE_HOME/mlxcel, $HOME/.cache/mlxcel. A
// missing folder is made (0700). One that belongs to another user (root excepted) or that others may write to
// is refused.
mlx_status_t mlx_cache_open(const char *folder, mlx_cache_t **out_cache) MLX_MUST_USE;
void mlx_cache_close(mlx_cache_t *cache);                // NULL is fine
const char *mlx_cache_folder(const mlx_cache_t *cache);  // absolute; valid until close

// SHA-256 of a file, remembered under the file's real path and stamp: the second call for an unchanged file
// reads nothing of it. A file that changes while it is read is an error.
mlx_status_t mlx_cache_digest_file(mlx_cache_t *cache, const char *path,
                                   char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// The same of |size| bytes at |offset| of it.
mlx_status_t mlx_cache_digest_part(mlx_cache_t *cache, const char *path, uint64_t offset, uint64_t size,
                                   char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Entries

// An entry in use. While it is held, `clear` leaves it alone (in this and every other process); files that
// were opened or mapped stay readable after release. Release exactly once; a zeroed entry may be released
// too.
typedef struct mlx_cache_entry {
  char *folder;  // owned; NULL: there is no such entry
  bool hit;      // it was there already
  int lease;     // private to the cache
} mlx_cache_entry_t;
void mlx_cache_release(mlx_cache_entry_t *entry);

// Looks for a valid entry; works on a read-only cache. A missing or damaged one is not an error: |folder| is
// then NULL.
mlx_status_t mlx_cache_find(mlx_cache_t *cache, const char *kind, const char *key,
                            mlx_cache_entry_t *out_entry) MLX_MUST_USE;

// Looks for a file with this digest among the entries of |kind|. *|out_path| (release with mlx_free) is NULL
// when there is none; otherwise release the entry when the file is no longer needed.
mlx_status_t mlx_cache_find_file(mlx_cache_t *cache, const char *kind, const char *sha256,
                                 mlx_cache_entry_t *out_entry, char **out_path) MLX_MUST_USE;

// Makes the content of an entry: plain files, no folders or links, in |folder| (empty and private). A tool's
// output belongs in |log_path|, which outlives a failure, so an error may name it. Only one process at a time
// fills a given entry.
typedef mlx_status_t (*mlx_cache_fill_fn_t)(void *user, const char *folder, const char *log_path);

typedef struct mlx_cache_request {
  const char *kind;   // lower-case letters, digits and '_', at most 32
  const char *key;    // 64 hexadecimal digits, from mlx_digest_end
  const char *title;  // for people: progress, `cache list`
  mlx_cache_fill_fn_t fill;
  void *user;  // for fill
} mlx_cache_request_t;

// Finds the entry, or waits for whoever is making it, or makes it. Fails with fill's own status when that
// fails.
mlx_status_t mlx_cache_get(mlx_cache_t *cache, const mlx_cache_request_t *request, const mlx_report_t *report,
                           mlx_cache_entry_t *out_entry) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Upkeep

typedef struct mlx_cache_item {
  const char *kind, *key;
  const char *title;  // NULL when the entry's record is damaged
  uint64_t bytes;     // on disk, by the lengths of its files
  int64_t created;    // seconds since 1970; 0 when damaged
  int64_t used;       // when it was last found, or made; 0 when damaged
} mlx_cache_item_t;
typedef mlx_status_t (*mlx_cache_visit_fn_t)(void *user, const mlx_cache_item_t *item);

// Calls |visit| for every entry, by kind, then key. Does not check digests. A status from |visit| ends the
// walk.
mlx_status_t mlx_cache_list(mlx_cache_t *cache, mlx_cache_visit_fn_t visit, void *user) MLX_MUST_USE;

typedef struct mlx_cache_cleared {
  uint64_t bytes;  // freed
  size_t removed;  // entries
  size_t in_use;   // entries left alone, because some process is making or using them
} mlx_cache_cleared_t;

// Removes everything that is not in use at this moment. |out_cleared| counts what was done, also when a
// removal fails.
mlx_status_t mlx_cache_clear(mlx_cache_t *cache, mlx_cache_cleared_t *out_cleared) MLX_MUST_USE;

#endif  // MLXCEL_CACHE_CACHE_H_
