// Writes the first part of tokenizer.json; see gguf_pipeline.h.
#include "models/import/gguf_pipeline.h"

#define KEY MLX_TOKENIZER_KEY

// Tokens that the tokenizer matches before all other steps. Control tokens are special, user-defined tokens
// are not.
static void write_added_tokens(const mlx_gguf_vocabulary_t *vocabulary, mlx_text_t *text) {
  const char *separator = "\n";
  for (size_t i = 0; i < vocabulary->count; ++i) {
    uint8_t type = vocabulary->types[i];
    bool special = type == MLX_TOKEN_CONTROL || type == MLX_TOKEN_UNKNOWN;
    if ((!special && type != MLX_TOKEN_USER_DEFINED) || !vocabulary->tokens[i].length) continue;
    mlx_text_printf(text, "%s    {\"id\":%zu,\"content\":", separator, i);
    mlx_gguf_write_token(vocabulary, i, text);
    mlx_text_printf(
        text, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
        special ? "true" : "false");
    separator = ",\n";
  }
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
                                mlx_text_t *text) {
  if (id < 0) return;
  mlx_text_puts(text, "{\"SpecialToken\":{\"id\":");
  mlx_gguf_write_token(vocabulary, (size_t)id, text);
  mlx_text_printf(text, ",\"type_id\":%d}}", type_id);
}

// BOS, the text, EOS: the elements of "single", or of one sequence of "pair".
static void write_sequence(const mlx_gguf_vocabulary_t *vocabulary, int64_t bos, int64_t eos, char name,
                           int type_id, mlx_text_t *text) {
  write_special_token(vocabulary, bos, type_id, text);
  mlx_text_printf(text, "%s{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}}", bos < 0 ? "" : ",", name, type_id);
  if (eos >= 0) mlx_text_puts(text, ",");
  write_special_token(vocabulary, eos, type_id, text);
}

// An entry of "special_tokens".
static void write_special_entry(const mlx_gguf_vocabulary_t *vocabulary, int64_t id, mlx_text_t *text) {
  mlx_gguf_write_token(vocabulary, (size_t)id, text);
  mlx_text_puts(text, ":{\"id\":");
  mlx_gguf_write_token(vocabulary, (size_t)id, text);
  mlx_text_printf(text, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
  mlx_gguf_write_token(vocabulary, (size_t)id, text);
  mlx_text_puts(text, "]}");
}

static mlx_status_t write_post_processor(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                         const mlx_gguf_pipeline_t *pipeline, mlx_text_t *text) {
  int64_t bos, eos;
  MLX_TRY(read_added_id(gguf, vocabulary, KEY("add_bos_token"), pipeline->bos_key, pipeline->add_bos, &bos));
  MLX_TRY(read_added_id(gguf, vocabulary, KEY("add_eos_token"), pipeline->eos_key, pipeline->add_eos, &eos));
  if (bos < 0 && eos < 0) {
    mlx_text_puts(text, "null");
    return NULL;
  }
  mlx_text_puts(text, "{\"type\":\"TemplateProcessing\",\"single\":[");
  write_sequence(vocabulary, bos, eos, 'A', 0, text);
  mlx_text_puts(text, "],\"pair\":[");
  write_sequence(vocabulary, bos, eos, 'A', 0, text);
  mlx_text_puts(text, ",");
  write_sequence(vocabulary, bos, eos, 'B', 1, text);
  mlx_text_puts(text, "],\"special_tokens\":{");
  if (bos >= 0) write_special_entry(vocabulary, bos, text);
  if (bos >= 0 && eos >= 0 && bos != eos) mlx_text_puts(text, ",");
  if (eos >= 0 && bos != eos) write_special_entry(vocabulary, eos, text);
  mlx_text_puts(text, "}}");
  return NULL;
}

mlx_status_t mlx_gguf_write_pipeline(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                     const mlx_gguf_pipeline_t *pipeline, mlx_text_t *text) {
  mlx_text_puts(
      text, "{\n  \"version\":\"1.0\",\n  \"truncation\":null,\n  \"padding\":null,\n  \"added_tokens\":[");
  write_added_tokens(vocabulary, text);
  mlx_text_printf(text, "],\n  \"normalizer\":%s,\n  \"pre_tokenizer\":%s,\n  \"post_processor\":",
                  pipeline->normalizer, pipeline->pre_tokenizer);
  return write_post_processor(gguf, vocabulary, pipeline, text);
}
