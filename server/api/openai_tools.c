// Tools and the tool choice of OpenAI's requests.
#include <string.h>

#include "base/memory.h"
#include "server/api/messages.h"
#include "server/api/openai_fields.h"

#define MAX_NAME 256  // bytes of a function's name

static bool is_in(const char *word, const char *const *words) {
  for (; words && *words; ++words) {
    if (!strcmp(word, *words)) return true;
  }
  return false;
}

static mlx_status_t read_name(const mlx_place_t *function, const char **out) {
  const mlx_place_t place = mlx_place_key(function, "name");
  *out = NULL;
  MLX_TRY(mlx_field_text(function, "name", out));
  if (!*out) return mlx_field_expected(&place, "a string");
  const size_t length = strlen(*out);
  if (!length || length > MAX_NAME)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "expected 1 to %d bytes, not %zu", MAX_NAME, length);
  for (size_t i = 0; i < length; ++i) {
    if ((unsigned char)(*out)[i] <= 0x20 || (*out)[i] == 0x7f)
      return mlx_field_error(&place, MLX_INVALID_INPUT, "contains a space or a control character");
  }
  return NULL;
}

// Writes a function with all its members that are not null. Templates read name, description and parameters.
// |space| is its namespace or NULL.
static mlx_status_t put_function(mlx_json_writer_t *json, const mlx_place_t *function, mlx_tool_form_t form,
                                 const char *space) {
  static const char *const not_function[] = {"type", NULL};
  size_t index, max;
  yyjson_val *key, *value;
  const char *name, *description = NULL;
  MLX_TRY(read_name(function, &name));
  MLX_TRY(mlx_field_text(function, "description", &description));
  const mlx_place_t parameters = mlx_place_key(function, "parameters");
  if (parameters.value && !yyjson_is_obj(parameters.value))
    return mlx_field_expected(&parameters, "an object");
  mlx_json_begin_object(json, "function", MLX_JSON_COMPACT);
  if (space)
    mlx_json_put_format(json, "name", MLX_OPENAI_SPACED_NAME, space, name);
  else
    mlx_json_put_text(json, "name", name);
  yyjson_obj_foreach(function->value, index, max, key, value) {
    if (yyjson_is_null(value) || yyjson_equals_str(key, "name") || yyjson_equals_str(key, "parameters"))
      continue;
    if (form == MLX_TOOL_FLAT && is_in(yyjson_get_str(key), not_function)) continue;
    MLX_TRY(mlx_json_put(value, mlx_json_put_member(json, yyjson_get_str(key), yyjson_get_len(key))));
  }
  MLX_TRY(mlx_tool_put_parameters(json, parameters.value));
  mlx_json_end(json);
  return NULL;
}

static mlx_status_t put_tool(const mlx_place_t *tool, mlx_tool_form_t form, const char *const *skipped,
                             const char *space, mlx_text_t *out) {
  const char *type = "function";
  if (!yyjson_is_obj(tool->value)) return mlx_field_expected(tool, "an object");
  MLX_TRY(mlx_field_text(tool, "type", &type));
  if (is_in(type, skipped)) return NULL;
  if (strcmp(type, "function")) {
    const mlx_place_t place = mlx_place_key(tool, "type");
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' is not supported", type),
                           "use tools of type function");
  }
  const mlx_place_t nested = mlx_place_key(tool, "function");
  const mlx_place_t *function = form == MLX_TOOL_NESTED ? &nested : tool;
  if (!yyjson_is_obj(function->value)) return mlx_field_expected(function, "an object");
  mlx_json_writer_t json = {.out = out};
  mlx_text_puts(out, out->length ? "," : "[");
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "function");
  MLX_TRY(put_function(&json, function, form, space));
  mlx_json_end(&json);
  return mlx_text_finish(out);
}

// {"type": "namespace", "name": ..., "tools": [...]}: Codex puts the tools of an MCP server in one.
static mlx_status_t put_namespace(const mlx_place_t *space, const char *const *skipped, mlx_text_t *out) {
  const mlx_place_t tools = mlx_place_key(space, "tools");
  const char *name;
  size_t index, max;
  yyjson_val *value;
  if (!tools.value) return NULL;
  if (!yyjson_is_arr(tools.value)) return mlx_field_expected(&tools, "a list");
  MLX_TRY(read_name(space, &name));
  yyjson_arr_foreach(tools.value, index, max, value) {
    const mlx_place_t tool = mlx_place_item(&tools, index, value);
    MLX_TRY(put_tool(&tool, MLX_TOOL_FLAT, skipped, name, out));
  }
  return NULL;
}

bool mlx_openai_is_namespace(yyjson_val *tool) {
  return yyjson_equals_str(yyjson_obj_get(tool, "type"), "namespace");
}

mlx_status_t mlx_openai_read_tools(const mlx_place_t *tools, mlx_tool_form_t form, const char *const *skipped,
                                   mlx_api_call_t *call) {
  mlx_text_t json = {0};
  mlx_status_t status = NULL;
  size_t index, max;
  yyjson_val *value;
  if (!tools->value) return NULL;
  if (!yyjson_is_arr(tools->value)) return mlx_field_expected(tools, "a list");
  yyjson_arr_foreach(tools->value, index, max, value) {
    const mlx_place_t tool = mlx_place_item(tools, index, value);
    if (status) continue;
    status = skipped && mlx_openai_is_namespace(value) ? put_namespace(&tool, skipped, &json)
                                                       : put_tool(&tool, form, skipped, NULL, &json);
  }
  const bool any = json.length;
  mlx_text_puts(&json, "]");
  if (!status) status = mlx_text_finish(&json);
  if (!status && any) status = mlx_text_take(&json, &call->tools, &call->tools_length);
  mlx_text_clear(&json);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Tool choice

// True if call->tools has a function of this name.
static mlx_status_t has_tool(const mlx_api_call_t *call, const char *name, bool *out) {
  mlx_json_t json;
  size_t index, max;
  yyjson_val *tool;
  *out = false;
  if (!call->tools) return NULL;
  MLX_TRY(mlx_json_parse_any("tools", call->tools, call->tools_length, &json));
  yyjson_arr_foreach(json.root, index, max, tool) {
    *out = *out || yyjson_equals_str(yyjson_obj_get(yyjson_obj_get(tool, "function"), "name"), name);
  }
  mlx_json_close(&json);
  return NULL;
}

// Sets the function that the model must call: |function| has its name.
static mlx_status_t choose_function(const mlx_place_t *function, const char *list, mlx_api_call_t *call) {
  const char *name;
  bool known;
  MLX_TRY(read_name(function, &name));
  MLX_TRY(has_tool(call, name, &known));
  if (!known) {
    const mlx_place_t place = mlx_place_key(function, "name");
    return mlx_field_error(&place, MLX_INVALID_INPUT, "%s has no function '%.64s'", list, name);
  }
  call->tool_choice = MLX_TOOLS_NAMED;
  return mlx_copy_text(name, strlen(name), &call->tool_name);
}

static mlx_status_t read_named(const mlx_place_t *choice, mlx_tool_form_t form, mlx_api_call_t *call) {
  const char *type = NULL;
  if (!yyjson_is_obj(choice->value)) return mlx_field_expected(choice, "a string or an object");
  MLX_TRY(mlx_field_text(choice, "type", &type));
  if (!type || strcmp(type, "function")) {
    const mlx_place_t place = mlx_place_key(choice, "type");
    return mlx_status_hint(
        mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' is not supported", type ? type : "null"),
        "use auto, none, required or a choice of type function");
  }
  const mlx_place_t nested = mlx_place_key(choice, "function");
  const mlx_place_t *function = form == MLX_TOOL_NESTED ? &nested : choice;
  return choose_function(function, "tools", call);
}

mlx_status_t mlx_openai_read_tool_choice(const mlx_place_t *choice, mlx_tool_form_t form,
                                         mlx_api_call_t *call) {
  static const struct {
    const char *word;
    mlx_tool_choice_t choice;
  } words[] = {{"auto", MLX_TOOLS_AUTO}, {"none", MLX_TOOLS_NONE}, {"required", MLX_TOOLS_REQUIRED}};
  if (!choice->value) return NULL;
  if (!yyjson_is_str(choice->value)) return read_named(choice, form, call);
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (!yyjson_equals_str(choice->value, words[i].word)) continue;
    if (words[i].choice == MLX_TOOLS_REQUIRED && !call->tools)
      return mlx_field_error(choice, MLX_INVALID_INPUT, "required needs tools");
    call->tool_choice = words[i].choice;
    return NULL;
  }
  return mlx_field_error(choice, MLX_INVALID_INPUT, "expected auto, none or required, not '%.64s'",
                         yyjson_get_str(choice->value));
}

mlx_status_t mlx_openai_read_function_call(const mlx_place_t *choice, mlx_api_call_t *call) {
  if (!choice->value || yyjson_equals_str(choice->value, "auto")) return NULL;
  if (yyjson_is_obj(choice->value)) return choose_function(choice, "functions", call);
  if (!yyjson_equals_str(choice->value, "none"))
    return mlx_field_expected(choice, "auto, none or an object with a name");
  call->tool_choice = MLX_TOOLS_NONE;
  return NULL;
}
