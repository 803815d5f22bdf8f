// Digest cache: SHA-256 and tree digests of files by path and stamp. The compiler library alone is 335 MB,
// and mlxcel needs its digest at every start.
//
// A cached digest is valid for a file with the same stamp. A write after the hashing that leaves the stamp
// unchanged would make it wrong, because file times have a resolution of up to 2 s. So, like git's "racy"
// rule, a digest is cached only if the file's times were at least that old when hashing began: any later
// write then changes them.
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "cache/entry.h"
#include "cache/internal.h"

#define MIN_AGE_NS (2 * 1000000000LL)
#define PART_SEPARATOR '@'
#define TREE_SEPARATOR '#'

static int64_t now_ns(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// digests/SHA256-OF-THE-PATH.json
static mlx_status_t cached_digest_path(const mlx_cache_t *cache, const char *real_path, char **out_path) {
  char name[MLX_DIGEST_HEX + 5];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "path", real_path, strlen(real_path));
  mlx_digest_end(&digest, name);
  memcpy(name + MLX_DIGEST_HEX - 1, ".json", 6);
  return mlx_cache_path(cache, "digests", name, out_path);
}

// True if a cached digest exists for exactly this stamp. An unreadable one counts as missing, and so does one
// that another user may have written.
static bool find_cached(const char *path, const mlx_file_stamp_t *stamp, char out_hex[MLX_DIGEST_HEX]) {
  char *bytes = NULL, text[MLX_STAMP_TEXT];
  size_t length = 0;
  mlx_cached_digest_t cached;
  mlx_stamp_text(stamp, text);
  if (!mlx_cache_is_private(path)) return false;
  mlx_status_t status = mlx_read_file(path, MLX_CACHED_DIGEST_MAX, &bytes, &length);
  if (!status) status = mlx_cached_digest_parse(path, bytes, length, &cached);
  bool known = !status && !strcmp(cached.stamp, text);
  if (known) memcpy(out_hex, cached.digest, MLX_DIGEST_HEX);
  mlx_status_free(status);
  mlx_free(bytes);
  return known;
}

void mlx_cache_store_digest(const mlx_cache_t *cache, const char *real_path, const mlx_file_stamp_t *stamp,
                            const char digest[MLX_DIGEST_HEX]) {
  mlx_cached_digest_t cached;
  mlx_text_t text = {0};
  char *path = NULL, *folder = NULL;
  mlx_stamp_text(stamp, cached.stamp);
  memcpy(cached.digest, digest, MLX_DIGEST_HEX);
  mlx_cached_digest_write(&cached, real_path, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = cached_digest_path(cache, real_path, &path);
  if (!status) status = mlx_join_path(cache->folder, "digests", &folder);
  if (!status) status = mlx_make_dirs(folder, 0700);
  if (!status) status = mlx_write_file(path, text.data, text.length);
  mlx_status_free(status);  // read-only cache or full disk: the file is hashed again next time
  mlx_free(folder);
  mlx_free(path);
  mlx_text_clear(&text);
}

// A file or a part of it; |key| is the key of the cached digest.
typedef struct digest_source {
  const char *path, *key;
  enum { WHOLE, PART, TREE } kind;
  uint64_t offset, size;  // not for WHOLE
  const mlx_digest_watch_t *watch;
} digest_source_t;

static mlx_status_t compute(const digest_source_t *what, char out_hex[MLX_DIGEST_HEX]) {
  switch (what->kind) {
    case PART: return mlx_digest_part(what->path, what->offset, what->size, what->watch, out_hex);
    case TREE: return mlx_tree_digest_part(what->path, what->offset, what->size, 0, what->watch, out_hex);
    default: return mlx_digest_file(what->path, what->watch, out_hex);
  }
}

static mlx_status_t digest_and_store(mlx_cache_t *cache, const digest_source_t *what,
                                     const mlx_file_stamp_t *stamp, char out_hex[MLX_DIGEST_HEX]) {
  int64_t newest_time = now_ns() - MIN_AGE_NS;
  mlx_file_stamp_t after;
  MLX_TRY(compute(what, out_hex));
  MLX_TRY(mlx_file_stamp(what->path, &after));
  if (!mlx_file_stamp_same_content(stamp, &after)) {
    return mlx_status_hint(mlx_error(MLX_IO, "'%s' changed while it was being read", what->path),
                           "run the command again");
  }
  // Not after a new hard link: it would hide a write whose modification time was set back.
  const bool is_same = stamp->changed_ns == after.changed_ns;
  if (is_same && stamp->modified_ns < newest_time && stamp->changed_ns < newest_time)
    mlx_cache_store_digest(cache, what->key, stamp, out_hex);
  return NULL;
}

static mlx_status_t find_or_digest(mlx_cache_t *cache, const digest_source_t *what,
                                   char out_hex[MLX_DIGEST_HEX]) {
  char *cached = NULL;
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(what->path, &stamp));
  MLX_TRY(cached_digest_path(cache, what->key, &cached));
  mlx_status_t status =
      find_cached(cached, &stamp, out_hex) ? NULL : digest_and_store(cache, what, &stamp, out_hex);
  mlx_free(cached);
  return status;
}

mlx_status_t mlx_cache_digest_file(mlx_cache_t *cache, const char *path, const mlx_digest_watch_t *watch,
                                   char out_hex[MLX_DIGEST_HEX]) {
  char *real;
  MLX_TRY(mlx_real_path(path, &real));
  mlx_status_t status =
      find_or_digest(cache, &(digest_source_t){.path = real, .key = real, .watch = watch}, out_hex);
  mlx_free(real);
  return status;
}

// Key of the digest of a part. |separator| distinguishes SHA-256 digests from tree digests.
static mlx_status_t part_key(const char *real_path, char separator, uint64_t offset, uint64_t size,
                             char **out_key) {
  return mlx_format(out_key, "%s%c%llu+%llu", real_path, separator, (unsigned long long)offset,
                    (unsigned long long)size);
}

static mlx_status_t find_or_digest_part(mlx_cache_t *cache, const char *path, char separator,
                                        const digest_source_t *part, char out_hex[MLX_DIGEST_HEX]) {
  char *real, *key = NULL;
  MLX_TRY(mlx_real_path(path, &real));
  mlx_status_t status = part_key(real, separator, part->offset, part->size, &key);
  digest_source_t what = *part;
  what.path = real;
  what.key = key;
  if (!status) status = find_or_digest(cache, &what, out_hex);
  mlx_free(key);
  mlx_free(real);
  return status;
}

mlx_status_t mlx_cache_digest_part(mlx_cache_t *cache, const char *path, uint64_t offset, uint64_t size,
                                   const mlx_digest_watch_t *watch, char out_hex[MLX_DIGEST_HEX]) {
  const digest_source_t part = {.kind = PART, .offset = offset, .size = size, .watch = watch};
  return find_or_digest_part(cache, path, PART_SEPARATOR, &part, out_hex);
}

mlx_status_t mlx_cache_tree_digest_part(mlx_cache_t *cache, const char *path, uint64_t offset, uint64_t size,
                                        const mlx_digest_watch_t *watch, char out_hex[MLX_DIGEST_HEX]) {
  const digest_source_t part = {.kind = TREE, .offset = offset, .size = size, .watch = watch};
  return find_or_digest_part(cache, path, TREE_SEPARATOR, &part, out_hex);
}

mlx_status_t mlx_cache_tree_digest_file(mlx_cache_t *cache, const char *path, const mlx_digest_watch_t *watch,
                                        char out_hex[MLX_DIGEST_HEX]) {
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(path, &stamp));
  return mlx_cache_tree_digest_part(cache, path, 0, stamp.size, watch, out_hex);
}

// ----------------------------------------------------------------------------------------------------------
// Digests that are known without reading the file

void mlx_cache_store_tree_digest(const mlx_cache_t *cache, const char *real_path,
                                 const mlx_file_stamp_t *stamp, const char tree[MLX_DIGEST_HEX]) {
  char *key = NULL;
  mlx_status_t status = part_key(real_path, TREE_SEPARATOR, 0, stamp->size, &key);
  if (!status) mlx_cache_store_digest(cache, key, stamp, tree);
  mlx_status_free(status);  // the file is hashed again next time
  mlx_free(key);
}

// Moves the cached digest of |key| from one stamp of its file to another.
static void restamp(const mlx_cache_t *cache, const char *key, const mlx_file_stamp_t *from,
                    const mlx_file_stamp_t *to) {
  char *cached = NULL, hex[MLX_DIGEST_HEX];
  mlx_status_t status = cached_digest_path(cache, key, &cached);
  if (!status && find_cached(cached, from, hex)) mlx_cache_store_digest(cache, key, to, hex);
  mlx_status_free(status);
  mlx_free(cached);
}

// A write would have changed the modification time too.
void mlx_cache_keep_digests(mlx_cache_t *cache, const char *path, const mlx_file_stamp_t *before) {
  char *real = NULL, *key = NULL;
  mlx_file_stamp_t now = {0};
  mlx_status_t status = mlx_real_path(path, &real);
  if (!status) status = mlx_file_stamp(real, &now);
  if (!status && mlx_file_stamp_same_content(before, &now)) {
    restamp(cache, real, before, &now);
    status = part_key(real, TREE_SEPARATOR, 0, now.size, &key);
    if (!status) restamp(cache, key, before, &now);
  }
  mlx_status_free(status);
  mlx_free(key);
  mlx_free(real);
}
