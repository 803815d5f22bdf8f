// Chat messages: content parts, tool calls, and the JSON that templates read.
#include "server/api/messages.h"

#include <string.h>

#include "base/memory.h"

// Arguments nested deeper than this stay a string, so that the list of messages is not nested too deep.
#define MAX_ARGUMENTS_DEPTH 48

void mlx_message_clear(mlx_message_t *message) {
  mlx_text_clear(&message->content);
  mlx_text_clear(&message->reasoning);
  mlx_text_clear(&message->tool_calls);
  mlx_text_clear(&message->others);
  *message = (mlx_message_t){0};
}

bool mlx_message_is_empty(const mlx_message_t *message) {
  return !message->content.length && !message->reasoning.length && !message->tool_calls.length;
}

// ----------------------------------------------------------------------------------------------------------
// Content

// The key of the text in a part of this type; NULL: the part is not text.
static const char *text_key(const char *type) {
  static const char *const types[] = {"text", "input_text", "output_text", "reasoning_text", "summary_text"};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    if (!strcmp(type, types[i])) return "text";
  }
  return strcmp(type, "refusal") ? NULL : "refusal";
}

static mlx_status_t put_part(const mlx_place_t *part, bool first, mlx_text_t *out) {
  const char *type = "text";
  if (yyjson_is_str(part->value)) {  // some clients send a list of strings
    if (!first) mlx_text_puts(out, "\n");
    mlx_text_append(out, yyjson_get_str(part->value), yyjson_get_len(part->value));
    return NULL;
  }
  if (!yyjson_is_obj(part->value)) return mlx_field_expected(part, "an object with type and text");
  MLX_TRY(mlx_field_text(part, "type", &type));
  const char *key = text_key(type);
  if (!key) {
    const mlx_place_t place = mlx_place_key(part, "type");
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' is not supported", type),
                           "this server reads text only: send parts of type text");
  }
  const mlx_place_t text = mlx_place_key(part, key);
  if (!yyjson_is_str(text.value)) return mlx_field_expected(&text, "a string");
  if (!first) mlx_text_puts(out, "\n");
  mlx_text_append(out, yyjson_get_str(text.value), yyjson_get_len(text.value));
  return NULL;
}

mlx_status_t mlx_message_put_content(const mlx_place_t *content, mlx_text_t *out) {
  size_t index, max;
  yyjson_val *value;
  if (!content->value) return NULL;
  if (yyjson_is_str(content->value)) {
    mlx_text_append(out, yyjson_get_str(content->value), yyjson_get_len(content->value));
    return mlx_text_finish(out);
  }
  if (!yyjson_is_arr(content->value)) return mlx_field_expected(content, "a string or a list of parts");
  yyjson_arr_foreach(content->value, index, max, value) {
    const mlx_place_t part = mlx_place_item(content, index, value);
    MLX_TRY(put_part(&part, !index, out));
  }
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Tool calls

static bool is_shallow(yyjson_val *value, int depth) {
  size_t index, max;
  yyjson_val *key, *child;
  if (!yyjson_is_ctn(value)) return true;
  if (depth > MAX_ARGUMENTS_DEPTH) return false;
  if (yyjson_is_arr(value)) {
    yyjson_arr_foreach(value, index, max, child) {
      if (!is_shallow(child, depth + 1)) return false;
    }
    return true;
  }
  yyjson_obj_foreach(value, index, max, key, child) {
    if (!is_shallow(child, depth + 1)) return false;
  }
  return true;
}

static mlx_status_t put_arguments(const char *text, size_t length, mlx_text_t *out) {
  if (!length) {
    mlx_text_puts(out, "{}");
    return NULL;
  }
  mlx_json_t json;
  mlx_status_t status = mlx_json_parse("arguments", text, length, &json);
  if (status && mlx_status_code(status) != MLX_INVALID_INPUT) return status;
  if (status || !is_shallow(json.root, 1))
    mlx_text_json_string(out, text, length);
  else
    mlx_text_append(out, text, length);
  if (!status) mlx_json_close(&json);
  mlx_status_free(status);
  return NULL;
}

mlx_status_t mlx_message_add_tool_call(mlx_message_t *message, const char *id, const char *name,
                                       yyjson_val *arguments) {
  mlx_text_t *out = &message->tool_calls;
  mlx_json_writer_t json = {.out = out};
  if (out->length) mlx_text_puts(out, ",");
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "id", id);
  mlx_json_put_text(&json, "type", "function");
  mlx_json_begin_object(&json, "function", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "name", name);
  mlx_json_put_value(&json, "arguments");
  if (yyjson_is_obj(arguments))
    MLX_TRY(mlx_json_put(arguments, out));
  else
    MLX_TRY(put_arguments(arguments ? yyjson_get_str(arguments) : "", yyjson_get_len(arguments), out));
  mlx_json_end(&json);
  mlx_json_end(&json);
  return mlx_text_finish(out);
}

mlx_status_t mlx_tool_put_parameters(mlx_json_writer_t *json, yyjson_val *schema) {
  if (schema) return mlx_json_put(schema, mlx_json_put_value(json, "parameters"));
  mlx_json_begin_object(json, "parameters", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "object");
  mlx_json_begin_object(json, "properties", MLX_JSON_COMPACT);
  mlx_json_end(json);
  mlx_json_end(json);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The list

mlx_status_t mlx_message_add_member(mlx_message_t *message, const char *key, size_t key_length,
                                    yyjson_val *value) {
  mlx_text_puts(&message->others, ",");
  mlx_text_json_string(&message->others, key, key_length);
  mlx_text_puts(&message->others, ":");
  return mlx_json_put(value, &message->others);
}

static const char *data_of(const mlx_text_t *text) { return text->data ? text->data : ""; }

mlx_status_t mlx_messages_add(mlx_text_t *list, const mlx_message_t *message) {
  mlx_json_writer_t json = {.out = list};
  mlx_text_puts(list, list->length ? "," : "[");
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "role", message->role);
  mlx_json_put_bytes(&json, "content", data_of(&message->content), message->content.length);
  if (message->reasoning.length)
    mlx_json_put_bytes(&json, "reasoning_content", message->reasoning.data, message->reasoning.length);
  if (message->tool_calls.length) {
    mlx_json_begin_list(&json, "tool_calls", MLX_JSON_COMPACT);
    mlx_json_put_raw(&json, NULL, message->tool_calls.data, message->tool_calls.length);
    mlx_json_end(&json);
  }
  if (message->tool_call_id) mlx_json_put_text(&json, "tool_call_id", message->tool_call_id);
  mlx_text_append(list, data_of(&message->others),
                  message->others.length);  // with a comma before each member
  mlx_json_end(&json);
  return mlx_text_finish(list);
}

mlx_status_t mlx_messages_finish(mlx_text_t *list, mlx_api_call_t *call) {
  mlx_text_puts(list, list->length ? "]" : "[]");
  return mlx_text_take(list, &call->messages, &call->messages_length);
}
