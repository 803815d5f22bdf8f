// A hash map from 64-bit keys to 64-bit values, with a capacity fixed at creation.
//
// Callers pass a random seed. So a hostile file cannot choose keys that all collide.
#ifndef MLXCEL_TOKENIZER_PAIR_MAP_H_
#define MLXCEL_TOKENIZER_PAIR_MAP_H_

#include <stdint.h>

#include "base/status.h"

#define MLX_NO_PAIR UINT64_MAX  // the key of an empty slot

typedef struct mlx_pair_slot {
  uint64_t key, value;
} mlx_pair_slot_t;

typedef struct mlx_pair_map {
  mlx_pair_slot_t *slots;  // mask + 1 of them, a power of two
  size_t mask;
  uint64_t seed;
} mlx_pair_map_t;

// A key or value made of two 32-bit numbers. UINT64_MAX is not a valid key.
static inline uint64_t mlx_pair(uint32_t high, uint32_t low) { return (uint64_t)high << 32 | low; }

// Release with mlx_pair_map_free.
mlx_status_t mlx_pair_map_create(size_t capacity, uint64_t seed, mlx_pair_map_t *out_map) MLX_MUST_USE;
size_t mlx_pair_map_memory(size_t capacity);  // the most bytes that a map of this capacity takes
// Replaces the value of an existing key. The caller never adds more keys than the capacity.
void mlx_pair_map_put(mlx_pair_map_t *map, uint64_t key, uint64_t value);
bool mlx_pair_map_get(const mlx_pair_map_t *map, uint64_t key, uint64_t *out_value);
// Rebuilds the map with room for |capacity| keys, which must not be less than the keys in it.
mlx_status_t mlx_pair_map_resize(mlx_pair_map_t *map, size_t capacity) MLX_MUST_USE;
void mlx_pair_map_free(mlx_pair_map_t *map);
// Checks a map from an image: true if every lookup ends and finds a value whose low half is below |limit|.
bool mlx_pair_map_is_valid(const mlx_pair_map_t *map, size_t limit);

// The hash and the table size that pair maps use, for other open-addressing tables.
uint64_t mlx_hash_text(uint64_t seed, const char *text, size_t length);
// A power of two, at least twice |capacity|: probing always finds an empty slot.
mlx_status_t mlx_hash_slots(size_t capacity, size_t *out_slots) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_PAIR_MAP_H_
