// See characters.h.
#include "template/characters.h"

size_t mlx_span_characters(mlx_span_t span) {
  size_t count = 0;
  for (size_t i = 0; i < span.length; ++i) count += ((unsigned char)span.bytes[i] & 0xc0) != 0x80;
  return count;
}

// ----------------------------------------------------------------------------------------------------------
// Case

static void write_case(mlx_sink_t *sink, uint32_t character, const mlx_case_table_t *table) {
  uint32_t other;
  const char *text = mlx_case_find(table, character, &other);
  if (text)
    mlx_sink_puts(sink, text);
  else
    mlx_sink_character(sink, other);
}

// The rule of the final sigma: whether a cased letter comes before |at|, with only case-ignorable characters
// between.
static bool cased_before(mlx_span_t text, size_t at) {
  while (at > 0) {
    size_t length;
    do --at;
    while (at && ((unsigned char)text.bytes[at] & 0xc0) == 0x80);
    const uint32_t c = mlx_character_at(text.bytes + at, &length);
    if (mlx_codepoint_is_cased(c)) return true;
    if (!mlx_ranges_have(&mlx_python_case_ignorable, c)) return false;
  }
  return false;
}

// The same after |at|.
static bool cased_after(mlx_span_t text, size_t at) {
  for (size_t length; at < text.length; at += length) {
    const uint32_t c = mlx_character_at(text.bytes + at, &length);
    if (mlx_ranges_have(&mlx_python_case_ignorable, c)) continue;
    return mlx_codepoint_is_cased(c);
  }
  return false;
}

static void write_lower(mlx_sink_t *sink, mlx_span_t text, size_t at, uint32_t c, size_t length) {
  if (c != 0x3a3) {
    write_case(sink, c, &mlx_python_lower);
  } else {  // a capital sigma becomes a final sigma at the end of a word
    mlx_sink_character(sink, cased_before(text, at) && !cased_after(text, at + length) ? 0x3c2 : 0x3c3);
  }
}

void mlx_sink_case(mlx_sink_t *sink, mlx_span_t text, mlx_letter_case_t letter_case) {
  bool in_word = false;
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_character_at(text.bytes + at, &length);
    const bool lower = letter_case == MLX_LOWER || (letter_case == MLX_CAPITALIZE && at) ||
                       (letter_case == MLX_TITLE && in_word);
    if (lower) {
      write_lower(sink, text, at, c, length);
    } else if (letter_case == MLX_UPPER) {
      write_case(sink, c, &mlx_python_upper);
    } else {
      write_case(sink, c, &mlx_python_title);
    }
    in_word = mlx_codepoint_is_cased(c);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Stripping

static bool is_stripped(mlx_span_t character, const mlx_span_t *characters) {
  size_t length;
  if (!characters) return mlx_codepoint_is_space(mlx_character_at(character.bytes, &length));
  return memmem(characters->bytes, characters->length, character.bytes, character.length) != NULL;
}

mlx_span_t mlx_span_strip(mlx_span_t text, const mlx_span_t *characters, bool left, bool right) {
  while (left && text.length) {
    size_t length;
    mlx_character_at(text.bytes, &length);
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
