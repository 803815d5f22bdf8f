// Faults of the system are errors with a documented exit status: a mapped file that is truncated, a limit on
// file sizes, a closed stdout, and threads that cannot start.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "shim/shim.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/random_llama.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

// Runs a shell script in the folder and checks its exit status and stderr. MLXCEL is the binary.
static void check_script(const char *script, int status, const char *part) {
  command_t run;
  char whole[2048];
  snprintf(whole, sizeof whole, "cd %s; MLXCEL=" MLXCEL_BINARY "; %s", folder, script);
  command_start(&run, (const char *const[]){"/bin/sh", "-c", whole, NULL});
  command_wait(&run);
  if (run.exit_code != status)
    CHECK_FAIL("'%s' has exit status %d, expected %d: %s", script, run.exit_code, status, run.err);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
}

// ----------------------------------------------------------------------------------------------------------
// Mapped files

static void exit_with_path(const char *path) {
  (void)!write(STDERR_FILENO, path, strlen(path));
  _exit(MLX_IO);
}

// Reads a mapped file after truncating it, or (|other|) another file.
static int read_truncated(const char *path, bool other) {
  mlx_map_t map, second;
  mlx_fault_watch(exit_with_path);
  if (mlx_map_file(path, &map) || mlx_map_file(MLXCEL_BINARY, &second)) return 100;
  if (truncate(path, 0)) return 101;
  if (other) mlx_unmap(&map);
  return ((const volatile uint8_t *)(other ? second.data : map.data))[5000] == 255 ? 102 : 103;
}

TEST(a_fault_on_a_mapped_file_gives_its_path) {
  char bytes[20000] = "x";
  int status, ends[2];
  for (int other = 0; other < 2; ++other) {
    CHECK_OK(mlx_write_file(in_folder("mapped"), bytes, sizeof bytes));
    CHECK(!pipe(ends));
    const pid_t child = fork();
    if (!child) {
      dup2(ends[1], STDERR_FILENO);
      _exit(read_truncated(in_folder("mapped"), other));
    }
    close(ends[1]);
    char said[512] = "";
    CHECK(read(ends[0], said, sizeof said - 1) >= 0);
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), other ? 103 : MLX_IO);
    CHECK_TEXT(said, other ? "" : in_folder("mapped"));
  }
}

// Reads two files after the first one was truncated. The rest of its map is zeros, and the other map is
// intact.
static int read_recovered(const char *path) {
  mlx_map_t map, other;
  mlx_fault_watch(exit_with_path);
  mlx_fault_recover();
  if (mlx_map_file(path, &map) || mlx_map_file(MLXCEL_BINARY, &other)) return 100;
  const volatile uint8_t *bytes = map.data, *others = other.data;
  if (mlx_fault_hit(map.data) || bytes[15000] != 'x' || truncate(path, 100)) return 101;
  if (bytes[50] != 'x' || mlx_fault_hit(map.data)) return 102;  // the page of the new end can be read
  if (bytes[15000] || bytes[19999] || bytes[5000] || bytes[50] != 'x') return 103;
  if (!mlx_fault_hit(map.data) || !mlx_fault_hit(map.data + 19999)) return 104;
  if (others[1] != 'E' || mlx_fault_hit(other.data) || mlx_fault_count() != 2) return 105;
  mlx_unmap(&map);
  return mlx_fault_hit(map.data);
}

TEST(a_fault_that_is_recovered_leaves_zeros_and_is_recorded) {
  char bytes[20000];
  int status;
  memset(bytes, 'x', sizeof bytes);
  CHECK_OK(mlx_write_file(in_folder("recovered"), bytes, sizeof bytes));
  const pid_t child = fork();
  if (!child) _exit(read_recovered(in_folder("recovered")));
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK_INT(WEXITSTATUS(status), 0);
}

TEST(weights_truncated_while_a_model_runs_are_named) {
  static const random_llama_t shape = {384, 1024, 6, 2, 64, 4, 4000, true, 10000};
  random_llama_write(&shape, folder, "model");
  check_script("$MLXCEL compile model -c 2048 -o m.mlxb", 0, "");
  check_script(
      "$MLXCEL run -m m.mlxb -p the -n 2000 --ignore-eos --temp 1 --device cpu > out & "
      "n=0; while [ ! -s out ] && [ $n -lt 1000 ]; do sleep 0.02; n=$((n + 1)); done; "
      "kill -STOP $!; : > m.mlxb/weights.irpa; kill -CONT $!; wait $!",
      MLX_IO, "m.mlxb/weights.irpa': the file was truncated while it was in use");
}

// ----------------------------------------------------------------------------------------------------------
// Files and streams

TEST(a_limit_on_file_sizes_is_an_error) {
  check_script("$MLXCEL compile " TINY " -c 64 -o whole.mlxb && $MLXCEL compile " TINY
               " -c 64 --single-file -o whole-one.mlxb",
               0, "");
  check_script("ulimit -f 8; $MLXCEL compile " TINY " -c 64 -o limited.mlxb", MLX_IO, "ulimit -f");
  check_script("ulimit -f 8; $MLXCEL compile " TINY " -c 64 --single-file -o limited.mlxb", MLX_IO,
               "File too large");
  check_script("ls -a | grep limited", 1, "");
}

// An error names the file that the user asked for, not the temporary file that is renamed to it.
TEST(errors_do_not_show_temporary_names) {
  static const char *const commands[] = {"compile " TINY " -c 64 -o out.mlxb",
                                         "compile " TINY " -c 64 --single-file -o out.mlxb",
                                         "compile " TINY " -c 64 --emit stablehlo -o out.mlir",
                                         "compile " TINY " -c 64 -o /proc/out.mlxb",
                                         "compile " TINY " --emit stablehlo -o /proc/out.mlir",
                                         "keygen -W -o /proc/out",
                                         "bench " TINY " --device cpu -p 8 -n 0 -r 1 --plot /proc/out.svg"};
  for (size_t i = 0; i < sizeof commands / sizeof *commands; ++i) {
    command_t run;
    char script[512];
    snprintf(script, sizeof script, "cd %s; %s " MLXCEL_BINARY " %s", folder, i < 3 ? "ulimit -f 8;" : "",
             commands[i]);
    command_start(&run, (const char *const[]){"/bin/sh", "-c", script, NULL});
    command_wait(&run);
    CHECK(run.exit_code == MLX_IO || run.exit_code == MLX_NOT_FOUND);
    CHECK_CONTAINS(run.err, "out");
    if (strstr(run.err, ".tmp.") || strstr(run.err, "XXXXXX")) CHECK_FAIL("'%s': %s", commands[i], run.err);
    command_free(&run);
  }
}

TEST(errors_keep_a_date_in_a_name) {
  char *text;
  CHECK_ERROR(mlx_read_file("/nowhere/model.2024-11-16.gguf", 1, &text, NULL), MLX_NOT_FOUND,
              "'/nowhere/model.2024-11-16.gguf'");
  CHECK_ERROR(mlx_read_file("/nowhere/a.tmp.12.17f-0/b.gguf", 1, &text, NULL), MLX_NOT_FOUND,
              "'/nowhere/a/b.gguf'");
}

TEST(output_to_a_closed_stdout_is_an_error) {
  static const char *const outputs[] = {"--version",
                                        "--help",
                                        "help run",
                                        "show " TINY,
                                        "tokenize -m " TINY " -p the",
                                        "run -m " TINY " -p the -n 3 --temp 0 --device cpu -q"};
  char script[512];
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; ++i) {
    snprintf(script, sizeof script, "$MLXCEL %s >&-", outputs[i]);
    check_script(script, MLX_IO, "cannot write to stdout");
    snprintf(script, sizeof script, "$MLXCEL %s > /dev/full", outputs[i]);
    check_script(script, MLX_IO, "cannot write to stdout");
    snprintf(script, sizeof script, "$MLXCEL %s > /dev/null 2>&- <&-", outputs[i]);
    check_script(script, 0, "");
  }
}

// ----------------------------------------------------------------------------------------------------------
// Ctrl-C

// Runs mlxcel, presses Ctrl-C as soon as it prints text, and checks that it ends by SIGINT, which a shell
// reports as 130.
static void check_interrupted(const char *const *argv, const char *part) {
  command_t run;
  struct stat info = {0};
  command_start(&run, argv);
  for (int i = 0; i < 3000 && !info.st_size; ++i) {
    usleep(10000);
    CHECK(!stat(run.out_path, &info));
  }
  kill((pid_t)run.pid, SIGINT);
  command_wait(&run);
  if (run.exit_code != -SIGINT) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.err, part);
  CHECK(run.out_length > 0);
  command_free(&run);
}

TEST(ctrl_c_prints_the_timing_line_and_exits_with_130) {
  static const random_llama_t shape = {384, 1024, 6, 2, 64, 4, 4000, true, 10000};
  random_llama_write(&shape, folder, "slow");
  check_script("$MLXCEL compile slow -c 2048 -o slow.mlxb", 0, "");
  char *bundle;
  CHECK_OK(mlx_join_path(folder, "slow.mlxb", &bundle));
  check_interrupted((const char *const[]){MLXCEL_BINARY, "run", bundle, "the", "-n", "2000", "--ignore-eos",
                                          "--temp", "1", "--device", "cpu", NULL},
                    "\ncancelled: load ");
  mlx_free(bundle);
}

// ----------------------------------------------------------------------------------------------------------
// Threads

static atomic_int threads_left = 1 << 30;

// Replaces the C library's function in this program.
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *user) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  return atomic_fetch_sub(&threads_left, 1) > 0 ? real(thread, attributes, start, user) : EAGAIN;
}

TEST(a_thread_that_cannot_start_means_no_resources) {
  mlx_device_t *device;
  for (int left = 0; left < 9; ++left) {
    threads_left = left;
    mlx_status_t status = mlx_device_open(MLX_DEVICE_CPU, 8, &device);
    threads_left = 1 << 30;
    CHECK_ERROR(status, MLX_OUT_OF_MEMORY, "the system has no resources for 9 threads");
  }
  CHECK_OK(mlx_device_open(MLX_DEVICE_CPU, 8, &device));
  mlx_device_close(device);
}

static char unfinished[512];  // the archive that is being written

static mlx_status_t find_archive(void *user, const char *name) {
  char path[400];
  (void)user;
  snprintf(path, sizeof path, "%s/cache/tmp/%s/weights.irpa", folder, name);
  if (mlx_is_file(path)) snprintf(unfinished, sizeof unfinished, "%s", path);
  return NULL;
}

// Sends |number| to a process that packs weights. Writing a file of 100 MB takes long enough to be seen,
// except if this process does not run meanwhile: then it is tried again.
static void interrupt_packing(int number) {
  const double end = command_now() + 120;
  command_t run;
  for (bool seen = false; !seen;) {
    CHECK(command_now() < end);
    CHECK_OK(mlx_remove_tree(in_folder("cache")));
    CHECK_OK(mlx_make_dirs(in_folder("cache/tmp"), 0700));
    CHECK(!chmod(in_folder("cache"), 0700));
    unfinished[0] = 0;
    command_start(&run, (const char *const[]){MLXCEL_BINARY, "run", "-m", in_folder("large"), "-p", "the",
                                              "-n", "1", "--device", "cpu", NULL});
    while (!unfinished[0] && !waitpid((pid_t)run.pid, NULL, WNOHANG))
      CHECK_OK(mlx_list_dir(in_folder("cache/tmp"), find_archive, NULL));
    seen = unfinished[0] && !kill((pid_t)run.pid, number);
    command_wait(&run);
    seen = seen && run.exit_code == -number;
    command_free(&run);
  }
  CHECK(!mlx_is_file(unfinished));
}

TEST(a_signal_while_weights_are_written_removes_them) {
  static const random_llama_t shape = {512, 1024, 8, 2, 64, 2, 40000, false, 10000};
  random_llama_write(&shape, folder, "large");
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  interrupt_packing(SIGINT);
  interrupt_packing(SIGTERM);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(a_fault_on_a_mapped_file_gives_its_path),
                                       CASE(a_fault_that_is_recovered_leaves_zeros_and_is_recorded),
                                       CASE(weights_truncated_while_a_model_runs_are_named),
                                       CASE(a_limit_on_file_sizes_is_an_error),
                                       CASE(errors_do_not_show_temporary_names),
                                       CASE(errors_keep_a_date_in_a_name),
                                       CASE(output_to_a_closed_stdout_is_an_error),
                                       CASE(ctrl_c_prints_the_timing_line_and_exits_with_130),
                                       CASE(a_thread_that_cannot_start_means_no_resources),
                                       CASE(a_signal_while_weights_are_written_removes_them)};
  strcpy(folder, "/tmp/mlxcel-signals-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(folder));
  return failed;
}
