// Writes tokenizer.json from vocab.txt. See hf_vocab.h.
#include "models/import/hf_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"

#define MOST_TOKENS (1 << 21)

typedef struct line {
  const char *text;
  size_t length;
  int32_t id;
} line_t;

typedef struct vocabulary {
  line_t *lines;  // owned; sorted by text
  size_t count;
} vocabulary_t;

static int compare_text(const line_t *a, const char *text, size_t length) {
  const int order = memcmp(a->text, text, a->length < length ? a->length : length);
  return order ? order : (a->length > length) - (a->length < length);
}

static int compare(const void *a, const void *b) {
  const line_t *x = a, *y = b;
  const int order = compare_text(x, y->text, y->length);
  return order ? order : (x->id > y->id) - (x->id < y->id);
}

// The length of the line at |text|, and in *|out_end| that of its end: "\n", "\r\n" or "\r", as Python reads
// it.
static size_t line_length(const char *text, size_t length, size_t *out_end) {
  size_t at = 0;
  while (at < length && text[at] != '\n' && text[at] != '\r') ++at;
  *out_end = at == length ? 0 : text[at] == '\r' && at + 1 < length && text[at + 1] == '\n' ? 2 : 1;
  return at;
}

static mlx_status_t check_line(const char *name, const line_t *line) {
  for (size_t i = 0; i < line->length;) {
    const int n = mlx_utf8_length(line->text + i, line->length - i);
    if (n <= 0) return mlx_error(MLX_INVALID_INPUT, "'%s': line %d is not UTF-8", name, line->id + 1);
    i += (size_t)n;
  }
  return NULL;
}

// Of equal lines, the last one counts.
static void drop_repeated(vocabulary_t *v) {
  size_t kept = 0;
  qsort(v->lines, v->count, sizeof *v->lines, compare);
  for (size_t i = 0; i < v->count; ++i) {
    const line_t *next = i + 1 < v->count ? &v->lines[i + 1] : NULL;
    if (!next || compare_text(&v->lines[i], next->text, next->length)) v->lines[kept++] = v->lines[i];
  }
  v->count = kept;
}

static mlx_status_t read_lines(const char *name, const char *text, size_t length, vocabulary_t *out) {
  size_t capacity = 0, end;
  for (size_t at = 0; at < length;) {
    const size_t size = line_length(text + at, length - at, &end);
    if (out->count == MOST_TOKENS)
      return mlx_error(MLX_UNSUPPORTED, "'%s' has more than %d lines", name, MOST_TOKENS);
    MLX_TRY(mlx_reserve(out->count + 1, sizeof *out->lines, &capacity, &out->lines));
    out->lines[out->count] = (line_t){text + at, size, (int32_t)out->count};
    MLX_TRY(check_line(name, &out->lines[out->count]));
    ++out->count;
    at += size + end;
  }
  if (!out->count) return mlx_error(MLX_INVALID_INPUT, "'%s' is empty", name);
  drop_repeated(out);
  return NULL;
}

static const line_t *find(const vocabulary_t *v, const char *text) {
  size_t low = 0, high = v->count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int order = compare_text(&v->lines[middle], text, strlen(text));
    if (!order) return &v->lines[middle];
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// tokenizer_config.json

enum { UNKNOWN, SEPARATOR, PADDING, FIRST, MASK, SPECIALS };
static const struct {
  const char *key, *usual;
  bool is_needed;
} specials[SPECIALS] = {{"unk_token", "[UNK]", true},
                        {"sep_token", "[SEP]", true},
                        {"pad_token", "[PAD]", false},
                        {"cls_token", "[CLS]", true},
                        {"mask_token", "[MASK]", false}};

// A special token: its text, or an object with it.
static mlx_status_t read_special(const mlx_json_t *config, const vocabulary_t *v, const char *name, int which,
                                 const line_t **out) {
  yyjson_val *value = yyjson_obj_get(config->root, specials[which].key);
  if (yyjson_is_obj(value)) value = yyjson_obj_get(value, "content");
  if (value && !yyjson_is_null(value) && !yyjson_is_str(value))
    return mlx_json_error(config, specials[which].key, "is not a text");
  const char *text = yyjson_is_str(value) ? yyjson_get_str(value) : specials[which].usual;
  *out = find(v, text);
  if (*out || !specials[which].is_needed) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "'%s' has no line '%.64s', the %s", name, text, specials[which].key);
}

// The value of a bool; -1: missing or null.
static mlx_status_t read_bool(const mlx_json_t *config, const char *key, int *out) {
  yyjson_val *value = yyjson_obj_get(config->root, key);
  *out = !value || yyjson_is_null(value) ? -1 : yyjson_get_bool(value);
  return *out < 0 || yyjson_is_bool(value) ? NULL : mlx_json_error(config, key, "is not true or false");
}

// ----------------------------------------------------------------------------------------------------------
// tokenizer.json

static void put_special(mlx_json_writer_t *json, const line_t *token) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_int(json, "id", token->id);
  mlx_json_put_bytes(json, "content", token->text, token->length);
  mlx_json_put_bool(json, "single_word", false);
  mlx_json_put_bool(json, "lstrip", false);
  mlx_json_put_bool(json, "rstrip", false);
  mlx_json_put_bool(json, "normalized", false);
  mlx_json_put_bool(json, "special", true);
  mlx_json_end(json);
}

static void put_bool_or_null(mlx_json_writer_t *json, const char *key, int value) {
  if (value < 0)
    mlx_json_put_null(json, key);
  else
    mlx_json_put_bool(json, key, value);
}

// A part of a template: a special token, or |sequence|.
static void put_part(mlx_json_writer_t *json, const line_t *token, const char *sequence, int type) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_object(json, sequence ? "Sequence" : "SpecialToken", MLX_JSON_COMPACT);
  if (sequence)
    mlx_json_put_text(json, "id", sequence);
  else
    mlx_json_put_bytes(json, "id", token->text, token->length);
  mlx_json_put_int(json, "type_id", type);
  mlx_json_end(json);
  mlx_json_end(json);
}

static void put_template(mlx_json_writer_t *json, const char *key, const line_t *first,
                         const line_t *separator, bool pair) {
  mlx_json_begin_list(json, key, MLX_JSON_COMPACT);
  put_part(json, first, NULL, 0);
  put_part(json, NULL, "A", 0);
  put_part(json, separator, NULL, 0);
  if (pair) put_part(json, NULL, "B", 1);
  if (pair) put_part(json, separator, NULL, 1);
  mlx_json_end(json);
}

static void put_template_token(mlx_json_writer_t *json, const line_t *token) {
  mlx_json_writer_t inner = {.out = mlx_json_put_member(json, token->text, token->length)};
  mlx_json_begin_object(&inner, NULL, MLX_JSON_COMPACT);
  mlx_json_put_bytes(&inner, "id", token->text, token->length);
  mlx_json_put_ints(&inner, "ids", &token->id, 1);
  mlx_json_begin_list(&inner, "tokens", MLX_JSON_COMPACT);
  mlx_json_put_bytes(&inner, NULL, token->text, token->length);
  mlx_json_end(&inner);
  mlx_json_end(&inner);
}

static void put_pipeline(mlx_json_writer_t *json, const line_t *const tokens[SPECIALS], int lower,
                         int chinese, int strip) {
  mlx_json_begin_object(json, "normalizer", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "BertNormalizer");
  mlx_json_put_bool(json, "clean_text", true);
  mlx_json_put_bool(json, "handle_chinese_chars", chinese != 0);
  put_bool_or_null(json, "strip_accents", strip);
  mlx_json_put_bool(json, "lowercase", lower != 0);
  mlx_json_end(json);
  mlx_json_put_raw(json, "pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}", 27);
  mlx_json_begin_object(json, "post_processor", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "TemplateProcessing");
  put_template(json, "single", tokens[FIRST], tokens[SEPARATOR], false);
  put_template(json, "pair", tokens[FIRST], tokens[SEPARATOR], true);
  mlx_json_begin_object(json, "special_tokens", MLX_JSON_COMPACT);
  put_template_token(json, tokens[FIRST]);
  if (tokens[SEPARATOR] != tokens[FIRST]) put_template_token(json, tokens[SEPARATOR]);
  mlx_json_end(json);
  mlx_json_end(json);
  mlx_json_begin_object(json, "decoder", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "WordPiece");
  mlx_json_put_text(json, "prefix", "##");
  mlx_json_put_bool(json, "cleanup", true);
  mlx_json_end(json);
}

static void put_model(mlx_json_writer_t *json, const vocabulary_t *v, const line_t *unknown) {
  mlx_json_begin_object(json, "model", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "WordPiece");
  mlx_json_put_bytes(json, "unk_token", unknown->text, unknown->length);
  mlx_json_put_text(json, "continuing_subword_prefix", "##");
  mlx_json_put_int(json, "max_input_chars_per_word", 100);
  mlx_json_begin_object(json, "vocab", MLX_JSON_COMPACT);
  for (size_t i = 0; i < v->count; ++i)
    mlx_text_printf(mlx_json_put_member(json, v->lines[i].text, v->lines[i].length), "%d", v->lines[i].id);
  mlx_json_end(json);
  mlx_json_end(json);
}

// Other classes read vocab.txt in other ways: MPNet's has other special tokens.
static mlx_status_t check_class(const char *name, const mlx_json_t *config) {
  static const char *const known[] = {"BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer",
                                      "DistilBertTokenizerFast"};
  yyjson_val *value = yyjson_obj_get(config->root, "tokenizer_class");
  if (!value || yyjson_is_null(value)) return NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    if (yyjson_equals_str(value, known[i])) return NULL;
  }
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "'%s': the tokenizer_class '%.64s' is not BERT's", name,
                                   yyjson_is_str(value) ? yyjson_get_str(value) : ""),
                         "create tokenizer.json with transformers: AutoTokenizer, save_pretrained");
}

static mlx_status_t write_json(const char *name, const vocabulary_t *v, const mlx_json_t *config,
                               mlx_text_t *out) {
  const line_t *tokens[SPECIALS];
  mlx_json_writer_t json = {.out = out};
  int lower, chinese, strip;
  MLX_TRY(check_class(name, config));
  for (int i = 0; i < SPECIALS; ++i) MLX_TRY(read_special(config, v, name, i, &tokens[i]));
  MLX_TRY(read_bool(config, "do_lower_case", &lower));
  MLX_TRY(read_bool(config, "tokenize_chinese_chars", &chinese));
  MLX_TRY(read_bool(config, "strip_accents", &strip));
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_text(&json, "version", "1.0");
  mlx_json_begin_list(&json, "added_tokens", MLX_JSON_COMPACT);
  for (int i = 0; i < SPECIALS; ++i) {
    bool is_new = tokens[i] != NULL;
    for (int k = 0; k < i; ++k) is_new = is_new && tokens[k] != tokens[i];
    if (is_new) put_special(&json, tokens[i]);
  }
  mlx_json_end(&json);
  put_pipeline(&json, tokens, lower, chinese, strip);
  put_model(&json, v, tokens[UNKNOWN]);
  mlx_json_end(&json);
  return mlx_text_finish(out);
}

mlx_status_t mlx_hf_vocab_tokenizer(const char *name, const char *text, size_t length,
                                    const mlx_json_t *config, char **out_json, size_t *out_length) {
  vocabulary_t vocabulary = {0};
  mlx_text_t out = {0};
  *out_json = NULL;
  mlx_status_t status = read_lines(name, text, length, &vocabulary);
  if (!status) status = write_json(name, &vocabulary, config, &out);
  if (!status) status = mlx_text_take(&out, out_json, out_length);
  mlx_text_clear(&out);
  mlx_free(vocabulary.lines);
  return status;
}
