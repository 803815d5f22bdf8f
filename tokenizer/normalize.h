// The normalizer of a tokenizer.json: a list of steps that rewrite a text before it is pre-tokenized.
#ifndef MLXCEL_TOKENIZER_NORMALIZE_H_
#define MLXCEL_TOKENIZER_NORMALIZE_H_

#include "tokenizer/charsmap.h"
#include "tokenizer/regex.h"
#include "unicode/normal_form.h"

typedef enum mlx_normalizer_kind {
  MLX_NORMALIZER_FORM,  // NFC, NFD, NFKC, NFKD
  MLX_NORMALIZER_LOWERCASE,
  MLX_NORMALIZER_STRIP_ACCENTS,
  MLX_NORMALIZER_STRIP,
  MLX_NORMALIZER_NMT,
  MLX_NORMALIZER_PREPEND,
  MLX_NORMALIZER_REPLACE,
  MLX_NORMALIZER_BERT_CLEAN,
  MLX_NORMALIZER_BERT_CHINESE,
  MLX_NORMALIZER_BERT_ACCENTS,
  MLX_NORMALIZER_PRECOMPILED,
} mlx_normalizer_kind_t;

typedef struct mlx_normalizer_step {
  mlx_normalizer_kind_t kind;
  mlx_normal_form_t form;  // FORM
  bool left, right;        // STRIP: which ends
  mlx_regex_t regex;       // REPLACE; owned. NULL: |pattern| is a literal
  char *pattern;           // REPLACE; owned
  size_t pattern_length;
  char *content;  // REPLACE and PREPEND; owned
  size_t content_length;
  mlx_charsmap_t *charsmap;  // PRECOMPILED; owned
} mlx_normalizer_step_t;
void mlx_normalizer_step_free(mlx_normalizer_step_t *step);

typedef struct mlx_normalizer {
  mlx_normalizer_step_t *steps;  // owned
  size_t count;
} mlx_normalizer_t;
void mlx_normalizer_free(mlx_normalizer_t *normalizer);

// Working memory, reused between runs. Zero-initialize to start.
typedef struct mlx_normalizer_scratch {
  mlx_text_t current, next;
  mlx_marks_t marks;
  size_t max_bytes;  // that a step may write; 0: 1 GiB
} mlx_normalizer_scratch_t;
void mlx_normalizer_scratch_free(mlx_normalizer_scratch_t *scratch);

// Normalizes |text|, which must be valid UTF-8. *out_text is |text| itself or points into |scratch| until the
// next run. *inout_start counts the leading bytes that come from the first character of the whole input.
mlx_status_t mlx_normalizer_run(const mlx_normalizer_t *normalizer, mlx_normalizer_scratch_t *scratch,
                                mlx_regex_scanner_t *scanner, const char *text, size_t length,
                                const char **out_text, size_t *out_length, size_t *inout_start) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_NORMALIZE_H_
