// Text to ids.
//
// The order is Hugging Face's. Added tokens are cut out of the input. The rest is normalized, and the added
// tokens that match normalized text are cut out of it. The remaining text is pre-tokenized into pieces, and
// the model encodes each piece. Finally the post-processor's template adds special tokens around the ids.
#include <string.h>

#include "base/memory.h"
#include "tokenizer/bpe.h"
#include "tokenizer/components.h"
#include "tokenizer/decode.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"

// Bytes. Positions are 32-bit, and U+FFFD or added spaces can triple the length of a text.
#define MAX_TEXT ((size_t)256 << 20)
// The time limit is 10 s plus 1 s for each 500 KB of text, more than ten times the usual time.
#define MIN_SECONDS 10
#define BYTES_PER_SECOND 500000

// ----------------------------------------------------------------------------------------------------------
// Added tokens

// The working memory of one call.
typedef struct encoder {
  const mlx_tokenizer_t *tokenizer;
  mlx_budget_t budget;
  mlx_regex_scanner_t scanner;
  mlx_normalizer_scratch_t normalizer;
  mlx_pretokenizer_scratch_t pretokenizer;
  mlx_bpe_scratch_t bpe;
  mlx_lattice_t lattice;
  mlx_added_block_t raw_block, normalized_block;
  mlx_ids_t ids;
} encoder_t;

// The length of the character that ends at |at|.
static size_t character_before(const char *text, size_t at) {
  size_t start = at - 1;
  while (start && ((uint8_t)text[start] & 0xc0) == 0x80) --start;
  return at - start;
}

// single_word: true if no word character touches the match.
static bool stands_alone(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, size_t start,
                         size_t stop) {
  if (start) {
    size_t before = character_before(text, start);
    if (mlx_regex_matches_character(tokenizer->word_regex, text + start - before, before)) return false;
  }
  if (stop == length) return true;
  return !mlx_regex_matches_character(tokenizer->word_regex, text + stop,
                                      (size_t)mlx_utf8_length(text + stop, length - stop));
}

// The start of the run of spaces that ends at |at|, but not before |limit|.
static size_t skip_spaces_back(const char *text, size_t limit, size_t at) {
  while (at > limit) {
    size_t length = character_before(text, at);
    if (!mlx_character_is_space(mlx_character_at(text + at - length, &length))) break;
    at -= length;
  }
  return at > limit ? at : limit;
}

static size_t skip_spaces(const char *text, size_t length, size_t at) {
  for (size_t size; at < length && mlx_character_is_space(mlx_character_at(text + at, &size));) at += size;
  return at;
}

// Encodes a stretch of text without added tokens. |start_bytes| counts its leading bytes that come from the
// first character of the whole text.
typedef mlx_status_t (*text_fn_t)(encoder_t *encoder, const char *text, size_t length, size_t start_bytes);

// Cuts the tokens of |set| out of |text| and passes the stretches between them to |rest|. If a token with
// rstrip takes the spaces after it, added tokens inside those spaces still match, as with Hugging Face.
static mlx_status_t cut_added(encoder_t *encoder, const mlx_added_set_t *set, mlx_added_block_t *block,
                              const char *text, size_t length, size_t start_bytes, text_fn_t rest) {
  size_t done = 0, spaces_start = 0, spaces_stop = 0;
  block->begin = block->end = 0;
  for (size_t i = 0, matched; i < length && set->count; i += matched) {
    if (i >= block->end) {
      MLX_TRY(mlx_added_set_search(set, text, length, i, block));
      MLX_TRY(mlx_budget_step(&encoder->budget, block->end - i));
    }
    const mlx_added_match_t match = block->matches[i - block->begin];
    matched = 1;
    if (match.index < 0) continue;
    matched = match.length;
    const mlx_added_token_t *added = &encoder->tokenizer->added[match.index];
    size_t start = i, stop = i + matched;
    if (added->single_word && !stands_alone(encoder->tokenizer, text, length, start, stop)) continue;
    if (added->lstrip) start = skip_spaces_back(text, done, start);
    if (added->rstrip) {
      // Reuse the end of the last run of spaces. Otherwise a token that is a space would rescan it each time.
      if (stop < spaces_start || stop > spaces_stop)
        spaces_stop = skip_spaces(text, length, spaces_start = stop);
      stop = spaces_stop;
    }
    if (done < start)
      MLX_TRY(rest(encoder, text + done, start - done, done < start_bytes ? start_bytes - done : 0));
    MLX_TRY(mlx_ids_append(&encoder->ids, added->id));
    done = stop;
  }
  return done < length
             ? rest(encoder, text + done, length - done, done < start_bytes ? start_bytes - done : 0)
             : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Encoding

static mlx_status_t encode_piece(encoder_t *encoder, const char *text, size_t length) {
  const mlx_tokenizer_model_t *model = &encoder->tokenizer->model;
  mlx_budget_t *budget = &encoder->budget;
  switch (model->kind) {
    case MLX_MODEL_BPE: return mlx_bpe_encode(model, &encoder->bpe, text, length, budget, &encoder->ids);
    case MLX_MODEL_UNIGRAM:
      return mlx_unigram_encode(model, &encoder->lattice, text, length, budget, &encoder->ids);
    case MLX_MODEL_WORDPIECE: return mlx_wordpiece_encode(model, text, length, budget, &encoder->ids);
  }
  return mlx_error(MLX_INTERNAL, "unknown tokenizer model");
}

static mlx_status_t encode_stretch(encoder_t *encoder, const char *text, size_t length, size_t start_bytes) {
  MLX_TRY(mlx_pretokenizer_run(&encoder->tokenizer->pretokenizer, &encoder->pretokenizer, &encoder->scanner,
                               text, length, start_bytes));
  const mlx_pieces_t *pieces = &encoder->pretokenizer.pieces;
  for (size_t i = 0; i < pieces->count; ++i) {
    MLX_TRY(encode_piece(encoder, pieces->items[i].text, pieces->items[i].length));
  }
  return NULL;
}

static mlx_status_t encode_normalized(encoder_t *encoder, const char *text, size_t length,
                                      size_t start_bytes) {
  MLX_TRY(mlx_normalizer_run(&encoder->tokenizer->normalizer, &encoder->normalizer, &encoder->scanner, text,
                             length, &text, &length, &start_bytes));
  return cut_added(encoder, &encoder->tokenizer->normalized_added, &encoder->normalized_block, text, length,
                   start_bytes, encode_stretch);
}

// Puts the post-processor's template around |ids|.
static mlx_status_t apply_template(const mlx_tokenizer_t *tokenizer, mlx_ids_t *ids) {
  mlx_ids_t whole = {0};
  mlx_status_t status = NULL;
  for (size_t i = 0; i < tokenizer->template_count && !status; ++i) {
    int32_t id = tokenizer->template_ids[i];
    if (id != MLX_TEMPLATE_TEXT) status = mlx_ids_append(&whole, id);
    for (size_t j = 0; id == MLX_TEMPLATE_TEXT && j < ids->count && !status; ++j) {
      status = mlx_ids_append(&whole, ids->items[j]);
    }
  }
  if (status) {
    mlx_free(whole.items);
    return status;
  }
  mlx_free(ids->items);
  *ids = whole;
  return NULL;
}

static mlx_status_t encode_utf8(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                bool add_special, mlx_ids_t *out_ids) {
  encoder_t encoder = {.tokenizer = tokenizer};
  mlx_budget_begin(&encoder.budget, "tokenizing this text",
                   MIN_SECONDS + (int64_t)(length / BYTES_PER_SECOND), SIZE_MAX);
  MLX_TRY(mlx_regex_scanner_begin(&encoder.budget, &encoder.scanner));
  size_t first = 0;
  if (length) mlx_character_at(text, &first);
  mlx_status_t status =
      cut_added(&encoder, &tokenizer->raw_added, &encoder.raw_block, text, length, first, encode_normalized);
  if (!status && add_special && tokenizer->template_ids) status = apply_template(tokenizer, &encoder.ids);
  mlx_bpe_scratch_free(&encoder.bpe);
  mlx_lattice_free(&encoder.lattice);
  mlx_added_block_free(&encoder.raw_block);
  mlx_added_block_free(&encoder.normalized_block);
  mlx_normalizer_scratch_free(&encoder.normalizer);
  mlx_pretokenizer_scratch_free(&encoder.pretokenizer);
  mlx_regex_scanner_end(&encoder.scanner);
  *out_ids = encoder.ids;
  return status;
}

mlx_status_t mlx_tokenizer_encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                  bool add_special, int32_t **out_ids, size_t *out_count) {
  mlx_text_t repaired = {0};
  mlx_ids_t ids = {0};
  *out_ids = NULL;
  *out_count = 0;
  if (length > MAX_TEXT)
    return mlx_error(MLX_UNSUPPORTED, "cannot tokenize a text of %zu bytes; at most %zu are supported",
                     length, MAX_TEXT);
  mlx_status_t status = NULL;
  if (!mlx_utf8_is_valid(text, length)) {
    mlx_utf8_repair(text, length, &repaired);
    status = mlx_text_finish(&repaired);
    text = repaired.data;
    length = repaired.length;
  }
  if (!status) status = encode_utf8(tokenizer, text, length, add_special, &ids);
  if (!status && !ids.items)
    status = mlx_alloc(0, sizeof *ids.items, &ids.items);  // an empty result is still a valid pointer
  mlx_text_clear(&repaired);
  if (status) {
    mlx_free(ids.items);
    return status;
  }
  *out_ids = ids.items;
  *out_count = ids.count;
  return NULL;
}
