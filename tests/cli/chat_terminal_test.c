// The chat at a terminal and prompts from pipes: commands, Ctrl-C, a full context and the output on stdout.
#include <sys/stat.h>

#include "runtime/mlxcel.h"
#include "tests/support/folder.h"
#include "tests/support/pty.h"

#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define PROMPT ">>> \r\033[4C"
#define PASTE(text) "\033[200~" text "\033[201~"

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-talk-XXXXXX");
  CHECK(mkdtemp(folder));
  unsetenv("MLXCEL_STATE");
  setenv("XDG_STATE_HOME", in_folder("state"), 1);
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

static char *read_text(const char *name) {
  char *text;
  CHECK_OK(mlx_read_file(in_folder(name), SIZE_MAX, &text, NULL));
  return text;
}

#define START(pty, out, ...)                                                                             \
  pty_start(pty,                                                                                         \
            (const char *const[]){MLXCEL_BINARY, "run", "-m", SMOLLM2, "--temp", "0", "--device", "cpu", \
                                  __VA_ARGS__, NULL},                                                    \
            out, "xterm")

// Output of a run without a terminal for a conversation in a file: its session prefills everything.
static char *fresh_answer(const char *messages) {
  command_t run;
  RUN(&run, "template", "-m", SMOLLM2, "--messages", messages, "--add-generation-prompt");
  CHECK_INT(run.exit_code, 0);
  CHECK_OK(mlx_write_file(in_folder("rendered"), run.out, run.out_length));
  command_free(&run);
  char *rendered = read_text("rendered");
  RUN(&run, "run", "--raw", "-m", SMOLLM2, "--temp", "0", "--device", "cpu", "-c", "512", "-n", "24", "-p",
      rendered);
  CHECK_INT(run.exit_code, 0);
  mlx_free(rendered);
  mlx_free(run.err);
  return run.out;
}

// ----------------------------------------------------------------------------------------------------------

TEST(stdout_has_only_answers_and_they_match_a_fresh_session) {
  pty_t pty;
  make_folder();
  START(&pty, in_folder("out"), "-c", "512", "-n", "24", "-sys", "You are terse.");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "What is a compiler?\r");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("one.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 3 messages");
  pty_send(&pty, "/stats\r");
  pty_wait_for(&pty, "of them new");
  pty_send(&pty, "And an interpreter?\r");
  pty_wait_for(&pty, "(the answer reached the limit of -n)");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/stats\r");
  pty_wait_for(&pty, " tokens, 1");  // fewer than 20 of over 60 prompt tokens are new
  pty_wait_for(&pty, " of them new");
  pty_send(&pty, "/exit\r");
  CHECK_INT(pty_end(&pty), 0);
  static const char ask[] =
      "[{\"role\": \"system\", \"content\": \"You are terse.\"}, {\"role\": \"user\", \"content\": \"What is "
      "a compiler?\"}]";
  CHECK_OK(mlx_write_file(in_folder("ask.json"), ask, sizeof ask - 1));
  char *out = read_text("out"), *first = fresh_answer(in_folder("ask.json")), expected[4096];
  char *saved = read_text("one.json");
  saved[strlen(saved) - 3] = 0;  // "\n]\n"
  mlx_text_t again = {0};
  mlx_text_printf(&again, "%s,\n{\"role\": \"user\", \"content\": \"And an interpreter?\"}]", saved);
  CHECK_OK(mlx_write_file(in_folder("again.json"), again.data, again.length));
  char *second = fresh_answer(in_folder("again.json"));
  snprintf(expected, sizeof expected, "%s%s", first, second);
  CHECK_TEXT(out, expected);
  mlx_text_clear(&again);
  mlx_free(saved);
  mlx_free(first);
  mlx_free(second);
  mlx_free(out);
  remove_folder();
}

TEST(ctrl_c_stops_an_answer_and_keeps_the_session) {
  pty_t pty;
  make_folder();
  START(&pty, NULL, "-c", "512", "--ignore-eos");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "Count.\r");
  pty_wait_for(&pty, "\r\n");  // the end of the question
  for (size_t until = pty.shown.length + 20; pty.shown.length < until;)
    CHECK(pty_read(&pty, 100));  // wait for some text of the answer
  pty_send(&pty, "\x03");
  pty_wait_for(&pty, "(stopped)");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "\x03");
  pty_wait_for(&pty, "Ctrl-D or /quit ends the chat");
  pty_send(&pty, "dropped\x03");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("c.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 2 messages");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "\x04");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

TEST(commands_work_as_help_describes) {
  pty_t pty;
  make_folder();
  CHECK_OK(mlx_write_file(in_folder("damaged.json"), "[{\"role\": \"user\"", 16));
  CHECK_OK(mlx_write_file(in_folder("other.txt"), "precious", 8));
  START(&pty, NULL, "-c", "512", "-n", "4");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/help\r");
  pty_wait_for(&pty, "/retry");
  pty_send(&pty, "/regen\r");
  pty_wait_for(&pty, "there is no message to answer again");
  pty_send(&pty, "/sytem x\r");
  pty_wait_for(&pty, "did you mean /system?");
  pty_send(&pty, "/system\r");
  pty_wait_for(&pty, "No system message is set");
  pty_send(&pty, "/system You are a cat.\r");
  pty_wait_for(&pty, "system: You are a cat.");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, PASTE("one\ntwo") "\r");
  pty_wait_for(&pty, "limit of -n");
  pty_send(&pty, "//x\r");
  pty_wait_for(&pty, "limit of -n");
  pty_send(&pty, "/regen\r");
  pty_wait_for(&pty, "limit of -n");
  pty_send(&pty, "/save\r");
  pty_wait_for(&pty, "/save needs a file name");
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("other.txt"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "exists and is not a conversation");
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("c.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 5 messages");
  pty_send(&pty, "/clear\r");
  pty_wait_for(&pty, "The conversation was cleared");
  pty_send(&pty, "/load ");
  pty_send(&pty, in_folder("damaged.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "damaged.json: not valid JSON at byte 16");
  pty_send(&pty, "/load ");
  pty_send(&pty, in_folder("none.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "none.json");
  pty_send(&pty, "/load ");
  pty_send(&pty, in_folder("c.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "loaded 5 messages");
  pty_send(&pty, "/bye\r");
  CHECK_INT(pty_end(&pty), 0);
  char *saved = read_text("c.json"), *other = read_text("other.txt"),
       *history = read_text("state/mlxcel/history");
  CHECK_CONTAINS(saved, "{\"role\": \"system\", \"content\": \"You are a cat.\"}");
  CHECK_CONTAINS(saved, "{\"role\": \"user\", \"content\": \"one\\ntwo\"}");
  CHECK_CONTAINS(saved, "{\"role\": \"user\", \"content\": \"/x\"}");
  CHECK_TEXT(other, "precious");
  CHECK_CONTAINS(history, "one\\ntwo\n//x\n/regen\n");
  mlx_free(saved);
  mlx_free(other);
  mlx_free(history);
  remove_folder();
}

TEST(set_changes_sampling_options_and_lists_them) {
  pty_t pty;
  make_folder();
  START(&pty, NULL, "-c", "512", "-n", "4");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/set\r");
  pty_wait_for(&pty, "temperature        0            (0: greedy)");
  pty_wait_for(&pty, "num_predict        4");
  pty_wait_for(&pty, "think              (the chat template has no switch)");
  pty_send(&pty, "/set temperature 0.2\r");
  pty_wait_for(&pty, "temperature: 0.2");
  pty_send(&pty, "/set parameter top-k 10\r");  // Ollama's form
  pty_wait_for(&pty, "top_k: 10");
  pty_send(&pty, "/set seed 7\r");
  pty_wait_for(&pty, "seed: 7");
  pty_send(&pty, "/set max_tokens 2\r");
  pty_wait_for(&pty, "num_predict: 2");
  pty_send(&pty, "/set top_p 2\r");
  pty_wait_for(&pty, "top_p cannot be '2'");
  pty_send(&pty, "/set top_k 1.5\r");
  pty_wait_for(&pty, "top_k cannot be '1.5'");
  pty_send(&pty, "/set temprature 1\r");
  pty_wait_for(&pty, "did you mean /set temperature?");
  pty_send(&pty, "/set num_ctx 1\r");
  pty_wait_for(&pty, "start the chat with -c N");
  pty_send(&pty, "/set temp");
  pty_send(&pty, "\t\r");  // Tab completes a setting
  pty_wait_for(&pty, "temperature: 0.2");
  pty_send(&pty, "/set system Be brief.\r");
  pty_wait_for(&pty, "system: Be brief.");
  pty_send(&pty, "/set verbose\r");
  pty_wait_for(&pty, "statistics after each answer: on");
  pty_send(&pty, "Hi\r");
  pty_wait_for(&pty, "output 2 tokens");
  static const char *const think[] = {"/think\r", "/set think\r",
                                      "/set nothink\r"};  // the last two: Ollama's
  for (size_t i = 0; i < 3; ++i) {
    pty_send(&pty, think[i]);
    pty_wait_for(&pty, "the chat template has no switch for thinking");
  }
  pty_send(&pty, "/show\r");
  pty_wait_for(&pty, "quantization   Q4_1, Q8_0, F32");
  pty_wait_for(&pty, "chat template  yes");
  pty_wait_for(&pty, "running        cpu, ");
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

// Each answer has its own seed: the next one's is shown.
TEST(set_shows_the_seed_of_the_next_answer) {
  pty_t pty;
  make_folder();
  pty_start(&pty,
            (const char *const[]){MLXCEL_BINARY, "run", "-m", TINY, "--chat-template", "chatml", "--device",
                                  "cpu", "-n", "2", "--seed", "7", NULL},
            in_folder("out"), "xterm");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/set seed\r");
  pty_wait_for(&pty, "seed: 7");
  pty_send(&pty, "the\r");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/set\r");
  pty_wait_for(&pty, "seed               8            (of the next answer)");
  pty_send(&pty, "/set seed 3\r");
  pty_wait_for(&pty, "seed: 3");
  pty_send(&pty, "/set seed\r");
  pty_wait_for(&pty, "seed: 3");
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

// The same seed gives the same answer, also after other answers.
TEST(a_seed_that_is_set_repeats_an_answer) {
  pty_t pty;
  make_folder();
  START(&pty, in_folder("out"), "-c", "512", "-n", "12");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/set temperature 2\r");
  pty_wait_for(&pty, "temperature: 2");
  for (int i = 0; i < 3; ++i) {
    if (i != 1) pty_send(&pty, "/set seed 7\r");
    if (i != 1) pty_wait_for(&pty, "seed: 7");
    pty_send(&pty, i ? "/retry\r" : "Tell me a story.\r");
    pty_wait_for(&pty, "limit of -n");
    pty_wait_for(&pty, PROMPT);
  }
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  char *out = read_text("out");
  const size_t length = strlen(out);
  char *third = out + length - 1;
  for (size_t same = 0; third > out && !same;
       --third) {  // find an answer at the end that also begins the output
    const size_t size = length - (size_t)(third - out);
    if (size >= 20 && !strncmp(out, third, size)) same = size;
  }
  CHECK(third > out + 20);
  mlx_free(out);
  remove_folder();
}

TEST(edit_changes_the_last_message_and_answers_it_again) {
  pty_t pty;
  make_folder();
  START(&pty, NULL, "-c", "512", "-n", "2");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/edit\r");
  pty_wait_for(&pty, "there is no message to answer again");
  pty_send(&pty, "What is a dog?\r");
  pty_wait_for(&pty, "limit of -n");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/edit\r");
  pty_wait_for(&pty, ">>> What is a dog?");
  pty_send(&pty, "\x03");
  pty_wait_for(&pty, "The message was not changed.");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/edit\r");
  pty_wait_for(&pty, ">>> What is a dog?");
  pty_send(&pty,
           "\x7f\x7f\x7f\x7f"
           "cat?\r");
  pty_wait_for(&pty, "limit of -n");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty,
           "\x12"
           "dog");  // Ctrl-R
  pty_wait_for(&pty, "(search: 'dog') What is a dog?");
  pty_send(&pty, "\x07");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("edited.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 2 messages");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/edit And a bird?\r");
  pty_wait_for(&pty, PROMPT "\r");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("again.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 2 messages");
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  char *edited = read_text("edited.json"), *again = read_text("again.json");
  CHECK_CONTAINS(edited, "{\"role\": \"user\", \"content\": \"What is a cat?\"}");
  CHECK_CONTAINS(again, "{\"role\": \"user\", \"content\": \"And a bird?\"}");
  mlx_free(edited);
  mlx_free(again);
  remove_folder();
}

TEST(file_adds_text_to_the_next_message) {
  pty_t pty;
  make_folder();
  CHECK_OK(mlx_write_file(in_folder("notes.md"), "Use ```c here.", 14));
  CHECK_OK(mlx_write_file(in_folder("binary"), "a\0b", 3));
  START(&pty, NULL, "-c", "512", "-n", "4");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/file\r");
  pty_wait_for(&pty, "/file needs a file name");
  pty_send(&pty, "/file ");
  pty_send(&pty, in_folder("binary"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "binary is not a text file");
  pty_send(&pty, "/file ");
  pty_send(&pty, in_folder("notes.md"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "added notes.md (14 bytes, ");
  pty_wait_for(&pty, " tokens) to the next message");
  pty_send(&pty, "Summarize.\r");
  pty_wait_for(&pty, "limit of -n");
  pty_send(&pty, "Thanks.\r");  // without the file
  pty_wait_for(&pty, "limit of -n");
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("c.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 4 messages");
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  char *saved = read_text("c.json");
  CHECK_CONTAINS(saved, "\"content\": \"File: notes.md\\n````\\nUse ```c here.\\n````\\n\\nSummarize.\"}");
  CHECK_CONTAINS(saved, "\"content\": \"Thanks.\"}");
  mlx_free(saved);
  remove_folder();
}

// The number after "context: " that /stats printed last.
static long context_in_use(pty_t *pty) {
  pty_send(pty, "/stats\r");
  pty_wait_for(pty, "\ncontext: ");
  const size_t at = pty->seen;
  pty_wait_for(pty, "tokens in use");
  return strtol(pty->shown.data + at, NULL, 10);
}

TEST(stats_after_load_and_clear_are_those_of_the_conversation) {
  static const char saved[] =
      "[{\"role\": \"user\", \"content\": \"one two three four five six seven eight nine ten\"},"
      " {\"role\": \"assistant\", \"content\": \"eleven\"}]";
  pty_t pty;
  make_folder();
  CHECK_OK(mlx_write_file(in_folder("c.json"), saved, sizeof saved - 1));
  START(&pty, NULL, "-c", "512", "-n", "4");
  pty_wait_for(&pty, PROMPT);
  CHECK_INT(context_in_use(&pty), 0);
  pty_send(&pty, "/load ");
  pty_send(&pty, in_folder("c.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "loaded 2 messages");
  pty_send(&pty, "/stats\r");
  pty_wait_for(&pty, "no answer yet in this conversation");
  const long loaded = context_in_use(&pty);
  CHECK(loaded > 20 && loaded < 100);
  pty_send(&pty, "Hi\r");
  pty_wait_for(&pty, "limit of -n");
  CHECK(context_in_use(&pty) > loaded);
  pty_send(&pty, "/load ");
  pty_send(&pty, in_folder("c.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "loaded 2 messages");
  CHECK_INT(context_in_use(&pty), loaded);
  pty_send(&pty, "/clear\r");
  pty_wait_for(&pty, "The conversation was cleared");
  CHECK_INT(context_in_use(&pty), 0);
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

// The template ends with <think> if thinking is on, so that the answer is dimmed.
TEST(thinking_is_switched_by_the_variable_of_the_template) {
  static const char source[] =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor "
      "%}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}";
  static const char efforts[] = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}";
  pty_t pty;
  make_folder();
  CHECK_OK(mlx_write_file(in_folder("t.jinja"), source, sizeof source - 1));
  CHECK_OK(mlx_write_file(in_folder("e.jinja"), efforts, sizeof efforts - 1));
  START(&pty, NULL, "-c", "512", "-n", "4", "--chat-template", in_folder("t.jinja"), "--chat-template-kwargs",
        "{\"enable_thinking\": false, \"other\": [1]}");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/set\r");
  pty_wait_for(&pty, "think              off");
  pty_send(&pty, "/set think\r");  // Ollama's forms
  pty_wait_for(&pty, "think: on (enable_thinking of the chat template)");
  pty_send(&pty, "/set nothink\r");
  pty_wait_for(&pty, "think: off (enable_thinking of the chat template)");
  pty_send(&pty, "Hi\r");
  pty_wait_for(&pty, "limit of -n");
  CHECK(!strstr(pty.shown.data, "\033[2m"));
  pty_send(&pty, "/think\r");
  pty_wait_for(&pty, "think: on (enable_thinking of the chat template)");
  pty_send(&pty, "/retry\r");
  pty_wait_for(&pty, "\033[2m");
  pty_wait_for(&pty, "limit of -n");
  pty_send(&pty, "/nothink\r");
  pty_wait_for(&pty, "think: off (enable_thinking of the chat template)");
  const size_t before = pty.seen;
  pty_send(&pty, "/retry\r");
  pty_wait_for(&pty, "limit of -n");
  CHECK(!strstr(pty.shown.data + before, "\033[2m"));
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  START(&pty, NULL, "-c", "512", "-n", "4", "--chat-template", in_folder("e.jinja"));
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/set think high\r");
  pty_wait_for(&pty, "think: high (reasoning_effort of the chat template)");
  pty_send(&pty, "/nothink\r");
  pty_wait_for(&pty, "this chat template cannot turn thinking off");
  pty_send(&pty, "/quit\r");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

TEST(a_full_context_drops_the_oldest_turns) {
  pty_t pty;
  make_folder();
  START(&pty, NULL, "-c", "128", "-n", "40", "--ignore-eos");
  pty_wait_for(&pty, PROMPT);
  pty_send(&pty, "/system Be kind.\r");
  for (int i = 0; i < 3; ++i) {
    pty_wait_for(&pty, PROMPT);
    pty_send(&pty, "Count to ten, please.\r");
    if (i == 2) pty_wait_for(&pty, "the context of 128 tokens is full: dropped the oldest 4 messages");
    pty_wait_for(&pty, "limit of -n");
  }
  pty_wait_for(&pty, PROMPT);
  for (int i = 0; i < 40; ++i) pty_send(&pty, PASTE("one two three four "));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "the message is too long");
  pty_wait_for(&pty, "-c N");
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("all.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 7 messages");  // dropped messages are saved too
  pty_send(&pty, "\x04");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

TEST(a_quiet_chat_prints_no_device_line_and_no_greeting) {
  pty_t pty;
  make_folder();
  START(&pty, NULL, "-c", "512", "-n", "4", "-q", "-sys", "Be kind.");
  pty_wait_for(&pty, PROMPT);
  CHECK(!strstr(pty.shown.data, "device: ") && !strstr(pty.shown.data, "chat with "));
  pty_send(&pty, "/save ");
  pty_send(&pty, in_folder("one.json"));
  pty_send(&pty, "\r");
  pty_wait_for(&pty, "saved 1 message to ");
  pty_send(&pty, "\x04");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

// A terminal without cursor movement uses its own line editing.
TEST(a_chat_works_on_a_dumb_terminal) {
  pty_t pty;
  make_folder();
  pty_start(&pty,
            (const char *const[]){MLXCEL_BINARY, "run", "-m", SMOLLM2, "--temp", "0", "--device", "cpu", "-c",
                                  "512", "-n", "4", "-v", NULL},
            NULL, "dumb");
  pty_wait_for(&pty, ">>> ");
  pty_send(&pty, "Hi\n");
  pty_wait_for(&pty, "limit of -n");
  pty_wait_for(&pty, "of them new");  // -v
  pty_wait_for(&pty, "context: ");
  CHECK(!strstr(strstr(pty.shown.data, ">>> "), "\033["));
  pty_send(&pty, "/exit\n");
  CHECK_INT(pty_end(&pty), 0);
  remove_folder();
}

// The template ends with <think>, like those of reasoning models.
TEST(thinking_is_dimmed_unless_no_color_is_set) {
  static const char source[] =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor "
      "%}<|im_start|>assistant\n<think>\n";
  pty_t pty;
  make_folder();
  CHECK_OK(mlx_write_file(in_folder("t.jinja"), source, sizeof source - 1));
  for (int plain = 0; plain < 2; ++plain) {
    pty_start(&pty,
              (const char *const[]){"/usr/bin/env", plain ? "NO_COLOR=1" : "X=1", MLXCEL_BINARY, "run", "-m",
                                    SMOLLM2, "--temp", "0", "--device", "cpu", "-c", "512", "-n", "4",
                                    "--chat-template", in_folder("t.jinja"), NULL},
              NULL, "xterm");
    pty_wait_for(&pty, PROMPT);
    pty_send(&pty, "Hi\r");
    pty_wait_for(&pty, "limit of -n");
    const bool dimmed =
        strstr(pty.shown.data, "\033[2m") && strstr(strstr(pty.shown.data, "\033[2m"), "\033[0m");
    CHECK_INT(dimmed, !plain);
    pty_send(&pty, "\x04");
    CHECK_INT(pty_end(&pty), 0);
  }
  remove_folder();
}

TEST(a_chat_with_a_base_model_explains_what_to_do) {
  pty_t pty;
  make_folder();
  pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "run", "-m", TINY, NULL}, NULL, "xterm");
  pty_wait_for(&pty, "tiny-llama is a base model: it has no chat template; chat needs an instruct model");
  pty_wait_for(&pty, "to complete a text: mlxcel run ");
  pty_wait_for(&pty, "--chat-template NAME");
  CHECK_INT(pty_end(&pty), MLX_NOT_FOUND);
  remove_folder();
}

TEST(a_chat_with_json_or_raw_is_refused) {
  pty_t pty;
  make_folder();
  START(&pty, NULL, "--json");
  pty_wait_for(&pty, "no prompt was given");
  CHECK_INT(pty_end(&pty), MLX_USAGE);
  START(&pty, NULL, "--raw");
  pty_wait_for(&pty, "no prompt was given");
  CHECK_INT(pty_end(&pty), MLX_USAGE);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Pipes

static void shell(command_t *run, const char *line) {
  command_start(run, (const char *const[]){"/bin/sh", "-c", line, "sh", MLXCEL_BINARY, NULL});
  command_wait(run);
  if (run->exit_code) CHECK_FAIL("%s: exit status %d: %s", line, run->exit_code, run->err);
}

#define FLAGS " --temp 0 --device cpu -c 512 -n 8"

static void check_same(const char *line, const char *as) {
  command_t a, b;
  shell(&a, line);
  shell(&b, as);
  CHECK(a.out_length > 0);
  CHECK_TEXT(a.out, b.out);
  command_free(&a);
  command_free(&b);
}

TEST(chat_from_a_pipe_without_a_template_is_refused) {
  command_t run;
  command_start(&run, (const char *const[]){"/bin/sh", "-c", "echo x | \"$1\" run -sys Hi -m " TINY, "sh",
                                            MLXCEL_BINARY, NULL});
  command_wait(&run);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "tiny-llama has no chat template");
  CHECK_TEXT(run.out, "");
  command_free(&run);
}

TEST(a_prompt_from_a_pipe_is_a_chat_message_if_there_is_a_template) {
  check_same("printf 'What is a compiler?\\n' | \"$1\" run -m " SMOLLM2 FLAGS,
             "\"$1\" run -m " SMOLLM2 FLAGS " -p 'What is a compiler?'");
  check_same("printf 'The sky is' | \"$1\" run --raw -m " SMOLLM2 FLAGS,
             "\"$1\" run --raw -m " SMOLLM2 FLAGS " -p 'The sky is'");
  check_same("printf 'Hi' | \"$1\" run -sys 'Be a cat.' -m " SMOLLM2 FLAGS,
             "\"$1\" run -m " SMOLLM2 FLAGS " -sys 'Be a cat.' -p Hi");
  check_same("printf 'the quick' | \"$1\" run --ignore-eos -m " TINY FLAGS,
             "\"$1\" run --ignore-eos -m " TINY FLAGS " -p 'the quick'");
  check_same("printf 'not read' | \"$1\" run --ignore-eos -p 'the quick' -m " TINY FLAGS,
             "\"$1\" run --ignore-eos -m " TINY FLAGS " -p 'the quick'");
}

// Cuts the JSON output after the prompt ids.
static void cut_after_ids(char *json) {
  char *end = strchr(json, ']');
  CHECK(end);
  *end = 0;
}

TEST(chat_template_flag_replaces_the_models_template) {
  command_t run;
  make_folder();
  CHECK_OK(mlx_write_file(in_folder("my.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}", 50));
  CHECK_OK(mlx_write_file(in_folder("bad.jinja"), "one\n{% for %}", 13));
  CHECK_OK(mlx_write_file(in_folder("tools.json"), "[{\"type\": \"function\"}]", 22));
  CHECK_OK(mlx_write_file(in_folder("tools.jinja"), "{{ tools[0].type }}{{ x }}", 26));
  RUN(&run, "run", "-m", TINY, "--chat-template", in_folder("my.jinja"), "-p", "the quick", "-n", "1",
      "--json");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "\"prompt_ids\": [315, 223, 310, 302]");
  command_free(&run);
  RUN(&run, "run", "-m", TINY, "--chat-template", in_folder("bad.jinja"), "-p", "x");
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, "bad.jinja, line 2");
  command_free(&run);
  RUN(&run, "run", "-m", TINY, "--chat-template", "lama3", "-p", "x");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "'lama3' is neither a chat format nor a file");
  CHECK_CONTAINS(run.err, "llama3");
  command_free(&run);
  RUN(&run, "run", "-m", TINY, "--raw", "--tools", "x.json", "-p", "x");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "so --tools has no effect");
  command_free(&run);
  RUN(&run, "run", "-m", TINY, "--chat-template", in_folder("tools.jinja"), "--tools",
      in_folder("tools.json"), "--chat-template-kwargs", "{\"x\": \"!\"}", "-p", "x", "-n", "1", "--json");
  CHECK_INT(run.exit_code, 0);
  cut_after_ids(run.out);
  command_t plain;
  RUN(&plain, "run", "-m", TINY, "--chat-template", in_folder("my.jinja"), "-p", "function!", "-n", "1",
      "--json");
  cut_after_ids(plain.out);
  CHECK_TEXT(run.out, plain.out);
  command_free(&plain);
  command_free(&run);
  remove_folder();
}

TEST_MAIN(CASE(stdout_has_only_answers_and_they_match_a_fresh_session),
          CASE(set_changes_sampling_options_and_lists_them), CASE(set_shows_the_seed_of_the_next_answer),
          CASE(a_seed_that_is_set_repeats_an_answer),
          CASE(edit_changes_the_last_message_and_answers_it_again), CASE(file_adds_text_to_the_next_message),
          CASE(stats_after_load_and_clear_are_those_of_the_conversation),
          CASE(thinking_is_switched_by_the_variable_of_the_template),
          CASE(ctrl_c_stops_an_answer_and_keeps_the_session), CASE(commands_work_as_help_describes),
          CASE(a_full_context_drops_the_oldest_turns),
          CASE(a_quiet_chat_prints_no_device_line_and_no_greeting), CASE(a_chat_works_on_a_dumb_terminal),
          CASE(thinking_is_dimmed_unless_no_color_is_set), CASE(a_chat_with_a_base_model_explains_what_to_do),
          CASE(a_chat_with_json_or_raw_is_refused), CASE(chat_from_a_pipe_without_a_template_is_refused),
          CASE(a_prompt_from_a_pipe_is_a_chat_message_if_there_is_a_template),
          CASE(chat_template_flag_replaces_the_models_template))
