// Reads a file of prompts. Every line is parsed and checked before the first one is used.
#include "template/prompts.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "template/conversation.h"

static void clear_line(mlx_prompt_line_t *line) {
  for (size_t i = 0; i < line->stop_count; ++i) mlx_free(line->stops[i]);
  mlx_free(line->stops);
  mlx_free(line->text);
}

void mlx_prompts_clear(mlx_prompts_t *prompts) {
  for (size_t i = 0; i < prompts->count; ++i) clear_line(&prompts->lines[i]);
  mlx_free(prompts->lines);
  *prompts = (mlx_prompts_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Fields

static mlx_status_t check_names(const mlx_json_t *json) {
  static const char *const known[] = {"prompt", "messages", "max_tokens", "seed", "temperature", "stop"};
  size_t index, count;
  yyjson_val *key, *value;
  yyjson_obj_foreach(json->root, index, count, key, value) {
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof *known && !found; ++i)
      found = yyjson_equals_str(key, known[i]);
    if (!found) {
      return mlx_status_hint(mlx_json_error(json, yyjson_get_str(key), "is unknown"),
                             "a line has prompt or messages, and optionally max_tokens, seed, temperature "
                             "and stop");
    }
  }
  return NULL;
}

// |object| is the text that |json| was parsed from.
static mlx_status_t read_messages(const mlx_json_t *json, const char *object, size_t length,
                                  mlx_prompt_line_t *out) {
  mlx_conversation_t *conversation;
  MLX_TRY(mlx_conversation_parse(json->name, object, length, &conversation));
  mlx_status_t status = mlx_conversation_count(conversation)
                            ? mlx_conversation_json(conversation, 0, &out->text, &out->length)
                            : mlx_json_error(json, "messages", "must have at least one message");
  mlx_conversation_free(conversation);
  out->is_chat = true;
  return status;
}

static mlx_status_t read_text(const mlx_json_t *json, const char *object, size_t length,
                              mlx_prompt_line_t *out) {
  yyjson_val *prompt = mlx_json_find(json->root, "prompt"), *messages = mlx_json_find(json->root, "messages");
  if (prompt && messages) return mlx_json_error(json, "messages", "cannot be combined with 'prompt'");
  if (messages) return read_messages(json, object, length, out);
  if (!prompt) return mlx_json_error(json, "prompt", "is missing; a line has prompt or messages");
  if (!yyjson_is_str(prompt)) return mlx_json_error(json, "prompt", "must be a string");
  out->length = yyjson_get_len(prompt);
  return mlx_copy_text(yyjson_get_str(prompt), out->length, &out->text);
}

static mlx_status_t add_stop(const mlx_json_t *json, yyjson_val *value, mlx_prompt_line_t *out) {
  const size_t length = yyjson_get_len(value);
  if (!yyjson_is_str(value)) return mlx_json_error(json, "stop", "must be a string or a list of strings");
  if (!length || length > MLX_PROMPTS_MAX_STOP_LENGTH || strlen(yyjson_get_str(value)) != length)
    return mlx_json_error(json, "stop", "must have texts of 1 to 4096 bytes, none of them zero");
  MLX_TRY(mlx_copy_text(yyjson_get_str(value), length, &out->stops[out->stop_count]));
  ++out->stop_count;
  return NULL;
}

static mlx_status_t read_stops(const mlx_json_t *json, mlx_prompt_line_t *out) {
  yyjson_val *stop = mlx_json_find(json->root, "stop"), *value;
  size_t index, count;
  if (!stop) return NULL;
  out->has_stops = true;
  if (yyjson_is_arr(stop) && yyjson_arr_size(stop) > MLX_PROMPTS_MAX_STOPS)
    return mlx_json_error(json, "stop", "must have at most 64 texts");
  MLX_TRY(mlx_alloc(yyjson_is_arr(stop) ? yyjson_arr_size(stop) : 1, sizeof *out->stops, &out->stops));
  if (!yyjson_is_arr(stop)) return add_stop(json, stop, out);
  yyjson_arr_foreach(stop, index, count, value) { MLX_TRY(add_stop(json, value, out)); }
  return NULL;
}

static mlx_status_t read_numbers(const mlx_json_t *json, mlx_prompt_line_t *out) {
  yyjson_val *value = mlx_json_find(json->root, "max_tokens");
  int64_t seed;
  if (value) {
    MLX_TRY(mlx_json_check_int(json, value, "max_tokens", -1, MLX_PROMPTS_MAX_TOKENS, &out->max_tokens));
    out->has_max_tokens = true;
  }
  if ((value = mlx_json_find(json->root, "seed"))) {
    MLX_TRY(mlx_json_check_int(json, value, "seed", 0, UINT32_MAX, &seed));
    out->seed = (uint64_t)seed;
    out->has_seed = true;
  }
  if ((value = mlx_json_find(json->root, "temperature"))) {
    out->temperature = yyjson_get_num(value);
    out->has_temperature = true;
    if (!yyjson_is_num(value) || !(out->temperature >= 0 && out->temperature <= MLX_PROMPTS_MAX_TEMPERATURE))
      return mlx_json_error(json, "temperature", "must be a number from 0 to 1000000");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Lines

static mlx_status_t read_object(const char *name, const char *object, size_t length, mlx_prompt_line_t *out) {
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, object, length, &json));
  mlx_status_t status = check_names(&json);
  if (!status) status = read_text(&json, object, length, out);
  if (!status) status = read_numbers(&json, out);
  if (!status) status = read_stops(&json, out);
  mlx_json_close(&json);
  return status;
}

static bool is_blank(const char *bytes, size_t length) {
  size_t i = 0;
  while (i < length && (bytes[i] == ' ' || bytes[i] == '\t' || bytes[i] == '\r')) ++i;
  return i == length;
}

static mlx_status_t read_line(const char *name, int64_t number, const char *bytes, size_t length,
                              mlx_prompts_t *inout) {
  mlx_prompt_line_t line = {.line = number};
  mlx_text_t place = {0};
  if (is_blank(bytes, length)) return NULL;
  if (inout->count == MLX_PROMPTS_MAX) {
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s:%lld: more than %d prompts in one file", name,
                                     (long long)number, MLX_PROMPTS_MAX),
                           "divide the file");
  }
  mlx_text_printf(&place, "%s:%lld", name, (long long)number);
  mlx_status_t status = mlx_text_finish(&place);
  if (!status) status = read_object(place.data, bytes, length, &line);
  if (!status) status = mlx_reserve(inout->count + 1, sizeof line, &inout->capacity, &inout->lines);
  if (status) {
    clear_line(&line);
  } else {
    inout->lines[inout->count++] = line;
  }
  mlx_text_clear(&place);
  return status;
}

mlx_status_t mlx_prompts_parse(const char *name, const char *bytes, size_t length, mlx_prompts_t *out) {
  int64_t number = 1;
  mlx_status_t status = NULL;
  *out = (mlx_prompts_t){0};
  for (size_t at = 0; at < length && !status; ++number) {
    const char *end = memchr(bytes + at, '\n', length - at);
    const size_t line = end ? (size_t)(end - bytes) - at : length - at;
    status = read_line(name, number, bytes + at, line, out);
    at += line + (end ? 1 : 0);
  }
  if (!status && !out->count) {
    status = mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s: the file has no prompt", name),
                             "write one object per line: {\"prompt\": \"...\"}");
  }
  if (status) mlx_prompts_clear(out);
  return status;
}
