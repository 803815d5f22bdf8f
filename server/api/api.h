// API: one generating endpoint of OpenAI's, Anthropic's or Ollama's API, as constant data. It parses a
// request body into a call, and writes the answer as one JSON text or as a stream. It knows neither HTTP nor
// the scheduler.
//
// Errors of parse have code MLX_INVALID_INPUT (400), MLX_UNSUPPORTED (400: a field that is not supported) or
// MLX_NOT_FOUND (404). The message begins with the JSON path of the field: "messages[2].content: expected a
// string". mlx_api_error_t carries the path for the API's error object.
#ifndef MLXCEL_SERVER_API_API_H_
#define MLXCEL_SERVER_API_API_H_

#include "output/answer.h"
#include "server/api/call.h"

// An error as clients see it.
typedef struct mlx_api_error {
  int http_status;      // 400, 401, 404, 413, 429, 500, 503
  const char *type;     // OpenAI's: "invalid_request_error", "exceed_context_size_error", "server_error", ...
  const char *message;  // plain English, with the hint
  const char *param;    // JSON path; NULL: none
  const char *code;     // NULL: none
  int64_t prompt_tokens, context;  // of exceed_context_size_error; else 0
} mlx_api_error_t;

// How much of a prompt is read.
typedef struct mlx_api_progress {
  size_t choice;
  int64_t total, cached, processed;  // tokens; |processed| includes |cached|
  double seconds;                    // since its first step
} mlx_api_progress_t;

typedef struct mlx_api {
  const char *stream_type;  // content type of a stream: "application/x-ndjson"
  // |query| is the raw query of the URL. The call is initialized by mlx_api_call_initialize.
  mlx_status_t (*parse)(const char *body, size_t length, const char *query, mlx_api_call_t *inout_call);
  void (*free_details)(void *details);  // NULL is fine
  // Optional: appends what a model with |context| positions limits: "options.num_ctx to 4096".
  void (*note_context)(const mlx_api_call_t *call, int64_t context, mlx_text_t *note);
  // Optional: writes the answer to a call that only loads the model. Returns false if the call generates.
  bool (*write_load)(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out);
  // The whole answer.
  mlx_status_t (*write)(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out);
  // A stream, whose state has |stream_size| bytes. mlx_api_stream_open makes it. |answer| has the id, the
  // model's name and the time from the beginning, and usage at the end. Each function appends complete frames
  // to |out|, or nothing.
  size_t stream_size;
  mlx_status_t (*stream_open)(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                              mlx_text_t *out);
  mlx_status_t (*stream_event)(void *stream, const mlx_event_t *event, mlx_text_t *out);
  // Optional: for calls with return_progress.
  void (*stream_progress)(void *stream, const mlx_api_progress_t *progress, mlx_text_t *out);
  mlx_status_t (*stream_close)(void *stream, const mlx_answer_t *answer, mlx_text_t *out);
  void (*stream_error)(void *stream, const mlx_api_error_t *error, mlx_text_t *out);
  void (*stream_clear)(void *stream);                            // releases what the state owns; may be NULL
  const char *heartbeat;                                         // a frame that clients ignore; NULL: none
  void (*error)(const mlx_api_error_t *error, mlx_text_t *out);  // the body of an error response
  const struct mlx_field *fields;                                // of the request (server/api/fields.h)
} mlx_api_t;

extern const mlx_api_t mlx_api_chat;              // POST /v1/chat/completions
extern const mlx_api_t mlx_api_completion;        // POST /v1/completions
extern const mlx_api_t mlx_api_responses;         // POST /v1/responses
extern const mlx_api_t mlx_api_messages;          // POST /v1/messages (Anthropic)
extern const mlx_api_t mlx_api_llama_completion;  // POST /completion (llama.cpp)
extern const mlx_api_t mlx_api_llama_infill;      // POST /infill (llama.cpp)
extern const mlx_api_t mlx_api_ollama_chat;       // POST /api/chat
extern const mlx_api_t mlx_api_ollama_generate;   // POST /api/generate

// Begins a stream. |call| and |answer| must outlive it. Release with mlx_api_stream_free, also after a
// failure.
mlx_status_t mlx_api_stream_open(const mlx_api_t *api, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                 void **out_stream, mlx_text_t *out) MLX_MUST_USE;
void mlx_api_stream_free(const mlx_api_t *api, void *stream);  // NULL is fine

// The JSON path at the start of a parse error's message, for mlx_api_error_t.param: the text before ": ", or
// "" if the message has none. Writes at most |size| bytes.
void mlx_api_error_path(const char *message, char *out_path, size_t size);

#endif  // MLXCEL_SERVER_API_API_H_
