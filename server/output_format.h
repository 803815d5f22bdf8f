// Output format: how a model family writes reasoning and tool calls in its output, and the parser that turns
// the output into events.
//
// The family is found from the chat template's source. Output that the parser cannot read as a tool call is
// text; it is never an error.
#ifndef MLXCEL_SERVER_OUTPUT_FORMAT_H_
#define MLXCEL_SERVER_OUTPUT_FORMAT_H_

#include "server/answer.h"
#include "server/call.h"

typedef struct mlx_output_format mlx_output_format_t;  // constant data, never released
typedef struct mlx_output_parser mlx_output_parser_t;

// The format of a chat template. Never NULL: a format without tool calls fits every template.
const mlx_output_format_t *mlx_output_format_find(const char *template_source);
const char *mlx_output_format_name(const mlx_output_format_t *format);  // "hermes", "llama3", "plain", ...

// True if models of this format may write reasoning before the answer.
bool mlx_output_format_reasons(const mlx_output_format_t *format);
// The tags of the format that are special tokens in some models. The parser needs them in the text: pass them
// as mlx_generate_options_t.visible_tokens. Returns how many there are; the texts are constants.
#define MLX_OUTPUT_FORMAT_TOKENS 16
size_t mlx_output_format_tokens(const mlx_output_format_t *format,
                                const char *out_tokens[MLX_OUTPUT_FORMAT_TOKENS]);

// A grammar (GBNF text) that constrains the whole output to what |call| asks for: its format, or tool calls
// that match the tools' parameter schemas (tool_choice required or named). Reasoning before it is allowed if
// the format has reasoning and |prompt| (the rendered prompt) does not forbid it. *out_gbnf is NULL if
// nothing is constrained. Errors name the JSON path of the request. Release with mlx_free.
mlx_status_t mlx_output_format_grammar(const mlx_output_format_t *format, const mlx_call_t *call,
                                       const char *prompt, size_t prompt_length, char **out_gbnf,
                                       size_t *out_length) MLX_MUST_USE;

// |on_event| gets the events in order; an error that it returns is returned by the parser. |prompt| is the
// rendered prompt: if it ends inside a reasoning block, the output begins with reasoning. Text that may be
// the beginning of a tag is held back until it is decided. Without call->stream, a tool call is held back
// until it is complete, so a malformed one is text as a whole. With it, arguments are passed on as they come:
// if they turn out to be malformed, the call ends there and the rest is text. |call| is borrowed for the
// creation only. Release with mlx_output_parser_free.
typedef mlx_status_t (*mlx_on_event_t)(void *user, const mlx_event_t *event);
mlx_status_t mlx_output_parser_create(const mlx_output_format_t *format, const mlx_call_t *call,
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

#endif  // MLXCEL_SERVER_OUTPUT_FORMAT_H_
