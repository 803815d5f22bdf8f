// Pre-tokenizing: cutting a stretch of text into the pieces that BPE works on, one step of the file after the
// other.
//
// A step may also change the text: ByteLevel's space before it, Metaspace's character for spaces.
//
// The regular expressions run on Oniguruma because the Python package runs them on it: the same engine,
// syntax and Unicode tables give the same cuts. Where the package uses Rust's own tables instead (Digits,
// single_word), the pattern in tokenizer_read.c makes up for the difference.
//
// A pattern comes from a file and the text from a stranger, so every search has limits on retries and memory
// and every encode has a deadline: the worst pair of them ends in an error, not in a hang.
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "tokenizer/internal.h"

#define MAX_PATTERN 16384           // bytes; the longest in use is about 1,500
#define MAX_NESTING 200             // of groups in a pattern
#define MAX_MATCH_RETRIES 10000000  // Oniguruma's own default, which the Python package runs under
#define MAX_SEARCH_RETRIES 100000000
#define MAX_MATCH_STACK 8000000  // entries: one per character of the longest run, 40 bytes each
#define SECOND_NS 1000000000
#define MIN_SECONDS 10  // an encode may take this and one second more per 100 KB: a hundred times the usual

// ----------------------------------------------------------------------------------------------------------
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
  onig_set_syntax_op2(&regex_syntax,
                      onig_get_syntax_op2(&regex_syntax) &
                          ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME));
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
  int code =
      onig_new(out_regex, start, start + length, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, &regex_syntax, &info);
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
      mlx_error(MLX_UNSUPPORTED, "a pattern of the tokenizer failed on this text: %s", (const char *)reason),
      "the pattern backtracks too much; a shorter text may pass");
}

// Searches |text| from |from|. *out_found is false when there is no further match.
static mlx_status_t search(mlx_splitter_t *splitter, OnigRegex regex, const char *text, size_t length,
                           size_t from, bool *out_found, size_t *out_start, size_t *out_end) {
  const OnigUChar *start = (const OnigUChar *)text, *end = start + length;
  *out_found = false;
  if (now_ns() > splitter->deadline_ns) {
    return mlx_error(MLX_TIMEOUT, "a pattern of the tokenizer takes too long on this text");
  }
  int result = onig_search_with_param(regex, start, end, start + from, end, splitter->region,
                                      ONIG_OPTION_NONE, splitter->limits);
  if (result == ONIG_MISMATCH) return NULL;
  if (result < 0) return search_error(result);
  *out_found = true;
  *out_start = (size_t)splitter->region->beg[0];
  *out_end = (size_t)splitter->region->end[0];
  return NULL;
}

// As Rust's onig::find_iter finds them: an empty match is taken unless it touches the end of the match
// before, in which case the search goes on one character later.
mlx_status_t mlx_splitter_matches(mlx_splitter_t *splitter, OnigRegex regex, const char *text, size_t length,
                                  mlx_match_fn_t fn, void *user) {
  size_t done = 0, from = 0, last_end = SIZE_MAX, start, end;
  while (from <= length) {
    bool found;
    MLX_TRY(search(splitter, regex, text, length, from, &found, &start, &end));
    if (!found) break;
    if (end < start || start < done)
      return mlx_error(MLX_UNSUPPORTED, "a pattern of the tokenizer matches backwards");
    if (start == end && end == last_end) {
      int step_length = from < length ? mlx_utf8_length(text + from, length - from) : 1;
      from += step_length > 0 ? (size_t)step_length : 1;
      continue;
    }
    if (start > done) MLX_TRY(fn(user, text + done, start - done, false));
    MLX_TRY(fn(user, text + start, end - start, true));
    done = from = last_end = end;
  }
  return done < length ? fn(user, text + done, length - done, false) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Splitting one piece

static mlx_status_t add_piece(mlx_pieces_t *pieces, const char *text, size_t length) {
  MLX_TRY(mlx_reserve(pieces->count + 1, sizeof *pieces->items, &pieces->capacity, &pieces->items));
  pieces->items[pieces->count++] = (mlx_piece_t){.text = text, .length = length};
  return NULL;
}

// The matches of one piece are told in order, with the stretches between them, and become pieces by the
// behavior.
typedef struct cutter {
  mlx_pieces_t *out;
  mlx_split_behavior_t behavior;
  bool invert;
  size_t base;       // where this piece's own results begin in |out|
  bool after_match;  // the last one told was a delimiter
} cutter_t;

static mlx_status_t cut(void *user, const char *text, size_t length, bool is_match) {
  cutter_t *cutter = user;
  is_match ^= cutter->invert;
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

// Every character that belongs is a match of its own.
static mlx_status_t cut_at_characters(const mlx_split_step_t *step, const mlx_piece_t *piece,
                                      cutter_t *cutter) {
  size_t done = 0;
  for (size_t i = 0, length; i < piece->length; i += length) {
    uint32_t character = mlx_character_at(piece->text + i, &length);
    if (step->kind == MLX_SPLIT_CHARACTER ? character != step->character : !step->belongs(character))
      continue;
    if (done < i) MLX_TRY(cut(cutter, piece->text + done, i - done, false));
    MLX_TRY(cut(cutter, piece->text + i, length, true));
    done = i + length;
  }
  return done < piece->length ? cut(cutter, piece->text + done, piece->length - done, false) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Steps

static mlx_status_t run_split(mlx_splitter_t *splitter, const mlx_split_step_t *step) {
  for (size_t i = 0; i < splitter->pieces.count; ++i) {
    const mlx_piece_t *piece = &splitter->pieces.items[i];
    cutter_t cutter = {.out = &splitter->next,
                       .behavior = step->behavior,
                       .invert = step->invert,
                       .base = splitter->next.count};
    MLX_TRY(step->kind == MLX_SPLIT_REGEX
                ? mlx_splitter_matches(splitter, step->regex, piece->text, piece->length, cut, &cutter)
                : cut_at_characters(step, piece, &cutter));
    drop_empty(&splitter->next, cutter.base);
  }
  return NULL;
}

// Appends a copy of |piece| with its spaces replaced by |character| and one before it where the scheme says
// so.
static void write_metaspace(mlx_text_t *out, const mlx_piece_t *piece, uint32_t character, bool prepend) {
  char bytes[4];
  size_t length = mlx_character_write(character, bytes), done = 0;
  bool there = piece->text[0] == ' ' || (piece->length >= length && !memcmp(piece->text, bytes, length));
  if (prepend && !there) mlx_text_append(out, bytes, length);
  for (const char *space; (space = memchr(piece->text + done, ' ', piece->length - done));) {
    size_t at = (size_t)(space - piece->text);
    mlx_text_append(out, piece->text + done, at - done);
    mlx_text_append(out, bytes, length);
    done = at + 1;
  }
  mlx_text_append(out, piece->text + done, piece->length - done);
}

// Steps that change the text write every piece anew, one after the other.
static mlx_status_t run_writing(mlx_splitter_t *splitter, const mlx_split_step_t *step) {
  mlx_text_t swap = splitter->written[1], *out = &splitter->written[0];
  splitter->written[1] = splitter->written[0];
  splitter->written[0] = swap;
  size_t start = 0;
  out->length = 0;
  for (size_t i = 0; i < splitter->pieces.count; ++i) {
    const mlx_piece_t *piece = &splitter->pieces.items[i];
    const bool first = (size_t)(piece->text - splitter->origin) < splitter->start;
    size_t before = out->length;
    if (step->kind == MLX_SPLIT_PREFIX) {
      if (piece->text[0] != ' ') mlx_text_append(out, " ", 1);
      mlx_text_append(out, piece->text, piece->length);
    } else {
      write_metaspace(out, piece, step->character,
                      step->prepend == MLX_PREPEND_ALWAYS || (first && step->prepend == MLX_PREPEND_FIRST));
    }
    MLX_TRY(add_piece(&splitter->next, NULL, out->length - before));
    if (first) start = out->length;
  }
  MLX_TRY(mlx_text_finish(out));
  splitter->origin = out->data;
  splitter->start = start;
  const char *at = out->data;
  for (size_t i = 0; i < splitter->next.count; at += splitter->next.items[i++].length)
    splitter->next.items[i].text = at;
  return NULL;
}

mlx_status_t mlx_splitter_begin(size_t text_length, mlx_splitter_t *out_splitter) {
  *out_splitter = (mlx_splitter_t){
      .region = onig_region_new(),
      .limits = onig_new_match_param(),
      .deadline_ns =
          now_ns() + (int64_t)MIN_SECONDS * SECOND_NS + (int64_t)text_length * (SECOND_NS / 100000),
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
                              size_t length, size_t start) {
  splitter->pieces.count = 0;
  splitter->origin = text;
  splitter->start = start;
  if (!length) return NULL;
  MLX_TRY(add_piece(&splitter->pieces, text, length));
  for (size_t i = 0; i < tokenizer->step_count; ++i) {
    const mlx_split_step_t *step = &tokenizer->steps[i];
    splitter->next.count = 0;
    bool writes = step->kind == MLX_SPLIT_PREFIX || step->kind == MLX_SPLIT_METASPACE;
    MLX_TRY(writes ? run_writing(splitter, step) : run_split(splitter, step));
    mlx_pieces_t swap = splitter->pieces;
    splitter->pieces = splitter->next;
    splitter->next = swap;
  }
  return NULL;
}

void mlx_splitter_end(mlx_splitter_t *splitter) {
  mlx_free(splitter->pieces.items);
  mlx_free(splitter->next.items);
  for (size_t i = 0; i < 2; ++i) mlx_text_clear(&splitter->written[i]);
  if (splitter->region) onig_region_free(splitter->region, 1);
  if (splitter->limits) onig_free_match_param(splitter->limits);
  *splitter = (mlx_splitter_t){0};
}
