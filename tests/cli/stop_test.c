// mlxcel run: stop strings.
#include "tests/support/golden.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define RUN_TINY "run", "-m", TINY, "--device", "cpu", "-c", "256"
#define BROWN "the quick brown"
// The model's greedy text after BROWN: three of its tokens are not whole characters.
#define TEXT "\xef\xbf\xbd\x1b\xef\xbf\xbd\"\xef\xbf\xbdz"

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

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

TEST_MAIN(CASE(a_stop_string_ends_the_text_across_tokens), CASE(invalid_stop_strings_are_refused))
