// Classes of characters as rules over the bytes of their UTF-8.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/internal.h"

#define LAST_CHARACTER 0x10ffffu

static int compare_ranges(const void *a, const void *b) {
  const mlx_char_range_t *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

typedef struct class_builder {
  mlx_grammar_t *grammar;
  uint32_t rule, name, line;
  bool has_rule;  // made when the first character of several bytes comes
  mlx_byte_set_t ascii;
  bool has_ascii;
} class_builder_t;

static mlx_status_t add_set(mlx_grammar_t *g, const mlx_byte_set_t *set, mlx_symbol_t *out) {
  MLX_TRY(mlx_reserve(g->set_count + 1, sizeof *g->sets, &g->set_capacity, &g->sets));
  *out = (mlx_symbol_t){MLX_SYMBOL_BYTE, (uint32_t)g->set_count & 0x3fffffff};
  g->sets[g->set_count++] = *set;
  return NULL;
}

static void put_range(mlx_byte_set_t *set, uint32_t first, uint32_t last) {
  for (uint32_t byte = first; byte <= last; ++byte) set->bits[byte / 64] |= (uint64_t)1 << byte % 64;
}

static size_t encode(uint32_t c, uint8_t *out) {
  if (c < 0x800) {
    out[0] = (uint8_t)(0xc0 | c >> 6);
    out[1] = (uint8_t)(0x80 | (c & 63));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = (uint8_t)(0xe0 | c >> 12);
    out[1] = (uint8_t)(0x80 | (c >> 6 & 63));
    out[2] = (uint8_t)(0x80 | (c & 63));
    return 3;
  }
  out[0] = (uint8_t)(0xf0 | c >> 18);
  out[1] = (uint8_t)(0x80 | (c >> 12 & 63));
  out[2] = (uint8_t)(0x80 | (c >> 6 & 63));
  out[3] = (uint8_t)(0x80 | (c & 63));
  return 4;
}

// A range whose spellings are all combinations of one range of bytes for each place.
static mlx_status_t add_spelling(class_builder_t *b, uint32_t first, uint32_t last) {
  uint8_t low[4], high[4];
  mlx_symbol_t symbols[4];
  const size_t count = encode(first, low);
  encode(last, high);
  if (!b->has_rule) MLX_TRY(mlx_grammar_add_rule(b->grammar, b->name, b->line, &b->rule));
  b->has_rule = true;
  for (size_t i = 0; i < count; ++i) {
    mlx_byte_set_t set = {{0}};
    put_range(&set, low[i], high[i]);
    MLX_TRY(add_set(b->grammar, &set, &symbols[i]));
  }
  return mlx_grammar_add_alternate(b->grammar, b->rule, symbols, count);
}

// Cuts a range until every part is such a one: where the number of bytes changes, then where a lower place is
// not whole.
static mlx_status_t add_range(class_builder_t *b, uint32_t first, uint32_t last) {
  static const uint32_t ends[] = {0x7f, 0x7ff, 0xffff};
  for (int i = 0; i < 3; ++i) {
    if (first > ends[i] || last <= ends[i]) continue;
    MLX_TRY(add_range(b, first, ends[i]));
    return add_range(b, ends[i] + 1, last);
  }
  if (last <= 0x7f) {
    put_range(&b->ascii, first, last);
    b->has_ascii = true;
    return NULL;
  }
  for (int bits = 6; bits <= 18; bits += 6) {
    const uint32_t mask = (1u << bits) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if (first & mask) {
      MLX_TRY(add_range(b, first, first | mask));
      return add_range(b, (first | mask) + 1, last);
    }
    if ((last & mask) != mask) {
      MLX_TRY(add_range(b, first, (last & ~mask) - 1));
      return add_range(b, last & ~mask, last);
    }
  }
  return add_spelling(b, first, last);
}

// Surrogates are no characters.
static mlx_status_t add_characters(class_builder_t *b, uint32_t first, uint32_t last) {
  if (first > last) return NULL;
  if (first < 0xd800) MLX_TRY(add_range(b, first, last < 0xd800 ? last : 0xd7ff));
  return last > 0xdfff ? add_range(b, first > 0xdfff ? first : 0xe000, last) : NULL;
}

mlx_status_t mlx_grammar_add_class(mlx_grammar_t *g, mlx_char_range_t *ranges, size_t count, bool negated,
                                   uint32_t name, uint32_t line, mlx_symbol_t *out) {
  class_builder_t b = {.grammar = g, .name = name, .line = line};
  if (count) qsort(ranges, count, sizeof *ranges, compare_ranges);
  uint32_t from = 0;  // everything before it is done
  for (size_t i = 0; i < count; ++i) {
    if (ranges[i].last < from) continue;
    const uint32_t first = ranges[i].first > from ? ranges[i].first : from;
    if (!negated) {
      MLX_TRY(add_characters(&b, first, ranges[i].last));
    } else if (first > from) {
      MLX_TRY(add_characters(&b, from, first - 1));
    }
    from = ranges[i].last + 1;
  }
  if (negated && from <= LAST_CHARACTER) MLX_TRY(add_characters(&b, from, LAST_CHARACTER));
  if (!b.has_rule && b.has_ascii) return add_set(g, &b.ascii, out);
  if (!b.has_rule)
    MLX_TRY(mlx_grammar_add_rule(g, name, line, &b.rule));  // nothing matches: the check says so
  *out = (mlx_symbol_t){MLX_SYMBOL_RULE, b.rule & 0x3fffffff};
  if (!b.has_ascii) return NULL;
  mlx_symbol_t ascii;
  MLX_TRY(add_set(g, &b.ascii, &ascii));
  return mlx_grammar_add_alternate(g, b.rule, &ascii, 1);
}

// Splits the classes by every set that a rule uses.
void mlx_grammar_find_classes(mlx_grammar_t *g) {
  memset(g->classes, 0, sizeof g->classes);
  g->class_count = 1;
  bool used[256] = {false};
  for (size_t i = 0; i < g->symbol_count; ++i) {
    if (g->symbols[i].kind == MLX_SYMBOL_BYTE && g->symbols[i].value < 256) used[g->symbols[i].value] = true;
  }
  for (size_t set = 0; set < g->set_count && g->class_count < 256; ++set) {
    if (set < 256 && !used[set]) continue;
    int outside[256], inside[256];  // what a class becomes for bytes out of the set and in it
    for (int i = 0; i < 256; ++i) outside[i] = inside[i] = -1;
    size_t count = 0;
    for (int byte = 0; byte < 256; ++byte) {
      int *to = mlx_byte_set_has(&g->sets[set], (uint8_t)byte) ? &inside[g->classes[byte]]
                                                               : &outside[g->classes[byte]];
      if (*to < 0) *to = (int)count++;
      g->classes[byte] = (uint8_t)*to;
    }
    g->class_count = count;
  }
  for (int byte = 255; byte >= 0; --byte) g->representative[g->classes[byte]] = (uint8_t)byte;
}
