// OpenAI's completions of plain prompts, with the fields of llama.cpp and vLLM.
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "server/openai.h"
#include "server/openai_fields.h"

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
    MLX_REFUSE_VALUE("suffix", "write the model's fill-in-the-middle tokens into the prompt"),
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

static mlx_status_t add_prompt(mlx_call_t *call, mlx_call_prompt_t **out) {
  MLX_TRY(mlx_resize(call->prompt_count + 1, sizeof *call->prompts, &call->prompts));
  *out = &call->prompts[call->prompt_count++];
  **out = (mlx_call_prompt_t){0};
  return NULL;
}

static mlx_status_t add_text_prompt(yyjson_val *value, mlx_call_t *call) {
  mlx_call_prompt_t *prompt;
  MLX_TRY(add_prompt(call, &prompt));
  prompt->length = yyjson_get_len(value);
  return mlx_copy_text(yyjson_get_str(value), prompt->length, &prompt->text);
}

static mlx_status_t add_id_prompt(const mlx_place_t *list, mlx_call_t *call) {
  mlx_call_prompt_t *prompt;
  size_t index, max;
  yyjson_val *value;
  if (!yyjson_arr_size(list->value))
    return mlx_field_error(list, MLX_INVALID_INPUT, "expected at least one token id");
  MLX_TRY(add_prompt(call, &prompt));
  MLX_TRY(mlx_alloc(yyjson_arr_size(list->value), sizeof *prompt->ids, &prompt->ids));
  prompt->id_count = yyjson_arr_size(list->value);
  yyjson_arr_foreach(list->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(list, index, value);
    if (!yyjson_is_uint(value) || yyjson_get_uint(value) > INT32_MAX)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id");
    prompt->ids[index] = (int32_t)yyjson_get_uint(value);
  }
  return NULL;
}

// A string, a list of token ids, or a list of either.
static mlx_status_t read_prompts(const mlx_place_t *place, mlx_call_t *call) {
  size_t index, max;
  yyjson_val *value;
  if (yyjson_is_str(place->value)) return add_text_prompt(place->value, call);
  if (!yyjson_is_arr(place->value)) return mlx_field_expected(place, "a string or a list");
  const size_t count = yyjson_arr_size(place->value);
  if (!count) return mlx_field_error(place, MLX_INVALID_INPUT, "expected at least one prompt");
  if (yyjson_is_num(yyjson_arr_get_first(place->value))) return add_id_prompt(place, call);
  if (count > MLX_MAX_PROMPTS)
    return mlx_field_error(place, MLX_INVALID_INPUT, "more than %d prompts", MLX_MAX_PROMPTS);
  yyjson_arr_foreach(place->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(place, index, value);
    if (yyjson_is_str(value))
      MLX_TRY(add_text_prompt(value, call));
    else if (yyjson_is_arr(value))
      MLX_TRY(add_id_prompt(&item, call));
    else
      return mlx_field_expected(&item, "a string or a list of token ids");
  }
  return NULL;
}

static mlx_status_t read_counts(const mlx_place_t *root, mlx_call_t *call) {
  const mlx_place_t n = mlx_place_key(root, "n"), best = mlx_place_key(root, "best_of");
  MLX_TRY(mlx_field_int(root, "n", 1, MLX_MAX_N, &call->n));
  int64_t best_of = call->n;
  MLX_TRY(mlx_field_int(root, "best_of", 1, MLX_MAX_N, &best_of));
  if (best_of != call->n)
    return mlx_status_hint(mlx_field_error(&best, MLX_UNSUPPORTED, "only supported if it equals n"),
                           "use n, and choose in the client");
  if ((size_t)call->n * call->prompt_count > MAX_CHOICES)
    return mlx_field_error(&n, MLX_INVALID_INPUT, "n times the number of prompts is over %d", MAX_CHOICES);
  return NULL;
}

static mlx_status_t read_completion(const mlx_place_t *root, mlx_call_t *call) {
  completion_details_t *details = call->details;
  static const char *const limits[] = {"max_tokens", "n_predict", NULL};
  bool special = true;
  MLX_TRY(mlx_fields_check(root, fields, false));
  const mlx_place_t prompt = mlx_place_key(root, "prompt"), format = mlx_place_key(root, "response_format");
  MLX_TRY(read_prompts(&prompt, call));
  MLX_TRY(mlx_openai_read_generation(root, call, &details->include_usage));
  call->max_tokens = DEFAULT_MAX_TOKENS;
  MLX_TRY(mlx_openai_read_max_tokens(root, limits, 0, call));
  MLX_TRY(read_counts(root, call));
  MLX_TRY(mlx_field_int(root, "logprobs", 0, MLX_MAX_LOGPROBS, &call->logprobs));
  MLX_TRY(mlx_field_bool(root, "echo", &call->echo));
  MLX_TRY(mlx_field_bool(root, "add_special_tokens", &special));
  if (!special) {
    const mlx_place_t place = mlx_place_key(root, "add_special_tokens");
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "false is not supported"),
                           "send token ids: nothing is added to them");
  }
  return mlx_openai_read_format(&format, false, call);
}

static mlx_status_t parse(const char *body, size_t length, const char *query, mlx_call_t *call) {
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
static void put_top(const mlx_answer_token_t *token, mlx_text_t *out) {
  if (isnan(token->chosen.logprob)) {
    mlx_text_puts(out, "null");
    return;
  }
  mlx_text_puts(out, "{");
  for (size_t i = 0; i <= token->top_count; ++i) {
    const mlx_answer_logprob_t *entry = i < token->top_count ? &token->top[i] : &token->chosen;
    bool is_new = true;
    for (size_t k = 0; k < i; ++k) is_new = is_new && !same_bytes(entry, &token->top[k]);
    if (!is_new) continue;
    if (i) mlx_text_puts(out, ",");
    mlx_openai_put_token(entry, out);
    mlx_text_puts(out, ":");
    mlx_openai_put_logprob(entry->logprob, out);
  }
  mlx_text_puts(out, "}");
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
static void put_logprobs(const mlx_call_t *call, const mlx_answer_token_t *tokens, size_t count,
                         const char *text, size_t length, size_t *inout_offset, mlx_text_t *out) {
  mlx_text_puts(out, ",\"logprobs\":{\"tokens\":[");
  for (size_t i = 0; i < count; ++i) {
    if (i) mlx_text_puts(out, ",");
    mlx_openai_put_token(&tokens[i].chosen, out);
  }
  mlx_text_puts(out, "],\"token_logprobs\":[");
  for (size_t i = 0; i < count; ++i) {
    if (i) mlx_text_puts(out, ",");
    if (isnan(tokens[i].chosen.logprob))
      mlx_text_puts(out, "null");
    else
      mlx_openai_put_logprob(tokens[i].chosen.logprob, out);
  }
  mlx_text_puts(out, call->logprobs ? "],\"top_logprobs\":[" : "],\"top_logprobs\":null");
  for (size_t i = 0; i < count && call->logprobs; ++i) {
    if (i) mlx_text_puts(out, ",");
    put_top(&tokens[i], out);
  }
  mlx_text_puts(out, call->logprobs ? "],\"text_offset\":[" : ",\"text_offset\":[");
  for (size_t i = 0; i < count; ++i) {
    mlx_text_printf(out, i ? ",%zu" : "%zu", *inout_offset);
    if (is_in_text(&tokens[i].chosen, text, length)) *inout_offset += count_characters(&tokens[i].chosen);
  }
  mlx_text_puts(out, "]}");
}

// ----------------------------------------------------------------------------------------------------------
// Whole answers

static void put_choice(const mlx_call_t *call, const mlx_answer_choice_t *choice, size_t index,
                       mlx_text_t *out) {
  mlx_text_t text = {0};
  size_t offset = 0;
  mlx_text_append(&text, choice->reasoning.data ? choice->reasoning.data : "", choice->reasoning.length);
  mlx_text_append(&text, choice->text.data ? choice->text.data : "", choice->text.length);
  out->failed |= text.failed;
  mlx_text_printf(out, "%s{\"index\":%zu,\"text\":", index ? "," : "", index);
  mlx_text_json_string(out, text.data ? text.data : "", text.length);
  if (call->logprobs >= 0)
    put_logprobs(call, choice->tokens, choice->token_count, text.data ? text.data : "", text.length, &offset,
                 out);
  else
    mlx_text_puts(out, ",\"logprobs\":null");
  mlx_text_clear(&text);
  mlx_text_printf(out, ",\"finish_reason\":\"%s\"}", mlx_openai_finish_reason(choice->finish, false));
}

static mlx_status_t write_answer(const mlx_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  mlx_openai_put_head(answer, "cmpl", "text_completion", out);
  for (size_t i = 0; i < answer->choice_count; ++i) put_choice(call, &answer->choices[i], i, out);
  mlx_openai_put_tail(answer, out);
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Streams

struct mlx_stream_writer {
  const mlx_call_t *call;
  mlx_openai_chunks_t chunks;
  size_t *offsets;  // [chunks.count] characters of the tokens that were sent
};

static void put_chunk(const mlx_stream_writer_t *writer, const mlx_event_t *event, const char *text,
                      size_t length, mlx_text_t *out) {
  mlx_openai_begin_chunk(&writer->chunks, out);
  mlx_text_printf(out, "{\"index\":%zu,\"text\":", event->choice);
  mlx_text_json_string(out, text, length);
  if (event->token_count)
    put_logprobs(writer->call, event->tokens, event->token_count, text, length,
                 &writer->offsets[event->choice], out);
  else
    mlx_text_puts(out, ",\"logprobs\":null");
  mlx_text_puts(out, ",\"finish_reason\":null}");
  mlx_openai_end_chunk(&writer->chunks, out);
}

static void stream_free(mlx_stream_writer_t *writer) {
  if (!writer) return;
  mlx_text_clear(&writer->chunks.last);
  mlx_free(writer->offsets);
  mlx_free(writer);
}

static mlx_status_t stream_open(const mlx_call_t *call, const mlx_answer_t *answer,
                                mlx_stream_writer_t **out_writer, mlx_text_t *out) {
  mlx_stream_writer_t *writer;
  (void)out;
  *out_writer = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *writer, &writer));
  const completion_details_t *details = call->details;
  writer->call = call;
  writer->chunks = (mlx_openai_chunks_t){.answer = answer,
                                         .prefix = "cmpl",
                                         .object = "text_completion",
                                         .include_usage = details->include_usage,
                                         .count = (size_t)call->n * call->prompt_count};
  mlx_status_t status = mlx_alloc(writer->chunks.count, sizeof *writer->offsets, &writer->offsets);
  if (status)
    stream_free(writer);
  else
    *out_writer = writer;
  return status;
}

static mlx_status_t stream_event(mlx_stream_writer_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  if (event->choice >= writer->chunks.count)
    return mlx_error(MLX_INTERNAL, "there is no choice %zu", event->choice);
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING:
      if (event->length || event->token_count) put_chunk(writer, event, event->text, event->length, out);
      break;
    case MLX_EVENT_FINISH:
      MLX_TRY(mlx_openai_finish_choice(&writer->chunks, event->choice, "\"text\":\"\"",
                                       mlx_openai_finish_reason(event->finish, false), out));
      break;
    default: return mlx_error(MLX_INTERNAL, "a completion has no tool calls");
  }
  return mlx_text_finish(out);
}

static mlx_status_t stream_close(mlx_stream_writer_t *writer, const mlx_answer_t *answer, mlx_text_t *out) {
  return mlx_openai_close_chunks(&writer->chunks, answer, out);
}

static void stream_error(mlx_stream_writer_t *writer, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)writer;
  mlx_openai_put_stream_error(error, out);
}

const mlx_shape_t mlx_shape_completion = {
    .stream_type = "text/event-stream; charset=utf-8",
    .parse = parse,
    .free_details = mlx_free,
    .write = write_answer,
    .stream_open = stream_open,
    .stream_event = stream_event,
    .stream_close = stream_close,
    .stream_error = stream_error,
    .stream_free = stream_free,
    .heartbeat = ": \n\n",
    .error = mlx_openai_put_error,
    .fields = fields,
};
