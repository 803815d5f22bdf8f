// The public functions of the tokenizer: creating, and encoding around added tokens.
//
// Encoding has Hugging Face's order: added tokens are cut out first, what is left is normalized, the added
// tokens that are looked for in normalized text are cut out, what is left then is pre-tokenized into pieces,
// the model turns each piece into ids, and the post-processor's template goes around the result.
#include "tokenizer/tokenizer.h"

#include <string.h>
#include <sys/random.h>

#include "tokenizer/internal.h"

#define MAX_TEXT ((size_t)256 << 20)  // positions are 32-bit, and U+FFFD or added spaces can triple a text

// ----------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_tokenizer_create(const char *name, const char *json, size_t length,
                                  mlx_tokenizer_t **out_tokenizer) {
  mlx_json_t document;
  *out_tokenizer = NULL;
  mlx_tokenizer_t *tokenizer;
  MLX_TRY(mlx_json_parse(name, json, length, &document));
  mlx_status_t status = mlx_alloc(1, sizeof *tokenizer, &tokenizer);
  if (!status) {
    // Any seed gives the same ids; a random one keeps a file from aiming at the hash. Without entropy, that
    // alone is lost.
    if (getrandom(&tokenizer->seed, sizeof tokenizer->seed, 0) != sizeof tokenizer->seed)
      tokenizer->seed = (uintptr_t)tokenizer;
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

static void free_decoder(mlx_decoder_t *decoder) {
  for (size_t i = 0; i < decoder->replacement_count; ++i) {
    mlx_free(decoder->replacements[i].pattern);
    mlx_free(decoder->replacements[i].content);
  }
  mlx_free(decoder->prefix);
}

void mlx_tokenizer_free(mlx_tokenizer_t *tokenizer) {
  if (!tokenizer) return;
  for (size_t i = 0; i < tokenizer->normal_count; ++i) mlx_normal_step_free(&tokenizer->normal_steps[i]);
  for (size_t i = 0; i < tokenizer->step_count; ++i) {
    if (tokenizer->steps[i].regex) onig_free(tokenizer->steps[i].regex);
  }
  for (size_t i = 0; i < tokenizer->added_count; ++i) mlx_free(tokenizer->added[i].normal);
  if (tokenizer->word_regex) onig_free(tokenizer->word_regex);
  free_decoder(&tokenizer->decoder);
  mlx_trie_free(&tokenizer->raw_added.trie);
  mlx_trie_free(&tokenizer->normalized_added.trie);
  mlx_trie_free(&tokenizer->trie);
  mlx_pair_map_free(&tokenizer->merges);
  mlx_free(tokenizer->tokens);
  mlx_free(tokenizer->arena);
  mlx_free(tokenizer->names);
  mlx_free(tokenizer->added);
  mlx_free(tokenizer->scores);
  mlx_free(tokenizer->prefix);
  mlx_free(tokenizer->normal_steps);
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

bool mlx_tokenizer_is_special(const mlx_tokenizer_t *tokenizer, int32_t id) {
  return id >= 0 && (size_t)id < tokenizer->vocab_size && tokenizer->tokens[id].special;
}

// ----------------------------------------------------------------------------------------------------------
// Added tokens

// Everything one encode works on.
typedef struct encoder {
  const mlx_tokenizer_t *tokenizer;
  mlx_normalizer_t normalizer;
  mlx_splitter_t splitter;
  mlx_merger_t merger;
  mlx_lattice_t lattice;
  mlx_ids_t ids;
} encoder_t;

// The length of the longest added token at |text|, 0 for none.
static size_t match_added(const mlx_added_set_t *set, const char *text, size_t length, int32_t *out_index) {
  size_t longest = 0;
  uint32_t node = 0;
  for (size_t i = 0; i < length && mlx_trie_step(&set->trie, &node, text[i]); ++i) {
    if (set->trie.ends[node] < 0) continue;
    *out_index = set->trie.ends[node];
    longest = i + 1;
  }
  return longest;
}

static size_t character_before(const char *text, size_t at) {
  size_t start = at - 1;
  while (start && ((uint8_t)text[start] & 0xc0) == 0x80) --start;
  return at - start;
}

static bool stands_alone(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, size_t start,
                         size_t stop) {
  if (start) {
    size_t before = character_before(text, start);
    if (mlx_regex_is(tokenizer->word_regex, text + start - before, before)) return false;
  }
  if (stop == length) return true;
  return !mlx_regex_is(tokenizer->word_regex, text + stop,
                       (size_t)mlx_utf8_length(text + stop, length - stop));
}

// Where the spaces before |at| begin, but not before |limit|.
static size_t skip_spaces_back(const char *text, size_t limit, size_t at) {
  while (at > limit) {
    size_t length = character_before(text, at);
    if (!mlx_is_space(mlx_character_at(text + at - length, &length))) break;
    at -= length;
  }
  return at > limit ? at : limit;
}

static size_t skip_spaces(const char *text, size_t length, size_t at) {
  for (size_t size; at < length && mlx_is_space(mlx_character_at(text + at, &size));) at += size;
  return at;
}

// |start_bytes|: bytes at the beginning of the stretch that stand for the whole text's first character.
typedef mlx_status_t (*text_fn_t)(encoder_t *encoder, const char *text, size_t length, size_t start_bytes);

// Cuts the tokens of |set| out of |text| and gives the stretches between them to |rest|. A token that takes
// the spaces after it (rstrip) does not hide tokens in those spaces: they come too, as with Hugging Face.
static mlx_status_t cut_added(encoder_t *encoder, const mlx_added_set_t *set, const char *text, size_t length,
                              size_t start_bytes, text_fn_t rest) {
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
      // Inside the spaces skipped last their end is known: a token that is itself a space would walk them
      // each time.
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
  switch (encoder->tokenizer->kind) {
    case MLX_MODEL_BPE:
      return mlx_merger_run(encoder->tokenizer, &encoder->merger, text, length, &encoder->ids);
    case MLX_MODEL_UNIGRAM:
      return mlx_lattice_run(encoder->tokenizer, &encoder->lattice, text, length, &encoder->ids);
    case MLX_MODEL_WORDPIECE: return mlx_wordpiece_run(encoder->tokenizer, text, length, &encoder->ids);
  }
  return mlx_error(MLX_INTERNAL, "no such kind of tokenizer");
}

static mlx_status_t encode_plain(encoder_t *encoder, const char *text, size_t length, size_t start_bytes) {
  MLX_TRY(mlx_splitter_run(encoder->tokenizer, &encoder->splitter, text, length, start_bytes));
  const mlx_pieces_t *pieces = &encoder->splitter.pieces;
  for (size_t i = 0; i < pieces->count; ++i) {
    MLX_TRY(encode_piece(encoder, pieces->items[i].text, pieces->items[i].length));
  }
  return NULL;
}

static mlx_status_t encode_normalized(encoder_t *encoder, const char *text, size_t length,
                                      size_t start_bytes) {
  MLX_TRY(mlx_normalizer_run(encoder->tokenizer, &encoder->normalizer, &encoder->splitter, text, length,
                             &text, &length, &start_bytes));
  return cut_added(encoder, &encoder->tokenizer->normalized_added, text, length, start_bytes, encode_plain);
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

static mlx_status_t encode_valid(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                 bool add_special, mlx_ids_t *out_ids) {
  encoder_t encoder = {.tokenizer = tokenizer};
  MLX_TRY(mlx_splitter_begin(length, &encoder.splitter));
  size_t first = 0;
  if (length) mlx_character_at(text, &first);
  mlx_status_t status = cut_added(&encoder, &tokenizer->raw_added, text, length, first, encode_normalized);
  if (!status && add_special && tokenizer->template_ids) status = apply_template(tokenizer, &encoder.ids);
  mlx_merger_end(&encoder.merger);
  mlx_lattice_end(&encoder.lattice);
  mlx_normalizer_end(&encoder.normalizer);
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

mlx_status_t mlx_tokenizer_encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                  bool add_special, int32_t **out_ids, size_t *out_count) {
  mlx_text_t repaired = {0};
  mlx_ids_t ids = {0};
  *out_ids = NULL;
  *out_count = 0;
  if (length > MAX_TEXT)
    return mlx_error(MLX_UNSUPPORTED, "a text of %zu bytes is too long to tokenize", length);
  mlx_status_t status = NULL;
  if (!is_utf8(text, length)) {
    mlx_detokenizer_t detokenizer = {0};
    mlx_detokenizer_bytes(&detokenizer, text, length, &repaired);
    if (detokenizer.tail_length) mlx_text_puts(&repaired, "\xef\xbf\xbd");
    status = mlx_text_finish(&repaired);
    text = repaired.data;
    length = repaired.length;
  }
  if (!status) status = encode_valid(tokenizer, text, length, add_special, &ids);
  if (!status && !ids.items)
    status = mlx_alloc(0, sizeof *ids.items, &ids.items);  // no ids: still a pointer to free
  mlx_text_clear(&repaired);
  if (status) {
    mlx_free(ids.items);
    return status;
  }
  *out_ids = ids.items;
  *out_count = ids.count;
  return NULL;
}
