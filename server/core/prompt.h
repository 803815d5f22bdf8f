// Prompt: renders and tokenizes the input of a call, and compiles its grammar. For workers.
//
// Every part is bounded: templates by steps and memory (template/template.h), tokenizing by time
// (tokenizer/tokenizer.h) and grammars by size (grammar/grammar.h).
#ifndef MLXCEL_SERVER_CORE_PROMPT_H_
#define MLXCEL_SERVER_CORE_PROMPT_H_

#include "server/core/job.h"

// What preparing a call makes besides its prompts. Release with mlx_prepared_prompt_clear.
typedef struct mlx_prepared_prompt {
  const mlx_output_format_t *format;              // NULL: the output is plain text
  const char *visible[MLX_OUTPUT_FORMAT_TOKENS];  // special tokens that are part of the text
  size_t visible_count;
  mlx_answer_spans_t spans;       // of a chat: remembered answers in its prompt
  uint64_t history;               // mlx_tool_memory_history of the messages, if the call has tools
  mlx_cached_grammar_t *grammar;  // NULL: none
  mlx_grammars_t *grammars;       // borrowed
} mlx_prepared_prompt_t;

// In the run stage of |job|: makes tokens of the prompts of |call|, of a chat its only one. Errors begin with
// the JSON path of a field of the request. If a prompt has more tokens than the context, it is the last that
// is prepared, and there is no grammar: it has no ids, and |id_count| is at most their number.
mlx_status_t mlx_prompt_prepare(const mlx_job_t *job, mlx_api_call_t *call,
                                mlx_prepared_prompt_t *out_prompt) MLX_MUST_USE;
void mlx_prepared_prompt_clear(mlx_prepared_prompt_t *prompt);

// Renders the messages of a chat call. Release with mlx_free and mlx_answer_spans_clear. tools/splice.h makes
// tokens of both.
mlx_status_t mlx_prompt_render(const mlx_job_t *job, const mlx_api_call_t *call, char **out_text,
                               size_t *out_length, mlx_answer_spans_t *out_spans) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_PROMPT_H_
