// Reads the model and the added_tokens of a tokenizer.json: the tokens by id, and the tables of each model.
#include "tokenizer/read_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/fields.h"

#define MAX_ADDED_LENGTH 1024                   // bytes
#define MAX_ADDED_NORMALIZED ((size_t)1 << 20)  // bytes of an added token between two steps of the normalizer
#define MAX_TRIE_TOKEN 1024  // bytes; limits the time of Unigram and WordPiece at each position of a text
#define SHOWN_EACH 4096      // tokens or merges between two looks at the clock
#define UNK_PENALTY 10.0     // Unigram: an unknown character scores this much below the lowest token

// single_word uses \w of Rust's regex crate. Unlike Oniguruma's \w, it has the joiners and lacks ² ³ ¹ ¼ ½ ¾.
static const char word_pattern[] = "[\\w\\x{200C}\\x{200D}&&[^\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]]";

static const char *const kind_names[] = {
    [MLX_MODEL_BPE] = "BPE", [MLX_MODEL_UNIGRAM] = "Unigram", [MLX_MODEL_WORDPIECE] = "WordPiece"};

// ----------------------------------------------------------------------------------------------------------
// The vocabulary

typedef struct model_reader {
  const mlx_json_t *json;
  mlx_tokenizer_t *tokenizer;
  mlx_tokenizer_model_t *model;        // of the tokenizer
  yyjson_val *object, *vocab, *added;  // model, model.vocab and added_tokens in the file
  size_t vocab_count, vocab_bytes;     // of model.vocab
  size_t arena_capacity;               // of the vocabulary's arena
  mlx_budget_t *budget;
  mlx_meter_t *meter;
} model_reader_t;

// Of the tokens and the merges, or of the tokens twice if they go into a trie.
static void show(const model_reader_t *reader, size_t done) {
  if (done % SHOWN_EACH == 0) mlx_meter_show(reader->meter, done);
}

// The error about an id that a token already has. A token's text has no NUL at its end.
static mlx_status_t duplicate_id_error(const mlx_json_t *json, const char *path, const char *verb, int32_t id,
                                       const mlx_vocab_t *vocab) {
  const mlx_token_t *token = &vocab->tokens[id];
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path, "%s %d, which token '%.*s' already has",
                                   verb, id, token->text_length > 60 ? 60 : (int)token->text_length,
                                   vocab->arena + token->text);
}

// Iterates over model.vocab: {"token": id} or, for Unigram, [["token", score]], where the index is the id.
typedef struct vocab_iter {
  yyjson_obj_iter entries;
  yyjson_arr_iter pairs;
  int32_t next_id;
} vocab_iter_t;

typedef struct vocab_item {
  const char *text;
  size_t length;
  int32_t id;
  yyjson_val *score;
} vocab_item_t;

static vocab_iter_t begin_vocab(const model_reader_t *reader) {
  vocab_iter_t iter = {0};
  if (reader->model->kind == MLX_MODEL_UNIGRAM) {
    yyjson_arr_iter_init(reader->vocab, &iter.pairs);
  } else {
    yyjson_obj_iter_init(reader->vocab, &iter.entries);
  }
  return iter;
}

static mlx_status_t next_pair(const model_reader_t *reader, vocab_iter_t *iter, vocab_item_t *out,
                              bool *out_found) {
  char path[MLX_PATH_SIZE];
  yyjson_val *pair = yyjson_arr_iter_next(&iter->pairs), *text = yyjson_arr_get_first(pair);
  if (!pair) return NULL;
  *out =
      (vocab_item_t){yyjson_get_str(text), yyjson_get_len(text), iter->next_id++, yyjson_arr_get_last(pair)};
  *out_found = true;
  if (yyjson_arr_size(pair) == 2 && out->text && yyjson_is_num(out->score)) return NULL;
  return mlx_tokenizer_field_error(reader->json, MLX_INVALID_INPUT,
                                   mlx_field_index(path, "model.vocab", (size_t)out->id),
                                   "must be [token, score]");
}

static mlx_status_t next_item(const model_reader_t *reader, vocab_iter_t *iter, vocab_item_t *out,
                              bool *out_found) {
  *out_found = false;
  if (reader->model->kind == MLX_MODEL_UNIGRAM) return next_pair(reader, iter, out, out_found);
  yyjson_val *key = yyjson_obj_iter_next(&iter->entries);
  if (!key) return NULL;
  *out = (vocab_item_t){.text = yyjson_get_str(key), .length = yyjson_get_len(key)};
  *out_found = true;
  return mlx_field_id(reader->json, "model.vocab.", out->text, yyjson_obj_iter_get_val(key), &out->id);
}

// Counts the bytes of all token texts and finds the largest id.
static mlx_status_t measure(model_reader_t *reader, size_t *out_bytes, size_t *out_ids) {
  size_t index, max;
  yyjson_val *value;
  int32_t id, top = -1;
  bool found = true;
  vocab_iter_t iter = begin_vocab(reader);
  for (vocab_item_t item;;) {
    MLX_TRY(next_item(reader, &iter, &item, &found));
    if (!found) break;
    if (item.id > top) top = item.id;
    reader->vocab_bytes += item.length;  // no overflow: all texts are in the file
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
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, "model.vocab", "is longer than %d tokens",
                                     MLX_MAX_ID + 1);
  }
  *out_bytes = bytes;
  *out_ids = (size_t)(top + 1);
  return NULL;
}

// Copies a text into the arena, followed by the bytes that it spells if those differ from the text. Sets
// |bytes| and |byte_length| of *|out|, and also returns the text's position. The arena must have room for
// twice the length.
static uint32_t copy_text(mlx_tokenizer_model_t *model, const char *text, size_t length, mlx_token_t *out) {
  mlx_vocab_t *vocab = &model->vocab;
  const uint32_t at = (uint32_t)vocab->arena_size;
  char *copy = vocab->arena + at;
  size_t byte_length;
  memcpy(copy, text, length);
  out->bytes = at;
  out->byte_length = (uint32_t)length;
  vocab->arena_size += length;
  if (model->byte_level && mlx_byte_level_unspell(text, length, copy + length, &byte_length)) {
    out->bytes = at + (uint32_t)length;
    out->byte_length = (uint32_t)byte_length;
    vocab->arena_size += byte_length;
  }
  return at;
}

static void set_token(model_reader_t *reader, int32_t id, const char *text, size_t length) {
  mlx_vocab_t *vocab = &reader->model->vocab;
  mlx_token_t token = {.text_length = (uint32_t)length, .flags = MLX_TOKEN_IS_USED};
  token.text = copy_text(reader->model, text, length, &token);
  vocab->tokens[id] = token;
  mlx_vocab_index(vocab, id);
}

static mlx_status_t read_vocab(model_reader_t *reader) {
  mlx_vocab_t *vocab = &reader->model->vocab;
  vocab_iter_t iter = begin_vocab(reader);
  size_t done = 0;
  bool found;
  for (vocab_item_t item;; show(reader, ++done)) {
    MLX_TRY(next_item(reader, &iter, &item, &found));
    if (!found) return NULL;
    if (mlx_vocab_has(vocab, item.id, MLX_TOKEN_IS_USED)) {
      char path[MLX_PATH_SIZE];
      mlx_field_path(path, "model.vocab.%.80s", item.text);
      return duplicate_id_error(reader->json, path, "has id", item.id, vocab);
    }
    set_token(reader, item.id, item.text, item.length);
    vocab->tokens[item.id].flags |= MLX_TOKEN_IN_MODEL;
    if (item.length > vocab->longest_text) vocab->longest_text = item.length;
  }
}

// Finds the tokens of single bytes: spelled in the byte-level alphabet, or as <0x41>.
static void find_byte_ids(mlx_tokenizer_model_t *model) {
  for (int byte = 0; byte < 256; ++byte) {
    char spelled[8];
    size_t length = model->byte_level ? mlx_byte_level_spell((uint8_t)byte, spelled)
                                      : (size_t)snprintf(spelled, sizeof spelled, "<0x%02X>", byte);
    model->vocab.byte_ids[byte] = mlx_vocab_find_in_model(&model->vocab, spelled, length);
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

static mlx_status_t find_part(const mlx_json_t *json, const mlx_vocab_t *vocab, size_t index,
                              const char *text, size_t length, int32_t *out_id) {
  char path[MLX_PATH_SIZE];
  *out_id = mlx_vocab_find(vocab, text, length);
  if (*out_id >= 0) return NULL;
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_index(path, "model.merges", index),
                                   "needs the token '%.*s', which is not in model.vocab",
                                   length > 60 ? 60 : (int)length, text);
}

static mlx_status_t read_merge(const mlx_json_t *json, yyjson_val *merge, size_t index, uint32_t rank,
                               mlx_tokenizer_model_t *model, char *joined) {
  merge_parts_t parts;
  int32_t left, right, merged;
  if (!split_merge(merge, &parts)) {
    char path[MLX_PATH_SIZE];
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_index(path, "model.merges", index),
                                     "must be \"a b\" or [\"a\", \"b\"]");
  }
  MLX_TRY(find_part(json, &model->vocab, index, parts.left, parts.left_length, &left));
  MLX_TRY(find_part(json, &model->vocab, index, parts.right, parts.right_length, &right));
  // Both parts are tokens of the model, and |joined| has room for its two longest tokens.
  memcpy(joined, parts.left, parts.left_length);
  memcpy(joined + parts.left_length, parts.right, parts.right_length);
  MLX_TRY(find_part(json, &model->vocab, index, joined, parts.left_length + parts.right_length, &merged));
  mlx_pair_map_put(&model->merges, mlx_pair((uint32_t)left, (uint32_t)right),
                   mlx_pair(rank, (uint32_t)merged));
  return NULL;
}

static mlx_status_t read_merges(const model_reader_t *reader, yyjson_val *merges) {
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_model_t *model = reader->model;
  size_t index, max;
  yyjson_val *merge;
  char *joined;
  uint32_t rank = 0;
  if (yyjson_arr_size(merges) >= UINT32_MAX)
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, "model.merges", "has too many merges");
  MLX_TRY(mlx_budget_take(reader->budget, mlx_pair_map_memory(yyjson_arr_size(merges))));
  MLX_TRY(mlx_pair_map_create(yyjson_arr_size(merges), model->vocab.seed, &model->merges));
  MLX_TRY(mlx_alloc(2 * model->vocab.longest_text, 1, &joined));
  mlx_status_t status = NULL;
  yyjson_arr_foreach(merges, index, max, merge) {
    // Old files keep the first line of merges.txt, "#version: 0.2". It is not a merge and has no rank.
    if (yyjson_is_str(merge) && !strncmp(yyjson_get_str(merge), "#version", 8)) continue;
    status = read_merge(json, merge, index, rank++, model, joined);
    if (!status) status = mlx_budget_step(reader->budget, 8);
    show(reader, reader->vocab_count + index + 1);
    if (status) break;
  }
  mlx_free(joined);
  return status;
}

// Refuses BPE options that no known model uses.
static mlx_status_t check_bpe_options(const mlx_json_t *json, yyjson_val *object) {
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  char path[MLX_PATH_SIZE];
  for (size_t i = 0; i < sizeof affixes / sizeof *affixes; ++i) {
    yyjson_val *value = mlx_json_find(object, affixes[i]);
    if (value && !(yyjson_is_str(value) && !yyjson_get_len(value))) {
      mlx_field_join(path, "model", affixes[i]);
      return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path, "is set; only null or \"\" is supported");
    }
  }
  yyjson_val *dropout = mlx_json_find(object, "dropout");
  if (dropout && !(yyjson_is_num(dropout) && yyjson_get_num(dropout) == 0)) {
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, "model.dropout",
                                     "is set; only null or 0 is supported");
  }
  return NULL;
}

// Reads unk_token, which stands for characters without a token. If every byte has a token it is never used,
// and need not exist.
static mlx_status_t read_unk_token(const model_reader_t *reader) {
  mlx_tokenizer_model_t *model = reader->model;
  yyjson_val *unk = mlx_json_find(reader->object, "unk_token");
  bool needed = !model->byte_level && !model->byte_fallback;
  model->unk_id = -1;
  if (!unk) return NULL;
  if (!yyjson_is_str(unk)) {
    return mlx_tokenizer_field_error(reader->json, MLX_INVALID_INPUT, "model.unk_token",
                                     "must be a string or null");
  }
  if (!yyjson_get_len(unk) && model->kind == MLX_MODEL_BPE) return NULL;
  model->unk_id = mlx_vocab_find_in_model(&model->vocab, yyjson_get_str(unk), yyjson_get_len(unk));
  for (int byte = 0; byte < 256; ++byte) needed |= model->vocab.byte_ids[byte] < 0;
  if (model->unk_id >= 0 || !needed) return NULL;
  return mlx_tokenizer_field_error(reader->json, MLX_INVALID_INPUT, "model.unk_token",
                                   "is '%.60s', which is not in model.vocab", yyjson_get_str(unk));
}

static mlx_status_t read_bpe(const model_reader_t *reader) {
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_model_t *model = reader->model;
  yyjson_val *merges = mlx_json_find(reader->object, "merges");
  MLX_TRY(check_bpe_options(json, reader->object));
  MLX_TRY(
      mlx_tokenizer_field_bool(json, "model", reader->object, "ignore_merges", false, &model->ignore_merges));
  MLX_TRY(
      mlx_tokenizer_field_bool(json, "model", reader->object, "byte_fallback", false, &model->byte_fallback));
  MLX_TRY(mlx_tokenizer_field_bool(json, "model", reader->object, "fuse_unk", false, &model->fuse_unk));
  if (model->byte_fallback && model->byte_level) {
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, "model.byte_fallback",
                                     "is true; with ByteLevel only false is supported");
  }
  MLX_TRY(mlx_field_container(json, "model.merges", merges, true));
  MLX_TRY(read_unk_token(reader));
  return read_merges(reader, merges);
}

// ----------------------------------------------------------------------------------------------------------
// Unigram and WordPiece

static mlx_status_t fill_trie(const model_reader_t *reader) {
  mlx_tokenizer_model_t *model = reader->model;
  if (model->vocab.longest_text > MAX_TRIE_TOKEN) {
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, "model.vocab",
                                     "has a token of %zu bytes; at most %d are supported",
                                     model->vocab.longest_text, MAX_TRIE_TOKEN);
  }
  MLX_TRY(mlx_budget_take(reader->budget, mlx_trie_memory(reader->vocab_bytes)));
  MLX_TRY(mlx_trie_create(reader->vocab_bytes, model->vocab.seed, &model->trie));
  for (size_t id = 0; id < model->vocab.size; ++id) {
    const mlx_token_t *token = &model->vocab.tokens[id];
    if (token->flags & MLX_TOKEN_IS_USED)
      mlx_trie_add(&model->trie, model->vocab.arena + token->text, token->text_length, (int32_t)id);
    MLX_TRY(mlx_budget_step(reader->budget, token->text_length + 1));
    show(reader, reader->vocab_count + id + 1);
  }
  return mlx_trie_shrink(&model->trie);
}

// A score as Rust's serde_json parses it: all digits as one integer, then one multiplication or division by a
// power of ten. The result is sometimes one ulp off, and that can decide between two nearly equal
// segmentations. The digits used are the fewest that denote this number, because every program writes those.
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
  mlx_tokenizer_model_t *model = reader->model;
  yyjson_val *unk = mlx_json_find(reader->object, "unk_id");
  double lowest = 0;
  bool found;
  model->unk_id = -1;
  if (unk) MLX_TRY(mlx_field_id(json, "model.unk_id", "", unk, &model->unk_id));
  if (model->unk_id >= 0 && (size_t)model->unk_id >= reader->vocab_count) {
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, "model.unk_id",
                                     "is %d, but model.vocab has %zu tokens", model->unk_id,
                                     reader->vocab_count);
  }
  MLX_TRY(
      mlx_tokenizer_field_bool(json, "model", reader->object, "byte_fallback", false, &model->byte_fallback));
  MLX_TRY(mlx_alloc(model->vocab.size, sizeof *model->scores, &model->scores));
  vocab_iter_t iter = begin_vocab(reader);
  for (vocab_item_t item;;) {
    MLX_TRY(next_item(reader, &iter, &item, &found));
    if (!found) break;
    double score = model->scores[item.id] = score_of(item.score);
    if (!item.id || score < lowest) lowest = score;
  }
  model->unk_score = lowest - UNK_PENALTY;
  return fill_trie(reader);
}

static mlx_status_t read_wordpiece(const model_reader_t *reader) {
  const mlx_json_t *json = reader->json;
  mlx_tokenizer_model_t *model = reader->model;
  const char *unk, *prefix;
  size_t length;
  MLX_TRY(mlx_field_string(json, "model", reader->object, "unk_token", &unk, &length));
  MLX_TRY(read_unk_token(reader));
  MLX_TRY(mlx_field_string(json, "model", reader->object, "continuing_subword_prefix", &prefix,
                           &model->prefix_length));
  MLX_TRY(mlx_copy_text(prefix, model->prefix_length, &model->prefix));
  MLX_TRY(mlx_field_size(json, "model", reader->object, "max_input_chars_per_word", &model->max_word));
  return fill_trie(reader);
}

// ----------------------------------------------------------------------------------------------------------
// added_tokens

// Hugging Face numbers added tokens itself: the id in the vocabulary, or else the next free id. A file with
// other ids is refused, because mlxcel and Hugging Face would then produce different ids.
static mlx_status_t check_added_id(const mlx_json_t *json, const mlx_vocab_t *vocab, const char *path,
                                   int32_t id, int32_t in_vocab, size_t model_size, int32_t highest) {
  char full[MLX_PATH_SIZE];
  size_t expected = highest >= 0 && (size_t)highest >= model_size ? (size_t)highest + 1 : model_size;
  if (in_vocab >= 0) expected = (size_t)in_vocab;
  if ((size_t)id != expected) {
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, mlx_field_join(full, path, "id"),
                                     "is %d, but model.vocab and the added tokens before it make it %zu", id,
                                     expected);
  }
  if (in_vocab < 0 && mlx_vocab_has(vocab, id, MLX_TOKEN_IS_USED))
    return duplicate_id_error(json, mlx_field_join(full, path, "id"), "is", id, vocab);
  return NULL;
}

// Stores the normalized text of an added token, which is matched and decoded as that text.
static mlx_status_t set_normalized(model_reader_t *reader, const char *normal, size_t length,
                                   mlx_added_token_t *added) {
  mlx_vocab_t *vocab = &reader->model->vocab;
  size_t needed;
  if (!mlx_add(vocab->arena_size, 2 * length, &needed) || needed > UINT32_MAX) {
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, "added_tokens", "is larger than 4 GB");
  }
  MLX_TRY(mlx_reserve(needed, 1, &reader->arena_capacity, &vocab->arena));
  added->text = copy_text(reader->model, normal, length, &vocab->tokens[added->id]);
  added->length = (uint32_t)length;
  return NULL;
}

static mlx_status_t normalize_added(model_reader_t *reader, const char *path, const char *text, size_t length,
                                    mlx_added_token_t *added) {
  mlx_normalizer_scratch_t scratch = {.max_bytes = MAX_ADDED_NORMALIZED};
  mlx_regex_scanner_t scanner;
  const char *normal;
  size_t normal_length;
  size_t start = 0;
  MLX_TRY(mlx_budget_check(reader->budget));
  MLX_TRY(mlx_regex_scanner_begin(reader->budget, &scanner));
  mlx_status_t status = mlx_normalizer_run(&reader->tokenizer->normalizer, &scratch, &scanner, text, length,
                                           &normal, &normal_length, &start);
  if (!status && (!normal_length || normal_length > MAX_ADDED_LENGTH)) {
    status =
        mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, path,
                                  "normalizes to an empty text or to more than %d bytes", MAX_ADDED_LENGTH);
  }
  if (!status && (normal_length != length || memcmp(normal, text, length)))
    status = set_normalized(reader, normal, normal_length, added);
  mlx_normalizer_scratch_free(&scratch);
  mlx_regex_scanner_end(&scanner);
  return status;
}

// Reads the flags of an added token. A special token is not normalized unless the file says so.
static mlx_status_t read_added_flags(const mlx_json_t *json, const char *path, yyjson_val *object,
                                     uint32_t *out_flags, bool *out_special) {
  static const struct {
    const char *key;
    uint32_t flag;
  } keys[] = {{"single_word", MLX_ADDED_SINGLE_WORD},
              {"lstrip", MLX_ADDED_LSTRIP},
              {"rstrip", MLX_ADDED_RSTRIP},
              {"normalized", MLX_ADDED_NORMALIZED}};
  *out_flags = 0;
  MLX_TRY(mlx_tokenizer_field_bool(json, path, object, "special", false, out_special));
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    bool is_set = keys[i].flag == MLX_ADDED_NORMALIZED && !*out_special;
    MLX_TRY(mlx_tokenizer_field_bool(json, path, object, keys[i].key, is_set, &is_set));
    if (is_set) *out_flags |= keys[i].flag;
  }
  return NULL;
}

static mlx_status_t read_added_token(model_reader_t *reader, yyjson_val *object, const char *path,
                                     int32_t highest, mlx_added_token_t *added) {
  char full[MLX_PATH_SIZE];
  const mlx_json_t *json = reader->json;
  mlx_vocab_t *vocab = &reader->model->vocab;
  yyjson_val *content = mlx_json_find(object, "content");
  const char *text = yyjson_get_str(content);
  size_t length = yyjson_get_len(content);
  bool special;
  added->id = (int32_t)yyjson_get_uint(mlx_json_find(object, "id"));  // measure() checked it
  mlx_field_join(full, path, "content");
  if (!text || !length)
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, full, "must be a string that is not empty");
  if (length > MAX_ADDED_LENGTH) {
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, full, "is longer than %d bytes",
                                     MAX_ADDED_LENGTH);
  }
  MLX_TRY(read_added_flags(json, path, object, &added->flags, &special));
  int32_t in_vocab = mlx_vocab_find(vocab, text, length);
  if (mlx_vocab_has(vocab, in_vocab, MLX_TOKEN_IS_ADDED)) {
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, full, "'%.60s' is added twice", text);
  }
  MLX_TRY(check_added_id(json, vocab, path, added->id, in_vocab, reader->vocab_count, highest));
  if (in_vocab < 0) set_token(reader, added->id, text, length);
  mlx_token_t *token = &vocab->tokens[added->id];
  token->flags |= MLX_TOKEN_IS_ADDED | (special ? MLX_TOKEN_IS_SPECIAL | MLX_TOKEN_IS_SKIPPED : 0);
  added->text = token->text;
  added->length = token->text_length;
  return added->flags & MLX_ADDED_NORMALIZED ? normalize_added(reader, full, text, length, added) : NULL;
}

static void set_skipped(mlx_token_t *token, bool skipped) {
  token->flags = (token->flags & ~(uint32_t)MLX_TOKEN_IS_SKIPPED) | (skipped ? MLX_TOKEN_IS_SKIPPED : 0);
}

// If the normalized text of an added token differs from its own text, the token counts as special only if
// some special token is spelled like the normalized text. Hugging Face does the same.
static void skip_normalized(mlx_vocab_t *vocab, const mlx_added_token_t *added) {
  mlx_token_t *token = &vocab->tokens[added->id];
  if (added->text == token->text) return;
  const int32_t same = mlx_vocab_find(vocab, vocab->arena + added->text, added->length);
  set_skipped(token, mlx_vocab_has(vocab, same, MLX_TOKEN_IS_SPECIAL));
}

// Unigram's list may contain a text twice. Hugging Face decides by text whether a token is special, so both
// ids are special or neither is.
static void skip_duplicates(mlx_tokenizer_model_t *model) {
  mlx_vocab_t *vocab = &model->vocab;
  for (size_t id = 0; id < vocab->size && model->kind == MLX_MODEL_UNIGRAM; ++id) {
    mlx_token_t *token = &vocab->tokens[id];
    if (!(token->flags & MLX_TOKEN_IS_USED)) continue;
    const int32_t last = mlx_vocab_find(vocab, vocab->arena + token->text, token->text_length);
    if (last != (int32_t)id) set_skipped(token, mlx_vocab_has(vocab, last, MLX_TOKEN_IS_SPECIAL));
  }
}

// Fills the set of the added tokens that match normalized text, or of those that match the input.
static mlx_status_t fill_added_set(const model_reader_t *reader, uint32_t normalized, mlx_added_set_t *set) {
  const mlx_tokenizer_t *tokenizer = reader->tokenizer;
  const mlx_vocab_t *vocab = &reader->model->vocab;
  char path[MLX_PATH_SIZE];
  size_t bytes = 0;
  for (size_t i = 0; i < tokenizer->added_count; ++i) {
    const mlx_added_token_t *added = &tokenizer->added[i];
    if ((added->flags & MLX_ADDED_NORMALIZED) == normalized) bytes += added->length;
  }
  MLX_TRY(mlx_budget_take(reader->budget, mlx_trie_memory(bytes)));
  MLX_TRY(mlx_added_set_create(bytes, vocab->seed, set));
  for (size_t i = 0; i < tokenizer->added_count; ++i) {
    const mlx_added_token_t *added = &tokenizer->added[i];
    if ((added->flags & MLX_ADDED_NORMALIZED) != normalized) continue;
    if (!mlx_added_set_add(set, vocab->arena + added->text, added->length, (int32_t)i)) {
      return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED,
                                       mlx_field_index(path, "added_tokens", i),
                                       "has the same normalized text as another added token");
    }
  }
  return mlx_added_set_finish(set);
}

mlx_status_t mlx_tokenizer_create_word_regex(mlx_tokenizer_t *tokenizer) {
  uint32_t flags = 0;
  for (size_t i = 0; i < tokenizer->added_count; ++i) flags |= tokenizer->added[i].flags;
  return flags & MLX_ADDED_SINGLE_WORD
             ? mlx_regex_create(word_pattern, sizeof word_pattern - 1, &tokenizer->word_regex)
             : NULL;
}

static mlx_status_t read_added_tokens(model_reader_t *reader) {
  char path[MLX_PATH_SIZE];
  mlx_tokenizer_t *tokenizer = reader->tokenizer;
  size_t index, max;
  yyjson_val *object;
  int32_t highest = -1;
  MLX_TRY(mlx_alloc(yyjson_arr_size(reader->added), sizeof *tokenizer->added, &tokenizer->added));
  yyjson_arr_foreach(reader->added, index, max, object) {
    mlx_added_token_t *added = &tokenizer->added[tokenizer->added_count++];
    MLX_TRY(read_added_token(reader, object, mlx_field_index(path, "added_tokens", index), highest, added));
    if (added->id > highest) highest = added->id;
  }
  for (size_t i = 0; i < tokenizer->added_count; ++i)
    skip_normalized(&reader->model->vocab, &tokenizer->added[i]);
  skip_duplicates(reader->model);
  MLX_TRY(fill_added_set(reader, 0, &tokenizer->raw_added));
  MLX_TRY(fill_added_set(reader, MLX_ADDED_NORMALIZED, &tokenizer->normalized_added));
  return mlx_tokenizer_create_word_regex(tokenizer);
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_tokenizer_read_kind(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  const char *type;
  MLX_TRY(mlx_field_type(json, "model", mlx_json_find(json->root, "model"), &type));
  // The oldest files, including GPT-2's own, have no type. They are BPE, the first kind.
  for (size_t i = 0; i < sizeof kind_names / sizeof *kind_names; ++i) {
    tokenizer->model.kind = (mlx_model_kind_t)i;
    if (!type[0] || !strcmp(type, kind_names[i])) return NULL;
  }
  return mlx_field_refuse_type(json, "model", type, "BPE, Unigram and WordPiece are");
}

static mlx_status_t allocate_vocab(model_reader_t *reader) {
  mlx_vocab_t *vocab = &reader->model->vocab;
  bool is_array = reader->model->kind == MLX_MODEL_UNIGRAM;
  size_t bytes = 0, *arena = &reader->arena_capacity;
  MLX_TRY(mlx_field_container(reader->json, "model.vocab", reader->vocab, is_array));
  reader->vocab_count = is_array ? yyjson_arr_size(reader->vocab) : yyjson_obj_size(reader->vocab);
  MLX_TRY(measure(reader, &bytes, &vocab->size));
  if (bytes >= UINT32_MAX / 2 || !mlx_mul(bytes, 2, arena)) {
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, "model.vocab", "is larger than 2 GB");
  }
  const size_t texts = reader->vocab_count + yyjson_arr_size(reader->added);
  // The index has up to 4 slots for each text. No overflow: all counts are below the size of the file.
  MLX_TRY(mlx_budget_take(reader->budget,
                          *arena + vocab->size * sizeof *vocab->tokens + 4 * texts * sizeof *vocab->slots));
  MLX_TRY(mlx_alloc(vocab->size, sizeof *vocab->tokens, &vocab->tokens));
  MLX_TRY(mlx_alloc(*arena, 1, &vocab->arena));
  return mlx_vocab_create_index(vocab, texts);
}

mlx_status_t mlx_tokenizer_read_model(const mlx_json_t *json, mlx_budget_t *budget, mlx_meter_t *meter,
                                      mlx_tokenizer_t *tokenizer) {
  yyjson_val *object = mlx_json_find(json->root, "model");
  model_reader_t reader = {.json = json,
                           .tokenizer = tokenizer,
                           .model = &tokenizer->model,
                           .object = object,
                           .vocab = mlx_json_find(object, "vocab"),
                           .added = mlx_json_find(json->root, "added_tokens"),
                           .budget = budget,
                           .meter = meter};
  if (reader.added) MLX_TRY(mlx_field_container(json, "added_tokens", reader.added, true));
  MLX_TRY(allocate_vocab(&reader));
  const bool is_bpe = tokenizer->model.kind == MLX_MODEL_BPE;
  meter->unit = is_bpe ? "tokens and merges" : "tokens";
  meter->total = reader.vocab_count +
                 (is_bpe ? yyjson_arr_size(mlx_json_find(object, "merges")) : tokenizer->model.vocab.size);
  MLX_TRY(read_vocab(&reader));
  find_byte_ids(&tokenizer->model);
  switch (tokenizer->model.kind) {
    case MLX_MODEL_BPE: MLX_TRY(read_bpe(&reader)); break;
    case MLX_MODEL_UNIGRAM: MLX_TRY(read_unigram(&reader)); break;
    case MLX_MODEL_WORDPIECE: MLX_TRY(read_wordpiece(&reader)); break;
  }
  return read_added_tokens(&reader);
}
