// Writes tokenizer.json for SentencePiece vocabularies: BPE ("llama": Llama 2, Mistral, Gemma, Phi-3) and
// Unigram ("t5").
//
// SentencePiece BPE stores a score for each token instead of merges: of all neighbouring pairs that form a
// token, it joins the pair whose token has the highest score. tokenizer.json needs a merge list: every split
// of a token into two tokens, ordered by the score of the joined token. We write it in Hugging Face's order.
// For equal scores llama.cpp joins the leftmost pair instead. SentencePiece never trains equal scores, so the
// results agree.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/memory.h"
#include "models/import/gguf_pipeline.h"
#include "models/import/gguf_tokenizer_kinds.h"

#define KEY MLX_TOKENIZER_KEY
// Bytes of the longest token that gets merges; bounds the time to find its splits. Real vocabularies need
// about 100.
#define MAX_MERGED 512
#define SPACE "\xe2\x96\x81"  // U+2581: SentencePiece writes it for a space

// Steps of tokenizer.json between spaces and their character.
static const char spaces[] =
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}";
static const char unspace[] =
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE "\"},\"content\":\" \"}";

// ----------------------------------------------------------------------------------------------------------
// SentencePiece BPE

typedef struct merge {
  float score;
  uint32_t id, left, right;
} merge_t;

typedef struct merges {
  merge_t *items;
  size_t count, capacity;
} merges_t;

// In user-defined tokens GGUF keeps plain spaces, while tokenizer.json has U+2581.
static void rewrite_piece(mlx_gguf_token_t token, uint8_t type, mlx_text_t *out) {
  for (size_t i = 0; i < token.length; ++i) {
    bool space = type == MLX_TOKEN_USER_DEFINED && token.bytes[i] == ' ';
    mlx_text_append(out, space ? SPACE : token.bytes + i, space ? 3 : 1);
  }
}

static int compare_merges(const void *a, const void *b) {
  const merge_t *left = a, *right = b;
  if (left->score != right->score) return left->score > right->score ? -1 : 1;
  if (left->id != right->id) return left->id < right->id ? -1 : 1;
  if (left->left != right->left) return left->left < right->left ? -1 : 1;
  return left->right < right->right ? -1 : left->right > right->right;
}

static float score_at(const mlx_gguf_field_t *scores, size_t id) {
  const uint8_t *at = scores->data + id * 4;
  uint32_t bits = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
  float score;
  memcpy(&score, &bits, sizeof score);
  return score == score ? score : 0;  // NaN cannot be sorted
}

// The bytes of a token as a JSON string.
static size_t json_length(mlx_gguf_token_t token) {
  size_t length = 2;
  for (size_t i = 0; i < token.length; ++i) {
    const unsigned char c = (unsigned char)token.bytes[i];
    length += c < 0x20 || c == 0x7f ? 6 : c == '"' || c == '\\' ? 2 : 1;
  }
  return length;
}

// The memory that a merge of a token of |length| JSON bytes takes until the tokenizer is created: its text in
// a buffer that grows by doubling and in the parsed document, its JSON values, and its entries in the merge
// list here and in the tokenizer.
static size_t merge_memory(size_t length) { return 3 * (length + 16) + 3 * 16 + 2 * sizeof(merge_t) + 64; }

// Adds every split of token |id| into two other tokens. A run of one letter has as many splits as letters, so
// a vocabulary of runs has a merge list that is quadratic in the file. The budget refuses it.
static mlx_status_t split_token(const mlx_gguf_vocabulary_t *vocabulary, uint32_t id, float score,
                                merges_t *merges) {
  mlx_gguf_token_t token = vocabulary->tokens[id], none = {"", 0};
  const size_t memory = merge_memory(json_length(token));
  for (size_t at = 1; at < token.length; ++at) {
    MLX_TRY(mlx_budget_step(vocabulary->budget, 1 + token.length / 8));
    if (((unsigned char)token.bytes[at] & 0xc0) == 0x80) continue;  // inside a UTF-8 character
    int64_t left = mlx_gguf_vocabulary_find(vocabulary, (mlx_gguf_token_t){token.bytes, at}, none),
            right = -1;
    if (left >= 0) {
      right =
          mlx_gguf_vocabulary_find(vocabulary, (mlx_gguf_token_t){token.bytes + at, token.length - at}, none);
    }
    if (right < 0) continue;
    MLX_TRY(mlx_budget_take(vocabulary->budget, memory));
    MLX_TRY(mlx_reserve(merges->count + 1, sizeof *merges->items, &merges->capacity, &merges->items));
    merges->items[merges->count++] = (merge_t){score, id, (uint32_t)left, (uint32_t)right};
  }
  return NULL;
}

static mlx_status_t find_scores(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                const mlx_gguf_field_t **out_scores) {
  const mlx_gguf_field_t *scores = *out_scores = mlx_gguf_find(gguf, KEY("scores"));
  if (scores && scores->is_array && scores->type == MLX_GGUF_F32 && scores->count == vocabulary->count)
    return NULL;
  return mlx_gguf_error(gguf, KEY("scores"), MLX_INVALID_INPUT,
                        "must be an array with one f32 for each of the %zu tokens", vocabulary->count);
}

static mlx_status_t find_merges(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                merges_t *merges) {
  const mlx_gguf_field_t *scores;
  MLX_TRY(find_scores(gguf, vocabulary, &scores));
  for (size_t i = 0; i < vocabulary->count; ++i) {
    uint8_t type = vocabulary->types[i];
    if (type == MLX_TOKEN_CONTROL || type == MLX_TOKEN_UNKNOWN || type == MLX_TOKEN_BYTE) continue;
    if (vocabulary->tokens[i].length > MAX_MERGED) {
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_UNSUPPORTED,
                            "has token %zu of %zu bytes; at most %d bytes are supported", i,
                            vocabulary->tokens[i].length, MAX_MERGED);
    }
    MLX_TRY(split_token(vocabulary, (uint32_t)i, score_at(scores, i), merges));
  }
  if (merges->count) qsort(merges->items, merges->count, sizeof *merges->items, compare_merges);
  return NULL;
}

static bool has_bytes(const mlx_gguf_vocabulary_t *vocabulary) {
  for (size_t i = 0; i < vocabulary->count; ++i) {
    if (vocabulary->types[i] == MLX_TOKEN_BYTE) return true;
  }
  return false;
}

// A decoder of one kind, and a space that it removes or writes.
static void begin_step(const char *type, const char *content, mlx_json_writer_t *json) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", type);
  if (content) mlx_json_put_text(json, "content", content);
}

// The decoder from pieces to text. |stripped|: remove the space that the normalizer put before the text.
static void write_piece_decoder(bool stripped, mlx_json_writer_t *json) {
  mlx_json_begin_object(json, "decoder", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "Sequence");
  mlx_json_begin_list(json, "decoders", MLX_JSON_COMPACT);
  mlx_json_put_raw(json, NULL, unspace, sizeof unspace - 1);
  begin_step("ByteFallback", NULL, json);
  mlx_json_end(json);
  begin_step("Fuse", NULL, json);
  mlx_json_end(json);
  if (stripped) {
    begin_step("Strip", " ", json);
    mlx_json_put_int(json, "start", 1);
    mlx_json_put_int(json, "stop", 0);
    mlx_json_end(json);
  }
  mlx_json_end(json);
  mlx_json_end(json);
}

// The model up to its merge list.
static mlx_status_t write_model(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                mlx_json_writer_t *json) {
  int64_t unknown;
  MLX_TRY(mlx_gguf_vocabulary_unknown(gguf, vocabulary, &unknown));
  mlx_json_begin_object(json, "model", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "BPE");
  mlx_json_put_null(json, "dropout");
  if (unknown >= 0) {
    mlx_gguf_write_token(vocabulary, (size_t)unknown, "unk_token", json);
  } else {
    mlx_json_put_null(json, "unk_token");
  }
  mlx_json_put_null(json, "continuing_subword_prefix");
  mlx_json_put_null(json, "end_of_word_suffix");
  mlx_json_put_bool(json, "fuse_unk", true);
  mlx_json_put_bool(json, "byte_fallback", has_bytes(vocabulary));
  mlx_json_put_bool(json, "ignore_merges", false);
  mlx_json_set_layout(json, MLX_JSON_ROWS);
  mlx_gguf_write_vocabulary(vocabulary, json);
  return NULL;
}

static void write_merges(const mlx_gguf_vocabulary_t *vocabulary, const merges_t *merges,
                         mlx_json_writer_t *json) {
  mlx_json_begin_list(json, "merges", MLX_JSON_ROWS);
  for (size_t i = 0; i < merges->count; ++i) {
    mlx_json_begin_list(json, NULL, MLX_JSON_COMPACT);
    mlx_gguf_write_token(vocabulary, merges->items[i].left, NULL, json);
    mlx_gguf_write_token(vocabulary, merges->items[i].right, NULL, json);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

mlx_status_t mlx_gguf_write_sentencepiece(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                          mlx_json_writer_t *json) {
  static const char prefixed[] =
      "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" SPACE
      "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}]}";
  bool add_prefix = true, found;
  merges_t merges = {0};
  MLX_TRY(mlx_gguf_bool(gguf, KEY("add_space_prefix"), &add_prefix, &found));
  MLX_TRY(mlx_gguf_vocabulary_read(gguf, rewrite_piece, vocabulary));
  mlx_gguf_pipeline_t pipeline = {.normalizer = add_prefix ? prefixed : spaces,
                                  .pre_tokenizer = "null",
                                  .add_bos = true,
                                  .bos_key = KEY("bos_token_id"),
                                  .eos_key = KEY("eos_token_id")};
  MLX_TRY(mlx_gguf_write_pipeline(gguf, vocabulary, &pipeline, json));
  write_piece_decoder(add_prefix, json);
  mlx_status_t status = find_merges(gguf, vocabulary, &merges);
  if (!status) status = write_model(gguf, vocabulary, json);
  if (!status) {
    write_merges(vocabulary, &merges, json);
    mlx_json_end(json);
  }
  mlx_free(merges.items);
  return status;
}

// The tokenizer that transformers' GemmaTokenizer makes. It splits at spaces, which are gone by then.
mlx_status_t mlx_gguf_write_merged_pieces(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                          mlx_json_writer_t *json) {
  bool add_prefix = false, found;
  MLX_TRY(mlx_gguf_bool(gguf, KEY("add_space_prefix"), &add_prefix, &found));
  if (add_prefix)
    return mlx_gguf_error(gguf, KEY("add_space_prefix"), MLX_UNSUPPORTED, "is true, which is not supported");
  MLX_TRY(mlx_gguf_vocabulary_read(gguf, rewrite_piece, vocabulary));
  const mlx_gguf_pipeline_t pipeline = {.normalizer = spaces,
                                        .pre_tokenizer = "null",
                                        .add_bos = true,
                                        .bos_key = KEY("bos_token_id"),
                                        .eos_key = KEY("eos_token_id")};
  MLX_TRY(mlx_gguf_write_pipeline(gguf, vocabulary, &pipeline, json));
  write_piece_decoder(false, json);
  MLX_TRY(write_model(gguf, vocabulary, json));
  MLX_TRY(mlx_gguf_write_merges(gguf, vocabulary, json));
  mlx_json_end(json);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// SentencePiece Unigram, as in T5's tokenizer

// The shortest decimal that parses to the same double, as Hugging Face writes it.
static void write_score(double score, mlx_text_t *text) {
  char number[40];
  for (int digits = 15; digits <= 17; ++digits) {
    snprintf(number, sizeof number, "%.*g", digits, score);
    if (strtod(number, NULL) == score) break;
  }
  mlx_text_puts(text, number);
}

static mlx_status_t write_charsmap(const mlx_gguf_t *gguf, mlx_text_t *text) {
  const mlx_gguf_field_t *map = mlx_gguf_find(gguf, KEY("precompiled_charsmap"));
  if (map && (!map->is_array || (map->type != MLX_GGUF_U8 && map->type != MLX_GGUF_I8))) {
    return mlx_gguf_error(gguf, KEY("precompiled_charsmap"), MLX_INVALID_INPUT, "must be an array of bytes");
  }
  if (!map || !map->count) {
    mlx_text_puts(text, "null");
  } else {
    mlx_json_writer_t json = {.out = text};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "type", "Precompiled");
    mlx_text_puts(mlx_json_put_value(&json, "precompiled_charsmap"), "\"");
    mlx_base64_append(text, map->data, map->size);
    mlx_text_puts(text, "\"");
    mlx_json_end(&json);
  }
  return mlx_text_finish(text);
}

static mlx_status_t write_pieces(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                 mlx_json_writer_t *json) {
  const mlx_gguf_field_t *scores;
  int64_t unknown;
  MLX_TRY(find_scores(gguf, vocabulary, &scores));
  MLX_TRY(mlx_gguf_vocabulary_unknown(gguf, vocabulary, &unknown));
  if (unknown < 0) return mlx_gguf_error(gguf, KEY("unknown_token_id"), MLX_INVALID_INPUT, "is missing");
  mlx_json_begin_object(json, "model", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "Unigram");
  mlx_json_put_int(json, "unk_id", unknown);
  mlx_json_put_bool(json, "byte_fallback", has_bytes(vocabulary));
  mlx_json_set_layout(json, MLX_JSON_ROWS);
  mlx_json_begin_list(json, "vocab", MLX_JSON_ROWS);
  for (size_t i = 0; i < vocabulary->count; ++i) {
    const float score = score_at(scores, i);
    if (score - score != 0)
      return mlx_gguf_error(gguf, KEY("scores"), MLX_INVALID_INPUT, "has an infinite score for token %zu", i);
    mlx_json_begin_list(json, NULL, MLX_JSON_COMPACT);
    mlx_gguf_write_token(vocabulary, i, NULL, json);
    write_score(score, mlx_json_put_value(json, NULL));
    mlx_json_end(json);
  }
  mlx_json_end(json);
  mlx_json_end(json);
  return NULL;
}

static void write_metaspace(bool add_prefix, mlx_text_t *text) {
  mlx_json_writer_t json = {.out = text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "Metaspace");
  mlx_json_put_text(&json, "replacement", SPACE);
  mlx_json_put_text(&json, "prepend_scheme", add_prefix ? "always" : "never");
  mlx_json_put_bool(&json, "split", true);
  mlx_json_end(&json);
}

// A pre-tokenizer that makes one space of several before |metaspace|.
static void write_collapsing(const mlx_text_t *metaspace, mlx_text_t *text) {
  mlx_json_writer_t json = {.out = text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "Sequence");
  mlx_json_begin_list(&json, "pretokenizers", MLX_JSON_COMPACT);
  begin_step("WhitespaceSplit", NULL, &json);
  mlx_json_end(&json);
  mlx_json_put_raw(&json, NULL, metaspace->data, metaspace->length);
  mlx_json_end(&json);
  mlx_json_end(&json);
}

mlx_status_t mlx_gguf_write_unigram(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                    mlx_json_writer_t *json) {
  bool add_prefix = true, collapse_spaces = true, space_is_suffix = false, found;
  mlx_text_t charsmap = {0}, metaspace = {0}, pre_tokenizer = {0};
  MLX_TRY(mlx_gguf_bool(gguf, KEY("add_space_prefix"), &add_prefix, &found));
  MLX_TRY(mlx_gguf_bool(gguf, KEY("remove_extra_whitespaces"), &collapse_spaces, &found));
  MLX_TRY(mlx_gguf_bool(gguf, KEY("treat_whitespace_as_suffix"), &space_is_suffix, &found));
  if (space_is_suffix)
    return mlx_gguf_error(gguf, KEY("treat_whitespace_as_suffix"), MLX_UNSUPPORTED,
                          "is true, which is not supported");
  MLX_TRY(mlx_gguf_vocabulary_read(gguf, rewrite_piece, vocabulary));
  write_metaspace(add_prefix, &metaspace);
  mlx_status_t status = mlx_text_finish(&metaspace);
  if (!status && collapse_spaces) write_collapsing(&metaspace, &pre_tokenizer);
  if (!status && collapse_spaces) status = mlx_text_finish(&pre_tokenizer);
  if (!status) status = write_charsmap(gguf, &charsmap);
  const mlx_gguf_pipeline_t pipeline = {
      .normalizer = charsmap.data,
      .pre_tokenizer = collapse_spaces ? pre_tokenizer.data : metaspace.data,
      .add_eos = true,
      .bos_key = KEY("bos_token_id"),
      .eos_key = KEY("eos_token_id")};
  if (!status) status = mlx_gguf_write_pipeline(gguf, vocabulary, &pipeline, json);
  if (!status && has_bytes(vocabulary)) write_piece_decoder(add_prefix, json);
  if (!status && !has_bytes(vocabulary)) mlx_json_put_raw(json, "decoder", metaspace.data, metaspace.length);
  mlx_text_clear(&charsmap);
  mlx_text_clear(&metaspace);
  mlx_text_clear(&pre_tokenizer);
  return status ? status : write_pieces(gguf, vocabulary, json);
}
