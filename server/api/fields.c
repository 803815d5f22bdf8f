// Fields of request bodies: paths, checks and values.
#include "server/api/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MAX_PATH_KEY 64  // bytes of a key in a path; longer keys are cut
#define MAX_UNKNOWN 400  // bytes of collected paths; further ones are left out

// ----------------------------------------------------------------------------------------------------------
// Paths

static bool is_plain_key(const char *key) {
  if (!*key || strlen(key) > MAX_PATH_KEY) return false;
  for (; *key; ++key) {
    const bool letter = (*key >= 'a' && *key <= 'z') || (*key >= 'A' && *key <= 'Z') || *key == '_';
    if (!letter && !(*key >= '0' && *key <= '9') && *key != '-' && *key != '$') return false;
  }
  return true;
}

// A path has no space: mlx_api_error_path finds its end by that.
static void put_quoted_key(mlx_text_t *path, const char *key) {
  mlx_text_t quoted = {0};
  size_t length = 0;
  while (key[length] && length < MAX_PATH_KEY) ++length;
  while (key[length] && length && ((unsigned char)key[length] & 0xC0) == 0x80) --length;
  mlx_text_json_string(&quoted, key, length);
  mlx_text_puts(path, "[");
  for (size_t i = 0; i < quoted.length; ++i) {
    if (quoted.data[i] == ' ')
      mlx_text_puts(path, "\\u0020");
    else
      mlx_text_append(path, &quoted.data[i], 1);
  }
  mlx_text_puts(path, "]");
  path->failed |= quoted.failed;
  mlx_text_clear(&quoted);
}

static void put_path(mlx_text_t *path, const mlx_place_t *place) {
  if (!place->parent) return;
  put_path(path, place->parent);
  if (!place->key)
    mlx_text_printf(path, "[%zu]", place->index);
  else if (is_plain_key(place->key))
    mlx_text_printf(path, "%s%s", path->length ? "." : "", place->key);
  else
    put_quoted_key(path, place->key);
}

mlx_status_t mlx_field_error(const mlx_place_t *place, mlx_code_t code, const char *fmt, ...) {
  mlx_text_t path = {0};
  char message[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  put_path(&path, place);
  mlx_status_t status =
      path.length ? mlx_error(code, "%s: %s", path.data, message) : mlx_error(code, "%s", message);
  mlx_text_clear(&path);
  return status;
}

static const char *kind_of(yyjson_val *value) {
  switch (yyjson_get_type(value)) {
    case YYJSON_TYPE_NULL: return "null";
    case YYJSON_TYPE_BOOL: return "a boolean";
    case YYJSON_TYPE_NUM: return "a number";
    case YYJSON_TYPE_STR: return "a string";
    case YYJSON_TYPE_ARR: return "a list";
    case YYJSON_TYPE_OBJ: return "an object";
    default: return "nothing";
  }
}

mlx_status_t mlx_field_expected(const mlx_place_t *place, const char *what) {
  return mlx_field_error(place, MLX_INVALID_INPUT, "expected %s, not %s", what, kind_of(place->value));
}

mlx_place_t mlx_place_root(const yyjson_doc *doc, mlx_text_t *unknown) {
  return (mlx_place_t){.value = yyjson_doc_get_root((yyjson_doc *)(uintptr_t)doc), .unknown = unknown};
}

mlx_place_t mlx_place_key(const mlx_place_t *parent, const char *key) {
  return (mlx_place_t){.parent = parent, .key = key, .value = mlx_json_find(parent->value, key)};
}

mlx_place_t mlx_place_item(const mlx_place_t *parent, size_t index, yyjson_val *value) {
  return (mlx_place_t){.parent = parent, .index = index, .value = yyjson_is_null(value) ? NULL : value};
}

// ----------------------------------------------------------------------------------------------------------
// Parsing

static int compare_keys(const void *a, const void *b) {
  yyjson_val *left = *(yyjson_val *const *)a, *right = *(yyjson_val *const *)b;
  const size_t left_length = yyjson_get_len(left), right_length = yyjson_get_len(right);
  const size_t shorter = left_length < right_length ? left_length : right_length;
  const int order = memcmp(yyjson_get_str(left), yyjson_get_str(right), shorter);
  return order ? order : (left_length > right_length) - (left_length < right_length);
}

static mlx_status_t check_unique_keys(const mlx_place_t *object) {
  const size_t count = yyjson_obj_size(object->value);
  size_t index, max;
  if (count < 2) return NULL;
  yyjson_val **keys, *key, *value;
  MLX_TRY(mlx_alloc(count, sizeof *keys, &keys));
  yyjson_obj_foreach(object->value, index, max, key, value) keys[index] = key;
  qsort(keys, count, sizeof *keys, compare_keys);
  mlx_status_t status = NULL;
  for (size_t i = 1; i < count && !status; ++i) {
    if (compare_keys(&keys[i - 1], &keys[i])) continue;
    const mlx_place_t twice = {.parent = object, .key = yyjson_get_str(keys[i])};
    status = mlx_field_error(&twice, MLX_INVALID_INPUT, "the key is given twice");
  }
  mlx_free(keys);
  return status;
}

static mlx_status_t check_tree(const mlx_place_t *place, int depth) {
  size_t index, max;
  yyjson_val *key, *value;
  if (!yyjson_is_ctn(place->value)) return NULL;
  if (depth > MLX_MAX_BODY_DEPTH)
    return mlx_error(MLX_INVALID_INPUT, "the JSON is nested deeper than %d levels", MLX_MAX_BODY_DEPTH);
  if (yyjson_is_arr(place->value)) {
    yyjson_arr_foreach(place->value, index, max, value) {
      const mlx_place_t item = {.parent = place, .index = index, .value = value};
      MLX_TRY(check_tree(&item, depth + 1));
    }
    return NULL;
  }
  MLX_TRY(check_unique_keys(place));
  yyjson_obj_foreach(place->value, index, max, key, value) {
    const mlx_place_t child = {.parent = place, .key = yyjson_get_str(key), .value = value};
    MLX_TRY(check_tree(&child, depth + 1));
  }
  return NULL;
}

mlx_status_t mlx_fields_parse(const char *body, size_t length, yyjson_doc **out_doc) {
  yyjson_read_err error;
  *out_doc = NULL;
  yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)body, length, YYJSON_READ_NOFLAG, NULL, &error);
  if (!doc) {
    const bool memory = error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION;
    return memory ? mlx_error(MLX_OUT_OF_MEMORY, "no memory to parse %zu bytes of JSON", length)
                  : mlx_error(MLX_INVALID_INPUT, "the request body is not valid JSON at byte %zu (%s)",
                              error.pos, error.msg);
  }
  const mlx_place_t root = mlx_place_root(doc, NULL);
  mlx_status_t status = yyjson_is_obj(root.value)
                            ? check_tree(&root, 1)
                            : mlx_error(MLX_INVALID_INPUT, "the request body must be a JSON object, not %s",
                                        kind_of(root.value));
  if (status)
    yyjson_doc_free(doc);
  else
    *out_doc = doc;
  return status;
}

mlx_status_t mlx_fields_read(const char *body, size_t length, size_t details_size, mlx_fields_read_fn_t read,
                             mlx_api_call_t *call) {
  yyjson_doc *doc;
  mlx_text_t *unknown = call->unknown;
  call->unknown = NULL;
  MLX_TRY(mlx_fields_parse(body, length, &doc));
  mlx_status_t status = mlx_alloc(1, details_size, &call->details);
  if (!status) {
    const mlx_place_t root = mlx_place_root(doc, unknown);
    status = read(&root, call);
  }
  yyjson_doc_free(doc);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Known fields

static bool is_nothing(yyjson_val *value) {
  if (yyjson_is_null(value) || yyjson_is_false(value)) return true;
  if (yyjson_is_num(value)) return yyjson_get_num(value) == 0;
  if (yyjson_is_str(value)) return !yyjson_get_len(value);
  return yyjson_is_ctn(value) && !yyjson_get_len(value);
}

// A key that contains NUL has no equal in a table.
static const mlx_field_t *find_field(const mlx_field_t *fields, yyjson_val *key) {
  for (; fields->name; ++fields) {
    if (yyjson_equals_str(key, fields->name)) return fields;
  }
  return NULL;
}

static void note_unknown(const mlx_place_t *place, const char *nearest, mlx_text_t *unknown) {
  mlx_text_t path = {0};
  if (unknown->length > MAX_UNKNOWN) return;
  put_path(&path, place);
  mlx_text_printf(unknown, "%s%s", unknown->length ? ", " : "", path.data ? path.data : "");
  if (nearest) mlx_text_printf(unknown, " (did you mean '%s'?)", nearest);
  if (unknown->length > MAX_UNKNOWN) mlx_text_puts(unknown, ", ...");
  mlx_text_clear(&path);
}

static mlx_status_t unknown_field(const mlx_place_t *place, const mlx_field_t *fields) {
  const char *names[256] = {0};
  size_t count = 0;
  for (; fields->name && count + 1 < sizeof names / sizeof *names; ++fields) {
    if (fields->use == MLX_FIELD_READ) names[count++] = fields->name;
  }
  const char *nearest = strlen(place->key) <= MAX_PATH_KEY ? mlx_nearest_name(place->key, names) : NULL;
  const mlx_place_t *root = place;
  while (root->parent) root = root->parent;
  if (root->unknown) {
    note_unknown(place, nearest, root->unknown);
    return NULL;
  }
  mlx_status_t status = mlx_field_error(place, MLX_UNSUPPORTED, "unknown field");
  return nearest ? mlx_status_hint(status, "did you mean '%s'?", nearest)
                 : mlx_status_hint(status, "remove it; docs/server.md lists the fields");
}

mlx_status_t mlx_fields_check(const mlx_place_t *object, const mlx_field_t *fields, bool lenient) {
  size_t index, max;
  yyjson_val *key, *value;
  if (!yyjson_is_obj(object->value)) return mlx_field_expected(object, "an object");
  yyjson_obj_foreach(object->value, index, max, key, value) {
    const mlx_place_t place = {.parent = object, .key = yyjson_get_str(key), .value = value};
    const mlx_field_t *field = find_field(fields, key);
    if (!field && !lenient) MLX_TRY(unknown_field(&place, fields));
    if (!field || field->use != MLX_FIELD_REFUSED || yyjson_is_null(value)) continue;
    if (field->null_is_fine && is_nothing(value)) continue;
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "not supported"), "%s", field->why);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Values

static mlx_status_t read_int(const mlx_place_t *place, int64_t min, int64_t max, int64_t *out) {
  yyjson_val *value = place->value;
  if (!yyjson_is_num(value)) return mlx_field_expected(place, "an integer");
  const bool real = yyjson_is_real(value);
  const double number = yyjson_get_num(value);
  if (real && number != floor(number))
    return mlx_field_error(place, MLX_INVALID_INPUT, "expected an integer, not %g", number);
  const bool too_large =
      real ? !(fabs(number) < 0x1p63) : yyjson_is_uint(value) && yyjson_get_uint(value) > INT64_MAX;
  const int64_t integer = too_large ? 0 : real ? (int64_t)number : yyjson_get_sint(value);
  if (too_large || integer < min || integer > max) {
    return mlx_field_error(place, MLX_INVALID_INPUT, "expected an integer from %lld to %lld, not %.17g",
                           (long long)min, (long long)max, number);
  }
  *out = integer;
  return NULL;
}

static mlx_status_t read_number(const mlx_place_t *place, double min, double max, double *out) {
  if (!yyjson_is_num(place->value)) return mlx_field_expected(place, "a number");
  const double number = yyjson_get_num(place->value);
  if (!(number >= min && number <= max))
    return mlx_field_error(place, MLX_INVALID_INPUT, "expected a number from %g to %g, not %g", min, max,
                           number);
  *out = number;
  return NULL;
}

static mlx_status_t read_text(const mlx_place_t *place, const char **out) {
  if (!yyjson_is_str(place->value)) return mlx_field_expected(place, "a string");
  const char *text = yyjson_get_str(place->value);
  if (strlen(text) != yyjson_get_len(place->value))
    return mlx_field_error(place, MLX_INVALID_INPUT, "contains a NUL character");
  *out = text;
  return NULL;
}

mlx_status_t mlx_field_int(const mlx_place_t *parent, const char *key, int64_t min, int64_t max,
                           int64_t *inout) {
  const mlx_place_t place = mlx_place_key(parent, key);
  return place.value ? read_int(&place, min, max, inout) : NULL;
}

mlx_status_t mlx_field_number(const mlx_place_t *parent, const char *key, double min, double max,
                              double *inout) {
  const mlx_place_t place = mlx_place_key(parent, key);
  return place.value ? read_number(&place, min, max, inout) : NULL;
}

mlx_status_t mlx_field_bool(const mlx_place_t *parent, const char *key, bool *inout) {
  const mlx_place_t place = mlx_place_key(parent, key);
  if (!place.value) return NULL;
  if (!yyjson_is_bool(place.value)) return mlx_field_expected(&place, "true or false");
  *inout = yyjson_get_bool(place.value);
  return NULL;
}

mlx_status_t mlx_field_text(const mlx_place_t *parent, const char *key, const char **inout) {
  const mlx_place_t place = mlx_place_key(parent, key);
  return place.value ? read_text(&place, inout) : NULL;
}

mlx_status_t mlx_field_copy(const mlx_place_t *parent, const char *key, char **inout) {
  const char *text = NULL;
  char *copy;
  MLX_TRY(mlx_field_text(parent, key, &text));
  if (!text) return NULL;
  MLX_TRY(mlx_copy_text(text, strlen(text), &copy));
  mlx_free(*inout);
  *inout = copy;
  return NULL;
}

mlx_status_t mlx_field_json(yyjson_val *value, char **out_json, size_t *out_length) {
  mlx_text_t text = {0};
  *out_json = NULL;
  *out_length = 0;
  mlx_status_t status = mlx_json_put(value, &text);
  if (!status) status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Fields of several APIs

// Appends a copy to a list of texts that has room for it.
static mlx_status_t add_text(const mlx_place_t *place, char **texts, size_t *count) {
  const char *text = "";
  MLX_TRY(read_text(place, &text));
  const size_t length = strlen(text);
  if (!length) return mlx_field_error(place, MLX_INVALID_INPUT, "the text is empty");
  if (length > MLX_MAX_STOP_LENGTH)
    return mlx_field_error(place, MLX_INVALID_INPUT, "longer than %d bytes", MLX_MAX_STOP_LENGTH);
  MLX_TRY(mlx_copy_text(text, length, &texts[*count]));
  ++*count;
  return NULL;
}

mlx_status_t mlx_field_stops(const mlx_place_t *parent, const char *key, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(parent, key);
  size_t index, max;
  yyjson_val *value;
  if (!place.value) return NULL;
  const bool is_list = yyjson_is_arr(place.value);
  if (!is_list && !yyjson_is_str(place.value)) return mlx_field_expected(&place, "a string or a list");
  const size_t count = call->stop_count + (is_list ? yyjson_arr_size(place.value) : 1);
  if (count > MLX_MAX_STOPS)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "more than %d stop strings", MLX_MAX_STOPS);
  MLX_TRY(mlx_resize(count, sizeof *call->stops, &call->stops));
  if (!is_list) return add_text(&place, call->stops, &call->stop_count);
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    MLX_TRY(add_text(&item, call->stops, &call->stop_count));
  }
  return NULL;
}

static mlx_status_t read_bias(const mlx_place_t *place, mlx_logit_bias_t *out) {
  if (yyjson_is_false(place->value)) {  // llama.cpp's way to forbid a token
    out->bias = -INFINITY;
    return NULL;
  }
  MLX_TRY(read_number(place, -100, 100, &out->bias));
  if (out->bias == -100) out->bias = -INFINITY;
  return NULL;
}

// llama.cpp: a text stands for each of its tokens, which are known once the model is. |place| has the bias.
static mlx_status_t add_bias_text(const mlx_place_t *place, const char *text, size_t length,
                                  mlx_api_call_t *call) {
  mlx_logit_bias_t bias = {0};
  if (!length || length > MLX_MAX_STOP_LENGTH)
    return mlx_field_error(place, MLX_INVALID_INPUT, "expected a token id, or a text of at most %d bytes",
                           MLX_MAX_STOP_LENGTH);
  MLX_TRY(read_bias(place, &bias));
  MLX_TRY(mlx_resize(call->bias_text_count + 1, sizeof *call->bias_texts, &call->bias_texts));
  mlx_api_bias_text_t *added = &call->bias_texts[call->bias_text_count];
  added->bias = bias.bias;
  MLX_TRY(mlx_copy_text(text, length, &added->text));
  ++call->bias_text_count;
  return NULL;
}

static mlx_status_t read_bias_pair(const mlx_place_t *pair, mlx_api_call_t *call) {
  mlx_logit_bias_t *out = &call->biases_storage[call->sampling.bias_count];
  int64_t id = 0;
  if (!yyjson_is_arr(pair->value) || yyjson_arr_size(pair->value) != 2)
    return mlx_field_error(pair, MLX_INVALID_INPUT, "expected a list of a token id and a bias");
  const mlx_place_t first = mlx_place_item(pair, 0, yyjson_arr_get(pair->value, 0));
  const mlx_place_t second = mlx_place_item(pair, 1, yyjson_arr_get(pair->value, 1));
  if (yyjson_is_str(first.value))
    return add_bias_text(&second, yyjson_get_str(first.value), yyjson_get_len(first.value), call);
  MLX_TRY(read_int(&first, 0, INT32_MAX, &id));
  out->id = (int32_t)id;
  ++call->sampling.bias_count;
  return read_bias(&second, out);
}

static mlx_status_t read_bias_key(const mlx_place_t *place, mlx_api_call_t *call) {
  mlx_logit_bias_t *out = &call->biases_storage[call->sampling.bias_count];
  int64_t id = 0;
  const char *c = place->key;
  for (; *c >= '0' && *c <= '9' && id <= INT32_MAX; ++c) id = 10 * id + (*c - '0');
  if (c == place->key || strspn(place->key, "0123456789") != strlen(place->key))
    return add_bias_text(place, place->key, strlen(place->key), call);
  if (*c || id > INT32_MAX) return mlx_field_error(place, MLX_INVALID_INPUT, "the key is not a token id");
  out->id = (int32_t)id;
  ++call->sampling.bias_count;
  return read_bias(place, out);
}

mlx_status_t mlx_field_logit_bias(const mlx_place_t *parent, const char *key, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(parent, key);
  size_t index, max;
  yyjson_val *id, *value;
  if (!place.value) return NULL;
  if (!yyjson_is_ctn(place.value)) return mlx_field_expected(&place, "an object");
  mlx_logit_bias_t *biases;
  MLX_TRY(mlx_alloc(yyjson_get_len(place.value), sizeof *biases, &biases));
  mlx_free(call->biases_storage);
  call->sampling.biases = call->biases_storage = biases;
  call->sampling.bias_count = 0;
  if (yyjson_is_arr(place.value)) {
    yyjson_arr_foreach(place.value, index, max, value) {
      const mlx_place_t item = mlx_place_item(&place, index, value);
      MLX_TRY(read_bias_pair(&item, call));
    }
    return NULL;
  }
  yyjson_obj_foreach(place.value, index, max, id, value) {
    const mlx_place_t item = {.parent = &place, .key = yyjson_get_str(id), .value = value};
    MLX_TRY(read_bias_key(&item, call));
  }
  return NULL;
}

static mlx_status_t read_breakers(const mlx_place_t *parent, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(parent, "dry_sequence_breakers");
  size_t index, max;
  yyjson_val *value;
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value)) return mlx_field_expected(&place, "a list of strings");
  if (call->breaker_count || yyjson_arr_size(place.value) > MLX_MAX_STOPS)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "more than %d strings", MLX_MAX_STOPS);
  MLX_TRY(mlx_resize(MLX_MAX_STOPS, sizeof *call->breakers, &call->breakers));
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    MLX_TRY(add_text(&item, call->breakers, &call->breaker_count));
  }
  call->sampling.dry_breakers = (const char *const *)call->breakers;
  call->sampling.dry_breaker_count = call->breaker_count;
  return NULL;
}

static mlx_status_t read_seed(const mlx_place_t *parent, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(parent, "seed");
  int64_t seed = -1;
  if (yyjson_is_uint(place.value)) {  // 64 bits
    call->sampling.seed = yyjson_get_uint(place.value);
    return NULL;
  }
  if (place.value) MLX_TRY(read_int(&place, INT64_MIN, INT64_MAX, &seed));
  if (seed != -1) call->sampling.seed = (uint64_t)seed;  // -1: a random one, as in llama.cpp
  return NULL;
}

// Two names of one option must not contradict each other.
static mlx_status_t check_penalty_names(const mlx_place_t *parent) {
  const mlx_place_t ours = mlx_place_key(parent, "repeat_penalty");
  const mlx_place_t other = mlx_place_key(parent, "repetition_penalty");
  if (!ours.value || !other.value || yyjson_get_num(ours.value) == yyjson_get_num(other.value)) return NULL;
  return mlx_field_error(&other, MLX_INVALID_INPUT, "differs from repeat_penalty");
}

// The ranges are those of mlx_sampling_check.
mlx_status_t mlx_field_sampling(const mlx_place_t *parent, mlx_api_call_t *call) {
  mlx_sampling_t *s = &call->sampling;
  const struct {
    const char *key;
    double min, max;
    double *value;
  } numbers[] = {
      {"temperature", 0, 1e6, &s->temperature},
      {"top_p", 0, 1, &s->top_p},
      {"min_p", 0, 1, &s->min_p},
      {"typical_p", 0, 1, &s->typical_p},
      {"top_n_sigma", -1e6, 1e6, &s->top_n_sigma},
      {"xtc_probability", 0, 1, &s->xtc_probability},
      {"xtc_threshold", 0, 1, &s->xtc_threshold},
      {"repeat_penalty", 1e-6, 1e6, &s->repeat_penalty},
      {"repetition_penalty", 1e-6, 1e6, &s->repeat_penalty},
      {"frequency_penalty", -1e6, 1e6, &s->frequency_penalty},
      {"presence_penalty", -1e6, 1e6, &s->presence_penalty},
      {"dry_multiplier", 0, 1e6, &s->dry_multiplier},
      {"dry_base", 1, 1e6, &s->dry_base},
      {"mirostat_tau", 0, 1e6, &s->mirostat_tau},
      {"mirostat_eta", 0, 1e6, &s->mirostat_eta},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    MLX_TRY(mlx_field_number(parent, numbers[i].key, numbers[i].min, numbers[i].max, numbers[i].value));
  MLX_TRY(check_penalty_names(parent));
  MLX_TRY(mlx_field_int(parent, "top_k", -1, INT32_MAX, &s->top_k));
  MLX_TRY(mlx_field_int(parent, "repeat_last_n", -1, 1000000000, &s->repeat_last_n));
  MLX_TRY(mlx_field_int(parent, "dry_allowed_length", 1, 1000000000, &s->dry_allowed_length));
  MLX_TRY(mlx_field_int(parent, "dry_penalty_last_n", -1, 1000000000, &s->dry_last_n));
  MLX_TRY(mlx_field_int(parent, "mirostat", 0, 2, &s->mirostat));
  MLX_TRY(read_breakers(parent, call));
  return read_seed(parent, call);
}

mlx_status_t mlx_field_parse_special(const mlx_place_t *parent, int *inout_plain) {
  bool parse = *inout_plain != 1;
  const mlx_place_t place = mlx_place_key(parent, "parse_special");
  MLX_TRY(mlx_field_bool(parent, "parse_special", &parse));
  if (yyjson_is_bool(place.value)) *inout_plain = !parse;
  return NULL;
}
