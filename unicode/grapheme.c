// See grapheme.h.
#include "unicode/grapheme.h"

#include "unicode/utf8.h"

static mlx_grapheme_class_t class_of(uint32_t character) {
  if (character >= 0x20 && character < 0x7f) return MLX_GRAPHEME_ANY;
  if (character >= 0xac00 && character < 0xac00 + 11172) {
    return (character - 0xac00) % 28 ? MLX_GRAPHEME_LVT : MLX_GRAPHEME_LV;
  }
  return (mlx_grapheme_class_t)mlx_range_value(&mlx_grapheme_classes, character);
}

static bool is_control(mlx_grapheme_class_t class) {
  return class == MLX_GRAPHEME_CR || class == MLX_GRAPHEME_LF || class == MLX_GRAPHEME_CONTROL;
}

// True if |next| continues the grapheme. GBn is the number of the rule.
static bool continues_grapheme(const mlx_grapheme_state_t *state, mlx_grapheme_class_t next) {
  mlx_grapheme_class_t last = state->last;
  if (last == MLX_GRAPHEME_CR && next == MLX_GRAPHEME_LF) return true;  // GB3
  if (is_control(last) || is_control(next)) return false;               // GB4, GB5
  switch (next) {
    case MLX_GRAPHEME_L:
    case MLX_GRAPHEME_LV:
    case MLX_GRAPHEME_LVT: return last == MLX_GRAPHEME_L || last == MLX_GRAPHEME_PREPEND;  // GB6
    case MLX_GRAPHEME_V:
      if (last == MLX_GRAPHEME_L || last == MLX_GRAPHEME_LV || last == MLX_GRAPHEME_V)
        return true;  // GB6, GB7
      break;
    case MLX_GRAPHEME_T:
      if (last == MLX_GRAPHEME_LV || last == MLX_GRAPHEME_V || last == MLX_GRAPHEME_LVT ||
          last == MLX_GRAPHEME_T)
        return true;  // GB7, GB8
      break;
    case MLX_GRAPHEME_EXTEND:
    case MLX_GRAPHEME_LINKER:
    case MLX_GRAPHEME_ZWJ:
    case MLX_GRAPHEME_SPACINGMARK: return true;  // GB9, GB9a
    case MLX_GRAPHEME_CONSONANT:
      if (state->conjunct == 2) return true;  // GB9c
      break;
    case MLX_GRAPHEME_EXTENDED_PICTOGRAPHIC:
      if (state->emoji == 2) return true;  // GB11
      break;
    case MLX_GRAPHEME_REGIONAL_INDICATOR:
      if (state->flags % 2) return true;  // GB12, GB13
      break;
    default: break;
  }
  return last == MLX_GRAPHEME_PREPEND;  // GB9b
}

static void advance(mlx_grapheme_state_t *state, uint32_t character, mlx_grapheme_class_t class) {
  bool extends = class == MLX_GRAPHEME_EXTEND || class == MLX_GRAPHEME_LINKER;
  state->last = class;
  state->flags = class == MLX_GRAPHEME_REGIONAL_INDICATOR ? !(state->flags % 2) : 0;
  if (class == MLX_GRAPHEME_EXTENDED_PICTOGRAPHIC) {
    state->emoji = 1;
  } else if (class == MLX_GRAPHEME_ZWJ) {
    state->emoji = state->emoji == 1 ? 2 : 0;
  } else if (!extends || state->emoji == 2) {
    state->emoji = 0;
  }
  if (class == MLX_GRAPHEME_CONSONANT) {
    state->conjunct = 1;
  } else if (class == MLX_GRAPHEME_LINKER) {
    state->conjunct = state->conjunct ? 2 : 0;
  } else if (!(class == MLX_GRAPHEME_ZWJ || (extends && character != 0x200c))) {
    state->conjunct = 0;
  }
}

size_t mlx_grapheme_length(const char *text, size_t length, mlx_grapheme_state_t *state) {
  size_t size, at = 0;
  do {
    uint32_t character = mlx_character_or_byte_at(text + at, length - at, &size);
    mlx_grapheme_class_t class = class_of(character);
    if (at && !continues_grapheme(state, class)) break;
    advance(state, character, class);
    at += size;
  } while (at < length);
  return at;
}
