// Pre-tokenization: runs the steps of a pre-tokenizer, each on the pieces of the step before.
//
// A few steps cut nothing but rewrite the text: ByteLevel prepends a space, Metaspace replaces spaces.
#include "tokenizer/pretokenize.h"

#include <string.h>

#include "base/memory.h"
#include "unicode/utf8.h"

// ----------------------------------------------------------------------------------------------------------
// Splitting one piece

static mlx_status_t add_piece(mlx_pieces_t *pieces, const char *text, size_t length) {
  MLX_TRY(mlx_reserve(pieces->count + 1, sizeof *pieces->items, &pieces->capacity, &pieces->items));
  pieces->items[pieces->count++] = (mlx_piece_t){.text = text, .length = length};
  return NULL;
}

// Receives the matches in one piece and the stretches between them, in order, and turns them into new pieces.
typedef struct cutter {
  mlx_pieces_t *out;
  mlx_split_behavior_t behavior;
  bool invert;
  size_t base;       // index in |out| of the first result of this piece
  bool after_match;  // the previous stretch was a delimiter
  size_t most;       // pieces of |out|; then the scan stops
  bool *stopped;
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
  if (join && has_last) {
    cutter->out->items[cutter->out->count - 1].length += length;
    return NULL;
  }
  *cutter->stopped = cutter->out->count >= cutter->most;  // the pieces before this one cannot grow any more
  return *cutter->stopped ? NULL : add_piece(cutter->out, text, length);
}

// Empty pieces matter while cutting, because they separate their neighbours. They are dropped afterwards.
static void drop_empty(mlx_pieces_t *pieces, size_t base) {
  size_t kept = base;
  for (size_t i = base; i < pieces->count; ++i) {
    if (pieces->items[i].length) pieces->items[kept++] = pieces->items[i];
  }
  pieces->count = kept;
}

// Each delimiter character is a match by itself.
static mlx_status_t cut_at_characters(const mlx_pretokenizer_step_t *step, const mlx_piece_t *piece,
                                      cutter_t *cutter) {
  size_t done = 0;
  for (size_t i = 0, length; i < piece->length && !*cutter->stopped; i += length) {
    uint32_t character = mlx_character_at(piece->text + i, &length);
    if (step->kind == MLX_PRETOKENIZER_CHARACTER ? character != step->character
                                                 : !step->is_delimiter(character))
      continue;
    if (done < i) MLX_TRY(cut(cutter, piece->text + done, i - done, false));
    MLX_TRY(cut(cutter, piece->text + i, length, true));
    done = i + length;
  }
  return done < piece->length && !*cutter->stopped
             ? cut(cutter, piece->text + done, piece->length - done, false)
             : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Steps

static mlx_status_t run_split(mlx_pretokenizer_scratch_t *scratch, mlx_regex_scanner_t *scanner,
                              const mlx_pretokenizer_step_t *step, size_t most) {
  for (size_t i = 0; i < scratch->pieces.count && !scanner->stopped; ++i) {
    const mlx_piece_t *piece = &scratch->pieces.items[i];
    cutter_t cutter = {.out = &scratch->next,
                       .behavior = step->behavior,
                       .invert = step->invert,
                       .base = scratch->next.count,
                       .most = most,
                       .stopped = &scanner->stopped};
    MLX_TRY(step->kind == MLX_PRETOKENIZER_REGEX
                ? mlx_regex_scan(scanner, step->regex, piece->text, piece->length, cut, &cutter)
                : cut_at_characters(step, piece, &cutter));
    drop_empty(&scratch->next, cutter.base);
  }
  scratch->cut_short |= scanner->stopped;
  scanner->stopped = false;
  return NULL;
}

// Appends a copy of |piece| with its spaces replaced by |character|. |prepend| also puts one in front.
static void write_metaspace(mlx_text_t *out, const mlx_piece_t *piece, uint32_t character, bool prepend) {
  char bytes[4];
  size_t length = mlx_character_write(character, bytes), done = 0;
  bool present = piece->text[0] == ' ' || (piece->length >= length && !memcmp(piece->text, bytes, length));
  if (prepend && !present) mlx_text_append(out, bytes, length);
  for (const char *space; (space = memchr(piece->text + done, ' ', piece->length - done));) {
    size_t at = (size_t)(space - piece->text);
    mlx_text_append(out, piece->text + done, at - done);
    mlx_text_append(out, bytes, length);
    done = at + 1;
  }
  mlx_text_append(out, piece->text + done, piece->length - done);
}

// Runs a step that rewrites the text: every piece is copied to a new buffer.
static mlx_status_t run_rewrite(mlx_pretokenizer_scratch_t *scratch, const mlx_pretokenizer_step_t *step) {
  mlx_text_t swap = scratch->written[1], *out = &scratch->written[0];
  scratch->written[1] = scratch->written[0];
  scratch->written[0] = swap;
  size_t start = 0;
  out->length = 0;
  for (size_t i = 0; i < scratch->pieces.count; ++i) {
    const mlx_piece_t *piece = &scratch->pieces.items[i];
    const bool first = (size_t)(piece->text - scratch->origin) < scratch->start;
    size_t before = out->length;
    if (step->kind == MLX_PRETOKENIZER_PREFIX_SPACE) {
      if (piece->text[0] != ' ') mlx_text_append(out, " ", 1);
      mlx_text_append(out, piece->text, piece->length);
    } else {
      write_metaspace(out, piece, step->character,
                      step->prepend == MLX_PREPEND_ALWAYS || (first && step->prepend == MLX_PREPEND_FIRST));
    }
    MLX_TRY(add_piece(&scratch->next, NULL, out->length - before));
    if (first) start = out->length;
  }
  MLX_TRY(mlx_text_finish(out));
  scratch->origin = out->data;
  scratch->start = start;
  const char *at = out->data;
  for (size_t i = 0; i < scratch->next.count; at += scratch->next.items[i++].length)
    scratch->next.items[i].text = at;
  return NULL;
}

mlx_status_t mlx_pretokenizer_run(const mlx_pretokenizer_t *pretokenizer, mlx_pretokenizer_scratch_t *scratch,
                                  mlx_regex_scanner_t *scanner, const char *text, size_t length, size_t start,
                                  size_t most) {
  scratch->pieces.count = 0;
  scratch->cut_short = false;
  scratch->origin = text;
  scratch->start = start;
  if (!length) return NULL;
  MLX_TRY(add_piece(&scratch->pieces, text, length));
  for (size_t i = 0; i < pretokenizer->count; ++i) {
    const mlx_pretokenizer_step_t *step = &pretokenizer->steps[i];
    scratch->next.count = 0;
    bool rewrites = step->kind == MLX_PRETOKENIZER_PREFIX_SPACE || step->kind == MLX_PRETOKENIZER_METASPACE;
    MLX_TRY(rewrites ? run_rewrite(scratch, step) : run_split(scratch, scanner, step, most));
    mlx_pieces_t swap = scratch->pieces;
    scratch->pieces = scratch->next;
    scratch->next = swap;
  }
  return NULL;
}

void mlx_pretokenizer_scratch_free(mlx_pretokenizer_scratch_t *scratch) {
  mlx_free(scratch->pieces.items);
  mlx_free(scratch->next.items);
  for (size_t i = 0; i < 2; ++i) mlx_text_clear(&scratch->written[i]);
  *scratch = (mlx_pretokenizer_scratch_t){0};
}

void mlx_pretokenizer_free(mlx_pretokenizer_t *pretokenizer) {
  for (size_t i = 0; i < pretokenizer->count; ++i) mlx_regex_free(pretokenizer->steps[i].regex);
  mlx_free(pretokenizer->steps);
  *pretokenizer = (mlx_pretokenizer_t){0};
}
