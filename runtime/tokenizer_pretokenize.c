// Pre-tokenizing: cutting a stretch of text into the pieces that BPE works on, one step of the file after the other.
//
// The regular expressions run on Oniguruma because the Python package runs them on it: the same engine, syntax and Unicode
// tables give the same cuts. Where the package uses Rust's own tables instead (Digits, single_word), the pattern in
// tokenizer_read.c makes up for the difference.
//
// A pattern comes from a file and the text from a stranger, so every search has limits on retries and memory and every
// encode has a deadline: the worst pair of them ends in an error, not in a hang.
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime/tokenizer_internal.h"

#define MAX_PATTERN 16384           // bytes; the longest in use is about 1,500
#define MAX_NESTING 200             // of groups in a pattern
#define MAX_MATCH_RETRIES 10000000  // Oniguruma's own default, which the Python package runs under
#define MAX_SEARCH_RETRIES 100000000
#define MAX_MATCH_STACK 8000000  // entries: one per character of the longest run, 40 bytes each
#define SECOND_NS 1000000000
#define MIN_SECONDS 10  // an encode may take this and one second more per 100 KB: a hundred times the usual

// ---------------------------------------------------------------------------------------------------------------------
// Regular expressions

static pthread_once_t regex_once = PTHREAD_ONCE_INIT;
static int regex_init_result;
static OnigSyntaxType regex_syntax;

// Oniguruma keeps global tables that must be filled once, before any thread uses it.
static void init_regex_library(void) {
  OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
  regex_init_result = onig_initialize(encodings, 1);
  onig_set_parse_depth_limit(MAX_NESTING);
  // The default syntax is what the package uses; but a file may not call into the program.
  onig_copy_syntax(&regex_syntax, OnigDefaultSyntax);
  onig_set_syntax_op2(&regex_syntax, onig_get_syntax_op2(&regex_syntax) & ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS |
                                                                            ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME));
}

mlx_status_t mlx_regex_create(const char *pattern, size_t length, OnigRegex *out_regex) {
  *out_regex = NULL;
  pthread_once(&regex_once, init_regex_library);
  if (regex_init_result != ONIG_NORMAL) return mlx_error(MLX_INTERNAL, "cannot initialise Oniguruma");
  if (length > MAX_PATTERN) {
    return mlx_error(MLX_UNSUPPORTED, "a pattern of %zu bytes; %d are supported", length, MAX_PATTERN);
  }
  OnigErrorInfo info;
  const OnigUChar *start = (const OnigUChar *)pattern;
  int code = onig_new(out_regex, start, start + length, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, &regex_syntax, &info);
  if (code == ONIG_NORMAL) return NULL;
  *out_regex = NULL;
  if (code == ONIGERR_MEMORY) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory while compiling a pattern");
  OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
  onig_error_code_to_str(reason, code, &info);
  return mlx_error(MLX_INVALID_INPUT, "not a regular expression: %s", (const char *)reason);
}

bool mlx_regex_is(OnigRegex regex, const char *text, size_t length) {
  const OnigUChar *start = (const OnigUChar *)text;
  return onig_match(regex, start, start + length, start, NULL, ONIG_OPTION_NONE) == (int)length;
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static mlx_status_t search_error(int code) {
  if (code == ONIGERR_MEMORY) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory while pre-tokenizing");
  OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
  onig_error_code_to_str(reason, code);
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the tokenizer's pre_tokenizer pattern failed on this text: %s", (const char *)reason),
      "the pattern backtracks too much; a shorter text may pass");
}

// Searches |piece| from |from|. *out_found is false when there is no further match.
static mlx_status_t search(mlx_splitter_t *splitter, OnigRegex regex, const mlx_piece_t *piece, size_t from,
                           bool *out_found, size_t *out_start, size_t *out_end) {
  const OnigUChar *text = (const OnigUChar *)piece->text, *end = text + piece->length;
  *out_found = false;
  if (now_ns() > splitter->deadline_ns) {
    return mlx_error(MLX_TIMEOUT, "the tokenizer's pre_tokenizer pattern takes too long on this text");
  }
  int result = onig_search_with_param(regex, text, end, text + from, end, splitter->region, ONIG_OPTION_NONE,
                                      splitter->limits);
  if (result == ONIG_MISMATCH) return NULL;
  if (result < 0) return search_error(result);
  *out_found = true;
  *out_start = (size_t)splitter->region->beg[0];
  *out_end = (size_t)splitter->region->end[0];
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Splitting one piece

static mlx_status_t add_piece(mlx_pieces_t *pieces, const char *text, size_t length) {
  MLX_TRY(mlx_reserve(pieces->count + 1, sizeof *pieces->items, &pieces->capacity, &pieces->items));
  pieces->items[pieces->count++] = (mlx_piece_t){.text = text, .length = length};
  return NULL;
}

// The matches of one piece are told in order, with the stretches between them, and become pieces by the behavior.
typedef struct cutter {
  mlx_pieces_t *out;
  mlx_split_behavior_t behavior;
  size_t base;         // where this piece's own results begin in |out|
  bool after_match;    // the last one told was a delimiter
} cutter_t;

static mlx_status_t cut(cutter_t *cutter, const char *text, size_t length, bool is_match) {
  bool join = false, has_last = cutter->out->count > cutter->base, after_match = cutter->after_match;
  cutter->after_match = is_match;
  switch (cutter->behavior) {
    case MLX_SPLIT_REMOVED:
      if (is_match) return NULL;
      break;
    case MLX_SPLIT_ISOLATED: break;
    case MLX_SPLIT_CONTIGUOUS: join = is_match == after_match; break;
    case MLX_SPLIT_MERGED_WITH_PREVIOUS: join = is_match && !after_match; break;
    case MLX_SPLIT_MERGED_WITH_NEXT: join = !is_match && after_match; break;
  }
  if (!join || !has_last) return add_piece(cutter->out, text, length);
  cutter->out->items[cutter->out->count - 1].length += length;
  return NULL;
}

// Empty pieces count while cutting (they stand between others) and are dropped after.
static void drop_empty(mlx_pieces_t *pieces, size_t base) {
  size_t kept = base;
  for (size_t i = base; i < pieces->count; ++i) {
    if (pieces->items[i].length) pieces->items[kept++] = pieces->items[i];
  }
  pieces->count = kept;
}

// Tells |cutter| every match, as Rust's onig::find_iter finds them: an empty match is taken unless it touches the end of
// the match before, in which case the search goes on one character later.
static mlx_status_t cut_at_matches(mlx_splitter_t *splitter, const mlx_split_step_t *step, const mlx_piece_t *piece,
                                   cutter_t *cutter) {
  const char *text = piece->text;
  size_t done = 0, from = 0, last_end = SIZE_MAX, start, end;
  while (from <= piece->length) {
    bool found;
    MLX_TRY(search(splitter, step->regex, piece, from, &found, &start, &end));
    if (!found) break;
    if (end < start || start < done) return mlx_error(MLX_UNSUPPORTED, "a pre_tokenizer pattern matches backwards");
    if (start == end && end == last_end) {
      int step_length = from < piece->length ? mlx_utf8_length(text + from, piece->length - from) : 1;
      from += step_length > 0 ? (size_t)step_length : 1;
      continue;
    }
    if (start > done) MLX_TRY(cut(cutter, text + done, start - done, step->invert));
    MLX_TRY(cut(cutter, text + start, end - start, !step->invert));
    done = from = last_end = end;
  }
  return done < piece->length ? cut(cutter, text + done, piece->length - done, step->invert) : NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps

static mlx_status_t run_split(mlx_splitter_t *splitter, const mlx_split_step_t *step) {
  for (size_t i = 0; i < splitter->pieces.count; ++i) {
    cutter_t cutter = {.out = &splitter->next, .behavior = step->behavior, .base = splitter->next.count};
    MLX_TRY(cut_at_matches(splitter, step, &splitter->pieces.items[i], &cutter));
    drop_empty(&splitter->next, cutter.base);
  }
  return NULL;
}

// ByteLevel's add_prefix_space: every piece begins with a space.
static mlx_status_t run_prefix(mlx_splitter_t *splitter) {
  size_t needed = 0, used = 0;
  for (size_t i = 0; i < splitter->pieces.count; ++i) needed += splitter->pieces.items[i].length + 1;
  MLX_TRY(mlx_reserve(needed, 1, &splitter->prefixed_capacity, &splitter->prefixed));
  for (size_t i = 0; i < splitter->pieces.count; ++i) {
    mlx_piece_t piece = splitter->pieces.items[i];
    if (piece.text[0] != ' ') {
      char *copy = splitter->prefixed + used;
      copy[0] = ' ';
      memcpy(copy + 1, piece.text, piece.length);
      used += ++piece.length;
      piece.text = copy;
    }
    MLX_TRY(add_piece(&splitter->next, piece.text, piece.length));
  }
  return NULL;
}

mlx_status_t mlx_splitter_begin(size_t text_length, mlx_splitter_t *out_splitter) {
  *out_splitter = (mlx_splitter_t){
      .region = onig_region_new(),
      .limits = onig_new_match_param(),
      .deadline_ns = now_ns() + (int64_t)MIN_SECONDS * SECOND_NS + (int64_t)text_length * (SECOND_NS / 100000),
  };
  if (!out_splitter->region || !out_splitter->limits) {
    mlx_splitter_end(out_splitter);
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory while pre-tokenizing");
  }
  onig_initialize_match_param(out_splitter->limits);
  onig_set_retry_limit_in_match_of_match_param(out_splitter->limits, MAX_MATCH_RETRIES);
  onig_set_retry_limit_in_search_of_match_param(out_splitter->limits, MAX_SEARCH_RETRIES);
  onig_set_match_stack_limit_size_of_match_param(out_splitter->limits, MAX_MATCH_STACK);
  return NULL;
}

mlx_status_t mlx_splitter_run(const mlx_tokenizer_t *tokenizer, mlx_splitter_t *splitter, const char *text,
                              size_t length) {
  splitter->pieces.count = 0;
  if (!length) return NULL;
  MLX_TRY(add_piece(&splitter->pieces, text, length));
  for (size_t i = 0; i < tokenizer->step_count; ++i) {
    const mlx_split_step_t *step = &tokenizer->steps[i];
    splitter->next.count = 0;
    MLX_TRY(step->regex ? run_split(splitter, step) : run_prefix(splitter));
    mlx_pieces_t swap = splitter->pieces;
    splitter->pieces = splitter->next;
    splitter->next = swap;
  }
  return NULL;
}

void mlx_splitter_end(mlx_splitter_t *splitter) {
  mlx_free(splitter->pieces.items);
  mlx_free(splitter->next.items);
  mlx_free(splitter->prefixed);
  if (splitter->region) onig_region_free(splitter->region, 1);
  if (splitter->limits) onig_free_match_param(splitter->limits);
  *splitter = (mlx_splitter_t){0};
}
