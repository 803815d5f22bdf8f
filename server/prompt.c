// Renders, tokenizes and compiles what a call asks for.
#include "server/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/json.h"
#include "base/memory.h"
#include "server/splice.h"

// ----------------------------------------------------------------------------------------------------------
// Chats

static mlx_status_t no_template(void) {
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "messages: the model has no chat template"),
                         "start the server with --chat-template NAME, or use /v1/completions");
}

// Messages whose last one is continued, with a marker after its content.
typedef struct continued {
  char marker[48];
  char *json;  // owned; release with free
  size_t length;
  bool is_new_turn;  // the last message is empty and was dropped: there is nothing to continue
} continued_t;

static mlx_status_t not_continued(void) {
  return mlx_error(MLX_UNSUPPORTED,
                   "messages: the chat template does not render the last message as it is, "
                   "so that it cannot be continued");
}

static mlx_status_t mark_last(yyjson_mut_doc *doc, continued_t *out) {
  yyjson_mut_val *list = yyjson_mut_doc_get_root(doc), *last = yyjson_mut_arr_get_last(list);
  yyjson_mut_val *content = yyjson_mut_obj_get(last, "content");
  const bool is_text = yyjson_mut_is_str(content);
  mlx_text_t text = {0};
  if (yyjson_mut_arr_size(yyjson_mut_obj_get(last, "tool_calls")) || (content && !is_text))
    return not_continued();
  out->is_new_turn = !is_text || !yyjson_mut_get_len(content);
  if (out->is_new_turn) {
    yyjson_mut_arr_remove_last(list);
  } else {
    mlx_text_append(&text, yyjson_mut_get_str(content), yyjson_mut_get_len(content));
    mlx_text_puts(&text, out->marker);
    if (!text.failed) yyjson_mut_set_strn(content, text.data, text.length);
  }
  out->json = text.failed ? NULL : yyjson_mut_write(doc, 0, &out->length);
  mlx_text_clear(&text);
  return out->json ? NULL : mlx_error(MLX_OUT_OF_MEMORY, "no memory for the messages");
}

static mlx_status_t make_continued(const mlx_call_t *call, continued_t *out) {
  uint64_t random[2];
  const int error = uv_random(NULL, NULL, random, sizeof random, 0, NULL);
  *out = (continued_t){0};
  if (error) return mlx_error(MLX_IO, "cannot make a marker: %s", uv_strerror(error));
  snprintf(out->marker, sizeof out->marker, "MLXCEL%016llx%016llxEND", (unsigned long long)random[0],
           (unsigned long long)random[1]);
  yyjson_doc *doc = yyjson_read(call->messages, call->messages_length, 0);
  yyjson_mut_doc *copy = yyjson_doc_mut_copy(doc, NULL);
  yyjson_doc_free(doc);
  if (!copy) return mlx_error(MLX_OUT_OF_MEMORY, "no memory for the messages");
  mlx_status_t status = mark_last(copy, out);
  yyjson_mut_doc_free(copy);
  return status;
}

// Cuts |text| before the marker, so that the model continues the last message.
static mlx_status_t cut_at_marker(const continued_t *continued, char *text, size_t *inout_length) {
  const size_t length = strlen(continued->marker);
  if (continued->is_new_turn) return NULL;
  for (size_t i = 0; i + length <= *inout_length; ++i) {  // the text may have NULs
    if (memcmp(text + i, continued->marker, length)) continue;
    *inout_length = i;
    text[i] = 0;
    return NULL;
  }
  return not_continued();
}

static const mlx_output_format_t *format_of(const mlx_call_t *call, const mlx_chat_t *chat) {
  return mlx_output_format_find(mlx_chat_source(chat, NULL, call->tools != NULL));
}

static mlx_status_t render(const mlx_call_t *call, const mlx_input_tools_t *tools, const mlx_chat_t *chat,
                           const continued_t *continued, char **out_text, size_t *out_length,
                           mlx_answer_spans_t *out_spans) {
  mlx_chat_options_t options;
  mlx_chat_options_initialize(&options);
  options.tools = call->tools;
  options.tools_length = call->tools_length;
  options.variables = call->variables;
  options.add_generation_prompt = !continued->json || continued->is_new_turn;
  char *text;
  mlx_status_t status = mlx_tool_memory_render(
      continued->json ? NULL : tools->memory, tools->model, chat, format_of(call, chat),
      continued->json ? continued->json : call->messages,
      continued->json ? continued->length : call->messages_length, &options, &text, out_length, out_spans);
  if (status) return mlx_status_annotate(status, "messages");
  status = mlx_copy_text(text, *out_length, out_text);
  mlx_chat_free_text(text);
  if (!status && continued->json) status = cut_at_marker(continued, *out_text, out_length);
  return status;
}

mlx_status_t mlx_input_render(const mlx_call_t *call, const mlx_input_tools_t *tools, char **out_text,
                              size_t *out_length, mlx_answer_spans_t *out_spans) {
  const mlx_chat_t *chat = mlx_serving_chat(tools->serving);
  continued_t continued = {0};
  *out_text = NULL;
  *out_spans = (mlx_answer_spans_t){0};
  if (!chat) return no_template();
  if (call->continue_final) MLX_TRY(make_continued(call, &continued));
  mlx_status_t status = render(call, tools, chat, &continued, out_text, out_length, out_spans);
  free(continued.json);
  if (status) {
    mlx_free(*out_text);
    mlx_answer_spans_clear(out_spans);
    *out_text = NULL;
  }
  return status;
}

static mlx_status_t prepare_chat(const mlx_call_t *call, const mlx_input_tools_t *tools, mlx_input_t *out) {
  mlx_input_prompt_t *prompt = &out->prompts[0];
  MLX_TRY(mlx_input_render(call, tools, &prompt->text, &prompt->length, &out->spans));
  out->format = format_of(call, mlx_serving_chat(tools->serving));
  out->visible_count = mlx_output_format_tokens(out->format, out->visible);
  if (call->tools) MLX_TRY(mlx_tool_memory_history(call->messages, call->messages_length, &out->history));
  return mlx_splice_tokenize(mlx_serving_engine(tools->serving), prompt->text, prompt->length, &out->spans,
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

static mlx_status_t prepare_prompt(const mlx_call_prompt_t *given, bool echo, const mlx_engine_t *engine,
                                   mlx_input_prompt_t *out) {
  if (given->ids) {
    MLX_TRY(copy_ids(given, mlx_engine_info(engine).vocab, out));
    return echo ? mlx_engine_detokenize(engine, out->ids, out->count, true, &out->text, &out->length) : NULL;
  }
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
    MLX_TRY(prepare_prompt(&call->prompts[i], call->echo, mlx_serving_engine(serving), &out->prompts[i]));
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
  mlx_answer_spans_clear(&input->spans);
  if (input->grammars) mlx_grammars_put(input->grammars, input->grammar);
  *input = (mlx_input_t){0};
}
