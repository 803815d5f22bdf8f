// Writes and reads images of tokenizers.
#include "tokenizer/image.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/components.h"
#include "tokenizer/fields.h"
#include "tokenizer/read_steps.h"

#define MAGIC "mlxcel-tokens-2\n"
#define BYTE_ORDER_MARK 0x01020304u
#define ALIGNMENT 8
#define SETS 2  // raw_added and normalized_added

enum {
  IS_BYTE_FALLBACK = 1,
  IS_FUSE_UNK = 2,
  IS_IGNORE_MERGES = 4,
  HAS_TEMPLATE = 8,  // also if the template is empty
};

// The tables in the order of the file.
typedef enum part {
  STEPS,
  ARENA,
  TOKENS,
  SLOTS,
  MERGES,
  TRIE_EDGES,
  TRIE_ENDS,
  SCORES,
  PREFIX,
  TEMPLATE,
  PAIR,
  ADDED,
  SET_EDGES,  // the first of SET_PARTS tables of raw_added; those of normalized_added follow
  SET_FAIL,
  SET_MATCHES,
  SET_DEPTHS,
  SET_LAST_BYTES,
  SET_END,
} part_t;
#define SET_PARTS (SET_END - SET_EDGES)
#define PARTS (SET_EDGES + SETS * SET_PARTS)

static const uint8_t widths[SET_END] = {
    [STEPS] = 1,
    [ARENA] = 1,
    [TOKENS] = sizeof(mlx_token_t),
    [SLOTS] = sizeof(int32_t),
    [MERGES] = sizeof(mlx_pair_slot_t),
    [TRIE_EDGES] = sizeof(mlx_pair_slot_t),
    [TRIE_ENDS] = sizeof(int32_t),
    [SCORES] = sizeof(double),
    [PREFIX] = 1,
    [TEMPLATE] = sizeof(int32_t),
    [PAIR] = sizeof(mlx_pair_item_t),
    [ADDED] = sizeof(mlx_added_token_t),
    [SET_EDGES] = sizeof(mlx_pair_slot_t),
    [SET_FAIL] = sizeof(uint32_t),
    [SET_MATCHES] = sizeof(mlx_added_match_t),
    [SET_DEPTHS] = sizeof(uint32_t),
    [SET_LAST_BYTES] = 1,
};

static size_t width_of(int part) { return widths[part < SET_END ? part : part - SET_PARTS]; }

typedef struct header {
  char magic[16];
  uint32_t byte_order, header_size;
  uint32_t kind, flags;
  int32_t unk_id, padding;
  uint64_t seed, longest_text, max_word;
  double unk_score;
  uint64_t set_counts[SETS], set_longest[SETS];
  int32_t byte_ids[256];
  uint64_t counts[PARTS];  // elements of each table
} header_t;

// ----------------------------------------------------------------------------------------------------------
// Writing

static size_t slots_of(const mlx_pair_map_t *map) { return map->slots ? map->mask + 1 : 0; }

static void list_set(const mlx_added_set_t *set, const void **tables, uint64_t *counts) {
  const size_t nodes = set->trie.nodes;
  tables[0] = set->trie.edges.slots, counts[0] = slots_of(&set->trie.edges);
  tables[1] = set->fail, counts[1] = nodes;
  tables[2] = set->matches, counts[2] = nodes;
  tables[3] = set->depths, counts[3] = nodes;
  tables[4] = set->last_bytes, counts[4] = sizeof set->last_bytes;
}

// Fills in the address of every table, and the header.
static void list_tables(const mlx_tokenizer_t *t, const void *tables[PARTS], header_t *header) {
  const mlx_tokenizer_model_t *model = &t->model;
  uint64_t *counts = header->counts;
  tables[STEPS] = t->steps, counts[STEPS] = t->steps_length;
  tables[ARENA] = model->vocab.arena, counts[ARENA] = model->vocab.arena_size;
  tables[TOKENS] = model->vocab.tokens, counts[TOKENS] = model->vocab.size;
  tables[SLOTS] = model->vocab.slots, counts[SLOTS] = model->vocab.slot_mask + 1;
  tables[MERGES] = model->merges.slots, counts[MERGES] = slots_of(&model->merges);
  tables[TRIE_EDGES] = model->trie.edges.slots, counts[TRIE_EDGES] = slots_of(&model->trie.edges);
  tables[TRIE_ENDS] = model->trie.ends, counts[TRIE_ENDS] = model->trie.nodes;
  tables[SCORES] = model->scores, counts[SCORES] = model->scores ? model->vocab.size : 0;
  tables[PREFIX] = model->prefix, counts[PREFIX] = model->prefix_length;
  tables[TEMPLATE] = t->template_ids, counts[TEMPLATE] = t->template_count;
  tables[PAIR] = t->pair, counts[PAIR] = t->pair_count;
  tables[ADDED] = t->added, counts[ADDED] = t->added_count;
  const mlx_added_set_t *const sets[SETS] = {&t->raw_added, &t->normalized_added};
  for (int i = 0; i < SETS; ++i) {
    const int first = SET_EDGES + i * SET_PARTS;
    list_set(sets[i], tables + first, counts + first);
    header->set_counts[i] = sets[i]->count;
    header->set_longest[i] = sets[i]->longest;
  }
  memcpy(header->magic, MAGIC, sizeof header->magic);
  header->byte_order = BYTE_ORDER_MARK;
  header->header_size = sizeof *header;
  header->kind = model->kind;
  header->flags = (model->byte_fallback ? IS_BYTE_FALLBACK : 0) | (model->fuse_unk ? IS_FUSE_UNK : 0) |
                  (model->ignore_merges ? IS_IGNORE_MERGES : 0) | (t->template_ids ? HAS_TEMPLATE : 0);
  header->unk_id = model->unk_id;
  header->seed = model->vocab.seed;
  header->longest_text = model->vocab.longest_text;
  header->max_word = model->max_word;
  header->unk_score = model->unk_score;
  memcpy(header->byte_ids, model->vocab.byte_ids, sizeof header->byte_ids);
}

// Finds the offset of every table from the counts. False if the tables do not fit into a size_t.
static bool place_tables(const header_t *header, size_t offsets[PARTS], size_t *out_size) {
  size_t at = sizeof *header;
  for (int i = 0; i < PARTS; ++i) {
    size_t bytes;
    offsets[i] = at;
    if (header->counts[i] > SIZE_MAX || !mlx_mul((size_t)header->counts[i], width_of(i), &bytes))
      return false;
    if (!mlx_add(at, bytes, &at) || !mlx_align_up(at, ALIGNMENT, &at)) return false;
  }
  *out_size = at;
  return true;
}

mlx_status_t mlx_tokenizer_image_make(const mlx_tokenizer_t *tokenizer, uint8_t **out_bytes,
                                      size_t *out_size) {
  _Static_assert(sizeof(header_t) % ALIGNMENT == 0, "the first table is aligned");
  const void *tables[PARTS];
  size_t offsets[PARTS];
  header_t header = {0};
  *out_bytes = NULL;
  list_tables(tokenizer, tables, &header);
  if (!place_tables(&header, offsets, out_size))
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: image of a tokenizer");
  MLX_TRY(mlx_alloc(*out_size, 1, out_bytes));
  memcpy(*out_bytes, &header, sizeof header);
  for (int i = 0; i < PARTS; ++i) {
    if (header.counts[i]) memcpy(*out_bytes + offsets[i], tables[i], (size_t)header.counts[i] * width_of(i));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static mlx_pair_map_t map_of(void *slots, uint64_t count, uint64_t seed) {
  return (mlx_pair_map_t){.slots = slots, .mask = (size_t)count - 1, .seed = seed};
}

static void use_set(const header_t *header, int index, void *const *tables, mlx_added_set_t *out) {
  const uint64_t *counts = header->counts + SET_EDGES + index * SET_PARTS;
  tables += SET_EDGES + index * SET_PARTS;
  out->trie = (mlx_trie_t){.edges = map_of(tables[0], counts[0], header->seed), .nodes = (size_t)counts[1]};
  out->fail = tables[1];
  out->matches = tables[2];
  out->depths = tables[3];
  if (counts[4] == sizeof out->last_bytes) memcpy(out->last_bytes, tables[4], sizeof out->last_bytes);
  out->count = (size_t)header->set_counts[index];
  out->longest = (size_t)header->set_longest[index];
}

// Points the tokenizer's tables into the image.
static void use_tables(const header_t *header, void *const *tables, mlx_tokenizer_t *t) {
  const uint64_t *counts = header->counts;
  t->steps = tables[STEPS];
  t->steps_length = (size_t)counts[STEPS];
  t->model =
      (mlx_tokenizer_model_t){.kind = (mlx_model_kind_t)header->kind,
                              .vocab = {.tokens = tables[TOKENS],
                                        .size = (size_t)counts[TOKENS],
                                        .longest_text = (size_t)header->longest_text,
                                        .arena = tables[ARENA],
                                        .arena_size = (size_t)counts[ARENA],
                                        .slots = tables[SLOTS],
                                        .slot_mask = (size_t)counts[SLOTS] - 1,
                                        .seed = header->seed},
                              .byte_fallback = header->flags & IS_BYTE_FALLBACK,
                              .unk_id = header->unk_id,
                              .fuse_unk = header->flags & IS_FUSE_UNK,
                              .ignore_merges = header->flags & IS_IGNORE_MERGES,
                              .merges = map_of(tables[MERGES], counts[MERGES], header->seed),
                              .trie = {.edges = map_of(tables[TRIE_EDGES], counts[TRIE_EDGES], header->seed),
                                       .ends = tables[TRIE_ENDS],
                                       .nodes = (size_t)counts[TRIE_ENDS]},
                              .scores = tables[SCORES],
                              .unk_score = header->unk_score,
                              .prefix = tables[PREFIX],
                              .prefix_length = (size_t)counts[PREFIX],
                              .max_word = (size_t)header->max_word};
  memcpy(t->model.vocab.byte_ids, header->byte_ids, sizeof header->byte_ids);
  t->template_ids = header->flags & HAS_TEMPLATE ? tables[TEMPLATE] : NULL;
  t->template_count = (size_t)counts[TEMPLATE];
  t->pair = counts[PAIR] ? tables[PAIR] : NULL;
  t->pair_count = (size_t)counts[PAIR];
  t->added = tables[ADDED];
  t->added_count = (size_t)counts[ADDED];
  use_set(header, 0, tables, &t->raw_added);
  use_set(header, 1, tables, &t->normalized_added);
}

static bool sets_match(const header_t *header) {
  for (int i = 0; i < SETS; ++i) {
    const uint64_t *counts = header->counts + SET_EDGES + i * SET_PARTS;
    if (counts[2] != counts[1] || counts[3] != counts[1] || counts[4] != 256) return false;
  }
  return true;
}

static bool model_is_valid(const mlx_tokenizer_model_t *model, const header_t *header) {
  const size_t size = model->vocab.size;
  if (size > MLX_MAX_ID + 1 || !mlx_vocab_is_valid(&model->vocab)) return false;
  if (model->unk_id < -1 || model->unk_id >= (int64_t)size) return false;
  switch (header->kind) {
    case MLX_MODEL_BPE: return mlx_pair_map_is_valid(&model->merges, size);
    case MLX_MODEL_UNIGRAM: return header->counts[SCORES] == size && mlx_trie_is_valid(&model->trie, size);
    case MLX_MODEL_WORDPIECE: return mlx_trie_is_valid(&model->trie, size);
    default: return false;
  }
}

// True if no table leads outside another one. Every function of the tokenizer relies on this.
static bool is_valid(const mlx_tokenizer_t *t, const header_t *header) {
  const size_t size = t->model.vocab.size;
  bool valid = sets_match(header) && model_is_valid(&t->model, header);
  for (size_t i = 0; i < t->template_count && valid; ++i)
    valid = t->template_ids && t->template_ids[i] >= MLX_TEMPLATE_TEXT && t->template_ids[i] < (int64_t)size;
  for (size_t i = 0; i < t->pair_count && valid; ++i)
    valid = t->pair[i].id >= MLX_TEMPLATE_SECOND && t->pair[i].id < (int64_t)size && t->pair[i].type >= 0;
  for (size_t i = 0; i < t->added_count && valid; ++i)
    valid = t->added[i].id >= 0 && t->added[i].id < (int64_t)size;
  return valid && mlx_added_set_is_valid(&t->raw_added, t->added_count) &&
         mlx_added_set_is_valid(&t->normalized_added, t->added_count);
}

// Points |t| into the image. False if the image is damaged.
static bool read_tables(mlx_map_t image, mlx_tokenizer_t *t) {
  header_t header;
  size_t offsets[PARTS], size;
  void *tables[PARTS];
  if (image.size < sizeof header || (uintptr_t)image.data % ALIGNMENT) return false;
  memcpy(&header, image.data, sizeof header);
  if (memcmp(header.magic, MAGIC, sizeof header.magic) || header.byte_order != BYTE_ORDER_MARK ||
      header.header_size != sizeof header)
    return false;
  if (!place_tables(&header, offsets, &size) || size != image.size) return false;
  for (int i = 0; i < PARTS; ++i) tables[i] = (void *)(uintptr_t)(image.data + offsets[i]);
  use_tables(&header, tables, t);
  return is_valid(t, &header);
}

static mlx_status_t read_image(const char *name, mlx_map_t image, mlx_tokenizer_t *t) {
  mlx_json_t json;
  t->is_image = true;
  if (!read_tables(image, t)) return mlx_error(MLX_INVALID_INPUT, "%s: the image is damaged", name);
  MLX_TRY(mlx_json_parse(name, t->steps, t->steps_length, &json));
  mlx_status_t status = mlx_tokenizer_read_steps(&json, t);
  mlx_json_close(&json);
  if (!status) t->longest = mlx_tokenizer_find_longest(t);
  return status ? status : mlx_tokenizer_create_word_regex(t);
}

mlx_status_t mlx_tokenizer_image_parse(const char *name, mlx_map_t image, mlx_tokenizer_t **out_tokenizer) {
  mlx_tokenizer_t *tokenizer;
  *out_tokenizer = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *tokenizer, &tokenizer));
  mlx_status_t status = read_image(name, image, tokenizer);
  if (status) {
    mlx_tokenizer_free(tokenizer);
    return status;
  }
  *out_tokenizer = tokenizer;
  return NULL;
}

mlx_status_t mlx_tokenizer_image_open(const char *path, mlx_tokenizer_t **out_tokenizer) {
  mlx_map_t map;
  *out_tokenizer = NULL;
  MLX_TRY(mlx_map_file(path, &map));
  mlx_status_t status = mlx_tokenizer_image_parse(path, map, out_tokenizer);
  if (status)
    mlx_unmap(&map);
  else
    (*out_tokenizer)->image = map;
  return status;
}
