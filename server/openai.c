// Common parts of the answers of OpenAI's endpoints.
#include "server/openai.h"

#include <math.h>
#include <string.h>

// ----------------------------------------------------------------------------------------------------------
// Errors

void mlx_openai_put_string(const char *text, mlx_text_t *out) {
  if (text)
    mlx_text_json_string(out, text, strlen(text));
  else
    mlx_text_puts(out, "null");
}

void mlx_openai_put_error(const mlx_api_error_t *error, mlx_text_t *out) {
  const bool too_long = !strcmp(error->type, "exceed_context_size_error");
  mlx_text_puts(out, "{\"error\":{\"message\":");
  mlx_openai_put_string(error->message, out);
  mlx_text_puts(out, ",\"type\":");
  mlx_openai_put_string(error->type, out);
  mlx_text_puts(out, ",\"param\":");
  mlx_openai_put_string(error->param, out);
  mlx_text_puts(out, ",\"code\":");
  mlx_openai_put_string(!error->code && too_long ? "context_length_exceeded" : error->code, out);
  if (too_long)
    mlx_text_printf(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)error->prompt_tokens,
                    (long long)error->context);
  mlx_text_puts(out, "}}");
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

void mlx_openai_put_usage(const mlx_answer_t *a, mlx_text_t *out) {
  mlx_text_printf(out, "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld",
                  (long long)a->prompt_tokens, (long long)a->output_tokens,
                  (long long)(a->prompt_tokens + a->output_tokens));
  mlx_text_printf(out,
                  ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}"
                  ",\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
                  (long long)a->cached_tokens, (long long)a->reasoning_tokens);
}

static void put_rate(const char *name, int64_t tokens, double seconds, mlx_text_t *out) {
  const double milliseconds = seconds * 1000;
  mlx_text_printf(out, ",\"%s_n\":%lld,\"%s_ms\":", name, (long long)tokens, name);
  mlx_text_json_number(out, "%.3f", milliseconds);
  mlx_text_printf(out, ",\"%s_per_token_ms\":", name);
  mlx_text_json_number(out, "%.3f", tokens > 0 ? milliseconds / (double)tokens : 0);
  mlx_text_printf(out, ",\"%s_per_second\":", name);
  mlx_text_json_number(out, "%.3f", seconds > 0 ? (double)tokens / seconds : 0);
}

void mlx_openai_put_timings(const mlx_answer_t *a, mlx_text_t *out) {
  mlx_text_printf(out, "{\"cache_n\":%lld", (long long)a->cached_tokens);
  put_rate("prompt", a->prompt_tokens - a->cached_tokens, a->prompt_seconds, out);
  put_rate("predicted", a->output_tokens, a->decode_seconds, out);
  mlx_text_puts(out, "}");
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

void mlx_openai_put_token(const mlx_answer_logprob_t *token, mlx_text_t *out) {
  if (is_text(token)) {
    mlx_text_json_string(out, token->bytes, token->length);
    return;
  }
  mlx_text_puts(out, "\"bytes:");
  for (size_t i = 0; i < token->length; ++i)
    mlx_text_printf(out, "\\\\x%02x", (unsigned)(unsigned char)token->bytes[i]);
  mlx_text_puts(out, "\"");
}

void mlx_openai_put_logprob(double logprob, mlx_text_t *out) {
  mlx_text_json_number(out, "%.9g", isfinite(logprob) ? logprob : -9999);
}

static void put_entry(const mlx_answer_logprob_t *token, mlx_text_t *out) {
  mlx_text_puts(out, "{\"token\":");
  mlx_openai_put_token(token, out);
  mlx_text_printf(out, ",\"id\":%d,\"logprob\":", (int)token->id);
  mlx_openai_put_logprob(token->logprob, out);
  mlx_text_puts(out, ",\"bytes\":[");
  for (size_t i = 0; i < token->length; ++i)
    mlx_text_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)token->bytes[i]);
  mlx_text_puts(out, "]");
}

void mlx_openai_put_logprobs(const mlx_answer_token_t *tokens, size_t count, mlx_text_t *out) {
  mlx_text_puts(out, "[");
  for (size_t i = 0; i < count; ++i) {
    if (i) mlx_text_puts(out, ",");
    put_entry(&tokens[i].chosen, out);
    mlx_text_puts(out, ",\"top_logprobs\":[");
    for (size_t k = 0; k < tokens[i].top_count; ++k) {
      if (k) mlx_text_puts(out, ",");
      put_entry(&tokens[i].top[k], out);
      mlx_text_puts(out, "}");
    }
    mlx_text_puts(out, "]}");
  }
  mlx_text_puts(out, "]");
}

// ----------------------------------------------------------------------------------------------------------
// Completions

void mlx_openai_put_head(const mlx_answer_t *answer, const char *prefix, const char *object,
                         mlx_text_t *out) {
  mlx_text_printf(out, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", prefix, answer->id,
                  object, (long long)answer->created);
  mlx_openai_put_string(answer->model, out);
  mlx_text_puts(out, ",\"system_fingerprint\":\"mlxcel\",\"choices\":[");
}

void mlx_openai_put_tail(const mlx_answer_t *answer, mlx_text_t *out) {
  mlx_text_puts(out, "],\"usage\":");
  mlx_openai_put_usage(answer, out);
  mlx_text_puts(out, ",\"timings\":");
  mlx_openai_put_timings(answer, out);
  mlx_text_puts(out, "}");
}

void mlx_openai_begin_chunk(const mlx_openai_chunks_t *chunks, mlx_text_t *out) {
  mlx_text_puts(out, "data: ");
  mlx_openai_put_head(chunks->answer, chunks->prefix, chunks->object, out);
}

void mlx_openai_end_chunk(const mlx_openai_chunks_t *chunks, mlx_text_t *out) {
  mlx_text_puts(out, chunks->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

mlx_status_t mlx_openai_finish_choice(mlx_openai_chunks_t *chunks, size_t choice, const char *content,
                                      const char *reason, mlx_text_t *out) {
  if (chunks->finished == chunks->count) return mlx_error(MLX_INTERNAL, "choice %zu finishes twice", choice);
  const bool is_last = ++chunks->finished == chunks->count;
  mlx_text_t *to = is_last ? &chunks->last : out;
  mlx_openai_begin_chunk(chunks, to);
  mlx_text_printf(to, "{\"index\":%zu,%s,\"logprobs\":null,\"finish_reason\":\"%s\"}", choice, content,
                  reason);
  if (!is_last) mlx_openai_end_chunk(chunks, to);
  return mlx_text_finish(to);
}

mlx_status_t mlx_openai_close_chunks(mlx_openai_chunks_t *chunks, const mlx_answer_t *answer,
                                     mlx_text_t *out) {
  if (chunks->last.length) {
    mlx_text_append(out, chunks->last.data, chunks->last.length);
    if (chunks->include_usage) {
      mlx_openai_end_chunk(chunks, out);
    } else {
      mlx_text_puts(out, "],\"timings\":");
      mlx_openai_put_timings(answer, out);
      mlx_text_puts(out, "}\n\n");
    }
  }
  if (chunks->include_usage) {
    mlx_openai_begin_chunk(chunks, out);
    mlx_openai_put_tail(answer, out);
    mlx_text_puts(out, "\n\n");
  }
  mlx_text_puts(out, "data: [DONE]\n\n");
  return mlx_text_finish(out);
}
