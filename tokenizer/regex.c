// Oniguruma behind a few functions: compile a pattern, and scan a text for matches within limits.
#include "tokenizer/regex.h"

#include <pthread.h>

#include "base/text.h"
#include "tokenizer/onig_interrupt.h"

#define MAX_PATTERN 16384           // bytes; the longest in use is about 1,500
#define MAX_NESTING 200             // nested groups in a pattern
#define MAX_MATCH_RETRIES 10000000  // Oniguruma's own default, which the Python package uses
#define MAX_SEARCH_RETRIES 100000000
#define MAX_MATCH_STACK 8000000  // entries of 40 bytes; a match needs one per character of its longest run
// One step of the matcher, such as a back reference or an atomic group, may read the whole text. The clock is
// read after this many bytes in the worst case: about 10 ms.
#define BYTES_PER_CHECK ((size_t)4 << 20)
#define MAX_STEPS_PER_CHECK 4096

// ----------------------------------------------------------------------------------------------------------
// Compiling

static pthread_once_t regex_once = PTHREAD_ONCE_INIT;
static int regex_init_result;
static OnigSyntaxType regex_syntax;

// Fills Oniguruma's global tables. It must run once, before any thread uses the library.
static void init_regex_library(void) {
  OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
  regex_init_result = onig_initialize(encodings, 1);
  onig_set_parse_depth_limit(MAX_NESTING);
  // The package uses the default syntax. Callouts are disabled: a pattern must not call into the program.
  onig_copy_syntax(&regex_syntax, OnigDefaultSyntax);
  onig_set_syntax_op2(&regex_syntax,
                      onig_get_syntax_op2(&regex_syntax) &
                          ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME));
}

mlx_status_t mlx_regex_create(const char *pattern, size_t length, mlx_regex_t *out_regex) {
  *out_regex = NULL;
  pthread_once(&regex_once, init_regex_library);
  if (regex_init_result != ONIG_NORMAL)  // it fails only without memory
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: initializing regular expressions");
  if (length > MAX_PATTERN) {
    return mlx_error(MLX_UNSUPPORTED, "the pattern is %zu bytes long; at most %d are supported", length,
                     MAX_PATTERN);
  }
  OnigErrorInfo info;
  const OnigUChar *start = (const OnigUChar *)pattern;
  int code =
      onig_new(out_regex, start, start + length, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, &regex_syntax, &info);
  if (code == ONIG_NORMAL) return NULL;
  *out_regex = NULL;
  if (code == ONIGERR_MEMORY) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: compiling a pattern");
  OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
  onig_error_code_to_str(reason, code, &info);
  return mlx_error(MLX_INVALID_INPUT, "not a regular expression: %s", (const char *)reason);
}

void mlx_regex_free(mlx_regex_t regex) {
  if (regex) onig_free(regex);
}

bool mlx_regex_matches_character(mlx_regex_t regex, const char *text, size_t length) {
  const OnigUChar *start = (const OnigUChar *)text;
  return onig_match(regex, start, start + length, start, NULL, ONIG_OPTION_NONE) == (int)length;
}

// ----------------------------------------------------------------------------------------------------------
// Scanning

mlx_status_t mlx_regex_scanner_begin(mlx_budget_t *budget, mlx_regex_scanner_t *out_scanner) {
  *out_scanner =
      (mlx_regex_scanner_t){.region = onig_region_new(), .limits = onig_new_match_param(), .budget = budget};
  if (!out_scanner->region || !out_scanner->limits) {
    mlx_regex_scanner_end(out_scanner);
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: matching a pattern");
  }
  onig_initialize_match_param(out_scanner->limits);
  onig_set_retry_limit_in_match_of_match_param(out_scanner->limits, MAX_MATCH_RETRIES);
  onig_set_retry_limit_in_search_of_match_param(out_scanner->limits, MAX_SEARCH_RETRIES);
  onig_set_match_stack_limit_size_of_match_param(out_scanner->limits, MAX_MATCH_STACK);
  return NULL;
}

void mlx_regex_scanner_end(mlx_regex_scanner_t *scanner) {
  if (scanner->region) onig_region_free(scanner->region, 1);
  if (scanner->limits) onig_free_match_param(scanner->limits);
  *scanner = (mlx_regex_scanner_t){0};
}

static mlx_status_t search_error(int code) {
  if (code == ONIGERR_MEMORY) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: matching a pattern");
  OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
  onig_error_code_to_str(reason, code);
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "a regular expression of the tokenizer failed on this text: %s",
                (const char *)reason),
      "the pattern backtracks too much on this text; try a shorter text");
}

typedef struct interrupt {
  struct mlx_onig_interrupt base;  // first: Oniguruma has a pointer to it
  unsigned long steps;             // between two checks
  const mlx_budget_t *budget;
} interrupt_t;

static int is_expired(struct mlx_onig_interrupt *base) {
  interrupt_t *interrupt = (interrupt_t *)base;
  base->left = interrupt->steps;
  return mlx_budget_is_over(interrupt->budget);
}

static interrupt_t interrupt_for(const mlx_regex_scanner_t *scanner, size_t length) {
  const size_t steps = BYTES_PER_CHECK / (length + 1) + 1;
  interrupt_t interrupt = {.base.expired = is_expired, .budget = scanner->budget};
  interrupt.steps = interrupt.base.left =
      (unsigned long)(steps < MAX_STEPS_PER_CHECK ? steps : MAX_STEPS_PER_CHECK);
  return interrupt;
}

// Searches |text| from |from| on. *out_found is false if there is no further match.
static mlx_status_t search(mlx_regex_scanner_t *scanner, mlx_regex_t regex, const char *text, size_t length,
                           size_t from, bool *out_found, size_t *out_start, size_t *out_end) {
  const OnigUChar *start = (const OnigUChar *)text, *end = start + length;
  *out_found = false;
  MLX_TRY(mlx_budget_step(scanner->budget, 64));
  interrupt_t interrupt = interrupt_for(scanner, length);
  onig_set_callout_user_data_of_match_param(scanner->limits, &interrupt);
  int result = onig_search_with_param(regex, start, end, start + from, end, scanner->region, ONIG_OPTION_NONE,
                                      scanner->limits);
  onig_set_callout_user_data_of_match_param(scanner->limits, NULL);
  if (result == ONIG_MISMATCH) return NULL;
  if (result == ONIG_ABORT) {
    MLX_TRY(mlx_status_hint(mlx_budget_check(scanner->budget),
                            "a regular expression of the tokenizer backtracks too much; try a shorter text"));
    return mlx_error(MLX_INTERNAL, "a search was stopped before its deadline");
  }
  if (result < 0) return search_error(result);
  *out_found = true;
  *out_start = (size_t)scanner->region->beg[0];
  *out_end = (size_t)scanner->region->end[0];
  return NULL;
}

// Follows Rust's onig::find_iter: an empty match counts unless it touches the end of the previous match. In
// that case the search continues one character later.
mlx_status_t mlx_regex_scan(mlx_regex_scanner_t *scanner, mlx_regex_t regex, const char *text, size_t length,
                            mlx_regex_match_fn_t fn, void *user) {
  size_t done = 0, from = 0, last_end = SIZE_MAX, start, end;
  while (from <= length) {
    bool found;
    MLX_TRY(search(scanner, regex, text, length, from, &found, &start, &end));
    if (!found) break;
    if (end < start || start < done)
      return mlx_error(MLX_UNSUPPORTED, "a regular expression of the tokenizer matches backwards");
    if (start == end && end == last_end) {
      int step_length = from < length ? mlx_utf8_length(text + from, length - from) : 1;
      from += step_length > 0 ? (size_t)step_length : 1;
      continue;
    }
    if (start > done) MLX_TRY(fn(user, text + done, start - done, false));
    if (!scanner->stopped) MLX_TRY(fn(user, text + start, end - start, true));
    if (scanner->stopped) return NULL;
    done = from = last_end = end;
  }
  return done < length ? fn(user, text + done, length - done, false) : NULL;
}
