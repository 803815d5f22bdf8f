// Character classes as rules over the bytes of UTF-8.
#include "grammar/char_class.h"

#include <stdlib.h>

#define LAST_CHARACTER 0x10ffffu

static int compare_ranges(const void *a, const void *b) {
  const mlx_char_range_t *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

typedef struct class_builder {
  mlx_grammar_t *grammar;
  uint32_t rule, name, line;
  bool has_rule;  // added with the first character of more than one byte
  mlx_byte_set_t ascii;
  bool has_ascii;
} class_builder_t;

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

// Adds a range of characters whose UTF-8 is the product of one byte range for each position.
static mlx_status_t add_product(class_builder_t *b, uint32_t first, uint32_t last) {
  uint8_t low[4], high[4];
  mlx_symbol_t symbols[4];
  const size_t count = encode(first, low);
  encode(last, high);
  if (!b->has_rule) MLX_TRY(mlx_grammar_add_rule(b->grammar, b->name, b->line, &b->rule));
  b->has_rule = true;
  for (size_t i = 0; i < count; ++i) {
    mlx_byte_set_t set = {{0}};
    put_range(&set, low[i], high[i]);
    MLX_TRY(mlx_grammar_add_set(b->grammar, &set, &symbols[i]));
  }
  return mlx_grammar_add_alternate(b->grammar, b->rule, symbols, count);
}

// Splits a range until add_product accepts every part: first where the number of bytes changes, then where
// the range of a continuation byte is not complete.
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
  return add_product(b, first, last);
}

// Leaves out the surrogates, which are not characters.
static mlx_status_t add_characters(class_builder_t *b, uint32_t first, uint32_t last) {
  if (first > last) return NULL;
  if (first < 0xd800) MLX_TRY(add_range(b, first, last < 0xd800 ? last : 0xd7ff));
  return last > 0xdfff ? add_range(b, first > 0xdfff ? first : 0xe000, last) : NULL;
}

mlx_status_t mlx_grammar_add_class(mlx_grammar_t *g, mlx_char_range_t *ranges, size_t count, bool negated,
                                   uint32_t name, uint32_t line, mlx_symbol_t *out) {
  class_builder_t b = {.grammar = g, .name = name, .line = line};
  if (count) qsort(ranges, count, sizeof *ranges, compare_ranges);
  uint32_t from = 0;  // the characters before it are done
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
  if (!b.has_rule && b.has_ascii) return mlx_grammar_add_set(g, &b.ascii, out);
  if (!b.has_rule)
    MLX_TRY(mlx_grammar_add_rule(g, name, line, &b.rule));  // matches nothing: parse.c reports it
  *out = mlx_rule_symbol(b.rule);
  if (!b.has_ascii) return NULL;
  mlx_symbol_t ascii;
  MLX_TRY(mlx_grammar_add_set(g, &b.ascii, &ascii));
  return mlx_grammar_add_alternate(g, b.rule, &ascii, 1);
}
