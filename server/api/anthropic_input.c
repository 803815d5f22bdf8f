// Anthropic's messages and tools, as a chat template reads them.
#include "server/api/anthropic_input.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/api/messages.h"

// Claude Code's first system block changes with every request. As part of the prompt it would end every
// common prefix.
#define BILLING_HEADER "x-anthropic-billing-header:"

// ----------------------------------------------------------------------------------------------------------
// Blocks

static mlx_status_t unsupported_block(const mlx_place_t *block, const char *type) {
  const mlx_place_t place = mlx_place_key(block, "type");
  return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' blocks are not supported", type),
                         "this server reads text only: send blocks of type text");
}

static mlx_status_t need_text(const mlx_place_t *block, const char *key, const char **out) {
  const mlx_place_t place = mlx_place_key(block, key);
  *out = NULL;
  MLX_TRY(mlx_field_text(block, key, out));
  return *out ? NULL : mlx_field_error(&place, MLX_INVALID_INPUT, "missing; expected a string");
}

static void put_line(mlx_text_t *out, const char *text) {
  if (out->length) mlx_text_puts(out, "\n");
  mlx_text_puts(out, text);
}

// A document whose source is text.
static mlx_status_t put_document(const mlx_place_t *block, mlx_text_t *out) {
  const mlx_place_t source = mlx_place_key(block, "source");
  const char *type = "", *data;
  if (yyjson_is_obj(source.value)) MLX_TRY(mlx_field_text(&source, "type", &type));
  if (strcmp(type, "text")) return unsupported_block(block, "document");
  MLX_TRY(need_text(&source, "data", &data));
  put_line(out, data);
  return NULL;
}

// {"type": "tool_reference", "tool_name": ...}: the result of a search for tools. The tool is in |tools|.
static mlx_status_t put_reference(const mlx_place_t *block, mlx_text_t *out) {
  const char *name;
  MLX_TRY(need_text(block, "tool_name", &name));
  put_line(out, "The tool ");
  mlx_text_puts(out, name);
  mlx_text_puts(out, " can be called now.");
  return NULL;
}

// The text of a block; MLX_UNSUPPORTED for blocks of another kind.
static mlx_status_t put_text_block(const mlx_place_t *block, const char *type, mlx_text_t *out) {
  const char *text;
  if (!strcmp(type, "document")) return put_document(block, out);
  if (!strcmp(type, "tool_reference")) return put_reference(block, out);
  if (strcmp(type, "text")) return unsupported_block(block, type);
  MLX_TRY(need_text(block, "text", &text));
  put_line(out, text);
  return NULL;
}

static mlx_status_t block_type(const mlx_place_t *block, const char **out) {
  if (!yyjson_is_obj(block->value)) return mlx_field_expected(block, "an object with a type");
  return need_text(block, "type", out);
}

// A string or a list of blocks of text.
static mlx_status_t put_text(const mlx_place_t *content, bool is_system, mlx_text_t *out) {
  yyjson_val *value;
  size_t index, count;
  const char *type;
  if (!content->value) return NULL;
  if (yyjson_is_str(content->value)) {
    const char *text = yyjson_get_str(content->value);
    if (strlen(text) != yyjson_get_len(content->value))
      return mlx_field_error(content, MLX_INVALID_INPUT, "the text has a NUL character");
    if (is_system && !strncmp(text, BILLING_HEADER, strlen(BILLING_HEADER))) {
      text = strchr(text, '\n');
      if (!text) return NULL;
      ++text;
    }
    put_line(out, text);
    return NULL;
  }
  if (!yyjson_is_arr(content->value)) return mlx_field_expected(content, "a string or a list of blocks");
  yyjson_arr_foreach(content->value, index, count, value) {
    const mlx_place_t block = mlx_place_item(content, index, value);
    MLX_TRY(block_type(&block, &type));
    const char *text = yyjson_get_str(mlx_json_find(value, "text"));
    if (is_system && text && !strncmp(text, BILLING_HEADER, strlen(BILLING_HEADER))) continue;
    MLX_TRY(put_text_block(&block, type, out));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Messages

// Adds the message to the list, unless it is empty, and begins the next one of the same role.
static mlx_status_t flush(mlx_message_t *message, mlx_text_t *list) {
  const char *role = message->role;
  mlx_status_t status = mlx_text_finish(&message->content);
  if (!status) status = mlx_text_finish(&message->reasoning);
  if (!status && !mlx_message_is_empty(message)) status = mlx_messages_add(list, message);
  mlx_message_clear(message);
  message->role = role;
  return status;
}

static mlx_status_t add_result(const mlx_place_t *block, mlx_message_t *user, mlx_text_t *list) {
  const mlx_place_t content = mlx_place_key(block, "content");
  mlx_message_t result = {.role = "tool"};
  bool is_error = false;
  MLX_TRY(need_text(block, "tool_use_id", &result.tool_call_id));
  MLX_TRY(mlx_field_bool(block, "is_error", &is_error));
  MLX_TRY(flush(user, list));
  if (is_error) mlx_text_puts(&result.content, "Error:");
  mlx_status_t status = put_text(&content, false, &result.content);
  if (!status) status = mlx_messages_add(list, &result);
  mlx_message_clear(&result);
  return status;
}

static mlx_status_t add_use(const mlx_place_t *block, mlx_message_t *message) {
  const mlx_place_t input = mlx_place_key(block, "input");
  const char *id, *name;
  MLX_TRY(need_text(block, "id", &id));
  MLX_TRY(need_text(block, "name", &name));
  if (input.value && !yyjson_is_obj(input.value)) return mlx_field_expected(&input, "an object");
  return mlx_message_add_tool_call(message, id, name, input.value);
}

static mlx_status_t read_block(const mlx_place_t *block, mlx_message_t *message, mlx_text_t *list) {
  const bool assistant = !strcmp(message->role, "assistant");
  const char *type, *text;
  MLX_TRY(block_type(block, &type));
  if (assistant && !strcmp(type, "thinking")) {
    MLX_TRY(need_text(block, "thinking", &text));
    put_line(&message->reasoning, text);
    return NULL;
  }
  if (assistant && !strcmp(type, "redacted_thinking"))
    return NULL;  // encrypted: only its own server can read it
  if (assistant && !strcmp(type, "tool_use")) return add_use(block, message);
  if (!assistant && !strcmp(type, "tool_result")) return add_result(block, message, list);
  return put_text_block(block, type, &message->content);
}

static mlx_status_t read_content(const mlx_place_t *place, mlx_message_t *message, mlx_text_t *list) {
  const mlx_place_t content = mlx_place_key(place, "content");
  yyjson_val *value;
  size_t index, count;
  if (yyjson_is_str(content.value)) return put_text(&content, false, &message->content);
  if (!yyjson_is_arr(content.value)) return mlx_field_expected(&content, "a string or a list of blocks");
  yyjson_arr_foreach(content.value, index, count, value) {
    const mlx_place_t block = mlx_place_item(&content, index, value);
    MLX_TRY(read_block(&block, message, list));
  }
  return NULL;
}

static mlx_status_t read_message(const mlx_place_t *place, bool last, mlx_api_call_t *call,
                                 mlx_text_t *list) {
  const mlx_place_t role_place = mlx_place_key(place, "role");
  mlx_message_t message = {0};
  if (!yyjson_is_obj(place->value)) return mlx_field_expected(place, "an object with role and content");
  MLX_TRY(need_text(place, "role", &message.role));
  const bool assistant = !strcmp(message.role, "assistant");
  if (!assistant && strcmp(message.role, "user") && strcmp(message.role, "system"))
    return mlx_field_error(&role_place, MLX_INVALID_INPUT, "expected user or assistant, not '%.64s'",
                           message.role);
  mlx_status_t status = read_content(place, &message, list);
  if (!status && last && assistant && message.tool_calls.length)
    status = mlx_field_error(place, MLX_INVALID_INPUT,
                             "the last message has tool_use blocks without their results");
  if (!status && last && assistant) call->continue_final = !mlx_message_is_empty(&message);
  if (!status) status = flush(&message, list);
  mlx_message_clear(&message);
  return status;
}

mlx_status_t mlx_anthropic_read_history(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t system = mlx_place_key(root, "system"), messages = mlx_place_key(root, "messages");
  mlx_message_t first = {.role = "system"};
  mlx_text_t list = {0};
  yyjson_val *value;
  size_t index, count;
  if (!yyjson_is_arr(messages.value)) return mlx_field_expected(&messages, "a list of messages");
  if (!yyjson_arr_size(messages.value))
    return mlx_field_error(&messages, MLX_INVALID_INPUT, "at least one message is required");
  mlx_status_t status = put_text(&system, true, &first.content);
  if (!status) status = flush(&first, &list);
  mlx_message_clear(&first);
  yyjson_arr_foreach(messages.value, index, count, value) {
    const mlx_place_t place = mlx_place_item(&messages, index, value);
    if (!status) status = read_message(&place, index + 1 == count, call, &list);
  }
  if (!status && !list.length)
    status = mlx_field_error(&messages, MLX_INVALID_INPUT, "all messages are empty");
  if (!status) status = mlx_messages_finish(&list, call);
  mlx_text_clear(&list);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Tools

// Tools that Anthropic runs, or whose definition only its models know. docs/server.md lists them.
static bool is_skipped(const char *type) {
  static const char *const prefixes[] = {"web_search_", "web_fetch_",      "bash_",   "text_editor_",
                                         "computer_",   "code_execution_", "memory_", "tool_search_",
                                         "mcp_toolset", "advisor_"};
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; ++i) {
    if (!strncmp(type, prefixes[i], strlen(prefixes[i]))) return true;
  }
  return false;
}

// Which tools with "defer_loading" the model sees: those that the result of a tool of the client refers to.
typedef struct references {
  bool all;            // a search of Anthropic's own finds nothing here, so its request has no hidden tools
  const char **names;  // [count] sorted; borrowed from the request
  size_t count, capacity;
} references_t;

static int compare_names(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static mlx_status_t add_references(yyjson_val *content, references_t *out) {
  yyjson_val *part;
  size_t index, count;
  yyjson_arr_foreach(content, index, count, part) {
    const char *name = yyjson_get_str(mlx_json_find(part, "tool_name"));
    if (!name || !yyjson_equals_str(mlx_json_find(part, "type"), "tool_reference")) continue;
    MLX_TRY(mlx_reserve(out->count + 1, sizeof *out->names, &out->capacity, &out->names));
    out->names[out->count++] = name;
  }
  return NULL;
}

static mlx_status_t find_references(const mlx_place_t *root, references_t *out) {
  yyjson_val *tool, *message, *block;
  size_t i, k, count, block_count;
  yyjson_arr_foreach(mlx_json_find(root->value, "tools"), i, count, tool) {
    const char *type = yyjson_get_str(mlx_json_find(tool, "type"));
    out->all |= type && !strncmp(type, "tool_search_", strlen("tool_search_"));
  }
  yyjson_arr_foreach(mlx_json_find(root->value, "messages"), i, count, message) {
    yyjson_arr_foreach(mlx_json_find(message, "content"), k, block_count, block) {
      MLX_TRY(add_references(mlx_json_find(block, "content"), out));
    }
  }
  if (out->count) qsort(out->names, out->count, sizeof *out->names, compare_names);
  return NULL;
}

static bool is_deferred(const references_t *r, yyjson_val *tool) {
  const char *name = yyjson_get_str(mlx_json_find(tool, "name"));
  if (r->all || !name || !yyjson_is_true(mlx_json_find(tool, "defer_loading"))) return false;
  return !r->count || !bsearch(&name, r->names, r->count, sizeof *r->names, compare_names);
}

static mlx_status_t read_tool(const mlx_place_t *tool, mlx_text_t *out) {
  const mlx_place_t schema = mlx_place_key(tool, "input_schema"), type_place = mlx_place_key(tool, "type");
  const char *type = "custom", *name, *description = NULL;
  if (!yyjson_is_obj(tool->value)) return mlx_field_expected(tool, "an object with name and input_schema");
  MLX_TRY(mlx_field_text(tool, "type", &type));
  if (is_skipped(type)) return NULL;
  if (strcmp(type, "custom"))
    return mlx_field_error(&type_place, MLX_UNSUPPORTED, "tools of type '%.64s' are not supported", type);
  MLX_TRY(need_text(tool, "name", &name));
  MLX_TRY(mlx_field_text(tool, "description", &description));
  if (schema.value && !yyjson_is_obj(schema.value)) return mlx_field_expected(&schema, "a JSON schema");
  mlx_json_writer_t json = {.out = out};
  mlx_text_puts(out, out->length ? "," : "[");
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "function");
  mlx_json_begin_object(&json, "function", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "name", name);
  if (description) mlx_json_put_text(&json, "description", description);
  MLX_TRY(mlx_tool_put_parameters(&json, schema.value));
  mlx_json_end(&json);
  mlx_json_end(&json);
  return NULL;
}

static bool has_tool(yyjson_val *tools, const references_t *references, const char *name) {
  yyjson_val *tool;
  size_t index, count;
  yyjson_arr_foreach(tools, index, count, tool) {
    const char *type = yyjson_get_str(mlx_json_find(tool, "type"));
    if (yyjson_equals_str(mlx_json_find(tool, "name"), name) && !(type && is_skipped(type)) &&
        !is_deferred(references, tool))
      return true;
  }
  return false;
}

static mlx_status_t read_choice(const mlx_place_t *choice, yyjson_val *tools, const references_t *references,
                                mlx_api_call_t *call) {
  static const char *const types[] = {"auto", "none", "any", "tool"};
  const mlx_place_t type_place = mlx_place_key(choice, "type"), name_place = mlx_place_key(choice, "name");
  const char *type;
  size_t i = 0;
  if (!choice->value) return NULL;
  if (!yyjson_is_obj(choice->value)) return mlx_field_expected(choice, "an object with a type");
  MLX_TRY(need_text(choice, "type", &type));
  while (i < 4 && strcmp(type, types[i])) ++i;
  if (i == 4)
    return mlx_field_error(&type_place, MLX_INVALID_INPUT, "expected auto, any, tool or none, not '%.64s'",
                           type);
  call->tool_choice =
      (mlx_tool_choice_t[]){MLX_TOOLS_AUTO, MLX_TOOLS_NONE, MLX_TOOLS_REQUIRED, MLX_TOOLS_NAMED}[i];
  MLX_TRY(mlx_field_bool(choice, "disable_parallel_tool_use", &call->one_tool_call));
  if (call->tool_choice == MLX_TOOLS_REQUIRED && !call->tools)
    return mlx_field_error(&type_place, MLX_INVALID_INPUT, "'any' needs at least one custom tool");
  if (call->tool_choice != MLX_TOOLS_NAMED) return NULL;
  MLX_TRY(mlx_field_copy(choice, "name", &call->tool_name));
  if (!call->tool_name || !has_tool(tools, references, call->tool_name))
    return mlx_field_error(&name_place, MLX_INVALID_INPUT, "no custom tool has this name");
  return NULL;
}

mlx_status_t mlx_anthropic_read_tools(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t tools = mlx_place_key(root, "tools"), choice = mlx_place_key(root, "tool_choice");
  mlx_text_t list = {0};
  references_t references = {0};
  yyjson_val *value;
  size_t index, count;
  if (tools.value && !yyjson_is_arr(tools.value)) return mlx_field_expected(&tools, "a list of tools");
  mlx_status_t status = find_references(root, &references);
  yyjson_arr_foreach(tools.value, index, count, value) {
    const mlx_place_t tool = mlx_place_item(&tools, index, value);
    if (!status && !is_deferred(&references, value)) status = read_tool(&tool, &list);
  }
  if (!status && list.length) {
    mlx_text_puts(&list, "]");
    status = mlx_text_take(&list, &call->tools, &call->tools_length);
  }
  mlx_text_clear(&list);
  if (!status) status = read_choice(&choice, tools.value, &references, call);
  mlx_free(references.names);
  return status;
}
