// Cache entries with a file that was hashed while it was written, or that a bundle shares as a hard link.
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "tests/support/breaking.h"
#include "tests/support/check.h"
#include "tests/support/folder.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define WEIGHTS "cache/weights/" KEY "/weights.irpa"
#define TEXT "the weights"

typedef struct fill_options {
  mlx_cache_hashed_file_t hashed;
  int fills;
} fill_options_t;

static mlx_status_t fill(void *user, const char *entry, const char *log_path) {
  fill_options_t *options = user;
  mlx_tree_hasher_t hasher;
  char *path;
  (void)log_path;
  ++options->fills;
  mlx_tree_hasher_begin(&hasher);
  mlx_tree_hasher_add(&hasher, TEXT, strlen(TEXT));
  mlx_tree_hasher_end(&hasher, options->hashed.tree);
  mlx_digest_bytes(TEXT, strlen(TEXT), options->hashed.sha256);
  snprintf(options->hashed.name, sizeof options->hashed.name, "weights.irpa");
  options->hashed.size = strlen(TEXT);
  MLX_TRY(mlx_join_path(entry, "weights.irpa", &path));
  mlx_status_t status = mlx_write_file(path, TEXT, strlen(TEXT));
  mlx_free(path);
  return status;
}

static mlx_cache_t *begin(void) {
  mlx_cache_t *cache;
  strcpy(folder, "/tmp/mlxcel-link-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_cache_open(in_folder("cache"), &cache));
  return cache;
}

static void finish(mlx_cache_t *cache) {
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(folder));
}

// Finds or creates the entry. Returns whether it was created.
static bool creates(mlx_cache_t *cache, fill_options_t *options) {
  const mlx_cache_request_t request = {.kind = "weights",
                                       .key = KEY,
                                       .title = "weights of a model",
                                       .fill = fill,
                                       .user = options,
                                       .hashed = &options->hashed};
  mlx_cache_entry_t entry;
  const int before = options->fills;
  CHECK_OK(mlx_cache_get(cache, &request, NULL, &entry));
  mlx_cache_release(&entry);
  return options->fills > before;
}

typedef struct digests {
  char sha256[MLX_DIGEST_HEX], tree[MLX_DIGEST_HEX];
} digests_t;

static void digests_of(mlx_cache_t *cache, digests_t *out) {
  CHECK_OK(mlx_cache_digest_file(cache, in_folder(WEIGHTS), NULL, out->sha256));
  CHECK_OK(mlx_cache_tree_digest_part(cache, in_folder(WEIGHTS), 0, strlen(TEXT), NULL, out->tree));
}

static mlx_status_t falsify(void *user, const char *name) {
  char *path, *text, *digit;
  MLX_TRY(mlx_join_path(user, name, &path));
  CHECK_OK(mlx_read_file(path, 4096, &text, NULL));
  CHECK((digit = strstr(text, "\"digest\"")) && (digit = strchr(digit, ':')) && (digit = strchr(digit, '"')));
  digit[1] = digit[1] == '0' ? '1' : '0';
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  mlx_free(text);
  mlx_free(path);
  return NULL;
}

TEST(file_that_was_hashed_while_written_is_not_read_again) {
  mlx_cache_t *cache = begin();
  fill_options_t options = {.fills = 0};
  digests_t found;
  char plain[MLX_DIGEST_HEX];
  CHECK(creates(cache, &options));
  CHECK_OK(mlx_digest_file(in_folder(WEIGHTS), NULL, plain));
  digests_of(cache, &found);
  CHECK_TEXT(found.sha256, plain);
  CHECK_OK(mlx_tree_digest_part(in_folder(WEIGHTS), 0, strlen(TEXT), 1, NULL, plain));
  CHECK_TEXT(found.tree, plain);
  CHECK(!creates(cache, &options));
  char path[512];
  snprintf(path, sizeof path, "%s", in_folder("cache/digests"));
  CHECK_OK(mlx_list_dir(path, falsify, path));
  digests_of(cache, &found);  // both come from the digest cache
  CHECK(strcmp(found.tree, options.hashed.tree) && strcmp(found.sha256, options.hashed.sha256));
  finish(cache);
}

TEST(entry_whose_hashed_file_is_damaged_is_created_again) {
  mlx_cache_t *cache = begin();
  fill_options_t options = {.fills = 0};
  CHECK(creates(cache, &options));
  CHECK_OK(mlx_write_file(in_folder(WEIGHTS), "the weighty", strlen(TEXT)));
  CHECK(creates(cache, &options));
  finish(cache);
}

static bool has_hard_links(void) {
  CHECK_OK(mlx_write_file(in_folder("one"), "", 0));
  return mlx_link_file(in_folder("one"), in_folder("two"));
}

TEST(hard_link_keeps_the_cached_digests_until_the_content_changes) {
  mlx_cache_t *cache = begin();
  if (!has_hard_links()) {
    finish(cache);
    SKIP("this system has no hard links");
  }
  fill_options_t options = {.fills = 0};
  digests_t before, after;
  mlx_file_stamp_t stamp, linked;
  char weights[512], path[512];
  snprintf(weights, sizeof weights, "%s", in_folder(WEIGHTS));
  CHECK(creates(cache, &options));
  snprintf(path, sizeof path, "%s", in_folder("cache/digests"));
  CHECK_OK(mlx_list_dir(path, falsify, path));
  digests_of(cache, &before);
  CHECK_OK(mlx_file_stamp(weights, &stamp));
  usleep(20000);  // more than one tick of the file system's clock
  CHECK(mlx_link_file(weights, in_folder("linked")));
  CHECK(!mlx_link_file(weights, in_folder("linked")));  // it exists
  CHECK_OK(mlx_file_stamp(weights, &linked));
  CHECK(memcmp(&stamp, &linked, sizeof stamp));
  mlx_cache_keep_digests(cache, weights, &stamp);
  digests_of(cache, &after);
  CHECK_TEXT(after.sha256, before.sha256);  // the falsified ones: the file was not read
  CHECK_TEXT(after.tree, before.tree);
  int fd = open(in_folder("linked"), O_WRONLY | O_CLOEXEC);  // in place, so the cache's file changes too
  CHECK_INT(write(fd, "THE", 3), 3);
  close(fd);
  mlx_cache_keep_digests(cache, weights, &linked);
  digests_of(cache, &after);
  CHECK(strcmp(after.sha256, before.sha256) && strcmp(after.tree, before.tree));
  CHECK(creates(cache, &options));
  finish(cache);
}

TEST(entry_whose_file_others_may_write_through_a_hard_link_is_created_again) {
  mlx_cache_t *cache = begin();
  if (!has_hard_links()) {
    finish(cache);
    SKIP("this system has no hard links");
  }
  fill_options_t options = {.fills = 0};
  CHECK(creates(cache, &options));
  CHECK(mlx_link_file(in_folder(WEIGHTS), in_folder("linked")));
  CHECK(!creates(cache, &options));
  CHECK(!chmod(in_folder("linked"), 0666));
  CHECK(creates(cache, &options));
  struct stat info;
  CHECK(!stat(in_folder(WEIGHTS), &info) && info.st_nlink == 1 && !(info.st_mode & 022));
  finish(cache);
}

static atomic_bool stop_linking;

static void *link_and_unlink(void *path) {
  char other[512];
  snprintf(other, sizeof other, "%s-linked", (const char *)path);
  while (!atomic_load(&stop_linking)) {
    CHECK(mlx_link_file(path, other) && !unlink(other));
    usleep(1000);
  }
  return NULL;
}

// Another process may share the same weights with a bundle at any time.
TEST(file_that_gets_hard_links_while_it_is_hashed_has_not_changed) {
  mlx_cache_t *cache = begin();
  if (!has_hard_links()) {
    finish(cache);
    SKIP("this system has no hard links");
  }
  const size_t size = 16u << 20;
  char *bytes, large[512], expected[MLX_DIGEST_HEX], found[MLX_DIGEST_HEX];
  snprintf(large, sizeof large, "%s", in_folder("large"));
  CHECK_OK(mlx_alloc(size, 1, &bytes));
  CHECK_OK(mlx_write_file(large, bytes, size));
  CHECK_OK(mlx_digest_file(large, NULL, expected));
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, link_and_unlink, large));
  for (int i = 0; i < 5; ++i) {
    CHECK_OK(mlx_cache_digest_file(cache, large, NULL, found));
    CHECK_TEXT(found, expected);
  }
  atomic_store(&stop_linking, true);
  pthread_join(thread, NULL);
  mlx_free(bytes);
  finish(cache);
}

// A caller that gets false copies the file, so no link may be left.
TEST(link_that_cannot_be_made_or_synced_leaves_nothing) {
  mlx_cache_t *cache = begin();
  if (!has_hard_links()) {
    finish(cache);
    SKIP("this system has no hard links");
  }
  for (long call = 1; call <= 3; ++call) {  // link, open and sync of the folder
    break_at(call, EIO, false);
    const bool linked = mlx_link_file(in_folder("one"), in_folder("three"));
    mlx_file_set_calls(NULL);
    CHECK(!linked && !mlx_is_file(in_folder("three")));
  }
  CHECK(mlx_link_file(in_folder("one"), in_folder("three")));
  finish(cache);
}

TEST_MAIN(CASE(file_that_was_hashed_while_written_is_not_read_again),
          CASE(entry_whose_hashed_file_is_damaged_is_created_again),
          CASE(hard_link_keeps_the_cached_digests_until_the_content_changes),
          CASE(file_that_gets_hard_links_while_it_is_hashed_has_not_changed),
          CASE(link_that_cannot_be_made_or_synced_leaves_nothing),
          CASE(entry_whose_file_others_may_write_through_a_hard_link_is_created_again))
