// Free pages are a bitmap, cached pages a list in order of last use. See page_frames.h.
#include "runtime/page_frames.h"

#include "base/memory.h"

static void set_free(mlx_frames_t *f, int32_t page) {
  f->free_bits[page / 64] |= (uint64_t)1 << page % 64;
  if (page / 64 < f->lowest) f->lowest = page / 64;
  ++f->counts.free;
}

mlx_status_t mlx_frames_create(int64_t count, mlx_frames_t *f) {
  *f = (mlx_frames_t){.count = count};
  MLX_TRY(mlx_alloc((size_t)count, sizeof *f->items, &f->items));
  MLX_TRY(mlx_alloc((size_t)count / 64 + 1, sizeof *f->free_bits, &f->free_bits));
  for (int32_t page = 1; page < count; ++page) set_free(f, page);
  return NULL;
}

void mlx_frames_clear(mlx_frames_t *f) {
  mlx_free(f->items);
  mlx_free(f->free_bits);
  *f = (mlx_frames_t){0};
}

int32_t mlx_frames_take_free(mlx_frames_t *f) {
  const int64_t words = f->count / 64 + 1;
  if (!f->counts.free) return 0;
  while (f->lowest < words && !f->free_bits[f->lowest]) ++f->lowest;
  const int bit = __builtin_ctzll(f->free_bits[f->lowest]);
  const int32_t page = (int32_t)(f->lowest * 64 + bit);
  f->free_bits[f->lowest] &= ~((uint64_t)1 << bit);
  --f->counts.free;
  ++f->counts.used;
  f->items[page].users = 1;
  return page;
}

// Removes |page| from the list of cached pages.
static void unlist(mlx_frames_t *f, int32_t page) {
  mlx_frame_t *p = &f->items[page];
  *(p->older ? &f->items[p->older].newer : &f->oldest) = p->newer;
  *(p->newer ? &f->items[p->newer].older : &f->newest) = p->older;
  p->older = p->newer = 0;
  p->cached = false;
  --f->counts.cached;
}

void mlx_frames_take_cached(mlx_frames_t *f, int32_t page) {
  unlist(f, page);
  f->items[page].users = 1;
  ++f->counts.used;
}

void mlx_frames_retain(mlx_frames_t *f, int32_t page) {
  if (f->items[page].users++) return;
  unlist(f, page);
  ++f->counts.used;
}

bool mlx_frames_drop(mlx_frames_t *f, int32_t page) {
  if (--f->items[page].users) return false;
  --f->counts.used;
  return true;
}

void mlx_frames_cache(mlx_frames_t *f, int32_t page, bool is_first) {
  mlx_frame_t *p = &f->items[page];
  p->older = is_first ? 0 : f->newest;
  p->newer = is_first ? f->oldest : 0;
  *(p->older ? &f->items[p->older].newer : &f->oldest) = page;
  *(p->newer ? &f->items[p->newer].older : &f->newest) = page;
  p->cached = true;
  ++f->counts.cached;
}

void mlx_frames_free(mlx_frames_t *f, int32_t page) {
  if (f->items[page].cached) unlist(f, page);
  set_free(f, page);
}

mlx_status_t mlx_frames_check(const mlx_frames_t *f) {
  mlx_pool_counts_t seen = {0};
  int64_t listed = 0;
  for (int32_t page = 1; page < f->count; ++page) {
    const mlx_frame_t *p = &f->items[page];
    const bool is_free = f->free_bits[page / 64] >> page % 64 & 1;
    ++*(p->users ? &seen.used : p->cached ? &seen.cached : &seen.free);
    if (p->users < 0 || (p->users && p->cached) || is_free != (!p->users && !p->cached))
      return mlx_error(MLX_INTERNAL, "page %d has %d users; cached: %d, free: %d", page, p->users, p->cached,
                       is_free);
  }
  for (int32_t page = f->oldest; page; page = f->items[page].newer) ++listed;
  if (seen.used != f->counts.used || seen.cached != f->counts.cached || listed != seen.cached ||
      seen.free != f->counts.free)
    return mlx_error(MLX_INTERNAL, "the pool counts %lld used, %lld cached and %lld free pages",
                     (long long)f->counts.used, (long long)f->counts.cached, (long long)f->counts.free);
  return NULL;
}
