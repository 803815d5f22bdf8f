// Answers in llama.cpp's form: those of /completion, and the member "__verbose" of OpenAI's endpoints.
#ifndef MLXCEL_SERVER_API_LLAMA_ANSWER_H_
#define MLXCEL_SERVER_API_LLAMA_ANSWER_H_

#include "server/api/api.h"

// One choice. Everything is borrowed.
typedef struct mlx_llama_result {
  const mlx_api_call_t *call;
  const mlx_answer_t *answer;         // timings
  const mlx_answer_choice_t *choice;  // of the end of a stream: without its text
  size_t index;                       // of the choice
  bool has_tokens;                    // write their ids
  bool has_new_line;
} mlx_llama_result_t;

// The member "timings": {"cache_n": ..., "prompt_n": ...}
void mlx_llama_put_timings(mlx_json_writer_t *json, const mlx_answer_t *answer);
// The members of a result, all but completion_probabilities.
void mlx_llama_put_members(mlx_json_writer_t *json, const mlx_llama_result_t *result);
// The member "__verbose", if the call asks for it.
void mlx_llama_put_verbose(mlx_json_writer_t *json, const mlx_llama_result_t *result);
// The members that are sampling options.
void mlx_llama_put_sampling(mlx_json_writer_t *json, const mlx_sampling_t *sampling);
// The member "prompt_progress".
void mlx_llama_put_progress(mlx_json_writer_t *json, const mlx_api_progress_t *progress);
// An error, whose code is the HTTP status.
void mlx_llama_write_error(const mlx_api_error_t *error, mlx_text_t *out);
bool mlx_llama_has_new_line(const char *text, size_t length);

#endif  // MLXCEL_SERVER_API_LLAMA_ANSWER_H_
