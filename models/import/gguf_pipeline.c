// Writes the first part of tokenizer.json; see gguf_pipeline.h.
#include "models/import/gguf_pipeline.h"

#include <string.h>

#define KEY MLX_TOKENIZER_KEY

// Tokens that the tokenizer matches before all other steps. Control tokens are special, user-defined tokens
// are not.
static void write_added_tokens(const mlx_gguf_vocabulary_t *vocabulary, mlx_json_writer_t *json) {
  mlx_json_begin_list(json, "added_tokens", MLX_JSON_ROWS);
  for (size_t i = 0; i < vocabulary->count; ++i) {
    uint8_t type = vocabulary->types[i];
    bool special = type == MLX_TOKEN_CONTROL || type == MLX_TOKEN_UNKNOWN;
    if ((!special && type != MLX_TOKEN_USER_DEFINED) || !vocabulary->tokens[i].length) continue;
    mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_uint(json, "id", i);
    mlx_gguf_write_token(vocabulary, i, "content", json);
    mlx_json_put_bool(json, "single_word", false);
    mlx_json_put_bool(json, "lstrip", false);
    mlx_json_put_bool(json, "rstrip", false);
    mlx_json_put_bool(json, "normalized", false);
    mlx_json_put_bool(json, "special", special);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

// The id of the token that the tokenizer adds before or after every text, or -1 for none.
static mlx_status_t read_added_id(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                  const char *flag_key, const char *id_key, bool fallback, int64_t *out_id) {
  bool add = fallback, found;
  *out_id = -1;
  MLX_TRY(mlx_gguf_bool(gguf, flag_key, &add, &found));
  return add ? mlx_gguf_int(gguf, id_key, 0, (int64_t)vocabulary->count - 1, out_id, NULL) : NULL;
}

static void write_special_token(const mlx_gguf_vocabulary_t *vocabulary, int64_t id, int type_id,
                                mlx_json_writer_t *json) {
  if (id < 0) return;
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_object(json, "SpecialToken", MLX_JSON_COMPACT);
  mlx_gguf_write_token(vocabulary, (size_t)id, "id", json);
  mlx_json_put_int(json, "type_id", type_id);
  mlx_json_end(json);
  mlx_json_end(json);
}

// BOS, the text, EOS: the elements of "single", or of one sequence of "pair".
static void write_sequence(const mlx_gguf_vocabulary_t *vocabulary, int64_t bos, int64_t eos,
                           const char *name, int type_id, mlx_json_writer_t *json) {
  write_special_token(vocabulary, bos, type_id, json);
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_object(json, "Sequence", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "id", name);
  mlx_json_put_int(json, "type_id", type_id);
  mlx_json_end(json);
  mlx_json_end(json);
  write_special_token(vocabulary, eos, type_id, json);
}

// A member of "special_tokens".
static void write_special_entry(const mlx_gguf_vocabulary_t *vocabulary, int64_t id,
                                mlx_json_writer_t *json) {
  const mlx_gguf_token_t token = vocabulary->tokens[id];
  const int32_t ids[] = {(int32_t)id};
  mlx_json_writer_t entry = {.out = mlx_json_put_member(json, token.bytes, token.length)};
  mlx_json_begin_object(&entry, NULL, MLX_JSON_COMPACT);
  mlx_gguf_write_token(vocabulary, (size_t)id, "id", &entry);
  mlx_json_put_ints(&entry, "ids", ids, 1);
  mlx_json_begin_list(&entry, "tokens", MLX_JSON_COMPACT);
  mlx_gguf_write_token(vocabulary, (size_t)id, NULL, &entry);
  mlx_json_end(&entry);
  mlx_json_end(&entry);
}

// The second text of a pair. Encoders have one BOS, and those of RoBERTa's kind two EOS between the texts.
static mlx_status_t write_second(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary, int64_t bos,
                                 int64_t eos, mlx_json_writer_t *json) {
  static const char *const encoders[] = {"bert", "nomic-bert", "modern-bert", "eurobert"};
  const char *architecture = "", *model = "";
  bool found, encoder = false;
  MLX_TRY(mlx_gguf_string(gguf, "general.architecture", &architecture, &found));
  MLX_TRY(mlx_gguf_string(gguf, KEY("model"), &model, &found));
  for (size_t i = 0; i < sizeof encoders / sizeof *encoders; ++i)
    encoder |= !strcmp(encoders[i], architecture);
  const bool doubled = !strcmp(architecture, "bert") && strcmp(model, "bert") != 0;
  write_sequence(vocabulary, doubled ? eos : encoder ? -1 : bos, eos, "B", 1, json);
  return NULL;
}

static mlx_status_t write_post_processor(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                         const mlx_gguf_pipeline_t *pipeline, mlx_json_writer_t *json) {
  static const char key[] = "post_processor";
  int64_t bos, eos;
  MLX_TRY(read_added_id(gguf, vocabulary, KEY("add_bos_token"), pipeline->bos_key, pipeline->add_bos, &bos));
  MLX_TRY(read_added_id(gguf, vocabulary, KEY("add_eos_token"), pipeline->eos_key, pipeline->add_eos, &eos));
  if (bos < 0 && eos < 0) {
    mlx_json_put_null(json, key);
    return NULL;
  }
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "TemplateProcessing");
  mlx_json_begin_list(json, "single", MLX_JSON_COMPACT);
  write_sequence(vocabulary, bos, eos, "A", 0, json);
  mlx_json_end(json);
  mlx_json_begin_list(json, "pair", MLX_JSON_COMPACT);
  write_sequence(vocabulary, bos, eos, "A", 0, json);
  MLX_TRY(write_second(gguf, vocabulary, bos, eos, json));
  mlx_json_end(json);
  mlx_json_begin_object(json, "special_tokens", MLX_JSON_COMPACT);
  if (bos >= 0) write_special_entry(vocabulary, bos, json);
  if (eos >= 0 && bos != eos) write_special_entry(vocabulary, eos, json);
  mlx_json_end(json);
  mlx_json_end(json);
  return NULL;
}

mlx_status_t mlx_gguf_write_pipeline(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                     const mlx_gguf_pipeline_t *pipeline, mlx_json_writer_t *json) {
  mlx_json_put_text(json, "version", "1.0");
  mlx_json_put_null(json, "truncation");
  mlx_json_put_null(json, "padding");
  write_added_tokens(vocabulary, json);
  mlx_json_put_raw(json, "normalizer", pipeline->normalizer, strlen(pipeline->normalizer));
  mlx_json_put_raw(json, "pre_tokenizer", pipeline->pre_tokenizer, strlen(pipeline->pre_tokenizer));
  return write_post_processor(gguf, vocabulary, pipeline, json);
}
