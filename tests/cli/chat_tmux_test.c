// The chat on the screen of a terminal emulator, tmux: the screen after each step and after a resize. Skipped
// (exit status 77) without tmux; tests/cli/chat_terminal_test.c drives the same chat without one.
#include <stdarg.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define TIMEOUT 120.0  // seconds

static char folder[64];

// Runs a tmux command on the test's own server. The caller owns the output.
static char *tmux(const char *fmt, ...) {
  char arguments[1024], line[1400];
  va_list list;
  va_start(list, fmt);
  vsnprintf(arguments, sizeof arguments, fmt, list);
  va_end(list);
  snprintf(line, sizeof line, "exec tmux -S %s/socket -f /dev/null %s", folder, arguments);
  command_t run;
  command_start(&run, (const char *const[]){"/bin/sh", "-c", line, NULL});
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("tmux %s: %s", arguments, run.err);
  mlx_free(run.err);
  return run.out;
}

static void type(const char *text) { mlx_free(tmux("send-keys -l '%s'", text)); }
static void press(const char *keys) { mlx_free(tmux("send-keys %s", keys)); }

static char *screen(void) { return tmux("capture-pane -p"); }

// Waits until the screen shows |text|.
static void wait_for(const char *text) {
  const double end = command_now() + TIMEOUT;
  for (;;) {
    char *shown = screen();
    const bool found = strstr(shown, text);
    if (!found && command_now() > end) CHECK_FAIL("the screen never showed '%s' but:\n%s", text, shown);
    mlx_free(shown);
    if (found) return;
    usleep(50000);
  }
}

// The last line that is not empty, without trailing spaces, at most 255 bytes.
static const char *last_line(void) {
  static char line[256];
  char *shown = screen(), *cursor = shown;
  line[0] = 0;
  for (char *next; cursor; cursor = next) {
    next = strchr(cursor, '\n');
    if (next) *next++ = 0;
    if (cursor[0]) snprintf(line, sizeof line, "%s", cursor);
  }
  mlx_free(shown);
  for (size_t length = strlen(line); length && line[length - 1] == ' ';) line[--length] = 0;
  return line;
}

static void wait_for_last_line(const char *text) {
  const double end = command_now() + TIMEOUT;
  while (strcmp(last_line(), text)) {
    if (command_now() > end) CHECK_FAIL("the last line never was '%s' but '%s'", text, last_line());
    usleep(50000);
  }
}

static void wait_for_prompt(void) { wait_for_last_line(">>>"); }

// Stops the server that a failed test left running.
static void clean_up(void) {
  char line[256];
  if (!folder[0]) return;
  snprintf(line, sizeof line, "tmux -S %s/socket kill-server 2>/dev/null; rm -rf %s", folder, folder);
  if (system(line)) fputs("cannot clean up\n", stderr);
  folder[0] = 0;
}

static void start(int columns, int rows, const char *flags) {
  clean_up();
  strcpy(folder, "/tmp/mlxcel-tmux-XXXXXX");
  CHECK(mkdtemp(folder));
  mlx_free(tmux(
      "new-session -d -x %d -y %d 'MLXCEL_STATE= XDG_STATE_HOME=%s/state MLXCEL_CACHE=%s %s run -m " SMOLLM2
      " --temp 0 --device cpu -c 512 %s; echo exit status: $?; sleep 600'",
      columns, rows, folder, MLXCEL_TEST_CACHE, MLXCEL_BINARY, flags));
  wait_for_prompt();
}

TEST(a_whole_chat_shows_answers_history_and_commands) {
  start(80, 24, "");
  wait_for("chat with SmolLM2");
  type("What is a compiler? Answer in one sentence.");
  press("Enter");
  wait_for("\nA compiler is a");
  wait_for_prompt();
  press("Up");  // history
  wait_for_last_line(">>> What is a compiler? Answer in one sentence.");
  press("C-u");
  wait_for_prompt();
  type("/stats");
  press("Enter");
  wait_for("of 512 tokens in use");
  wait_for_prompt();
  type("/system You are a pirate.");
  press("Enter");
  wait_for("\nsystem: You are a pirate.");
  type("/regen");
  press("Enter");
  wait_for(">>> /regen\n");
  wait_for_prompt();
  mlx_free(tmux("send-keys -l '/save %s/chat.json'", folder));
  press("Enter");
  wait_for("saved 3 messages to");
  type("/clear");
  press("Enter");
  wait_for("The conversation was cleared");
  mlx_free(tmux("send-keys -l '/load %s/chat.json'", folder));
  press("Enter");
  wait_for("loaded 3 messages from");
  press("C-d");
  wait_for("exit status: 0");
  clean_up();
}

TEST(ctrl_c_in_an_answer_returns_to_the_prompt) {
  start(80, 24, "--ignore-eos");
  type("Tell me a long story.");
  press("Enter");
  wait_for(">>> Tell me a long story.\n");
  for (const double begin = command_now();
       !strcmp(last_line(), ">>> Tell me a long story.");) {  // until the answer begins
    if (command_now() > begin + TIMEOUT) CHECK_FAIL("no answer appeared");
    usleep(20000);
  }
  press("C-c");
  wait_for("\n(stopped)\n");
  wait_for_prompt();
  press("C-c");
  wait_for("Ctrl-D or /quit ends the chat");
  clean_up();
}

TEST(pasted_lines_wide_characters_and_edits_are_drawn_correctly) {
  start(80, 24, "-n 4");
  mlx_free(tmux("set-buffer 'first line\nsecond line'"));
  press("C-l");
  mlx_free(tmux("paste-buffer -p"));
  wait_for(">>> first line\n... second line");
  press("Home");
  type("日本 ");
  wait_for(">>> first line\n... 日本 second line");
  press("C-k");
  wait_for_last_line("... 日本");
  press("BSpace BSpace BSpace BSpace");
  wait_for_last_line(">>> first line");
  press("C-a C-k");
  type("one two");
  press("C-w");
  wait_for_last_line(">>> one");
  press("C-u");
  type("two \\");
  press("Enter");
  type("lines");
  wait_for(">>> two\n... lines");
  press("Enter");
  wait_for("(the answer reached the limit of -n)");
  clean_up();
}

TEST(a_long_line_wraps_and_a_resize_redraws_it) {
  start(30, 12, "-n 4");
  press("C-l");
  type("abcdefghijklmnopqrstuvwxyz0123456789");
  wait_for(">>> abcdefghijklmnopqrstuvwxyz\n0123456789");
  press("Home");
  type("X");
  wait_for(">>> Xabcdefghijklmnopqrstuvwxy\nz0123456789");
  mlx_free(tmux("resize-window -x 50 -y 12"));
  wait_for(">>> Xabcdefghijklmnopqrstuvwxyz0123456789\n");
  type("Y");
  wait_for(">>> XYabcdefghijklmnopqrstuvwxyz0123456789\n");
  mlx_free(tmux("resize-window -x 20 -y 8"));
  wait_for(">>> XYabcdefghijklmn\nopqrstuvwxyz01234567\n89");
  press("End");
  type("!");
  wait_for_last_line("89!");
  char *shown = screen();
  CHECK(strstr(shown, ">>> XY") && !strstr(strstr(shown, ">>> XY") + 1, ">>> "));  // drawn once
  mlx_free(shown);
  clean_up();
}

// Replaces runs of whitespace by one space, in place.
static void collapse(char *text) {
  char *to = text;
  for (const char *from = text; *from; ++from) {
    const bool space = *from == ' ' || *from == '\n';
    if (space && (to == text || to[-1] == ' ')) continue;
    *to++ = space ? ' ' : *from;
  }
  *to = 0;
}

// The words on the screen are those of the answer: none is cut by the edge of the terminal.
TEST(an_answer_is_wrapped_at_words) {
  char saved[256], *text, *end;
  size_t length;
  start(34, 30, "-n 60");
  type("Describe the sea.");
  press("Enter");
  wait_for("(the answer reached");
  wait_for_prompt();
  char *shown = screen();
  snprintf(saved, sizeof saved, "%s/c.json", folder);
  type("/save ");
  type(saved);
  press("Enter");
  wait_for("saved 2 messages");
  CHECK_OK(mlx_read_file(saved, 1 << 20, &text, &length));
  char *answer = strstr(text, "\"assistant\", \"content\": \"");
  CHECK(answer);
  answer += strlen("\"assistant\", \"content\": \"");
  CHECK((end = strstr(answer, "\"}")));
  *end = 0;
  for (char *newline; (newline = strstr(answer, "\\n"));) memcpy(newline, "  ", 2);
  collapse(answer);
  collapse(shown);
  CHECK(strlen(answer) > 100);  // several rows
  CHECK_CONTAINS(shown, answer);
  mlx_free(text);
  mlx_free(shown);
  clean_up();
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(a_whole_chat_shows_answers_history_and_commands), CASE(ctrl_c_in_an_answer_returns_to_the_prompt),
      CASE(pasted_lines_wide_characters_and_edits_are_drawn_correctly),
      CASE(a_long_line_wraps_and_a_resize_redraws_it), CASE(an_answer_is_wrapped_at_words)};
  if (system("tmux -V >/dev/null 2>&1")) {
    fprintf(stderr, "skipped: tmux is not installed (apt-get install tmux)\n");
    return CHECK_SKIPPED;
  }
  setenv("LC_ALL", "C.UTF-8", 1);
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  clean_up();
  return failed;
}
