// The Precompiled normalizer. A map is a trie over bytes, stored as a double array, and one text with all
// replacements, each ended by a NUL.
//
// It runs over grapheme clusters, as Hugging Face does. A grapheme of fewer than six bytes is looked up as a
// whole: the replacement of its shortest prefix in the map stands for all of it. Otherwise each of its
// characters is looked up by itself. The prefix rule sometimes loses combining marks, in both programs.
#include "tokenizer/charsmap.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/unicode.h"

#define MAX_WHOLE 6  // bytes; a grapheme of this length or more is looked up by its characters

struct mlx_charsmap {
  uint32_t *units;  // the double array
  size_t unit_count;
  char *texts;  // the replacements; valid UTF-8
  size_t text_length;
};

// ----------------------------------------------------------------------------------------------------------
// Grapheme clusters (Unicode annex 29)

typedef enum grapheme_class {
  GRAPHEME_ANY,
  GRAPHEME_CR,
  GRAPHEME_LF,
  GRAPHEME_CONTROL,
  GRAPHEME_EXTEND,
  GRAPHEME_LINKER,  // an Extend that joins Indic consonants
  GRAPHEME_ZWJ,
  GRAPHEME_SPACINGMARK,
  GRAPHEME_PREPEND,
  GRAPHEME_CONSONANT,
  GRAPHEME_EXTENDED_PICTOGRAPHIC,
  GRAPHEME_REGIONAL_INDICATOR,
  GRAPHEME_L,
  GRAPHEME_V,
  GRAPHEME_T,
  GRAPHEME_LV,
  GRAPHEME_LVT,
} grapheme_class_t;

typedef struct grapheme_range {
  uint32_t first, last;
  grapheme_class_t class;
} grapheme_range_t;

#include "tokenizer/grapheme_table.h"

static grapheme_class_t class_of(uint32_t character) {
  size_t low = 0, high = sizeof grapheme_ranges / sizeof *grapheme_ranges, count = high;
  if (character >= 0x20 && character < 0x7f) return GRAPHEME_ANY;
  if (character >= 0xac00 && character < 0xac00 + 11172) {
    return (character - 0xac00) % 28 ? GRAPHEME_LVT : GRAPHEME_LV;
  }
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > grapheme_ranges[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && character >= grapheme_ranges[low].first ? grapheme_ranges[low].class : GRAPHEME_ANY;
}

// The preceding characters, as far back as the rules look.
typedef struct grapheme_state {
  grapheme_class_t last;
  int flags;     // consecutive regional indicators, modulo 2
  int emoji;     // 1: after a pictograph and its extenders; 2: after those and a joiner (ZWJ)
  int conjunct;  // 1: after an Indic consonant and its extenders; 2: a linker is among them
} grapheme_state_t;

static bool is_control(grapheme_class_t class) {
  return class == GRAPHEME_CR || class == GRAPHEME_LF || class == GRAPHEME_CONTROL;
}

// True if |next| continues the grapheme. GBn is the number of the rule.
static bool continues_grapheme(const grapheme_state_t *state, grapheme_class_t next) {
  grapheme_class_t last = state->last;
  if (last == GRAPHEME_CR && next == GRAPHEME_LF) return true;  // GB3
  if (is_control(last) || is_control(next)) return false;       // GB4, GB5
  switch (next) {
    case GRAPHEME_L:
    case GRAPHEME_LV:
    case GRAPHEME_LVT: return last == GRAPHEME_L || last == GRAPHEME_PREPEND;  // GB6
    case GRAPHEME_V:
      if (last == GRAPHEME_L || last == GRAPHEME_LV || last == GRAPHEME_V) return true;  // GB6, GB7
      break;
    case GRAPHEME_T:
      if (last == GRAPHEME_LV || last == GRAPHEME_V || last == GRAPHEME_LVT || last == GRAPHEME_T)
        return true;  // GB7, GB8
      break;
    case GRAPHEME_EXTEND:
    case GRAPHEME_LINKER:
    case GRAPHEME_ZWJ:
    case GRAPHEME_SPACINGMARK: return true;  // GB9, GB9a
    case GRAPHEME_CONSONANT:
      if (state->conjunct == 2) return true;  // GB9c
      break;
    case GRAPHEME_EXTENDED_PICTOGRAPHIC:
      if (state->emoji == 2) return true;  // GB11
      break;
    case GRAPHEME_REGIONAL_INDICATOR:
      if (state->flags % 2) return true;  // GB12, GB13
      break;
    default: break;
  }
  return last == GRAPHEME_PREPEND;  // GB9b
}

static void advance(grapheme_state_t *state, uint32_t character, grapheme_class_t class) {
  bool extends = class == GRAPHEME_EXTEND || class == GRAPHEME_LINKER;
  state->last = class;
  state->flags = class == GRAPHEME_REGIONAL_INDICATOR ? !(state->flags % 2) : 0;
  if (class == GRAPHEME_EXTENDED_PICTOGRAPHIC) {
    state->emoji = 1;
  } else if (class == GRAPHEME_ZWJ) {
    state->emoji = state->emoji == 1 ? 2 : 0;
  } else if (!extends || state->emoji == 2) {
    state->emoji = 0;
  }
  if (class == GRAPHEME_CONSONANT) {
    state->conjunct = 1;
  } else if (class == GRAPHEME_LINKER) {
    state->conjunct = state->conjunct ? 2 : 0;
  } else if (!(class == GRAPHEME_ZWJ || (extends && character != 0x200c))) {
    state->conjunct = 0;
  }
}

// The length of the grapheme at |text|.
static size_t grapheme_length(const char *text, size_t length, grapheme_state_t *state) {
  size_t size, at = 0;
  do {
    uint32_t character = mlx_character_at(text + at, &size);
    grapheme_class_t class = class_of(character);
    if (at && !continues_grapheme(state, class)) break;
    advance(state, character, class);
    at += size;
  } while (at < length);
  return at;
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static mlx_status_t decode_base64(const char *text, size_t length, uint8_t **out_bytes, size_t *out_length) {
  uint8_t *bytes;
  size_t count = 0,
         padding = length && text[length - 1] == '=' ? 1 + (length > 1 && text[length - 2] == '=') : 0;
  uint32_t bits = 0;
  *out_bytes = NULL;
  if (length % 4) return mlx_error(MLX_INVALID_INPUT, "not valid base64");
  MLX_TRY(mlx_alloc(length / 4 * 3, 1, &bytes));
  for (size_t i = 0; i < length - padding; ++i) {
    int value = base64_value(text[i]);
    if (value < 0) {
      mlx_free(bytes);
      return mlx_error(MLX_INVALID_INPUT, "not valid base64");
    }
    bits = bits << 6 | (uint32_t)value;
    if (i % 4) bytes[count++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
  }
  *out_bytes = bytes;
  *out_length = count;
  return NULL;
}

static uint32_t little_endian(const uint8_t *bytes) {
  return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

// The layout is the size of the array in bytes, the array, and the texts.
static mlx_status_t read_map(const uint8_t *bytes, size_t length, mlx_charsmap_t *charsmap) {
  size_t size = length >= 4 ? little_endian(bytes) / 4 * 4 : 0;
  if (length < 4 || size > length - 4 || !size)
    return mlx_error(MLX_INVALID_INPUT, "the character map is shorter than its array");
  charsmap->unit_count = size / 4;
  charsmap->text_length = length - 4 - size;
  if (!mlx_utf8_is_valid((const char *)bytes + 4 + size, charsmap->text_length)) {
    return mlx_error(MLX_INVALID_INPUT, "the replacements of the character map are not UTF-8");
  }
  MLX_TRY(mlx_copy_text((const char *)bytes + 4 + size, charsmap->text_length, &charsmap->texts));
  MLX_TRY(mlx_alloc(charsmap->unit_count, sizeof *charsmap->units, &charsmap->units));
  for (size_t i = 0; i < charsmap->unit_count; ++i) charsmap->units[i] = little_endian(bytes + 4 + 4 * i);
  return NULL;
}

mlx_status_t mlx_charsmap_create(const char *base64, size_t length, mlx_charsmap_t **out_charsmap) {
  uint8_t *bytes;
  size_t count;
  mlx_charsmap_t *charsmap = NULL;
  *out_charsmap = NULL;
  MLX_TRY(decode_base64(base64, length, &bytes, &count));
  mlx_status_t status = mlx_alloc(1, sizeof *charsmap, &charsmap);
  if (!status) status = read_map(bytes, count, charsmap);
  mlx_free(bytes);
  if (status) {
    mlx_charsmap_free(charsmap);
    return status;
  }
  *out_charsmap = charsmap;
  return NULL;
}

void mlx_charsmap_free(mlx_charsmap_t *charsmap) {
  if (!charsmap) return;
  mlx_free(charsmap->units);
  mlx_free(charsmap->texts);
  mlx_free(charsmap);
}

// ----------------------------------------------------------------------------------------------------------
// Running

// The offset of a unit's children.
static size_t unit_offset(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

// The value of the shortest prefix of |text| in the trie, or -1. An offset outside the array gives -1.
static int64_t shortest_match(const mlx_charsmap_t *charsmap, const char *text, size_t length) {
  size_t at = unit_offset(charsmap->units[0]);
  for (size_t i = 0; i < length && text[i]; ++i) {
    at ^= (uint8_t)text[i];
    if (at >= charsmap->unit_count) return -1;
    uint32_t unit = charsmap->units[at];
    if ((unit & (1u << 31 | 0xff)) != (uint8_t)text[i]) return -1;
    at ^= unit_offset(unit);
    if (unit >> 8 & 1) return at < charsmap->unit_count ? (int64_t)(charsmap->units[at] & 0x7fffffff) : -1;
  }
  return -1;
}

// The replacement of |text|, or NULL.
static const char *find_replacement(const mlx_charsmap_t *charsmap, const char *text, size_t length,
                                    size_t *out_length) {
  int64_t start = shortest_match(charsmap, text, length);
  if (start < 0 || (size_t)start > charsmap->text_length) return NULL;
  const char *found = charsmap->texts + start;
  if (((uint8_t)found[0] & 0xc0) == 0x80) return NULL;  // inside a character: a corrupt map
  *out_length = strnlen(found, charsmap->text_length - (size_t)start);
  return found;
}

void mlx_charsmap_run(const mlx_charsmap_t *charsmap, const char *text, size_t length, size_t max,
                      mlx_text_t *out) {
  grapheme_state_t state = {0};
  for (size_t at = 0, grapheme, found_length; at < length && out->length <= max; at += grapheme) {
    grapheme = grapheme_length(text + at, length - at, &state);
    const char *found =
        grapheme < MAX_WHOLE ? find_replacement(charsmap, text + at, grapheme, &found_length) : NULL;
    if (found) mlx_text_append(out, found, found_length);
    for (size_t i = at, size; !found && i < at + grapheme && out->length <= max; i += size) {
      mlx_character_at(text + i, &size);
      const char *single = find_replacement(charsmap, text + i, size, &found_length);
      mlx_text_append(out, single ? single : text + i, single ? found_length : size);
    }
  }
}
