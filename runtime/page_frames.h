// Page frames: which pages of one kind are in use, cached or free. pool.c has one for pages of full layers
// and one for window pages.
//
// A page has a number of users. A page without users is free, or cached: its contents are kept until the
// memory is needed. Page 0 is the scratch page and is never taken.
//
// Ownership: the caller owns the frames. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_PAGE_FRAMES_H_
#define MLXCEL_RUNTIME_PAGE_FRAMES_H_

#include <stdint.h>

#include "base/status.h"
#include "runtime/pool.h"

typedef struct mlx_frame {
  int32_t users;
  int32_t older, newer;  // cached: neighbours in the list; 0: none
  bool cached;
} mlx_frame_t;

typedef struct mlx_frames {
  mlx_frame_t *items;  // [count]
  int64_t count;
  uint64_t *free_bits;     // [count / 64 + 1]
  int64_t lowest;          // no word of free_bits below this one has a bit
  int32_t oldest, newest;  // the list of cached pages; 0: none
  mlx_pool_counts_t counts;
} mlx_frames_t;

// |count| includes page 0. Release with mlx_frames_clear, also after an error.
mlx_status_t mlx_frames_create(int64_t count, mlx_frames_t *out_frames) MLX_MUST_USE;
void mlx_frames_clear(mlx_frames_t *frames);

// The lowest free page, with one user; 0 if no page is free.
int32_t mlx_frames_take_free(mlx_frames_t *frames);
// Takes the cached |page|, whose contents the caller has given up. It has one user.
void mlx_frames_take_cached(mlx_frames_t *frames, int32_t page);
// One more user of a page that is in use or cached.
void mlx_frames_retain(mlx_frames_t *frames, int32_t page);
// One user less. Returns true if it was the last one: the caller must cache or free the page.
bool mlx_frames_drop(mlx_frames_t *frames, int32_t page);
// Caches a page without users: as the last one to be evicted or, with |is_first|, as the first one.
void mlx_frames_cache(mlx_frames_t *frames, int32_t page, bool is_first);
// Frees a page without users. It may be cached.
void mlx_frames_free(mlx_frames_t *frames, int32_t page);

// Checks counts, list and bits, for tests: fails with MLX_INTERNAL.
mlx_status_t mlx_frames_check(const mlx_frames_t *frames) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_PAGE_FRAMES_H_
