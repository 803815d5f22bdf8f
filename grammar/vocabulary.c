// Builds the trie from the sorted pieces: each piece adds the nodes after the bytes it shares with the
// previous one.
#include "grammar/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

typedef struct piece {
  const char *bytes;
  uint32_t length;
  int32_t id;
} piece_t;

typedef struct pieces {
  mlx_text_t bytes;
  size_t *starts;   // [size + 1] into bytes
  piece_t *sorted;  // the tokens that have text
  size_t count;
} pieces_t;

static int compare_pieces(const void *a, const void *b) {
  const piece_t *x = a, *y = b;
  const int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
  if (order) return order;
  return x->length != y->length ? (x->length < y->length ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static mlx_status_t collect_pieces(const mlx_tokenizer_t *tokenizer, size_t size, bool first, pieces_t *p) {
  MLX_TRY(mlx_alloc(size + 1, sizeof *p->starts, &p->starts));
  MLX_TRY(mlx_alloc(size, sizeof *p->sorted, &p->sorted));
  for (size_t i = 0; i < size; ++i) {
    p->starts[i] = p->bytes.length;
    mlx_tokenizer_piece(tokenizer, (int32_t)i, first, true, &p->bytes);
  }
  p->starts[size] = p->bytes.length;
  MLX_TRY(mlx_text_finish(&p->bytes));
  for (size_t i = 0; i < size; ++i) {
    const size_t length = p->starts[i + 1] - p->starts[i];
    if (length && length <= MLX_LONGEST_PIECE) {
      p->sorted[p->count++] = (piece_t){p->bytes.data + p->starts[i], (uint32_t)length, (int32_t)i};
    }
  }
  qsort(p->sorted, p->count, sizeof *p->sorted, compare_pieces);
  return NULL;
}

static uint32_t shared_bytes(const piece_t *a, const piece_t *b) {
  uint32_t n = 0;
  while (n < a->length && n < b->length && a->bytes[n] == b->bytes[n]) ++n;
  return n;
}

static mlx_status_t build(const pieces_t *p, mlx_vocabulary_t *v) {
  MLX_TRY(mlx_alloc(v->size, sizeof *v->same, &v->same));
  for (size_t i = 0; i < v->size; ++i) v->same[i] = -1;
  MLX_TRY(mlx_alloc(p->bytes.length, sizeof *v->nodes, &v->nodes));  // at most one node for each byte
  uint32_t open[MLX_LONGEST_PIECE];  // the nodes along the path to the last piece
  uint32_t depth = 0;
  for (size_t i = 0; i < p->count; ++i) {
    const piece_t *piece = &p->sorted[i];
    const uint32_t shared = i ? shared_bytes(piece - 1, piece) : 0;
    while (depth > shared) v->nodes[open[--depth]].skip = (uint32_t)v->count;
    for (; depth < piece->length; ++depth) {
      open[depth] = (uint32_t)v->count;
      v->nodes[v->count++] = (mlx_vocabulary_node_t){
          .token = -1, .depth = (uint16_t)depth, .byte = (uint8_t)piece->bytes[depth]};
    }
    v->same[piece->id] = v->nodes[open[depth - 1]].token;
    v->nodes[open[depth - 1]].token = piece->id;
    if (piece->length > v->longest) v->longest = piece->length;
  }
  while (depth) v->nodes[open[--depth]].skip = (uint32_t)v->count;
  return v->count ? mlx_resize(v->count, sizeof *v->nodes, &v->nodes) : NULL;
}

mlx_status_t mlx_vocabulary_create(const mlx_tokenizer_t *tokenizer, size_t size, bool first,
                                   mlx_vocabulary_t **out) {
  *out = NULL;
  mlx_vocabulary_t *v;
  MLX_TRY(mlx_alloc(1, sizeof *v, &v));
  v->size = size;
  pieces_t pieces = {0};
  mlx_status_t status = collect_pieces(tokenizer, size, first, &pieces);
  if (!status) status = build(&pieces, v);
  mlx_text_clear(&pieces.bytes);
  mlx_free(pieces.starts);
  mlx_free(pieces.sorted);
  if (status) {
    mlx_vocabulary_free(v);
    return status;
  }
  *out = v;
  return NULL;
}

void mlx_vocabulary_free(mlx_vocabulary_t *v) {
  if (!v) return;
  mlx_free(v->nodes);
  mlx_free(v->same);
  mlx_free(v);
}
