// The public functions of the tokenizer: creating, encoding around added tokens, decoding.
//
// Encoding has Hugging Face's order: added tokens are cut out first, what is left is pre-tokenized into pieces, each piece
// is merged by BPE, and the post-processor's template goes around the result.
#include "runtime/tokenizer.h"

#include <string.h>
#include <sys/random.h>

#include "runtime/tokenizer_internal.h"

#define MAX_TEXT ((size_t)256 << 20)  // positions are 32-bit, and U+FFFD or added spaces can triple a text

// ---------------------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_tokenizer_create(const char *name, const char *json, size_t length, mlx_tokenizer_t **out_tokenizer) {
  mlx_json_t document;
  *out_tokenizer = NULL;
  mlx_tokenizer_t *tokenizer;
  MLX_TRY(mlx_json_parse(name, json, length, &document));
  mlx_status_t status = mlx_alloc(1, sizeof *tokenizer, &tokenizer);
  if (!status) {
    // Any seed gives the same ids; a random one keeps a file from aiming at the hash. Without entropy, that alone is lost.
    if (getentropy(&tokenizer->seed, sizeof tokenizer->seed)) tokenizer->seed = (uintptr_t)tokenizer;
    status = mlx_tokenizer_read(&document, tokenizer);
  }
  mlx_json_close(&document);
  if (status) {
    mlx_tokenizer_free(tokenizer);
    return status;
  }
  *out_tokenizer = tokenizer;
  return NULL;
}

static void free_added_set(mlx_added_set_t *set) {
  mlx_pair_map_free(&set->edges);
  mlx_free(set->ends);
}

void mlx_tokenizer_free(mlx_tokenizer_t *tokenizer) {
  if (!tokenizer) return;
  for (size_t i = 0; i < tokenizer->step_count; ++i) {
    if (tokenizer->steps[i].regex) onig_free(tokenizer->steps[i].regex);
  }
  if (tokenizer->word_regex) onig_free(tokenizer->word_regex);
  free_added_set(&tokenizer->raw_added);
  free_added_set(&tokenizer->normalized_added);
  mlx_pair_map_free(&tokenizer->merges);
  mlx_free(tokenizer->tokens);
  mlx_free(tokenizer->arena);
  mlx_free(tokenizer->names);
  mlx_free(tokenizer->added);
  mlx_free(tokenizer->steps);
  mlx_free(tokenizer->template_ids);
  mlx_free(tokenizer);
}

size_t mlx_tokenizer_vocab_size(const mlx_tokenizer_t *tokenizer) { return tokenizer->vocab_size; }

bool mlx_tokenizer_find(const mlx_tokenizer_t *tokenizer, const char *token, int32_t *out_id) {
  int32_t id = mlx_names_find(tokenizer, token, strlen(token));
  if (id < 0) return false;
  *out_id = id;
  return true;
}

// NULL for an id that names no token.
static const mlx_token_t *token_of(const mlx_tokenizer_t *tokenizer, int32_t id) {
  if (id < 0 || (size_t)id >= tokenizer->vocab_size) return NULL;
  return tokenizer->tokens[id].text ? &tokenizer->tokens[id] : NULL;
}

bool mlx_tokenizer_is_special(const mlx_tokenizer_t *tokenizer, int32_t id) {
  const mlx_token_t *token = token_of(tokenizer, id);
  return token && token->special;
}

// ---------------------------------------------------------------------------------------------------------------------
// Bytes to text

static const char replacement[] = "\xef\xbf\xbd";  // U+FFFD

// Takes one byte more; gives out a character when it is whole. What can no longer become one is replaced by one U+FFFD
// for each longest good beginning, as Python's errors='replace' and Rust's from_utf8_lossy do.
static void push_byte(mlx_detokenizer_t *detokenizer, char byte, mlx_text_t *out) {
  detokenizer->tail[detokenizer->tail_length++] = byte;
  int length = mlx_utf8_length(detokenizer->tail, detokenizer->tail_length);
  if (length < 0) return;
  if (length > 0) {
    mlx_text_append(out, detokenizer->tail, (size_t)length);
    detokenizer->tail_length = 0;
    return;
  }
  bool had_beginning = detokenizer->tail_length > 1;
  mlx_text_append(out, replacement, 3);
  detokenizer->tail_length = 0;
  // The byte ended a good beginning that was there before it; by itself it may still be or begin a character.
  if (had_beginning) push_byte(detokenizer, byte, out);
}

static void push_bytes(mlx_detokenizer_t *detokenizer, const char *bytes, size_t length, mlx_text_t *out) {
  for (size_t i = 0; i < length;) {
    size_t run = i;
    while (!detokenizer->tail_length && run < length && (uint8_t)bytes[run] < 0x80) ++run;
    if (run > i) {
      mlx_text_append(out, bytes + i, run - i);
      i = run;
    } else {
      push_byte(detokenizer, bytes[i++], out);
    }
  }
}

void mlx_detokenizer_push(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer, int32_t id,
                          bool skip_special, mlx_text_t *out) {
  const mlx_token_t *token = token_of(tokenizer, id);
  if (!token || (skip_special && token->special)) return;
  push_bytes(detokenizer, token->bytes, token->byte_length, out);
}

void mlx_detokenizer_flush(mlx_detokenizer_t *detokenizer, mlx_text_t *out) {
  if (detokenizer->tail_length) mlx_text_append(out, replacement, 3);
  *detokenizer = (mlx_detokenizer_t){0};
}

mlx_status_t mlx_tokenizer_decode(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                                  char **out_text, size_t *out_length) {
  mlx_text_t text = {0};
  mlx_detokenizer_t detokenizer = {0};
  *out_text = NULL;
  for (size_t i = 0; i < count; ++i) mlx_detokenizer_push(tokenizer, &detokenizer, ids[i], skip_special, &text);
  mlx_detokenizer_flush(&detokenizer, &text);
  mlx_status_t status = mlx_text_take(&text, out_text, out_length);
  if (status) mlx_text_clear(&text);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Added tokens

// Everything one encode works on.
typedef struct encoder {
  const mlx_tokenizer_t *tokenizer;
  mlx_splitter_t splitter;
  mlx_merger_t merger;
  mlx_ids_t ids;
} encoder_t;

// The length of the longest added token at |text|, 0 for none.
static size_t match_added(const mlx_added_set_t *set, const char *text, size_t length, int32_t *out_index) {
  size_t longest = 0;
  uint64_t node = 0;
  for (size_t i = 0; i < length && mlx_pair_map_get(&set->edges, mlx_pair((uint32_t)node, (uint8_t)text[i]), &node); ++i) {
    if (set->ends[node] < 0) continue;
    *out_index = set->ends[node];
    longest = i + 1;
  }
  return longest;
}

static size_t character_before(const char *text, size_t at) {
  size_t start = at - 1;
  while (start && ((uint8_t)text[start] & 0xc0) == 0x80) --start;
  return at - start;
}

static bool stands_alone(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, size_t start, size_t stop) {
  if (start) {
    size_t before = character_before(text, start);
    if (mlx_regex_is(tokenizer->word_regex, text + start - before, before)) return false;
  }
  if (stop == length) return true;
  return !mlx_regex_is(tokenizer->word_regex, text + stop, (size_t)mlx_utf8_length(text + stop, length - stop));
}

// Unicode's White_Space.
static bool is_space(const char *text, size_t length) {
  const uint8_t *s = (const uint8_t *)text;
  if (length == 1) return s[0] == ' ' || (s[0] >= 0x09 && s[0] <= 0x0d);
  if (length == 2) return s[0] == 0xc2 && (s[1] == 0x85 || s[1] == 0xa0);
  if (length != 3) return false;
  uint32_t character = (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
  return character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
         character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}

// Where the spaces before |at| begin, but not before |limit|.
static size_t skip_spaces_back(const char *text, size_t limit, size_t at) {
  while (at > limit) {
    size_t length = character_before(text, at);
    if (!is_space(text + at - length, length)) break;
    at -= length;
  }
  return at > limit ? at : limit;
}

static size_t skip_spaces(const char *text, size_t length, size_t at) {
  while (at < length) {
    int character = mlx_utf8_length(text + at, length - at);
    if (character <= 0 || !is_space(text + at, (size_t)character)) break;
    at += (size_t)character;
  }
  return at;
}

typedef mlx_status_t (*text_fn_t)(encoder_t *encoder, const char *text, size_t length);

// Cuts the tokens of |set| out of |text| and gives the stretches between them to |rest|. A token that takes the spaces
// after it (rstrip) does not hide tokens in those spaces: they come too, as with Hugging Face.
static mlx_status_t cut_added(encoder_t *encoder, const mlx_added_set_t *set, const char *text, size_t length,
                              text_fn_t rest) {
  size_t done = 0, spaces_start = 0, spaces_stop = 0;
  for (size_t i = 0, matched; i < length; i += matched) {
    int32_t index = -1;
    while (i < length && !set->starts[(uint8_t)text[i]]) ++i;
    matched = i < length ? match_added(set, text + i, length - i, &index) : 0;
    if (!matched) {
      matched = 1;
      continue;
    }
    const mlx_added_token_t *added = &encoder->tokenizer->added[index];
    size_t start = i, stop = i + matched;
    if (added->single_word && !stands_alone(encoder->tokenizer, text, length, start, stop)) continue;
    if (added->lstrip) start = skip_spaces_back(text, done, start);
    if (added->rstrip) {
      // Inside the spaces skipped last their end is known: a token that is itself a space would walk them each time.
      if (stop < spaces_start || stop > spaces_stop) spaces_stop = skip_spaces(text, length, spaces_start = stop);
      stop = spaces_stop;
    }
    if (done < start) MLX_TRY(rest(encoder, text + done, start - done));
    MLX_TRY(mlx_ids_append(&encoder->ids, added->id));
    done = stop;
  }
  return done < length ? rest(encoder, text + done, length - done) : NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Encoding

static mlx_status_t encode_plain(encoder_t *encoder, const char *text, size_t length) {
  MLX_TRY(mlx_splitter_run(encoder->tokenizer, &encoder->splitter, text, length));
  const mlx_pieces_t *pieces = &encoder->splitter.pieces;
  for (size_t i = 0; i < pieces->count; ++i) {
    MLX_TRY(mlx_merger_run(encoder->tokenizer, &encoder->merger, pieces->items[i].text, pieces->items[i].length,
                           &encoder->ids));
  }
  return NULL;
}

static mlx_status_t encode_normalized(encoder_t *encoder, const char *text, size_t length) {
  return cut_added(encoder, &encoder->tokenizer->normalized_added, text, length, encode_plain);
}

// Puts the template around the ids: |ids| becomes what the post-processor makes of it.
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

static mlx_status_t encode_valid(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, bool add_special,
                                 mlx_ids_t *out_ids) {
  encoder_t encoder = {.tokenizer = tokenizer};
  MLX_TRY(mlx_splitter_begin(length, &encoder.splitter));
  mlx_status_t status = cut_added(&encoder, &tokenizer->raw_added, text, length, encode_normalized);
  if (!status && add_special && tokenizer->template_ids) status = apply_template(tokenizer, &encoder.ids);
  mlx_merger_end(&encoder.merger);
  mlx_splitter_end(&encoder.splitter);
  *out_ids = encoder.ids;
  return status;
}

static bool is_utf8(const char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    int character = mlx_utf8_length(text + i, length - i);
    if (character <= 0) return false;
    i += (size_t)character;
  }
  return true;
}

mlx_status_t mlx_tokenizer_encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, bool add_special,
                                  int32_t **out_ids, size_t *out_count) {
  mlx_text_t repaired = {0};
  mlx_ids_t ids = {0};
  *out_ids = NULL;
  *out_count = 0;
  if (length > MAX_TEXT) return mlx_error(MLX_UNSUPPORTED, "a text of %zu bytes is too long to tokenize", length);
  mlx_status_t status = NULL;
  if (!is_utf8(text, length)) {
    mlx_detokenizer_t detokenizer = {0};
    push_bytes(&detokenizer, text, length, &repaired);
    mlx_detokenizer_flush(&detokenizer, &repaired);
    status = mlx_text_finish(&repaired);
    text = repaired.data;
    length = repaired.length;
  }
  if (!status) status = encode_valid(tokenizer, text, length, add_special, &ids);
  if (!status && !ids.items) status = mlx_alloc(0, sizeof *ids.items, &ids.items);  // no ids: still a pointer to free
  mlx_text_clear(&repaired);
  if (status) {
    mlx_free(ids.items);
    return status;
  }
  *out_ids = ids.items;
  *out_count = ids.count;
  return NULL;
}
