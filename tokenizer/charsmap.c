// The Precompiled normalizer. A map is a trie over bytes, stored as a double array, and one text with all
// replacements, each ended by a NUL.
//
// It runs over grapheme clusters, as Hugging Face does. A grapheme of fewer than six bytes is looked up as a
// whole: the replacement of its shortest prefix in the map stands for all of it. Otherwise each of its
// characters is looked up by itself. The prefix rule sometimes loses combining marks, in both programs.
#include "tokenizer/charsmap.h"

#include <string.h>

#include "base/encoding.h"
#include "base/memory.h"
#include "unicode/grapheme.h"
#include "unicode/utf8.h"

#define MAX_WHOLE 6  // bytes; a grapheme of this length or more is looked up by its characters

struct mlx_charsmap {
  uint32_t *units;  // the double array
  size_t unit_count;
  char *texts;  // the replacements; valid UTF-8
  size_t text_length;
};

// ----------------------------------------------------------------------------------------------------------
// Reading

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
  MLX_TRY(mlx_base64_decode(base64, length, &bytes, &count));
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
  mlx_grapheme_state_t state = {0};
  for (size_t at = 0, grapheme, found_length; at < length && out->length <= max; at += grapheme) {
    grapheme = mlx_grapheme_length(text + at, length - at, &state);
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
