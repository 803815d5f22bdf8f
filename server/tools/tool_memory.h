// Tool memory: the exact text of answers with tool calls, by the id of their first call.
//
// Clients send a tool call back as JSON. The template writes that JSON in its own way, which often differs
// from what the model wrote: spaces, key order, reasoning. Then the next prompt does not begin with the last
// prompt and its answer, and the KV cache of both is lost. The memory puts the model's own text into the
// prompt instead. A grammar may have forced other tokens than the tokenizer gives for that text, so the
// memory has the tokens too.
//
// Ownership: release with mlx_tool_memory_free. Threads: any thread, at the same time.
#ifndef MLXCEL_SERVER_TOOLS_TOOL_MEMORY_H_
#define MLXCEL_SERVER_TOOLS_TOOL_MEMORY_H_

#include "runtime/mlxcel.h"

typedef struct mlx_tool_memory mlx_tool_memory_t;

// Keeps at most about |max_bytes|; the answers that were not used for the longest time are dropped.
mlx_status_t mlx_tool_memory_create(size_t max_bytes, mlx_tool_memory_t **out_memory) MLX_MUST_USE;
void mlx_tool_memory_free(mlx_tool_memory_t *memory);  // NULL is fine

// An answer with tool calls. Everything is borrowed for the call.
typedef struct mlx_remembered {
  const char *model;
  uint64_t history;  // mlx_tool_memory_history of the messages that |prompt| was rendered from
  const char *prompt;
  size_t prompt_length;
  const char *raw;  // all text that the model wrote, with the special tokens that are part of the text
  size_t raw_length;
  const char *const *ids;  // of the tool calls
  size_t id_count;
  const int32_t *tokens;  // of |raw|, without an end-of-text token
  size_t token_count;
} mlx_remembered_t;
// The hash of a JSON list of messages. Parses it: not for the scheduler thread.
mlx_status_t mlx_tool_memory_history(const char *messages, size_t length, uint64_t *out_history) MLX_MUST_USE;
mlx_status_t mlx_tool_memory_remember(mlx_tool_memory_t *memory, const mlx_remembered_t *answer) MLX_MUST_USE;

// The remembered answers in a rendered prompt, in the order of the text. Release with mlx_answer_spans_clear.
typedef struct mlx_answer_span {
  size_t at, length;  // bytes of the prompt's text
  int32_t *tokens;    // owned
  size_t token_count;
} mlx_answer_span_t;
typedef struct mlx_answer_spans {
  mlx_answer_span_t *items;  // owned
  size_t count;
} mlx_answer_spans_t;
void mlx_answer_spans_clear(mlx_answer_spans_t *spans);

// mlx_chat_render, with the remembered text of each answer whose tool calls are remembered and whose earlier
// messages are the same as when it was made. The prompt then begins with the prompt and the text of the last
// of them. Falls back to mlx_chat_render if the template does not allow that. Ids that the template refuses
// are replaced (tool_ids.h). |memory| may be NULL. |out_spans| has the answers that were remembered. Release
// *out_text with mlx_chat_free_text.
mlx_status_t mlx_tool_memory_render(mlx_tool_memory_t *memory, const char *model, const mlx_chat_t *chat,
                                    const mlx_output_format_t *format, const char *messages, size_t length,
                                    const mlx_chat_options_t *options, char **out_text, size_t *out_length,
                                    mlx_answer_spans_t *out_spans) MLX_MUST_USE;

size_t mlx_tool_memory_bytes(mlx_tool_memory_t *memory);  // used now, for metrics

#endif  // MLXCEL_SERVER_TOOLS_TOOL_MEMORY_H_
