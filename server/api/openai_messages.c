// The messages of a chat completion.
#include <stdio.h>
#include <string.h>

#include "server/api/messages.h"
#include "server/api/openai_fields.h"

// Fields that are read here, or that mean nothing to a template. Other fields are passed to the template.
static const mlx_field_t message_fields[] = {MLX_READ("role"),
                                             MLX_READ("content"),
                                             MLX_READ("tool_calls"),
                                             MLX_READ("tool_call_id"),
                                             MLX_READ("reasoning_content"),
                                             MLX_READ("reasoning"),
                                             MLX_READ("refusal"),
                                             MLX_READ("prefix"),
                                             MLX_IGNORE("annotations", "citations of an earlier answer"),
                                             MLX_IGNORE("cache_control", "equal prefixes are always shared"),
                                             MLX_READ("function_call"),
                                             MLX_REFUSE_VALUE("audio", "this server reads text only"),
                                             MLX_REFUSE_VALUE("images", "this server reads text only"),
                                             MLX_FIELDS_END};

static mlx_status_t read_role(const mlx_place_t *message, const char **out) {
  static const struct {
    const char *name, *role;
  } roles[] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
               {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
  const mlx_place_t place = mlx_place_key(message, "role");
  const char *role = NULL;
  MLX_TRY(mlx_field_text(message, "role", &role));
  if (!role) return mlx_field_expected(&place, "a string");
  for (size_t i = 0; i < sizeof roles / sizeof *roles; ++i) {
    if (strcmp(role, roles[i].name)) continue;
    *out = roles[i].role;
    return NULL;
  }
  return mlx_field_error(&place, MLX_INVALID_INPUT,
                         "expected system, developer, user, assistant or tool, not '%.64s'", role);
}

// The older form has no ids, but templates need them: the n-th result belongs to the n-th call.
typedef struct function_ids {
  char last[24];  // the id of the present message
  size_t calls, results;
} function_ids_t;

static const char *next_id(function_ids_t *ids, size_t *inout_count) {
  snprintf(ids->last, sizeof ids->last, "call%05zu", (*inout_count)++);
  return ids->last;
}

static mlx_status_t read_call_parts(const mlx_place_t *function, const char *id, mlx_message_t *message) {
  const char *name = NULL;
  if (!yyjson_is_obj(function->value)) return mlx_field_expected(function, "an object");
  MLX_TRY(mlx_field_text(function, "name", &name));
  const mlx_place_t name_place = mlx_place_key(function, "name");
  const mlx_place_t arguments = mlx_place_key(function, "arguments");
  if (!name) return mlx_field_expected(&name_place, "a string");
  if (arguments.value && !yyjson_is_str(arguments.value) && !yyjson_is_obj(arguments.value))
    return mlx_field_expected(&arguments, "a string of JSON");
  return mlx_message_add_tool_call(message, id, name, arguments.value);
}

// function_call of the assistant, and the result of a function.
static mlx_status_t read_function(const mlx_place_t *place, function_ids_t *ids, mlx_message_t *message) {
  const mlx_place_t call = mlx_place_key(place, "function_call");
  if (yyjson_equals_str(yyjson_obj_get(place->value, "role"), "function")) {
    const mlx_place_t name = mlx_place_key(place, "name");
    if (!yyjson_is_str(name.value)) return mlx_field_expected(&name, "a string");
    message->tool_call_id = next_id(ids, &ids->results);
  }
  if (!call.value) return NULL;
  if (strcmp(message->role, "assistant"))
    return mlx_field_error(&call, MLX_INVALID_INPUT, "only messages of the assistant have function calls");
  return read_call_parts(&call, next_id(ids, &ids->calls), message);
}

static mlx_status_t read_tool_call(const mlx_place_t *call, mlx_message_t *message) {
  const char *type = "function", *id = "";
  if (!yyjson_is_obj(call->value)) return mlx_field_expected(call, "an object");
  MLX_TRY(mlx_field_text(call, "type", &type));
  MLX_TRY(mlx_field_text(call, "id", &id));
  const mlx_place_t type_place = mlx_place_key(call, "type"), function = mlx_place_key(call, "function");
  if (strcmp(type, "function"))
    return mlx_field_error(&type_place, MLX_UNSUPPORTED, "'%.64s' is not supported", type);
  return read_call_parts(&function, id, message);
}

static mlx_status_t read_tool_calls(const mlx_place_t *parent, mlx_message_t *message) {
  const mlx_place_t calls = mlx_place_key(parent, "tool_calls");
  size_t index, max;
  yyjson_val *value;
  if (!calls.value) return NULL;
  if (!yyjson_is_arr(calls.value)) return mlx_field_expected(&calls, "a list");
  if (strcmp(message->role, "assistant") && yyjson_arr_size(calls.value))
    return mlx_field_error(&calls, MLX_INVALID_INPUT, "only messages of the assistant have tool calls");
  yyjson_arr_foreach(calls.value, index, max, value) {
    const mlx_place_t call = mlx_place_item(&calls, index, value);
    MLX_TRY(read_tool_call(&call, message));
  }
  return NULL;
}

// A message without content is null or a list of tool calls of the assistant. Other roles need the key.
static mlx_status_t read_content(const mlx_place_t *place, mlx_message_t *message) {
  const mlx_place_t content = mlx_place_key(place, "content"), refusal = mlx_place_key(place, "refusal");
  if (!yyjson_obj_get(place->value, "content") && strcmp(message->role, "assistant"))
    return mlx_field_error(&content, MLX_INVALID_INPUT, "missing");
  MLX_TRY(mlx_message_put_content(&content, &message->content));
  if (refusal.value && !yyjson_is_str(refusal.value)) return mlx_field_expected(&refusal, "a string");
  return message->content.length ? NULL : mlx_message_put_content(&refusal, &message->content);
}

static mlx_status_t read_reasoning(const mlx_place_t *place, mlx_message_t *message) {
  static const char *const keys[] = {"reasoning_content", "reasoning"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    const mlx_place_t reasoning = mlx_place_key(place, keys[i]);
    if (!reasoning.value) continue;
    if (!yyjson_is_str(reasoning.value)) return mlx_field_expected(&reasoning, "a string");
    if (!message->reasoning.length) MLX_TRY(mlx_message_put_content(&reasoning, &message->reasoning));
  }
  return NULL;
}

static bool is_listed(yyjson_val *key) {
  for (const mlx_field_t *field = message_fields; field->name; ++field) {
    if (yyjson_equals_str(key, field->name)) return true;
  }
  return false;
}

static mlx_status_t read_others(const mlx_place_t *place, mlx_message_t *message) {
  size_t index, max;
  yyjson_val *key, *value;
  yyjson_obj_foreach(place->value, index, max, key, value) {
    if (!yyjson_is_null(value) && !is_listed(key))
      MLX_TRY(mlx_message_add_member(message, yyjson_get_str(key), yyjson_get_len(key), value));
  }
  return NULL;
}

static mlx_status_t read_message(const mlx_place_t *place, function_ids_t *ids, mlx_message_t *message,
                                 mlx_text_t *list) {
  MLX_TRY(mlx_fields_check(place, message_fields, true));
  MLX_TRY(read_role(place, &message->role));
  MLX_TRY(read_content(place, message));
  MLX_TRY(read_reasoning(place, message));
  MLX_TRY(read_tool_calls(place, message));
  MLX_TRY(read_function(place, ids, message));
  MLX_TRY(mlx_field_text(place, "tool_call_id", &message->tool_call_id));
  MLX_TRY(read_others(place, message));
  return mlx_messages_add(list, message);
}

mlx_status_t mlx_openai_read_messages(const mlx_place_t *messages, mlx_api_call_t *call) {
  mlx_text_t list = {0};
  function_ids_t ids = {0};
  mlx_status_t status = NULL;
  size_t index, max;
  yyjson_val *value;
  if (!yyjson_is_arr(messages->value)) return mlx_field_expected(messages, "a list");
  if (!yyjson_arr_size(messages->value))
    return mlx_field_error(messages, MLX_INVALID_INPUT, "expected at least one message");
  yyjson_arr_foreach(messages->value, index, max, value) {
    const mlx_place_t place = mlx_place_item(messages, index, value);
    mlx_message_t message = {0};
    if (!status) status = read_message(&place, &ids, &message, &list);
    // DeepSeek's and Mistral's way to have the last message continued.
    if (!status && index + 1 == max) status = mlx_field_bool(&place, "prefix", &call->continue_final);
    mlx_message_clear(&message);
  }
  if (!status) status = mlx_messages_finish(&list, call);
  mlx_text_clear(&list);
  return status;
}
