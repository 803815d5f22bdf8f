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

#endif  // MLXCEL_SERVER_OPENAI_H_
