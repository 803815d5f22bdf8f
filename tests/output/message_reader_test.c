// The message reader of libmlxcel: the answer piece by piece, and the whole message as JSON.
#include "base/memory.h"
#include "base/text.h"
#include "output/output_format.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

#define HERMES "<tool_call> </think>"
#define CALL "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"zone\": \"CET\"}}</tool_call>"

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"zone\":{\"type\":\"string\"}}}}}]";

// Reads |output| in pieces of |piece| bytes. |out_text| gets the pieces of the answer.
static mlx_status_t read_output(const char *prompt, const char *output, size_t piece, mlx_text_t *out_text,
                                char **out_json) {
  const mlx_output_options_t options = {.tools = tools, .tools_length = sizeof tools - 1};
  mlx_message_reader_t *reader;
  size_t length;
  *out_json = NULL;
  MLX_TRY(
      mlx_message_reader_create(mlx_output_format_find(HERMES), &options, prompt, strlen(prompt), &reader));
  mlx_status_t status = NULL;
  for (size_t at = 0, left; (left = strlen(output + at)) && !status; at += piece < left ? piece : left) {
    const char *text;
    status = mlx_message_reader_add(reader, output + at, piece < left ? piece : left, &text, &length);
    if (status || !length) continue;
    mlx_text_append(out_text, text, length);
    status = mlx_text_finish(out_text);
  }
  if (!status) status = mlx_message_reader_finish(reader, out_json, &length);
  mlx_message_reader_free(reader);
  return status;
}

// |answer| is the content; the message is JSON that begins with |head| and ends with |tail|.
static void check_message(const char *prompt, const char *output, const char *answer, const char *head,
                          const char *tail) {
  for (size_t piece = 1; piece <= strlen(output) + 1; ++piece) {
    mlx_text_t text = {0};
    char *json;
    CHECK_OK(read_output(prompt, output, piece, &text, &json));
    // What is held back until the end is only in the message.
    CHECK(!strncmp(text.data ? text.data : "", answer, text.length));
    CHECK(!strncmp(json, head, strlen(head)));
    CHECK(strlen(json) >= strlen(tail));
    CHECK_TEXT(json + strlen(json) - strlen(tail), tail);
    mlx_text_clear(&text);
    mlx_free(json);
  }
}

TEST(message_has_content_reasoning_and_tool_calls) {
  check_message("", "Hello <b>", "Hello <b>", "{\"role\":\"assistant\",\"content\":\"Hello <b>\"}", "\"}");
  check_message("", "", "", "{\"role\":\"assistant\",\"content\":\"\"}", "\"\"}");
  check_message("<think>\n", "why\n</think>\n\nso", "so",
                "{\"role\":\"assistant\",\"content\":\"so\",\"reasoning_content\":\"why\"}", "\"}");
  check_message("", CALL, "", "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_",
                "\",\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"arguments\":"
                "\"{\\\"zone\\\": \\\"CET\\\"}\"}}]}");
  check_message("", "Let me see.\n" CALL, "Let me see.",
                "{\"role\":\"assistant\",\"content\":\"Let me see.\",\"tool_calls\":[{\"id\":\"call_", "}]}");
}

TEST(tools_that_are_no_json_are_an_error) {
  const mlx_output_options_t options = {.tools = "[", .tools_length = 1};
  mlx_message_reader_t *reader;
  mlx_status_t status = mlx_message_reader_create(mlx_output_format_find(""), &options, "", 0, &reader);
  CHECK_INT(mlx_status_code(status), MLX_INVALID_INPUT);
  CHECK(!reader);
  mlx_status_free(status);
}

TEST(failed_allocation_is_an_error_and_leaks_nothing) {
  mlx_memory_set_calls(&counting_memory);
  for (long target = 1;; ++target) {
    mlx_text_t text = {0};
    char *json;
    memory.count = memory.live = 0;
    memory.target = target;
    mlx_status_t status = read_output("", "<think>a</think>b " CALL, 3, &text, &json);
    mlx_free(json);
    mlx_text_clear(&text);
    CHECK_INT(memory.live, 0);
    const bool fails = memory.count >= target;
    if ((status != NULL) != fails) CHECK_FAIL("allocation %ld: %s", target, mlx_status_message(status));
    mlx_status_free(status);
    if (!fails) break;
  }
  mlx_memory_set_calls(NULL);
}

TEST_MAIN(CASE(message_has_content_reasoning_and_tool_calls), CASE(tools_that_are_no_json_are_an_error),
          CASE(failed_allocation_is_an_error_and_leaks_nothing))
