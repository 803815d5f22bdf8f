// Output format: how a model family writes reasoning and tool calls in its output, and the grammar that
// constrains an output to what the caller asks for. output/parser.h reads the output.
//
// The family is found from the chat template's source. A format is constant data: any thread may use it.
#ifndef MLXCEL_OUTPUT_OUTPUT_FORMAT_H_
#define MLXCEL_OUTPUT_OUTPUT_FORMAT_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mlx_finish_reason {
  MLX_FINISH_STOP,       // an end-of-text token, a stop string, or the grammar allows no further text
  MLX_FINISH_LENGTH,     // max_tokens
  MLX_FINISH_CONTEXT,    // the context is full
  MLX_FINISH_CANCELLED,  // on_text returned false, or mlx_request_cancel
  MLX_FINISH_ERROR       // the request failed; only requests of a scheduler end this way
} mlx_finish_reason_t;

typedef enum mlx_answer_format {
  MLX_FORMAT_TEXT,         // any text
  MLX_FORMAT_JSON,         // any JSON object
  MLX_FORMAT_JSON_SCHEMA,  // |format_text| is a JSON schema
  MLX_FORMAT_GBNF          // |format_text| is a grammar
} mlx_answer_format_t;

typedef enum mlx_tool_choice {
  MLX_TOOLS_AUTO,      // the model decides
  MLX_TOOLS_NONE,      // tools are rendered, but the output is not parsed for calls
  MLX_TOOLS_REQUIRED,  // at least one call: the output is constrained to one
  MLX_TOOLS_NAMED      // a call of |tool_name|
} mlx_tool_choice_t;

// What an output may contain. Set to 0 before its fields. Everything is borrowed for the call.
typedef struct mlx_output_options {
  const char *tools;  // a JSON list in OpenAI's form, functions only; NULL: none
  size_t tools_length;
  mlx_tool_choice_t tool_choice;
  const char *tool_name;
  bool one_tool_call;  // at most one call
  mlx_answer_format_t format;
  const char *format_text;
  size_t format_length;
  const char *format_path;  // JSON path of |format_text| in the request, for errors; NULL: "response_format"
  bool continue_final;      // the last message of the prompt is the beginning of the answer
  // Where keywords of schemas that cannot be enforced are noted, which are annotations then; borrowed. NULL:
  // they are errors.
  struct mlx_text *annotations;
  bool stream;  // pass on the arguments of tool calls as they come (mlx_output_parser_create)
} mlx_output_options_t;

typedef struct mlx_output_format mlx_output_format_t;  // constant data, never released

// The format of a chat template (mlx_chat_source). Never NULL: a format without tool calls fits every
// template.
const mlx_output_format_t *mlx_output_format_find(const char *template_source);
const char *mlx_output_format_name(const mlx_output_format_t *format);  // "hermes", "llama3", "plain", ...

// True if models of this format may write reasoning before the answer.
bool mlx_output_format_reasons(const mlx_output_format_t *format);
// The tags of the format that are special tokens in some models. Reading the output needs them in the text:
// pass them as mlx_generate_options_t.visible_tokens. |out_tokens| has room for MLX_OUTPUT_FORMAT_TOKENS.
// Returns how many there are; the texts are constants.
#define MLX_OUTPUT_FORMAT_TOKENS 16
size_t mlx_output_format_tokens(const mlx_output_format_t *format, const char **out_tokens);

// A grammar (GBNF text) that constrains the whole output to what |options| ask for: their format, or tool
// calls that match the tools' parameter schemas (tool_choice required or named). Reasoning before it is
// allowed if the format has reasoning and |prompt| (the rendered prompt) does not forbid it. *out_gbnf is
// NULL if nothing is constrained. Errors name the JSON path of the request. Release with mlx_free.
mlx_status_t mlx_output_format_grammar(const mlx_output_format_t *format, const mlx_output_options_t *options,
                                       const char *prompt, size_t prompt_length, char **out_gbnf,
                                       size_t *out_length) MLX_MUST_USE;

// Message reader: reads the output of a chat and separates the answer from reasoning and tool calls. Output
// that it cannot read as a tool call is text of the answer; it is never an error. One thread at a time.
typedef struct mlx_message_reader mlx_message_reader_t;

// |prompt| is the rendered prompt: if it ends inside a reasoning block, the output begins with reasoning.
// Release with mlx_message_reader_free.
mlx_status_t mlx_message_reader_create(const mlx_output_format_t *format, const mlx_output_options_t *options,
                                       const char *prompt, size_t prompt_length,
                                       mlx_message_reader_t **out_reader) MLX_MUST_USE;
// Adds output. *out_text is the text that it adds to the answer: complete characters, possibly none. Text
// that may be the beginning of a tag is held back. Borrowed until the next call.
mlx_status_t mlx_message_reader_add(mlx_message_reader_t *reader, const char *text, size_t length,
                                    const char **out_text, size_t *out_length) MLX_MUST_USE;
// Ends the output. *out_json is the whole message in OpenAI's form: {"role": "assistant", "content": text or
// null, "reasoning_content": text, "tool_calls": [{"id": ..., "type": "function", "function": {"name": ...,
// "arguments": JSON text}}]}, without the members that are empty. Release with mlx_free.
mlx_status_t mlx_message_reader_finish(mlx_message_reader_t *reader, char **out_json,
                                       size_t *out_length) MLX_MUST_USE;
void mlx_message_reader_free(mlx_message_reader_t *reader);  // NULL is fine

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_OUTPUT_OUTPUT_FORMAT_H_
