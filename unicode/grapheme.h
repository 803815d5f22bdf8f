// Graphemes by the rules of Unicode annex 29: what a reader sees as one character can be several code points,
// such as a letter with its accents, a flag, or an emoji of a family.
#ifndef MLXCEL_UNICODE_GRAPHEME_H_
#define MLXCEL_UNICODE_GRAPHEME_H_

#include "unicode/tables.h"

// The preceding characters, as far back as the rules look. Zero-initialize at the beginning of a text.
typedef struct mlx_grapheme_state {
  mlx_grapheme_class_t last;
  int flags;     // consecutive regional indicators, modulo 2
  int emoji;     // 1: after a pictograph and its extenders; 2: after those and a joiner (ZWJ)
  int conjunct;  // 1: after an Indic consonant and its extenders; 2: a linker is among them
} mlx_grapheme_state_t;

// The length in bytes of the grapheme at |text|, which has at least one byte. The text may be no UTF-8.
size_t mlx_grapheme_length(const char *text, size_t length, mlx_grapheme_state_t *state);

#endif  // MLXCEL_UNICODE_GRAPHEME_H_
