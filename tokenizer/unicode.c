// Characters: UTF-8, the classes and the lower case that normalizers and pre-tokenizers ask for, and the four
// normal forms.
//
// All of it is what Hugging Face's package does, whose tables are of several Unicode versions and older than
// today's: a character that is newer than them is left as it is, here as there.
// tests/parity/unicode_tables.py reads them off the package.
//
// Normalizing streams: only the marks after one character wait, so memory is bounded by the longest run of
// them.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/internal.h"

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

bool mlx_is_mark(uint32_t character) { return character >= 0x300 && IN_RANGES(mark_ranges, character); }
bool mlx_is_nonspacing(uint32_t character) {
  return character >= 0x300 && IN_RANGES(nonspacing_ranges, character);
}
bool mlx_is_control(uint32_t character) { return IN_RANGES(control_ranges, character); }
bool mlx_is_punctuation(uint32_t character) { return IN_RANGES(punctuation_ranges, character); }

bool mlx_is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void mlx_append_lower(mlx_text_t *out, uint32_t character) {
  const size_t count = sizeof lower_ranges / sizeof *lower_ranges;
  size_t low = 0, high = count;
  if (character == 0x130) {  // the only one that becomes two
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
  const char *parts;  // into the table's text
  size_t length;      // of parts, bytes
} entry_t;

typedef struct composition {
  uint64_t pair;
  uint32_t character;
} composition_t;

static entry_t canonical[CANONICAL_COUNT], compatible[COMPATIBLE_COUNT];  // by character
static composition_t compositions[COMPOSITION_COUNT];                     // by pair
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static int compare_compositions(const void *a, const void *b) {
  uint64_t left = ((const composition_t *)a)->pair, right = ((const composition_t *)b)->pair;
  return left < right ? -1 : left > right;
}

static bool begins_entry(char byte) { return byte == '+' || byte == '-' || byte == '\t'; }

// Finds where the entries of a table's text begin. In canonical_text no part is a '+' or '-', in
// compatible_text none a tab.
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
    size_t own_length = mlx_character_write(canonical[i].character, (char[4]){0});
    if (canonical[i].parts[-(ptrdiff_t)own_length - 1] != '+') continue;
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

enum {
  S_BASE = 0xac00,
  L_BASE = 0x1100,
  V_BASE = 0x1161,
  T_BASE = 0x11a7,
  L_COUNT = 19,
  V_COUNT = 21,
  T_COUNT = 28
};

// What the two become together, or 0.
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

#define CLASS_SHIFT 24  // a mark that waits is its class and, below, the character
#define CHARACTER_MASK 0xffffffu

typedef struct normalizing {
  bool compatible, composes;
  uint32_t starter;  // waits for marks that may join it; 0: none yet
  mlx_marks_t *marks;
  mlx_text_t *out;
} normalizing_t;

// Sorts by class and keeps the order of equals: by insertion, or by counting where many marks follow each
// other.
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

// The marks that wait are all there are for this starter: puts them in order and lets those join that can.
static mlx_status_t settle(normalizing_t *state) {
  mlx_marks_t *marks = state->marks;
  MLX_TRY(sort_marks(marks));
  if (!state->composes || !state->starter) return NULL;
  size_t kept = 0;
  uint32_t last_class = 0;
  for (size_t i = 0; i < marks->count; ++i) {
    uint32_t mark_class = marks->items[i] >> CLASS_SHIFT;
    uint32_t joined = last_class < mark_class ? compose(state->starter, marks->items[i] & CHARACTER_MASK) : 0;
    if (joined) {
      state->starter = joined;
    } else {
      marks->items[kept++] = marks->items[i];
      last_class = mark_class;
    }
  }
  marks->count = kept;
  return NULL;
}

static void give_out(normalizing_t *state) {
  if (state->starter) mlx_character_append(state->out, state->starter);
  for (size_t i = 0; i < state->marks->count; ++i) {
    mlx_character_append(state->out, state->marks->items[i] & CHARACTER_MASK);
  }
  state->marks->count = 0;
  state->starter = 0;
}

// Takes one character that does not decompose.
static mlx_status_t take(normalizing_t *state, uint32_t character) {
  uint8_t mark_class = combining_class(character);
  mlx_marks_t *marks = state->marks;
  if (mark_class) {
    MLX_TRY(mlx_reserve(marks->count + 1, sizeof *marks->items, &marks->capacity, &marks->items));
    marks->items[marks->count++] = (uint32_t)mark_class << CLASS_SHIFT | character;
    return NULL;
  }
  if (marks->count) MLX_TRY(settle(state));
  uint32_t joined =
      state->composes && state->starter && !marks->count ? compose(state->starter, character) : 0;
  if (!joined) give_out(state);
  state->starter = joined ? joined : character;
  if (!character) {  // NUL cannot wait: 0 says that nothing does
    mlx_text_append(state->out, "", 1);
  }
  return NULL;
}

static mlx_status_t decompose(normalizing_t *state, uint32_t character) {
  if (character < 0x80) return take(state, character);
  if (character >= S_BASE && character < S_BASE + L_COUNT * V_COUNT * T_COUNT) {
    uint32_t index = character - S_BASE;
    MLX_TRY(take(state, L_BASE + index / (V_COUNT * T_COUNT)));
    MLX_TRY(take(state, V_BASE + index / T_COUNT % V_COUNT));
    return index % T_COUNT ? take(state, T_BASE + index % T_COUNT) : NULL;
  }
  const entry_t *entry = state->compatible ? find_entry(compatible, COMPATIBLE_COUNT, character) : NULL;
  bool whole = entry != NULL;  // what compatible_text has does not decompose further
  if (!entry) entry = find_entry(canonical, CANONICAL_COUNT, character);
  if (!entry) return take(state, character);
  for (size_t i = 0, length; i < entry->length; i += length) {
    uint32_t part = mlx_character_at(entry->parts + i, &length);
    MLX_TRY(whole ? take(state, part) : decompose(state, part));
  }
  return NULL;
}

mlx_status_t mlx_normal_form(mlx_normal_form_t form, const char *text, size_t length, mlx_marks_t *marks,
                             mlx_text_t *out) {
  normalizing_t state = {.compatible = form == MLX_NFKC || form == MLX_NFKD,
                         .composes = form == MLX_NFC || form == MLX_NFKC,
                         .marks = marks,
                         .out = out};
  pthread_once(&tables_once, index_tables);
  marks->count = 0;
  for (size_t i = 0, step; i < length; i += step)
    MLX_TRY(decompose(&state, mlx_character_at(text + i, &step)));
  MLX_TRY(settle(&state));
  give_out(&state);
  return NULL;
}
