// Files of prompts (run -f FILE.jsonl): fields, limits, and errors that name the file, the line and the
// field.
#include "template/prompts.h"

#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

static mlx_status_t parse(const char *text, mlx_prompts_t *out) {
  return mlx_prompts_parse("p.jsonl", text, strlen(text), out);
}

static void check_refused(const char *text, const char *message) {
  mlx_prompts_t prompts;
  mlx_status_t status = parse(text, &prompts);
  CHECK(status);
  CHECK_CONTAINS(mlx_status_message(status), message);
  CHECK(!prompts.lines && !prompts.count);
  mlx_status_free(status);
}

TEST(each_line_is_a_prompt_with_its_own_options) {
  mlx_prompts_t prompts;
  CHECK_OK(
      parse("{\"prompt\": \"one\\u0000\"}\r\n"
            "\n \t\r\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"two\"}], \"max_tokens\": -1, \"seed\": 7}\n"
            "{\"prompt\": \"\", \"temperature\": 0, \"stop\": [\"a\", \"\\n\\n\"], \"max_tokens\": null}\n"
            "{\"prompt\": \"four\", \"stop\": \"b\", \"temperature\": 1.5}",
            &prompts));
  CHECK_INT(prompts.count, 4);
  const mlx_prompt_line_t *line = prompts.lines;
  CHECK_INT(line[0].line, 1);
  CHECK_INT(line[0].length, 4);
  CHECK(!memcmp(line[0].text, "one\0", 5) && !line[0].is_chat);
  CHECK(!line[0].has_max_tokens && !line[0].has_seed && !line[0].has_temperature && !line[0].has_stops);
  CHECK_INT(line[1].line, 4);
  CHECK(line[1].is_chat && line[1].has_max_tokens && line[1].has_seed);
  CHECK_TEXT(line[1].text, "[\n  {\"role\":\"user\",\"content\":\"two\"}\n]\n");
  CHECK_INT(line[1].max_tokens, -1);
  CHECK_INT(line[1].seed, 7);
  CHECK(line[2].has_temperature && line[2].temperature == 0 && !line[2].has_max_tokens);
  CHECK(line[2].has_stops);
  CHECK_INT(line[2].stop_count, 2);
  CHECK_TEXT(line[2].stops[1], "\n\n");
  CHECK_INT(line[3].stop_count, 1);
  CHECK_TEXT(line[3].stops[0], "b");
  CHECK(line[3].temperature == 1.5);
  mlx_prompts_clear(&prompts);
}

TEST(an_error_names_the_file_the_line_and_the_field) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "p.jsonl: the file has no prompt"},
      {"\n\n", "p.jsonl: the file has no prompt"},
      {"{\"prompt\": \"a\"}\n\n{\"seed\": 1}", "p.jsonl:3: field 'prompt' is missing"},
      {"{\"prompt\": \"a\"}\nhello\n", "p.jsonl:2:"},
      {"{\"prompt\": \"a\"} {\"prompt\": \"b\"}\n", "p.jsonl:1:"},
      {"[\"a\"]", "p.jsonl:1:"},
      {"{\"prompt\": 5}", "p.jsonl:1: field 'prompt' must be a string"},
      {"{\"prompt\": \"a\", \"prompt\": \"b\"}", "p.jsonl:1:"},
      {"{\"prompt\": \"a\", \"messages\": [1]}", "p.jsonl:1: field 'messages' cannot be combined"},
      {"{\"messages\": \"hello\"}", "p.jsonl:1: field 'messages' must be a list of messages"},
      {"{\"messages\": []}", "p.jsonl:1: field 'messages' must have at least one message"},
      {"\n{\"messages\": [{\"content\": \"a\"}]}", "p.jsonl:2: message 1 has no role"},
      {"{\"prompt\": \"a\", \"top_k\": 5}", "p.jsonl:1: field 'top_k' is unknown"},
      {"{\"prompt\": \"a\", \"max_tokens\": -2}", "p.jsonl:1: field 'max_tokens'"},
      {"{\"prompt\": \"a\", \"max_tokens\": 16777217}", "p.jsonl:1: field 'max_tokens'"},
      {"{\"prompt\": \"a\", \"seed\": -1}", "p.jsonl:1: field 'seed'"},
      {"{\"prompt\": \"a\", \"seed\": 4294967296}", "p.jsonl:1: field 'seed'"},
      {"{\"prompt\": \"a\", \"temperature\": -0.1}",
       "p.jsonl:1: field 'temperature' must be a number from 0"},
      {"{\"prompt\": \"a\", \"temperature\": \"1\"}", "p.jsonl:1: field 'temperature' must be a number"},
      {"{\"prompt\": \"a\", \"stop\": 5}", "p.jsonl:1: field 'stop' must be a string or a list of strings"},
      {"{\"prompt\": \"a\", \"stop\": [\"b\", 5]}", "p.jsonl:1: field 'stop' must be a string or a list"},
      {"{\"prompt\": \"a\", \"stop\": \"\"}", "p.jsonl:1: field 'stop' must have texts of 1 to 4096 bytes"},
      {"{\"prompt\": \"a\", \"stop\": \"b\\u0000\"}", "p.jsonl:1: field 'stop' must have texts of 1 to 4096"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) check_refused(cases[i].text, cases[i].message);
}

// A line whose "stop" has |count| texts of |length| bytes.
static void put_stops(mlx_text_t *text, size_t count, size_t length) {
  mlx_text_clear(text);
  mlx_text_puts(text, "{\"prompt\": \"a\", \"stop\": [");
  for (size_t i = 0; i < count; ++i) {
    mlx_text_puts(text, i ? ", \"" : "\"");
    for (size_t j = 0; j < length; ++j) mlx_text_puts(text, "x");
    mlx_text_puts(text, "\"");
  }
  mlx_text_puts(text, "]}\n");
  CHECK_OK(mlx_text_finish(text));
}

TEST(limits_are_checked) {
  mlx_text_t text = {0};
  mlx_prompts_t prompts;
  put_stops(&text, MLX_PROMPTS_MAX_STOPS, MLX_PROMPTS_MAX_STOP_LENGTH);
  CHECK_OK(parse(text.data, &prompts));
  CHECK_INT(prompts.lines[0].stop_count, MLX_PROMPTS_MAX_STOPS);
  mlx_prompts_clear(&prompts);
  put_stops(&text, MLX_PROMPTS_MAX_STOPS + 1, 1);
  check_refused(text.data, "p.jsonl:1: field 'stop' must have at most 64 texts");
  put_stops(&text, 1, MLX_PROMPTS_MAX_STOP_LENGTH + 1);
  check_refused(text.data, "p.jsonl:1: field 'stop' must have texts of 1 to 4096 bytes");
  mlx_text_clear(&text);
  for (size_t i = 0; i < MLX_PROMPTS_MAX; ++i) mlx_text_puts(&text, "{\"prompt\": \"\"}\n");
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(parse(text.data, &prompts));
  CHECK_INT(prompts.count, MLX_PROMPTS_MAX);
  mlx_prompts_clear(&prompts);
  mlx_text_puts(&text, "{\"prompt\": \"\"}\n");
  check_refused(text.data, "p.jsonl:65537: more than 65536 prompts in one file");
  mlx_text_clear(&text);
}

TEST(a_failed_allocation_frees_everything) {
  static const char text[] =
      "{\"prompt\": \"a\", \"stop\": [\"b\", \"c\"]}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"d\"}], \"stop\": \"e\"}\n";
  mlx_prompts_t prompts;
  bool failed = true;
  for (long target = 1; failed && target < 200; ++target) {
    memory.count = memory.live = 0;
    memory.target = target;
    mlx_memory_set_calls(&counting_memory);
    mlx_status_t status = parse(text, &prompts);
    failed = memory.count >= target;
    if (!status) mlx_prompts_clear(&prompts);
    mlx_status_free(status);
    mlx_memory_set_calls(NULL);
    CHECK_INT(memory.live, 0);
    CHECK(failed == (status != NULL));
  }
  CHECK(!failed);
}

TEST_MAIN(CASE(each_line_is_a_prompt_with_its_own_options),
          CASE(an_error_names_the_file_the_line_and_the_field), CASE(limits_are_checked),
          CASE(a_failed_allocation_frees_everything))
