// The four normal forms, by the tables of Hugging Face's package: Unicode 9.0. A character newer than a table
// is left unchanged, as the package does.
//
// Normalizing streams: only the combining marks after one character are buffered. So memory is bounded by the
// longest run of marks.
#include "unicode/normal_form.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "unicode/tables.h"
#include "unicode/utf8.h"

static uint8_t combining_class(uint32_t character) {
  return character < 0x300 ? 0 : (uint8_t)mlx_range_value(&mlx_combining_classes, character);
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

static uint64_t pair_of(uint32_t first, uint32_t second) { return (uint64_t)first << 32 | second; }

static entry_t canonical[MLX_CANONICAL_COUNT], compatible[MLX_COMPATIBLE_COUNT];  // sorted by character
static composition_t compositions[MLX_COMPOSITION_COUNT];                         // sorted by pair
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
  index_entries(mlx_canonical_text, mlx_canonical_length, false, canonical, MLX_CANONICAL_COUNT);
  index_entries(mlx_compatible_text, mlx_compatible_length, true, compatible, MLX_COMPATIBLE_COUNT);
  for (size_t i = 0; i < MLX_CANONICAL_COUNT && count < MLX_COMPOSITION_COUNT; ++i) {
    size_t length = mlx_character_write(canonical[i].character, (char[4]){0});
    if (canonical[i].parts[-(ptrdiff_t)length - 1] != '+') continue;
    uint32_t first = mlx_character_at(canonical[i].parts, &first_length);
    uint32_t second = mlx_character_at(canonical[i].parts + first_length, &second_length);
    compositions[count++] =
        (composition_t){.pair = pair_of(first, second), .character = canonical[i].character};
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
  composition_t key = {.pair = pair_of(first, second)};
  const composition_t *found =
      bsearch(&key, compositions, MLX_COMPOSITION_COUNT, sizeof *compositions, compare_compositions);
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
  const entry_t *entry = state->compatible ? find_entry(compatible, MLX_COMPATIBLE_COUNT, character) : NULL;
  bool whole = entry != NULL;  // compatible_text holds full decompositions
  if (!entry) entry = find_entry(canonical, MLX_CANONICAL_COUNT, character);
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
