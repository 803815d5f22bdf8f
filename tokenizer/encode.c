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
#include "tokenizer/plain_marks.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"
#include "unicode/character.h"
#include "unicode/utf8.h"

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
  mlx_added_block_t raw_block, marked_block, normalized_block;
  mlx_ids_t ids;
  const char *text;  // the whole input, which |marks| refer to
  const mlx_plain_marks_t *marks;
  bool is_marked;  // the stretch that is encoded has a mark
  size_t limit;    // with more ids than this, the rest of the text is not encoded
} encoder_t;

static bool is_full(const encoder_t *encoder) { return encoder->ids.count > encoder->limit; }

// Which added tokens are recognized.
typedef enum filter {
  ALL,
  UNMARKED,          // in the input: not special ones with a mark
  UNMARKED_SPECIAL,  // in the input: only special ones without a mark
  NOT_SPECIAL
} filter_t;

static bool is_recognized(const encoder_t *encoder, filter_t filter, int32_t id, const char *at,
                          size_t length) {
  if (filter == ALL) return true;
  if (!mlx_tokenizer_is_special(encoder->tokenizer, id)) return filter != UNMARKED_SPECIAL;
  return filter != NOT_SPECIAL && !mlx_plain_marks_has(encoder->marks, (size_t)(at - encoder->text), length);
}

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
static mlx_status_t cut_added(encoder_t *encoder, const mlx_added_set_t *set, filter_t filter,
                              mlx_added_block_t *block, const char *text, size_t length, size_t start_bytes,
                              text_fn_t rest) {
  size_t done = 0, spaces_start = 0, spaces_stop = 0;
  block->begin = block->end = 0;
  for (size_t i = 0, matched; i < length && set->count && !is_full(encoder); i += matched) {
    if (i >= block->end) {
      MLX_TRY(mlx_added_set_search(set, text, length, i, block));
      MLX_TRY(mlx_budget_step(&encoder->budget, block->end - i));
    }
    const mlx_added_match_t match = block->matches[i - block->begin];
    matched = 1;
    if (match.index < 0) continue;
    const mlx_added_token_t *added = &encoder->tokenizer->added[match.index];
    if (!is_recognized(encoder, filter, added->id, text + i, match.length)) continue;
    matched = match.length;
    size_t start = i, stop = i + matched;
    if ((added->flags & MLX_ADDED_SINGLE_WORD) &&
        !stands_alone(encoder->tokenizer, text, length, start, stop))
      continue;
    if (added->flags & MLX_ADDED_LSTRIP) start = skip_spaces_back(text, done, start);
    if (added->flags & MLX_ADDED_RSTRIP) {
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
  return done < length && !is_full(encoder)
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

// The vocabulary of a Unigram or WordPiece model may have special tokens as pieces. In marked text a piece
// with one of them is encoded character by character instead, as SentencePiece and llama.cpp leave them out.
static mlx_status_t encode_marked_piece(encoder_t *encoder, const char *text, size_t length) {
  const size_t before = encoder->ids.count;
  bool has_special = false;
  MLX_TRY(encode_piece(encoder, text, length));
  for (size_t i = before; i < encoder->ids.count; ++i)
    has_special |= encoder->ids.items[i] != encoder->tokenizer->model.unk_id &&
                   mlx_tokenizer_is_special(encoder->tokenizer, encoder->ids.items[i]);
  if (!has_special) return NULL;
  encoder->ids.count = before;
  for (size_t at = 0, size; at < length; at += size) {
    mlx_character_at(text + at, &size);
    MLX_TRY(encode_piece(encoder, text + at, size));
  }
  return NULL;
}

static mlx_status_t encode_stretch(encoder_t *encoder, const char *text, size_t length, size_t start_bytes) {
  const mlx_pieces_t *pieces = &encoder->pretokenizer.pieces;
  const size_t count = encoder->ids.count;
  // A piece almost always has a token, so that more pieces than this exceed the limit.
  size_t most = encoder->limit < SIZE_MAX - 1 ? encoder->limit - count + 1 : SIZE_MAX;
  for (;; most = SIZE_MAX) {
    MLX_TRY(mlx_pretokenizer_run(&encoder->tokenizer->pretokenizer, &encoder->pretokenizer, &encoder->scanner,
                                 text, length, start_bytes, most));
    encoder->ids.count = count;
    for (size_t i = 0; i < pieces->count && !is_full(encoder); ++i)
      MLX_TRY((encoder->is_marked ? encode_marked_piece : encode_piece)(encoder, pieces->items[i].text,
                                                                        pieces->items[i].length));
    if (is_full(encoder) || !encoder->pretokenizer.cut_short) return NULL;
  }
}

static mlx_status_t normalize(encoder_t *encoder, const char *text, size_t length, size_t start_bytes,
                              filter_t filter) {
  MLX_TRY(mlx_normalizer_run(&encoder->tokenizer->normalizer, &encoder->normalizer, &encoder->scanner, text,
                             length, &text, &length, &start_bytes));
  return cut_added(encoder, &encoder->tokenizer->normalized_added, filter, &encoder->normalized_block, text,
                   length, start_bytes, encode_stretch);
}

static mlx_status_t encode_marked(encoder_t *encoder, const char *text, size_t length, size_t start_bytes) {
  return normalize(encoder, text, length, start_bytes, NOT_SPECIAL);
}

// Marks have no position in normalized text. So the special tokens that match normalized text are cut out of
// marked text before it is normalized.
static mlx_status_t encode_normalized(encoder_t *encoder, const char *text, size_t length,
                                      size_t start_bytes) {
  encoder->is_marked = mlx_plain_marks_has(encoder->marks, (size_t)(text - encoder->text), length);
  if (!encoder->is_marked) return normalize(encoder, text, length, start_bytes, ALL);
  return cut_added(encoder, &encoder->tokenizer->normalized_added, UNMARKED_SPECIAL, &encoder->marked_block,
                   text, length, start_bytes, encode_marked);
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
                                const mlx_plain_marks_t *marks, bool add_special, size_t limit,
                                mlx_ids_t *out_ids) {
  encoder_t encoder = {.tokenizer = tokenizer, .text = text, .marks = marks, .limit = limit};
  mlx_budget_begin(&encoder.budget, "tokenizing this text",
                   MIN_SECONDS + (int64_t)(length / BYTES_PER_SECOND), SIZE_MAX);
  MLX_TRY(mlx_regex_scanner_begin(&encoder.budget, &encoder.scanner));
  size_t first = 0;
  if (length) mlx_character_at(text, &first);
  mlx_status_t status = cut_added(&encoder, &tokenizer->raw_added, UNMARKED, &encoder.raw_block, text, length,
                                  first, encode_normalized);
  if (!status && add_special && tokenizer->template_ids) status = apply_template(tokenizer, &encoder.ids);
  mlx_bpe_scratch_free(&encoder.bpe);
  mlx_lattice_free(&encoder.lattice);
  mlx_added_block_free(&encoder.raw_block);
  mlx_added_block_free(&encoder.marked_block);
  mlx_added_block_free(&encoder.normalized_block);
  mlx_normalizer_scratch_free(&encoder.normalizer);
  mlx_pretokenizer_scratch_free(&encoder.pretokenizer);
  mlx_regex_scanner_end(&encoder.scanner);
  *out_ids = encoder.ids;
  return status;
}

mlx_status_t mlx_tokenizer_encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                  bool add_special, int32_t **out_ids, size_t *out_count) {
  return mlx_tokenizer_encode_within(tokenizer, text, length, add_special, SIZE_MAX, out_ids, out_count);
}

mlx_status_t mlx_tokenizer_encode_within(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                         bool add_special, size_t limit, int32_t **out_ids,
                                         size_t *out_count) {
  mlx_text_t repaired = {0};
  mlx_plain_marks_t marks = {0};
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
  if (!status) status = mlx_plain_marks_remove(&text, &length, &marks);
  const bool too_long = !status && tokenizer->longest && length / tokenizer->longest > limit;
  if (too_long) *out_count = length / tokenizer->longest;
  if (!status && !too_long) status = encode_utf8(tokenizer, text, length, &marks, add_special, limit, &ids);
  if (!status && !ids.items && !too_long)
    status = mlx_alloc(0, sizeof *ids.items, &ids.items);  // an empty result is still a valid pointer
  mlx_text_clear(&repaired);
  mlx_plain_marks_clear(&marks);
  if (!status && !too_long) *out_count = ids.count;
  if (status || too_long || ids.count > limit) {
    mlx_free(ids.items);
    return status;
  }
  *out_ids = ids.items;
  return NULL;
}

mlx_status_t mlx_tokenizer_encode_cut(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                      size_t limit, int32_t **out_ids, size_t *out_count) {
  const size_t special = tokenizer->template_count ? tokenizer->template_count - 1 : 0;
  *out_ids = NULL;
  *out_count = 0;
  if (special > limit)
    return mlx_error(MLX_USAGE, "a text of %zu tokens has no room for special tokens", limit);
  mlx_ids_t ids = {0};
  MLX_TRY(mlx_tokenizer_encode(tokenizer, text, length, false, &ids.items, &ids.count));
  if (ids.count > limit - special) ids.count = limit - special;
  mlx_status_t status = tokenizer->template_ids ? apply_template(tokenizer, &ids) : NULL;
  if (status) {
    mlx_free(ids.items);
    return status;
  }
  *out_ids = ids.items;
  *out_count = ids.count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Pairs

// Cuts two texts to |room| ids together. If the shorter one has at most half of them, only the other is cut.
static void cut_longest(size_t room, size_t counts[2]) {
  if (counts[0] + counts[1] <= room) return;
  const int shorter = counts[0] > counts[1];
  size_t low = counts[shorter], high = low > room ? low : room - low > low ? room - low : low;
  if (low + high > room) {
    low = room / 2;
    high = low + room % 2;
  }
  const size_t cut[2] = {shorter ? high : low, shorter ? low : high};
  for (int i = 0; i < 2; ++i)
    if (counts[i] > cut[i]) counts[i] = cut[i];
}

// An id that is not below |type_step| would be taken for one with type 1.
static mlx_status_t add_typed(mlx_ids_t *out, int32_t id, int32_t type, int32_t type_step) {
  if (type_step && id >= type_step)
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "the tokenizer produced token %d, but the model has only %d tokens", id,
                  type_step),
        "use the tokenizer that belongs to these weights");
  return mlx_ids_append(out, id + type * type_step);
}

static mlx_status_t join_pair(const mlx_tokenizer_t *tokenizer, mlx_ids_t texts[2], int32_t type_step,
                              mlx_ids_t *out) {
  for (size_t i = 0; i < tokenizer->pair_count; ++i) {
    const mlx_pair_item_t item = tokenizer->pair[i];
    const mlx_ids_t *text = item.id < 0 ? &texts[item.id == MLX_TEMPLATE_SECOND] : NULL;
    if (!text) MLX_TRY(add_typed(out, item.id, item.type, type_step));
    for (size_t j = 0; text && j < text->count; ++j)
      MLX_TRY(add_typed(out, text->items[j], item.type, type_step));
  }
  return NULL;
}

// The special tokens of a pair.
static mlx_status_t check_pair(const mlx_tokenizer_t *tokenizer, size_t limit, bool typed, size_t *out) {
  *out = 0;
  for (size_t i = 0; i < tokenizer->pair_count; ++i) {
    *out += tokenizer->pair[i].id >= 0;
    if (typed && tokenizer->pair[i].type > 1)
      return mlx_error(MLX_UNSUPPORTED,
                       "the tokenizer gives a token of a pair the type %d; at most 1 is supported",
                       tokenizer->pair[i].type);
  }
  if (!tokenizer->pair_count)
    return mlx_error(MLX_UNSUPPORTED, "the tokenizer has no template for pairs of texts");
  if (*out <= limit) return NULL;
  return mlx_error(MLX_USAGE, "a pair of %zu tokens has no room for special tokens", limit);
}

mlx_status_t mlx_tokenizer_encode_pair(const mlx_tokenizer_t *tokenizer, mlx_text_view_t first,
                                       mlx_text_view_t second, size_t limit, int32_t type_step,
                                       int32_t **out_ids, size_t *out_count) {
  mlx_ids_t texts[2] = {{0}, {0}}, whole = {0};
  size_t special;
  *out_ids = NULL;
  *out_count = 0;
  MLX_TRY(check_pair(tokenizer, limit, type_step != 0, &special));
  mlx_status_t status =
      mlx_tokenizer_encode(tokenizer, first.text, first.length, false, &texts[0].items, &texts[0].count);
  if (!status)
    status =
        mlx_tokenizer_encode(tokenizer, second.text, second.length, false, &texts[1].items, &texts[1].count);
  if (!status) {
    size_t counts[2] = {texts[0].count, texts[1].count};
    cut_longest(limit - special, counts);
    for (int i = 0; i < 2; ++i) texts[i].count = counts[i];
    status = join_pair(tokenizer, texts, type_step, &whole);
  }
  for (int i = 0; i < 2; ++i) mlx_free(texts[i].items);
  if (status) {
    mlx_free(whole.items);
    return status;
  }
  *out_ids = whole.items;
  *out_count = whole.count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Marks

// True if a special token matches normalized text.
static bool has_normalized_special(const mlx_tokenizer_t *tokenizer) {
  for (size_t i = 0; i < tokenizer->added_count; ++i) {
    const mlx_added_token_t *added = &tokenizer->added[i];
    if (added->flags & MLX_ADDED_NORMALIZED && mlx_tokenizer_is_special(tokenizer, added->id)) return true;
  }
  return false;
}

// Sets |marks| [length] where a special token of |set| begins and, with |ends|, where any of its tokens ends.
static mlx_status_t find_special(const mlx_tokenizer_t *tokenizer, const mlx_added_set_t *set, bool ends,
                                 const char *text, size_t length, bool *marks) {
  mlx_added_block_t block = {0};
  mlx_status_t status = NULL;
  for (size_t i = 0; i < length && set->count && !status; ++i) {
    if (i >= block.end) status = mlx_added_set_search(set, text, length, i, &block);
    if (status) break;
    const mlx_added_match_t match = block.matches[i - block.begin];
    if (match.index < 0) continue;
    if (mlx_tokenizer_is_special(tokenizer, tokenizer->added[match.index].id)) marks[i] = true;
    if (ends && i + match.length < length) marks[i + match.length] = true;
  }
  mlx_added_block_free(&block);
  return status;
}

mlx_status_t mlx_tokenizer_mark(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                mlx_text_t *out) {
  // Normalizing may make a special token of other characters. A mark at the start of each stretch that is
  // normalized keeps all of the stretch from that.
  const bool stretches = has_normalized_special(tokenizer);
  bool *marks;
  size_t done = 0;
  MLX_TRY(mlx_alloc(length + 1, sizeof *marks, &marks));
  marks[0] = stretches;
  mlx_status_t status = find_special(tokenizer, &tokenizer->raw_added, stretches, text, length, marks);
  if (!status) status = find_special(tokenizer, &tokenizer->normalized_added, false, text, length, marks);
  for (size_t i = 0; i < length && !status; ++i) {
    if (!marks[i]) continue;
    mlx_text_append(out, text + done, i - done);
    mlx_plain_marks_put(out);
    done = i;
  }
  mlx_text_append(out, text + done, length - done);
  mlx_free(marks);
  return status ? status : mlx_text_finish(out);
}
