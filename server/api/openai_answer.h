// What the answers of OpenAI's endpoints have in common: errors, usage, timings, log-probabilities.
#ifndef MLXCEL_SERVER_API_OPENAI_ANSWER_H_
#define MLXCEL_SERVER_API_OPENAI_ANSWER_H_

#include "server/api/api.h"

// {"error": {...}}, the body of an error response.
void mlx_openai_put_error(const mlx_api_error_t *error, mlx_text_t *out);
// The same as the last frames of a stream.
void mlx_openai_put_stream_error(const mlx_api_error_t *error, mlx_text_t *out);

// "stop", "length" or "tool_calls".
const char *mlx_openai_finish_reason(mlx_finish_reason_t finish, bool has_tool_calls);
// The text of a token. Bytes that are no text are written as OpenAI does: "bytes:\xe2\x82".
void mlx_openai_put_token(mlx_json_writer_t *json, const char *key, const mlx_answer_logprob_t *token);
// A member whose key is the text of the token, and whose value is its log-probability.
void mlx_openai_put_token_logprob(mlx_json_writer_t *json, const mlx_answer_logprob_t *token);
// A log-probability; -9999 for minus infinity, which JSON does not have.
void mlx_openai_put_logprob(mlx_json_writer_t *json, const char *key, double logprob);
// A list of tokens with their log-probabilities, as in chat completions and responses.
void mlx_openai_put_logprobs(mlx_json_writer_t *json, const char *key, const mlx_answer_token_t *tokens,
                             size_t count);
// The same with probabilities instead of their logarithms, as in llama.cpp's "post_sampling_probs".
void mlx_openai_put_probs(mlx_json_writer_t *json, const char *key, const mlx_answer_token_t *tokens,
                          size_t count);

// The beginning of a completion, up to its list of choices. The id is |prefix|, '-' and the answer's id.
void mlx_openai_put_head(mlx_json_writer_t *json, const mlx_answer_t *answer, const char *prefix,
                         const char *object);
// The end, after that of the list.
void mlx_openai_put_usage_and_timings(mlx_json_writer_t *json, const mlx_answer_t *answer);
// Before it: llama.cpp's "__verbose" of the first choice, if the call asks for it.
void mlx_openai_put_verbose(mlx_json_writer_t *json, const mlx_api_call_t *call, const mlx_answer_t *answer);

// The end of a choice in a stream: the member for its empty delta or text, why it ended, and its token ids.
typedef struct mlx_openai_end {
  size_t choice;
  const char *key, *content, *reason;  // |content| is JSON; borrowed until the stream is closed
  mlx_finish_reason_t finish;
  const char *stop;    // the stop string, borrowed; NULL: none
  const int32_t *ids;  // borrowed for the call
  size_t id_count;
} mlx_openai_end_t;

// A stream of chunks, as chat completions and completions have it. A chunk is one frame with one choice. The
// chunk in which the last choice finishes is held back until the timings are known. With |include_usage|,
// another chunk without choices follows it. Release with mlx_openai_chunks_clear.
typedef struct mlx_openai_chunks {
  const mlx_api_call_t *call;   // borrowed
  const mlx_answer_t *answer;   // borrowed
  const char *prefix, *object;  // of mlx_openai_put_head
  bool include_usage;
  bool has_new_line;       // of the texts so far, for "__verbose"
  size_t count, finished;  // choices
  mlx_openai_end_t last;   // of the choice that finished last; .key NULL: none yet
  int32_t *last_ids;       // owned: last.ids
} mlx_openai_chunks_t;
void mlx_openai_chunks_clear(mlx_openai_chunks_t *chunks);

// Between these calls the caller writes the choice.
void mlx_openai_begin_chunk(const mlx_openai_chunks_t *chunks, mlx_json_writer_t *json);
void mlx_openai_end_chunk(const mlx_openai_chunks_t *chunks, mlx_json_writer_t *json);
// A chunk with an empty delta or text, |key| and |content| as in mlx_openai_end_t, and "prompt_progress".
void mlx_openai_put_progress_chunk(const mlx_openai_chunks_t *chunks, const char *key, const char *content,
                                   const mlx_api_progress_t *progress, mlx_text_t *out);
// The chunk in which a choice finishes.
mlx_status_t mlx_openai_finish_choice(mlx_openai_chunks_t *chunks, const mlx_openai_end_t *end,
                                      mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_openai_close_chunks(mlx_openai_chunks_t *chunks, const mlx_answer_t *answer,
                                     mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_OPENAI_ANSWER_H_
