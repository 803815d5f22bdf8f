// Remembered digests: the compiler's library alone is 335 MB, and every start of mlxcel needs its digest.
//
// When a memo may be trusted is git's "racy" rule. A memo says: a file with this stamp has this digest. A
// write that comes after we hashed the file but leaves the same stamp (file times move in steps, of 2 s on
// the coarsest file systems) would make that a lie. So a memo is kept only when the file's times were already
// that old when hashing began: then any later write must move them.
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "cache/entry.h"
#include "cache/inner.h"

#define SETTLED_NS (2 * 1000000000LL)

static int64_t now_ns(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// digests/SHA256-OF-THE-PATH.json
static mlx_status_t memo_path(const mlx_cache_t *cache, const char *real_path, char **out_path) {
  char name[MLX_DIGEST_HEX + 5];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "path", real_path, strlen(real_path));
  mlx_digest_end(&digest, name);
  memcpy(name + MLX_DIGEST_HEX - 1, ".json", 6);
  return mlx_cache_path(cache, "digests", name, out_path);
}

// True when the memo exists and is about a file with exactly this stamp. A memo that cannot be read is none.
static bool recall(const char *path, const mlx_file_stamp_t *stamp, char out_hex[MLX_DIGEST_HEX]) {
  char *bytes = NULL, text[MLX_STAMP_TEXT];
  size_t length = 0;
  mlx_memo_t memo;
  mlx_stamp_text(stamp, text);
  mlx_status_t status = mlx_read_file(path, MLX_MEMO_MAX, &bytes, &length);
  if (!status) status = mlx_memo_parse(path, bytes, length, &memo);
  bool known = !status && !strcmp(memo.stamp, text);
  if (known) memcpy(out_hex, memo.sha256, MLX_DIGEST_HEX);
  mlx_status_free(status);
  mlx_free(bytes);
  return known;
}

void mlx_cache_remember(const mlx_cache_t *cache, const char *real_path, const mlx_file_stamp_t *stamp,
                        const char sha256[MLX_DIGEST_HEX]) {
  mlx_memo_t memo;
  mlx_text_t text = {0};
  char *path = NULL, *folder = NULL;
  mlx_stamp_text(stamp, memo.stamp);
  memcpy(memo.sha256, sha256, MLX_DIGEST_HEX);
  mlx_memo_write(&memo, real_path, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = memo_path(cache, real_path, &path);
  if (!status) status = mlx_join_path(cache->folder, "digests", &folder);
  if (!status) status = mlx_make_dirs(folder, 0700);
  if (!status) status = mlx_write_file(path, text.data, text.length);
  mlx_status_free(status);  // a read-only cache, a full disk: then it is hashed again next time
  mlx_free(folder);
  mlx_free(path);
  mlx_text_clear(&text);
}

// A file, or a part of one; |memo| is what the digest is remembered under.
typedef struct digested {
  const char *path, *memo;
  bool part;
  uint64_t offset, size;
} digested_t;

static mlx_status_t digest_and_remember(mlx_cache_t *cache, const digested_t *what,
                                        const mlx_file_stamp_t *stamp, char out_hex[MLX_DIGEST_HEX]) {
  int64_t settled = now_ns() - SETTLED_NS;
  mlx_file_stamp_t after;
  MLX_TRY(what->part ? mlx_digest_part(what->path, what->offset, what->size, out_hex)
                     : mlx_digest_file(what->path, out_hex));
  MLX_TRY(mlx_file_stamp(what->path, &after));
  if (memcmp(stamp, &after, sizeof after)) {
    return mlx_status_hint(mlx_error(MLX_IO, "'%s' changed while it was being read", what->path),
                           "run the command again");
  }
  if (stamp->modified_ns < settled && stamp->changed_ns < settled)
    mlx_cache_remember(cache, what->memo, stamp, out_hex);
  return NULL;
}

static mlx_status_t recall_or_digest(mlx_cache_t *cache, const digested_t *what,
                                     char out_hex[MLX_DIGEST_HEX]) {
  char *memo = NULL;
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(what->path, &stamp));
  MLX_TRY(memo_path(cache, what->memo, &memo));
  mlx_status_t status =
      recall(memo, &stamp, out_hex) ? NULL : digest_and_remember(cache, what, &stamp, out_hex);
  mlx_free(memo);
  return status;
}

mlx_status_t mlx_cache_digest_file(mlx_cache_t *cache, const char *path, char out_hex[MLX_DIGEST_HEX]) {
  char *real;
  MLX_TRY(mlx_real_path(path, &real));
  mlx_status_t status = recall_or_digest(cache, &(digested_t){.path = real, .memo = real}, out_hex);
  mlx_free(real);
  return status;
}

mlx_status_t mlx_cache_digest_part(mlx_cache_t *cache, const char *path, uint64_t offset, uint64_t size,
                                   char out_hex[MLX_DIGEST_HEX]) {
  char *real, *memo = NULL;
  MLX_TRY(mlx_real_path(path, &real));
  mlx_status_t status =
      mlx_format(&memo, "%s@%llu+%llu", real, (unsigned long long)offset, (unsigned long long)size);
  if (!status)
    status = recall_or_digest(
        cache, &(digested_t){.path = real, .memo = memo, .part = true, .offset = offset, .size = size},
        out_hex);
  mlx_free(memo);
  mlx_free(real);
  return status;
}
