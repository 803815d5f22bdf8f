// Output parser: turns the output of a model into events: text, reasoning and tool calls.
//
// Output that the parser cannot read as a tool call is text; it is never an error.
#ifndef MLXCEL_OUTPUT_PARSER_H_
#define MLXCEL_OUTPUT_PARSER_H_

#include "output/answer.h"

typedef struct mlx_output_parser mlx_output_parser_t;

// |on_event| gets the events in order; an error that it returns is returned by the parser. |prompt| is the
// rendered prompt: if it ends inside a reasoning block, the output begins with reasoning. Text that may be
// the beginning of a tag is held back until it is decided. Without options->stream, a tool call is held back
// until it is complete, so a malformed one is text as a whole. With it, arguments are passed on as they come:
// if they turn out to be malformed, the call ends there and the rest is text. |options| are borrowed for the
// creation only. Release with mlx_output_parser_free.
typedef mlx_status_t (*mlx_on_event_t)(void *user, const mlx_event_t *event);
mlx_status_t mlx_output_parser_create(const mlx_output_format_t *format, const mlx_output_options_t *options,
                                      const char *prompt, size_t prompt_length, size_t choice,
                                      mlx_on_event_t on_event, void *user,
                                      mlx_output_parser_t **out_parser) MLX_MUST_USE;
// |text| need not end with a character. |token_count| is the number of tokens of |text|, for
// mlx_output_parser_reasoning_tokens; |tokens| may be NULL if there are no log-probabilities.
mlx_status_t mlx_output_parser_add(mlx_output_parser_t *parser, const char *text, size_t length,
                                   const mlx_answer_token_t *tokens, size_t token_count) MLX_MUST_USE;
// Ends the output: emits what was held back, TOOL_END of an open call, and FINISH.
mlx_status_t mlx_output_parser_finish(mlx_output_parser_t *parser, mlx_finish_reason_t reason) MLX_MUST_USE;
int64_t mlx_output_parser_reasoning_tokens(const mlx_output_parser_t *parser);
void mlx_output_parser_free(mlx_output_parser_t *parser);

#endif  // MLXCEL_OUTPUT_PARSER_H_
