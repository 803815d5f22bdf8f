// Reads and writes the lines of batch files.
#include "server/api/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"

#define CHAT "/v1/chat/completions"
#define COMPLETION "/v1/completions"
#define EMBEDDINGS "/v1/embeddings"
#define ID_PREFIX "batch_req_"
#define INDEX_DIGITS 10
#define DIGEST_DIGITS 22

// ----------------------------------------------------------------------------------------------------------
// Requests

static mlx_status_t wrong(const char *path, const char *what) {
  return mlx_error(MLX_INVALID_INPUT, "%s: %s", path, what);
}

static mlx_status_t copy_member(yyjson_val *value, const char *key, char **out_text, size_t *out_length) {
  *out_length = yyjson_get_len(value);
  if (!yyjson_is_str(value)) return wrong(key, "expected a string");
  return mlx_copy_text(yyjson_get_str(value), *out_length, out_text);
}

static mlx_status_t choose_path(yyjson_val *url, const char **out_path) {
  static const char *const paths[] = {CHAT, COMPLETION, EMBEDDINGS};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
    if (!yyjson_equals_str(url, paths[i])) continue;
    *out_path = paths[i];
    return NULL;
  }
  return wrong("url", "expected " CHAT ", " COMPLETION " or " EMBEDDINGS);
}

static void put_message(mlx_json_writer_t *json, const char *role, const char *text, size_t length) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "role", role);
  mlx_json_put_bytes(json, "content", text, length);
  mlx_json_end(json);
}

// A prompt as the messages of a chat.
static void put_messages(mlx_json_writer_t *json, const char *system, yyjson_val *prompt) {
  mlx_json_begin_list(json, "messages", MLX_JSON_COMPACT);
  if (system) put_message(json, "system", system, strlen(system));
  put_message(json, "user", yyjson_get_str(prompt), yyjson_get_len(prompt));
  mlx_json_end(json);
}

static bool has(yyjson_val *object, const char *key) {
  yyjson_val *value = yyjson_obj_get(object, key);
  return value && !yyjson_is_null(value);
}

static void put_defaults(mlx_json_writer_t *json, yyjson_val *body, uint64_t index,
                         const mlx_batch_defaults_t *defaults) {
  if (defaults->max_tokens >= 0 && !has(body, "max_tokens") && !has(body, "max_completion_tokens"))
    mlx_json_put_int(json, "max_tokens", defaults->max_tokens);
  if (!has(body, "seed")) mlx_json_put_uint(json, "seed", (uint32_t)(defaults->seed + index));
}

// The members of |body|, without those that are replaced.
static mlx_status_t put_members(mlx_json_writer_t *json, yyjson_val *body, bool is_prompt) {
  size_t i, count;
  yyjson_val *key, *value;
  yyjson_obj_foreach(body, i, count, key, value) {
    const bool is_replaced =
        yyjson_equals_str(key, "custom_id") || (is_prompt && yyjson_equals_str(key, "prompt")) ||
        (yyjson_is_null(value) && (yyjson_equals_str(key, "seed") || yyjson_equals_str(key, "max_tokens")));
    if (!is_replaced)
      MLX_TRY(mlx_json_put(value, mlx_json_put_member(json, yyjson_get_str(key), yyjson_get_len(key))));
  }
  return NULL;
}

// |is_prompt|: the prompt of |body| is a user message.
static mlx_status_t put_body(yyjson_val *body, bool is_prompt, uint64_t index,
                             const mlx_batch_defaults_t *defaults, mlx_batch_request_t *out) {
  mlx_json_writer_t json = {.out = &out->body};
  size_t ignored;
  if (yyjson_is_true(yyjson_obj_get(body, "stream")))
    return wrong("body.stream", "a batch has whole answers: leave it out");
  if (has(body, "model"))
    MLX_TRY(copy_member(yyjson_obj_get(body, "model"), "body.model", &out->model, &ignored));
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  MLX_TRY(put_members(&json, body, is_prompt));
  if (is_prompt) put_messages(&json, defaults->system, yyjson_obj_get(body, "prompt"));
  if (strcmp(out->path, EMBEDDINGS)) put_defaults(&json, body, index, defaults);
  mlx_json_end(&json);
  return mlx_text_finish(&out->body);
}

// {"custom_id", "method", "url", "body"}
static mlx_status_t read_openai(yyjson_val *root, uint64_t index, const mlx_batch_defaults_t *defaults,
                                mlx_batch_request_t *out) {
  yyjson_val *body = yyjson_obj_get(root, "body");
  if (!has(root, "custom_id")) return wrong("custom_id", "is missing");
  if (!yyjson_equals_str(yyjson_obj_get(root, "method"), "POST")) return wrong("method", "expected \"POST\"");
  MLX_TRY(choose_path(yyjson_obj_get(root, "url"), &out->path));
  if (!yyjson_is_obj(body)) return wrong("body", "expected an object");
  return put_body(body, false, index, defaults, out);
}

// A body alone.
static mlx_status_t read_body(yyjson_val *root, uint64_t index, const mlx_batch_defaults_t *defaults,
                              mlx_batch_request_t *out) {
  yyjson_val *prompt = yyjson_obj_get(root, "prompt");
  const int forms = (prompt != NULL) + has(root, "messages") + has(root, "input");
  if (forms != 1)
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "expected \"body\", or one of \"messages\", \"prompt\" and \"input\""),
        "a line is OpenAI's {\"custom_id\": ..., \"method\": \"POST\", \"url\": ..., \"body\": ...}, or such "
        "a "
        "body alone");
  const bool is_message = prompt && !defaults->completes;
  if (is_message && !yyjson_is_str(prompt)) return wrong("prompt", "expected a string");
  out->path = has(root, "input") ? EMBEDDINGS : prompt && !is_message ? COMPLETION : CHAT;
  return put_body(root, is_message, index, defaults, out);
}

static mlx_status_t read_id(yyjson_val *root, uint64_t index, mlx_batch_request_t *out) {
  char name[40];
  if (has(root, "custom_id"))
    return copy_member(yyjson_obj_get(root, "custom_id"), "custom_id", &out->custom_id,
                       &out->custom_id_length);
  const int length = snprintf(name, sizeof name, "request-%llu", (unsigned long long)index + 1);
  out->custom_id_length = (size_t)length;
  return mlx_copy_text(name, out->custom_id_length, &out->custom_id);
}

// The line as an object: a string is its prompt.
static mlx_status_t parse_line(const char *line, size_t length, bool is_text, mlx_json_t *out) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  if (!is_text && line[0] != '"') return mlx_json_parse("request", line, length, out);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  if (is_text)
    mlx_json_put_bytes(&json, "prompt", line, length);
  else
    mlx_json_put_raw(&json, "prompt", line, length);
  mlx_json_end(&json);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_json_parse("request", text.data, text.length, out);
  mlx_text_clear(&text);
  return status;
}

mlx_status_t mlx_batch_request_parse(const char *line, size_t length, bool is_text, uint64_t index,
                                     const mlx_batch_defaults_t *defaults, mlx_batch_request_t *out) {
  mlx_json_t json;
  *out = (mlx_batch_request_t){0};
  MLX_TRY(parse_line(line, length, is_text, &json));
  mlx_status_t status = read_id(json.root, index, out);
  if (!status)
    status = yyjson_obj_get(json.root, "body") || yyjson_obj_get(json.root, "url")
                 ? read_openai(json.root, index, defaults, out)
                 : read_body(json.root, index, defaults, out);
  mlx_json_close(&json);
  if (status) mlx_batch_request_clear(out);
  return status;
}

void mlx_batch_request_clear(mlx_batch_request_t *request) {
  mlx_free(request->custom_id);
  mlx_free(request->model);
  mlx_text_clear(&request->body);
  *request = (mlx_batch_request_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Results

mlx_batch_id_t mlx_batch_id(uint64_t index, const char digest[MLX_DIGEST_HEX]) {
  mlx_batch_id_t id;
  snprintf(id.text, sizeof id.text, ID_PREFIX "%0*llx%.*s", INDEX_DIGITS,
           (unsigned long long)(index & 0xffffffffffu), DIGEST_DIGITS, digest);
  return id;
}

static void set_text(yyjson_mut_doc *doc, yyjson_mut_val *object, const char *key, const char *text) {
  yyjson_mut_val *value = yyjson_mut_strcpy(doc, text);
  if (yyjson_mut_obj_get(object, key) && value)
    yyjson_mut_obj_replace(object, yyjson_mut_str(doc, key), value);
}

// "chatcmpl-RANDOM" becomes "chatcmpl-" and the digits of the request's id.
static void replace_id(yyjson_mut_doc *doc, yyjson_mut_val *root, const char *digits) {
  const char *old = yyjson_mut_get_str(yyjson_mut_obj_get(root, "id"));
  const char *end = old ? strchr(old, '-') : NULL;
  char text[96];
  if (!end || end - old > 40) return;
  snprintf(text, sizeof text, "%.*s-%s", (int)(end - old), old, digits);
  set_text(doc, root, "id", text);
}

static void replace_tool_ids(yyjson_mut_doc *doc, yyjson_mut_val *root, const char *digits) {
  size_t choice, choices, call, calls;
  yyjson_mut_val *item, *tool;
  char text[120];
  yyjson_mut_arr_foreach(yyjson_mut_obj_get(root, "choices"), choice, choices, item) {
    yyjson_mut_val *list = yyjson_mut_obj_get(yyjson_mut_obj_get(item, "message"), "tool_calls");
    yyjson_mut_arr_foreach(list, call, calls, tool) {
      snprintf(text, sizeof text, "call_%s_%zu_%zu", digits, choice, call);
      set_text(doc, tool, "id", text);
    }
  }
}

// Removes from a response what differs between two runs.
static void make_reproducible(yyjson_mut_doc *doc, const char *digits) {
  yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
  yyjson_mut_obj_remove_key(root, "timings");
  yyjson_mut_obj_remove_key(root, "__verbose");
  yyjson_mut_obj_remove_key(yyjson_mut_obj_get(root, "usage"), "prompt_tokens_details");
  if (yyjson_mut_obj_get(root, "created"))
    yyjson_mut_obj_replace(root, yyjson_mut_str(doc, "created"), yyjson_mut_int(doc, 0));
  replace_id(doc, root, digits);
  replace_tool_ids(doc, root, digits);
}

// Numbers keep their digits.
static mlx_status_t put_response(const char *digits, const char *body, size_t length, mlx_text_t *out) {
  yyjson_doc *doc = yyjson_read(body, length, YYJSON_READ_NUMBER_AS_RAW);
  yyjson_mut_doc *copy = yyjson_doc_mut_copy(doc, NULL);
  size_t size;
  yyjson_doc_free(doc);
  if (!copy) return mlx_error(MLX_INTERNAL, "the response is not JSON");
  make_reproducible(copy, digits);
  char *text = yyjson_mut_write(copy, 0, &size);
  yyjson_mut_doc_free(copy);
  if (!text) return mlx_error(MLX_OUT_OF_MEMORY, "no memory for a response");
  mlx_text_append(out, text, size);
  free(text);
  return NULL;
}

mlx_status_t mlx_batch_result_put(const mlx_batch_id_t *id, const mlx_batch_request_t *request, int status,
                                  const char *body, size_t length, mlx_text_t *out) {
  const char *digits = id->text + strlen(ID_PREFIX);
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(&json, "id", id->text);
  mlx_json_put_bytes(&json, "custom_id", request->custom_id, request->custom_id_length);
  mlx_json_begin_object(&json, "response", MLX_JSON_ONE_LINE);
  mlx_json_put_int(&json, "status_code", status);
  mlx_json_put_format(&json, "request_id", "req_%s", digits);
  MLX_TRY(put_response(digits, body, length, mlx_json_put_value(&json, "body")));
  mlx_json_end(&json);
  mlx_json_put_null(&json, "error");
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
  return mlx_text_finish(out);
}

bool mlx_batch_result_read(const char *line, size_t length, uint64_t *out_index, mlx_batch_id_t *out_id,
                           int *out_status) {
  yyjson_doc *doc = yyjson_read(line, length, 0);
  yyjson_val *root = yyjson_doc_get_root(doc), *id = yyjson_obj_get(root, "id");
  const char *text = yyjson_get_str(id);
  char index[INDEX_DIGITS + 1] = {0};
  const size_t prefix = strlen(ID_PREFIX);
  const bool found = text && yyjson_get_len(id) == MLX_BATCH_ID - 1 && !strncmp(text, ID_PREFIX, prefix) &&
                     strspn(text + prefix, "0123456789abcdef") == INDEX_DIGITS + DIGEST_DIGITS;
  if (found) {
    memcpy(index, text + prefix, INDEX_DIGITS);
    memcpy(out_id->text, text, MLX_BATCH_ID);
    *out_index = strtoull(index, NULL, 16);
    *out_status = yyjson_get_int(yyjson_obj_get(yyjson_obj_get(root, "response"), "status_code"));
  }
  yyjson_doc_free(doc);
  return found;
}
