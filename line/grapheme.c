// Graphemes by the rules of UAX #29: what a reader sees as one character can be several code points, such as
// a letter with its accents, a flag, or an emoji of a family. Without rule GB9c, for Indic conjuncts.
#include <string.h>

#include "line/line.h"

typedef enum grapheme_class {
  OTHER,
  CONTROL,
  EXTEND,
  ZWJ,  // zero width joiner
  SPACINGMARK,
  PREPEND,
  REGIONAL_INDICATOR,  // half a flag
  L,                   // the parts of a Hangul syllable
  V,
  T,
  LV,
  LVT,
  PICTOGRAPHIC,
} grapheme_class_t;

#include "line/grapheme_table.h"

static grapheme_class_t class_of(uint32_t code) {
  if (code < 0x20 || code == 0x7f) return CONTROL;
  if (code < 0x80) return OTHER;
  if (code >= 0xac00 && code <= 0xd7a3) return (code - 0xac00) % 28 ? LVT : LV;
  size_t low = 0, high = sizeof classes / sizeof *classes;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (code > classes[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < sizeof classes / sizeof *classes && code >= classes[low].first ? classes[low].kind : OTHER;
}

uint32_t mlx_char_code(const char *text, size_t length, size_t *out_size) {
  const int size = mlx_utf8_length(text, length);
  uint32_t code = (unsigned char)text[0];
  *out_size = size > 0 ? (size_t)size : 1;
  if (size > 1) code &= 0xffu >> (size + 1);
  for (int i = 1; i < size; ++i) code = code << 6 | ((unsigned char)text[i] & 0x3f);
  return code;
}

typedef struct state {
  grapheme_class_t last;
  bool after_emoji;  // a pictograph and any number of Extend were last, then perhaps a joiner (GB11)
  bool half_flag;    // an odd number of regional indicators was last (GB12, GB13)
} state_t;

static bool joins(const state_t *state, grapheme_class_t next) {
  const grapheme_class_t last = state->last;
  if (last == CONTROL || next == CONTROL) return false;
  if (next == EXTEND || next == ZWJ || next == SPACINGMARK || last == PREPEND) return true;
  if (last == L) return next == L || next == V || next == LV || next == LVT;
  if (last == LV || last == V) return next == V || next == T;
  if (last == LVT || last == T) return next == T;
  if (last == ZWJ && next == PICTOGRAPHIC) return state->after_emoji;
  return last == REGIONAL_INDICATOR && next == REGIONAL_INDICATOR && state->half_flag;
}

static void step(state_t *state, grapheme_class_t next) {
  state->half_flag = next == REGIONAL_INDICATOR && !(state->last == REGIONAL_INDICATOR && state->half_flag);
  state->after_emoji =
      next == PICTOGRAPHIC || (state->after_emoji && (next == EXTEND || next == ZWJ) && state->last != ZWJ);
  state->last = next;
}

size_t mlx_grapheme_end(const char *text, size_t length, size_t at) {
  size_t size;
  state_t state = {0};
  if (at >= length) return length;
  step(&state, class_of(mlx_char_code(text + at, length - at, &size)));
  for (at += size; at < length; at += size) {
    const grapheme_class_t next = class_of(mlx_char_code(text + at, length - at, &size));
    if (!joins(&state, next)) break;
    step(&state, next);
  }
  return at;
}

// Graphemes can only be found from left to right. The search starts between two ASCII characters, which are
// never joined, or at most this many bytes before |at|.
#define MAX_BACK 1024

size_t mlx_grapheme_start(const char *text, size_t length, size_t at) {
  size_t start = at, next;
  while (start > 0 && at - start < MAX_BACK) {
    --start;
    if (start > 0 && !((unsigned char)text[start] & 0x80) && !((unsigned char)text[start - 1] & 0x80)) break;
  }
  while (start > 0 && ((unsigned char)text[start] & 0xc0) == 0x80) --start;
  while ((next = mlx_grapheme_end(text, length, start)) < at) start = next;
  return start;
}
