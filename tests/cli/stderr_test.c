// The end of stdout, and messages on stderr: the device line, the timing line, --quiet and --verbose.
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-stderr-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

// Runs with the cache in the test's folder, which is empty at first.
#define RUN_FRESH(command, ...)                    \
  do {                                             \
    setenv("MLXCEL_CACHE", in_folder("cache"), 1); \
    RUN(command, __VA_ARGS__);                     \
    setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);  \
  } while (0)

TEST(the_reason_for_the_device_is_printed_with_verbose_only) {
  command_t run;
  RUN(&run, "run", "-m", TINY, "-p", "the", "-n", "1");
  CHECK_CONTAINS(run.err, "device: c");
  CHECK(!strstr(run.err, "(auto: "));
  command_free(&run);
  RUN(&run, "run", "-m", TINY, "-p", "the", "-n", "1", "-v");
  CHECK_CONTAINS(run.err, " (auto: ");
  command_free(&run);
}

// The first run compiles, the second finds the module in the cache.
TEST(compile_time_is_not_part_of_load_time) {
  make_folder();
  command_t run;
  double compile, load;
  RUN_FRESH(&run, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "2", "-c", "64",
            "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  const char *summary = strstr(run.err, "\nlength: compile ");
  CHECK(summary &&
        sscanf(summary, "\nlength: compile %lf s; load %lf s; prompt 7 tokens, ", &compile, &load) == 2);
  CHECK(compile > load);  // the fixture loads in milliseconds
  command_free(&run);
  RUN_FRESH(&run, "run", "--temp", "0", "-m", TINY, "-p", "the", "-n", "1", "-c", "64", "--device", "cpu");
  CHECK_CONTAINS(run.err, "\nlength: load ");
  CHECK(!strstr(run.err, "compile "));
  CHECK_CONTAINS(run.err, "; prompt 1 token, ");
  CHECK_CONTAINS(run.err, "; output 1 token, ");
  command_free(&run);
  remove_folder();
}

TEST(quiet_prints_the_result_and_errors_only) {
  make_folder();
  command_t run;
  RUN_FRESH(&run, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "4", "-c", "64", "-q");
  CHECK_INT(run.exit_code, 0);
  CHECK(run.out_length > 0);
  CHECK_TEXT(run.err, "");
  command_free(&run);
  RUN(&run, "compile", TINY, "--ctx", "64", "-o", in_folder("m.mlxb"), "--quiet");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "");
  CHECK(mlx_is_dir(in_folder("m.mlxb")));
  command_free(&run);
  RUN(&run, "run", "-m", "/nowhere/model.gguf", "-p", "x", "-q");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "/nowhere/model.gguf");
  command_free(&run);
  RUN_FRESH(&run, "cache", "list", "-q");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "");
  command_free(&run);
  remove_folder();
}

// A newline is added only if the text has none at its end; a text of nothing stays empty.
TEST(output_ends_with_one_newline) {
  static const char *const rows[][2] = {
      {"root ::= \"ab\"", "ab\n"}, {"root ::= \"ab\\n\"", "ab\n"}, {"root ::= \"a\\n\\n\"", "a\n\n"}};
  command_t run;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    RUN(&run, "run", "--temp", "0", TINY, "the", "--grammar", rows[i][0]);
    CHECK_INT(run.exit_code, 0);
    CHECK_TEXT(run.out, rows[i][1]);
    CHECK_CONTAINS(run.err, "\nstop: load ");
    CHECK(!strstr(run.err, "\n\n"));
    command_free(&run);
  }
  RUN(&run, "run", "--temp", "0", TINY, "the", "-n", "0");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, "");
  command_free(&run);
}

TEST(quiet_and_verbose_exclude_each_other) {
  static const char *const verbs[] = {"run", "compile", "bench", "eval"};
  for (size_t i = 0; i < 4; ++i) {
    command_t run;
    RUN(&run, verbs[i], "-q", "-v");
    CHECK_INT(run.exit_code, MLX_USAGE);
    CHECK_TEXT(run.out, "");
    CHECK_CONTAINS(run.err, "--quiet and --verbose were both given\nhint: ");
    command_free(&run);
  }
}

TEST_MAIN(CASE(the_reason_for_the_device_is_printed_with_verbose_only),
          CASE(compile_time_is_not_part_of_load_time), CASE(quiet_prints_the_result_and_errors_only),
          CASE(output_ends_with_one_newline), CASE(quiet_and_verbose_exclude_each_other))
