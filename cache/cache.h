// Cache: a content-addressed store of folders that are expensive to create.
//
// The cache knows nothing about models or compilers. The caller identifies an entry by a kind ("vmfb",
// "weights") and a key: a SHA-256 of everything the content depends on. It also supplies a function that
// creates the content. Guarantees:
//   - An entry is returned only if every file has the size and digest of its record (entry.json).
//   - A process killed at any point leaves nothing that a later process would trust, and no lock held.
//   - If several processes request the same entry, one creates it. The others wait and report that they wait.
// Do not store secrets or anything that cannot be created again: `clear` may run at any time.
//
// On disk, below the cache folder (which must be private to the user):
//   KIND/KEY/          an entry: its files and entry.json, put there by one rename
//   locks/KIND-KEY     locked (flock) by the process that creates that entry; contains its process id
//   tmp/KIND-KEY.*     entries being created or removed. mlx_cache_open removes what killed processes left
//   logs/KIND-KEY.log  output of the tool that created the entry last, kept after success and failure
//   digests/*.json     digests of files, by path and stamp, so that a large file is hashed once
//
// Threads: several threads may use one cache (its only state is its folder). An entry belongs to one thread.
#ifndef MLXCEL_CACHE_CACHE_H_
#define MLXCEL_CACHE_CACHE_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/report.h"
#include "base/status.h"

typedef struct mlx_cache mlx_cache_t;

// Opens |folder|. If it is NULL or "", opens $MLXCEL_CACHE, $XDG_CACHE_HOME/mlxcel or $HOME/.cache/mlxcel.
// Creates a missing folder (mode 0700). Fails if another user (except root) owns the folder, or a folder
// directly below it, or may write to them.
mlx_status_t mlx_cache_open(const char *folder, mlx_cache_t **out_cache) MLX_MUST_USE;
void mlx_cache_close(mlx_cache_t *cache);                // NULL is allowed
const char *mlx_cache_folder(const mlx_cache_t *cache);  // absolute; valid until close

// If |status| says that a file below |folder| could not be written because the disk is full or the folder is
// not writable, replaces its hint by one that names MLXCEL_CACHE. |folder| is NULL or as for mlx_cache_open.
mlx_status_t mlx_cache_hint(const char *folder, mlx_status_t status) MLX_MUST_USE;

// Fails if another user (except root) owns or may write to |path| in the cache folder, a folder between the
// two, or anything below |path|. A missing path is fine. mlx_cache_find and mlx_cache_get check their
// entries.
mlx_status_t mlx_cache_check_tree(const mlx_cache_t *cache, const char *path) MLX_MUST_USE;

// SHA-256 of a file, cached under its real path and stamp: a second call for an unchanged file does not read
// it. A file that changes while it is read is an error.
mlx_status_t mlx_cache_digest_file(mlx_cache_t *cache, const char *path, const mlx_digest_watch_t *watch,
                                   char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// The same for |size| bytes at |offset|.
mlx_status_t mlx_cache_digest_part(mlx_cache_t *cache, const char *path, uint64_t offset, uint64_t size,
                                   const mlx_digest_watch_t *watch,
                                   char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// The same for tree digests (base/digest.h), computed by several threads: of a file, and of |size| bytes at
// |offset|.
mlx_status_t mlx_cache_tree_digest_file(mlx_cache_t *cache, const char *path, const mlx_digest_watch_t *watch,
                                        char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
mlx_status_t mlx_cache_tree_digest_part(mlx_cache_t *cache, const char *path, uint64_t offset, uint64_t size,
                                        const mlx_digest_watch_t *watch,
                                        char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// Call after a hard link of |path| was made or removed, with the stamp from before. That changes the stamp
// but not the content, so the cached digests of |path| stay valid. Without this call the file is hashed
// again.
void mlx_cache_keep_digests(mlx_cache_t *cache, const char *path, const mlx_file_stamp_t *before);

// ----------------------------------------------------------------------------------------------------------
// Entries

// An entry in use. While it is held, `clear` in this or any other process skips it. Files that were opened or
// mapped stay readable after the release. Release exactly once; releasing a zeroed entry is allowed.
typedef struct mlx_cache_entry {
  char *folder;  // owned; NULL if there is no such entry
  bool hit;      // the entry existed already
  int lock_fd;   // private: descriptor of the shared lock
} mlx_cache_entry_t;
void mlx_cache_release(mlx_cache_entry_t *entry);

// Looks for a valid entry; works on a read-only cache. A missing or damaged entry is not an error: |folder|
// is NULL then. An entry that another user may have written is an error (mlx_cache_check_tree).
mlx_status_t mlx_cache_find(mlx_cache_t *cache, const char *kind, const char *key,
                            mlx_cache_entry_t *out_entry) MLX_MUST_USE;

// Looks for a file with this tree digest in the entries of |kind|. *|out_path| (release with mlx_free) is
// NULL if there is none. Otherwise release the entry when the file is no longer needed.
mlx_status_t mlx_cache_find_file(mlx_cache_t *cache, const char *kind, const char *tree,
                                 mlx_cache_entry_t *out_entry, char **out_path) MLX_MUST_USE;

// Creates the content of an entry in |folder|, which is empty and private: plain files, no folders or links.
// The output of a tool goes to |log_path|, which is kept on failure, so that an error may name it. Only one
// process at a time fills a given entry.
typedef mlx_status_t (*mlx_cache_fill_fn_t)(void *user, const char *folder, const char *log_path);

// A file that |fill| hashed while it wrote it.
typedef struct mlx_cache_hashed_file {
  char name[64];  // "" for none
  uint64_t size;
  char tree[MLX_DIGEST_HEX];
  char sha256[MLX_DIGEST_HEX];  // "" if unknown
} mlx_cache_hashed_file_t;

typedef struct mlx_cache_request {
  const char *kind;   // lower-case letters, digits and '_', at most 32
  const char *key;    // 64 hexadecimal digits, from mlx_digest_end
  const char *title;  // shown to the user: progress, `cache list`
  mlx_cache_fill_fn_t fill;
  void *user;  // for fill
  // NULL, or set by |fill|: the cache does not read this file again to hash it. For a large file.
  const mlx_cache_hashed_file_t *hashed;
} mlx_cache_request_t;

// Finds the entry, waits for the process that creates it, or creates it. Returns the status of |fill| if that
// fails.
mlx_status_t mlx_cache_get(mlx_cache_t *cache, const mlx_cache_request_t *request, const mlx_report_t *report,
                           mlx_cache_entry_t *out_entry) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Maintenance

typedef struct mlx_cache_item {
  const char *kind, *key;
  const char *title;  // NULL if the record is damaged
  uint64_t bytes;     // sum of the file sizes
  int64_t created;    // seconds since 1970; 0 if damaged
  int64_t used;       // last time the entry was found or created; 0 if damaged
} mlx_cache_item_t;
typedef mlx_status_t (*mlx_cache_visit_fn_t)(void *user, const mlx_cache_item_t *item);

// Calls |visit| for every entry, ordered by kind, then key. Does not check digests. An error from |visit|
// ends the walk.
mlx_status_t mlx_cache_list(mlx_cache_t *cache, mlx_cache_visit_fn_t visit, void *user) MLX_MUST_USE;

typedef struct mlx_cache_cleared {
  uint64_t bytes;  // freed bytes
  size_t removed;  // removed entries
  size_t in_use;   // entries that were skipped because a process creates or uses them
  size_t kept;     // entries that were skipped because the caller needs one of their files
} mlx_cache_cleared_t;

// Which entries to keep: |needs| returns true for the tree digest of a file that must stay.
typedef struct mlx_cache_keep {
  bool (*needs)(void *user, const char *tree);
  void *user;
} mlx_cache_keep_t;

// Removes everything that is neither in use nor kept. |keep| may be NULL. |out_cleared| is valid even if a
// removal fails.
mlx_status_t mlx_cache_clear(mlx_cache_t *cache, const mlx_cache_keep_t *keep,
                             mlx_cache_cleared_t *out_cleared) MLX_MUST_USE;
// The same for one entry. Adds to *|inout_cleared|.
mlx_status_t mlx_cache_remove(mlx_cache_t *cache, const char *kind, const char *key,
                              const mlx_cache_keep_t *keep, mlx_cache_cleared_t *inout_cleared) MLX_MUST_USE;

#endif  // MLXCEL_CACHE_CACHE_H_
