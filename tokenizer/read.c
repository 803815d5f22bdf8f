// tokenizer.json -> mlx_tokenizer_t.
//
// The file is untrusted. Every id, string and merge is checked before use. A feature that we do not implement
// exactly as Hugging Face does is refused, and the error names its field. Nothing is guessed or skipped,
// except fields that cannot change an id (trim_offsets, type ids of single texts).
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/json_writer.h"
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

static mlx_status_t add_pair_item(const mlx_json_t *json, const char *path, int32_t id, int32_t type,
                                  mlx_tokenizer_t *tokenizer) {
  if (tokenizer->pair_count >= MAX_TEMPLATE) {
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path, "is longer than %d tokens", MAX_TEMPLATE);
  }
  tokenizer->pair[tokenizer->pair_count++] = (mlx_pair_item_t){id, type};
  return NULL;
}

static mlx_status_t begin_template(const mlx_json_t *json, const char *path, mlx_tokenizer_t *tokenizer) {
  if (tokenizer->template_ids)
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path,
                                     "is a second template; only one is supported");
  MLX_TRY(mlx_alloc(MAX_TEMPLATE, sizeof *tokenizer->pair, &tokenizer->pair));
  return mlx_alloc(MAX_TEMPLATE, sizeof *tokenizer->template_ids, &tokenizer->template_ids);
}

static mlx_status_t check_template_id(const mlx_json_t *json, const char *path, int32_t id,
                                      const mlx_tokenizer_t *tokenizer) {
  if (mlx_vocab_has(&tokenizer->model.vocab, id, MLX_TOKEN_IS_USED)) return NULL;
  return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path, "has id %d, but no token has that id", id);
}

// An item of a template: {"SpecialToken": {"id": "<s>", "type_id": 0}} or {"Sequence": {"id": "A", ...}}.
typedef struct item {
  const char *name;
  bool is_text, is_second;  // sequence A or B; sequence B
  int32_t type;
} item_t;

static mlx_status_t read_item(const mlx_json_t *json, yyjson_val *value, const char *path, bool is_pair,
                              item_t *out) {
  yyjson_val *sequence = mlx_json_find(value, "Sequence"), *special = mlx_json_find(value, "SpecialToken"),
             *either = sequence ? sequence : special, *type = mlx_json_find(either, "type_id");
  const char *name = yyjson_get_str(mlx_json_find(either, "id"));
  if (!name)
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path,
                                     "must be a Sequence or a SpecialToken with an id");
  *out = (item_t){.name = name, .is_text = sequence != NULL};
  out->is_second = sequence && is_pair && !strcmp(name, "B");
  if (sequence && strcmp(name, "A") && !out->is_second)
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, path, "is sequence '%.60s'; only %s supported",
                                     name, is_pair ? "A and B are" : "A is");
  if (type && (!yyjson_is_uint(type) || yyjson_get_uint(type) > MLX_MAX_ID))
    return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, path, "has a type_id that is no small integer");
  out->type = (int32_t)yyjson_get_uint(type);
  return NULL;
}

static mlx_status_t read_template_item(const mlx_json_t *json, yyjson_val *special_tokens, yyjson_val *value,
                                       const char *path, bool is_pair, mlx_tokenizer_t *tokenizer) {
  char ids_path[MLX_PATH_SIZE];
  size_t index, max;
  yyjson_val *number;
  item_t item = {0};
  MLX_TRY(read_item(json, value, path, is_pair, &item));
  if (item.is_text) {
    const int32_t id = item.is_second ? MLX_TEMPLATE_SECOND : MLX_TEMPLATE_TEXT;
    return is_pair ? add_pair_item(json, path, id, item.type, tokenizer)
                   : add_template_id(json, path, id, tokenizer);
  }
  mlx_field_path(ids_path, "%s (special token '%.60s')", path, item.name);
  yyjson_val *ids = mlx_json_find(mlx_json_find(special_tokens, item.name), "ids");
  MLX_TRY(mlx_field_container(json, ids_path, ids, true));
  yyjson_arr_foreach(ids, index, max, number) {
    int32_t id;
    MLX_TRY(mlx_field_id(json, ids_path, "", number, &id));
    MLX_TRY(check_template_id(json, ids_path, id, tokenizer));
    MLX_TRY(is_pair ? add_pair_item(json, ids_path, id, item.type, tokenizer)
                    : add_template_id(json, ids_path, id, tokenizer));
  }
  return NULL;
}

// Reads BertProcessing and RobertaProcessing: cls, the text, sep. Both tokens are written ["[CLS]", 101].
// Between two texts BERT has one sep and RoBERTa two; only BERT gives the second text another type.
static mlx_status_t read_bert(const mlx_json_t *json, yyjson_val *object, const char *path, bool is_roberta,
                              mlx_tokenizer_t *tokenizer) {
  static const char *const keys[] = {"cls", "sep"};
  char full[MLX_PATH_SIZE];
  int32_t ids[2];
  MLX_TRY(begin_template(json, path, tokenizer));
  for (size_t i = 0; i < 2; ++i) {
    yyjson_val *pair = mlx_json_find(object, keys[i]);
    MLX_TRY(mlx_field_container(json, mlx_field_join(full, path, keys[i]), pair, true));
    MLX_TRY(mlx_field_id(json, full, "[1]", yyjson_arr_get(pair, 1), &ids[i]));
    MLX_TRY(check_template_id(json, full, ids[i], tokenizer));
    if (i) MLX_TRY(add_template_id(json, full, MLX_TEMPLATE_TEXT, tokenizer));
    MLX_TRY(add_template_id(json, full, ids[i], tokenizer));
  }
  const int32_t second = !is_roberta;
  const mlx_pair_item_t items[] = {{ids[0], 0}, {MLX_TEMPLATE_TEXT, 0},        {ids[1], 0},
                                   {ids[1], 0}, {MLX_TEMPLATE_SECOND, second}, {ids[1], second}};
  for (size_t i = 0; i < 6; ++i)
    if (i != 3 || is_roberta) MLX_TRY(add_pair_item(json, path, items[i].id, items[i].type, tokenizer));
  return NULL;
}

static mlx_status_t read_template(const mlx_json_t *json, yyjson_val *object, const char *path,
                                  mlx_tokenizer_t *tokenizer) {
  static const char *const keys[] = {"single", "pair"};
  char full[MLX_PATH_SIZE], item_path[MLX_PATH_SIZE];
  size_t index, max;
  MLX_TRY(begin_template(json, path, tokenizer));
  for (int i = 0; i < 2; ++i) {
    yyjson_val *item, *items = mlx_json_find(object, keys[i]);
    mlx_field_join(full, path, keys[i]);
    if (i && !items) continue;  // the text of a GGUF file has none
    MLX_TRY(mlx_field_container(json, full, items, true));
    yyjson_arr_foreach(items, index, max, item) {
      MLX_TRY(read_template_item(json, mlx_json_find(object, "special_tokens"), item,
                                 mlx_field_index(item_path, full, index), i, tokenizer));
    }
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
    return read_bert(json, object, path, !strcmp(type, "RobertaProcessing"), tokenizer);
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

// Keeps the parts that an image has as text.
static mlx_status_t keep_steps(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  static const char *const keys[] = {"normalizer", "pre_tokenizer", "decoder"};
  mlx_text_t text = {0};
  mlx_json_writer_t writer = {.out = &text};
  bool written = true;
  mlx_json_begin_object(&writer, NULL, MLX_JSON_COMPACT);
  for (size_t i = 0; i < sizeof keys / sizeof *keys && written; ++i) {
    yyjson_val *value = mlx_json_find(json->root, keys[i]);
    size_t length = 4;
    char *part = value ? yyjson_val_write(value, YYJSON_WRITE_NOFLAG, &length) : NULL;
    written = !value || part;
    mlx_json_put_raw(&writer, keys[i], part ? part : "null", length);
    free(part);
  }
  mlx_json_end(&writer);
  mlx_status_t status = written ? mlx_text_take(&text, &tokenizer->steps, &tokenizer->steps_length)
                                : mlx_error(MLX_OUT_OF_MEMORY, "out of memory: writing JSON");
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t read_tokenizer(const mlx_json_t *json, mlx_budget_t *budget, mlx_meter_t *meter,
                                   mlx_tokenizer_t *tokenizer) {
  // |truncation| and |padding| are those of the last call before the file was saved. As in transformers, each
  // call decides for itself.
  MLX_TRY(mlx_tokenizer_read_kind(json, tokenizer));
  MLX_TRY(mlx_tokenizer_read_steps(json, tokenizer));
  MLX_TRY(keep_steps(json, tokenizer));
  MLX_TRY(mlx_tokenizer_read_model(json, budget, meter, tokenizer));
  return read_post_processor(json, mlx_json_find(json->root, "post_processor"), "post_processor", tokenizer);
}

mlx_status_t mlx_tokenizer_create(const char *name, const char *json, size_t length,
                                  mlx_tokenizer_t **out_tokenizer) {
  mlx_meter_t silent;
  mlx_meter_begin(&silent, NULL, "", 0);
  return mlx_tokenizer_build(name, json, length, &silent, out_tokenizer);
}

mlx_status_t mlx_tokenizer_build(const char *name, const char *json, size_t length, mlx_meter_t *meter,
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
    status = read_tokenizer(&document, &budget, meter, tokenizer);
    if (!status) tokenizer->longest = mlx_tokenizer_find_longest(tokenizer);
  }
  mlx_json_close(&document);
  if (status) {
    mlx_tokenizer_free(tokenizer);
    return status;
  }
  *out_tokenizer = tokenizer;
  return NULL;
}

static void free_tables(mlx_tokenizer_t *tokenizer) {
  mlx_tokenizer_model_t *model = &tokenizer->model;
  mlx_vocab_free(&model->vocab);
  mlx_pair_map_free(&model->merges);
  mlx_trie_free(&model->trie);
  mlx_free(model->scores);
  mlx_free(model->prefix);
  mlx_free(tokenizer->added);
  mlx_added_set_free(&tokenizer->raw_added);
  mlx_added_set_free(&tokenizer->normalized_added);
  mlx_free(tokenizer->template_ids);
  mlx_free(tokenizer->pair);
  mlx_free(tokenizer->steps);
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
  mlx_image_writer_finish(tokenizer->writer);
  if (!tokenizer->is_image) free_tables(tokenizer);
  mlx_regex_free(tokenizer->word_regex);
  mlx_normalizer_free(&tokenizer->normalizer);
  mlx_pretokenizer_free(&tokenizer->pretokenizer);
  free_decoder(&tokenizer->decoder);
  mlx_unmap(&tokenizer->image);
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
  return mlx_vocab_has(&tokenizer->model.vocab, id, MLX_TOKEN_IS_SPECIAL);
}
