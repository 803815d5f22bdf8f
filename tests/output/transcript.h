// A transcript of what a parser of outputs found: [text]<reasoning>NAME(arguments). The output is given to
// the parser in pieces, and each way to cut it must give the same transcript.
#ifndef MLXCEL_TESTS_OUTPUT_TRANSCRIPT_H_
#define MLXCEL_TESTS_OUTPUT_TRANSCRIPT_H_

#include "output/parser.h"
#include "tests/support/check.h"
#include "tests/support/random_numbers.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"d\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"metric\":{\"type\":\"boolean\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},"
    "\"required\":[\"city\"],\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{}}}}]";

static uint64_t random_state = 19;

typedef struct transcript {
  mlx_text_t text;
  mlx_event_kind_t last;
  bool open, finished;
  size_t calls, tokens;
  char ids[16][40];
} transcript_t;

static void close_part(transcript_t *t) {
  if (t->open) mlx_text_puts(&t->text, t->last == MLX_EVENT_TEXT ? "]" : ">");
  t->open = false;
}

static mlx_status_t write_event(void *user, const mlx_event_t *event) {
  transcript_t *t = user;
  CHECK(!t->finished);
  CHECK_INT(event->choice, 3);
  for (size_t i = 0; i < event->length;) {
    const int character = mlx_utf8_length(event->text + i, event->length - i);
    CHECK(character > 0);
    i += (size_t)character;
  }
  t->tokens += event->token_count;
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING:
      CHECK(event->length);
      if (!t->open || t->last != event->kind) {
        close_part(t);
        mlx_text_puts(&t->text, event->kind == MLX_EVENT_TEXT ? "[" : "<");
        t->open = true;
      }
      mlx_text_append(&t->text, event->text, event->length);
      break;
    case MLX_EVENT_TOOL_BEGIN:
      close_part(t);
      CHECK_INT(event->tool, t->calls);
      CHECK(t->calls < 16 && strlen(event->id) < 40);
      strcpy(t->ids[t->calls++], event->id);
      mlx_text_printf(&t->text, "%s(", event->name);
      break;
    case MLX_EVENT_TOOL_ARGUMENTS:
      CHECK_INT(event->tool, t->calls - 1);
      mlx_text_append(&t->text, event->text, event->length);
      break;
    case MLX_EVENT_TOOL_END:
      CHECK_INT(event->tool, t->calls - 1);
      mlx_text_puts(&t->text, ")");
      break;
    case MLX_EVENT_FINISH:
      close_part(t);
      CHECK_INT(event->finish, MLX_FINISH_STOP);
      t->finished = true;
      break;
  }
  t->last = event->kind;
  return NULL;
}

// Parses |output| in pieces: of 1 byte, whole, or random.
static void parse(const mlx_output_format_t *format, const mlx_output_options_t *call, const char *prompt,
                  const char *output, size_t length, int cut, transcript_t *out) {
  mlx_output_parser_t *parser;
  *out = (transcript_t){0};
  CHECK_OK(mlx_output_parser_create(format, call, prompt, strlen(prompt), 3, write_event, out, &parser));
  for (size_t at = 0; at < length;) {
    size_t piece = cut == 0 ? 1 : cut == 1 ? length : 1 + (size_t)(random_next(&random_state) % 9);
    if (piece > length - at) piece = length - at;
    CHECK_OK(mlx_output_parser_add(parser, output + at, piece, NULL, 1));
    at += piece;
  }
  CHECK_OK(mlx_output_parser_finish(parser, MLX_FINISH_STOP));
  CHECK(out->finished);
  mlx_output_parser_free(parser);
  CHECK_OK(mlx_text_finish(&out->text));
}

static void check_call(const char *template, const mlx_output_options_t *call, const char *prompt,
                       const char *output, const char *expected) {
  const mlx_output_format_t *format = mlx_output_format_find(template);
  for (int cut = 0; cut < 12; ++cut) {
    transcript_t t;
    parse(format, call, prompt, output, strlen(output), cut, &t);
    CHECK_TEXT(t.text.data ? t.text.data : "", expected);
    mlx_text_clear(&t.text);
  }
}

static mlx_output_options_t call_with_tools(bool stream) {
  return (mlx_output_options_t){.tools = tools_json, .tools_length = sizeof tools_json - 1, .stream = stream};
}

// The same events, streamed or not.
static void check(const char *template, const char *prompt, const char *output, const char *expected) {
  for (int stream = 0; stream < 2; ++stream) {
    const mlx_output_options_t call = call_with_tools(stream);
    check_call(template, &call, prompt, output, expected);
  }
}

#endif  // MLXCEL_TESTS_OUTPUT_TRANSCRIPT_H_
