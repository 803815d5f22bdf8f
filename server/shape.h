// Shape: one generating endpoint of an API, as constant data: it parses a request body into a call, and
// writes the answer as one JSON text or as a stream. Shapes know neither HTTP nor the scheduler.
//
// Errors of parse have code MLX_INVALID_INPUT (400), MLX_UNSUPPORTED (400: a field that is not supported) or
// MLX_NOT_FOUND (404). The message begins with the JSON path of the field: "messages[2].content: expected a
// string". mlx_api_error_t carries the path for the API's error object.
#ifndef MLXCEL_SERVER_SHAPE_H_
#define MLXCEL_SERVER_SHAPE_H_

#include "server/answer.h"
#include "server/call.h"

// An error as clients see it.
typedef struct mlx_api_error {
  int http_status;      // 400, 401, 404, 413, 429, 500, 503
  const char *type;     // OpenAI's: "invalid_request_error", "exceed_context_size_error", "server_error", ...
  const char *message;  // plain English, with the hint
  const char *param;    // JSON path; NULL: none
  const char *code;     // NULL: none
  int64_t prompt_tokens, context;  // of exceed_context_size_error; else 0
} mlx_api_error_t;

typedef struct mlx_stream_writer mlx_stream_writer_t;  // a shape's state of one streamed answer

typedef struct mlx_shape {
  const char *stream_type;  // content type of a stream: "application/x-ndjson"
  // |query| is the raw query of the URL. The call is initialized by mlx_call_initialize.
  mlx_status_t (*parse)(const char *body, size_t length, const char *query, mlx_call_t *inout_call);
  void (*free_details)(void *details);  // NULL is fine
  // The whole answer.
  mlx_status_t (*write)(const mlx_call_t *call, const mlx_answer_t *answer, mlx_text_t *out);
  // A stream. |answer| has the id, the model's name and the time from the beginning, and usage at the end.
  // |call| and |answer| must outlive the writer. Each function appends complete frames to |out|, or nothing.
  mlx_status_t (*stream_open)(const mlx_call_t *call, const mlx_answer_t *answer,
                              mlx_stream_writer_t **out_writer, mlx_text_t *out);
  mlx_status_t (*stream_event)(mlx_stream_writer_t *writer, const mlx_event_t *event, mlx_text_t *out);
  mlx_status_t (*stream_close)(mlx_stream_writer_t *writer, const mlx_answer_t *answer, mlx_text_t *out);
  void (*stream_error)(mlx_stream_writer_t *writer, const mlx_api_error_t *error, mlx_text_t *out);
  void (*stream_free)(mlx_stream_writer_t *writer);              // NULL is fine
  const char *heartbeat;                                         // a frame that clients ignore; NULL: none
  void (*error)(const mlx_api_error_t *error, mlx_text_t *out);  // the body of an error response
  const struct mlx_field *fields;                                // of the request (server/fields.h)
} mlx_shape_t;

extern const mlx_shape_t mlx_shape_chat;             // POST /v1/chat/completions
extern const mlx_shape_t mlx_shape_completion;       // POST /v1/completions
extern const mlx_shape_t mlx_shape_responses;        // POST /v1/responses
extern const mlx_shape_t mlx_shape_messages;         // POST /v1/messages (Anthropic)
extern const mlx_shape_t mlx_shape_ollama_chat;      // POST /api/chat
extern const mlx_shape_t mlx_shape_ollama_generate;  // POST /api/generate

// The JSON path at the start of a parse error's message, for mlx_api_error_t.param: the text before ": ", or
// "" if the message has none. Writes at most |size| bytes.
void mlx_shape_error_path(const char *message, char *out_path, size_t size);

#endif  // MLXCEL_SERVER_SHAPE_H_
