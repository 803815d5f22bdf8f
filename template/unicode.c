// Classification and case of characters, from tables that Python itself generated
// (tests/parity/template_tables.py).
#include "template/unicode.h"

typedef struct case_range {
  uint32_t first, last, step;
  int32_t delta;
} case_range_t;

typedef struct case_special {
  uint32_t character;
  const char *text;
} case_special_t;

#include "template/unicode_tables.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define IN_TABLE(table, character) is_in_ranges(table, COUNT(table), character)

// ----------------------------------------------------------------------------------------------------------
// Characters

uint32_t mlx_codepoint_decode(const char *bytes, size_t *out_length) {
  const unsigned char *b = (const unsigned char *)bytes;
  if (b[0] < 0x80) {
    *out_length = 1;
    return b[0];
  }
  const size_t length = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
  uint32_t character = b[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) character = character << 6 | (b[i] & 0x3fu);
  *out_length = length;
  return character;
}

size_t mlx_span_characters(mlx_span_t span) {
  size_t count = 0;
  for (size_t i = 0; i < span.length; ++i) count += ((unsigned char)span.bytes[i] & 0xc0) != 0x80;
  return count;
}

static bool is_in_ranges(const uint32_t (*table)[2], size_t count, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > table[middle][1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && character >= table[low][0];
}

bool mlx_codepoint_is_space(uint32_t character) { return IN_TABLE(spaces, character); }

bool mlx_codepoint_is_printable(uint32_t character) { return !IN_TABLE(unprintable, character); }

bool mlx_codepoint_is_alpha(uint32_t c) { return IN_TABLE(alphas, c); }

bool mlx_codepoint_is_decimal(uint32_t c) { return IN_TABLE(decimals, c); }

bool mlx_codepoint_is_digit(uint32_t c) { return IN_TABLE(digits, c); }

bool mlx_codepoint_is_numeric(uint32_t c) { return IN_TABLE(numerics, c); }

bool mlx_codepoint_is_cased(uint32_t c) { return IN_TABLE(cased, c); }

// ----------------------------------------------------------------------------------------------------------
// Case

static void write_case(mlx_sink_t *sink, uint32_t character, const case_range_t *ranges, size_t range_count,
                       const case_special_t *special, size_t special_count) {
  for (size_t i = 0; character >= 0x80 && i < special_count; ++i) {
    if (special[i].character != character) continue;
    mlx_sink_puts(sink, special[i].text);
    return;
  }
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > ranges[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const case_range_t *range = &ranges[low < range_count ? low : 0];
  const bool inside =
      character >= range->first && character <= range->last && (character - range->first) % range->step == 0;
  mlx_sink_character(sink, inside ? (uint32_t)((int32_t)character + range->delta) : character);
}

#define WRITE_CASE(sink, character, table) \
  write_case(sink, character, table##_ranges, COUNT(table##_ranges), table##_special, COUNT(table##_special))

// The rule of the final sigma: whether a cased letter comes before |at|, with only case-ignorable characters
// between.
static bool cased_before(mlx_span_t text, size_t at) {
  while (at > 0) {
    size_t length;
    do --at;
    while (at && ((unsigned char)text.bytes[at] & 0xc0) == 0x80);
    const uint32_t c = mlx_codepoint_decode(text.bytes + at, &length);
    if (IN_TABLE(cased, c)) return true;
    if (!IN_TABLE(case_ignorable, c)) return false;
  }
  return false;
}

// The same after |at|.
static bool cased_after(mlx_span_t text, size_t at) {
  for (size_t length; at < text.length; at += length) {
    const uint32_t c = mlx_codepoint_decode(text.bytes + at, &length);
    if (IN_TABLE(case_ignorable, c)) continue;
    return IN_TABLE(cased, c);
  }
  return false;
}

static void write_lower(mlx_sink_t *sink, mlx_span_t text, size_t at, uint32_t c, size_t length) {
  if (c != 0x3a3) {
    WRITE_CASE(sink, c, lower);
  } else {  // a capital sigma becomes a final sigma at the end of a word
    mlx_sink_character(sink, cased_before(text, at) && !cased_after(text, at + length) ? 0x3c2 : 0x3c3);
  }
}

void mlx_sink_case(mlx_sink_t *sink, mlx_span_t text, mlx_letter_case_t letter_case) {
  bool in_word = false;
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_codepoint_decode(text.bytes + at, &length);
    const bool lower = letter_case == MLX_LOWER || (letter_case == MLX_CAPITALIZE && at) ||
                       (letter_case == MLX_TITLE && in_word);
    if (lower) {
      write_lower(sink, text, at, c, length);
    } else if (letter_case == MLX_UPPER) {
      WRITE_CASE(sink, c, upper);
    } else {
      WRITE_CASE(sink, c, title);
    }
    in_word = IN_TABLE(cased, c);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Stripping

static bool is_stripped(mlx_span_t character, const mlx_span_t *characters) {
  size_t length;
  if (!characters) return mlx_codepoint_is_space(mlx_codepoint_decode(character.bytes, &length));
  return memmem(characters->bytes, characters->length, character.bytes, character.length) != NULL;
}

mlx_span_t mlx_span_strip(mlx_span_t text, const mlx_span_t *characters, bool left, bool right) {
  while (left && text.length) {
    size_t length;
    mlx_codepoint_decode(text.bytes, &length);
    if (!is_stripped((mlx_span_t){text.bytes, length}, characters)) break;
    text.bytes += length;
    text.length -= length;
  }
  while (right && text.length) {
    size_t start = text.length - 1;
    while (((unsigned char)text.bytes[start] & 0xc0) == 0x80) --start;
    if (!is_stripped((mlx_span_t){text.bytes + start, text.length - start}, characters)) break;
    text.length = start;
  }
  return text;
}
