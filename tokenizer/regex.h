// Regular expressions of a tokenizer.json, on Oniguruma, with limits on time and memory.
//
// Hugging Face's Python package runs them on Oniguruma too: the same engine, syntax and Unicode tables give
// the same matches. The pattern comes from a downloaded file and the text from a user. So every search has a
// limit on retries and stack, and the matcher checks the deadline of a budget while it runs: a slow pattern
// gives an error, not a hang.
#ifndef MLXCEL_TOKENIZER_REGEX_H_
#define MLXCEL_TOKENIZER_REGEX_H_

#include <oniguruma.h>
#include <stdint.h>

#include "base/budget.h"

typedef OnigRegex mlx_regex_t;  // safe to share between threads

mlx_status_t mlx_regex_create(const char *pattern, size_t length, mlx_regex_t *out_regex) MLX_MUST_USE;
void mlx_regex_free(mlx_regex_t regex);  // NULL is fine
// True if |regex| matches the single character at |text|, which is |length| bytes long.
bool mlx_regex_matches_character(mlx_regex_t regex, const char *text, size_t length);

// The working memory and limits of the searches in one text.
typedef struct mlx_regex_scanner {
  OnigRegion *region;
  OnigMatchParam *limits;
  mlx_budget_t *budget;  // borrowed
  bool stopped;          // set by a callback: the scan ends after it
} mlx_regex_scanner_t;

// |budget| must outlive the scanner. Release with mlx_regex_scanner_end.
mlx_status_t mlx_regex_scanner_begin(mlx_budget_t *budget, mlx_regex_scanner_t *out_scanner) MLX_MUST_USE;
void mlx_regex_scanner_end(mlx_regex_scanner_t *scanner);

// Receives one stretch of text: a match, or the text between two matches.
typedef mlx_status_t (*mlx_regex_match_fn_t)(void *user, const char *text, size_t length, bool is_match);
// Calls |fn| for every match of |regex| and every stretch between matches, in order, until it sets |stopped|.
// Together they are |text|.
mlx_status_t mlx_regex_scan(mlx_regex_scanner_t *scanner, mlx_regex_t regex, const char *text, size_t length,
                            mlx_regex_match_fn_t fn, void *user) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_REGEX_H_
