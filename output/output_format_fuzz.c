// Fuzz target: a byte that selects the format and the options, and an untrusted output. Parsing it at once
// and byte by byte must give the same events.
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "output/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\"}}}}}]";

static const char *const templates[] = {"<tool_call></think>",
                                        "<tool_call><function=<parameter=",
                                        "<|python_tag|>",
                                        "[TOOL_CALLS]",
                                        "[TOOL_CALLS][ARGS][THINK]",
                                        "<|channel|><|message|><|call|>",
                                        "<｜tool▁call▁begin｜>```json</think>",
                                        "<tool_call><arg_key></think>",
                                        "<|tool_call>call:<|channel>thought",
                                        "<|START_ACTION|><|START_THINKING|>",
                                        "<minimax:tool_call>",
                                        "<|tool_call_begin|>",
                                        "plain"};
#define TEMPLATE_COUNT (sizeof templates / sizeof *templates)

// Events without the ids, and without where text is cut.
static mlx_status_t write_event(void *user, const mlx_event_t *event) {
  mlx_text_t *out = user;
  const char marks[] = {
      [MLX_EVENT_TEXT] = 't',           [MLX_EVENT_REASONING] = 'r', [MLX_EVENT_TOOL_BEGIN] = 'b',
      [MLX_EVENT_TOOL_ARGUMENTS] = 'a', [MLX_EVENT_TOOL_END] = 'e',  [MLX_EVENT_FINISH] = 'f'};
  for (size_t i = 0; i < event->length;) {
    const int character = mlx_utf8_length(event->text + i, event->length - i);
    if (character <= 0) __builtin_trap();
    for (int n = 0; n < character; ++n) {
      mlx_text_append(out, &marks[event->kind], 1);
      mlx_text_append(out, event->text + i + (size_t)n, 1);
    }
    i += (size_t)character;
  }
  if (!event->length) mlx_text_append(out, &marks[event->kind], 1);
  if (event->name) mlx_text_puts(out, event->name);
  return NULL;
}

static void parse(const mlx_output_format_t *format, const mlx_output_options_t *options, const char *text,
                  size_t length, size_t piece, mlx_text_t *out) {
  mlx_output_parser_t *parser;
  mlx_status_t status = mlx_output_parser_create(format, options, "", 0, 0, write_event, out, &parser);
  for (size_t at = 0; !status && at < length; at += piece)
    status = mlx_output_parser_add(parser, text + at, piece < length - at ? piece : length - at, NULL, 1);
  if (!status) status = mlx_output_parser_finish(parser, MLX_FINISH_STOP);
  if (status) __builtin_trap();
  mlx_output_parser_free(parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size || size > 4096) return 0;
  const mlx_output_format_t *format = mlx_output_format_find(templates[(data[0] & 15) % TEMPLATE_COUNT]);
  const mlx_output_options_t options = {.tools = tools,
                                        .tools_length = sizeof tools - 1,
                                        .stream = data[0] & 16,
                                        .one_tool_call = data[0] & 32};
  mlx_text_t whole = {0}, bytes = {0}, pieces = {0};
  parse(format, &options, (const char *)data + 1, size - 1, size, &whole);
  parse(format, &options, (const char *)data + 1, size - 1, 1, &bytes);
  parse(format, &options, (const char *)data + 1, size - 1, 5, &pieces);
  const bool same = whole.length == bytes.length && whole.length == pieces.length &&
                    !memcmp(whole.data, bytes.data, whole.length) &&
                    !memcmp(whole.data, pieces.data, whole.length);
  if (!same) __builtin_trap();
  mlx_text_clear(&whole);
  mlx_text_clear(&bytes);
  mlx_text_clear(&pieces);
  return 0;
}
