// mlxcel run: stop strings, and the prompts of a .jsonl file in one batch.
#include "base/text.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define RUN_TINY "run", "-m", TINY, "--device", "cpu", "-c", "256"
#define BROWN "the quick brown"
// The model's greedy text after BROWN: three of its tokens are not whole characters.
#define TEXT "\xef\xbf\xbd\x1b\xef\xbf\xbd\"\xef\xbf\xbdz"

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-batch-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

static const char *write_prompts(const char *text) {
  const char *path = in_folder("p.jsonl");
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  return path;
}

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

// The JSON documents of stdout, one per line.
typedef struct lines {
  yyjson_doc *docs[16];
  size_t count;
} lines_t;

static lines_t read_lines(command_t *run) {
  lines_t lines = {0};
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  for (char *line = run->out, *end; (end = strchr(line, '\n')); line = end + 1) {
    CHECK(lines.count < 16);
    lines.docs[lines.count] = yyjson_read(line, (size_t)(end - line), 0);
    if (!lines.docs[lines.count]) CHECK_FAIL("not JSON: %.*s", (int)(end - line), line);
    ++lines.count;
  }
  return lines;
}

static yyjson_val *field(const lines_t *lines, size_t index, const char *name) {
  CHECK(index < lines->count);
  return yyjson_obj_get(yyjson_doc_get_root(lines->docs[index]), name);
}

static void free_lines(lines_t *lines) {
  for (size_t i = 0; i < lines->count; ++i) yyjson_doc_free(lines->docs[i]);
}

// ----------------------------------------------------------------------------------------------------------
// Stop strings

// Runs BROWN greedily with two stop strings and compares the text and the finish reason.
static void check_stop(const char *first, const char *second, const char *text, const char *reason) {
  command_t run;
  RUN(&run, RUN_TINY, "--temp", "0", "-p", BROWN, "-n", "6", "--json", "--stop", first, "--stop", second);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(doc);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(doc), "text")), text);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(doc), "finish_reason")), reason);
  yyjson_doc_free(doc);
  command_free(&run);
  RUN(&run, RUN_TINY, "--temp", "0", "-p", BROWN, "-n", "6", "-q", "--stop", first, "--stop", second);
  CHECK(run.out_length == strlen(text) + 1 && run.out[run.out_length - 1] == '\n');
  run.out[run.out_length - 1] = 0;
  CHECK_TEXT(run.out, text);
  command_free(&run);
}

TEST(a_stop_string_ends_the_text_across_tokens) {
  check_stop("nowhere", "zz", TEXT, "length");
  check_stop("nowhere", "\"", "\xef\xbf\xbd\x1b\xef\xbf\xbd", "stop");
  check_stop("\"\xef\xbf\xbdz", "nowhere", "\xef\xbf\xbd\x1b\xef\xbf\xbd", "stop");  // three tokens
  check_stop("\"\xef\xbf\xbdy", "z", "\xef\xbf\xbd\x1b\xef\xbf\xbd\"\xef\xbf\xbd", "stop");
}

TEST(invalid_stop_strings_are_refused) {
  command_t run;
  RUN(&run, RUN_TINY, "-p", "x", "--stop", "");
  check_refused(&run, MLX_USAGE, "option --stop expects a text of 1 to 4096 bytes, not 0");
  char text[4098];
  memset(text, 'x', sizeof text);
  text[4097] = 0;
  RUN(&run, RUN_TINY, "-p", "x", "--stop", text);
  check_refused(&run, MLX_USAGE, "option --stop expects a text of 1 to 4096 bytes, not 4097");
}

// ----------------------------------------------------------------------------------------------------------
// Files of prompts

// Runs one prompt alone; its tokens must be those of |expected|.
static void check_alone(yyjson_val *expected, const char *prompt, const char *count, const char *temperature,
                        const char *seed) {
  command_t run;
  RUN(&run, RUN_TINY, "-p", prompt, "-n", count, "--temp", temperature, "-s", seed, "--json");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(doc);
  check_ids("tokens", 0, expected, yyjson_obj_get(yyjson_doc_get_root(doc), "output_ids"));
  yyjson_doc_free(doc);
  command_free(&run);
}

static const char several[] = "{\"prompt\": \"" BROWN
                              "\"}\n"
                              "{\"prompt\": \"the\", \"temperature\": 1.5, \"seed\": 77, \"max_tokens\": 9}\n"
                              "\n"
                              "{\"prompt\": \"a lazy dog\", \"temperature\": 1.5}\n"
                              "{\"prompt\": \"" BROWN
                              "\", \"stop\": [\"nowhere\", \"\\\"\"]}\n"
                              "{\"prompt\": \"" BROWN "\", \"max_tokens\": 20}\n";

TEST(each_prompt_of_a_batch_gets_the_tokens_that_it_gets_alone) {
  static const char *const widths[] = {"1", "2", "64"};
  make_folder();
  for (size_t i = 0; i < 3; ++i) {
    command_t run;
    RUN(&run, RUN_TINY, "--temp", "0", "-f", write_prompts(several), "-n", "6", "-s", "100", "--json",
        "--parallel", widths[i]);
    lines_t lines = read_lines(&run);
    static const int numbers[] = {1, 2, 4, 5, 6}, seeds[] = {100, 77, 102, 103, 104};
    CHECK_INT(lines.count, 5);
    for (size_t j = 0; j < 5; ++j) {
      CHECK_INT(yyjson_get_int(field(&lines, j, "line")), numbers[j]);
      CHECK_INT(yyjson_get_int(field(&lines, j, "seed")), seeds[j]);
      CHECK_TEXT(yyjson_get_str(field(&lines, j, "finish_reason")), j == 3 ? "stop" : "length");
    }
    CHECK_TEXT(yyjson_get_str(field(&lines, 0, "text")), TEXT);
    CHECK_INT(yyjson_arr_size(field(&lines, 0, "prompt_ids")), 7);
    CHECK_TEXT(yyjson_get_str(field(&lines, 3, "text")), "\xef\xbf\xbd\x1b\xef\xbf\xbd");
    check_alone(field(&lines, 0, "output_ids"), BROWN, "6", "0", "0");
    check_alone(field(&lines, 1, "output_ids"), "the", "9", "1.5", "77");
    check_alone(field(&lines, 2, "output_ids"), "a lazy dog", "6", "1.5", "102");
    check_alone(field(&lines, 4, "output_ids"), BROWN, "20", "0", "0");
    CHECK_CONTAINS(run.err, "5 prompts, stop 1, length 4: prompt ");
    free_lines(&lines);
    command_free(&run);
  }
  remove_folder();
}

TEST(texts_are_printed_as_blocks_in_the_order_of_the_file) {
  make_folder();
  command_t run;
  RUN(&run, RUN_TINY, "--temp", "0", "-q", "-n", "6", "-f",
      write_prompts("{\"prompt\": \"" BROWN "\", \"max_tokens\": 6}\n\n{\"prompt\": \"" BROWN
                    "\", \"stop\": \"\\\"\"}\n"));
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, "==> line 1 <==\n" TEXT "\n\n==> line 3 <==\n\xef\xbf\xbd\x1b\xef\xbf\xbd\n\n");
  CHECK_TEXT(run.err, "");
  command_free(&run);
  remove_folder();
}

TEST(log_probabilities_stay_on_one_line) {
  make_folder();
  command_t run;
  RUN(&run, RUN_TINY, "--temp", "0", "-f", write_prompts("{\"prompt\": \"the\"}\n{\"prompt\": \"a\"}"), "-n",
      "3", "--json", "--logprobs", "2");
  lines_t lines = read_lines(&run);
  CHECK_INT(lines.count, 2);
  yyjson_val *content = yyjson_obj_get(field(&lines, 1, "logprobs"), "content");
  CHECK_INT(yyjson_arr_size(content), 3);
  CHECK_INT(yyjson_arr_size(yyjson_obj_get(yyjson_arr_get(content, 0), "top_logprobs")), 2);
  free_lines(&lines);
  command_free(&run);
  remove_folder();
}

// A line with messages gives the tokens of the text that the template renders.
TEST(messages_are_rendered_with_the_chat_template) {
  make_folder();
  command_t run, alone, raw;
  RUN(&run, RUN_TINY, "--temp", "0", "-n", "4", "--json", "--chat-template", "chatml", "-f",
      write_prompts("{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"},"
                    " {\"role\": \"user\", \"content\": \"hello\"}]}\n{\"prompt\": \"hello\"}\n"));
  lines_t lines = read_lines(&run);
  RUN(&alone, RUN_TINY, "--temp", "0", "-n", "4", "--json", "--chat-template", "chatml", "-sys", "be brief",
      "-p", "hello");
  CHECK_INT(alone.exit_code, 0);
  yyjson_doc *doc = yyjson_read(alone.out, alone.out_length, 0);
  yyjson_val *root = yyjson_doc_get_root(doc);
  check_ids("prompt tokens", 0, field(&lines, 0, "prompt_ids"), yyjson_obj_get(root, "prompt_ids"));
  check_ids("tokens", 0, field(&lines, 0, "output_ids"), yyjson_obj_get(root, "output_ids"));
  // A prompt is a user message: the template renders it too, without the system message.
  CHECK(yyjson_arr_size(field(&lines, 1, "prompt_ids")) < yyjson_arr_size(field(&lines, 0, "prompt_ids")));
  RUN(&raw, RUN_TINY, "--temp", "0", "-n", "4", "--json", "-p", "hello");
  yyjson_doc *plain = yyjson_read(raw.out, raw.out_length, 0);
  CHECK(yyjson_arr_size(field(&lines, 1, "prompt_ids")) >
        yyjson_arr_size(yyjson_obj_get(yyjson_doc_get_root(plain), "prompt_ids")));
  yyjson_doc_free(plain);
  command_free(&raw);
  free_lines(&lines);
  command_free(&run);
  RUN(&run, RUN_TINY, "--temp", "0", "-n", "4", "--json", "--chat-template", "chatml", "-sys", "be brief",
      "-f", write_prompts("{\"prompt\": \"hello\"}\n"));
  lines = read_lines(&run);
  check_ids("prompt tokens", 0, field(&lines, 0, "prompt_ids"), yyjson_obj_get(root, "prompt_ids"));
  free_lines(&lines);
  yyjson_doc_free(doc);
  command_free(&alone);
  command_free(&run);
  remove_folder();
}

TEST(a_bad_line_is_refused_before_any_work) {
  make_folder();
  command_t run;
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  RUN(&run, RUN_TINY, "-f", write_prompts("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"seed\": \"x\"}\n"));
  CHECK(!mlx_is_dir(in_folder("cache/vmfb")));
  check_refused(&run, MLX_INVALID_INPUT, "p.jsonl:2: field 'seed'");
  RUN(&run, RUN_TINY, "-f", write_prompts("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"));
  check_refused(&run, MLX_NOT_FOUND, "chat template");
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  mlx_text_t text = {0};
  mlx_text_puts(&text, "{\"prompt\": \"a\"}\n{\"prompt\": \"");
  for (int i = 0; i < 4000; ++i) mlx_text_puts(&text, "z");
  mlx_text_puts(&text, "\"}\n");
  CHECK_OK(mlx_text_finish(&text));
  RUN(&run, RUN_TINY, "-f", write_prompts(text.data));
  check_refused(&run, MLX_USAGE, "p.jsonl:2: ");
  mlx_text_clear(&text);
  remove_folder();
}

TEST(options_that_do_not_fit_a_file_of_prompts_are_refused) {
  make_folder();
  const char *path = write_prompts("{\"prompt\": \"a\"}\n");
  command_t run;
  RUN(&run, RUN_TINY, "-f", path, "--parallel", "0");
  check_refused(&run, MLX_USAGE, "option --parallel expects a whole number from 1 to 1024");
  RUN(&run, RUN_TINY, "-f", path, "-p", "a");
  check_refused(&run, MLX_USAGE, "both -p and -f were given");
  RUN(&run, RUN_TINY, "-f", path, "-sys", "be brief");
  check_refused(&run, MLX_NOT_FOUND, "tiny-llama has no chat template");
  RUN(&run, RUN_TINY, "-f", path, "--raw", "--chat-template", "chatml");
  check_refused(&run, MLX_USAGE, "--raw completes the text without the chat template, so --chat-template");
  RUN(&run, RUN_TINY, "--raw", "-f",
      write_prompts("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"));
  check_refused(&run, MLX_USAGE, "a line has 'messages', which need the chat template");
  RUN(&run, RUN_TINY, "-f", in_folder("none.jsonl"));
  check_refused(&run, MLX_NOT_FOUND, "none.jsonl");
  remove_folder();
}

TEST_MAIN(CASE(a_stop_string_ends_the_text_across_tokens), CASE(invalid_stop_strings_are_refused),
          CASE(each_prompt_of_a_batch_gets_the_tokens_that_it_gets_alone),
          CASE(texts_are_printed_as_blocks_in_the_order_of_the_file),
          CASE(log_probabilities_stay_on_one_line), CASE(messages_are_rendered_with_the_chat_template),
          CASE(a_bad_line_is_refused_before_any_work),
          CASE(options_that_do_not_fit_a_file_of_prompts_are_refused))
