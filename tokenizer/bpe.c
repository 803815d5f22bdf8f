// Byte-pair encoding of one piece, over its bytes or over its characters.
//
// Merges follow Hugging Face exactly: the pair of lowest rank first, and the leftmost of equal pairs. A heap
// of candidates over a linked list of symbols makes this nearly linear, so a long run of one letter does not
// take quadratic time. There is no cache of encoded words: a table shared by threads would cost more than it
// saves.
#include "tokenizer/bpe.h"

#include "base/memory.h"
#include "tokenizer/byte_level.h"
#include "unicode/utf8.h"

struct mlx_bpe_symbol {
  int32_t id;          // -1 after it was merged into its left neighbour
  int32_t prev, next;  // indices of the neighbours; -1 at the ends
};

// A possible merge. It may be stale by the time it leaves the heap, because a neighbour was merged first.
struct mlx_bpe_candidate {
  uint32_t rank;
  int32_t at;  // index of the left symbol
  int32_t id;  // the merged token
};

static bool comes_before(const struct mlx_bpe_candidate *a, const struct mlx_bpe_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct mlx_bpe_candidate *heap, size_t count, size_t at) {
  struct mlx_bpe_candidate moved = heap[at];
  for (size_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && comes_before(&heap[child + 1], &heap[child])) ++child;
    if (!comes_before(&heap[child], &moved)) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

static void sift_up(struct mlx_bpe_candidate *heap, size_t at) {
  struct mlx_bpe_candidate moved = heap[at];
  for (; at && comes_before(&moved, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = moved;
}

static struct mlx_bpe_candidate pop(mlx_bpe_scratch_t *scratch) {
  struct mlx_bpe_candidate top = scratch->heap[0];
  scratch->heap[0] = scratch->heap[--scratch->heap_count];
  if (scratch->heap_count) sift_down(scratch->heap, scratch->heap_count, 0);
  return top;
}

// Finds the merge of the symbol at |at| with its right neighbour. Returns false if there is none.
static bool find_merge(const mlx_tokenizer_model_t *model, const mlx_bpe_scratch_t *scratch, int32_t at,
                       struct mlx_bpe_candidate *out) {
  const struct mlx_bpe_symbol *left = &scratch->symbols[at];
  uint64_t value;
  if (left->next < 0) return false;
  uint64_t key = mlx_pair((uint32_t)left->id, (uint32_t)scratch->symbols[left->next].id);
  if (!mlx_pair_map_get(&model->merges, key, &value)) return false;
  *out =
      (struct mlx_bpe_candidate){.rank = (uint32_t)(value >> 32), .at = at, .id = (int32_t)(uint32_t)value};
  return true;
}

static mlx_status_t push_merge(const mlx_tokenizer_model_t *model, mlx_bpe_scratch_t *scratch, int32_t at) {
  struct mlx_bpe_candidate candidate;
  if (at < 0 || !find_merge(model, scratch, at, &candidate)) return NULL;
  MLX_TRY(
      mlx_reserve(scratch->heap_count + 1, sizeof *scratch->heap, &scratch->heap_capacity, &scratch->heap));
  scratch->heap[scratch->heap_count++] = candidate;
  return NULL;
}

// Builds the initial symbols of a piece. An unknown symbol is held back until the next known one, because
// fuse_unk turns a run of them into one.
typedef struct layout {
  const mlx_tokenizer_model_t *model;
  struct mlx_bpe_symbol *symbols;  // room for one per byte
  size_t count;
  bool unk_pending;
} layout_t;

static void add_symbol(layout_t *layout, int32_t id) {
  int32_t at = (int32_t)layout->count++;
  layout->symbols[at] = (struct mlx_bpe_symbol){.id = id, .prev = at - 1, .next = at + 1};
}

static void flush_unk(layout_t *layout) {
  if (layout->unk_pending) add_symbol(layout, layout->model->unk_id);
  layout->unk_pending = false;
}

// Without an unk_token, unknown characters are dropped.
static void add_unk(layout_t *layout) {
  if (layout->model->unk_id < 0) return;
  if (!layout->model->fuse_unk) flush_unk(layout);
  layout->unk_pending = true;
}

static void add_byte(layout_t *layout, char byte) {
  int32_t id = layout->model->vocab.byte_ids[(uint8_t)byte];
  if (id < 0) {
    add_unk(layout);
    return;
  }
  flush_unk(layout);
  add_symbol(layout, id);
}

static void add_character(layout_t *layout, const char *text, size_t length) {
  const mlx_tokenizer_model_t *model = layout->model;
  int32_t id = mlx_vocab_find_in_model(&model->vocab, text, length);
  bool has_bytes = model->byte_fallback;
  for (size_t i = 0; i < length && id < 0; ++i) has_bytes &= model->vocab.byte_ids[(uint8_t)text[i]] >= 0;
  if (id >= 0) {
    flush_unk(layout);
    add_symbol(layout, id);
  } else if (has_bytes) {
    // A pending unknown symbol stays pending and ends up after these bytes, as with Hugging Face.
    for (size_t i = 0; i < length; ++i) add_symbol(layout, model->vocab.byte_ids[(uint8_t)text[i]]);
  } else {
    add_unk(layout);
  }
}

static mlx_status_t make_symbols(const mlx_tokenizer_model_t *model, mlx_bpe_scratch_t *scratch,
                                 const char *bytes, size_t length, size_t *out_count) {
  MLX_TRY(mlx_reserve(length, sizeof *scratch->symbols, &scratch->symbol_capacity, &scratch->symbols));
  layout_t layout = {.model = model, .symbols = scratch->symbols};
  for (size_t i = 0, step = 1; i < length; i += step) {
    if (model->byte_level) {
      add_byte(&layout, bytes[i]);
    } else {
      mlx_character_at(bytes + i, &step);
      add_character(&layout, bytes + i, step);
    }
  }
  flush_unk(&layout);
  if (layout.count) scratch->symbols[layout.count - 1].next = -1;
  *out_count = layout.count;
  return NULL;
}

static mlx_status_t merge_symbols(const mlx_tokenizer_model_t *model, mlx_bpe_scratch_t *scratch,
                                  size_t count, mlx_budget_t *budget) {
  scratch->heap_count = 0;
  for (size_t i = 0; i + 1 < count; ++i) MLX_TRY(push_merge(model, scratch, (int32_t)i));
  for (size_t i = scratch->heap_count / 2; i-- > 0;) sift_down(scratch->heap, scratch->heap_count, i);
  while (scratch->heap_count) {
    struct mlx_bpe_candidate top = pop(scratch), now;
    MLX_TRY(mlx_budget_step(budget, 1));
    struct mlx_bpe_symbol *left = &scratch->symbols[top.at];
    // A candidate is stale if one side has changed, unless the new pair merges into the same token. Hugging
    // Face has the same exception.
    if (left->id < 0 || !find_merge(model, scratch, top.at, &now) || now.id != top.id) continue;
    struct mlx_bpe_symbol *right = &scratch->symbols[left->next];
    left->id = top.id;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0) scratch->symbols[left->next].prev = top.at;
    size_t before = scratch->heap_count;
    MLX_TRY(push_merge(model, scratch, left->prev));
    if (scratch->heap_count > before) sift_up(scratch->heap, before);
    before = scratch->heap_count;
    MLX_TRY(push_merge(model, scratch, top.at));
    if (scratch->heap_count > before) sift_up(scratch->heap, before);
  }
  return NULL;
}

// For ignore_merges: finds the token that equals the whole piece; *out_id is -1 if there is none.
static mlx_status_t find_whole(const mlx_tokenizer_model_t *model, mlx_bpe_scratch_t *scratch,
                               const char *bytes, size_t length, int32_t *out_id) {
  *out_id = -1;
  if (length > model->vocab.longest_text) return NULL;
  if (!model->byte_level) {
    *out_id = mlx_vocab_find_in_model(&model->vocab, bytes, length);
    return NULL;
  }
  size_t count = 0;
  MLX_TRY(mlx_reserve(2 * length, 1, &scratch->spelled_capacity, &scratch->spelled));
  for (size_t i = 0; i < length; ++i)
    count += mlx_byte_level_spell((uint8_t)bytes[i], scratch->spelled + count);
  *out_id = mlx_vocab_find_in_model(&model->vocab, scratch->spelled, count);
  return NULL;
}

mlx_status_t mlx_bpe_encode(const mlx_tokenizer_model_t *model, mlx_bpe_scratch_t *scratch, const char *bytes,
                            size_t length, mlx_budget_t *budget, mlx_ids_t *ids) {
  if (model->ignore_merges) {
    int32_t whole;
    MLX_TRY(find_whole(model, scratch, bytes, length, &whole));
    if (whole >= 0) return mlx_ids_append(ids, whole);
  }
  size_t count;
  MLX_TRY(make_symbols(model, scratch, bytes, length, &count));
  MLX_TRY(merge_symbols(model, scratch, count, budget));
  for (int32_t i = count ? 0 : -1; i >= 0; i = scratch->symbols[i].next) {
    MLX_TRY(mlx_ids_append(ids, scratch->symbols[i].id));
  }
  return NULL;
}

void mlx_bpe_scratch_free(mlx_bpe_scratch_t *scratch) {
  mlx_free(scratch->symbols);
  mlx_free(scratch->heap);
  mlx_free(scratch->spelled);
  *scratch = (mlx_bpe_scratch_t){0};
}
