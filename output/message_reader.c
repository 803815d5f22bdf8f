// The message reader: collects the events of a parser into one answer.
#include "base/memory.h"
#include "output/parser.h"

struct mlx_message_reader {
  mlx_output_parser_t *parser;  // owned
  mlx_answer_t answer;          // its only choice
  size_t passed;                // bytes of the answer's text that the caller has got
};

static mlx_status_t collect(void *user, const mlx_event_t *event) {
  mlx_message_reader_t *reader = user;
  return mlx_answer_add(&reader->answer, event);
}

mlx_status_t mlx_message_reader_create(const mlx_output_format_t *format, const mlx_output_options_t *options,
                                       const char *prompt, size_t prompt_length,
                                       mlx_message_reader_t **out_reader) {
  mlx_message_reader_t *reader;
  *out_reader = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *reader, &reader));
  mlx_status_t status =
      mlx_output_parser_create(format, options, prompt, prompt_length, 0, collect, reader, &reader->parser);
  if (status) {
    mlx_free(reader);
    return status;
  }
  *out_reader = reader;
  return NULL;
}

mlx_status_t mlx_message_reader_add(mlx_message_reader_t *reader, const char *text, size_t length,
                                    const char **out_text, size_t *out_length) {
  *out_text = "";
  *out_length = 0;
  MLX_TRY(mlx_output_parser_add(reader->parser, text, length, NULL, 0));
  if (!reader->answer.choice_count || !reader->answer.choices[0].text.length) return NULL;
  const mlx_text_t *answer = &reader->answer.choices[0].text;
  *out_text = answer->data + reader->passed;
  *out_length = answer->length - reader->passed;
  reader->passed = answer->length;
  return NULL;
}

mlx_status_t mlx_message_reader_finish(mlx_message_reader_t *reader, char **out_json, size_t *out_length) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  *out_json = NULL;
  *out_length = 0;
  MLX_TRY(mlx_output_parser_finish(reader->parser, MLX_FINISH_STOP));
  const mlx_answer_choice_t *choice = &reader->answer.choices[0];  // FINISH has made it
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "role", "assistant");
  mlx_answer_put_content(&json, choice);
  if (choice->reasoning.length)
    mlx_json_put_bytes(&json, "reasoning_content", choice->reasoning.data, choice->reasoning.length);
  if (choice->tool_count) mlx_answer_put_tool_calls(&json, choice);
  mlx_json_end(&json);
  mlx_status_t status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  return status;
}

void mlx_message_reader_free(mlx_message_reader_t *reader) {
  if (!reader) return;
  mlx_output_parser_free(reader->parser);
  mlx_answer_clear(&reader->answer);
  mlx_free(reader);
}
