// Answer writer: makes the HTTP response of a generating request from the output of its tasks: a stream of
// events or one JSON text.
//
// Threads: every function locks the writer. The scheduler thread adds output; the loop thread sends
// heartbeats.
#ifndef MLXCEL_SERVER_CORE_ANSWER_WRITER_H_
#define MLXCEL_SERVER_CORE_ANSWER_WRITER_H_

#include <uv.h>

#include "server/core/failure.h"
#include "server/core/prompt.h"

typedef struct mlx_answer_writer_choice mlx_answer_writer_choice_t;

typedef struct mlx_answer_writer {
  // Borrowed; they must outlive the writer.
  mlx_job_t *job;
  const mlx_api_t *api;
  const mlx_api_call_t *call;
  const mlx_prepared_prompt_t *prompt;
  // Owned.
  mlx_answer_t answer;
  mlx_answer_writer_choice_t *choices;  // [choice_count]
  size_t choice_count;
  void *stream;         // of the API; NULL before the stream begins
  mlx_text_t out;       // frames that are not written yet
  mlx_status_t status;  // the first error of an API or parser
  uv_mutex_t mutex;
  bool begun, ended;
  double written;  // time of the last write, or of the beginning
} mlx_answer_writer_t;

// |call| is prepared. Release with mlx_answer_writer_clear, also after a failure.
mlx_status_t mlx_answer_writer_initialize(mlx_job_t *job, const mlx_api_t *api, const mlx_api_call_t *call,
                                          const mlx_prepared_prompt_t *prompt,
                                          mlx_answer_writer_t *out_writer) MLX_MUST_USE;
void mlx_answer_writer_clear(mlx_answer_writer_t *writer);

// New text of a choice. Returns false if the writer has failed: the task should end.
bool mlx_answer_writer_add(mlx_answer_writer_t *writer, size_t choice, const char *text, size_t length,
                           const mlx_generation_t *generation);
// True if the request has return_progress, and this choice is the one that reports it for its prompt.
bool mlx_answer_writer_shows_progress(const mlx_answer_writer_t *writer, size_t choice);
// Adds an event that says that |done| of |total| tokens of the choice's prompt have been read.
void mlx_answer_writer_progress(mlx_answer_writer_t *writer, size_t choice, size_t done, size_t total);
// The end of a choice that did not fail.
void mlx_answer_writer_finish(mlx_answer_writer_t *writer, size_t choice, const mlx_generation_t *generation);
// Sends what was added.
void mlx_answer_writer_flush(mlx_answer_writer_t *writer);
// Sends the end of the response, after all choices have finished.
void mlx_answer_writer_close(mlx_answer_writer_t *writer);
// Ends the response with an error: an error response or, if the stream has begun, an error event. Then the
// connection is closed. An error of the writer itself takes precedence over |failure|.
void mlx_answer_writer_fail(mlx_answer_writer_t *writer, const mlx_failure_t *failure);
// Begins a stream that has not begun, or sends a heartbeat, if nothing was sent for |seconds|.
void mlx_answer_writer_beat(mlx_answer_writer_t *writer, double seconds);

#endif  // MLXCEL_SERVER_CORE_ANSWER_WRITER_H_
