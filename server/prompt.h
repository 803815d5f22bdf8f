// Prompt: renders and tokenizes the input of a call, and compiles its grammar. For workers.
//
// Every part is bounded: templates by steps and memory (template/template.h), tokenizing by time
// (tokenizer/tokenizer.h) and grammars by size (grammar/grammar.h).
#ifndef MLXCEL_SERVER_PROMPT_H_
#define MLXCEL_SERVER_PROMPT_H_

#include "server/call.h"
#include "server/grammars.h"
#include "server/output_format.h"
#include "server/serving.h"
#include "server/tool_memory.h"

// One prompt. For token ids of the request, |text| is NULL, unless the answer begins with it.
typedef struct mlx_input_prompt {
  char *text;
  size_t length;
  int32_t *ids;
  size_t count;
} mlx_input_prompt_t;

// All prompts of a call. Release with mlx_input_clear.
typedef struct mlx_input {
  mlx_input_prompt_t *prompts;
  size_t count;
  const mlx_output_format_t *format;              // NULL: the output is plain text
  const char *visible[MLX_OUTPUT_FORMAT_TOKENS];  // special tokens that are part of the text
  size_t visible_count;
  mlx_answer_spans_t spans;       // of a chat: remembered answers in its prompt
  uint64_t history;               // mlx_tool_memory_history of the messages, if the call has tools
  mlx_cached_grammar_t *grammar;  // NULL: none
  mlx_grammars_t *grammars;       // borrowed
} mlx_input_t;

// What preparing uses besides the call. All borrowed.
typedef struct mlx_input_tools {
  mlx_serving_t *serving;
  const char *model;  // its public name
  mlx_grammars_t *grammars;
  mlx_tool_memory_t *memory;
} mlx_input_tools_t;

// Errors begin with the JSON path of a field of the request.
mlx_status_t mlx_input_prepare(const mlx_call_t *call, const mlx_input_tools_t *tools,
                               mlx_input_t *out_input) MLX_MUST_USE;
void mlx_input_clear(mlx_input_t *input);

// Renders the messages of a chat call. Release with mlx_free and mlx_answer_spans_clear. server/splice.h
// makes tokens of both.
mlx_status_t mlx_input_render(const mlx_call_t *call, const mlx_input_tools_t *tools, char **out_text,
                              size_t *out_length, mlx_answer_spans_t *out_spans) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_PROMPT_H_
