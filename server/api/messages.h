// Messages: the list of chat messages of a call (mlx_api_call_t.messages), as it is written. For APIs only.
//
// A message is written as {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name",
// ...}. The content is always a string: text parts are joined by a newline, and null is "".
#ifndef MLXCEL_SERVER_API_MESSAGES_H_
#define MLXCEL_SERVER_API_MESSAGES_H_

#include "base/json_writer.h"
#include "server/api/fields.h"

// A message that is being built. Zero-initialize; release with mlx_message_clear.
typedef struct mlx_message {
  const char *role;  // borrowed
  mlx_text_t content;
  mlx_text_t reasoning;      // "": none
  mlx_text_t tool_calls;     // JSON objects, separated by commas
  const char *tool_call_id;  // borrowed; NULL: none
  mlx_text_t others;         // further members of the object: ,"name":"bob"
} mlx_message_t;

void mlx_message_clear(mlx_message_t *message);           // releases everything and zeroes the message
bool mlx_message_is_empty(const mlx_message_t *message);  // no content, reasoning or tool call

// Appends a text, or the texts of a list of parts, to |out|. A missing value and null append nothing. A part
// is {"type": "text", "text": ...}; its type may also be input_text, output_text, reasoning_text,
// summary_text or refusal. Parts of any other type are MLX_UNSUPPORTED: the models read text.
mlx_status_t mlx_message_put_content(const mlx_place_t *content, mlx_text_t *out) MLX_MUST_USE;
// Appends a tool call. |arguments| is a string or an object; NULL means {}. A string that is a JSON object
// becomes that object, so that templates can read its members; any other string is kept.
mlx_status_t mlx_message_add_tool_call(mlx_message_t *message, const char *id, const char *name,
                                       yyjson_val *arguments) MLX_MUST_USE;
// Appends a member to |others|, as JSON.
mlx_status_t mlx_message_add_member(mlx_message_t *message, const char *key, size_t key_length,
                                    yyjson_val *value) MLX_MUST_USE;
// Appends the message to |list|, which is "" at first. mlx_messages_finish moves the list into the call.
mlx_status_t mlx_messages_add(mlx_text_t *list, const mlx_message_t *message) MLX_MUST_USE;
mlx_status_t mlx_messages_finish(mlx_text_t *list, mlx_api_call_t *call) MLX_MUST_USE;

// The member "parameters" of a tool: |schema|, or a schema of an object without properties if it is NULL.
mlx_status_t mlx_tool_put_parameters(mlx_json_writer_t *json, yyjson_val *schema) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_MESSAGES_H_
