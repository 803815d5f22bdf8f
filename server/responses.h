// OpenAI's responses: what parsing, whole answers and streams share.
#ifndef MLXCEL_SERVER_RESPONSES_H_
#define MLXCEL_SERVER_RESPONSES_H_

#include "server/fields.h"
#include "server/shape.h"

// mlx_call_t.details of a response. JSON texts of the request that the response repeats; NULL: not given.
typedef struct mlx_responses_details {
  char *instructions, *metadata, *tools, *tool_choice, *text_format, *verbosity, *effort;
  bool has_summary;  // reasoning.summary: reasoning is sent as a summary instead of as content
} mlx_responses_details_t;

// Input items as call->messages. |instructions| is the first system message; NULL: none.
mlx_status_t mlx_responses_read_input(const mlx_place_t *input, const char *instructions,
                                      mlx_call_t *call) MLX_MUST_USE;

typedef enum mlx_response_item_kind {
  MLX_RESPONSE_NONE,
  MLX_RESPONSE_REASONING,
  MLX_RESPONSE_MESSAGE,
  MLX_RESPONSE_FUNCTION
} mlx_response_item_kind_t;

// An output item. Everything is borrowed.
typedef struct mlx_response_item {
  mlx_response_item_kind_t kind;
  size_t index;                // in the list of output items
  const char *status;          // "in_progress", "completed", "incomplete"
  const char *text;            // reasoning, text of the message, or arguments
  size_t length;               // 0 while in progress
  const char *call_id, *name;  // of a function call
  const char *logprobs;        // JSON objects, separated by commas; NULL: none
} mlx_response_item_t;

// "msg_ID_0"
void mlx_responses_put_item_id(const mlx_answer_t *answer, const mlx_response_item_t *item, mlx_text_t *out);
void mlx_responses_put_item(const mlx_call_t *call, const mlx_answer_t *answer,
                            const mlx_response_item_t *item, mlx_text_t *out);
// The content part of a message or of reasoning.
void mlx_responses_put_part(const mlx_call_t *call, const mlx_response_item_t *item, mlx_text_t *out);
// The response object. |items| is the JSON of the output items, separated by commas. |error| may be NULL.
void mlx_responses_put(const mlx_call_t *call, const mlx_answer_t *answer, const char *status,
                       const char *items, const mlx_api_error_t *error, mlx_text_t *out);
// "incomplete" if the answer was cut off at a limit, else "completed".
const char *mlx_responses_status(mlx_finish_reason_t finish);

// The functions of the shape that write answers.
mlx_status_t mlx_responses_write(const mlx_call_t *call, const mlx_answer_t *answer,
                                 mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_responses_stream_open(const mlx_call_t *call, const mlx_answer_t *answer,
                                       mlx_stream_writer_t **out_writer, mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_responses_stream_event(mlx_stream_writer_t *writer, const mlx_event_t *event,
                                        mlx_text_t *out) MLX_MUST_USE;
mlx_status_t mlx_responses_stream_close(mlx_stream_writer_t *writer, const mlx_answer_t *answer,
                                        mlx_text_t *out) MLX_MUST_USE;
void mlx_responses_stream_error(mlx_stream_writer_t *writer, const mlx_api_error_t *error, mlx_text_t *out);
void mlx_responses_stream_free(mlx_stream_writer_t *writer);

#endif  // MLXCEL_SERVER_RESPONSES_H_
