// Writes tokenizer.json for WordPiece vocabularies, tokenizer.ggml.model "bert".
#include <string.h>

#include "models/import/gguf_pipeline.h"
#include "models/import/gguf_tokenizer_kinds.h"

#define KEY MLX_TOKENIZER_KEY
#define WORD_START "\xe2\x96\x81"  // U+2581

// GGUF marks the first piece of a word with U+2581; tokenizer.json marks the other pieces with "##". U+2581
// alone is a piece that continues a word: no piece is empty.
static void rewrite_word(mlx_gguf_token_t token, uint8_t type, mlx_text_t *out) {
  bool special = type == MLX_TOKEN_CONTROL || type == MLX_TOKEN_UNKNOWN || type == MLX_TOKEN_USER_DEFINED;
  if (!special && token.length > 3 && !memcmp(token.bytes, WORD_START, 3)) {
    token.bytes += 3;
    token.length -= 3;
  } else if (!special) {
    mlx_text_puts(out, "##");
  }
  mlx_text_append(out, token.bytes, token.length);
}

// Older files do not store whether the model lowercases its input. A vocabulary without capital letters means
// yes.
static bool seems_lowercase(const mlx_gguf_vocabulary_t *vocabulary) {
  for (size_t i = 0; i < vocabulary->count; ++i) {
    for (size_t j = 0; vocabulary->types[i] == MLX_TOKEN_NORMAL && j < vocabulary->tokens[i].length; ++j) {
      char c = vocabulary->tokens[i].bytes[j];
      // [PAD] and similar bracketed tokens do not count.
      if (c >= 'A' && c <= 'Z' && vocabulary->tokens[i].bytes[0] != '[') return false;
    }
  }
  return true;
}

static mlx_status_t write_normalizer(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                     mlx_text_t *out) {
  bool lowercase = false, strip = false, found, strips_found;
  MLX_TRY(mlx_gguf_bool(gguf, KEY("normalizer.lowercase"), &lowercase, &found));
  MLX_TRY(mlx_gguf_bool(gguf, KEY("normalizer.strip_accents"), &strip, &strips_found));
  if (!found) lowercase = seems_lowercase(vocabulary);
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "BertNormalizer");
  mlx_json_put_bool(&json, "clean_text", true);
  mlx_json_put_bool(&json, "handle_chinese_chars", true);
  if (strips_found) {
    mlx_json_put_bool(&json, "strip_accents", strip);
  } else {
    mlx_json_put_null(&json, "strip_accents");  // accents are stripped if letters become lower case
  }
  mlx_json_put_bool(&json, "lowercase", lowercase);
  mlx_json_end(&json);
  return NULL;
}

mlx_status_t mlx_gguf_write_wordpiece(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                      mlx_json_writer_t *json) {
  mlx_text_t normalizer = {0};
  int64_t unknown;
  bool found = false;
  MLX_TRY(mlx_gguf_vocabulary_read(gguf, rewrite_word, vocabulary));
  MLX_TRY(mlx_gguf_vocabulary_unknown(gguf, vocabulary, &unknown));
  if (unknown < 0) return mlx_gguf_error(gguf, KEY("unknown_token_id"), MLX_INVALID_INPUT, "is missing");
  MLX_TRY(write_normalizer(gguf, vocabulary, &normalizer));
  // Older files name the first token cls_token_id. "seperator" is GGUF's own misspelling.
  int64_t ignored;
  mlx_status_t status = mlx_text_finish(&normalizer);
  if (!status) status = mlx_gguf_int(gguf, KEY("bos_token_id"), 0, INT32_MAX, &ignored, &found);
  mlx_gguf_pipeline_t pipeline = {.normalizer = normalizer.data,
                                  .pre_tokenizer = "{\"type\":\"BertPreTokenizer\"}",
                                  .add_bos = true,
                                  .add_eos = true,
                                  .bos_key = found ? KEY("bos_token_id") : KEY("cls_token_id"),
                                  .eos_key = KEY("seperator_token_id")};
  if (!status) status = mlx_gguf_write_pipeline(gguf, vocabulary, &pipeline, json);
  mlx_text_clear(&normalizer);
  MLX_TRY(status);
  mlx_json_begin_object(json, "decoder", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "WordPiece");
  mlx_json_put_text(json, "prefix", "##");
  mlx_json_put_bool(json, "cleanup", true);
  mlx_json_end(json);
  mlx_json_begin_object(json, "model", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "WordPiece");
  mlx_gguf_write_token(vocabulary, (size_t)unknown, "unk_token", json);
  mlx_json_put_text(json, "continuing_subword_prefix", "##");
  mlx_json_put_int(json, "max_input_chars_per_word", 100);
  mlx_json_set_layout(json, MLX_JSON_ROWS);
  mlx_gguf_write_vocabulary(vocabulary, json);
  mlx_json_end(json);
  return NULL;
}
