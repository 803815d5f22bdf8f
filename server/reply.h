// Reply: turns the output of a call's tasks into the HTTP response: a stream of events or one JSON text.
//
// Threads: every function locks the reply. The scheduler thread adds output; the loop thread sends
// heartbeats.
#ifndef MLXCEL_SERVER_REPLY_H_
#define MLXCEL_SERVER_REPLY_H_

#include <uv.h>

#include "server/failure.h"
#include "server/prompt.h"
#include "server/record.h"

typedef struct mlx_reply_choice mlx_reply_choice_t;

// What a reply is made from. Everything is borrowed and must outlive the reply.
typedef struct mlx_reply_parts {
  mlx_exchange_t *exchange;
  const mlx_shape_t *shape;
  const mlx_call_t *call;
  const mlx_engine_t *engine;
  const char *model;  // the public name
  const mlx_input_t *input;
  mlx_tool_memory_t *memory;
  mlx_record_t *record;
} mlx_reply_parts_t;

typedef struct mlx_reply {
  mlx_reply_parts_t parts;
  mlx_answer_t answer;
  mlx_reply_choice_t *choices;  // [choice_count] owned
  size_t choice_count;
  mlx_stream_writer_t *writer;  // owned; NULL before the stream begins
  mlx_text_t out;               // frames that are not written yet
  mlx_status_t status;          // owned: the first error of a shape or parser
  uv_mutex_t mutex;
  bool begun, ended;
  double written;  // time of the last write, or of the beginning
} mlx_reply_t;

// Release with mlx_reply_clear, also after a failure.
mlx_status_t mlx_reply_initialize(const mlx_reply_parts_t *parts, mlx_reply_t *out_reply) MLX_MUST_USE;
void mlx_reply_clear(mlx_reply_t *reply);

// New text of a choice. Returns false if the reply has failed: the task should end.
bool mlx_reply_add(mlx_reply_t *reply, size_t choice, const char *text, size_t length,
                   const mlx_generation_t *generation);
// The end of a choice that did not fail.
void mlx_reply_finish(mlx_reply_t *reply, size_t choice, const mlx_generation_t *generation);
// Sends what was added.
void mlx_reply_flush(mlx_reply_t *reply);
// Sends the end of the response, after all choices have finished.
void mlx_reply_close(mlx_reply_t *reply);
// Ends the response with an error: an error response or, if the stream has begun, an error event. Then the
// connection is closed. An error of the reply itself takes precedence over |failure|.
void mlx_reply_fail(mlx_reply_t *reply, const mlx_failure_t *failure);
// Begins a stream that has not begun, or sends a heartbeat, if nothing was sent for |seconds|.
void mlx_reply_beat(mlx_reply_t *reply, double seconds);

#endif  // MLXCEL_SERVER_REPLY_H_
