// Writes a Hugging Face tokenizer.json from the tokenizer.* fields of a GGUF file, so that the runtime needs
// only one tokenizer format. This file chooses the writer by tokenizer.ggml.model; gguf_byte_level.c,
// gguf_sentencepiece.c and gguf_wordpiece.c hold the writers.
#include "models/import/gguf_tokenizer.h"

#include <string.h>

#include "base/memory.h"
#include "models/import/gguf_tokenizer_kinds.h"
#include "models/import/name.h"

#define KEY MLX_TOKENIZER_KEY

typedef mlx_status_t (*write_fn_t)(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                   mlx_json_writer_t *json);

static const struct {
  const char *name;
  write_fn_t write;
} kinds[] = {{"gpt2", mlx_gguf_write_byte_level},
             {"llama", mlx_gguf_write_sentencepiece},
             {"gemma4", mlx_gguf_write_merged_pieces},
             {"t5", mlx_gguf_write_unigram},
             {"bert", mlx_gguf_write_wordpiece}};

// The bytes of all fields of the tokenizer. The weights do not count: they would allow any amount of memory.
static size_t tokenizer_size(const mlx_gguf_t *gguf) {
  size_t size = 0;
  for (size_t i = 0; i < gguf->field_count; ++i) {
    if (!strncmp(gguf->fields[i].key, KEY(""), strlen(KEY("")))) size += gguf->fields[i].size;
  }
  return size;
}

mlx_status_t mlx_gguf_tokenizer_json(const mlx_gguf_t *gguf, char **out_json, size_t *out_length) {
  *out_json = NULL;
  const char *model;
  write_fn_t write = NULL;
  MLX_TRY(mlx_gguf_string(gguf, KEY("model"), &model, NULL));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    if (!strcmp(model, kinds[i].name)) write = kinds[i].write;
  }
  if (!write) {
    mlx_status_t status =
        mlx_gguf_error(gguf, KEY("model"), MLX_UNSUPPORTED,
                       "is '%s'; only 'gpt2' (byte-level BPE), 'llama' and 'gemma4' (SentencePiece BPE), "
                       "'t5' (SentencePiece Unigram) and 'bert' (WordPiece) are supported",
                       mlx_name_printable(model));
    return mlx_status_hint(status, "use the model's Hugging Face directory, which has a tokenizer.json");
  }
  mlx_budget_t budget;
  mlx_budget_begin_file(&budget, gguf->name, tokenizer_size(gguf));
  mlx_gguf_vocabulary_t vocabulary = {.budget = &budget};
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_ROWS);
  mlx_status_t status = write(gguf, &vocabulary, &json);
  mlx_text_puts(&text, "\n");
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  if (!status) status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  mlx_gguf_vocabulary_clear(&vocabulary);
  return status;
}

mlx_status_t mlx_gguf_eos_ids(const mlx_gguf_t *gguf, int32_t *out_ids, size_t capacity, size_t *out_count) {
  static const char *const keys[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
  const mlx_gguf_field_t *tokens = mlx_gguf_find(gguf, KEY("tokens"));
  int64_t last =
      tokens && tokens->is_array && tokens->count <= INT32_MAX ? (int64_t)tokens->count - 1 : INT32_MAX;
  *out_count = 0;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    int64_t id = -1;
    bool found, known = false;
    MLX_TRY(mlx_gguf_int(gguf, keys[i], 0, last, &id, &found));
    for (size_t j = 0; j < *out_count; ++j) known |= out_ids[j] == id;
    if (!found || known) continue;
    if (*out_count == capacity)
      return mlx_gguf_error(gguf, keys[i], MLX_INVALID_INPUT,
                            "is one end-of-text token more than the %zu supported", capacity);
    out_ids[(*out_count)++] = (int32_t)id;
  }
  return NULL;
}
