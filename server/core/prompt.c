// Renders, tokenizes and compiles what a call asks for.
#include "server/core/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/rooms.h"
#include "server/core/infill.h"
#include "server/tools/splice.h"

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

static mlx_status_t make_continued(const mlx_api_call_t *call, continued_t *out) {
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

static size_t context_of(const mlx_job_t *job) { return (size_t)mlx_engine_info(job->engine).context; }

// Tokenizing stops at more tokens than these: the prompt does not fit, or it is truncated afterwards.
static size_t limit_of(const mlx_job_t *job, const mlx_api_call_t *call) {
  return call->truncate_prompt < 0 ? context_of(job) : SIZE_MAX;
}

// Keeps the end of a prompt, as vLLM.
static void truncate_prompt(const mlx_job_t *job, const mlx_api_call_t *call, mlx_api_prompt_t *prompt) {
  const size_t most = call->truncate_prompt > 0 ? (size_t)call->truncate_prompt : context_of(job);
  if (call->truncate_prompt < 0 || prompt->id_count <= most) return;
  memmove(prompt->ids, prompt->ids + (prompt->id_count - most), most * sizeof *prompt->ids);
  prompt->id_count = most;
}

static const mlx_output_format_t *format_of(const mlx_api_call_t *call, const mlx_chat_t *chat) {
  return mlx_output_format_find(mlx_chat_source(chat, NULL, call->tools != NULL));
}

static bool is_plain(const mlx_job_t *job, const mlx_api_call_t *call) {
  return call->plain < 0 ? job->service->plain : call->plain;
}

static mlx_status_t render(const mlx_job_t *job, const mlx_api_call_t *call, const mlx_chat_t *chat,
                           const continued_t *continued, char **out_text, size_t *out_length,
                           mlx_answer_spans_t *out_spans) {
  mlx_chat_options_t options;
  mlx_chat_options_initialize(&options);
  options.tools = call->tools;
  options.tools_length = call->tools_length;
  options.variables = call->variables;
  if (is_plain(job, call)) options.plain = job->engine;
  options.add_generation_prompt = (!continued->json || continued->is_new_turn) && !call->no_generation_prompt;
  char *text;
  mlx_status_t status = mlx_tool_memory_render(
      continued->json ? NULL : job->service->memory, mlx_served_model_name(job->model), chat,
      format_of(call, chat), continued->json ? continued->json : call->messages,
      continued->json ? continued->length : call->messages_length, &options, &text, out_length, out_spans);
  if (status) return mlx_status_annotate(status, "messages");
  status = mlx_copy_text(text, *out_length, out_text);
  mlx_chat_free_text(text);
  if (!status && continued->json) status = cut_at_marker(continued, *out_text, out_length);
  return status;
}

mlx_status_t mlx_prompt_render(const mlx_job_t *job, const mlx_api_call_t *call, char **out_text,
                               size_t *out_length, mlx_answer_spans_t *out_spans) {
  const mlx_chat_t *chat = mlx_serving_chat(job->serving);
  continued_t continued = {0};
  *out_text = NULL;
  *out_spans = (mlx_answer_spans_t){0};
  if (!chat) return no_template();
  if (call->continue_final) MLX_TRY(make_continued(call, &continued));
  mlx_status_t status = render(job, call, chat, &continued, out_text, out_length, out_spans);
  free(continued.json);
  if (status) {
    mlx_free(*out_text);
    mlx_answer_spans_clear(out_spans);
    *out_text = NULL;
  }
  return status;
}

static mlx_status_t prepare_chat(const mlx_job_t *job, mlx_api_call_t *call, mlx_prepared_prompt_t *out) {
  MLX_TRY(mlx_alloc(1, sizeof *call->prompts, &call->prompts));
  call->prompt_count = 1;
  mlx_api_prompt_t *prompt = &call->prompts[0];
  MLX_TRY(mlx_prompt_render(job, call, &prompt->text, &prompt->length, &out->spans));
  out->format = format_of(call, mlx_serving_chat(job->serving));
  out->visible_count = mlx_output_format_tokens(out->format, out->visible);
  if (call->tools) MLX_TRY(mlx_tool_memory_history(call->messages, call->messages_length, &out->history));
  return mlx_splice_tokenize(job->engine, prompt->text, prompt->length, &out->spans, limit_of(job, call),
                             &prompt->ids, &prompt->id_count);
}

// ----------------------------------------------------------------------------------------------------------
// Completions

static mlx_status_t check_ids(const mlx_api_prompt_t *prompt, int64_t vocab) {
  for (size_t i = 0; i < prompt->id_count; ++i) {
    if (prompt->ids[i] < 0 || prompt->ids[i] >= vocab)
      return mlx_error(MLX_INVALID_INPUT, "prompt: token id %d is not below %lld", prompt->ids[i],
                       (long long)vocab);
  }
  return NULL;
}

// The first text of a prompt gets the model's start token.
static mlx_status_t tokenize(const mlx_job_t *job, const mlx_api_call_t *call, bool is_first,
                             mlx_api_prompt_t *p) {
  const size_t limit = limit_of(job, call);
  if (is_plain(job, call))
    return mlx_engine_tokenize_plain(job->engine, p->text, p->length, is_first, limit, &p->ids, &p->id_count);
  return mlx_engine_tokenize_within(job->engine, p->text, p->length, !is_first, limit, &p->ids, &p->id_count);
}

static mlx_status_t join_parts(const mlx_job_t *job, const mlx_api_call_t *call, mlx_api_prompt_t *p) {
  const size_t limit = limit_of(job, call);  // a longer prompt is refused: the rest is not tokenized
  for (size_t i = 0; i < p->part_count && p->id_count <= limit; ++i) {
    mlx_api_prompt_t *part = &p->parts[i];
    if (!part->ids) MLX_TRY(tokenize(job, call, i == 0, part));
    MLX_TRY(mlx_resize(p->id_count + part->id_count, sizeof *p->ids, &p->ids));
    if (part->id_count) memcpy(p->ids + p->id_count, part->ids, part->id_count * sizeof *p->ids);
    p->id_count += part->id_count;
  }
  return NULL;
}

static mlx_status_t prepare_text(const mlx_job_t *job, const mlx_api_call_t *call, mlx_api_prompt_t *p) {
  const mlx_engine_t *engine = job->engine;
  if (p->text) return p->ids ? NULL : tokenize(job, call, true, p);  // a gap has both
  if (p->parts) MLX_TRY(join_parts(job, call, p));
  MLX_TRY(check_ids(p, mlx_engine_info(engine).vocab));
  return call->echo ? mlx_engine_detokenize(engine, p->ids, p->id_count, true, &p->text, &p->length) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Grammars

static mlx_status_t prepare_grammar(const mlx_job_t *job, const mlx_api_call_t *call,
                                    mlx_prepared_prompt_t *out) {
  const mlx_output_format_t *format = out->format ? out->format : mlx_output_format_find("");
  const mlx_api_prompt_t *prompt = &call->prompts[0];
  char *gbnf;
  size_t length;
  mlx_output_options_t options = mlx_api_call_output_options(call);
  mlx_text_t notes = {0};
  if (!job->service->strict) options.annotations = &notes;
  mlx_status_t made = mlx_output_format_grammar(format, &options, prompt->text ? prompt->text : "",
                                                prompt->length, &gbnf, &length);
  if (!made)
    mlx_ignored_fields_add_keywords(job->service->ignored, mlx_exchange_path(job->exchange), &notes,
                                    job->exchange);
  mlx_text_clear(&notes);
  MLX_TRY(made);
  if (!gbnf) return NULL;
  mlx_status_t status = mlx_grammars_get(out->grammars, gbnf, length, &out->grammar);
  mlx_free(gbnf);
  return status;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t prepare(const mlx_job_t *job, mlx_api_call_t *call, mlx_prepared_prompt_t *out) {
  const size_t count = call->messages ? 1 : call->prompt_count;
  if (!count) return mlx_error(MLX_INVALID_INPUT, "prompt: the list is empty");
  if (call->infill.is_wanted) MLX_TRY(mlx_infill_prepare(job->engine, call));
  for (size_t i = 0; i < count; ++i) {
    MLX_TRY(call->messages ? prepare_chat(job, call, out) : prepare_text(job, call, &call->prompts[i]));
    truncate_prompt(job, call, &call->prompts[i]);
    const size_t tokens = call->prompts[i].id_count;
    if (!tokens)
      return mlx_error(MLX_INVALID_INPUT, "%s: the text has no tokens",
                       call->messages ? "messages" : "prompt");
    if (tokens > context_of(job)) return NULL;  // the caller refuses it
  }
  return prepare_grammar(job, call, out);
}

mlx_status_t mlx_prompt_prepare(const mlx_job_t *job, mlx_api_call_t *call,
                                mlx_prepared_prompt_t *out_prompt) {
  *out_prompt = (mlx_prepared_prompt_t){.grammars = job->service->grammars};
  mlx_status_t status = prepare(job, call, out_prompt);
  if (status) mlx_prepared_prompt_clear(out_prompt);
  return status;
}

void mlx_prepared_prompt_clear(mlx_prepared_prompt_t *prompt) {
  mlx_answer_spans_clear(&prompt->spans);
  if (prompt->grammars) mlx_grammars_put(prompt->grammars, prompt->grammar);
  *prompt = (mlx_prepared_prompt_t){0};
}
