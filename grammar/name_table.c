// Open addressing with linear probing, at most half full. The hash starts from an address, so a hostile
// grammar cannot choose names that all collide.
#include "grammar/name_table.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/pair_map.h"

struct mlx_name_slot {
  const char *name;  // NULL: the slot is free
  size_t length;
  uint64_t hash;
  uint32_t number;
};

static uint64_t hash_name(const char *name, size_t length) {
  return mlx_hash_text((uint64_t)(uintptr_t)&hash_name, name, length);
}

// The slot of |name|, or the free slot for it.
static struct mlx_name_slot *find_slot(const mlx_name_table_t *table, uint64_t hash, const char *name,
                                       size_t length) {
  for (size_t at = (size_t)hash;; ++at) {
    struct mlx_name_slot *slot = &table->slots[at & table->mask];
    if (!slot->name) return slot;
    if (slot->hash == hash && slot->length == length && !memcmp(slot->name, name, length)) return slot;
  }
}

bool mlx_name_table_find(const mlx_name_table_t *table, const char *name, size_t length,
                         uint32_t *out_number) {
  if (!table->slots) return false;
  const struct mlx_name_slot *slot = find_slot(table, hash_name(name, length), name, length);
  if (slot->name) *out_number = slot->number;
  return slot->name != NULL;
}

static mlx_status_t grow(mlx_name_table_t *table) {
  mlx_name_table_t larger = {.mask = table->slots ? table->mask * 2 + 1 : 63, .used = table->used};
  MLX_TRY(mlx_alloc(larger.mask + 1, sizeof *larger.slots, &larger.slots));
  for (size_t i = 0; table->slots && i <= table->mask; ++i) {
    const struct mlx_name_slot *slot = &table->slots[i];
    if (slot->name) *find_slot(&larger, slot->hash, slot->name, slot->length) = *slot;
  }
  mlx_free(table->slots);
  *table = larger;
  return NULL;
}

mlx_status_t mlx_name_table_add(mlx_name_table_t *table, const char *name, size_t length, uint32_t number) {
  if (!table->slots || table->used * 2 > table->mask) MLX_TRY(grow(table));
  const uint64_t hash = hash_name(name, length);
  *find_slot(table, hash, name, length) = (struct mlx_name_slot){name, length, hash, number};
  ++table->used;
  return NULL;
}

void mlx_name_table_free(mlx_name_table_t *table) {
  mlx_free(table->slots);
  *table = (mlx_name_table_t){0};
}
