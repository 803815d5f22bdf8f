// model and added_tokens of a tokenizer.json: the tokens by id, and what each kind of model needs to find
// them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/read.h"

#define MAX_ADDED_LENGTH 1024  // bytes; bounds the time to look for added tokens
#define MAX_TRIE_TOKEN 1024    // bytes; bounds the time of Unigram and WordPiece at each place of a text
#define UNK_PENALTY 10.0       // below the lowest score: Unigram's score of what it does not know

// single_word asks the regex crate's \w: unlike Oniguruma's it has the joiners, and not ² ³ ¹ ¼ ½ ¾.
static const char word_pattern[] = "[\\w\\x{200C}\\x{200D}&&[^\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]]";

static const char *const kinds[] = {
    [MLX_MODEL_BPE] = "BPE", [MLX_MODEL_UNIGRAM] = "Unigram", [MLX_MODEL_WORDPIECE] = "WordPiece"};

// ----------------------------------------------------------------------------------------------------------
// The table of tokens

// State of reading the model and the added tokens.
typedef struct model_reader {
  const mlx_json_t *json;
  mlx_tokenizer_t *tokenizer;
  yyjson_val *model, *vocab, *added;
  size_t vocab_count, vocab_bytes;
  size_t arena_used;
} model_reader_t;

// "is/has id N, which 'TOKEN' has too": the token that took an id first. Its text does not end with a NUL.
static mlx_status_t taken_error(const mlx_json_t *json, const char *path, const char *verb, int32_t id,
                                const mlx_token_t *token) {
  return mlx_field_error(json, MLX_INVALID_INPUT, path, "%s %d, which '%.*s' has too", verb, id,
                         token->text_length > 60 ? 60 : (int)token->text_length, token->text);
}

// Walks model.vocab: {"token": id} or, for Unigram, [["token", score]], where the place is the id.
typedef struct vocab_walk {
  yyjson_obj_iter entries;
  yyjson_arr_iter pairs;
  int32_t next_id;
} vocab_walk_t;

typedef struct vocab_item {
  const char *text;
  size_t length;
  int32_t id;
  yyjson_val *score;
} vocab_item_t;

static vocab_walk_t begin_walk(const model_reader_t *reader) {
  vocab_walk_t walk = {0};
  if (reader->tokenizer->kind == MLX_MODEL_UNIGRAM) {
    yyjson_arr_iter_init(reader->vocab, &walk.pairs);
  } else {
    yyjson_obj_iter_init(reader->vocab, &walk.entries);
  }
  return walk;
}

static mlx_status_t next_pair(const model_reader_t *reader, vocab_walk_t *walk, vocab_item_t *out,
                              bool *out_found) {
  char path[MLX_PATH_SIZE];
  yyjson_val *pair = yyjson_arr_iter_next(&walk->pairs), *text = yyjson_arr_get_first(pair);
  if (!pair) return NULL;
  *out =
      (vocab_item_t){yyjson_get_str(text), yyjson_get_len(text), walk->next_id++, yyjson_arr_get_last(pair)};
  *out_found = true;
  if (yyjson_arr_size(pair) == 2 && out->text && yyjson_is_num(out->score)) return NULL;
  return mlx_field_error(reader->json, MLX_INVALID_INPUT,
                         mlx_field_index(path, "model.vocab", (size_t)out->id), "must be [token, score]");
}

static mlx_status_t next_item(const model_reader_t *reader, vocab_walk_t *walk, vocab_item_t *out,
                              bool *out_found) {
  *out_found = false;
  if (reader->tokenizer->kind == MLX_MODEL_UNIGRAM) return next_pair(reader, walk, out, out_found);
  yyjson_val *key = yyjson_obj_iter_next(&walk->entries);
  if (!key) return NULL;
  *out = (vocab_item_t){.text = yyjson_get_str(key), .length = yyjson_get_len(key)};
  *out_found = true;
  return mlx_field_id(reader->json, "model.vocab.", out->text, yyjson_obj_iter_get_val(key), &out->id);
}

// How many bytes and ids there are.
static mlx_status_t measure(model_reader_t *reader, size_t *out_bytes, size_t *out_ids) {
  size_t index, max;
  yyjson_val *value;
  int32_t id, top = -1;
  bool found = true;
  vocab_walk_t walk = begin_walk(reader);
  for (vocab_item_t item;;) {
    MLX_TRY(next_item(reader, &walk, &item, &found));
    if (!found) break;
    if (item.id > top) top = item.id;
    reader->vocab_bytes += item.length;  // all of it lies in the file, so the sum is no larger than that
  }
  size_t bytes = reader->vocab_bytes;
  yyjson_arr_foreach(reader->added, index, max, value) {
    char path[MLX_PATH_SIZE];
    mlx_field_index(path, "added_tokens", index);
    MLX_TRY(mlx_field_id(reader->json, path, ".id", mlx_json_find(value, "id"), &id));
    if (id > top) top = id;
    bytes += yyjson_get_len(mlx_json_find(value, "content"));
  }
  if (top > MLX_MAX_ID) {
    return mlx_field_error(reader->json, MLX_UNSUPPORTED, "model.vocab", "is longer than %d tokens",
                           MLX_MAX_ID + 1);
  }
  *out_bytes = bytes;
  *out_ids = (size_t)(top + 1);
  return NULL;
}

// Copies a token's text into the arena, with its bytes after it where they differ from it.
static void set_token(model_reader_t *reader, int32_t id, const char *text, size_t length) {
  char *copy = reader->tokenizer->arena + reader->arena_used;
  size_t byte_length;
  memcpy(copy, text, length);
  mlx_token_t *token = &reader->tokenizer->tokens[id];
  *token = (mlx_token_t){
      .text = copy, .text_length = (uint32_t)length, .bytes = copy, .byte_length = (uint32_t)length};
  reader->arena_used += length;
  if (reader->tokenizer->byte_level && mlx_unspell(text, length, copy + length, &byte_length)) {
    token->bytes = copy + length;
    token->byte_length = (uint32_t)byte_length;
    reader->arena_used += byte_length;
  }
  mlx_names_add(reader->tokenizer, id);
}

static mlx_status_t read_vocab(model_reader_t *reader) {
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  vocab_walk_t walk = begin_walk(reader);
  bool found;
  for (vocab_item_t item;;) {
    MLX_TRY(next_item(reader, &walk, &item, &found));
    if (!found) return NULL;
    if (tokenizer->tokens[item.id].text) {
      char path[MLX_PATH_SIZE];
      mlx_field_path(path, "model.vocab.%.80s", item.text);
      return taken_error(reader->json, path, "has id", item.id, &tokenizer->tokens[item.id]);
    }
    set_token(reader, item.id, item.text, item.length);
    tokenizer->tokens[item.id].in_model = true;
    if (item.length > tokenizer->longest_text) tokenizer->longest_text = item.length;
  }
}

// The tokens of single bytes: as byte-level BPE spells them, or as <0x41>.
static void find_byte_ids(mlx_tokenizer_t *tokenizer) {
  for (int byte = 0; byte < 256; ++byte) {
    char spelled[8];
    size_t length = tokenizer->byte_level ? mlx_spell_byte((uint8_t)byte, spelled)
                                          : (size_t)snprintf(spelled, sizeof spelled, "<0x%02X>", byte);
    tokenizer->byte_ids[byte] = mlx_model_find(tokenizer, spelled, length);
  }
}

// ----------------------------------------------------------------------------------------------------------
// BPE

typedef struct merge_parts {
  const char *left, *right;
  size_t left_length, right_length;
} merge_parts_t;

// A merge is "a b" in older files and ["a", "b"] in newer ones.
static bool split_merge(yyjson_val *merge, merge_parts_t *out) {
  if (yyjson_is_arr(merge) && yyjson_arr_size(merge) == 2) {
    yyjson_val *left = yyjson_arr_get_first(merge), *right = yyjson_arr_get_last(merge);
    *out = (merge_parts_t){yyjson_get_str(left), yyjson_get_str(right), yyjson_get_len(left),
                           yyjson_get_len(right)};
    return out->left && out->right;
  }
  if (!yyjson_is_str(merge)) return false;
  const char *text = yyjson_get_str(merge), *end = text + yyjson_get_len(merge);
  const char *space = memchr(text, ' ', (size_t)(end - text));
  if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
  *out = (merge_parts_t){text, space + 1, (size_t)(space - text), (size_t)(end - space - 1)};
  return true;
}

static mlx_status_t find_part(const mlx_json_t *json, const mlx_tokenizer_t *tokenizer, size_t index,
                              const char *text, size_t length, int32_t *out_id) {
  char path[MLX_PATH_SIZE];
  *out_id = mlx_names_find(tokenizer, text, length);
  if (*out_id >= 0) return NULL;
  return mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_index(path, "model.merges", index),
                         "needs the token '%.*s', which is not in model.vocab",
                         length > 60 ? 60 : (int)length, text);
}

static mlx_status_t read_merge(const mlx_json_t *json, yyjson_val *merge, size_t index, uint32_t rank,
                               mlx_tokenizer_t *tokenizer, char *joined) {
  merge_parts_t parts;
  int32_t left, right, merged;
  if (!split_merge(merge, &parts)) {
    char path[MLX_PATH_SIZE];
    return mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_index(path, "model.merges", index),
                           "must be \"a b\" or [\"a\", \"b\"]");
  }
  MLX_TRY(find_part(json, tokenizer, index, parts.left, parts.left_length, &left));
  MLX_TRY(find_part(json, tokenizer, index, parts.right, parts.right_length, &right));
  // Both parts are tokens now, so |joined| has room for them.
  memcpy(joined, parts.left, parts.left_length);
  memcpy(joined + parts.left_length, parts.right, parts.right_length);
  MLX_TRY(find_part(json, tokenizer, index, joined, parts.left_length + parts.right_length, &merged));
  mlx_pair_map_put(&tokenizer->merges, mlx_pair((uint32_t)left, (uint32_t)right),
                   mlx_pair(rank, (uint32_t)merged));
  return NULL;
}

static mlx_status_t read_merges(const mlx_json_t *json, yyjson_val *merges, mlx_tokenizer_t *tokenizer) {
  size_t index, max;
  yyjson_val *merge;
  char *joined;
  uint32_t rank = 0;
  if (yyjson_arr_size(merges) >= UINT32_MAX)
    return mlx_field_error(json, MLX_UNSUPPORTED, "model.merges", "is too long");
  MLX_TRY(mlx_pair_map_create(yyjson_arr_size(merges), tokenizer->seed, &tokenizer->merges));
  MLX_TRY(mlx_alloc(2 * tokenizer->longest_text, 1, &joined));
  mlx_status_t status = NULL;
  yyjson_arr_foreach(merges, index, max, merge) {
    // Old files keep the first line of merges.txt, "#version: 0.2"; it has no rank.
    if (yyjson_is_str(merge) && !strncmp(yyjson_get_str(merge), "#version", 8)) continue;
    status = read_merge(json, merge, index, rank++, tokenizer, joined);
    if (status) break;
  }
  mlx_free(joined);
  return status;
}

// Options of BPE that the models we know leave off.
static mlx_status_t check_bpe_options(const mlx_json_t *json, yyjson_val *model) {
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  char path[MLX_PATH_SIZE];
  for (size_t i = 0; i < sizeof affixes / sizeof *affixes; ++i) {
    yyjson_val *value = mlx_json_find(model, affixes[i]);
    if (value && !(yyjson_is_str(value) && !yyjson_get_len(value))) {
      mlx_field_join(path, "model", affixes[i]);
      return mlx_field_error(json, MLX_UNSUPPORTED, path, "is set; only null or \"\" is supported");
    }
  }
  yyjson_val *dropout = mlx_json_find(model, "dropout");
  if (dropout && !(yyjson_is_num(dropout) && yyjson_get_num(dropout) == 0)) {
    return mlx_field_error(json, MLX_UNSUPPORTED, "model.dropout", "is set; only null or 0 is supported");
  }
  return NULL;
}

// The unk_token stands for what has no token; where every byte has one it means nothing.
static mlx_status_t read_unk_token(const model_reader_t *reader) {
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  yyjson_val *unk = mlx_json_find(reader->model, "unk_token");
  bool needed = !tokenizer->byte_level && !tokenizer->byte_fallback;
  tokenizer->unk_id = -1;
  if (!unk) return NULL;
  if (!yyjson_is_str(unk)) {
    return mlx_field_error(reader->json, MLX_INVALID_INPUT, "model.unk_token", "must be a string or null");
  }
  if (!yyjson_get_len(unk) && tokenizer->kind == MLX_MODEL_BPE) return NULL;
  tokenizer->unk_id = mlx_model_find(tokenizer, yyjson_get_str(unk), yyjson_get_len(unk));
  for (int byte = 0; byte < 256; ++byte) needed |= tokenizer->byte_ids[byte] < 0;
  if (tokenizer->unk_id >= 0 || !needed) return NULL;
  return mlx_field_error(reader->json, MLX_INVALID_INPUT, "model.unk_token",
                         "is '%.60s', which is not in model.vocab", yyjson_get_str(unk));
}

static mlx_status_t read_bpe(const model_reader_t *reader) {
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  yyjson_val *merges = mlx_json_find(reader->model, "merges");
  MLX_TRY(check_bpe_options(json, reader->model));
  MLX_TRY(mlx_field_bool(json, "model", reader->model, "ignore_merges", false, &tokenizer->ignore_merges));
  MLX_TRY(mlx_field_bool(json, "model", reader->model, "byte_fallback", false, &tokenizer->byte_fallback));
  MLX_TRY(mlx_field_bool(json, "model", reader->model, "fuse_unk", false, &tokenizer->fuse_unk));
  if (tokenizer->byte_fallback && tokenizer->byte_level) {
    return mlx_field_error(json, MLX_UNSUPPORTED, "model.byte_fallback",
                           "is true; with ByteLevel only false is supported");
  }
  MLX_TRY(mlx_field_container(json, "model.merges", merges, true));
  MLX_TRY(read_unk_token(reader));
  return read_merges(json, merges, tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Unigram and WordPiece

static mlx_status_t fill_trie(const model_reader_t *reader) {
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  if (tokenizer->longest_text > MAX_TRIE_TOKEN) {
    return mlx_field_error(reader->json, MLX_UNSUPPORTED, "model.vocab",
                           "has a token of %zu bytes; %d are supported", tokenizer->longest_text,
                           MAX_TRIE_TOKEN);
  }
  MLX_TRY(mlx_trie_create(reader->vocab_bytes, tokenizer->seed, &tokenizer->trie));
  for (size_t id = 0; id < tokenizer->vocab_size; ++id) {
    const mlx_token_t *token = &tokenizer->tokens[id];
    if (token->text) mlx_trie_add(&tokenizer->trie, token->text, token->text_length, (int32_t)id);
  }
  return mlx_trie_shrink(&tokenizer->trie);
}

// A number as Rust's serde_json reads it: its digits as a whole number, then one multiplication or division
// by a power of ten. That is an ulp off now and then, and which of two nearly equal cuts wins can hang on it.
// The digits are the fewest that mean this number, which is what every program writes.
static double score_of(yyjson_val *value) {
  double number = yyjson_get_num(value), power;
  char digits[40];
  if (!yyjson_is_real(value) || number == 0) return number;
  for (int precision = 14; precision <= 16; ++precision) {
    snprintf(digits, sizeof digits, "%.*e", precision, number);
    if (strtod(digits, NULL) == number) break;
  }
  uint64_t whole = 0;
  char *at = digits + (digits[0] == '-');
  int exponent = (int)strtol(strchr(at, 'e') + 1, NULL, 10);
  for (bool after_point = false; *at != 'e'; ++at) {
    if (*at == '.') {
      after_point = true;
    } else {
      whole = whole * 10 + (uint64_t)(*at - '0');
      exponent -= after_point;
    }
  }
  for (; whole % 10 == 0; whole /= 10) ++exponent;
  double result = (double)whole;
  for (; exponent < -308; exponent += 308) result /= 1e308;
  snprintf(digits, sizeof digits, "1e%d", abs(exponent));
  power = strtod(digits, NULL);
  result = exponent < 0 ? result / power : result * power;
  return number < 0 ? -result : result;
}

static mlx_status_t read_unigram(const model_reader_t *reader) {
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  yyjson_val *unk = mlx_json_find(reader->model, "unk_id");
  double lowest = 0;
  bool found;
  tokenizer->unk_id = -1;
  if (unk) MLX_TRY(mlx_field_id(json, "model.unk_id", "", unk, &tokenizer->unk_id));
  if (tokenizer->unk_id >= 0 && (size_t)tokenizer->unk_id >= reader->vocab_count) {
    return mlx_field_error(json, MLX_INVALID_INPUT, "model.unk_id", "is %d, but model.vocab has %zu tokens",
                           tokenizer->unk_id, reader->vocab_count);
  }
  MLX_TRY(mlx_field_bool(json, "model", reader->model, "byte_fallback", false, &tokenizer->byte_fallback));
  MLX_TRY(mlx_alloc(tokenizer->vocab_size, sizeof *tokenizer->scores, &tokenizer->scores));
  vocab_walk_t walk = begin_walk(reader);
  for (vocab_item_t item;;) {
    MLX_TRY(next_item(reader, &walk, &item, &found));
    if (!found) break;
    double score = tokenizer->scores[item.id] = score_of(item.score);
    if (!item.id || score < lowest) lowest = score;
  }
  tokenizer->unk_score = lowest - UNK_PENALTY;
  return fill_trie(reader);
}

static mlx_status_t read_wordpiece(const model_reader_t *reader) {
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  const char *unk, *prefix;
  size_t length;
  MLX_TRY(mlx_field_string(json, "model", reader->model, "unk_token", &unk, &length));
  MLX_TRY(read_unk_token(reader));
  MLX_TRY(mlx_field_string(json, "model", reader->model, "continuing_subword_prefix", &prefix,
                           &tokenizer->prefix_length));
  MLX_TRY(mlx_copy_text(prefix, tokenizer->prefix_length, &tokenizer->prefix));
  MLX_TRY(mlx_field_size(json, "model", reader->model, "max_input_chars_per_word", &tokenizer->max_word));
  return fill_trie(reader);
}

// ----------------------------------------------------------------------------------------------------------
// added_tokens

// Hugging Face numbers added tokens itself: by the vocabulary where they are in it, else counting on. A file
// that says otherwise would mean other ids here than there.
static mlx_status_t check_added_id(const mlx_json_t *json, const mlx_tokenizer_t *tokenizer, const char *path,
                                   int32_t id, int32_t in_vocab, size_t model_size, int32_t highest) {
  char full[MLX_PATH_SIZE];
  size_t expected = highest >= 0 && (size_t)highest >= model_size ? (size_t)highest + 1 : model_size;
  if (in_vocab >= 0) expected = (size_t)in_vocab;
  if ((size_t)id != expected) {
    return mlx_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, "id"),
                           "is %d, but by model.vocab and the added tokens before it must be %zu", id,
                           expected);
  }
  if (in_vocab < 0 && tokenizer->tokens[id].text) {
    return taken_error(json, mlx_field_join(full, path, "id"), "is", id, &tokenizer->tokens[id]);
  }
  return NULL;
}

// The text an added token is looked for and decoded as: its normal form.
static mlx_status_t normalize_added(model_reader_t *reader, const char *path, const char *text, size_t length,
                                    mlx_added_token_t *added) {
  mlx_normalizer_t normalizer = {0};
  mlx_splitter_t splitter;
  const char *normal;
  size_t normal_length;
  size_t start = 0;
  MLX_TRY(mlx_splitter_begin(length, &splitter));
  mlx_status_t status = mlx_normalizer_run(reader->tokenizer, &normalizer, &splitter, text, length, &normal,
                                           &normal_length, &start);
  if (!status && (!normal_length || normal_length > MAX_ADDED_LENGTH)) {
    status = mlx_field_error(reader->json, MLX_UNSUPPORTED, path,
                             "normalizes to nothing or to more than %d bytes", MAX_ADDED_LENGTH);
  }
  if (!status && (normal_length != length || memcmp(normal, text, length))) {
    status =
        mlx_alloc(2 * normal_length, 1, &added->normal);  // twice: decode_normal_form puts its bytes after it
    if (!status) memcpy(added->normal, normal, added->normal_length = normal_length);
  }
  mlx_normalizer_end(&normalizer);
  mlx_splitter_end(&splitter);
  return status;
}

static mlx_status_t read_added_token(model_reader_t *reader, yyjson_val *object, const char *path,
                                     int32_t highest, mlx_added_token_t *added) {
  char full[MLX_PATH_SIZE];
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  yyjson_val *content = mlx_json_find(object, "content");
  const char *text = yyjson_get_str(content);
  size_t length = yyjson_get_len(content);
  bool special;
  added->id = (int32_t)yyjson_get_uint(mlx_json_find(object, "id"));  // checked by measure
  mlx_field_join(full, path, "content");
  if (!text || !length) return mlx_field_error(json, MLX_INVALID_INPUT, full, "must be a text");
  if (length > MAX_ADDED_LENGTH) {
    return mlx_field_error(json, MLX_UNSUPPORTED, full, "is longer than %d bytes", MAX_ADDED_LENGTH);
  }
  MLX_TRY(mlx_field_bool(json, path, object, "special", false, &special));
  MLX_TRY(mlx_field_bool(json, path, object, "normalized", !special, &added->normalized));
  MLX_TRY(mlx_field_bool(json, path, object, "single_word", false, &added->single_word));
  MLX_TRY(mlx_field_bool(json, path, object, "lstrip", false, &added->lstrip));
  MLX_TRY(mlx_field_bool(json, path, object, "rstrip", false, &added->rstrip));
  int32_t in_vocab = mlx_names_find(tokenizer, text, length);
  if (in_vocab >= 0 && tokenizer->tokens[in_vocab].added) {
    return mlx_field_error(json, MLX_INVALID_INPUT, full, "'%.60s' is added twice", text);
  }
  MLX_TRY(check_added_id(json, tokenizer, path, added->id, in_vocab, reader->vocab_count, highest));
  if (in_vocab < 0) set_token(reader, added->id, text, length);
  mlx_token_t *token = &tokenizer->tokens[added->id];
  token->added = true;
  token->special = token->skipped = special;
  return added->normalized ? normalize_added(reader, full, text, length, added) : NULL;
}

// A token with another normal form is decoded as that, and is special only if something special is spelled
// so.
static void decode_normal_form(mlx_tokenizer_t *tokenizer, const mlx_added_token_t *added) {
  mlx_token_t *token = &tokenizer->tokens[added->id];
  if (!added->normal) return;
  int32_t same = mlx_names_find(tokenizer, added->normal, added->normal_length);
  token->skipped = same >= 0 && tokenizer->tokens[same].special;
  size_t length = added->normal_length;
  bool spelled = tokenizer->byte_level &&
                 mlx_unspell(added->normal, length, added->normal + added->normal_length, &length);
  token->bytes = added->normal + (spelled ? added->normal_length : 0);
  token->byte_length = (uint32_t)(spelled ? length : added->normal_length);
}

// Unigram's list may have a token twice, and Hugging Face asks for the text: both are special or none is.
static void skip_repeats(mlx_tokenizer_t *tokenizer) {
  for (size_t id = 0; id < tokenizer->vocab_size && tokenizer->kind == MLX_MODEL_UNIGRAM; ++id) {
    mlx_token_t *token = &tokenizer->tokens[id];
    int32_t last = token->text ? mlx_names_find(tokenizer, token->text, token->text_length) : (int32_t)id;
    if (last != (int32_t)id) token->skipped = tokenizer->tokens[last].special;
  }
}

static mlx_status_t fill_set(const model_reader_t *reader, bool normalized, mlx_added_set_t *set) {
  const mlx_tokenizer_t *tokenizer = reader->tokenizer;
  char path[MLX_PATH_SIZE];
  size_t bytes = 0;
  for (size_t i = 0; i < tokenizer->added_count; ++i) {
    const mlx_added_token_t *added = &tokenizer->added[i];
    bytes += added->normal ? added->normal_length : tokenizer->tokens[added->id].text_length;
  }
  MLX_TRY(mlx_trie_create(bytes, tokenizer->seed, &set->trie));
  for (size_t i = 0; i < tokenizer->added_count; ++i) {
    const mlx_added_token_t *added = &tokenizer->added[i];
    const char *text = added->normal ? added->normal : tokenizer->tokens[added->id].text;
    size_t length = added->normal ? added->normal_length : tokenizer->tokens[added->id].text_length;
    uint32_t node = 0;
    if (added->normalized != normalized) continue;
    size_t known = 0;
    while (known < length && mlx_trie_step(&set->trie, &node, text[known])) ++known;
    if (known == length && set->trie.ends[node] >= 0) {
      return mlx_field_error(reader->json, MLX_UNSUPPORTED, mlx_field_index(path, "added_tokens", i),
                             "has the normal form of another");
    }
    set->starts[(uint8_t)text[0]] = true;
    mlx_trie_add(&set->trie, text, length, (int32_t)i);
  }
  return NULL;
}

static mlx_status_t read_added_tokens(model_reader_t *reader) {
  char path[MLX_PATH_SIZE];
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  size_t index, max;
  yyjson_val *object;
  int32_t highest = -1;
  bool any_single_word = false;
  MLX_TRY(mlx_alloc(yyjson_arr_size(reader->added), sizeof *tokenizer->added, &tokenizer->added));
  yyjson_arr_foreach(reader->added, index, max, object) {
    mlx_added_token_t *added = &tokenizer->added[tokenizer->added_count++];
    MLX_TRY(read_added_token(reader, object, mlx_field_index(path, "added_tokens", index), highest, added));
    if (added->id > highest) highest = added->id;
    any_single_word |= added->single_word;
  }
  for (size_t i = 0; i < tokenizer->added_count; ++i) decode_normal_form(tokenizer, &tokenizer->added[i]);
  skip_repeats(tokenizer);
  MLX_TRY(fill_set(reader, false, &tokenizer->raw_added));
  MLX_TRY(fill_set(reader, true, &tokenizer->normalized_added));
  return any_single_word ? mlx_regex_create(word_pattern, sizeof word_pattern - 1, &tokenizer->word_regex)
                         : NULL;
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_read_kind(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  const char *type;
  MLX_TRY(mlx_field_type(json, "model", mlx_json_find(json->root, "model"), &type));
  // The oldest files, GPT-2's own among them, do not say their type.
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    tokenizer->kind = (mlx_model_kind_t)i;
    if (!type[0] || !strcmp(type, kinds[i])) return NULL;
  }
  return mlx_field_refuse_type(json, "model", type, "BPE, Unigram and WordPiece are");
}

static mlx_status_t make_tables(model_reader_t *reader) {
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  bool is_array = tokenizer->kind == MLX_MODEL_UNIGRAM;
  size_t bytes = 0, arena_size = 0;
  MLX_TRY(mlx_field_container(reader->json, "model.vocab", reader->vocab, is_array));
  reader->vocab_count = is_array ? yyjson_arr_size(reader->vocab) : yyjson_obj_size(reader->vocab);
  MLX_TRY(measure(reader, &bytes, &tokenizer->vocab_size));
  if (bytes >= UINT32_MAX / 2 || !mlx_mul(bytes, 2, &arena_size)) {
    return mlx_field_error(reader->json, MLX_UNSUPPORTED, "model.vocab", "is larger than 2 GB");
  }
  MLX_TRY(mlx_alloc(tokenizer->vocab_size, sizeof *tokenizer->tokens, &tokenizer->tokens));
  MLX_TRY(mlx_alloc(arena_size, 1, &tokenizer->arena));
  return mlx_names_create(reader->vocab_count + yyjson_arr_size(reader->added), tokenizer);
}

mlx_status_t mlx_read_model(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  yyjson_val *model = mlx_json_find(json->root, "model");
  model_reader_t reader = {.json = json,
                           .tokenizer = tokenizer,
                           .model = model,
                           .vocab = mlx_json_find(model, "vocab"),
                           .added = mlx_json_find(json->root, "added_tokens")};
  if (reader.added) MLX_TRY(mlx_field_container(json, "added_tokens", reader.added, true));
  MLX_TRY(make_tables(&reader));
  MLX_TRY(read_vocab(&reader));
  find_byte_ids(tokenizer);
  switch (tokenizer->kind) {
    case MLX_MODEL_BPE: MLX_TRY(read_bpe(&reader)); break;
    case MLX_MODEL_UNIGRAM: MLX_TRY(read_unigram(&reader)); break;
    case MLX_MODEL_WORDPIECE: MLX_TRY(read_wordpiece(&reader)); break;
  }
  return read_added_tokens(&reader);
}
