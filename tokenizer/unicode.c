// UTF-8, character classes, lower case and the four normal forms.
//
// The tables are those of Hugging Face's package; tests/parity/unicode_tables.py generates them from it. They
// mix several Unicode versions, all older than the current one. A character newer than a table is left
// unchanged, as the package does.
//
// Normalizing streams: only the combining marks after one character are buffered. So memory is bounded by the
// longest run of marks.
#include "tokenizer/unicode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/pair_map.h"

typedef struct range {
  uint32_t first, last;
} range_t;

typedef struct class_range {
  uint32_t first, last;
  uint8_t combining_class;
} class_range_t;

typedef struct lower_range {
  uint32_t first, last, step;
  int32_t delta;
} lower_range_t;

#include "tokenizer/unicode_tables.h"

// ----------------------------------------------------------------------------------------------------------
// UTF-8

bool mlx_utf8_is_valid(const char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    int size = mlx_utf8_length(text + i, length - i);
    if (size <= 0) return false;
    i += (size_t)size;
  }
  return true;
}

uint32_t mlx_character_at(const char *text, size_t *out_length) {
  const uint8_t *s = (const uint8_t *)text;
  *out_length = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  if (s[0] < 0x80) return s[0];
  if (s[0] < 0xe0) return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
  if (s[0] < 0xf0) return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
  return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

size_t mlx_character_write(uint32_t character, char out[4]) {
  if (character < 0x80) {
    out[0] = (char)character;
    return 1;
  }
  size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
  for (size_t i = length - 1; i > 0; --i, character >>= 6) out[i] = (char)(0x80 | (character & 0x3f));
  out[0] = (char)((0xf00 >> length & 0xff) | character);
  return length;
}

void mlx_character_append(mlx_text_t *out, uint32_t character) {
  char bytes[4];
  mlx_text_append(out, bytes, mlx_character_write(character, bytes));
}

// ----------------------------------------------------------------------------------------------------------
// Classes

static bool in_ranges(const range_t *ranges, size_t count, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > ranges[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && character >= ranges[low].first;
}

#define IN_RANGES(ranges, character) in_ranges(ranges, sizeof(ranges) / sizeof *(ranges), character)

bool mlx_character_is_mark(uint32_t character) {
  return character >= 0x300 && IN_RANGES(mark_ranges, character);
}
bool mlx_character_is_nonspacing_mark(uint32_t character) {
  return character >= 0x300 && IN_RANGES(nonspacing_ranges, character);
}
bool mlx_character_is_control(uint32_t character) { return IN_RANGES(control_ranges, character); }
bool mlx_character_is_punctuation(uint32_t character) { return IN_RANGES(punctuation_ranges, character); }

bool mlx_character_is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void mlx_character_append_lower(mlx_text_t *out, uint32_t character) {
  const size_t count = sizeof lower_ranges / sizeof *lower_ranges;
  size_t low = 0, high = count;
  if (character == 0x130) {  // the only character whose lower case is two characters
    mlx_text_append(out, "i\xcc\x87", 3);
    return;
  }
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > lower_ranges[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const lower_range_t *range = &lower_ranges[low < count ? low : 0];
  bool inside =
      character >= range->first && character <= range->last && (character - range->first) % range->step == 0;
  mlx_character_append(out, inside ? (uint32_t)((int32_t)character + range->delta) : character);
}

static uint8_t combining_class(uint32_t character) {
  size_t low = 0, high = sizeof combining_classes / sizeof *combining_classes, count = high;
  if (character < 0x300) return 0;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > combining_classes[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && character >= combining_classes[low].first ? combining_classes[low].combining_class
                                                                  : 0;
}

// ----------------------------------------------------------------------------------------------------------
// Decomposing and composing

typedef struct entry {
  uint32_t character;
  const char *parts;  // the decomposition; points into the table's text
  size_t length;      // bytes of |parts|
} entry_t;

typedef struct composition {
  uint64_t pair;
  uint32_t character;
} composition_t;

static entry_t canonical[CANONICAL_COUNT], compatible[COMPATIBLE_COUNT];  // sorted by character
static composition_t compositions[COMPOSITION_COUNT];                     // sorted by pair
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static int compare_compositions(const void *a, const void *b) {
  uint64_t left = ((const composition_t *)a)->pair, right = ((const composition_t *)b)->pair;
  return left < right ? -1 : left > right;
}

static bool begins_entry(char byte) { return byte == '+' || byte == '-' || byte == '\t'; }

// Finds the entries in a table's text. No decomposition in canonical_text contains '+' or '-', and none in
// compatible_text a tab.
static void index_entries(const char *text, size_t length, bool tabs, entry_t *entries, size_t count) {
  const char *end = text + length;
  for (size_t i = 0, step; i < count && text < end; ++i) {
    entries[i].character = mlx_character_at(text + 1, &step);
    entries[i].parts = text += 1 + step;
    while (text < end && (tabs ? *text != '\t' : !begins_entry(*text))) ++text;
    entries[i].length = (size_t)(text - entries[i].parts);
  }
}

static void index_tables(void) {
  size_t count = 0, first_length, second_length;
  index_entries(canonical_text, sizeof canonical_text - 1, false, canonical, CANONICAL_COUNT);
  index_entries(compatible_text, sizeof compatible_text - 1, true, compatible, COMPATIBLE_COUNT);
  for (size_t i = 0; i < CANONICAL_COUNT && count < COMPOSITION_COUNT; ++i) {
    size_t length = mlx_character_write(canonical[i].character, (char[4]){0});
    if (canonical[i].parts[-(ptrdiff_t)length - 1] != '+') continue;
    uint32_t first = mlx_character_at(canonical[i].parts, &first_length);
    uint32_t second = mlx_character_at(canonical[i].parts + first_length, &second_length);
    compositions[count++] =
        (composition_t){.pair = mlx_pair(first, second), .character = canonical[i].character};
  }
  qsort(compositions, count, sizeof *compositions, compare_compositions);
}

static const entry_t *find_entry(const entry_t *entries, size_t count, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > entries[middle].character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && entries[low].character == character ? &entries[low] : NULL;
}

// Hangul syllables are composed by arithmetic (Unicode chapter 3.12).
enum {
  S_BASE = 0xac00,
  L_BASE = 0x1100,
  V_BASE = 0x1161,
  T_BASE = 0x11a7,
  L_COUNT = 19,
  V_COUNT = 21,
  T_COUNT = 28
};

// The composition of the two characters, or 0.
static uint32_t compose(uint32_t first, uint32_t second) {
  if (first >= L_BASE && first < L_BASE + L_COUNT && second >= V_BASE && second < V_BASE + V_COUNT) {
    return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
  }
  if (first >= S_BASE && first < S_BASE + L_COUNT * V_COUNT * T_COUNT && (first - S_BASE) % T_COUNT == 0 &&
      second > T_BASE && second < T_BASE + T_COUNT) {
    return first + (second - T_BASE);
  }
  composition_t key = {.pair = mlx_pair(first, second)};
  const composition_t *found =
      bsearch(&key, compositions, COMPOSITION_COUNT, sizeof *compositions, compare_compositions);
  return found ? found->character : 0;
}

// ----------------------------------------------------------------------------------------------------------
// Normal forms

#define CLASS_SHIFT 24  // a buffered mark is its combining class and, in the low bits, the character
#define CHARACTER_MASK 0xffffffu

typedef struct normalizer_state {
  bool compatible, composes;
  uint32_t starter;  // buffered: later marks may compose with it; 0: none yet
  mlx_marks_t *marks;
  mlx_text_t *out;
} normalizer_state_t;

// Sorts by combining class, stably: by insertion, or by counting if there are many marks.
static mlx_status_t sort_marks(mlx_marks_t *marks) {
  if (marks->count <= 32) {
    for (size_t i = 1; i < marks->count; ++i) {
      uint32_t moved = marks->items[i];
      size_t at = i;
      for (; at && marks->items[at - 1] >> CLASS_SHIFT > moved >> CLASS_SHIFT; --at)
        marks->items[at] = marks->items[at - 1];
      marks->items[at] = moved;
    }
    return NULL;
  }
  size_t starts[257] = {0};
  uint32_t *sorted;
  MLX_TRY(mlx_alloc(marks->count, sizeof *sorted, &sorted));
  for (size_t i = 0; i < marks->count; ++i) ++starts[(marks->items[i] >> CLASS_SHIFT) + 1];
  for (size_t i = 1; i < 257; ++i) starts[i] += starts[i - 1];
  for (size_t i = 0; i < marks->count; ++i)
    sorted[starts[marks->items[i] >> CLASS_SHIFT]++] = marks->items[i];
  memcpy(marks->items, sorted, marks->count * sizeof *sorted);
  mlx_free(sorted);
  return NULL;
}

// Called when all marks of the starter are buffered: sorts them, and composes them with the starter if
// possible.
static mlx_status_t compose_marks(normalizer_state_t *state) {
  mlx_marks_t *marks = state->marks;
  MLX_TRY(sort_marks(marks));
  if (!state->composes || !state->starter) return NULL;
  size_t kept = 0;
  uint32_t last_class = 0;
  for (size_t i = 0; i < marks->count; ++i) {
    uint32_t mark_class = marks->items[i] >> CLASS_SHIFT;
    uint32_t composed =
        last_class < mark_class ? compose(state->starter, marks->items[i] & CHARACTER_MASK) : 0;
    if (composed) {
      state->starter = composed;
    } else {
      marks->items[kept++] = marks->items[i];
      last_class = mark_class;
    }
  }
  marks->count = kept;
  return NULL;
}

static void flush(normalizer_state_t *state) {
  if (state->starter) mlx_character_append(state->out, state->starter);
  for (size_t i = 0; i < state->marks->count; ++i) {
    mlx_character_append(state->out, state->marks->items[i] & CHARACTER_MASK);
  }
  state->marks->count = 0;
  state->starter = 0;
}

// Adds one character that is fully decomposed.
static mlx_status_t push(normalizer_state_t *state, uint32_t character) {
  uint8_t mark_class = combining_class(character);
  mlx_marks_t *marks = state->marks;
  if (mark_class) {
    MLX_TRY(mlx_reserve(marks->count + 1, sizeof *marks->items, &marks->capacity, &marks->items));
    marks->items[marks->count++] = (uint32_t)mark_class << CLASS_SHIFT | character;
    return NULL;
  }
  if (marks->count) MLX_TRY(compose_marks(state));
  uint32_t composed =
      state->composes && state->starter && !marks->count ? compose(state->starter, character) : 0;
  if (!composed) flush(state);
  state->starter = composed ? composed : character;
  if (!character) {  // NUL is written at once: a starter of 0 means that none is buffered
    mlx_text_append(state->out, "", 1);
  }
  return NULL;
}

static mlx_status_t decompose(normalizer_state_t *state, uint32_t character) {
  if (character < 0x80) return push(state, character);
  if (character >= S_BASE && character < S_BASE + L_COUNT * V_COUNT * T_COUNT) {
    uint32_t index = character - S_BASE;
    MLX_TRY(push(state, L_BASE + index / (V_COUNT * T_COUNT)));
    MLX_TRY(push(state, V_BASE + index / T_COUNT % V_COUNT));
    return index % T_COUNT ? push(state, T_BASE + index % T_COUNT) : NULL;
  }
  const entry_t *entry = state->compatible ? find_entry(compatible, COMPATIBLE_COUNT, character) : NULL;
  bool whole = entry != NULL;  // compatible_text holds full decompositions
  if (!entry) entry = find_entry(canonical, CANONICAL_COUNT, character);
  if (!entry) return push(state, character);
  for (size_t i = 0, length; i < entry->length; i += length) {
    uint32_t part = mlx_character_at(entry->parts + i, &length);
    MLX_TRY(whole ? push(state, part) : decompose(state, part));
  }
  return NULL;
}

mlx_status_t mlx_normal_form_append(mlx_normal_form_t form, const char *text, size_t length,
                                    mlx_marks_t *marks, mlx_text_t *out) {
  normalizer_state_t state = {.compatible = form == MLX_NFKC || form == MLX_NFKD,
                              .composes = form == MLX_NFC || form == MLX_NFKC,
                              .marks = marks,
                              .out = out};
  pthread_once(&tables_once, index_tables);
  marks->count = 0;
  for (size_t i = 0, step; i < length; i += step)
    MLX_TRY(decompose(&state, mlx_character_at(text + i, &step)));
  MLX_TRY(compose_marks(&state));
  flush(&state);
  return NULL;
}
