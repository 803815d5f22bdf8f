// Words and options of the command line: the model and the prompt as words, escapes, options of other
// programs, and suggestions.
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static void check_refused(command_t *run, const char *message, const char *hint) {
  CHECK_INT(run->exit_code, MLX_USAGE);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, message);
  if (hint) {
    CHECK_CONTAINS(run->err, hint);
  } else {
    CHECK(!strstr(run->err, "did you mean"));
  }
  command_free(run);
}

// Both commands must succeed and print the same.
static void check_same(command_t *a, command_t *b) {
  if (a->exit_code || b->exit_code) CHECK_FAIL("%s%s", a->err, b->err);
  CHECK(a->out_length > 0);
  CHECK_TEXT(a->out, b->out);
  command_free(a);
  command_free(b);
}

#define FLAGS "--temp", "0", "-n", "4", "--device", "cpu"

TEST(the_first_word_is_the_model) {
  command_t word, flag;
  RUN(&word, "run", TINY, "the quick", FLAGS);
  RUN(&flag, "run", "-m", TINY, "-p", "the quick", FLAGS);
  check_same(&word, &flag);
  RUN(&word, "tokenize", TINY, "the quick");
  RUN(&flag, "tokenize", "-m", TINY, "-p", "the quick");
  check_same(&word, &flag);
  RUN(&word, "detokenize", TINY, "5", "6");
  RUN(&flag, "detokenize", "5", "-m", TINY, "6");
  check_same(&word, &flag);
  RUN(&word, "show", "-m", TINY);
  RUN(&flag, "show", TINY);
  check_same(&word, &flag);
  static const char *const verbs[] = {"bench", "eval", "template"};
  for (size_t i = 0; i < 3; ++i) {
    RUN(&word, verbs[i], "/nowhere/model.gguf", "-f", "/dev/null");
    CHECK(word.exit_code);
    CHECK(!strstr(word.err, "unexpected argument") && !strstr(word.err, "no model"));
    command_free(&word);
  }
  RUN(&word, "run", TINY, "the", "quick", FLAGS);  // words are joined with spaces
  RUN(&flag, "run", TINY, "the quick", FLAGS);
  check_same(&word, &flag);
}

TEST(with_the_flag_of_the_model_the_words_are_the_prompt) {
  command_t word, flag;
  RUN(&word, "run", "-m", TINY, "the quick", FLAGS);
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&word, &flag);
  RUN(&word, "run", "the", "-m", TINY, "quick", FLAGS);
  RUN(&flag, "run", TINY, "the quick", FLAGS);
  check_same(&word, &flag);
}

TEST(a_model_or_prompt_given_twice_is_refused) {
  command_t run;
  RUN(&run, "tokenize", "-m", TINY, "hello", "world");
  check_refused(&run, "unexpected argument 'world'", NULL);
  RUN(&run, "run", "-m", TINY, "hello", "-p", "x");
  check_refused(&run, "the prompt is given twice: with -p, and as the word 'hello'", "give one of them");
  RUN(&run, "bench", "a.gguf", "-m", "b.gguf");
  check_refused(&run, "the model is given twice: with -m, and as the word 'a.gguf'", "hint: give it once");
  RUN(&run, "bench", "a.gguf", "b.gguf");
  check_refused(&run, "unexpected argument 'b.gguf'", NULL);
  RUN(&run, "run", TINY, "hello", "-p", "x");
  check_refused(&run, "the prompt is given twice: with -p, and as the word 'hello'", "give one of them");
  RUN(&run, "run", TINY, "hello", "-f", "x");
  check_refused(&run, "the prompt is given twice: with -f", "give one of them");
}

TEST(a_model_word_overrides_the_configuration_file) {
  command_t run;
  setenv("MLXCEL_MODEL", "/nowhere/configured", 1);
  RUN(&run, "run", TINY, "the", FLAGS);
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "run", "-p", "the");
  CHECK_CONTAINS(run.err, "/nowhere/configured");
  command_free(&run);
  unsetenv("MLXCEL_MODEL");
}

// Parts of a shell script. The first makes an empty pipe: descriptor 8 reads, 9 writes. The second makes one
// that has "the" and no writer: the data is there before mlxcel starts, however busy the machine is.
#define OPEN_PIPE "f=/tmp/mlxcel-fifo.$$; mkfifo $f && exec 9<>$f 8<$f; rm $f; "
#define FULL_PIPE OPEN_PIPE "echo the >&9; exec 9<&-; "

TEST(a_pipe_comes_before_a_prompt_that_is_a_word) {
  command_t run, flag;
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            FULL_PIPE MLXCEL_BINARY " run " TINY
                                                                    " quick --temp 0 -n 4 --device cpu <&8",
                                            NULL});
  command_wait(&run);
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
}

// Starts `mlxcel run - WORDS` on an empty pipe, then the same command without "-", which gives up waiting for
// the pipe. When the second has ended, the first must still wait; only then the pipe gets |text|.
static void check_dash_waits(const char *words, const char *text) {
  command_t run, flag;
  char script[2048];
  snprintf(script, sizeof script,
           OPEN_PIPE MLXCEL_BINARY
           " run " TINY " - %s --temp 0 -n 4 --device cpu <&8 9<&- & waiting=$!; " MLXCEL_BINARY " run " TINY
           " other --temp 0 -n 4 --device cpu <&8 >/dev/null 2>&1; "
           "kill -0 $waiting || exit 9; echo %s >&9; exec 9<&-; wait $waiting",
           words, text);
  command_start(&run, (const char *const[]){"/bin/sh", "-c", script, NULL});
  command_wait(&run);
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
}

// A pipe that stays open without data is not waited for. "-" waits for it.
TEST(an_open_pipe_does_not_block_a_prompt) {
  command_t run, flag;
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            OPEN_PIPE MLXCEL_BINARY
                                            " run " TINY " 'the quick' --temp 0 -n 4 --device cpu <&8",
                                            NULL});
  command_wait(&run);
  CHECK_CONTAINS(run.err, "stdin has no data: it is not read");
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
  check_dash_waits("quick", "the");
  check_dash_waits("", "the quick");
}

static void check_text(const char *escaped, const char *plain) {
  command_t a, b;
  RUN(&a, "tokenize", TINY, "-p", escaped);
  RUN(&b, "tokenize", TINY, plain);
  check_same(&a, &b);
  RUN(&a, "tokenize", TINY, "-e", escaped);
  RUN(&b, "tokenize", TINY, "-p", plain, "--no-escape");
  check_same(&a, &b);
}

// Runs a shell command in which $1 is mlxcel, and compares its output with that of tokenizing |text|.
static void check_shell(const char *line, const char *text) {
  command_t a, b;
  command_start(&a, (const char *const[]){"/bin/sh", "-c", line, "sh", MLXCEL_BINARY, NULL});
  command_wait(&a);
  RUN(&b, "tokenize", TINY, text);
  check_same(&a, &b);
}

#define PATH_TEXT "C:\\new\\table"  // has the escapes \n and \t
#define PATH_REPLACED "C:\new\table"

TEST(words_pipes_and_files_are_taken_as_they_are) {
  static const char prefix[] = "\"prompt_ids\": [";
  command_t a, b;
  CHECK(strlen(PATH_TEXT) == 12 && strlen(PATH_REPLACED) == 10);
  check_shell("printf '%s' 'C:\\new\\table' | \"$1\" tokenize " TINY, PATH_TEXT);
  check_shell("printf '%s' 'C:\\new\\table' | \"$1\" tokenize -e " TINY, PATH_REPLACED);
  check_shell("printf '%s' 'C:\\new\\table' | \"$1\" tokenize -f - " TINY, PATH_TEXT);
  check_shell("\"$1\" tokenize " TINY " 'C:\\new\\table'", PATH_TEXT);
  static const char *const lines[][2] = {
      {"\"$1\" run -n 1 --json -q " TINY " 'C:\\new\\table' </dev/null", PATH_TEXT},
      {"\"$1\" run -n 1 --json -q " TINY " -e 'C:\\new\\table' </dev/null", PATH_REPLACED},
      {"printf '%s\\n' 'C:\\new\\table' | \"$1\" run -n 1 --json -q " TINY, PATH_TEXT},
      {"printf '%s\\n' 'C:\\new\\table' | \"$1\" run -n 1 --json -q -e " TINY, PATH_REPLACED},
      {"printf '%s\\n' 'C:\\new\\table' | \"$1\" run -n 1 --json -q " TINY " -f -", PATH_TEXT},
      {"printf '%s\\n' 'C:\\new\\table' | \"$1\" run -n 1 --json -q " TINY " -f - -e", PATH_REPLACED},
      {"\"$1\" run -n 1 --json -q " TINY " -p 'C:\\new\\table'", PATH_REPLACED},
      {"\"$1\" run -n 1 --json -q " TINY " -p 'C:\\new\\table' --no-escape", PATH_TEXT}};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
    char ids[256] = "";
    command_start(&a, (const char *const[]){"/bin/sh", "-c", lines[i][0], "sh", MLXCEL_BINARY, NULL});
    command_wait(&a);
    RUN(&b, "tokenize", TINY, lines[i][1]);
    if (a.exit_code || b.exit_code) CHECK_FAIL("%s: %s%s", lines[i][0], a.err, b.err);
    strcpy(ids, prefix);
    for (const char *at = b.out; *at; ++at) {  // one ID per line, to a JSON list
      const size_t end = strlen(ids);
      snprintf(ids + end, sizeof ids - end, *at != '\n' ? "%c" : at[1] ? ", " : "]", *at);
    }
    CHECK_CONTAINS(a.out, ids);
    command_free(&a);
    command_free(&b);
  }
}

TEST(replaced_escapes_of_a_prompt_are_noted_once) {
  static const char note[] =
      "mlxcel run: escapes such as \\n in --prompt were replaced, as in llama.cpp; --no-escape keeps the "
      "text\n";
  command_t run;
  RUN(&run, "run", TINY, "-p", PATH_TEXT, FLAGS);
  const char *found = strstr(run.err, note);
  CHECK(found && !strstr(found + strlen(note), "escapes such as"));
  command_free(&run);
  static const char *const silent[][4] = {{"-p", PATH_TEXT, "-q", NULL},
                                          {"-p", PATH_TEXT, "-e", NULL},
                                          {"-p", PATH_TEXT, "--no-escape", NULL},
                                          {"-p", "a \\q b", "-t", "1"},  // no escape
                                          {PATH_TEXT, "--stop", "\\n", NULL}};
  for (size_t i = 0; i < sizeof silent / sizeof *silent; ++i) {
    RUN(&run, "run", TINY, FLAGS, silent[i][0], silent[i][1], silent[i][2], silent[i][3]);
    CHECK_INT(run.exit_code, 0);
    CHECK(!strstr(run.err, "escapes such as"));
    command_free(&run);
  }
  RUN(&run, "run", TINY, "x", "-e", "--no-escape");
  check_refused(&run, "both --escape and --no-escape were given", "give one of them");
  setenv("MLXCEL_RUN_NO_ESCAPE", "true", 1);  // the command line is stronger
  RUN(&run, "run", TINY, FLAGS, "-p", PATH_TEXT, "-e", "--json");
  unsetenv("MLXCEL_RUN_NO_ESCAPE");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
}

// The chat template shows the system message as the model reads it.
TEST(a_system_message_has_escapes_on_request) {
  static const char *const options[] = {NULL, "-e"};
  for (size_t i = 0; i < 2; ++i) {
    command_t a, b;
    RUN(&a, "run", TINY, "--chat-template", "chatml", "x", "-n", "1", "--json", "-sys", "a\\tb", options[i]);
    RUN(&b, "run", TINY, "--chat-template", "chatml", "x", "-n", "1", "--json", "-sys", "a\tb");
    CHECK(a.exit_code == 0 && b.exit_code == 0);
    *strchr(a.out, ']') = *strchr(b.out, ']') = 0;
    CHECK_INT(!strcmp(a.out, b.out), i);
    command_free(&a);
    command_free(&b);
  }
}

TEST(a_base_model_says_that_it_completes_the_text) {
  static const char note[] = "base model: completing the text; chat needs an instruct model";
  command_t run;
  RUN(&run, "run", TINY, "the", FLAGS);
  const char *found = strstr(run.err, note);
  CHECK(found && !strstr(found + 1, "base model"));
  CHECK(!strstr(run.out, "base model"));
  command_free(&run);
  static const char *const silent[][2] = {{"--raw", NULL}, {"-q", NULL}, {"--chat-template", "chatml"}};
  for (size_t i = 0; i < sizeof silent / sizeof *silent; ++i) {
    RUN(&run, "run", TINY, "the", FLAGS, silent[i][0], silent[i][1]);
    CHECK_INT(run.exit_code, 0);
    CHECK(!strstr(run.err, "base model"));
    command_free(&run);
  }
}

TEST(escapes_are_those_of_llama_cpp) {
  check_text("a\\nb\\tc\\rd", "a\nb\tc\rd");
  check_text("\\\\n \\\" \\'", "\\n \" '");
  check_text("\\x41\\x4a\\x5A", "AJZ");
  check_text("\\q \\x4 \\xzz \\x00 end\\", "\\q \\x4 \\xzz \\x00 end\\");  // not escapes
  command_t a, b;
  RUN(&a, "run", TINY, "-p", "the\\tquick", "--stop", "\\n", FLAGS, "--json", "-s", "1");
  RUN(&b, "run", TINY, "-p", "the\tquick", "--stop", "\n", FLAGS, "--json", "-s", "1", "--no-escape");
  CHECK(a.exit_code == 0 && b.exit_code == 0);
  *strchr(a.out, '}') = *strchr(b.out, '}') = 0;
  *strstr(a.out, "\"timings\"") = *strstr(b.out, "\"timings\"") = 0;
  check_same(&a, &b);
}

// The configuration file has its own escapes, which are replaced once.
TEST(escapes_of_the_configuration_file_are_replaced_once) {
  static const char text[] = "[tokenize]\nprompt = \"a\\\\nb\"\n";  // the value is a, backslash, n, b
  char path[] = "/tmp/mlxcel-words-XXXXXX";
  const int fd = mkstemp(path);
  command_t a, b;
  CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  close(fd);
  setenv("MLXCEL_CONFIG", path, 1);
  RUN(&a, "tokenize", TINY);
  setenv("MLXCEL_CONFIG", "/dev/null", 1);
  RUN(&b, "tokenize", TINY, "a\\nb");
  check_same(&a, &b);
  unlink(path);
}

TEST(a_suggestion_is_a_similar_option) {
  static const char *const rows[][2] = {{"--ignore-eso", "'--ignore-eos'"},
                                        {"--temprature", NULL},
                                        {"--topk", "'--top-k'"},
                                        {"-temp", "'--temp'"},
                                        {"--N", "'-n'"},
                                        {"-nlg", NULL},
                                        {"-x", NULL},
                                        {"--prot", "'--prompt'"},
                                        {"--strange", NULL},
                                        {"-help", "'--help'"},
                                        {"--jsno", "'--json'"},
                                        {"--q", "'-q'"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    command_t run;
    char hint[64];
    snprintf(hint, sizeof hint, "did you mean %s?", rows[i][1] ? rows[i][1] : "");
    RUN(&run, "run", TINY, rows[i][0]);
    check_refused(&run, "unknown option", rows[i][1] ? hint : NULL);
  }
  const char *const names[] = {"run", "push", "list", "cuda", NULL};
  CHECK(!mlx_nearest_name("rm", names));
  CHECK(!mlx_nearest_name("ps", names));
  CHECK_TEXT(mlx_nearest_name("cdua", names), "cuda");  // two swapped letters are one edit
}

TEST(foreign_options_are_translated_or_noted) {
  command_t a, b;
  RUN(&a, "run", TINY, "-p", "the", "--temperature", "0", "--max_tokens=4", "--device", "cpu", "-q");
  RUN(&b, "run", TINY, "-p", "the", FLAGS);
  check_same(&a, &b);
  RUN(&a, "run", TINY, "-p", "the", FLAGS, "-ngl", "99", "-fa", "-b", "64", "-ub", "64");
  CHECK_INT(a.exit_code, 0);
  CHECK_CONTAINS(a.err, "mlxcel run: -ngl is ignored: all layers are on the GPU");
  CHECK_CONTAINS(a.err, "mlxcel run: -b is ignored: ");
  CHECK(!strstr(a.err, "-ub is ignored"));  // the same sentence, once
  command_free(&a);
  RUN(&a, "run", TINY, "-p", "the", FLAGS, "-ngl", "99", "-q");
  CHECK_TEXT(a.err, "");
  command_free(&a);
  setenv("HF_ENDPOINT", "http://127.0.0.1:9", 1);
  RUN(&b, "run", "-hf", "hf.co/acme/tiny", "x");
  CHECK(!strstr(b.err, "hf:hf.co"));
  CHECK_INT(b.exit_code, MLX_UNAVAILABLE);
  unsetenv("HF_ENDPOINT");
  command_free(&b);
  RUN(&a, "run", TINY, "-p", "the", "-ngl");
  check_refused(&a, "option -ngl needs a value", "");
  RUN(&a, "sign", "-ngl", "9");  // a verb that runs no model
  check_refused(&a, "unknown option '-ngl'", NULL);
  RUN(&a, "run", TINY, "-p", "x", "--rope-scaling", "yarn");
  check_refused(&a, "there is no option '--rope-scaling'", "hint: remove it: the RoPE settings");
}

TEST(help_lists_parallel_once) {
  command_t run;
  RUN(&run, "serve", "--help-all");
  const char *first = strstr(run.out, "--parallel N");
  CHECK(first && !strstr(first + 1, "--parallel N"));
  command_free(&run);
}

TEST(verbs_of_other_programs_are_answered) {
  static const char *const rows[][2] = {{"ps", "`mlxcel list` lists the models on this machine, GET /api/ps"},
                                        {"stop", "Ctrl-C ends `mlxcel run` and `mlxcel serve`"},
                                        {"cp", "copy it with cp"},
                                        {"quantize", "mlxcel compile MODEL --quantize q4"},
                                        {"convert", "no conversion is needed"},
                                        {"create", "there are no Modelfiles"}};
  command_t run, other;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    RUN(&run, rows[i][0], "x");
    check_refused(&run, "unknown verb", rows[i][1]);
  }
  RUN(&run, "chat", TINY, "-p", "the", FLAGS);
  RUN(&other, "generate", TINY, "-p", "the", FLAGS);
  check_same(&run, &other);
}

TEST(a_model_in_the_place_of_a_verb_suggests_run) {
  static const char *const rows[][2] = {
      {"model.gguf", "hint: mlxcel run model.gguf\n"},
      {"qwen3", "hint: mlxcel run qwen3\n"},
      {"qwen3:0.6b", "hint: mlxcel run qwen3:0.6b\n"},
      {"acme/tiny", "hint: mlxcel run acme/tiny\n"},
      {"hf:acme/tiny:Q4_0", "hint: mlxcel run hf:acme/tiny:Q4_0\n"},
      {TINY, "hint: mlxcel run " TINY "\n"},
      {"stored-model", "hint: mlxcel run stored-model\n"},
      {"llama3", "hint: did you mean a model? mlxcel run llama3.1:8b (or llama3.2:3b)"},
      {"rnu", "hint: did you mean 'run'?"},
      {"serv", "hint: did you mean 'serve'?"},
      {"xyzzy", "hint: `mlxcel --help` lists the verbs"}};
  command_t run;
  strcpy(folder, "/tmp/mlxcel-words-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_make_dirs(in_folder("models/acme"), 0755));
  CHECK_OK(mlx_write_file(in_folder("models/acme/stored-model.gguf"), "x", 1));
  setenv("MLXCEL_CACHE", folder, 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    RUN(&run, rows[i][0], "x");
    check_refused(&run, "unknown verb", rows[i][1]);
  }
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_schema_that_names_a_file_is_explained) {
  command_t run;
  RUN(&run, "run", TINY, "x", "-j", "person.json");
  check_refused(&run, "expects JSON, not the name of a file: 'person.json'",
                "hint: -j @person.json reads the file");
  RUN(&run, "run", TINY, "x", "-j", TINY "/config.json");
  check_refused(&run, "expects JSON, not the name of a file", "hint: -j @");
}

TEST_MAIN(CASE(the_first_word_is_the_model), CASE(with_the_flag_of_the_model_the_words_are_the_prompt),
          CASE(a_model_or_prompt_given_twice_is_refused), CASE(a_model_word_overrides_the_configuration_file),
          POSIX_CASE(a_pipe_comes_before_a_prompt_that_is_a_word),
          POSIX_CASE(an_open_pipe_does_not_block_a_prompt), CASE(escapes_are_those_of_llama_cpp),
          POSIX_CASE(words_pipes_and_files_are_taken_as_they_are),
          CASE(replaced_escapes_of_a_prompt_are_noted_once), CASE(a_system_message_has_escapes_on_request),
          CASE(a_base_model_says_that_it_completes_the_text),
          CASE(a_model_in_the_place_of_a_verb_suggests_run),
          POSIX_CASE(escapes_of_the_configuration_file_are_replaced_once),
          CASE(a_suggestion_is_a_similar_option), CASE(foreign_options_are_translated_or_noted),
          CASE(help_lists_parallel_once), CASE(verbs_of_other_programs_are_answered),
          CASE(a_schema_that_names_a_file_is_explained))
