// OpenAI's completions of plain prompts, with the fields of llama.cpp and vLLM.
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "server/api/llama_answer.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_fields.h"
#include "server/api/prompt_fields.h"

#define DEFAULT_MAX_TOKENS 16  // OpenAI's default
#define MAX_CHOICES 1024       // prompts times n

static const mlx_field_t fields[] = {
    MLX_OPENAI_GENERATION_FIELDS,
    MLX_READ("prompt"),
    MLX_READ("max_tokens"),
    MLX_READ("n_predict"),
    MLX_READ("n"),
    MLX_READ("best_of"),
    MLX_READ("echo"),
    MLX_READ("logprobs"),
    MLX_READ("response_format"),
    MLX_READ("add_special_tokens"),
    MLX_READ("suffix"),
    MLX_REFUSE("messages", "use /v1/chat/completions"),
    MLX_REFUSE_VALUE("tools", "use /v1/chat/completions"),
    MLX_REFUSE_VALUE("prompt_embeds", "send a text or token ids"),
    MLX_FIELDS_END,
};

typedef struct completion_details {
  bool include_usage;  // stream_options.include_usage
} completion_details_t;

// ----------------------------------------------------------------------------------------------------------
// Parsing

static mlx_status_t read_counts(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t n = mlx_place_key(root, "n"), best = mlx_place_key(root, "best_of");
  MLX_TRY(mlx_field_int(root, "n", 1, MLX_MAX_N, &call->n));
  int64_t best_of = call->n;
  MLX_TRY(mlx_field_int(root, "best_of", 1, MLX_MAX_N, &best_of));
  if (best_of < call->n)
    return mlx_field_error(&best, MLX_INVALID_INPUT, "expected at least n, which is %lld",
                           (long long)call->n);
  if (best_of > call->n && call->stream)
    return mlx_field_error(&best, MLX_INVALID_INPUT, "more than n is not possible with stream");
  if (best_of > call->n) call->best = call->n;
  call->n = best_of;
  if ((size_t)call->n * call->prompt_count > MAX_CHOICES)
    return mlx_field_error(call->best ? &best : &n, MLX_INVALID_INPUT,
                           "%s times the number of prompts is over %d", call->best ? "best_of" : "n",
                           MAX_CHOICES);
  return NULL;
}

static mlx_status_t read_completion(const mlx_place_t *root, mlx_api_call_t *call) {
  completion_details_t *details = call->details;
  static const char *const limits[] = {"max_tokens", "n_predict", NULL};
  bool special = true;
  MLX_TRY(mlx_fields_check(root, fields, false));
  const mlx_place_t prompt = mlx_place_key(root, "prompt"), format = mlx_place_key(root, "response_format");
  MLX_TRY(mlx_prompt_fields_read(&prompt, call));
  MLX_TRY(mlx_openai_read_generation(root, call, &details->include_usage));
  call->max_tokens = DEFAULT_MAX_TOKENS;
  MLX_TRY(mlx_openai_read_max_tokens(root, limits, 0, call));
  MLX_TRY(read_counts(root, call));
  MLX_TRY(mlx_field_int(root, "logprobs", 0, MLX_MAX_LOGPROBS, &call->logprobs));
  MLX_TRY(mlx_field_bool(root, "echo", &call->echo));
  MLX_TRY(mlx_prompt_fields_read_suffix(root, "suffix", call));
  if (call->infill.is_wanted && call->echo) {
    const mlx_place_t place = mlx_place_key(root, "echo");
    return mlx_field_error(&place, MLX_INVALID_INPUT, "not possible with suffix");
  }
  if (call->echo && call->truncate_prompt >= 0) {
    const mlx_place_t place = mlx_place_key(root, "truncate_prompt_tokens");
    return mlx_field_error(&place, MLX_INVALID_INPUT, "not possible with echo");
  }
  MLX_TRY(mlx_field_bool(root, "add_special_tokens", &special));
  if (!special) {
    const mlx_place_t place = mlx_place_key(root, "add_special_tokens");
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "false is not supported"),
                           "send token ids: nothing is added to them");
  }
  return mlx_openai_read_format(&format, false, call);
}

static mlx_status_t parse(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(completion_details_t), read_completion, call);
}

// ----------------------------------------------------------------------------------------------------------
// Parts of answers

static bool same_bytes(const mlx_answer_logprob_t *a, const mlx_answer_logprob_t *b) {
  return a->length == b->length && (!a->length || !memcmp(a->bytes, b->bytes, a->length));
}

// An object of the most likely tokens and the chosen one. Tokens with equal bytes are written once. The first
// token of a prompt has no log-probability.
static void put_top(mlx_json_writer_t *json, const mlx_answer_token_t *token) {
  if (isnan(token->chosen.logprob)) {
    mlx_json_put_null(json, NULL);
    return;
  }
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  for (size_t i = 0; i <= token->top_count; ++i) {
    const mlx_answer_logprob_t *entry = i < token->top_count ? &token->top[i] : &token->chosen;
    bool is_new = true;
    for (size_t k = 0; k < i; ++k) is_new = is_new && !same_bytes(entry, &token->top[k]);
    if (is_new) mlx_openai_put_token_logprob(json, entry);
  }
  mlx_json_end(json);
}

static size_t count_characters(const mlx_answer_logprob_t *token) {
  size_t count = 0;
  for (size_t i = 0; i < token->length; ++i) count += ((unsigned char)token->bytes[i] & 0xC0) != 0x80;
  return count;
}

// The start token that a tokenizer adds to a prompt is not part of the echoed text.
static bool is_in_text(const mlx_answer_logprob_t *token, const char *text, size_t length) {
  return !isnan(token->logprob) || (token->length <= length && !memcmp(token->bytes, text, token->length));
}

// The legacy form: four lists. |text| is the text of the tokens. |inout_offset| counts its characters.
static void put_logprobs(mlx_json_writer_t *json, const mlx_api_call_t *call,
                         const mlx_answer_token_t *tokens, size_t count, const char *text, size_t length,
                         size_t *inout_offset) {
  mlx_json_begin_object(json, "logprobs", MLX_JSON_COMPACT);
  mlx_json_begin_list(json, "tokens", MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) mlx_openai_put_token(json, NULL, &tokens[i].chosen);
  mlx_json_end(json);
  mlx_json_begin_list(json, "token_logprobs", MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) {
    if (isnan(tokens[i].chosen.logprob))
      mlx_json_put_null(json, NULL);
    else
      mlx_openai_put_logprob(json, NULL, tokens[i].chosen.logprob);
  }
  mlx_json_end(json);
  if (call->logprobs) {
    mlx_json_begin_list(json, "top_logprobs", MLX_JSON_COMPACT);
    for (size_t i = 0; i < count; ++i) put_top(json, &tokens[i]);
    mlx_json_end(json);
  } else {
    mlx_json_put_null(json, "top_logprobs");
  }
  mlx_json_begin_list(json, "text_offset", MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) {
    mlx_json_put_uint(json, NULL, *inout_offset);
    if (is_in_text(&tokens[i].chosen, text, length)) *inout_offset += count_characters(&tokens[i].chosen);
  }
  mlx_json_end(json);
  mlx_json_end(json);
}

// ----------------------------------------------------------------------------------------------------------
// Whole answers

static void put_choice(mlx_json_writer_t *json, const mlx_api_call_t *call, const mlx_answer_choice_t *choice,
                       size_t index, size_t prompt) {
  mlx_text_t text = {0};
  size_t offset = 0;
  mlx_text_append(&text, choice->reasoning.data ? choice->reasoning.data : "", choice->reasoning.length);
  mlx_text_append(&text, choice->text.data ? choice->text.data : "", choice->text.length);
  json->out->failed |= text.failed;
  const char *bytes = text.data ? text.data : "";
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(json, "index", index);
  mlx_json_put_bytes(json, "text", bytes, text.length);
  if (call->logprobs >= 0)
    put_logprobs(json, call, choice->tokens, choice->token_count, bytes, text.length, &offset);
  else
    mlx_json_put_null(json, "logprobs");
  mlx_text_clear(&text);
  mlx_token_fields_put_choice(json, call, choice);
  mlx_token_fields_put_prompt(json, call, choice, prompt);
  mlx_json_put_text(json, "finish_reason", mlx_openai_finish_reason(choice->finish, false));
  mlx_json_end(json);
}

// The place of a choice among the |count| choices of its prompt, the most likely first. Equal ones keep their
// order.
static size_t rank_of(const mlx_answer_choice_t *choices, size_t count, size_t index) {
  const double own = choices[index].mean_logprob;
  size_t rank = 0;
  for (size_t i = 0; i < count; ++i)
    rank += choices[i].mean_logprob > own || (choices[i].mean_logprob == own && i < index);
  return rank;
}

// The best choices of a prompt, the most likely first.
static void put_best(mlx_json_writer_t *json, const mlx_api_call_t *call, const mlx_answer_choice_t *choices,
                     size_t count, size_t prompt) {
  const size_t best = (size_t)call->best;
  for (size_t rank = 0; rank < best; ++rank) {
    for (size_t i = 0; i < count; ++i) {
      if (rank_of(choices, count, i) == rank)
        put_choice(json, call, &choices[i], prompt * best + rank, prompt);
    }
  }
}

static mlx_status_t write_answer(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  const size_t n = (size_t)call->n;
  mlx_json_writer_t json = {.out = out};
  mlx_openai_put_head(&json, answer, "cmpl", "text_completion");
  for (size_t i = 0; i < answer->choice_count; i += n) {
    const size_t count = answer->choice_count - i < n ? answer->choice_count - i : n;
    if (call->best) put_best(&json, call, answer->choices + i, count, i / n);
    for (size_t k = 0; k < count && !call->best; ++k)
      put_choice(&json, call, &answer->choices[i + k], i + k, i / n);
  }
  mlx_json_end(&json);
  mlx_openai_put_verbose(&json, call, answer);
  mlx_openai_put_usage_and_timings(&json, answer);
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Streams

typedef struct completion_stream {
  const mlx_api_call_t *call;
  mlx_openai_chunks_t chunks;
  size_t *offsets;  // [chunks.count] characters of the tokens that were sent
} completion_stream_t;

static void put_chunk(const completion_stream_t *writer, const mlx_event_t *event, const char *text,
                      size_t length, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_openai_begin_chunk(&writer->chunks, &json);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(&json, "index", event->choice);
  mlx_json_put_bytes(&json, "text", text, length);
  if (event->token_count)
    put_logprobs(&json, writer->call, event->tokens, event->token_count, text, length,
                 &writer->offsets[event->choice]);
  else
    mlx_json_put_null(&json, "logprobs");
  mlx_json_put_null(&json, "finish_reason");
  mlx_json_end(&json);
  mlx_openai_end_chunk(&writer->chunks, &json);
}

static void stream_clear(void *stream) {
  completion_stream_t *writer = stream;
  mlx_openai_chunks_clear(&writer->chunks);
  mlx_free(writer->offsets);
}

static mlx_status_t stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                mlx_text_t *out) {
  completion_stream_t *writer = stream;
  (void)out;
  const completion_details_t *details = call->details;
  writer->call = call;
  writer->chunks = (mlx_openai_chunks_t){.call = call,
                                         .answer = answer,
                                         .prefix = "cmpl",
                                         .object = "text_completion",
                                         .include_usage = details->include_usage,
                                         .count = (size_t)call->n * call->prompt_count};
  return mlx_alloc(writer->chunks.count, sizeof *writer->offsets, &writer->offsets);
}

static mlx_status_t finish_choice(completion_stream_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  const mlx_openai_end_t end = {.choice = event->choice,
                                .key = "text",
                                .content = "\"\"",
                                .reason = mlx_openai_finish_reason(event->finish, false),
                                .finish = event->finish,
                                .stop = event->stop,
                                .ids = event->ids,
                                .id_count = event->id_count};
  return mlx_openai_finish_choice(&writer->chunks, &end, out);
}

static mlx_status_t stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) {
  completion_stream_t *writer = stream;
  if (event->choice >= writer->chunks.count)
    return mlx_error(MLX_INTERNAL, "there is no choice %zu", event->choice);
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING:
      writer->chunks.has_new_line |= mlx_llama_has_new_line(event->text, event->length);
      if (event->length || event->token_count) put_chunk(writer, event, event->text, event->length, out);
      break;
    case MLX_EVENT_FINISH: MLX_TRY(finish_choice(writer, event, out)); break;
    default: return mlx_error(MLX_INTERNAL, "a completion has no tool calls");
  }
  return mlx_text_finish(out);
}

static void stream_progress(void *stream, const mlx_api_progress_t *progress, mlx_text_t *out) {
  const completion_stream_t *writer = stream;
  mlx_openai_put_progress_chunk(&writer->chunks, "text", "\"\"", progress, out);
}

static mlx_status_t stream_close(void *stream, const mlx_answer_t *answer, mlx_text_t *out) {
  completion_stream_t *writer = stream;
  return mlx_openai_close_chunks(&writer->chunks, answer, out);
}

static void stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)stream;
  mlx_openai_put_stream_error(error, out);
}

const mlx_api_t mlx_api_completion = {
    .stream_type = "text/event-stream; charset=utf-8",
    .parse = parse,
    .free_details = mlx_free,
    .write = write_answer,
    .stream_size = sizeof(completion_stream_t),
    .stream_open = stream_open,
    .stream_event = stream_event,
    .stream_progress = stream_progress,
    .stream_close = stream_close,
    .stream_error = stream_error,
    .stream_clear = stream_clear,
    .heartbeat = ": \n\n",
    .error = mlx_openai_put_error,
    .fields = fields,
};
