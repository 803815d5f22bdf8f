// What the answers of OpenAI's endpoints have in common: errors, usage, timings, log-probabilities.
#ifndef MLXCEL_SERVER_OPENAI_H_
#define MLXCEL_SERVER_OPENAI_H_

#include "server/shape.h"

// {"error": {...}}, the body of an error response.
void mlx_openai_put_error(const mlx_api_error_t *error, mlx_text_t *out);
// The same as the last frames of a stream.
void mlx_openai_put_stream_error(const mlx_api_error_t *error, mlx_text_t *out);

// "stop", "length" or "tool_calls".
const char *mlx_openai_finish_reason(mlx_finish_reason_t finish, bool has_tool_calls);
// A JSON string; "null" for NULL.
void mlx_openai_put_string(const char *text, mlx_text_t *out);
// {"prompt_tokens": ...}
void mlx_openai_put_usage(const mlx_answer_t *answer, mlx_text_t *out);
// llama.cpp's {"cache_n": ..., "prompt_n": ...}
void mlx_openai_put_timings(const mlx_answer_t *answer, mlx_text_t *out);
// The text of a token as a JSON string. Bytes that are no text are written as OpenAI does: "bytes:\xe2\x82".
void mlx_openai_put_token(const mlx_answer_logprob_t *token, mlx_text_t *out);
// A log-probability; -9999 for minus infinity, which JSON does not have.
void mlx_openai_put_logprob(double logprob, mlx_text_t *out);
// A list of tokens with their log-probabilities, as in chat completions and responses.
void mlx_openai_put_logprobs(const mlx_answer_token_t *tokens, size_t count, mlx_text_t *out);

// The beginning of a completion, up to its list of choices, and the end, with usage and timings. The id is
// |prefix|, '-' and the answer's id.
void mlx_openai_put_head(const mlx_answer_t *answer, const char *prefix, const char *object, mlx_text_t *out);
void mlx_openai_put_tail(const mlx_answer_t *answer, mlx_text_t *out);

// A stream of chunks, as chat completions and completions have it. A chunk is one frame with one choice. The
// chunk in which the last choice finishes is held back until the timings are known. With |include_usage|,
// another chunk without choices follows it.
typedef struct mlx_openai_chunks {
  const mlx_answer_t *answer;   // borrowed
  const char *prefix, *object;  // of mlx_openai_put_head
  bool include_usage;
  size_t count, finished;  // choices
  mlx_text_t last;
} mlx_openai_chunks_t;

// Between these calls the caller writes the choice.
void mlx_openai_begin_chunk(const mlx_openai_chunks_t *chunks, mlx_text_t *out);
void mlx_openai_end_chunk(const mlx_openai_chunks_t *chunks, mlx_text_t *out);
// The chunk in which a choice finishes. |content| is its empty delta or text.
mlx_status_t mlx_openai_finish_choice(mlx_openai_chunks_t *chunks, size_t choice, const char *content,
                                      const char *reason, mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_openai_close_chunks(mlx_openai_chunks_t *chunks, const mlx_answer_t *answer,
                                     mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_OPENAI_H_
