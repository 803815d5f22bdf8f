// Requests for embeddings, and their responses.
#include "server/api/embeddings.h"

#include <string.h>

#include "base/encoding.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/api/ollama.h"
#include "server/api/openai_answer.h"

// ----------------------------------------------------------------------------------------------------------
// Requests

static bool is_ids(yyjson_val *value) {
  return yyjson_is_arr(value) && yyjson_is_int(yyjson_arr_get_first(value));
}

static mlx_status_t add_input(mlx_embeddings_input_t *e, const mlx_place_t *place) {
  if (!yyjson_is_str(place->value) && !is_ids(place->value))
    return mlx_field_expected(place, "a text or a list of token ids");
  if (!yyjson_get_len(place->value)) return mlx_field_error(place, MLX_INVALID_INPUT, "the input is empty");
  e->inputs[e->count++] = place->value;
  return NULL;
}

// True if there is nothing to embed: no field, "", or an empty list.
static bool is_empty(const mlx_place_t *input) {
  return !input->value ||
         ((yyjson_is_str(input->value) || yyjson_is_arr(input->value)) && !yyjson_get_len(input->value));
}

static mlx_status_t read_inputs(const mlx_embeddings_api_t *api, mlx_embeddings_input_t *e,
                                const mlx_place_t *root) {
  const mlx_place_t input = mlx_place_key(root, api->key);
  if (api->may_be_empty && is_empty(&input)) return NULL;
  const bool is_list = yyjson_is_arr(input.value) && !is_ids(input.value);
  const size_t count = is_list ? yyjson_arr_size(input.value) : 1;
  if (!count || count > MLX_MAX_EMBEDDINGS)
    return mlx_field_error(&input, MLX_INVALID_INPUT, "expected 1 to %d inputs, not %zu", MLX_MAX_EMBEDDINGS,
                           count);
  MLX_TRY(mlx_alloc(count, sizeof *e->inputs, &e->inputs));
  if (!is_list) return add_input(e, &input);
  yyjson_val *value;
  size_t index, max;
  yyjson_arr_foreach(input.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&input, index, value);
    MLX_TRY(add_input(e, &item));
  }
  return NULL;
}

static mlx_status_t read_prompt(mlx_embeddings_input_t *e, const mlx_place_t *root) {
  return mlx_field_text(root, "prompt_name", &e->prompt);
}

static mlx_status_t read_normalize(mlx_embeddings_input_t *e, const mlx_place_t *root) {
  bool normalize = e->normalize == 1;
  const mlx_place_t place = mlx_place_key(root, "normalize");
  MLX_TRY(mlx_field_bool(root, "normalize", &normalize));
  if (place.value) e->normalize = normalize;
  return NULL;
}

static mlx_status_t read_format(mlx_embeddings_input_t *e, const mlx_place_t *root) {
  const char *format = "float";
  const mlx_place_t place = mlx_place_key(root, "encoding_format");
  MLX_TRY(mlx_field_text(root, "encoding_format", &format));
  e->base64 = !strcmp(format, "base64");
  if (e->base64 || !strcmp(format, "float")) return NULL;
  return mlx_field_error(&place, MLX_INVALID_INPUT, "expected \"float\" or \"base64\", not \"%s\"", format);
}

static mlx_status_t read_openai(const mlx_place_t *root, mlx_embeddings_input_t *out) {
  const mlx_place_t most = mlx_place_key(root, "truncate_prompt_tokens");
  MLX_TRY(read_format(out, root));
  MLX_TRY(read_prompt(out, root));
  MLX_TRY(read_normalize(out, root));
  MLX_TRY(mlx_field_int(root, "truncate_prompt_tokens", -1, INT32_MAX, &out->most));
  if (most.value && !out->most)
    return mlx_field_error(&most, MLX_INVALID_INPUT,
                           "expected a number of tokens, or -1 for as many as the model takes, not 0");
  out->cut = most.value;
  return NULL;
}

static mlx_status_t read_ollama(const mlx_place_t *root, mlx_embeddings_input_t *out) {
  out->normalize = 1;
  return mlx_field_bool(root, "truncate", &out->cut);
}

static mlx_status_t read_ollama_prompt(const mlx_place_t *root, mlx_embeddings_input_t *out) {
  return mlx_field_bool(root, "truncate", &out->cut);
}

static mlx_status_t read_tei(const mlx_place_t *root, mlx_embeddings_input_t *out) {
  const mlx_place_t place = mlx_place_key(root, "truncation_direction");
  const char *direction = "right";
  out->normalize = 1;
  MLX_TRY(mlx_field_bool(root, "truncate", &out->cut));
  MLX_TRY(read_prompt(out, root));
  MLX_TRY(read_normalize(out, root));
  MLX_TRY(mlx_field_text(root, "truncation_direction", &direction));
  if (!strcmp(direction, "right") || !strcmp(direction, "Right")) return NULL;
  return mlx_field_error(&place, MLX_UNSUPPORTED, "expected \"right\": a text loses its last tokens");
}

mlx_status_t mlx_embeddings_parse(const mlx_embeddings_api_t *api, const char *body, size_t length,
                                  mlx_text_t *unknown, mlx_embeddings_input_t *out) {
  *out = (mlx_embeddings_input_t){
      .key = api->key, .cut = api->cuts, .most = -1, .dimensions = -1, .plain = -1, .normalize = -1};
  MLX_TRY(mlx_fields_parse(body, length, &out->doc));
  const mlx_place_t root = mlx_place_root(out->doc, unknown);
  MLX_TRY(mlx_fields_check(&root, api->fields, false));
  MLX_TRY(mlx_field_text(&root, "model", &out->model));
  MLX_TRY(mlx_field_parse_special(&root, &out->plain));
  MLX_TRY(mlx_field_int(&root, "dimensions", 1, 1 << 24, &out->dimensions));
  if (api->read) MLX_TRY(api->read(&root, out));
  return read_inputs(api, out, &root);
}

void mlx_embeddings_input_clear(mlx_embeddings_input_t *input) {
  mlx_free(input->inputs);
  yyjson_doc_free(input->doc);
  *input = (mlx_embeddings_input_t){0};
}

mlx_status_t mlx_embeddings_ids(const mlx_embeddings_input_t *input, size_t index, int64_t vocab,
                                int32_t *out) {
  const mlx_place_t root = mlx_place_root(input->doc, NULL), all = mlx_place_key(&root, input->key),
                    nth = mlx_place_item(&all, index, input->inputs[index]);
  const mlx_place_t *ids = all.value == nth.value ? &all : &nth;  // "input" may be one list of ids
  yyjson_val *value;
  size_t i, max;
  yyjson_arr_foreach(ids->value, i, max, value) {
    const mlx_place_t item = mlx_place_item(ids, i, value);
    if (!yyjson_is_int(value) || yyjson_get_sint(value) < 0 || yyjson_get_sint(value) >= vocab)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id below %lld", (long long)vocab);
    out[i] = (int32_t)yyjson_get_sint(value);
  }
  return NULL;
}

mlx_status_t mlx_embeddings_annotate(const mlx_embeddings_input_t *input, size_t index, mlx_status_t status) {
  const mlx_place_t root = mlx_place_root(input->doc, NULL), all = mlx_place_key(&root, input->key);
  if (all.value == input->inputs[index]) return mlx_status_annotate(status, "%s", input->key);
  return mlx_status_annotate(status, "%s[%zu]", input->key, index);
}

// ----------------------------------------------------------------------------------------------------------
// Responses

static void put_embedding(mlx_json_writer_t *json, const char *key, const mlx_embeddings_t *e, size_t index) {
  const float *numbers = e->items[index];
  if (e->base64) {  // little endian
    mlx_text_t *out = mlx_json_put_value(json, key);
    mlx_text_puts(out, "\"");
    mlx_base64_append(out, numbers, e->size * sizeof *numbers);
    mlx_text_puts(out, "\"");
    return;
  }
  mlx_json_begin_list(json, key, MLX_JSON_COMPACT);
  for (size_t i = 0; i < e->size; ++i) mlx_json_put_number(json, NULL, "%.9g", (double)numbers[i]);
  mlx_json_end(json);
}

static void write_openai(const mlx_embeddings_t *e, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "object", "list");
  mlx_json_begin_list(&json, "data", MLX_JSON_COMPACT);
  for (size_t i = 0; i < e->count; ++i) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "object", "embedding");
    mlx_json_put_uint(&json, "index", i);
    put_embedding(&json, "embedding", e, i);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_json_put_text(&json, "model", e->model);
  mlx_json_begin_object(&json, "usage", MLX_JSON_COMPACT);
  mlx_json_put_int(&json, "prompt_tokens", e->tokens);
  mlx_json_put_int(&json, "total_tokens", e->tokens);
  mlx_json_end(&json);
  mlx_json_end(&json);
}

static void write_ollama(const mlx_embeddings_t *e, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "model", e->model);
  mlx_json_begin_list(&json, "embeddings", MLX_JSON_COMPACT);
  for (size_t i = 0; i < e->count; ++i) put_embedding(&json, NULL, e, i);
  mlx_json_end(&json);
  mlx_json_put_int(&json, "total_duration", (int64_t)(e->seconds * 1e9));
  mlx_json_put_int(&json, "load_duration", 0);
  mlx_json_put_int(&json, "prompt_eval_count", e->tokens);
  mlx_json_end(&json);
}

static void write_ollama_prompt(const mlx_embeddings_t *e, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  if (e->count) {
    put_embedding(&json, "embedding", e, 0);
  } else {
    mlx_json_begin_list(&json, "embedding", MLX_JSON_COMPACT);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
}

static void write_tei(const mlx_embeddings_t *e, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_list(&json, NULL, MLX_JSON_COMPACT);
  for (size_t i = 0; i < e->count; ++i) put_embedding(&json, NULL, e, i);
  mlx_json_end(&json);
}

void mlx_tei_write_error(const mlx_api_error_t *error, mlx_text_t *out) {
  const bool is_request = error->http_status < 500 && error->http_status != 429;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "error", error->message);
  mlx_json_put_text(&json, "error_type",
                    is_request                  ? "Validation"
                    : error->http_status == 429 ? "Overloaded"
                    : error->http_status == 503 ? "Unhealthy"
                                                : "Backend");
  mlx_json_end(&json);
}

// ----------------------------------------------------------------------------------------------------------

static const mlx_field_t openai_fields[] = {MLX_READ("input"),
                                            MLX_READ("model"),
                                            MLX_READ("encoding_format"),
                                            MLX_READ("dimensions"),
                                            MLX_READ("truncate_prompt_tokens"),
                                            MLX_READ("prompt_name"),
                                            MLX_READ("normalize"),
                                            MLX_READ("parse_special"),
                                            MLX_IGNORE("user", "an identifier of the client's user"),
                                            MLX_FIELDS_END};

#define OLLAMA_FIELDS                                                                         \
  MLX_READ("model"), MLX_READ("dimensions"), MLX_READ("parse_special"), MLX_READ("truncate"), \
      MLX_IGNORE("options", "an embedding has no sampling options"),                          \
      MLX_IGNORE("keep_alive", "--model-memory decides which models stay loaded"), MLX_FIELDS_END
static const mlx_field_t ollama_fields[] = {MLX_READ("input"), OLLAMA_FIELDS};
static const mlx_field_t ollama_prompt_fields[] = {MLX_READ("prompt"), OLLAMA_FIELDS};

static const mlx_field_t tei_fields[] = {MLX_READ("inputs"),
                                         MLX_READ("model"),
                                         MLX_READ("dimensions"),
                                         MLX_READ("truncate"),
                                         MLX_READ("truncation_direction"),
                                         MLX_READ("prompt_name"),
                                         MLX_READ("normalize"),
                                         MLX_READ("parse_special"),
                                         MLX_FIELDS_END};

const mlx_embeddings_api_t mlx_embeddings_openai = {.fields = openai_fields,
                                                    .key = "input",
                                                    .cut_field = "\"truncate_prompt_tokens\": -1",
                                                    .read = read_openai,
                                                    .write = write_openai,
                                                    .error = mlx_openai_put_error};
const mlx_embeddings_api_t mlx_embeddings_ollama = {.fields = ollama_fields,
                                                    .key = "input",
                                                    .cuts = true,
                                                    .cut_field = "\"truncate\": true",
                                                    .may_be_empty = true,
                                                    .read = read_ollama,
                                                    .write = write_ollama,
                                                    .error = mlx_ollama_write_error};
const mlx_embeddings_api_t mlx_embeddings_ollama_prompt = {.fields = ollama_prompt_fields,
                                                           .key = "prompt",
                                                           .cuts = true,
                                                           .cut_field = "\"truncate\": true",
                                                           .may_be_empty = true,
                                                           .read = read_ollama_prompt,
                                                           .write = write_ollama_prompt,
                                                           .error = mlx_ollama_write_error};
const mlx_embeddings_api_t mlx_embeddings_tei = {.fields = tei_fields,
                                                 .key = "inputs",
                                                 .cuts = true,
                                                 .cut_field = "\"truncate\": true",
                                                 .read = read_tei,
                                                 .write = write_tei,
                                                 .error = mlx_tei_write_error};
