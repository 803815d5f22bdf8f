// The tables of unicode/tables.c, which tests/parity/unicode_tables.py writes, and their lookup.
//
// They answer as the programs do whose results mlxcel gives: Python's str (Unicode 14), Hugging Face's
// `tokenizers` (normalization by Unicode 9, categories of 8, graphemes of 17) and terminals. So a property of
// a character may have several tables.
#ifndef MLXCEL_UNICODE_TABLES_H_
#define MLXCEL_UNICODE_TABLES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mlx_range {
  uint32_t first, last;
} mlx_range_t;

typedef struct mlx_range_value {
  uint32_t first, last, value;
} mlx_range_value_t;

typedef struct mlx_range_case {
  uint32_t first, last, step;  // every |step|th character from |first| on has another case
  int32_t delta;               // to add for it
} mlx_range_case_t;

typedef struct mlx_case_special {
  uint32_t character;
  const char *text;  // several characters
} mlx_case_special_t;

// Tables are sorted by their characters, and ranges do not overlap.
typedef struct mlx_ranges {
  const mlx_range_t *rows;
  size_t count;
} mlx_ranges_t;

typedef struct mlx_range_values {
  const mlx_range_value_t *rows;
  size_t count;
} mlx_range_values_t;

typedef struct mlx_case_table {
  const mlx_range_case_t *rows;
  size_t count;
  const mlx_case_special_t *special;
  size_t special_count;
} mlx_case_table_t;

// Python's str.
extern const mlx_ranges_t mlx_python_spaces, mlx_python_alphas, mlx_python_decimals, mlx_python_digits,
    mlx_python_numerics, mlx_python_unprintable, mlx_python_cased, mlx_python_case_ignorable;
extern const mlx_case_table_t mlx_python_lower, mlx_python_upper, mlx_python_title;
// Hugging Face's tokenizers.
extern const mlx_ranges_t mlx_hf_marks, mlx_hf_nonspacing, mlx_hf_controls, mlx_hf_punctuation;
extern const mlx_case_table_t mlx_hf_lower;
extern const mlx_range_values_t mlx_combining_classes;  // those that are not 0
extern const mlx_range_values_t mlx_grapheme_classes;   // mlx_grapheme_class_t, without Hangul syllables
// Terminals.
extern const mlx_ranges_t mlx_zero_columns, mlx_two_columns;

enum { MLX_CANONICAL_COUNT = 2060, MLX_COMPOSITION_COUNT = 940, MLX_COMPATIBLE_COUNT = 3678 };
// Entries: '+' or '-', a character, its decomposition in one step. '+': the composition is allowed too.
extern const char mlx_canonical_text[];
// Entries: a tab, a character, its full compatibility decomposition.
extern const char mlx_compatible_text[];
extern const size_t mlx_canonical_length, mlx_compatible_length;

// Unicode annex 29. In the order of the generator.
typedef enum mlx_grapheme_class {
  MLX_GRAPHEME_ANY,
  MLX_GRAPHEME_CR,
  MLX_GRAPHEME_LF,
  MLX_GRAPHEME_CONTROL,
  MLX_GRAPHEME_EXTEND,
  MLX_GRAPHEME_LINKER,  // an Extend that joins Indic consonants
  MLX_GRAPHEME_ZWJ,
  MLX_GRAPHEME_SPACINGMARK,
  MLX_GRAPHEME_PREPEND,
  MLX_GRAPHEME_CONSONANT,
  MLX_GRAPHEME_EXTENDED_PICTOGRAPHIC,
  MLX_GRAPHEME_REGIONAL_INDICATOR,
  MLX_GRAPHEME_L,
  MLX_GRAPHEME_V,
  MLX_GRAPHEME_T,
  MLX_GRAPHEME_LV,
  MLX_GRAPHEME_LVT,
} mlx_grapheme_class_t;

// The row that has |character|, or NULL. Rows of |size| bytes begin with their first and last character.
static inline const void *mlx_row_find(const void *rows, size_t count, size_t size, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const mlx_range_t *row = (const void *)((const char *)rows + middle * size);
    if (character > row->last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == count) return NULL;
  const mlx_range_t *row = (const void *)((const char *)rows + low * size);
  return character >= row->first ? row : NULL;
}

static inline bool mlx_ranges_have(const mlx_ranges_t *table, uint32_t character) {
  return mlx_row_find(table->rows, table->count, sizeof *table->rows, character) != NULL;
}

// The value of the character's range; 0 if it is in none.
static inline uint32_t mlx_range_value(const mlx_range_values_t *table, uint32_t character) {
  const mlx_range_value_t *row = mlx_row_find(table->rows, table->count, sizeof *table->rows, character);
  return row ? row->value : 0;
}

// The other case of the character: one character in *out, or as the result a text of several.
static inline const char *mlx_case_find(const mlx_case_table_t *table, uint32_t character, uint32_t *out) {
  *out = character;
  for (size_t i = 0; character >= 0x80 && i < table->special_count; ++i) {
    if (table->special[i].character == character) return table->special[i].text;
  }
  const mlx_range_case_t *row = mlx_row_find(table->rows, table->count, sizeof *table->rows, character);
  if (row && (character - row->first) % row->step == 0) *out = (uint32_t)((int32_t)character + row->delta);
  return NULL;
}

#endif  // MLXCEL_UNICODE_TABLES_H_
