// The page pool. Free pages are a bitmap, cached pages a list in order of last use, and published pages a
// hash table whose key is the hash of the tokens before the page. So all pages that may follow a prefix are
// in one bucket.
#include "runtime/pool.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/step.h"

typedef struct page {
  int32_t users;
  int32_t count;           // published: number of tokens; 0: not published
  int32_t parent;          // published: the page of the positions before; 0: none
  int32_t next_in_bucket;  // published; 0: the last
  int32_t older, newer;    // cached: neighbours in the list; 0: none
  uint64_t before, after;  // published: hash of all tokens before the page, and with its own
  int32_t ids[MLX_KV_PAGE];
} page_t;

struct mlx_pool {
  page_t *pages;  // [page_count]
  int64_t page_count;
  uint64_t *free_bits;     // [(page_count + 63) / 64]
  int64_t lowest;          // no word of free_bits below this one has a bit
  int32_t oldest, newest;  // the list of cached pages
  int32_t *buckets;        // [bucket_count] the first page of each; 0: none
  uint64_t bucket_count;   // a power of two
  mlx_pool_counts_t counts;
  bool *slots;          // [slot_count] taken
  bool releases_first;  // mlx_pool_release_first was called
  int64_t slot_count;
};

// ----------------------------------------------------------------------------------------------------------
// Creating

static void set_free(mlx_pool_t *pool, int32_t page) {
  pool->free_bits[page / 64] |= (uint64_t)1 << page % 64;
  if (page / 64 < pool->lowest) pool->lowest = page / 64;
}

static mlx_status_t fill(mlx_pool_t *pool) {
  MLX_TRY(mlx_alloc((size_t)pool->page_count, sizeof *pool->pages, &pool->pages));
  MLX_TRY(mlx_alloc((size_t)pool->page_count / 64 + 1, sizeof *pool->free_bits, &pool->free_bits));
  for (pool->bucket_count = 64; pool->bucket_count < (uint64_t)pool->page_count;) pool->bucket_count *= 2;
  MLX_TRY(mlx_alloc((size_t)pool->bucket_count, sizeof *pool->buckets, &pool->buckets));
  MLX_TRY(mlx_alloc((size_t)pool->slot_count, sizeof *pool->slots, &pool->slots));
  for (int32_t page = 1; page < pool->page_count; ++page) set_free(pool, page);
  pool->counts.free = pool->page_count - 1;
  return NULL;
}

mlx_status_t mlx_pool_create(int64_t pages, int64_t slots, mlx_pool_t **out_pool) {
  *out_pool = NULL;
  if (pages < 2 || pages > INT32_MAX || slots < 1 || slots > INT32_MAX)
    return mlx_error(MLX_USAGE, "a KV pool of %lld pages and %lld sequences is not possible",
                     (long long)pages, (long long)slots);
  mlx_pool_t *pool;
  MLX_TRY(mlx_alloc(1, sizeof *pool, &pool));
  pool->page_count = pages;
  pool->slot_count = slots;
  mlx_status_t status = fill(pool);
  if (status) {
    mlx_pool_free(pool);
    return status;
  }
  *out_pool = pool;
  return NULL;
}

void mlx_pool_free(mlx_pool_t *pool) {
  if (!pool) return;
  mlx_free(pool->pages);
  mlx_free(pool->free_bits);
  mlx_free(pool->buckets);
  mlx_free(pool->slots);
  mlx_free(pool);
}

int32_t mlx_pool_take_slot(mlx_pool_t *pool) {
  for (int32_t slot = 0; slot < pool->slot_count; ++slot) {
    if (pool->slots[slot]) continue;
    pool->slots[slot] = true;
    return slot;
  }
  return -1;
}

void mlx_pool_release_slot(mlx_pool_t *pool, int32_t slot) { pool->slots[slot] = false; }

// ----------------------------------------------------------------------------------------------------------
// Published pages

// The finalizer of splitmix64, over each token.
static uint64_t extend_hash(uint64_t hash, const int32_t *ids, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    hash += 0x9e3779b97f4a7c15u + (uint32_t)ids[i];
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
  }
  return hash;
}

static int32_t *bucket_of(const mlx_pool_t *pool, uint64_t hash) {
  return &pool->buckets[hash & (pool->bucket_count - 1)];
}

static size_t common_length(const page_t *page, const int32_t *ids, size_t count) {
  size_t common = 0;
  while (common < count && common < (size_t)page->count && page->ids[common] == ids[common]) ++common;
  return common;
}

int32_t mlx_pool_find(const mlx_pool_t *pool, int32_t parent, const int32_t *ids, size_t count,
                      size_t *out_common) {
  int32_t best = 0;
  *out_common = 0;
  for (int32_t at = *bucket_of(pool, pool->pages[parent].after); at; at = pool->pages[at].next_in_bucket) {
    if (pool->pages[at].parent != parent) continue;
    const size_t common = common_length(&pool->pages[at], ids, count);
    if (common <= *out_common) continue;
    *out_common = common;
    best = at;
    if (common == count || common == MLX_KV_PAGE) break;
  }
  return best;
}

static void unpublish(mlx_pool_t *pool, int32_t page) {
  page_t *p = &pool->pages[page];
  int32_t *link = bucket_of(pool, p->before);
  while (*link != page) link = &pool->pages[*link].next_in_bucket;
  *link = p->next_in_bucket;
  p->count = p->parent = p->next_in_bucket = 0;
  p->before = p->after = 0;
}

int32_t mlx_pool_publish(mlx_pool_t *pool, int32_t parent, int32_t page, const int32_t *ids, size_t count) {
  page_t *p = &pool->pages[page];
  size_t common;
  if (!count || count > MLX_KV_PAGE || p->count || (parent && !pool->pages[parent].count)) return page;
  const int32_t equal = mlx_pool_find(pool, parent, ids, count, &common);
  if (equal && common == count && pool->pages[equal].count == (int32_t)count) {
    mlx_pool_retain(pool, equal);
    mlx_pool_release(pool, page);
    return equal;
  }
  p->count = (int32_t)count;
  p->parent = parent;
  memcpy(p->ids, ids, count * sizeof *ids);
  p->before = pool->pages[parent].after;
  p->after = extend_hash(p->before, ids, count);
  int32_t *bucket = bucket_of(pool, p->before);
  p->next_in_bucket = *bucket;
  *bucket = page;
  return page;
}

// ----------------------------------------------------------------------------------------------------------
// Users

static void remove_cached(mlx_pool_t *pool, int32_t page) {
  page_t *p = &pool->pages[page];
  *(p->older ? &pool->pages[p->older].newer : &pool->oldest) = p->newer;
  *(p->newer ? &pool->pages[p->newer].older : &pool->newest) = p->older;
  p->older = p->newer = 0;
  --pool->counts.cached;
}

static void add_cached(mlx_pool_t *pool, int32_t page) {
  page_t *p = &pool->pages[page];
  p->older = pool->newest;
  *(p->older ? &pool->pages[p->older].newer : &pool->oldest) = page;
  pool->newest = page;
  ++pool->counts.cached;
}

static int32_t lowest_free(mlx_pool_t *pool) {
  const int64_t words = pool->page_count / 64 + 1;
  while (pool->lowest < words && !pool->free_bits[pool->lowest]) ++pool->lowest;
  if (pool->lowest == words) return 0;
  const int bit = __builtin_ctzll(pool->free_bits[pool->lowest]);
  pool->free_bits[pool->lowest] &= ~((uint64_t)1 << bit);
  --pool->counts.free;
  return (int32_t)(pool->lowest * 64 + bit);
}

// A published page that continues |page|; 0: none.
static int32_t first_child(const mlx_pool_t *pool, int32_t page) {
  if (pool->pages[page].count < MLX_KV_PAGE) return 0;
  int32_t at = *bucket_of(pool, pool->pages[page].after);
  while (at && pool->pages[at].parent != page) at = pool->pages[at].next_in_bucket;
  return at;
}

// Unpublishes |root|, which is not in the list, and all pages that continue it, the last ones first.
static void unpublish_tree(mlx_pool_t *pool, int32_t root) {
  for (int32_t at = root;;) {
    const int32_t child = first_child(pool, at), parent = pool->pages[at].parent;
    if (child) {
      at = child;
      continue;
    }
    unpublish(pool, at);
    if (at == root) return;
    if (!pool->pages[at].users) {
      remove_cached(pool, at);
      set_free(pool, at);
      ++pool->counts.free;
    }
    at = parent;
  }
}

int32_t mlx_pool_take(mlx_pool_t *pool) {
  int32_t page = lowest_free(pool);
  if (!page) {
    page = pool->oldest;
    if (!page) return 0;
    remove_cached(pool, page);
    unpublish_tree(pool, page);
  }
  pool->pages[page].users = 1;
  ++pool->counts.used;
  return page;
}

void mlx_pool_retain(mlx_pool_t *pool, int32_t page) {
  if (pool->pages[page].users++) return;
  remove_cached(pool, page);
  ++pool->counts.used;
}

void mlx_pool_release(mlx_pool_t *pool, int32_t page) {
  if (--pool->pages[page].users) return;
  --pool->counts.used;
  if (pool->pages[page].count) {
    add_cached(pool, page);
  } else {
    set_free(pool, page);
    ++pool->counts.free;
  }
}

void mlx_pool_release_first(mlx_pool_t *pool, int32_t page) {
  pool->releases_first = true;
  mlx_pool_release(pool, page);
}

void mlx_pool_forget(mlx_pool_t *pool) {
  for (int32_t page = 1; page < pool->page_count; ++page) {
    if (!pool->pages[page].count) continue;
    unpublish(pool, page);
    if (pool->pages[page].users) continue;
    remove_cached(pool, page);
    set_free(pool, page);
    ++pool->counts.free;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Information

mlx_pool_counts_t mlx_pool_counts(const mlx_pool_t *pool) { return pool->counts; }

int64_t mlx_pool_users(const mlx_pool_t *pool, int32_t page) { return pool->pages[page].users; }

static bool is_in_bucket(const mlx_pool_t *pool, int32_t page) {
  int32_t at = *bucket_of(pool, pool->pages[page].before);
  while (at && at != page) at = pool->pages[at].next_in_bucket;
  return at == page;
}

mlx_status_t mlx_pool_check(const mlx_pool_t *pool) {
  mlx_pool_counts_t seen = {0};
  for (int32_t page = 1; page < pool->page_count; ++page) {
    const page_t *p = &pool->pages[page], *parent = &pool->pages[p->parent];
    const bool is_free = pool->free_bits[page / 64] >> page % 64 & 1;
    ++*(p->users ? &seen.used : p->count ? &seen.cached : &seen.free);
    if (p->users < 0 || is_free != (!p->users && !p->count))
      return mlx_error(MLX_INTERNAL, "page %d has %d users and %d tokens; free: %d", page, p->users, p->count,
                       is_free);
    if (!p->count) continue;
    if (!is_in_bucket(pool, page)) return mlx_error(MLX_INTERNAL, "page %d is not in its bucket", page);
    if (p->parent && (parent->count != MLX_KV_PAGE || parent->after != p->before))
      return mlx_error(MLX_INTERNAL, "the parent %d of page %d is not published", p->parent, page);
    if (p->users && p->parent && !parent->users && !pool->releases_first)
      return mlx_error(MLX_INTERNAL, "page %d has users, its parent %d has none", page, p->parent);
  }
  int64_t listed = 0;
  for (int32_t page = pool->oldest; page; page = pool->pages[page].newer) ++listed;
  if (seen.used != pool->counts.used || seen.cached != pool->counts.cached || listed != seen.cached ||
      seen.free != pool->counts.free)
    return mlx_error(MLX_INTERNAL, "the pool counts %lld used, %lld cached and %lld free pages",
                     (long long)pool->counts.used, (long long)pool->counts.cached,
                     (long long)pool->counts.free);
  return NULL;
}
