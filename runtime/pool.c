// The page pool. page_frames.c keeps users, free and cached pages. Published pages are a hash table whose key
// is the hash of the tokens before the page. So all pages that may follow a prefix are in one bucket.
#include "runtime/pool.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/step.h"
#include "runtime/page_frames.h"
#include "runtime/rooms.h"

_Static_assert(MLX_PAGE_POSITIONS == MLX_KV_PAGE, "the pages of the KV pool");

typedef struct page {
  int32_t count;           // published: number of tokens; 0: not published
  int32_t parent;          // published: the page of the positions before; 0: none
  int32_t next_in_bucket;  // published; 0: the last
  int32_t window;          // published: the window page of the same positions; 0: none
  int32_t state;           // published: a state after |state_count| of its tokens; 0: none
  int32_t state_count;
  bool reused;             // published: a second sequence has used it
  uint64_t before, after;  // published: hash of all tokens before the page, and with its own
  int32_t ids[MLX_KV_PAGE];
} page_t;

struct mlx_pool {
  mlx_frames_t frames;    // of the pages
  page_t *pages;          // [frames.count]
  mlx_frames_t windows;   // of the window pages; count 0: there are none
  int32_t *owners;        // [windows.count] the published page whose positions a window page has; 0: none
  mlx_frames_t states;    // count 0: there are none
  int32_t *state_owners;  // [states.count] the published page that keeps a state; 0: none
  int32_t *buckets;       // [bucket_count] the first page of each; 0: none
  uint64_t bucket_count;  // a power of two
  bool *slots;            // [slot_count] taken
  bool releases_first;    // mlx_pool_release_first was called
  mlx_page_watcher_t watcher;  // functions NULL: there is none
  int64_t full_count;          // published pages that are full
  bool has_told;               // the watcher had a call since its last on_step
  int64_t slot_count;
};

// ----------------------------------------------------------------------------------------------------------
// Creating

static mlx_status_t fill(mlx_pool_t *pool, int64_t pages, int64_t window_pages) {
  MLX_TRY(mlx_frames_create(pages, &pool->frames));
  MLX_TRY(mlx_alloc((size_t)pages, sizeof *pool->pages, &pool->pages));
  if (window_pages) {
    MLX_TRY(mlx_frames_create(window_pages, &pool->windows));
    MLX_TRY(mlx_alloc((size_t)window_pages, sizeof *pool->owners, &pool->owners));
  }
  for (pool->bucket_count = 64; pool->bucket_count < (uint64_t)pages;) pool->bucket_count *= 2;
  MLX_TRY(mlx_alloc((size_t)pool->bucket_count, sizeof *pool->buckets, &pool->buckets));
  return mlx_alloc((size_t)pool->slot_count, sizeof *pool->slots, &pool->slots);
}

mlx_status_t mlx_pool_create(int64_t pages, int64_t window_pages, int64_t slots, mlx_pool_t **out_pool) {
  *out_pool = NULL;
  if (pages < 2 || pages > INT32_MAX || window_pages == 1 || window_pages < 0 || window_pages > INT32_MAX ||
      slots < 1 || slots > INT32_MAX)
    return mlx_error(MLX_USAGE,
                     "a KV pool of %lld pages, %lld window pages and %lld sequences is not possible",
                     (long long)pages, (long long)window_pages, (long long)slots);
  mlx_pool_t *pool;
  MLX_TRY(mlx_alloc(1, sizeof *pool, &pool));
  pool->slot_count = slots;
  mlx_status_t status = fill(pool, pages, window_pages);
  if (status) {
    mlx_pool_free(pool);
    return status;
  }
  *out_pool = pool;
  return NULL;
}

void mlx_pool_watch(mlx_pool_t *pool, const mlx_page_watcher_t *watcher) { pool->watcher = *watcher; }

void mlx_pool_end_step(mlx_pool_t *pool) {
  if (!pool->has_told) return;
  pool->has_told = false;
  pool->watcher.on_step(pool->watcher.user);
}

static void tell_cleared(mlx_pool_t *pool) {
  if (!pool->full_count || !pool->watcher.on_cleared) return;
  pool->watcher.on_cleared(pool->watcher.user);
  pool->has_told = true;
}

void mlx_pool_free(mlx_pool_t *pool) {
  if (!pool) return;
  tell_cleared(pool);
  mlx_pool_end_step(pool);
  mlx_frames_clear(&pool->frames);
  mlx_frames_clear(&pool->windows);
  mlx_frames_clear(&pool->states);
  mlx_free(pool->state_owners);
  mlx_free(pool->pages);
  mlx_free(pool->owners);
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
uint64_t mlx_page_hash(uint64_t before, const int32_t *ids, size_t count) {
  uint64_t hash = before;
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

// The window page of |page| can no longer be found.
static void detach_window(mlx_pool_t *pool, int32_t page) {
  const int32_t window = pool->pages[page].window;
  if (!window) return;
  pool->pages[page].window = 0;
  pool->owners[window] = 0;
  if (!pool->windows.items[window].users) mlx_frames_free(&pool->windows, window);
}

// The state of |page| can no longer be found.
static void detach_state(mlx_pool_t *pool, int32_t page) {
  const int32_t state = pool->pages[page].state;
  if (!state) return;
  pool->pages[page].state = pool->pages[page].state_count = 0;
  pool->state_owners[state] = 0;
  if (!pool->states.items[state].users) mlx_frames_free(&pool->states, state);
}

static void unpublish(mlx_pool_t *pool, int32_t page) {
  page_t *p = &pool->pages[page];
  detach_window(pool, page);
  detach_state(pool, page);
  pool->full_count -= p->count == MLX_KV_PAGE;
  int32_t *link = bucket_of(pool, p->before);
  while (*link != page) link = &pool->pages[*link].next_in_bucket;
  *link = p->next_in_bucket;
  p->count = p->parent = p->next_in_bucket = 0;
  p->before = p->after = 0;
}

static void tell_stored(mlx_pool_t *pool, const page_t *page) {
  if (!pool->watcher.on_stored) return;
  pool->watcher.on_stored(pool->watcher.user, page->after, page->parent ? &page->before : NULL, page->ids);
  pool->has_told = true;
}

// Before |page| is unpublished.
static void tell_removed(mlx_pool_t *pool, const page_t *page) {
  if (page->count < MLX_KV_PAGE || !pool->watcher.on_removed) return;
  pool->watcher.on_removed(pool->watcher.user, page->after);
  pool->has_told = true;
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
  p->reused = false;
  memcpy(p->ids, ids, count * sizeof *ids);
  p->before = pool->pages[parent].after;
  p->after = mlx_page_hash(p->before, ids, count);
  int32_t *bucket = bucket_of(pool, p->before);
  p->next_in_bucket = *bucket;
  *bucket = page;
  if (count < MLX_KV_PAGE) return page;
  ++pool->full_count;
  tell_stored(pool, p);
  return page;
}

// ----------------------------------------------------------------------------------------------------------
// Users

// A published page that continues |page|; 0: none.
static int32_t first_child(const mlx_pool_t *pool, int32_t page) {
  if (pool->pages[page].count < MLX_KV_PAGE) return 0;
  int32_t at = *bucket_of(pool, pool->pages[page].after);
  while (at && pool->pages[at].parent != page) at = pool->pages[at].next_in_bucket;
  return at;
}

// Unpublishes |root| and all pages that continue it, the last ones first. |root| stays cached or in use.
static void unpublish_tree(mlx_pool_t *pool, int32_t root) {
  for (int32_t at = root;;) {
    const int32_t child = first_child(pool, at), parent = pool->pages[at].parent;
    if (child) {
      at = child;
      continue;
    }
    tell_removed(pool, &pool->pages[at]);
    unpublish(pool, at);
    if (at == root) return;
    if (!pool->frames.items[at].users) mlx_frames_free(&pool->frames, at);
    at = parent;
  }
}

int32_t mlx_pool_take(mlx_pool_t *pool) {
  int32_t page = mlx_frames_take_free(&pool->frames);
  if (page) return page;
  page = pool->frames.oldest;
  if (!page) return 0;
  unpublish_tree(pool, page);
  mlx_frames_take_cached(&pool->frames, page);
  return page;
}

void mlx_pool_retain(mlx_pool_t *pool, int32_t page) {
  mlx_frames_retain(&pool->frames, page);
  pool->pages[page].reused = true;
}

void mlx_pool_release(mlx_pool_t *pool, int32_t page) {
  if (!mlx_frames_drop(&pool->frames, page)) return;
  if (pool->pages[page].count)
    mlx_frames_cache(&pool->frames, page, false);
  else
    mlx_frames_free(&pool->frames, page);
}

void mlx_pool_release_first(mlx_pool_t *pool, int32_t page) {
  pool->releases_first = true;
  mlx_pool_release(pool, page);
}

void mlx_pool_forget(mlx_pool_t *pool) {
  tell_cleared(pool);
  for (int32_t page = 1; page < pool->frames.count; ++page) {
    if (!pool->pages[page].count) continue;
    unpublish(pool, page);
    if (!pool->frames.items[page].users) mlx_frames_free(&pool->frames, page);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Window pages

int32_t mlx_pool_take_window(mlx_pool_t *pool) {
  int32_t window = mlx_frames_take_free(&pool->windows);
  if (window) return window;
  window = pool->windows.oldest;
  if (!window) return 0;
  mlx_frames_take_cached(&pool->windows, window);
  detach_window(pool, pool->owners[window]);
  return window;
}

void mlx_pool_retain_window(mlx_pool_t *pool, int32_t window) { mlx_frames_retain(&pool->windows, window); }

void mlx_pool_release_window(mlx_pool_t *pool, int32_t window, bool passed) {
  const int32_t owner = pool->owners[window];
  if (!mlx_frames_drop(&pool->windows, window)) return;
  if (owner)
    mlx_frames_cache(&pool->windows, window, passed && !pool->pages[owner].reused);
  else
    mlx_frames_free(&pool->windows, window);
}

int32_t mlx_pool_window_of(const mlx_pool_t *pool, int32_t page) { return pool->pages[page].window; }

int32_t mlx_pool_keep_window(mlx_pool_t *pool, int32_t page, int32_t window) {
  page_t *p = &pool->pages[page];
  if (!p->count || p->window == window || pool->owners[window]) return window;
  if (p->window) {
    mlx_pool_retain_window(pool, p->window);
    mlx_pool_release_window(pool, window, false);
    return p->window;
  }
  p->window = window;
  pool->owners[window] = page;
  return window;
}

// ----------------------------------------------------------------------------------------------------------
// States

mlx_status_t mlx_pool_add_states(mlx_pool_t *pool, int64_t states) {
  if (states < 2 || states > INT32_MAX || pool->states.count)
    return mlx_error(MLX_USAGE, "a KV pool of %lld states is not possible", (long long)states);
  MLX_TRY(mlx_frames_create(states, &pool->states));
  return mlx_alloc((size_t)states, sizeof *pool->state_owners, &pool->state_owners);
}

int32_t mlx_pool_take_state(mlx_pool_t *pool) {
  int32_t state = mlx_frames_take_free(&pool->states);
  if (state) return state;
  state = pool->states.oldest;
  if (!state) return 0;
  mlx_frames_take_cached(&pool->states, state);
  detach_state(pool, pool->state_owners[state]);
  return state;
}

void mlx_pool_retain_state(mlx_pool_t *pool, int32_t state) { mlx_frames_retain(&pool->states, state); }

void mlx_pool_release_state(mlx_pool_t *pool, int32_t state) {
  if (!mlx_frames_drop(&pool->states, state)) return;
  if (pool->state_owners[state])
    mlx_frames_cache(&pool->states, state, false);
  else
    mlx_frames_free(&pool->states, state);
}

int32_t mlx_pool_state_of(const mlx_pool_t *pool, int32_t page, size_t *out_count) {
  *out_count = (size_t)pool->pages[page].state_count;
  return pool->pages[page].state;
}

void mlx_pool_keep_state(mlx_pool_t *pool, int32_t page, int32_t state, size_t count) {
  page_t *p = &pool->pages[page];
  if (!count || count > (size_t)p->count || pool->state_owners[state]) return;
  detach_state(pool, page);
  p->state = state;
  p->state_count = (int32_t)count;
  pool->state_owners[state] = page;
}

// ----------------------------------------------------------------------------------------------------------
// Information

mlx_pool_counts_t mlx_pool_counts(const mlx_pool_t *pool) { return pool->frames.counts; }
mlx_pool_counts_t mlx_pool_window_counts(const mlx_pool_t *pool) { return pool->windows.counts; }
mlx_pool_counts_t mlx_pool_state_counts(const mlx_pool_t *pool) { return pool->states.counts; }

int64_t mlx_pool_users(const mlx_pool_t *pool, int32_t page) { return pool->frames.items[page].users; }

static bool is_in_bucket(const mlx_pool_t *pool, int32_t page) {
  int32_t at = *bucket_of(pool, pool->pages[page].before);
  while (at && at != page) at = pool->pages[at].next_in_bucket;
  return at == page;
}

static mlx_status_t check_page(const mlx_pool_t *pool, int32_t page) {
  const page_t *p = &pool->pages[page], *parent = &pool->pages[p->parent];
  const mlx_frame_t *frames = pool->frames.items;
  if (frames[page].cached && !p->count)
    return mlx_error(MLX_INTERNAL, "page %d is cached, but not published", page);
  if (!p->count)
    return p->window || p->state ? mlx_error(MLX_INTERNAL, "page %d keeps a window page or a state", page)
                                 : NULL;
  if (!frames[page].users && !frames[page].cached)
    return mlx_error(MLX_INTERNAL, "page %d is published, but free", page);
  if (!is_in_bucket(pool, page)) return mlx_error(MLX_INTERNAL, "page %d is not in its bucket", page);
  if (p->parent && (parent->count != MLX_KV_PAGE || parent->after != p->before))
    return mlx_error(MLX_INTERNAL, "the parent %d of page %d is not published", p->parent, page);
  if (frames[page].users && p->parent && !frames[p->parent].users && !pool->releases_first)
    return mlx_error(MLX_INTERNAL, "page %d has users, its parent %d has none", page, p->parent);
  if (p->state && (pool->state_owners[p->state] != page || p->state_count < 1 || p->state_count > p->count))
    return mlx_error(MLX_INTERNAL, "state %d of page %d has another owner", p->state, page);
  if (p->window && pool->owners[p->window] != page)
    return mlx_error(MLX_INTERNAL, "window page %d of page %d has another owner", p->window, page);
  return NULL;
}

mlx_status_t mlx_pool_check(const mlx_pool_t *pool) {
  for (int32_t page = 1; page < pool->frames.count; ++page) MLX_TRY(check_page(pool, page));
  MLX_TRY(mlx_frames_check(&pool->frames));
  for (int32_t window = 1; window < pool->windows.count; ++window) {
    const int32_t owner = pool->owners[window];
    if (owner ? pool->pages[owner].window != window : pool->windows.items[window].cached)
      return mlx_error(MLX_INTERNAL, "window page %d is not kept by page %d", window, owner);
  }
  if (pool->windows.count) MLX_TRY(mlx_frames_check(&pool->windows));
  for (int32_t state = 1; state < pool->states.count; ++state) {
    const int32_t owner = pool->state_owners[state];
    if (owner ? pool->pages[owner].state != state : pool->states.items[state].cached)
      return mlx_error(MLX_INTERNAL, "state %d is not kept by page %d", state, owner);
  }
  return pool->states.count ? mlx_frames_check(&pool->states) : NULL;
}
