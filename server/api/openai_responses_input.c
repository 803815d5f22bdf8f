// The input items of a response as chat messages.
//
// Reasoning, text and function calls of the assistant are separate items. Items that follow each other become
// one message, as in chat completions.
#include <string.h>

#include "server/api/messages.h"
#include "server/api/openai_fields.h"
#include "server/api/openai_responses.h"

typedef struct reader {
  mlx_text_t list;
  mlx_message_t system;     // the first system message, until another message follows
  mlx_message_t assistant;  // the assistant's items since the last message
} reader_t;

static mlx_status_t flush(reader_t *reader, mlx_message_t *message, const char *role) {
  if (mlx_message_is_empty(message)) return NULL;
  message->role = role;
  MLX_TRY(mlx_messages_add(&reader->list, message));
  mlx_message_clear(message);
  return NULL;
}

static mlx_status_t flush_all(reader_t *reader) {
  MLX_TRY(flush(reader, &reader->system, "system"));
  return flush(reader, &reader->assistant, "assistant");
}

// Many templates allow only one system message, at the beginning. So instructions and the system messages
// that follow them are joined.
static mlx_status_t add_system(reader_t *reader, const mlx_place_t *content) {
  const bool is_first = !reader->list.length && mlx_message_is_empty(&reader->assistant);
  if (!is_first) MLX_TRY(flush_all(reader));
  if (reader->system.content.length) mlx_text_puts(&reader->system.content, "\n\n");
  MLX_TRY(mlx_message_put_content(content, &reader->system.content));
  return is_first ? NULL : flush_all(reader);
}

static mlx_status_t add_user(reader_t *reader, const char *role, const char *call_id,
                             const mlx_place_t *content) {
  mlx_message_t message = {.role = role, .tool_call_id = call_id};
  mlx_status_t status = flush_all(reader);
  if (!status) status = mlx_message_put_content(content, &message.content);
  if (!status) status = mlx_messages_add(&reader->list, &message);
  mlx_message_clear(&message);
  return status;
}

static mlx_status_t add_assistant(reader_t *reader, const mlx_place_t *content) {
  MLX_TRY(flush(reader, &reader->system, "system"));
  if (reader->assistant.content.length || reader->assistant.tool_calls.length)
    MLX_TRY(flush(reader, &reader->assistant, "assistant"));
  return mlx_message_put_content(content, &reader->assistant.content);
}

static mlx_status_t read_message(reader_t *reader, const mlx_place_t *item) {
  const char *role = NULL;
  const mlx_place_t place = mlx_place_key(item, "role"), content = mlx_place_key(item, "content");
  MLX_TRY(mlx_field_text(item, "role", &role));
  if (!role) return mlx_field_expected(&place, "a string");
  if (!content.value) return mlx_field_expected(&content, "a string or a list of parts");
  if (!strcmp(role, "user")) return add_user(reader, "user", NULL, &content);
  if (!strcmp(role, "assistant")) return add_assistant(reader, &content);
  if (!strcmp(role, "system") || !strcmp(role, "developer")) return add_system(reader, &content);
  return mlx_field_error(&place, MLX_INVALID_INPUT,
                         "expected system, developer, user or assistant, not '%.64s'", role);
}

static mlx_status_t need_text(const mlx_place_t *item, const char *key, const char **out) {
  const mlx_place_t place = mlx_place_key(item, key);
  *out = NULL;
  MLX_TRY(mlx_field_text(item, key, out));
  return *out ? NULL : mlx_field_expected(&place, "a string");
}

static mlx_status_t read_function_call(reader_t *reader, const mlx_place_t *item) {
  const char *id, *name, *space = NULL;
  const mlx_place_t arguments = mlx_place_key(item, "arguments");
  mlx_text_t whole = {0};
  MLX_TRY(need_text(item, "call_id", &id));
  MLX_TRY(need_text(item, "name", &name));
  MLX_TRY(mlx_field_text(item, "namespace", &space));
  if (arguments.value && !yyjson_is_str(arguments.value)) return mlx_field_expected(&arguments, "a string");
  MLX_TRY(flush(reader, &reader->system, "system"));
  if (space) mlx_text_printf(&whole, MLX_OPENAI_SPACED_NAME, space, name);
  mlx_status_t status = mlx_text_finish(&whole);
  if (!status)
    status = mlx_message_add_tool_call(&reader->assistant, id, space ? whole.data : name, arguments.value);
  mlx_text_clear(&whole);
  return status;
}

static mlx_status_t read_function_output(reader_t *reader, const mlx_place_t *item) {
  const char *id;
  const mlx_place_t output = mlx_place_key(item, "output");
  MLX_TRY(need_text(item, "call_id", &id));
  if (!output.value) return mlx_field_expected(&output, "a string or a list of parts");
  return add_user(reader, "tool", id, &output);
}

// The text is in |content|, or in |summary| if the client asked for summaries.
static mlx_status_t read_reasoning(reader_t *reader, const mlx_place_t *item) {
  const mlx_place_t content = mlx_place_key(item, "content"), summary = mlx_place_key(item, "summary");
  MLX_TRY(flush_all(reader));
  MLX_TRY(mlx_message_put_content(&content, &reader->assistant.reasoning));
  if (reader->assistant.reasoning.length) return NULL;
  return mlx_message_put_content(&summary, &reader->assistant.reasoning);
}

static mlx_status_t read_item(reader_t *reader, const mlx_place_t *item) {
  const char *type = "message";
  if (!yyjson_is_obj(item->value)) return mlx_field_expected(item, "an object");
  MLX_TRY(mlx_field_text(item, "type", &type));
  if (!strcmp(type, "message")) return read_message(reader, item);
  if (!strcmp(type, "function_call")) return read_function_call(reader, item);
  if (!strcmp(type, "function_call_output")) return read_function_output(reader, item);
  if (!strcmp(type, "reasoning")) return read_reasoning(reader, item);
  const mlx_place_t place = mlx_place_key(item, "type");
  mlx_status_t status = mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' is not supported", type);
  return strcmp(type, "item_reference")
             ? mlx_status_hint(status, "use message, function_call, function_call_output or reasoning")
             : mlx_status_hint(status, "items have no references: send the item itself");
}

static mlx_status_t read_list(reader_t *reader, const mlx_place_t *list) {
  size_t index, max;
  yyjson_val *value;
  yyjson_arr_foreach(list->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(list, index, value);
    MLX_TRY(read_item(reader, &item));
  }
  return NULL;
}

static mlx_status_t read_items(reader_t *reader, const mlx_place_t *input) {
  if (yyjson_is_str(input->value)) return add_user(reader, "user", NULL, input);
  if (!yyjson_is_arr(input->value)) return mlx_field_expected(input, "a string or a list of items");
  if (!yyjson_arr_size(input->value))
    return mlx_field_error(input, MLX_INVALID_INPUT, "expected at least one item");
  MLX_TRY(read_list(reader, input));
  return flush_all(reader);
}

mlx_status_t mlx_responses_read_input(const mlx_place_t *history, const mlx_place_t *input,
                                      const char *instructions, mlx_api_call_t *call) {
  reader_t reader = {0};
  if (instructions) mlx_text_puts(&reader.system.content, instructions);
  mlx_status_t status = mlx_text_finish(&reader.system.content);
  if (!status && history->value) status = read_list(&reader, history);
  if (!status) status = read_items(&reader, input);
  if (!status) status = mlx_messages_finish(&reader.list, call);
  mlx_text_clear(&reader.list);
  mlx_message_clear(&reader.system);
  mlx_message_clear(&reader.assistant);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Items as they are stored

static void put_parts(mlx_json_writer_t *json, const char *role, yyjson_val *text) {
  mlx_json_begin_list(json, "content", MLX_JSON_COMPACT);
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", strcmp(role, "assistant") ? "input_text" : "output_text");
  mlx_json_put_bytes(json, "text", yyjson_get_str(text), yyjson_get_len(text));
  if (!strcmp(role, "assistant")) {
    mlx_json_begin_list(json, "annotations", MLX_JSON_COMPACT);
    mlx_json_end(json);
  }
  mlx_json_end(json);
  mlx_json_end(json);
}

// A message whose content is a text.
static void put_text_message(const char *role, yyjson_val *text, mlx_text_t *items) {
  mlx_json_writer_t json = {.out = items};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "message");
  mlx_json_put_text(&json, "role", role);
  put_parts(&json, role, text);
  mlx_json_put_text(&json, "status", "completed");
  mlx_json_end(&json);
}

mlx_status_t mlx_responses_put_input(const mlx_place_t *input, mlx_text_t *items) {
  size_t index, max;
  yyjson_val *item;
  if (items->length) mlx_text_puts(items, ",");
  if (yyjson_is_str(input->value)) {
    put_text_message("user", input->value, items);
    return mlx_text_finish(items);
  }
  yyjson_arr_foreach(input->value, index, max, item) {
    yyjson_val *content = yyjson_obj_get(item, "content");
    const char *role = yyjson_get_str(yyjson_obj_get(item, "role"));
    if (index) mlx_text_puts(items, ",");
    if (role && yyjson_is_str(content))
      put_text_message(role, content, items);
    else
      MLX_TRY(mlx_json_put(item, items));
  }
  return mlx_text_finish(items);
}
