// Words and options of the command line: the model and the prompt as words, escapes, options of other
// programs, and suggestions.
#include "base/text.h"
#include "tests/check.h"
#include "tests/command.h"
#include "tests/folder.h"

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

TEST(a_model_or_prompt_given_twice_is_refused) {
  command_t run;
  RUN(&run, "run", "-m", TINY, "hello");
  check_refused(&run, "the model is given twice: with -m, and as the word 'hello'",
                "hint: remove -m, or give a prompt with -p");
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

TEST(a_pipe_comes_before_a_prompt_that_is_a_word) {
  command_t run, flag;
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            "echo the | " MLXCEL_BINARY " run " TINY
                                            " quick --temp 0 -n 4 --device cpu",
                                            NULL});
  command_wait(&run);
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
}

// A pipe that stays open without data is not waited for. "-" waits for it.
TEST(an_open_pipe_does_not_block_a_prompt) {
  command_t run, flag;
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            "mkfifo /tmp/mlxcel-fifo.$$ && exec 9<>/tmp/mlxcel-fifo.$$; rm "
                                            "/tmp/mlxcel-fifo.$$; timeout 60 " MLXCEL_BINARY " run " TINY
                                            " 'the quick' --temp 0 -n 4 --device cpu <&9",
                                            NULL});
  command_wait(&run);
  CHECK_CONTAINS(run.err, "stdin has no data: it is not read");
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            "(sleep 0.6; echo the) | " MLXCEL_BINARY " run " TINY
                                            " - quick --temp 0 -n 4 --device cpu",
                                            NULL});
  command_wait(&run);
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            "(sleep 0.6; echo the quick) | " MLXCEL_BINARY " run " TINY
                                            " - --temp 0 -n 4 --device cpu",
                                            NULL});
  command_wait(&run);
  RUN(&flag, "run", TINY, "-p", "the quick", FLAGS);
  check_same(&run, &flag);
}

static void check_text(const char *escaped, const char *plain) {
  command_t a, b;
  RUN(&a, "tokenize", TINY, escaped);
  RUN(&b, "tokenize", TINY, plain, "--no-escape");
  check_same(&a, &b);
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
  RUN(&b, "tokenize", TINY, "a\\nb", "--no-escape");
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
  RUN(&b, "run", "-hf", "hf.co/acme/tiny", "-p", "x");
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
  RUN(&run, "run", "--help-all");
  const char *first = strstr(run.out, "--parallel N");
  CHECK(first && !strstr(first + 1, "--parallel N"));
  CHECK_CONTAINS(run.out, "in PROMPT, -p, -sys and --stop");
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
  RUN(&run, "model.gguf");
  check_refused(&run, "unknown verb 'model.gguf'", "hint: mlxcel run model.gguf");
}

TEST(a_schema_that_names_a_file_is_explained) {
  command_t run;
  RUN(&run, "run", TINY, "x", "-j", "person.json");
  check_refused(&run, "expects JSON, not the name of a file: 'person.json'",
                "hint: -j @person.json reads the file");
  RUN(&run, "run", TINY, "x", "-j", TINY "/config.json");
  check_refused(&run, "expects JSON, not the name of a file", "hint: -j @");
}

TEST_MAIN(CASE(the_first_word_is_the_model), CASE(a_model_or_prompt_given_twice_is_refused),
          CASE(a_model_word_overrides_the_configuration_file),
          POSIX_CASE(a_pipe_comes_before_a_prompt_that_is_a_word),
          POSIX_CASE(an_open_pipe_does_not_block_a_prompt), CASE(escapes_are_those_of_llama_cpp),
          POSIX_CASE(escapes_of_the_configuration_file_are_replaced_once),
          CASE(a_suggestion_is_a_similar_option), CASE(foreign_options_are_translated_or_noted),
          CASE(help_lists_parallel_once), CASE(verbs_of_other_programs_are_answered),
          CASE(a_schema_that_names_a_file_is_explained))
