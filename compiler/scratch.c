// First-fit allocation of places in a scratch tensor.
#include "compiler/scratch.h"

#include <string.h>

#include "base/memory.h"

#define ALIGNMENT 16  // words

mlx_status_t mlx_scratch_start(mlx_scratch_t *scratch, int64_t words) {
  *scratch = (mlx_scratch_t){0};
  int64_t at;
  return mlx_scratch_take(scratch, words, &at);
}

void mlx_scratch_clear(mlx_scratch_t *scratch) {
  mlx_free(scratch->regions);
  mlx_free(scratch->freed);
  *scratch = (mlx_scratch_t){0};
}

static mlx_status_t insert(mlx_scratch_t *s, size_t index, mlx_region_t region) {
  MLX_TRY(mlx_reserve(s->count + 1, sizeof *s->regions, &s->capacity, &s->regions));
  memmove(s->regions + index + 1, s->regions + index, (s->count - index) * sizeof *s->regions);
  s->regions[index] = region;
  ++s->count;
  return NULL;
}

mlx_status_t mlx_scratch_take(mlx_scratch_t *s, int64_t words, int64_t *out_at) {
  words = (words + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  for (size_t i = 0; i < s->count; ++i) {
    mlx_region_t *region = &s->regions[i];
    if (region->used || region->words < words) continue;
    *out_at = region->at;
    const mlx_region_t rest = {.at = region->at + words, .words = region->words - words};
    region->words = words;
    region->used = true;
    return rest.words ? insert(s, i + 1, rest) : NULL;
  }
  *out_at = s->words;
  s->words += words;
  return insert(s, s->count, (mlx_region_t){.at = *out_at, .words = words, .used = true});
}

mlx_status_t mlx_scratch_release(mlx_scratch_t *s, int64_t at) {
  MLX_TRY(mlx_reserve(s->freed_count + 1, sizeof *s->freed, &s->freed_capacity, &s->freed));
  s->freed[s->freed_count++] = (size_t)at;
  return NULL;
}

// Joins free neighbours.
static void join(mlx_scratch_t *s) {
  size_t kept = 0;
  for (size_t i = 0; i < s->count; ++i) {
    mlx_region_t *last = kept ? &s->regions[kept - 1] : NULL;
    if (last && !last->used && !s->regions[i].used)
      last->words += s->regions[i].words;
    else
      s->regions[kept++] = s->regions[i];
  }
  s->count = kept;
}

void mlx_scratch_collect(mlx_scratch_t *s) {
  for (size_t i = 0; i < s->freed_count; ++i) {
    for (size_t k = 0; k < s->count; ++k) {
      if (s->regions[k].at == (int64_t)s->freed[i]) s->regions[k].used = false;
    }
  }
  s->freed_count = 0;
  join(s);
}
