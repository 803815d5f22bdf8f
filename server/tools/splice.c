// Tokenizes the text between the spans, and checks that the result has the same text.
#include "server/tools/splice.h"

#include <string.h>

#include "base/memory.h"
#include "runtime/rooms.h"

typedef struct list {
  int32_t *ids;
  size_t count, capacity;
} list_t;

static mlx_status_t append(list_t *list, const int32_t *ids, size_t count) {
  MLX_TRY(mlx_reserve(list->count + count, sizeof *ids, &list->capacity, &list->ids));
  if (count) memcpy(list->ids + list->count, ids, count * sizeof *ids);
  list->count += count;
  return NULL;
}

static mlx_status_t append_text(const mlx_engine_t *engine, const char *text, size_t length, list_t *list) {
  int32_t *ids;
  size_t count;
  if (!length) return NULL;
  MLX_TRY(mlx_engine_tokenize_chat(engine, text, length, &ids, &count));
  mlx_status_t status = append(list, ids, count);
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t join(const mlx_engine_t *engine, const char *text, size_t length,
                         const mlx_answer_spans_t *spans, list_t *list) {
  size_t at = 0;
  for (size_t i = 0; i < spans->count; ++i) {
    const mlx_answer_span_t *span = &spans->items[i];
    if (span->at < at || span->at > length || span->length > length - span->at)
      return mlx_error(MLX_INTERNAL, "a remembered answer is not part of its prompt");
    MLX_TRY(append_text(engine, text + at, span->at - at, list));
    MLX_TRY(append(list, span->tokens, span->token_count));
    at = span->at + span->length;
  }
  return append_text(engine, text + at, length - at, list);
}

// True if both lists of tokens are the same text. Tokens that were cut by a stop string, special tokens that
// are no part of the text, and a tokenizer that adds a space to a text's beginning make them differ.
static mlx_status_t has_same_text(const mlx_engine_t *engine, const list_t *a, const int32_t *ids,
                                  size_t count, bool *out_same) {
  char *left, *right;
  size_t left_length, right_length;
  MLX_TRY(mlx_engine_detokenize(engine, a->ids, a->count, true, &left, &left_length));
  mlx_status_t status = mlx_engine_detokenize(engine, ids, count, true, &right, &right_length);
  if (!status) {
    *out_same = left_length == right_length && !memcmp(left, right, left_length);
    mlx_free(right);
  }
  mlx_free(left);
  return status;
}

mlx_status_t mlx_splice_tokenize(const mlx_engine_t *engine, const char *text, size_t length,
                                 const mlx_answer_spans_t *spans, size_t limit, int32_t **out_ids,
                                 size_t *out_count) {
  list_t list = {0};
  bool same = false;
  MLX_TRY(mlx_engine_tokenize_within(engine, text, length, true, limit, out_ids, out_count));
  if (!spans->count || *out_count > limit) return NULL;
  mlx_status_t status = join(engine, text, length, spans, &list);
  if (!status) status = has_same_text(engine, &list, *out_ids, *out_count, &same);
  if (status || !same) {
    mlx_free(list.ids);
    if (status) mlx_engine_free_ids(*out_ids);
    return status;
  }
  mlx_engine_free_ids(*out_ids);
  *out_ids = list.ids;
  *out_count = list.count;
  return NULL;
}
