// Only the user and root may own or write to the parts of the cache that mlxcel trusts.
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "tests/support/check.h"
#include "tests/support/folder.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define ENTRY "cache/bundle/" KEY

static mlx_status_t fill(void *user, const char *entry, const char *log_path) {
  char *path;
  (void)user, (void)log_path;
  MLX_TRY(mlx_join_path(entry, "manifest.json", &path));
  mlx_status_t status = mlx_write_file(path, "{}", 2);
  if (!status && chmod(path, 0666)) status = mlx_io_error("chmod", path);  // like a tool with umask 0
  mlx_free(path);
  return status;
}

static const mlx_cache_request_t request = {.kind = "bundle", .key = KEY, .title = "made here", .fill = fill};

// Creates a cache with one entry and a cached digest.
static void begin(void) {
  mlx_cache_t *cache;
  mlx_cache_entry_t entry;
  char hex[MLX_DIGEST_HEX];
  strcpy(folder, "/tmp/mlxcel-owner-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_cache_open(in_folder("cache"), &cache));
  CHECK_OK(mlx_cache_get(cache, &request, NULL, &entry));
  mlx_cache_release(&entry);
  CHECK_OK(mlx_cache_tree_digest_file(cache, in_folder(ENTRY "/manifest.json"), NULL, hex));
  mlx_cache_close(cache);
}

static void end(void) { CHECK_OK(mlx_remove_tree(folder)); }

static mlx_status_t find(void) {
  mlx_cache_t *cache;
  mlx_cache_entry_t entry;
  MLX_TRY(mlx_cache_open(in_folder("cache"), &cache));
  mlx_status_t status = mlx_cache_find(cache, "bundle", KEY, &entry);
  CHECK(status || entry.folder);
  mlx_cache_release(&entry);
  mlx_status_t got = mlx_cache_get(cache, &request, NULL, &entry);
  CHECK_INT(mlx_status_code(got), mlx_status_code(status));
  mlx_cache_release(&entry);
  mlx_status_free(got);
  mlx_cache_close(cache);
  return status;
}

static const char *const parts[] = {"cache", "cache/bundle",      "cache/digests",       "cache/tmp",
                                    ENTRY,   ENTRY "/entry.json", ENTRY "/manifest.json"};
#define PARTS (sizeof parts / sizeof *parts)

// Each of these lets another user plant or change an entry. The hint of any of them repairs all.
TEST(parts_that_others_can_write_are_refused) {
  begin();
  char hint[512];
  CHECK_OK(find());
  for (size_t i = 0; i < PARTS; ++i) {
    struct stat info;
    CHECK(!stat(in_folder(parts[i]), &info) && !chmod(in_folder(parts[i]), info.st_mode | 0022));
    mlx_status_t status = find();
    snprintf(hint, sizeof hint, "run `chmod -R go-w '%s'`", in_folder("cache"));
    CHECK_CONTAINS(mlx_status_hint_text(status), hint);
    CHECK_ERROR(status, MLX_IO, "is writable by other users");
    CHECK(!chmod(in_folder(parts[i]), info.st_mode & 0777));
  }
  CHECK_OK(find());
  for (size_t i = 0; i < PARTS; ++i) CHECK(!chmod(in_folder(parts[i]), 0777));
  CHECK_ERROR(find(), MLX_IO, "is writable by other users");
  snprintf(hint, sizeof hint, "chmod -R go-w '%s'", in_folder("cache"));
  CHECK_INT(system(hint), 0);
  CHECK_OK(find());
  end();
}

TEST(parts_of_another_user_are_refused) {
  if (geteuid()) SKIP("only root can change the owner of a file");
  begin();
  for (size_t i = 0; i < PARTS; ++i) {
    CHECK(!chown(in_folder(parts[i]), 12345, 12345));
    CHECK_ERROR(find(), MLX_IO, "belongs to another user (uid 12345)");
    CHECK(!chown(in_folder(parts[i]), 0, 0));
  }
  CHECK_OK(find());
  end();
}

static mlx_status_t spoil_digest(void *user, const char *name) {
  static const char text[] = "0000000000000000000000000000000000000000000000000000000000000000";
  char path[512], *json, *at;
  (void)user;
  snprintf(path, sizeof path, "%s/cache/digests/%s", folder, name);
  CHECK_OK(mlx_read_file(path, 4096, &json, NULL));
  at = strstr(json, "\"digest\": \"");
  CHECK(at);
  memcpy(at + 11, text, 64);
  CHECK_OK(mlx_write_file(path, json, strlen(json)));
  CHECK(!chmod(path, 0666));
  mlx_free(json);
  return NULL;
}

// A wrong cached digest would let a changed file pass. One that others can write is ignored.
TEST(cached_digest_that_others_can_write_is_ignored) {
  begin();
  mlx_cache_t *cache;
  char right[MLX_DIGEST_HEX], hex[MLX_DIGEST_HEX];
  mlx_file_stamp_t stamp;
  CHECK_OK(mlx_file_stamp(in_folder(ENTRY "/manifest.json"), &stamp));
  CHECK_OK(mlx_tree_digest_part(in_folder(ENTRY "/manifest.json"), 0, stamp.size, 1, NULL, right));
  CHECK_OK(mlx_list_dir(in_folder("cache/digests"), spoil_digest, NULL));
  CHECK_OK(mlx_cache_open(in_folder("cache"), &cache));
  CHECK_OK(mlx_cache_tree_digest_file(cache, in_folder(ENTRY "/manifest.json"), NULL, hex));
  CHECK_TEXT(hex, right);
  mlx_cache_close(cache);
  end();
}

TEST_MAIN(CASE(parts_that_others_can_write_are_refused), CASE(parts_of_another_user_are_refused),
          CASE(cached_digest_that_others_can_write_is_ignored))
