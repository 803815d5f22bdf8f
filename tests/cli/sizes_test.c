// Context length, sequences and memory of the KV cache on the command line.
#include "base/file.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static char folder[] = "/tmp/mlxcel-sizes-XXXXXX";

// Expects exit status |code|, an empty stdout and |part| on stderr.
static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

// Neither the context length nor the sequences nor the memory are part of a compiled model.
TEST(sizes_are_chosen_at_load_without_compiling_again) {
  command_t run;
  CHECK(mkdtemp(folder));
  setenv("MLXCEL_CACHE", folder, 1);  // a new cache
  RUN(&run, "run", "--temp", "0", "-m", TINY, "-p", "the", "-n", "4", "-c", "64");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "compiled tiny-llama");
  command_free(&run);
  static const char *const flags[][2] = {
      {"-c", "2048"}, {"-c", "0"}, {"--parallel", "3"}, {"--memory", "1M"}, {"--memory", "300k"}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; ++i) {
    RUN(&run, "run", "--temp", "0", "-m", TINY, "-p", "the", "-n", "4", flags[i][0], flags[i][1]);
    CHECK_INT(run.exit_code, 0);
    CHECK(!strstr(run.err, "compiled"));
    command_free(&run);
  }
  RUN(&run, "run", "-m", TINY, "-p", "the", "-n", "1", "-c", "2048", "--memory", "300K");
  check_refused(&run, MLX_OUT_OF_MEMORY, "0.3 MiB are allowed (--memory)");
  static const char *const sizes[] = {"", "x", "-1", "0", "1X", "1MB", "99999999999T"};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    RUN(&run, "run", "-m", TINY, "-p", "the", "-n", "1", "--memory", sizes[i]);
    check_refused(&run, MLX_USAGE, "option --memory expects a size such as 512M or 8G, not '");
  }
  RUN(&run, "run", "-m", TINY, "-p", "the", "-n", "1", "--memory", "1000T");
  check_refused(&run, MLX_OUT_OF_MEMORY, "--memory wants 1024000.0 GiB");
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(sizes_are_chosen_at_load_without_compiling_again))
