// tokenizer.json -> mlx_tokenizer_t.
//
// The file is untrusted. Every id, string and merge is checked before use. A feature that we do not implement
// exactly as Hugging Face does is refused, and the error names its field. Nothing is guessed or skipped,
// except fields that cannot change an id (trim_offsets, the pair template, type ids).
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"
#include "tokenizer/components.h"
#include "tokenizer/fields.h"
#include "tokenizer/read_model.h"
#include "tokenizer/read_steps.h"

#define MAX_TEMPLATE 256     // ids
#define JSON_VALUE_BYTES 16  // of a parsed value

// ----------------------------------------------------------------------------------------------------------
// post_processor

static mlx_status_t add_template_id(const mlx_json_t *json, const char *path, int32_t id,
                                    mlx_tokenizer_t *tokenizer) {
  if (tokenizer->template_count >= MAX_TEMPLATE) {
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path, "is longer than %d tokens", MAX_TEMPLATE);
  }
  tokenizer->template_ids[tokenizer->template_count++] = id;
  return NULL;
}

static mlx_status_t begin_template(const mlx_json_t *json, const char *path, mlx_tokenizer_t *tokenizer) {
  if (tokenizer->template_ids)
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path,
                                     "is a second template; only one is supported");
  return mlx_alloc(MAX_TEMPLATE, sizeof *tokenizer->template_ids, &tokenizer->template_ids);
}

static mlx_status_t check_template_id(const mlx_json_t *json, const char *path, int32_t id,
                                      const mlx_tokenizer_t *tokenizer) {
  if ((size_t)id < tokenizer->model.vocab.size && tokenizer->model.vocab.tokens[id].text) return NULL;
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path, "has id %d, but no token has that id", id);
}

// Reads one item of a template: {"SpecialToken": {"id": "<s>"}} or {"Sequence": {"id": "A"}}.
static mlx_status_t read_template_item(const mlx_json_t *json, yyjson_val *special_tokens, yyjson_val *item,
                                       const char *path, mlx_tokenizer_t *tokenizer) {
  char ids_path[MLX_PATH_SIZE];
  size_t index, max;
  yyjson_val *value, *sequence = mlx_json_find(item, "Sequence"),
                     *special = mlx_json_find(item, "SpecialToken");
  const char *name = yyjson_get_str(mlx_json_find(sequence ? sequence : special, "id"));
  if (!name)
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path,
                                     "must be a Sequence or a SpecialToken with an id");
  if (sequence) {
    if (!strcmp(name, "A")) return add_template_id(json, path, MLX_TEMPLATE_TEXT, tokenizer);
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path, "is sequence '%.60s'; only A is supported",
                                     name);
  }
  mlx_field_path(ids_path, "%s (special token '%.60s')", path, name);
  yyjson_val *ids = mlx_json_find(mlx_json_find(special_tokens, name), "ids");
  MLX_TRY(mlx_field_container(json, ids_path, ids, true));
  yyjson_arr_foreach(ids, index, max, value) {
    int32_t id;
    MLX_TRY(mlx_field_id(json, ids_path, "", value, &id));
    MLX_TRY(check_template_id(json, ids_path, id, tokenizer));
    MLX_TRY(add_template_id(json, ids_path, id, tokenizer));
  }
  return NULL;
}

// Reads BertProcessing and RobertaProcessing: cls, the text, sep. Both tokens are written ["[CLS]", 101].
static mlx_status_t read_bert(const mlx_json_t *json, yyjson_val *object, const char *path,
                              mlx_tokenizer_t *tokenizer) {
  static const char *const keys[] = {"cls", "sep"};
  char full[MLX_PATH_SIZE];
  MLX_TRY(begin_template(json, path, tokenizer));
  for (size_t i = 0; i < 2; ++i) {
    int32_t id;
    yyjson_val *pair = mlx_json_find(object, keys[i]);
    MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, keys[i]), pair, true));
    MLX_TRY(mlx_field_id(json, full, "[1]", yyjson_arr_get(pair, 1), &id));
    MLX_TRY(check_template_id(json, full, id, tokenizer));
    if (i) MLX_TRY(add_template_id(json, full, MLX_TEMPLATE_TEXT, tokenizer));
    MLX_TRY(add_template_id(json, full, id, tokenizer));
  }
  return NULL;
}

static mlx_status_t read_template(const mlx_json_t *json, yyjson_val *object, const char *path,
                                  mlx_tokenizer_t *tokenizer) {
  char full[MLX_PATH_SIZE], item_path[MLX_PATH_SIZE];
  size_t index, max;
  yyjson_val *item, *single = mlx_json_find(object, "single");
  MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, "single"), single, true));
  MLX_TRY(begin_template(json, path, tokenizer));
  yyjson_arr_foreach(single, index, max, item) {
    MLX_TRY(read_template_item(json, mlx_json_find(object, "special_tokens"), item,
                               mlx_field_index(item_path, full, index), tokenizer));
  }
  return NULL;
}

static mlx_status_t read_post_processor(const mlx_json_t *json, yyjson_val *object, const char *path,
                                        mlx_tokenizer_t *tokenizer) {
  char full[MLX_PATH_SIZE], item[MLX_PATH_SIZE];
  const char *type;
  size_t index, max;
  yyjson_val *child;
  if (!object) return NULL;
  MLX_TRY(mlx_field_type(json, path, object, &type));
  if (!strcmp(type, "ByteLevel")) return NULL;  // changes offsets only
  if (!strcmp(type, "TemplateProcessing")) return read_template(json, object, path, tokenizer);
  if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
    return read_bert(json, object, path, tokenizer);
  if (strcmp(type, "Sequence")) {
    return mlx_field_refuse_type(
        json, path, type,
        "BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing and Sequence are");
  }
  yyjson_val *list = mlx_json_find(object, "processors");
  MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, "processors"), list, true));
  yyjson_arr_foreach(list, index, max, child) {
    MLX_TRY(read_post_processor(json, child, mlx_field_index(item, full, index), tokenizer));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Creating

static mlx_status_t refuse_unless_null(const mlx_json_t *json, const char *key) {
  if (!mlx_json_find(json->root, key)) return NULL;
  return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, key, "is set; only null is supported");
}

static mlx_status_t read_tokenizer(const mlx_json_t *json, mlx_budget_t *budget, mlx_tokenizer_t *tokenizer) {
  MLX_TRY(refuse_unless_null(json, "truncation"));
  MLX_TRY(refuse_unless_null(json, "padding"));
  MLX_TRY(mlx_tokenizer_read_kind(json, tokenizer));
  MLX_TRY(mlx_tokenizer_read_steps(json, tokenizer));
  MLX_TRY(mlx_tokenizer_read_model(json, budget, tokenizer));
  return read_post_processor(json, mlx_json_find(json->root, "post_processor"), "post_processor", tokenizer);
}

mlx_status_t mlx_tokenizer_create(const char *name, const char *json, size_t length,
                                  mlx_tokenizer_t **out_tokenizer) {
  mlx_json_t document;
  *out_tokenizer = NULL;
  mlx_tokenizer_t *tokenizer;
  mlx_budget_t budget;
  mlx_budget_begin_file(&budget, name, length);
  MLX_TRY(mlx_json_parse(name, json, length, &document));
  mlx_status_t status =
      mlx_budget_take(&budget, length + yyjson_doc_get_val_count(document.doc) * JSON_VALUE_BYTES);
  tokenizer = NULL;
  if (!status) status = mlx_alloc(1, sizeof *tokenizer, &tokenizer);
  if (!status) {
    // The ids do not depend on the seed. A random seed keeps a hostile file from causing hash collisions;
    // without entropy only that protection is lost.
    uint64_t *seed = &tokenizer->model.vocab.seed;
    if (getrandom(seed, sizeof *seed, 0) != sizeof *seed) *seed = (uintptr_t)tokenizer;
    status = read_tokenizer(&document, &budget, tokenizer);
  }
  mlx_json_close(&document);
  if (status) {
    mlx_tokenizer_free(tokenizer);
    return status;
  }
  *out_tokenizer = tokenizer;
  return NULL;
}

static void free_model(mlx_tokenizer_model_t *model) {
  mlx_vocab_free(&model->vocab);
  mlx_pair_map_free(&model->merges);
  mlx_trie_free(&model->trie);
  mlx_free(model->scores);
  mlx_free(model->prefix);
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
  free_model(&tokenizer->model);
  for (size_t i = 0; i < tokenizer->added_count; ++i) mlx_free(tokenizer->added[i].normalized_text);
  mlx_free(tokenizer->added);
  mlx_added_set_free(&tokenizer->raw_added);
  mlx_added_set_free(&tokenizer->normalized_added);
  mlx_regex_free(tokenizer->word_regex);
  mlx_normalizer_free(&tokenizer->normalizer);
  mlx_pretokenizer_free(&tokenizer->pretokenizer);
  free_decoder(&tokenizer->decoder);
  mlx_free(tokenizer->template_ids);
  mlx_free(tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Lookup

size_t mlx_tokenizer_vocab_size(const mlx_tokenizer_t *tokenizer) { return tokenizer->model.vocab.size; }

bool mlx_tokenizer_find(const mlx_tokenizer_t *tokenizer, const char *token, int32_t *out_id) {
  int32_t id = mlx_vocab_find(&tokenizer->model.vocab, token, strlen(token));
  if (id < 0) return false;
  *out_id = id;
  return true;
}

bool mlx_tokenizer_is_special(const mlx_tokenizer_t *tokenizer, int32_t id) {
  const mlx_vocab_t *vocab = &tokenizer->model.vocab;
  return id >= 0 && (size_t)id < vocab->size && vocab->tokens[id].special;
}
