// OpenAI's responses: the fields of a request.
#include <string.h>

#include "base/memory.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_fields.h"
#include "server/api/openai_responses.h"

#define MOST_STORED_ITEMS (4 << 20)  // bytes of the input of a response that is stored, with its history

static const mlx_field_t fields[] = {
    MLX_OPENAI_GENERATION_FIELDS,
    MLX_READ("input"),
    MLX_READ("instructions"),
    MLX_READ("max_output_tokens"),
    MLX_READ("tools"),
    MLX_READ("tool_choice"),
    MLX_READ("parallel_tool_calls"),
    MLX_READ("text"),
    MLX_READ("reasoning"),
    MLX_READ("include"),
    MLX_READ("top_logprobs"),
    MLX_READ("truncation"),
    MLX_READ("chat_template_kwargs"),
    MLX_READ("store"),
    MLX_READ("previous_response_id"),
    MLX_IGNORE("client_metadata", "it does not change the answer"),
    MLX_IGNORE("max_tool_calls", "it limits tools that the server runs, and there are none"),
    MLX_REFUSE("conversation", "use previous_response_id, or send the whole conversation as input"),
    MLX_REFUSE("prompt", "prompts are not stored: send the prompt as input"),
    MLX_REFUSE_VALUE("background", "stream the response"),
    MLX_REFUSE_VALUE("context_management", "prompts are never changed: shorten the input in the client"),
    MLX_REFUSE_VALUE("moderation", "leave it out"),
    MLX_REFUSE_VALUE("access_programs", "leave it out"),
    MLX_REFUSE_VALUE("image", "this server reads and writes text only"),
    MLX_REFUSE("messages", "use input, or /v1/chat/completions"),
    MLX_REFUSE("max_tokens", "use max_output_tokens"),
    MLX_REFUSE("max_completion_tokens", "use max_output_tokens"),
    MLX_REFUSE("response_format", "use text.format"),
    MLX_REFUSE("reasoning_effort", "use reasoning.effort"),
    MLX_REFUSE("n", "send several requests"),
    MLX_FIELDS_END,
};

// Tools that OpenAI's servers run, or that have no JSON arguments. Coding agents send them always; a model
// that does not see them does not call them.
static const char *const skipped_tools[] = {"custom",
                                            "web_search",
                                            "web_search_2025_08_26",
                                            "web_search_preview",
                                            "web_search_preview_2025_03_11",
                                            "namespace",
                                            "image_generation",
                                            "file_search",
                                            "code_interpreter",
                                            "local_shell",
                                            "mcp",
                                            "tool_search",
                                            NULL};

static void free_details(void *pointer) {
  mlx_responses_details_t *details = pointer;
  if (!details) return;
  mlx_free(details->instructions);
  mlx_free(details->metadata);
  mlx_free(details->tools);
  mlx_free(details->tool_choice);
  mlx_free(details->text_format);
  mlx_free(details->verbosity);
  mlx_free(details->effort);
  mlx_free(details->previous);
  mlx_text_clear(&details->namespaced);
  mlx_text_clear(&details->items);
  mlx_free(details);
}

// ----------------------------------------------------------------------------------------------------------
// Parsing

static mlx_status_t keep_json(const mlx_place_t *parent, const char *key, char **out) {
  const mlx_place_t place = mlx_place_key(parent, key);
  size_t length;
  return place.value ? mlx_field_json(place.value, out, &length) : NULL;
}

static mlx_status_t read_reasoning(const mlx_place_t *root, mlx_openai_variables_t *variables,
                                   mlx_responses_details_t *details) {
  static const mlx_field_t reasoning_fields[] = {
      MLX_READ("effort"),
      MLX_READ("summary"),
      MLX_READ("generate_summary"),
      MLX_READ("mode"),
      MLX_IGNORE("context", "the chat template decides which reasoning it keeps"),
      MLX_FIELDS_END};
  static const char *const keys[] = {"summary", "generate_summary"};
  const mlx_place_t place = mlx_place_key(root, "reasoning"), mode_place = mlx_place_key(&place, "mode");
  const char *mode = "standard";
  if (!place.value) return NULL;
  MLX_TRY(mlx_fields_check(&place, reasoning_fields, false));
  MLX_TRY(mlx_openai_read_effort(&place, "effort", variables));
  MLX_TRY(mlx_field_text(&place, "mode", &mode));
  if (strcmp(mode, "standard")) return mlx_field_error(&mode_place, MLX_UNSUPPORTED, "expected standard");
  MLX_TRY(keep_json(&place, "effort", &details->effort));
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    const char *summary = "none";
    MLX_TRY(mlx_field_text(&place, keys[i], &summary));
    if (strcmp(summary, "none")) details->has_summary = true;
  }
  return NULL;
}

static mlx_status_t read_text(const mlx_place_t *root, mlx_openai_variables_t *variables,
                              mlx_api_call_t *call, mlx_responses_details_t *details) {
  static const mlx_field_t text_fields[] = {MLX_READ("format"), MLX_READ("verbosity"), MLX_FIELDS_END};
  const mlx_place_t place = mlx_place_key(root, "text");
  if (!place.value) return NULL;
  MLX_TRY(mlx_fields_check(&place, text_fields, false));
  MLX_TRY(mlx_field_text(&place, "verbosity", &variables->verbosity));
  MLX_TRY(keep_json(&place, "verbosity", &details->verbosity));
  MLX_TRY(keep_json(&place, "format", &details->text_format));
  const mlx_place_t format = mlx_place_key(&place, "format");
  return mlx_openai_read_format(&format, true, call);
}

// After the tools were checked: the functions of namespaces, whose calls name both.
static mlx_status_t keep_namespaced(const mlx_place_t *tools, mlx_text_t *out) {
  yyjson_val *space, *tool;
  size_t index, max, inner_index, inner_max;
  yyjson_arr_foreach(tools->value, index, max, space) {
    if (!mlx_openai_is_namespace(space)) continue;
    yyjson_arr_foreach(yyjson_obj_get(space, "tools"), inner_index, inner_max, tool) {
      const char *name = yyjson_get_str(yyjson_obj_get(tool, "name"));
      if (name) mlx_text_printf(out, "%s %s\n", yyjson_get_str(yyjson_obj_get(space, "name")), name);
    }
  }
  return mlx_text_finish(out);
}

static mlx_status_t read_tools(const mlx_place_t *root, mlx_api_call_t *call,
                               mlx_responses_details_t *details) {
  bool parallel = true;
  const mlx_place_t tools = mlx_place_key(root, "tools"), choice = mlx_place_key(root, "tool_choice");
  MLX_TRY(mlx_openai_read_tools(&tools, MLX_TOOL_FLAT, skipped_tools, call));
  MLX_TRY(mlx_openai_read_tool_choice(&choice, MLX_TOOL_FLAT, call));
  MLX_TRY(mlx_field_bool(root, "parallel_tool_calls", &parallel));
  call->one_tool_call = !parallel;
  MLX_TRY(keep_namespaced(&tools, &details->namespaced));
  MLX_TRY(keep_json(root, "tools", &details->tools));
  return keep_json(root, "tool_choice", &details->tool_choice);
}

// Values that name results of tools that the server does not have are accepted: there are no such results.
static mlx_status_t read_include(const mlx_place_t *root, mlx_api_call_t *call) {
  static const char *const ignored[] = {
      "reasoning.encrypted_content",   "file_search_call.results",
      "web_search_call.results",       "web_search_call.action.sources",
      "message.input_image.image_url", "computer_call_output.output.image_url",
      "code_interpreter_call.outputs"};
  const mlx_place_t place = mlx_place_key(root, "include"), top = mlx_place_key(root, "top_logprobs");
  size_t index, max;
  yyjson_val *value;
  MLX_TRY(mlx_field_int(root, "top_logprobs", 0, MLX_MAX_LOGPROBS, &call->logprobs));
  if (top.value && !call->logprobs) call->logprobs = -1;
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value)) return mlx_field_expected(&place, "a list of strings");
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    bool known = yyjson_equals_str(value, "message.output_text.logprobs");
    if (known && call->logprobs < 0) call->logprobs = 0;
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; ++i)
      known = known || yyjson_equals_str(value, ignored[i]);
    if (!known) return mlx_field_error(&item, MLX_UNSUPPORTED, "not supported");
  }
  return NULL;
}

static mlx_status_t check_truncation(const mlx_place_t *root) {
  const char *truncation = "disabled";
  MLX_TRY(mlx_field_text(root, "truncation", &truncation));
  if (!strcmp(truncation, "disabled")) return NULL;
  const mlx_place_t place = mlx_place_key(root, "truncation");
  return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' is not supported", truncation),
                         "prompts are never truncated: use disabled");
}

// ----------------------------------------------------------------------------------------------------------
// Stored responses

// The items of the response that this one continues; "" without one.
static mlx_status_t find_history(const mlx_place_t *root, mlx_api_call_t *call, mlx_text_t *items) {
  mlx_responses_details_t *details = call->details;
  const mlx_place_t place = mlx_place_key(root, "previous_response_id");
  mlx_stored_response_t previous;
  const char *id = NULL;
  bool found;
  MLX_TRY(mlx_field_text(root, "previous_response_id", &id));
  if (!id) return NULL;
  MLX_TRY(keep_json(root, "previous_response_id", &details->previous));
  MLX_TRY(mlx_stored_responses_find(call->stored, id, &previous, &found));
  if (!found)
    return mlx_status_hint(mlx_field_error(&place, MLX_INVALID_INPUT, "there is no response '%.64s'", id),
                           "send the whole conversation as input: the server keeps the last responses only");
  mlx_text_append(items, previous.input.data, previous.input.length);
  if (previous.output.length) {
    mlx_text_puts(items, ",");
    mlx_text_append(items, previous.output.data, previous.output.length);
  }
  mlx_stored_response_clear(&previous);
  return mlx_text_finish(items);
}

// Reads the items of earlier responses and of |root|, and notes them if the response is stored. A waiting
// request keeps them, so a response with too many bytes of them is not stored.
static mlx_status_t read_all_items(const mlx_place_t *root, const mlx_text_t *items, const char *instructions,
                                   mlx_api_call_t *call) {
  mlx_responses_details_t *details = call->details;
  const mlx_place_t input = mlx_place_key(root, "input");
  mlx_text_t list = {0};
  mlx_place_t history = {.unknown = root->unknown};
  yyjson_doc *doc = NULL;
  mlx_status_t status = NULL;
  if (items->length) {
    mlx_text_puts(&list, "[");
    mlx_text_append(&list, items->data, items->length);
    mlx_text_puts(&list, "]");
    status = mlx_text_finish(&list);
    if (!status) doc = yyjson_read(list.data, list.length, 0);
    if (!status && !doc) status = mlx_error(MLX_INTERNAL, "a stored response is not JSON");
    history.value = yyjson_doc_get_root(doc);
  }
  if (!status) status = mlx_responses_read_input(&history, &input, instructions, call);
  if (!status && details->store) {
    if (items->length) mlx_text_append(&details->items, items->data, items->length);
    status = mlx_responses_put_input(&input, &details->items);
    details->store = details->items.length <= MOST_STORED_ITEMS;
    if (!details->store) mlx_text_clear(&details->items);
  }
  yyjson_doc_free(doc);
  mlx_text_clear(&list);
  return status;
}

static mlx_status_t read_input(const mlx_place_t *root, const char *instructions, mlx_api_call_t *call) {
  mlx_responses_details_t *details = call->details;
  mlx_text_t items = {0};
  bool store = true;
  MLX_TRY(mlx_field_bool(root, "store", &store));
  details->store = store && call->stored;
  mlx_status_t status = find_history(root, call, &items);
  if (!status) status = read_all_items(root, &items, instructions, call);
  mlx_text_clear(&items);
  return status;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t read_response(const mlx_place_t *root, mlx_api_call_t *call) {
  mlx_responses_details_t *details = call->details;
  static const char *const limits[] = {"max_output_tokens", NULL};
  mlx_openai_variables_t variables = {.enable_thinking = -1};
  const char *instructions = NULL;
  bool include_usage;
  MLX_TRY(mlx_fields_check(root, fields, false));
  MLX_TRY(mlx_openai_read_generation(root, call, &include_usage));
  MLX_TRY(mlx_openai_read_max_tokens(root, limits, 1, call));
  MLX_TRY(mlx_field_text(root, "instructions", &instructions));
  MLX_TRY(keep_json(root, "instructions", &details->instructions));
  const mlx_place_t metadata = mlx_place_key(root, "metadata");
  MLX_TRY(read_input(root, instructions, call));
  MLX_TRY(read_tools(root, call, details));
  MLX_TRY(read_text(root, &variables, call, details));
  MLX_TRY(read_reasoning(root, &variables, details));
  MLX_TRY(read_include(root, call));
  MLX_TRY(check_truncation(root));
  if (metadata.value && !yyjson_is_obj(metadata.value)) return mlx_field_expected(&metadata, "an object");
  MLX_TRY(keep_json(root, "metadata", &details->metadata));
  return mlx_openai_put_variables(root, &variables, call);
}

static mlx_status_t parse(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(mlx_responses_details_t), read_response, call);
}

const mlx_api_t mlx_api_responses = {
    .stream_type = "text/event-stream; charset=utf-8",
    .parse = parse,
    .free_details = free_details,
    .write = mlx_responses_write,
    .stream_size = sizeof(mlx_responses_stream_t),
    .stream_open = mlx_responses_stream_open,
    .stream_event = mlx_responses_stream_event,
    .stream_close = mlx_responses_stream_close,
    .stream_error = mlx_responses_stream_error,
    .stream_clear = mlx_responses_stream_clear,
    .heartbeat = "event: keepalive\ndata: {\"type\":\"keepalive\"}\n\n",  // Codex ignores comments
    .error = mlx_openai_put_error,
    .fields = fields,
};
