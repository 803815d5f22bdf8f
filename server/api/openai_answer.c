// Common parts of the answers of OpenAI's endpoints.
#include "server/api/openai_answer.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "server/api/llama_answer.h"

// ----------------------------------------------------------------------------------------------------------
// Errors

void mlx_openai_put_error(const mlx_api_error_t *error, mlx_text_t *out) {
  const bool too_long = !strcmp(error->type, "exceed_context_size_error");
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_object(&json, "error", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "message", error->message);
  mlx_json_put_text(&json, "type", error->type);
  mlx_json_put_text(&json, "param", error->param);
  mlx_json_put_text(&json, "code", !error->code && too_long ? "context_length_exceeded" : error->code);
  if (too_long) {
    mlx_json_put_int(&json, "n_prompt_tokens", error->prompt_tokens);
    mlx_json_put_int(&json, "n_ctx", error->context);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
}

void mlx_openai_put_stream_error(const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_text_puts(out, "data: ");
  mlx_openai_put_error(error, out);
  mlx_text_puts(out, "\n\ndata: [DONE]\n\n");
}

const char *mlx_openai_finish_reason(mlx_finish_reason_t finish, bool has_tool_calls) {
  switch (finish) {
    case MLX_FINISH_LENGTH:
    case MLX_FINISH_CONTEXT: return "length";
    case MLX_FINISH_ERROR: return "error";
    default: return has_tool_calls ? "tool_calls" : "stop";
  }
}

// ----------------------------------------------------------------------------------------------------------
// Usage

static void put_usage(mlx_json_writer_t *json, const mlx_answer_t *a) {
  mlx_json_begin_object(json, "usage", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "prompt_tokens", a->prompt_tokens);
  mlx_json_put_int(json, "completion_tokens", a->output_tokens);
  mlx_json_put_int(json, "total_tokens", a->prompt_tokens + a->output_tokens);
  mlx_json_begin_object(json, "prompt_tokens_details", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "cached_tokens", a->cached_tokens);
  mlx_json_end(json);
  mlx_json_begin_object(json, "completion_tokens_details", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "reasoning_tokens", a->reasoning_tokens);
  mlx_json_end(json);
  mlx_json_end(json);
}

// ----------------------------------------------------------------------------------------------------------
// Log-probabilities

static bool is_text(const mlx_answer_logprob_t *token) {
  for (size_t i = 0; i < token->length;) {
    const int n = mlx_utf8_length(token->bytes + i, token->length - i);
    if (n <= 0) return false;
    i += (size_t)n;
  }
  return true;
}

// The text of a token, in the token or in |scratch|.
static const char *token_text(const mlx_answer_logprob_t *token, mlx_text_t *scratch, size_t *out_length) {
  *out_length = token->length;
  if (is_text(token)) return token->bytes;
  mlx_text_puts(scratch, "bytes:");
  for (size_t i = 0; i < token->length; ++i)
    mlx_text_printf(scratch, "\\x%02x", (unsigned)(unsigned char)token->bytes[i]);
  *out_length = scratch->length;
  return scratch->data ? scratch->data : "";
}

void mlx_openai_put_token(mlx_json_writer_t *json, const char *key, const mlx_answer_logprob_t *token) {
  mlx_text_t scratch = {0};
  size_t length;
  const char *text = token_text(token, &scratch, &length);
  mlx_json_put_bytes(json, key, text, length);
  json->out->failed |= scratch.failed;
  mlx_text_clear(&scratch);
}

static void append_logprob(double logprob, mlx_text_t *out) {
  mlx_text_json_number(out, "%.9g", isfinite(logprob) ? logprob : -9999);
}

void mlx_openai_put_token_logprob(mlx_json_writer_t *json, const mlx_answer_logprob_t *token) {
  mlx_text_t scratch = {0};
  size_t length;
  const char *text = token_text(token, &scratch, &length);
  append_logprob(token->logprob, mlx_json_put_member(json, text, length));
  json->out->failed |= scratch.failed;
  mlx_text_clear(&scratch);
}

void mlx_openai_put_logprob(mlx_json_writer_t *json, const char *key, double logprob) {
  append_logprob(logprob, mlx_json_put_value(json, key));
}

// Begins the object of a token. |probs|: with its probability.
static void begin_entry(mlx_json_writer_t *json, const mlx_answer_logprob_t *token, bool probs) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_openai_put_token(json, "token", token);
  mlx_json_put_int(json, "id", token->id);
  if (probs)
    mlx_json_put_number(json, "prob", "%.9g", exp(token->logprob));
  else
    mlx_openai_put_logprob(json, "logprob", token->logprob);
  mlx_json_begin_list(json, "bytes", MLX_JSON_COMPACT);
  for (size_t i = 0; i < token->length; ++i) mlx_json_put_uint(json, NULL, (unsigned char)token->bytes[i]);
  mlx_json_end(json);
}

static void put_tokens(mlx_json_writer_t *json, const char *key, const mlx_answer_token_t *tokens,
                       size_t count, bool probs) {
  mlx_json_begin_list(json, key, MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) {
    begin_entry(json, &tokens[i].chosen, probs);
    mlx_json_begin_list(json, probs ? "top_probs" : "top_logprobs", MLX_JSON_COMPACT);
    for (size_t k = 0; k < tokens[i].top_count; ++k) {
      begin_entry(json, &tokens[i].top[k], probs);
      mlx_json_end(json);
    }
    mlx_json_end(json);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

void mlx_openai_put_logprobs(mlx_json_writer_t *json, const char *key, const mlx_answer_token_t *tokens,
                             size_t count) {
  put_tokens(json, key, tokens, count, false);
}

void mlx_openai_put_probs(mlx_json_writer_t *json, const char *key, const mlx_answer_token_t *tokens,
                          size_t count) {
  put_tokens(json, key, tokens, count, true);
}

// ----------------------------------------------------------------------------------------------------------
// Completions

void mlx_openai_put_head(mlx_json_writer_t *json, const mlx_answer_t *answer, const char *prefix,
                         const char *object) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_format(json, "id", "%s-%s", prefix, answer->id);
  mlx_json_put_text(json, "object", object);
  mlx_json_put_int(json, "created", answer->created);
  mlx_json_put_text(json, "model", answer->model);
  mlx_json_put_text(json, "system_fingerprint", "mlxcel");
  mlx_json_begin_list(json, "choices", MLX_JSON_COMPACT);
}

void mlx_openai_put_verbose(mlx_json_writer_t *json, const mlx_api_call_t *call, const mlx_answer_t *answer) {
  if (!answer->choice_count) return;
  const mlx_text_t *text = &answer->choices[0].text;
  mlx_llama_put_verbose(
      json, &(mlx_llama_result_t){.call = call,
                                  .answer = answer,
                                  .choice = &answer->choices[0],
                                  .has_tokens = true,
                                  .has_new_line = mlx_llama_has_new_line(text->data, text->length)});
}

// The texts of the choice were sent.
static void put_verbose_end(mlx_json_writer_t *json, const mlx_openai_chunks_t *chunks,
                            const mlx_answer_t *answer) {
  const mlx_openai_end_t *end = &chunks->last;
  const mlx_answer_choice_t choice = {
      .finish = end->finish, .stop = end->stop, .ids = chunks->last_ids, .id_count = end->id_count};
  mlx_llama_put_verbose(json, &(mlx_llama_result_t){.call = chunks->call,
                                                    .answer = answer,
                                                    .choice = &choice,
                                                    .index = end->choice,
                                                    .has_tokens = true,
                                                    .has_new_line = chunks->has_new_line});
}

void mlx_openai_put_usage_and_timings(mlx_json_writer_t *json, const mlx_answer_t *answer) {
  put_usage(json, answer);
  mlx_llama_put_timings(json, answer);
  mlx_json_end(json);
}

void mlx_openai_begin_chunk(const mlx_openai_chunks_t *chunks, mlx_json_writer_t *json) {
  mlx_text_puts(json->out, "data: ");
  mlx_openai_put_head(json, chunks->answer, chunks->prefix, chunks->object);
}

void mlx_openai_end_chunk(const mlx_openai_chunks_t *chunks, mlx_json_writer_t *json) {
  mlx_json_end(json);
  if (chunks->include_usage) mlx_json_put_null(json, "usage");
  mlx_json_end(json);
  mlx_text_puts(json->out, "\n\n");
}

void mlx_openai_put_progress_chunk(const mlx_openai_chunks_t *chunks, const char *key, const char *content,
                                   const mlx_api_progress_t *progress, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_openai_begin_chunk(chunks, &json);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(&json, "index", progress->choice);
  mlx_json_put_raw(&json, key, content, strlen(content));
  mlx_json_put_null(&json, "logprobs");
  mlx_json_put_null(&json, "finish_reason");
  mlx_json_end(&json);
  mlx_json_end(&json);
  mlx_llama_put_progress(&json, progress);
  if (chunks->include_usage) mlx_json_put_null(&json, "usage");
  mlx_json_end(&json);
  mlx_text_puts(out, "\n\n");
}

void mlx_openai_chunks_clear(mlx_openai_chunks_t *chunks) { mlx_free(chunks->last_ids); }

static void put_finished(mlx_json_writer_t *json, const mlx_openai_chunks_t *chunks,
                         const mlx_openai_end_t *end) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(json, "index", end->choice);
  mlx_json_put_raw(json, end->key, end->content, strlen(end->content));
  if (chunks->call->return_ids) mlx_json_put_ints(json, "token_ids", end->ids, end->id_count);
  mlx_json_put_null(json, "logprobs");
  mlx_json_put_text(json, "finish_reason", end->reason);
  mlx_json_end(json);
}

mlx_status_t mlx_openai_finish_choice(mlx_openai_chunks_t *chunks, const mlx_openai_end_t *end,
                                      mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  if (chunks->finished == chunks->count)
    return mlx_error(MLX_INTERNAL, "choice %zu finishes twice", end->choice);
  if (++chunks->finished == chunks->count) {
    if (end->id_count) {
      MLX_TRY(mlx_alloc(end->id_count, sizeof *chunks->last_ids, &chunks->last_ids));
      memcpy(chunks->last_ids, end->ids, end->id_count * sizeof *chunks->last_ids);
    }
    chunks->last = *end;
    chunks->last.ids = chunks->last_ids;
    return NULL;
  }
  mlx_openai_begin_chunk(chunks, &json);
  put_finished(&json, chunks, end);
  mlx_openai_end_chunk(chunks, &json);
  return mlx_text_finish(out);
}

mlx_status_t mlx_openai_close_chunks(mlx_openai_chunks_t *chunks, const mlx_answer_t *answer,
                                     mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  if (chunks->last.key) {
    mlx_openai_begin_chunk(chunks, &json);
    put_finished(&json, chunks, &chunks->last);
    if (chunks->include_usage) {
      mlx_openai_end_chunk(chunks, &json);
    } else {
      mlx_json_end(&json);
      put_verbose_end(&json, chunks, answer);
      mlx_llama_put_timings(&json, answer);
      mlx_json_end(&json);
      mlx_text_puts(out, "\n\n");
    }
  }
  if (chunks->include_usage) {
    mlx_openai_begin_chunk(chunks, &json);
    mlx_json_end(&json);
    if (chunks->last.key) put_verbose_end(&json, chunks, answer);
    mlx_openai_put_usage_and_timings(&json, answer);
    mlx_text_puts(out, "\n\n");
  }
  mlx_text_puts(out, "data: [DONE]\n\n");
  return mlx_text_finish(out);
}
