// Killed and concurrent processes: leftovers of a killed compile, and ten processes that need the same model.
#include <signal.h>

#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define EXPECTED "\"output_ids\": [142, 218, 177, 4, 129, 92, 159, 114]"

static char folder[64], path[256];

static const char *in_folder(const char *name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-kill-XXXXXX");
  CHECK(mkdtemp(folder));
}

// A fake iree-compile that returns a module compiled before, slowly enough to be killed, and counts its
// calls. So thirty compilations take seconds. Everything else is real.
static void make_quick_compiler(void) {
  command_t run;
  RUN(&run, "compile", TINY, "--ctx", "64", "--emit", "vmfb", "-o", in_folder("real.vmfb"));
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  char script[1024];
  int length =
      snprintf(script, sizeof script,
               "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
               "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && out=$2; shift; done\n"
               "echo call >> %s/calls\nhead -c 100000 %s/real.vmfb > \"$out\"\nsleep 0.2\ncat %s/real.vmfb > "
               "\"$out\"\n",
               folder, folder, folder);
  CHECK_OK(mlx_write_file(in_folder("quick"), script, (size_t)length));
  CHECK(!chmod(in_folder("quick"), 0755));
}

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static mlx_status_t count_leftover(void *user, const char *name) {
  if (strstr(name, ".tmp.")) ++*(int *)user;
  return NULL;
}

static int leftovers(void) {
  int count = 0;
  CHECK_OK(mlx_list_dir(folder, count_leftover, &count));
  return count;
}

TEST(compile_killed_at_any_moment_leaves_nothing_that_is_trusted) {
  make_folder();
  make_quick_compiler();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  setenv("MLXCEL_IREE_COMPILE", in_folder("quick"), 1);
  uint64_t state = (uint64_t)time(NULL);
  fprintf(stderr, "  seed %llu\n", (unsigned long long)state);
  command_t run;
  RUN(&run, "compile", TINY, "--ctx", "64", "-o", in_folder("out.mlxb"));
  CHECK_INT(run.exit_code, 0);
  double whole = run.seconds;
  command_free(&run);
  int caught = 0;
  int kills = 0;
  for (; kills < 30 || (caught < 15 && kills < 200); ++kills) {
    CHECK_OK(mlx_remove_tree(in_folder("cache")));
    CHECK_OK(mlx_remove_tree(in_folder("out.mlxb")));
    char out[96];
    snprintf(out, sizeof out, "%s/out.mlxb", folder);
    command_start(&run,
                  (const char *const[]){MLXCEL_BINARY, "compile", TINY, "--ctx", "64", "-o", out, NULL});
    usleep((useconds_t)(whole * 1e6 * (double)(next_random(&state) % 1000) / 1000));
    kill(run.pid, SIGKILL);
    command_wait(&run);
    if (run.exit_code == -SIGKILL)
      ++caught;
    else
      whole *= 0.8;  // the first run was slower than this one
    command_free(&run);
    if (mlx_is_dir(out)) {  // published before the kill: it must be complete
      RUN(&run, "run", "--temp", "0", "-m", out, "-p", "the quick brown", "-n", "8", "--ignore-eos",
          "--json");
      if (run.exit_code || !strstr(run.out, EXPECTED))
        CHECK_FAIL("kill %d left a damaged bundle: %s%s", kills, run.err, run.out);
      command_free(&run);
    }
    RUN(&run, "compile", TINY, "--ctx", "64", "-o", out);
    if (run.exit_code) CHECK_FAIL("compile after kill %d: exit status %d: %s", kills, run.exit_code, run.err);
    command_free(&run);
    CHECK_INT(leftovers(), 0);
    RUN(&run, "run", "--temp", "0", "-m", out, "-p", "the quick brown", "-n", "8", "--ignore-eos", "--json");
    if (run.exit_code || !strstr(run.out, EXPECTED))
      CHECK_FAIL("after kill %d: exit status %d: %s%s", kills, run.exit_code, run.err, run.out);
    command_free(&run);
  }
  fprintf(stderr, "  %d of %d were killed before they ended\n", caught, kills);
  CHECK(caught >= 15);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  CHECK_OK(mlx_remove_tree(folder));
}

// A compile killed while it wrote a file of the bundle leaves folders with temporary names. Only folders that
// contain nothing but files of a bundle are removed.
TEST(leftovers_of_a_killed_compile_are_removed) {
  make_folder();
  make_quick_compiler();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  setenv("MLXCEL_IREE_COMPILE", in_folder("quick"), 1);
  static const char *const folders[] = {"out.mlxb.tmp.999999.18e837ca-c", "out.mlxb.tmp.999999.18e837ca-d"};
  static const char *const files[] = {"manifest.json.tmp.999999.18e837cb-d",
                                      "notes.txt.tmp.999999.18e837cb-e"};
  for (int i = 0; i < 2; ++i) {
    char file[128];
    CHECK_OK(mlx_make_dirs(in_folder(folders[i]), 0700));
    snprintf(file, sizeof file, "%s/%s", folders[i], files[i]);
    CHECK_OK(mlx_write_file(in_folder(file), "x", 1));
  }
  command_t run;
  RUN(&run, "compile", TINY, "--ctx", "64", "-o", in_folder("out.mlxb"));
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
  CHECK(!mlx_is_dir(in_folder(folders[0])));
  CHECK(mlx_is_dir(in_folder(folders[1])));
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(ten_concurrent_processes_compile_once) {
  make_folder();
  make_quick_compiler();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  setenv("MLXCEL_IREE_COMPILE", in_folder("quick"), 1);
  command_t runs[10];
  int waited = 0;
  for (int i = 0; i < 10; ++i) {
    command_start(&runs[i],
                  (const char *const[]){MLXCEL_BINARY, "run", "--temp", "0", "-m", TINY, "-c", "64", "-p",
                                        "the quick brown", "-n", "8", "--ignore-eos", "--json", NULL});
  }
  for (int i = 0; i < 10; ++i) {
    command_wait(&runs[i]);
    if (runs[i].exit_code || !strstr(runs[i].out, EXPECTED))
      CHECK_FAIL("exit status %d: %s%s", runs[i].exit_code, runs[i].err, runs[i].out);
    waited += strstr(runs[i].err, "waiting for another mlxcel") != NULL;
    command_free(&runs[i]);
  }
  char *calls;
  size_t length;
  CHECK_OK(mlx_read_file(in_folder("calls"), 1 << 20, &calls, &length));
  CHECK_TEXT(calls, "call\n");
  fprintf(stderr, "  %d of 10 reported that they wait\n", waited);
  CHECK(waited > 0);
  mlx_free(calls);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(compile_killed_at_any_moment_leaves_nothing_that_is_trusted),
          CASE(leftovers_of_a_killed_compile_are_removed), CASE(ten_concurrent_processes_compile_once))
