// Finds and removes marks.
#include "tokenizer/plain_marks.h"

#include <string.h>

#include "base/memory.h"

// No filter of a template changes it: it has no letters, no spaces and no characters that JSON or HTML
// escape. Its first character is not in the rest, so that it cannot overlap with itself.
static const char mark[] = "_719305826641738";
#define MARK_LENGTH (sizeof mark - 1)

void mlx_plain_marks_put(mlx_text_t *out) { mlx_text_append(out, mark, MARK_LENGTH); }

// The next mark at or after |at|; NULL if there is none.
static const char *find(const char *at, const char *end) {
  while ((size_t)(end - at) >= MARK_LENGTH) {
    at = memchr(at, mark[0], (size_t)(end - at) - MARK_LENGTH + 1);
    if (!at || !memcmp(at, mark, MARK_LENGTH)) return at;
    ++at;
  }
  return NULL;
}

mlx_status_t mlx_plain_marks_remove(const char **inout_text, size_t *inout_length, mlx_plain_marks_t *out) {
  const char *at = *inout_text, *end = at + *inout_length;
  for (const char *found; (found = find(at, end)); at = found + MARK_LENGTH) {
    mlx_text_append(&out->text, at, (size_t)(found - at));
    MLX_TRY(mlx_reserve(out->count + 1, sizeof *out->offsets, &out->capacity, &out->offsets));
    out->offsets[out->count++] = out->text.length;
  }
  if (!out->count) return NULL;
  mlx_text_append(&out->text, at, (size_t)(end - at));
  MLX_TRY(mlx_text_finish(&out->text));
  *inout_text = out->text.data;
  *inout_length = out->text.length;
  return NULL;
}

bool mlx_plain_marks_has(const mlx_plain_marks_t *marks, size_t offset, size_t length) {
  size_t low = 0, high = marks->count;  // the first mark at or after |offset|
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (marks->offsets[middle] < offset)
      low = middle + 1;
    else
      high = middle;
  }
  return low < marks->count && marks->offsets[low] - offset < length;
}

void mlx_plain_marks_clear(mlx_plain_marks_t *marks) {
  mlx_free(marks->offsets);
  mlx_text_clear(&marks->text);
  *marks = (mlx_plain_marks_t){0};
}
