// A hash table of pages with a list in the order of their use. See prefix_index.h.
#include "server/core/prefix_index.h"

#include "base/memory.h"
#include "runtime/rooms.h"

typedef struct entry {
  uint64_t hash;
  uint32_t older, newer;    // neighbours in the list; 0: none
  uint32_t next_in_bucket;  // 0: the last
} entry_t;

struct mlx_prefix_index {
  entry_t *entries;                      // [capacity + 1] entry 0 is not used
  uint32_t *buckets;                     // [bucket_count] the first entry of each; 0: none
  size_t capacity, count, bucket_count;  // bucket_count is a power of two
  uint32_t oldest, newest;               // 0: none
};

mlx_status_t mlx_prefix_index_create(size_t pages, mlx_prefix_index_t **out_index) {
  mlx_prefix_index_t *index;
  *out_index = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *index, &index));
  index->capacity = pages < UINT32_MAX ? pages : UINT32_MAX - 1;
  for (index->bucket_count = 64; index->bucket_count < index->capacity;) index->bucket_count *= 2;
  mlx_status_t status = mlx_alloc(index->capacity + 1, sizeof *index->entries, &index->entries);
  if (!status) status = mlx_alloc(index->bucket_count, sizeof *index->buckets, &index->buckets);
  if (status)
    mlx_prefix_index_free(index);
  else
    *out_index = index;
  return status;
}

void mlx_prefix_index_free(mlx_prefix_index_t *index) {
  if (!index) return;
  mlx_free(index->entries);
  mlx_free(index->buckets);
  mlx_free(index);
}

static uint32_t *bucket_of(const mlx_prefix_index_t *index, uint64_t hash) {
  return &index->buckets[hash & (index->bucket_count - 1)];
}

static uint32_t find(const mlx_prefix_index_t *index, uint64_t hash) {
  uint32_t at = *bucket_of(index, hash);
  while (at && index->entries[at].hash != hash) at = index->entries[at].next_in_bucket;
  return at;
}

size_t mlx_prefix_index_find(const mlx_prefix_index_t *index, const uint64_t *hashes, size_t count) {
  size_t found = 0;
  while (found < count && find(index, hashes[found])) ++found;
  return found;
}

static void unlink_entry(mlx_prefix_index_t *index, uint32_t at) {
  const entry_t *entry = &index->entries[at];
  *(entry->older ? &index->entries[entry->older].newer : &index->oldest) = entry->newer;
  *(entry->newer ? &index->entries[entry->newer].older : &index->newest) = entry->older;
}

static void link_newest(mlx_prefix_index_t *index, uint32_t at) {
  index->entries[at].older = index->newest;
  index->entries[at].newer = 0;
  *(index->newest ? &index->entries[index->newest].newer : &index->oldest) = at;
  index->newest = at;
}

// A free entry, or that of the least recently used page.
static uint32_t take(mlx_prefix_index_t *index) {
  if (index->count < index->capacity) return (uint32_t)++index->count;
  const uint32_t at = index->oldest;
  unlink_entry(index, at);
  uint32_t *link = bucket_of(index, index->entries[at].hash);
  while (*link != at) link = &index->entries[*link].next_in_bucket;
  *link = index->entries[at].next_in_bucket;
  return at;
}

static void use(mlx_prefix_index_t *index, uint64_t hash) {
  uint32_t at = find(index, hash);
  if (at) {
    unlink_entry(index, at);
  } else {
    at = take(index);
    uint32_t *bucket = bucket_of(index, hash);
    index->entries[at].hash = hash;
    index->entries[at].next_in_bucket = *bucket;
    *bucket = at;
  }
  link_newest(index, at);
}

// From the last page to the first: a page is dropped before the pages that it continues.
void mlx_prefix_index_add(mlx_prefix_index_t *index, const uint64_t *hashes, size_t count) {
  if (count > index->capacity) count = index->capacity;
  for (size_t i = count; i-- > 0;) use(index, hashes[i]);
}

void mlx_prefix_index_clear(mlx_prefix_index_t *index) {
  for (size_t i = 0; i < index->bucket_count; ++i) index->buckets[i] = 0;
  index->count = 0;
  index->oldest = index->newest = 0;
}
