// Open addressing with linear probing.
#include "tokenizer/pair_map.h"

#include <string.h>

#include "base/memory.h"

static uint64_t mix(uint64_t a, uint64_t b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_word(uint64_t seed, uint64_t word) {
  return mix(word ^ seed ^ 0x9e3779b97f4a7c15u, seed | 0x8000000000000001u);
}

uint64_t mlx_hash_text(uint64_t seed, const char *text, size_t length) {
  uint64_t hash = hash_word(seed, length), word;
  for (; length >= sizeof word; text += sizeof word, length -= sizeof word) {
    memcpy(&word, text, sizeof word);
    hash = hash_word(seed, word ^ hash);
  }
  word = 0;
  memcpy(&word, text, length);
  return hash_word(seed, word ^ hash);
}

mlx_status_t mlx_hash_slots(size_t capacity, size_t *out_slots) {
  size_t slots = *out_slots = 16;
  while (slots / 2 < capacity) {
    if (!mlx_mul(slots, 2, &slots))
      return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: table of %zu", capacity);
  }
  *out_slots = slots;
  return NULL;
}

mlx_status_t mlx_pair_map_create(size_t capacity, uint64_t seed, mlx_pair_map_t *out_map) {
  size_t slots;
  *out_map = (mlx_pair_map_t){.seed = seed};
  MLX_TRY(mlx_hash_slots(capacity, &slots));
  MLX_TRY(mlx_alloc(slots, sizeof *out_map->slots, &out_map->slots));
  out_map->mask = slots - 1;
  for (size_t i = 0; i < slots; ++i) out_map->slots[i].key = MLX_NO_PAIR;
  return NULL;
}

// mlx_hash_slots gives at most 4 slots for each key, and at least 16.
size_t mlx_pair_map_memory(size_t capacity) { return (capacity * 4 + 16) * sizeof(mlx_pair_slot_t); }

static mlx_pair_slot_t *find_slot(const mlx_pair_map_t *map, uint64_t key) {
  size_t at = (size_t)hash_word(map->seed, key) & map->mask;
  while (map->slots[at].key != key && map->slots[at].key != MLX_NO_PAIR) at = (at + 1) & map->mask;
  return &map->slots[at];
}

void mlx_pair_map_put(mlx_pair_map_t *map, uint64_t key, uint64_t value) {
  *find_slot(map, key) = (mlx_pair_slot_t){.key = key, .value = value};
}

bool mlx_pair_map_get(const mlx_pair_map_t *map, uint64_t key, uint64_t *out_value) {
  const mlx_pair_slot_t *slot = find_slot(map, key);
  if (slot->key == MLX_NO_PAIR) return false;
  *out_value = slot->value;
  return true;
}

mlx_status_t mlx_pair_map_resize(mlx_pair_map_t *map, size_t capacity) {
  mlx_pair_map_t resized;
  MLX_TRY(mlx_pair_map_create(capacity, map->seed, &resized));
  for (size_t i = 0; i <= map->mask; ++i) {
    const mlx_pair_slot_t *slot = &map->slots[i];
    if (slot->key != MLX_NO_PAIR) mlx_pair_map_put(&resized, slot->key, slot->value);
  }
  mlx_pair_map_free(map);
  *map = resized;
  return NULL;
}

bool mlx_pair_map_is_valid(const mlx_pair_map_t *map, size_t limit) {
  const size_t slots = map->mask + 1;
  bool valid = slots && !(slots & map->mask), has_empty = false;
  for (size_t i = 0; i < slots && valid; ++i) {
    const bool is_empty = map->slots[i].key == MLX_NO_PAIR;
    has_empty |= is_empty;
    valid = is_empty || (uint32_t)map->slots[i].value < limit;
  }
  return valid && has_empty;
}

void mlx_pair_map_free(mlx_pair_map_t *map) {
  mlx_free(map->slots);
  *map = (mlx_pair_map_t){0};
}
