// Byte-pair encoding of one piece, over its bytes or over its characters, and the hash tables it lives on.
//
// Merging follows Hugging Face to the letter: the pair of lowest rank first, the leftmost of equals. A heap
// of candidates over a linked list of symbols keeps it near-linear, so that a megabyte of one letter is no
// denial of service. There is no cache of words: a table shared by threads would cost more here than it
// saves.
#include <string.h>

#include "tokenizer/internal.h"

// ----------------------------------------------------------------------------------------------------------
// Hashing

struct mlx_pair_slot {
  uint64_t key;
  uint64_t value;
};

#define NO_KEY UINT64_MAX  // no pair of ids, and no (node, byte), is all ones

static uint64_t mix(uint64_t a, uint64_t b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_word(uint64_t seed, uint64_t word) {
  return mix(word ^ seed ^ 0x9e3779b97f4a7c15u, seed | 0x8000000000000001u);
}

static uint64_t hash_text(uint64_t seed, const char *text, size_t length) {
  uint64_t hash = hash_word(seed, length), word;
  for (; length >= sizeof word; text += sizeof word, length -= sizeof word) {
    memcpy(&word, text, sizeof word);
    hash = hash_word(seed, word ^ hash);
  }
  word = 0;
  memcpy(&word, text, length);
  return hash_word(seed, word ^ hash);
}

// At most half of the slots are ever used, so probing always ends.
static mlx_status_t slots_for(size_t capacity, size_t *out_slots) {
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
  MLX_TRY(slots_for(capacity, &slots));
  MLX_TRY(mlx_alloc(slots, sizeof *out_map->slots, &out_map->slots));
  out_map->mask = slots - 1;
  for (size_t i = 0; i < slots; ++i) out_map->slots[i].key = NO_KEY;
  return NULL;
}

static struct mlx_pair_slot *pair_slot(const mlx_pair_map_t *map, uint64_t key) {
  size_t at = (size_t)hash_word(map->seed, key) & map->mask;
  while (map->slots[at].key != key && map->slots[at].key != NO_KEY) at = (at + 1) & map->mask;
  return &map->slots[at];
}

void mlx_pair_map_put(mlx_pair_map_t *map, uint64_t key, uint64_t value) {
  *pair_slot(map, key) = (struct mlx_pair_slot){.key = key, .value = value};
}

bool mlx_pair_map_get(const mlx_pair_map_t *map, uint64_t key, uint64_t *out_value) {
  const struct mlx_pair_slot *slot = pair_slot(map, key);
  if (slot->key == NO_KEY) return false;
  *out_value = slot->value;
  return true;
}

void mlx_pair_map_free(mlx_pair_map_t *map) {
  mlx_free(map->slots);
  *map = (mlx_pair_map_t){0};
}

mlx_status_t mlx_names_create(size_t capacity, mlx_tokenizer_t *tokenizer) {
  size_t slots;
  MLX_TRY(slots_for(capacity, &slots));
  MLX_TRY(mlx_alloc(slots, sizeof *tokenizer->names, &tokenizer->names));
  tokenizer->names_mask = slots - 1;
  for (size_t i = 0; i < slots; ++i) tokenizer->names[i] = -1;
  return NULL;
}

static size_t name_slot(const mlx_tokenizer_t *tokenizer, const char *text, size_t length) {
  size_t at = (size_t)hash_text(tokenizer->seed, text, length) & tokenizer->names_mask;
  for (;; at = (at + 1) & tokenizer->names_mask) {
    int32_t id = tokenizer->names[at];
    if (id < 0) return at;
    const mlx_token_t *token = &tokenizer->tokens[id];
    if (token->text_length == length && !memcmp(token->text, text, length)) return at;
  }
}

int32_t mlx_names_find(const mlx_tokenizer_t *tokenizer, const char *text, size_t length) {
  return tokenizer->names[name_slot(tokenizer, text, length)];
}

void mlx_names_add(mlx_tokenizer_t *tokenizer, int32_t id) {
  const mlx_token_t *token = &tokenizer->tokens[id];
  tokenizer->names[name_slot(tokenizer, token->text, token->text_length)] = id;
}

int32_t mlx_model_find(const mlx_tokenizer_t *tokenizer, const char *text, size_t length) {
  if (length > tokenizer->longest_text) return -1;
  int32_t id = mlx_names_find(tokenizer, text, length);
  return id >= 0 && tokenizer->tokens[id].in_model ? id : -1;
}

mlx_status_t mlx_trie_create(size_t bytes, uint64_t seed, mlx_trie_t *out_trie) {
  MLX_TRY(mlx_pair_map_create(bytes, seed, &out_trie->edges));
  MLX_TRY(mlx_alloc(bytes + 1, sizeof *out_trie->ends, &out_trie->ends));
  out_trie->ends[0] = -1;
  out_trie->nodes = 1;
  return NULL;
}

void mlx_trie_add(mlx_trie_t *trie, const char *text, size_t length, int32_t end) {
  uint64_t node = 0;
  for (size_t i = 0; i < length; ++i) {
    uint64_t key = mlx_pair((uint32_t)node, (uint8_t)text[i]);
    if (mlx_pair_map_get(&trie->edges, key, &node)) continue;
    node = trie->nodes++;
    trie->ends[node] = -1;
    mlx_pair_map_put(&trie->edges, key, node);
  }
  trie->ends[node] = end;
}

mlx_status_t mlx_trie_shrink(mlx_trie_t *trie) {
  mlx_pair_map_t small;
  MLX_TRY(mlx_pair_map_create(trie->nodes, trie->edges.seed, &small));
  for (size_t i = 0; i <= trie->edges.mask; ++i) {
    const struct mlx_pair_slot *slot = &trie->edges.slots[i];
    if (slot->key != NO_KEY) mlx_pair_map_put(&small, slot->key, slot->value);
  }
  mlx_pair_map_free(&trie->edges);
  trie->edges = small;
  return mlx_resize(trie->nodes, sizeof *trie->ends, &trie->ends);
}

bool mlx_trie_step(const mlx_trie_t *trie, uint32_t *inout_node, char byte) {
  uint64_t node;
  if (!mlx_pair_map_get(&trie->edges, mlx_pair(*inout_node, (uint8_t)byte), &node)) return false;
  *inout_node = (uint32_t)node;
  return true;
}

void mlx_trie_free(mlx_trie_t *trie) {
  mlx_pair_map_free(&trie->edges);
  mlx_free(trie->ends);
  *trie = (mlx_trie_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Spelling bytes as characters

// Printable bytes spell themselves; the 68 others (controls, space, 0x7f to 0xa0, 0xad) take U+0100 onwards
// in order.
static uint32_t byte_character(uint8_t byte) {
  if (byte <= 0x20) return 0x100u + byte;
  if (byte >= 0x7f && byte <= 0xa0) return 0x121u + (byte - 0x7fu);
  return byte == 0xad ? 0x143u : byte;
}

// The byte that |character| spells, or -1.
static int character_byte(uint32_t character) {
  if (character > 0x143) return -1;
  if (character == 0x143) return 0xad;
  if (character >= 0x121) return (int)(character - 0x121 + 0x7f);
  if (character >= 0x100) return (int)(character - 0x100);
  return byte_character((uint8_t)character) == character ? (int)character : -1;
}

size_t mlx_spell_byte(uint8_t byte, char out[2]) {
  uint32_t character = byte_character(byte);
  if (character < 0x80) {
    out[0] = (char)character;
    return 1;
  }
  out[0] = (char)(0xc0 | character >> 6);
  out[1] = (char)(0x80 | (character & 0x3f));
  return 2;
}

bool mlx_unspell(const char *text, size_t length, char *out, size_t *out_length) {
  size_t count = 0;
  for (size_t i = 0; i < length;) {
    uint8_t lead = (uint8_t)text[i];
    uint32_t character = lead;
    if (lead >= 0x80) {
      if (lead >= 0xe0 || i + 1 >= length) return false;  // past U+07FF: spells nothing
      character = (lead & 0x1fu) << 6 | ((uint8_t)text[i + 1] & 0x3fu);
    }
    int byte = character_byte(character);
    if (byte < 0) return false;
    out[count++] = (char)byte;
    i += lead < 0x80 ? 1 : 2;
  }
  *out_length = count;
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Merging

struct mlx_symbol {
  int32_t id;          // -1 once merged into its left neighbour
  int32_t prev, next;  // -1 at the ends
};

// A pair that could be merged; it may have gone stale by the time it is taken from the heap.
struct mlx_candidate {
  uint32_t rank;
  int32_t at;  // the left symbol
  int32_t id;  // what the pair becomes
};

mlx_status_t mlx_ids_append(mlx_ids_t *ids, int32_t id) {
  MLX_TRY(mlx_reserve(ids->count + 1, sizeof *ids->items, &ids->capacity, &ids->items));
  ids->items[ids->count++] = id;
  return NULL;
}

mlx_status_t mlx_append_bytes(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                              mlx_ids_t *ids, bool *out_done) {
  *out_done = false;
  for (size_t i = 0; i < length; ++i) {
    if (tokenizer->byte_ids[(uint8_t)text[i]] < 0) return NULL;
  }
  for (size_t i = 0; i < length; ++i) MLX_TRY(mlx_ids_append(ids, tokenizer->byte_ids[(uint8_t)text[i]]));
  *out_done = true;
  return NULL;
}

static bool comes_before(const struct mlx_candidate *a, const struct mlx_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct mlx_candidate *heap, size_t count, size_t at) {
  struct mlx_candidate moved = heap[at];
  for (size_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && comes_before(&heap[child + 1], &heap[child])) ++child;
    if (!comes_before(&heap[child], &moved)) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

static void sift_up(struct mlx_candidate *heap, size_t at) {
  struct mlx_candidate moved = heap[at];
  for (; at && comes_before(&moved, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = moved;
}

static struct mlx_candidate pop(mlx_merger_t *merger) {
  struct mlx_candidate top = merger->heap[0];
  merger->heap[0] = merger->heap[--merger->heap_count];
  if (merger->heap_count) sift_down(merger->heap, merger->heap_count, 0);
  return top;
}

// What the symbol at |at| and its right neighbour merge into; false when they do not.
static bool find_merge(const mlx_tokenizer_t *tokenizer, const mlx_merger_t *merger, int32_t at,
                       struct mlx_candidate *out) {
  const struct mlx_symbol *left = &merger->symbols[at];
  uint64_t value;
  if (left->next < 0) return false;
  uint64_t key = mlx_pair((uint32_t)left->id, (uint32_t)merger->symbols[left->next].id);
  if (!mlx_pair_map_get(&tokenizer->merges, key, &value)) return false;
  *out = (struct mlx_candidate){.rank = (uint32_t)(value >> 32), .at = at, .id = (int32_t)(uint32_t)value};
  return true;
}

static mlx_status_t push_merge(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, int32_t at) {
  struct mlx_candidate candidate;
  if (at < 0 || !find_merge(tokenizer, merger, at, &candidate)) return NULL;
  MLX_TRY(mlx_reserve(merger->heap_count + 1, sizeof *merger->heap, &merger->heap_capacity, &merger->heap));
  merger->heap[merger->heap_count++] = candidate;
  return NULL;
}

// Laying out the symbols of a piece. An unknown one waits for the next that is known, because runs of them
// may be one.
typedef struct layout {
  const mlx_tokenizer_t *tokenizer;
  struct mlx_symbol *symbols;  // has room for one per byte
  size_t count;
  bool unk_waits;
} layout_t;

static void add_symbol(layout_t *layout, int32_t id) {
  int32_t at = (int32_t)layout->count++;
  layout->symbols[at] = (struct mlx_symbol){.id = id, .prev = at - 1, .next = at + 1};
}

static void end_unk(layout_t *layout) {
  if (layout->unk_waits) add_symbol(layout, layout->tokenizer->unk_id);
  layout->unk_waits = false;
}

// Without an unk_token, what is unknown is dropped.
static void add_unk(layout_t *layout) {
  if (layout->tokenizer->unk_id < 0) return;
  if (!layout->tokenizer->fuse_unk) end_unk(layout);
  layout->unk_waits = true;
}

static void lay_out_byte(layout_t *layout, char byte) {
  int32_t id = layout->tokenizer->byte_ids[(uint8_t)byte];
  if (id < 0) {
    add_unk(layout);
    return;
  }
  end_unk(layout);
  add_symbol(layout, id);
}

static void lay_out_character(layout_t *layout, const char *text, size_t length) {
  const mlx_tokenizer_t *tokenizer = layout->tokenizer;
  int32_t id = mlx_model_find(tokenizer, text, length);
  bool all = tokenizer->byte_fallback;
  for (size_t i = 0; i < length && id < 0; ++i) all &= tokenizer->byte_ids[(uint8_t)text[i]] >= 0;
  if (id >= 0) {
    end_unk(layout);
    add_symbol(layout, id);
  } else if (all) {
    // An unknown symbol that waits goes on waiting and lands after these bytes: so it does with Hugging Face.
    for (size_t i = 0; i < length; ++i) add_symbol(layout, tokenizer->byte_ids[(uint8_t)text[i]]);
  } else {
    add_unk(layout);
  }
}

static mlx_status_t lay_out_symbols(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, const char *bytes,
                                    size_t length, size_t *out_count) {
  MLX_TRY(mlx_reserve(length, sizeof *merger->symbols, &merger->symbol_capacity, &merger->symbols));
  layout_t layout = {.tokenizer = tokenizer, .symbols = merger->symbols};
  for (size_t i = 0, step = 1; i < length; i += step) {
    if (tokenizer->byte_level) {
      lay_out_byte(&layout, bytes[i]);
    } else {
      mlx_character_at(bytes + i, &step);
      lay_out_character(&layout, bytes + i, step);
    }
  }
  end_unk(&layout);
  if (layout.count) merger->symbols[layout.count - 1].next = -1;
  *out_count = layout.count;
  return NULL;
}

static mlx_status_t merge_symbols(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, size_t count) {
  merger->heap_count = 0;
  for (size_t i = 0; i + 1 < count; ++i) MLX_TRY(push_merge(tokenizer, merger, (int32_t)i));
  for (size_t i = merger->heap_count / 2; i-- > 0;) sift_down(merger->heap, merger->heap_count, i);
  while (merger->heap_count) {
    struct mlx_candidate top = pop(merger), now;
    struct mlx_symbol *left = &merger->symbols[top.at];
    // Stale when either side has changed, unless the pair now there becomes the same token: so does Hugging
    // Face.
    if (left->id < 0 || !find_merge(tokenizer, merger, top.at, &now) || now.id != top.id) continue;
    struct mlx_symbol *right = &merger->symbols[left->next];
    left->id = top.id;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0) merger->symbols[left->next].prev = top.at;
    size_t before = merger->heap_count;
    MLX_TRY(push_merge(tokenizer, merger, left->prev));
    if (merger->heap_count > before) sift_up(merger->heap, before);
    before = merger->heap_count;
    MLX_TRY(push_merge(tokenizer, merger, top.at));
    if (merger->heap_count > before) sift_up(merger->heap, before);
  }
  return NULL;
}

// The token that is the whole piece, or -1 (for ignore_merges).
static mlx_status_t find_whole(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, const char *bytes,
                               size_t length, int32_t *out_id) {
  *out_id = -1;
  if (length > tokenizer->longest_text) return NULL;
  if (!tokenizer->byte_level) {
    *out_id = mlx_model_find(tokenizer, bytes, length);
    return NULL;
  }
  size_t count = 0;
  MLX_TRY(mlx_reserve(2 * length, 1, &merger->spelled_capacity, &merger->spelled));
  for (size_t i = 0; i < length; ++i) count += mlx_spell_byte((uint8_t)bytes[i], merger->spelled + count);
  *out_id = mlx_model_find(tokenizer, merger->spelled, count);
  return NULL;
}

mlx_status_t mlx_merger_run(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, const char *bytes,
                            size_t length, mlx_ids_t *ids) {
  if (tokenizer->ignore_merges) {
    int32_t whole;
    MLX_TRY(find_whole(tokenizer, merger, bytes, length, &whole));
    if (whole >= 0) return mlx_ids_append(ids, whole);
  }
  size_t count;
  MLX_TRY(lay_out_symbols(tokenizer, merger, bytes, length, &count));
  MLX_TRY(merge_symbols(tokenizer, merger, count));
  for (int32_t i = count ? 0 : -1; i >= 0; i = merger->symbols[i].next) {
    MLX_TRY(mlx_ids_append(ids, merger->symbols[i].id));
  }
  return NULL;
}

void mlx_merger_end(mlx_merger_t *merger) {
  mlx_free(merger->symbols);
  mlx_free(merger->heap);
  mlx_free(merger->spelled);
  *merger = (mlx_merger_t){0};
}
