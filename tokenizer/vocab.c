// The index of ids by text is an open-addressing table that stores ids; the texts stay in the arena.
#include "tokenizer/vocab.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/pair_map.h"

mlx_status_t mlx_vocab_create_index(mlx_vocab_t *vocab, size_t capacity) {
  size_t slots;
  MLX_TRY(mlx_hash_slots(capacity, &slots));
  MLX_TRY(mlx_alloc(slots, sizeof *vocab->slots, &vocab->slots));
  vocab->slot_mask = slots - 1;
  for (size_t i = 0; i < slots; ++i) vocab->slots[i] = -1;
  return NULL;
}

static size_t find_slot(const mlx_vocab_t *vocab, const char *text, size_t length) {
  size_t at = (size_t)mlx_hash_text(vocab->seed, text, length) & vocab->slot_mask;
  for (;; at = (at + 1) & vocab->slot_mask) {
    int32_t id = vocab->slots[at];
    if (id < 0) return at;
    const mlx_token_t *token = &vocab->tokens[id];
    if (token->text_length == length && !memcmp(vocab->arena + token->text, text, length)) return at;
  }
}

void mlx_vocab_index(mlx_vocab_t *vocab, int32_t id) {
  const mlx_token_t *token = &vocab->tokens[id];
  vocab->slots[find_slot(vocab, vocab->arena + token->text, token->text_length)] = id;
}

int32_t mlx_vocab_find(const mlx_vocab_t *vocab, const char *text, size_t length) {
  return vocab->slots[find_slot(vocab, text, length)];
}

int32_t mlx_vocab_find_in_model(const mlx_vocab_t *vocab, const char *text, size_t length) {
  if (length > vocab->longest_text) return -1;
  int32_t id = mlx_vocab_find(vocab, text, length);
  return mlx_vocab_has(vocab, id, MLX_TOKEN_IN_MODEL) ? id : -1;
}

void mlx_vocab_free(mlx_vocab_t *vocab) {
  mlx_free(vocab->tokens);
  mlx_free(vocab->arena);
  mlx_free(vocab->slots);
  *vocab = (mlx_vocab_t){0};
}

bool mlx_vocab_is_valid(const mlx_vocab_t *vocab) {
  const size_t slots = vocab->slot_mask + 1;
  bool valid = slots && !(slots & vocab->slot_mask), has_empty = false;
  for (size_t i = 0; i < vocab->size && valid; ++i) {
    const mlx_token_t *token = &vocab->tokens[i];
    valid = mlx_range_ok(token->text, token->text_length, vocab->arena_size) &&
            mlx_range_ok(token->bytes, token->byte_length, vocab->arena_size);
  }
  for (size_t i = 0; i < slots && valid; ++i) {
    has_empty |= vocab->slots[i] < 0;
    valid = vocab->slots[i] < (int64_t)vocab->size;
  }
  for (size_t i = 0; i < 256 && valid; ++i)
    valid = vocab->byte_ids[i] >= -1 && vocab->byte_ids[i] < (int64_t)vocab->size;
  return valid && has_empty;
}

mlx_status_t mlx_ids_append(mlx_ids_t *ids, int32_t id) {
  MLX_TRY(mlx_reserve(ids->count + 1, sizeof *ids->items, &ids->capacity, &ids->items));
  ids->items[ids->count++] = id;
  return NULL;
}

mlx_status_t mlx_ids_append_bytes(mlx_ids_t *ids, const mlx_vocab_t *vocab, const char *text, size_t length,
                                  bool *out_done) {
  *out_done = false;
  for (size_t i = 0; i < length; ++i) {
    if (vocab->byte_ids[(uint8_t)text[i]] < 0) return NULL;
  }
  for (size_t i = 0; i < length; ++i) MLX_TRY(mlx_ids_append(ids, vocab->byte_ids[(uint8_t)text[i]]));
  *out_done = true;
  return NULL;
}
