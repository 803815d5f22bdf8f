// OpenAI's responses: what parsing, whole answers and streams share.
#ifndef MLXCEL_SERVER_API_OPENAI_RESPONSES_H_
#define MLXCEL_SERVER_API_OPENAI_RESPONSES_H_

#include "server/api/api.h"
#include "server/api/fields.h"

// mlx_api_call_t.details of a response. JSON texts of the request that the response repeats; NULL: not given.
typedef struct mlx_responses_details {
  char *instructions, *metadata, *tools, *tool_choice, *text_format, *verbosity, *effort, *previous;
  mlx_text_t namespaced;  // "NAMESPACE NAME\n" of each function of a namespace
  mlx_text_t items;       // JSON objects of the input and of earlier responses, with commas; only if |store|
  bool store;             // keep the response in call->stored
  bool has_summary;       // reasoning.summary: reasoning is sent as a summary instead of as content
} mlx_responses_details_t;

// Input items as call->messages. |instructions| is the first system message; NULL: none. |history| is the
// list of items before them; its value may be NULL.
mlx_status_t mlx_responses_read_input(const mlx_place_t *history, const mlx_place_t *input,
                                      const char *instructions, mlx_api_call_t *call) MLX_MUST_USE;
// Appends the input's items as JSON objects, separated by commas, to |items|. Texts become lists of parts.
mlx_status_t mlx_responses_put_input(const mlx_place_t *input, mlx_text_t *items) MLX_MUST_USE;
// After a response: stores it, if the call asks for that. |items| is the JSON of its output; NULL: none.
mlx_status_t mlx_responses_store(const mlx_api_call_t *call, const mlx_answer_t *answer, const char *status,
                                 const char *items) MLX_MUST_USE;

typedef enum mlx_responses_item_kind {
  MLX_RESPONSES_NONE,
  MLX_RESPONSES_REASONING,
  MLX_RESPONSES_MESSAGE,
  MLX_RESPONSES_FUNCTION
} mlx_responses_item_kind_t;

// An output item. Everything is borrowed.
typedef struct mlx_responses_item {
  mlx_responses_item_kind_t kind;
  size_t index;                // in the list of output items
  const char *status;          // "in_progress", "completed", "incomplete"
  const char *text;            // reasoning, text of the message, or arguments
  size_t length;               // 0 while in progress
  const char *call_id, *name;  // of a function call
  const char *logprobs;        // JSON objects, separated by commas; NULL: none
} mlx_responses_item_t;

// "msg_ID_0"
void mlx_responses_put_item_id(mlx_json_writer_t *json, const char *key, const mlx_answer_t *answer,
                               const mlx_responses_item_t *item);
void mlx_responses_put_item(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                            const mlx_answer_t *answer, const mlx_responses_item_t *item);
// The content part of a message or of reasoning.
void mlx_responses_put_part(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                            const mlx_responses_item_t *item);
// JSON objects, separated by commas, as a list. |objects| may be NULL: the list is empty.
void mlx_responses_put_list(mlx_json_writer_t *json, const char *key, const char *objects);
// The response object. |items| is the JSON of the output items, separated by commas. |error| may be NULL.
void mlx_responses_put(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                       const mlx_answer_t *answer, const char *status, const char *items,
                       const mlx_api_error_t *error);
// "incomplete" if the answer was cut off at a limit, else "completed".
const char *mlx_responses_status(mlx_finish_reason_t finish);

// The state of a stream.
typedef struct mlx_responses_stream {
  const mlx_api_call_t *call;
  const mlx_answer_t *answer;
  int64_t sequence;                // number of the next event
  mlx_responses_item_kind_t kind;  // of the open item; NONE: no item is open
  size_t index;                    // of the open or the next item
  mlx_text_t text;                 // of the open item
  mlx_text_t logprobs;             // of the open message: JSON objects, separated by commas
  char *call_id, *name;            // of the open function call
  mlx_text_t items;                // JSON of the items that are done, separated by commas
  mlx_finish_reason_t finish;
} mlx_responses_stream_t;

// The functions of the API that write answers. |stream| is an mlx_responses_stream_t.
mlx_status_t mlx_responses_write(const mlx_api_call_t *call, const mlx_answer_t *answer,
                                 mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_responses_stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                       mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_responses_stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_responses_stream_close(void *stream, const mlx_answer_t *answer,
                                        mlx_text_t *out) MLX_MUST_USE;
void mlx_responses_stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out);
void mlx_responses_stream_clear(void *stream);

#endif  // MLXCEL_SERVER_API_OPENAI_RESPONSES_H_
