// Renders, tokenizes and compiles what a call asks for.
#include "server/prompt.h"

#include <string.h>
#include <uv.h>

#include "base/json.h"
#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Chats

static mlx_status_t no_template(void) {
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "messages: the model has no chat template"),
                         "start the server with --chat-template NAME, or use /v1/completions");
}

// Cuts |text| after the last message's content, so that the model continues that message.
static mlx_status_t cut_after_last(const mlx_call_t *call, char *text, size_t *inout_length) {
  yyjson_doc *doc = yyjson_read(call->messages, call->messages_length, 0);
  yyjson_val *list = yyjson_doc_get_root(doc);
  yyjson_val *content = yyjson_obj_get(yyjson_arr_get_last(list), "content");
  size_t length = yyjson_get_len(content), at = 0;
  const char *last = yyjson_get_str(content);
  while (last && length && strchr(" \t\r\n", last[length - 1])) --length;  // templates strip it
  bool found = false;
  for (size_t i = *inout_length; last && i-- > 0 && !found;) {
    found = i + length <= *inout_length && !memcmp(text + i, last, length);
    at = i + length;
  }
  yyjson_doc_free(doc);
  if (!found)
    return mlx_error(MLX_UNSUPPORTED,
                     "messages: the chat template does not render the last message as it is, "
                     "so that it cannot be continued");
  *inout_length = at;
  text[at] = 0;
  return NULL;
}

static const mlx_output_format_t *format_of(const mlx_call_t *call, const mlx_chat_t *chat) {
  return mlx_output_format_find(mlx_chat_source(chat, NULL, call->tools != NULL));
}

mlx_status_t mlx_input_render(const mlx_call_t *call, const mlx_input_tools_t *tools, char **out_text,
                              size_t *out_length) {
  const mlx_chat_t *chat = mlx_serving_chat(tools->serving);
  mlx_chat_options_t options;
  *out_text = NULL;
  if (!chat) return no_template();
  mlx_chat_options_initialize(&options);
  options.tools = call->tools;
  options.tools_length = call->tools_length;
  options.variables = call->variables;
  options.add_generation_prompt = !call->continue_final;
  char *text;
  mlx_status_t status = mlx_tool_memory_render(call->continue_final ? NULL : tools->memory, tools->model,
                                               chat, format_of(call, chat), call->messages,
                                               call->messages_length, &options, &text, out_length, NULL);
  if (status) return mlx_status_annotate(status, "messages");
  status = mlx_copy_text(text, *out_length, out_text);
  mlx_chat_free_text(text);
  if (!status && call->continue_final) status = cut_after_last(call, *out_text, out_length);
  return status;
}

static mlx_status_t prepare_chat(const mlx_call_t *call, const mlx_input_tools_t *tools, mlx_input_t *out) {
  mlx_input_prompt_t *prompt = &out->prompts[0];
  MLX_TRY(mlx_input_render(call, tools, &prompt->text, &prompt->length));
  out->format = format_of(call, mlx_serving_chat(tools->serving));
  out->visible_count = mlx_output_format_tokens(out->format, out->visible);
  return mlx_engine_tokenize_chat(mlx_serving_engine(tools->serving), prompt->text, prompt->length,
                                  &prompt->ids, &prompt->count);
}

// ----------------------------------------------------------------------------------------------------------
// Completions

static mlx_status_t copy_ids(const mlx_call_prompt_t *given, int64_t vocab, mlx_input_prompt_t *out) {
  for (size_t i = 0; i < given->id_count; ++i) {
    if (given->ids[i] < 0 || given->ids[i] >= vocab)
      return mlx_error(MLX_INVALID_INPUT, "prompt: token id %d is not below %lld", given->ids[i],
                       (long long)vocab);
  }
  MLX_TRY(mlx_alloc(given->id_count, sizeof *out->ids, &out->ids));
  if (given->id_count) memcpy(out->ids, given->ids, given->id_count * sizeof *out->ids);
  out->count = given->id_count;
  return NULL;
}

static mlx_status_t prepare_prompt(const mlx_call_prompt_t *given, const mlx_engine_t *engine,
                                   mlx_input_prompt_t *out) {
  if (given->ids) return copy_ids(given, mlx_engine_info(engine).vocab, out);
  MLX_TRY(mlx_copy_text(given->text, given->length, &out->text));
  out->length = given->length;
  return mlx_engine_tokenize(engine, out->text, out->length, &out->ids, &out->count);
}

// ----------------------------------------------------------------------------------------------------------

// The engine's tables are built once, by the first worker that needs them.
static uv_once_t tables_once = UV_ONCE_INIT;
static uv_mutex_t tables_mutex;
static void make_tables_mutex(void) { uv_mutex_init(&tables_mutex); }

static mlx_status_t prepare_tables(mlx_engine_t *engine) {
  uv_once(&tables_once, make_tables_mutex);
  uv_mutex_lock(&tables_mutex);
  mlx_status_t status = mlx_engine_prepare_grammars(engine);
  uv_mutex_unlock(&tables_mutex);
  return status;
}

static mlx_status_t prepare_grammar(const mlx_call_t *call, mlx_serving_t *serving, mlx_input_t *out) {
  const mlx_output_format_t *format = out->format ? out->format : mlx_output_format_find("");
  char *gbnf;
  size_t length;
  MLX_TRY(mlx_output_format_grammar(format, call, out->prompts[0].text ? out->prompts[0].text : "",
                                    out->prompts[0].length, &gbnf, &length));
  if (!gbnf) return NULL;
  mlx_status_t status = prepare_tables(mlx_serving_engine(serving));
  if (!status) status = mlx_grammars_get(out->grammars, gbnf, length, &out->grammar);
  mlx_free(gbnf);
  return status;
}

static mlx_status_t prepare(const mlx_call_t *call, const mlx_input_tools_t *tools, mlx_input_t *out) {
  mlx_serving_t *serving = tools->serving;
  out->count = call->messages ? 1 : call->prompt_count;
  if (!out->count) return mlx_error(MLX_INVALID_INPUT, "prompt: the list is empty");
  MLX_TRY(mlx_alloc(out->count, sizeof *out->prompts, &out->prompts));
  if (call->messages) MLX_TRY(prepare_chat(call, tools, out));
  for (size_t i = 0; i < call->prompt_count && !call->messages; ++i)
    MLX_TRY(prepare_prompt(&call->prompts[i], mlx_serving_engine(serving), &out->prompts[i]));
  for (size_t i = 0; i < out->count; ++i) {
    if (!out->prompts[i].count)
      return mlx_error(MLX_INVALID_INPUT, "%s: the text has no tokens",
                       call->messages ? "messages" : "prompt");
  }
  return prepare_grammar(call, serving, out);
}

mlx_status_t mlx_input_prepare(const mlx_call_t *call, const mlx_input_tools_t *tools,
                               mlx_input_t *out_input) {
  *out_input = (mlx_input_t){.grammars = tools->grammars};
  mlx_status_t status = prepare(call, tools, out_input);
  if (status) mlx_input_clear(out_input);
  return status;
}

void mlx_input_clear(mlx_input_t *input) {
  for (size_t i = 0; i < input->count && input->prompts; ++i) {
    mlx_free(input->prompts[i].text);
    mlx_engine_free_ids(input->prompts[i].ids);
  }
  mlx_free(input->prompts);
  if (input->grammars) mlx_grammars_put(input->grammars, input->grammar);
  *input = (mlx_input_t){0};
}
