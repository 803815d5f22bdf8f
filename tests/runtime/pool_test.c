// The page pool: order of pages, users, published prefixes and eviction.
#include "runtime/pool.h"

#include "kernels/step.h"
#include "tests/support/check.h"

static void fill_ids(int32_t *ids, size_t count, int32_t first) {
  for (size_t i = 0; i < count; ++i) ids[i] = first + (int32_t)i;
}

static mlx_pool_t *create(int64_t pages) {
  mlx_pool_t *pool;
  CHECK_OK(mlx_pool_create(pages, 0, 2, &pool));
  return pool;
}

static void check_counts(const mlx_pool_t *pool, int64_t used, int64_t cached, int64_t free_pages) {
  const mlx_pool_counts_t counts = mlx_pool_counts(pool);
  CHECK_OK(mlx_pool_check(pool));
  CHECK_INT(counts.used, used);
  CHECK_INT(counts.cached, cached);
  CHECK_INT(counts.free, free_pages);
}

TEST(the_lowest_free_page_is_taken_first) {
  mlx_pool_t *pool = create(200);
  for (int32_t page = 1; page < 200; ++page) CHECK_INT(mlx_pool_take(pool), page);
  CHECK_INT(mlx_pool_take(pool), 0);
  mlx_pool_release(pool, 130);
  mlx_pool_release(pool, 7);
  mlx_pool_release(pool, 70);
  CHECK_INT(mlx_pool_take(pool), 7);
  CHECK_INT(mlx_pool_take(pool), 70);
  check_counts(pool, 198, 0, 1);
  CHECK_INT(mlx_pool_take(pool), 130);
  mlx_pool_free(pool);
}

TEST(slots_are_taken_once) {
  mlx_pool_t *pool = create(2);
  CHECK_INT(mlx_pool_take_slot(pool), 0);
  CHECK_INT(mlx_pool_take_slot(pool), 1);
  CHECK_INT(mlx_pool_take_slot(pool), -1);
  mlx_pool_release_slot(pool, 0);
  CHECK_INT(mlx_pool_take_slot(pool), 0);
  mlx_pool_free(pool);
}

TEST(a_published_page_is_found_by_all_tokens_before_it) {
  mlx_pool_t *pool = create(8);
  int32_t ids[48], other[16];
  size_t common;
  fill_ids(ids, 48, 100);
  fill_ids(other, 16, 100);
  other[3] = 7;
  const int32_t a = mlx_pool_take(pool), b = mlx_pool_take(pool), c = mlx_pool_take(pool);
  CHECK_INT(mlx_pool_publish(pool, 0, a, ids, 16), a);
  CHECK_INT(mlx_pool_publish(pool, a, b, ids + 16, 16), b);
  CHECK_INT(mlx_pool_publish(pool, 0, c, other, 16), c);
  CHECK_INT(mlx_pool_find(pool, 0, ids, 16, &common), a);
  CHECK_INT(common, 16);
  CHECK_INT(mlx_pool_find(pool, a, ids + 16, 16, &common), b);
  CHECK_INT(mlx_pool_find(pool, c, ids + 16, 16, &common), 0);  // the same tokens after another prefix
  CHECK_INT(mlx_pool_find(pool, 0, ids + 16, 16, &common), 0);
  CHECK_INT(mlx_pool_find(pool, a, ids + 16, 5, &common), b);
  CHECK_INT(common, 5);
  CHECK_INT(mlx_pool_find(pool, 0, other, 4, &common), c);  // c has 4 common tokens, a only 3
  CHECK_INT(common, 4);
  check_counts(pool, 3, 0, 4);
  mlx_pool_free(pool);
}

// 120 prefixes in 256 buckets: several share a bucket.
TEST(pages_of_colliding_prefixes_are_kept_apart) {
  enum { PREFIXES = 120 };
  mlx_pool_t *pool = create(2 * PREFIXES + 1);
  int32_t ids[16], same[16], parents[PREFIXES], children[PREFIXES];
  size_t common;
  fill_ids(same, 16, 5000);
  for (int i = 0; i < PREFIXES; ++i) {
    fill_ids(ids, 16, i * 16);
    parents[i] = mlx_pool_take(pool);
    children[i] = mlx_pool_take(pool);
    CHECK_INT(mlx_pool_publish(pool, 0, parents[i], ids, 16), parents[i]);
    CHECK_INT(mlx_pool_publish(pool, parents[i], children[i], same, 16), children[i]);
  }
  for (int i = 0; i < PREFIXES; ++i)
    CHECK_INT(mlx_pool_find(pool, parents[i], same, 16, &common), children[i]);
  check_counts(pool, 2 * PREFIXES, 0, 0);
  mlx_pool_free(pool);
}

TEST(an_equal_page_replaces_its_duplicate) {
  mlx_pool_t *pool = create(8);
  int32_t ids[16];
  fill_ids(ids, 16, 0);
  const int32_t a = mlx_pool_take(pool), b = mlx_pool_take(pool);
  CHECK_INT(mlx_pool_publish(pool, 0, a, ids, 16), a);
  CHECK_INT(mlx_pool_publish(pool, 0, b, ids, 16), a);
  CHECK_INT(mlx_pool_users(pool, a), 2);
  check_counts(pool, 1, 0, 6);
  CHECK_INT(mlx_pool_take(pool), b);
  mlx_pool_free(pool);
}

TEST(the_least_recently_used_cached_page_is_evicted_first) {
  mlx_pool_t *pool = create(5);
  int32_t ids[64];
  int32_t pages[4];
  size_t common;
  fill_ids(ids, 64, 0);
  for (int i = 0; i < 4; ++i) {  // two chains of two pages
    pages[i] = mlx_pool_take(pool);
    CHECK_INT(mlx_pool_publish(pool, i % 2 ? pages[i - 1] : 0, pages[i], ids + 16 * i, 16), pages[i]);
  }
  for (int chain = 0; chain < 2; ++chain) {
    mlx_pool_release(pool, pages[chain * 2 + 1]);
    mlx_pool_release(pool, pages[chain * 2]);
  }
  check_counts(pool, 0, 4, 0);
  CHECK_INT(mlx_pool_find(pool, 0, ids, 16, &common), pages[0]);  // the first page of chain 0 is used again
  mlx_pool_retain(pool, pages[0]);
  mlx_pool_release(pool, pages[0]);
  CHECK_INT(mlx_pool_take(pool), pages[1]);
  CHECK_INT(mlx_pool_find(pool, pages[0], ids + 16, 16, &common), 0);
  CHECK_INT(mlx_pool_take(pool), pages[3]);
  CHECK_INT(mlx_pool_take(pool), pages[2]);
  check_counts(pool, 3, 1, 0);
  CHECK_INT(mlx_pool_take(pool), pages[0]);
  CHECK_INT(mlx_pool_take(pool), 0);
  mlx_pool_free(pool);
}

// A sequence with a window releases its first page and uses the two after it. Another one ends in the same
// pages, so that the last is cached.
TEST(an_evicted_page_takes_the_pages_that_continue_it_out_of_the_tree) {
  mlx_pool_t *pool = create(5);
  int32_t ids[64], next[16];
  size_t common;
  fill_ids(ids, 64, 100);
  fill_ids(next, 16, 900);
  int32_t pages[4], parent = 0;
  for (int i = 0; i < 4; ++i) {
    pages[i] = mlx_pool_take(pool);
    CHECK_INT(mlx_pool_publish(pool, parent, pages[i], ids + 16 * i, 16), pages[i]);
    parent = pages[i];
  }
  mlx_pool_release(pool, pages[3]);
  mlx_pool_release_first(pool, pages[0]);
  mlx_pool_retain(pool, pages[3]);  // used again: the first page is now the oldest
  mlx_pool_release(pool, pages[3]);
  check_counts(pool, 2, 2, 0);
  CHECK_INT(mlx_pool_find(pool, 0, ids, 16, &common), pages[0]);
  CHECK_INT(mlx_pool_take(pool), pages[0]);
  check_counts(pool, 3, 0, 1);  // the last page is free
  CHECK_INT(mlx_pool_find(pool, 0, ids, 16, &common), 0);
  // The page that was evicted holds other tokens. None of the old pages continues it.
  CHECK_INT(mlx_pool_publish(pool, 0, pages[0], next, 16), pages[0]);
  CHECK_INT(mlx_pool_find(pool, pages[0], ids + 16, 16, &common), 0);
  // A page after one that cannot be found is not published.
  const int32_t page = mlx_pool_take(pool);
  CHECK_INT(mlx_pool_publish(pool, pages[2], page, ids + 48, 16), page);
  CHECK_INT(mlx_pool_find(pool, pages[2], ids + 48, 16, &common), 0);
  mlx_pool_release(pool, page);
  mlx_pool_release(pool, pages[2]);
  mlx_pool_release(pool, pages[1]);
  check_counts(pool, 1, 0, 3);
  mlx_pool_free(pool);
}

TEST(a_forgotten_page_is_not_found_but_keeps_its_users) {
  mlx_pool_t *pool = create(4);
  int32_t ids[32];
  size_t common;
  fill_ids(ids, 32, 0);
  const int32_t a = mlx_pool_take(pool), b = mlx_pool_take(pool);
  CHECK_INT(mlx_pool_publish(pool, 0, a, ids, 16), a);
  CHECK_INT(mlx_pool_publish(pool, a, b, ids + 16, 9), b);  // a partial page
  CHECK_INT(mlx_pool_find(pool, a, ids + 16, 16, &common), b);
  CHECK_INT(common, 9);
  mlx_pool_release(pool, b);
  check_counts(pool, 1, 1, 1);
  mlx_pool_forget(pool);
  CHECK_INT(mlx_pool_find(pool, 0, ids, 16, &common), 0);
  check_counts(pool, 1, 0, 2);
  mlx_pool_free(pool);
}

// What a watcher knows: one flag for each of the pages that the test below stores.
#define TREE 64
static struct {
  uint64_t hashes[TREE];  // 0: never seen
  bool stored[TREE];
  int cleared, steps;
} watched;

static void on_stored(void *user, uint64_t hash, const uint64_t *parent, const int32_t *ids) {
  const int nth = ids[0];
  (void)user;
  CHECK(!watched.stored[nth]);
  CHECK(!watched.hashes[nth] || watched.hashes[nth] == hash);
  CHECK(nth ? parent && *parent == watched.hashes[(nth - 1) / 2] && watched.stored[(nth - 1) / 2] : !parent);
  watched.hashes[nth] = hash;
  watched.stored[nth] = true;
}

static void on_removed(void *user, uint64_t hash) {
  int nth = 0;
  (void)user;
  while (nth < TREE && watched.hashes[nth] != hash) ++nth;
  CHECK(nth < TREE && watched.stored[nth]);
  for (int child = 2 * nth + 1; child <= 2 * nth + 2 && child < TREE; ++child) CHECK(!watched.stored[child]);
  watched.stored[nth] = false;
}

static void on_cleared(void *user) {
  (void)user;
  memset(watched.stored, 0, sizeof watched.stored);
  ++watched.cleared;
}

static void on_step(void *user) {
  (void)user;
  ++watched.steps;
}

// Page |nth| of a binary tree of prompts has 16 tokens |nth|. Publishes the pages from the root to |nth|, as
// a sequence does, and releases them.
static void publish_path(mlx_pool_t *pool, int nth) {
  int path[8], length = 0;
  int32_t pages[8], ids[16];
  size_t common;
  for (int at = nth;; at = (at - 1) / 2) {
    path[length++] = at;
    if (!at) break;
  }
  for (int i = 0; i < length; ++i) {
    const int32_t parent = i ? pages[i - 1] : 0;
    for (int j = 0; j < 16; ++j) ids[j] = path[length - 1 - i];
    const int32_t found = mlx_pool_find(pool, parent, ids, 16, &common);
    if (common == 16) mlx_pool_retain(pool, pages[i] = found);
    if (common == 16) continue;
    pages[i] = mlx_pool_take(pool);
    CHECK(pages[i]);
    pages[i] = mlx_pool_publish(pool, parent, pages[i], ids, i == length - 1 && nth % 5 == 0 ? 9 : 16);
  }
  while (length) mlx_pool_release(pool, pages[--length]);
}

static bool is_found(const mlx_pool_t *pool, int nth, int32_t *out_page) {
  int32_t parent = 0, ids[16];
  size_t common;
  if (nth && !is_found(pool, (nth - 1) / 2, &parent)) return false;
  for (int j = 0; j < 16; ++j) ids[j] = nth;
  *out_page = mlx_pool_find(pool, parent, ids, 16, &common);
  return common == 16;
}

TEST(a_watcher_knows_which_full_pages_are_found) {
  const mlx_page_watcher_t watcher = {on_stored, on_removed, on_cleared, on_step, NULL};
  mlx_pool_t *pool = create(20);
  unsigned random = 1;
  int found = 0, steps = 0;
  int32_t page;
  mlx_pool_watch(pool, &watcher);
  mlx_pool_end_step(pool);
  CHECK_INT(watched.steps, 0);  // nothing has changed
  for (int i = 0; i < 3000; ++i) {
    random = random * 1664525 + 1013904223;
    if (i % 500 == 499)
      mlx_pool_forget(pool);
    else
      publish_path(pool, (int)(random >> 16) % TREE);
    mlx_pool_end_step(pool);
    for (int nth = 0; nth < TREE; ++nth) {
      const bool is = is_found(pool, nth, &page);
      CHECK_INT(is, watched.stored[nth]);
      found += is;
    }
  }
  CHECK_INT(watched.cleared, 6);
  CHECK(found > 20000);
  steps = watched.steps;
  publish_path(pool, 1);
  mlx_pool_free(pool);
  CHECK_INT(watched.cleared, 7);
  CHECK_INT(watched.steps, steps + 1);
}

TEST(impossible_sizes_are_refused) {
  mlx_pool_t *pool;
  CHECK_ERROR(mlx_pool_create(1, 0, 1, &pool), MLX_USAGE, "a KV pool of 1 pages");
  CHECK(!pool);
  CHECK_ERROR(mlx_pool_create(2, 0, 0, &pool), MLX_USAGE, "0 sequences");
}

TEST_MAIN(CASE(the_lowest_free_page_is_taken_first), CASE(slots_are_taken_once),
          CASE(a_published_page_is_found_by_all_tokens_before_it),
          CASE(pages_of_colliding_prefixes_are_kept_apart), CASE(an_equal_page_replaces_its_duplicate),
          CASE(the_least_recently_used_cached_page_is_evicted_first),
          CASE(an_evicted_page_takes_the_pages_that_continue_it_out_of_the_tree),
          CASE(a_forgotten_page_is_not_found_but_keeps_its_users),
          CASE(a_watcher_knows_which_full_pages_are_found), CASE(impossible_sizes_are_refused))
