// Child processes: captured output, time limits, and no process left behind. The children are small shell
// scripts.
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"

static char folder[64];
static char log_path[80];

static const char *shell(const char *script) {
  static char text[1024];
  snprintf(text, sizeof text, "cd %s; %s", folder, script);
  return text;
}

#define SHELL(script) ((const char *const[]){"/bin/sh", "-c", shell(script), NULL})

static void check_log(const char *expected) {
  char *text;
  CHECK_OK(mlx_read_file(log_path, 1 << 20, &text, NULL));
  CHECK_TEXT(text, expected);
  mlx_free(text);
}

// The process id that a script writes to |name|; waits up to 60 seconds for it.
static pid_t read_pid(const char *name) {
  char path[128], *text;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  for (int i = 0; i < 6000; ++i) {
    size_t length = 0;
    mlx_status_t status = mlx_read_file(path, 64, &text, &length);
    if (!status && length && text[length - 1] == '\n') {
      pid_t pid = (pid_t)atol(text);
      mlx_free(text);
      unlink(path);
      return pid;
    }
    if (!status) mlx_free(text);
    mlx_status_free(status);
    usleep(10000);
  }
  CHECK_FAIL("%s was not written", path);
}

// True if the process is gone, or is a zombie whose parent has not reaped it yet.
static bool is_gone(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
  for (int i = 0; i < 3000; ++i) {
    if (kill(pid, 0) && errno == ESRCH) return true;
    FILE *file = fopen(path, "r");
    char state = 'Z';
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    if (file) fclose(file);
    if (state == 'Z') return true;
    usleep(10000);
  }
  return false;
}

TEST(log_has_the_head_and_both_streams) {
  mlx_process_options_t options = {
      .argv = SHELL("echo out; echo err >&2; exit 7"), .log_path = log_path, .log_head = "head\n"};
  mlx_process_result_t result;
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(result.exit_code, 7);
  CHECK_INT(result.signal, 0);
  CHECK(!result.timed_out && !result.cancelled && result.elapsed_seconds >= 0 && result.peak_bytes > 100000);
  check_log("head\nout\nerr\n");
  options.argv = SHELL("true");
  options.log_head = NULL;
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(result.exit_code, 0);
  check_log("");
}

// The shell prints its own CPU time, so the result does not depend on the machine's speed or load.
TEST(cpu_time_is_that_of_the_child) {
  mlx_process_options_t options = {.argv =
                                       SHELL("i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; times")};
  mlx_process_result_t busy, idle;
  char *text;
  int user_minutes, system_minutes;
  double user, system;
  CHECK_OK(mlx_process_capture(&options, 200, &text, &busy));
  CHECK(sscanf(text, "%dm%lfs %dm%lfs", &user_minutes, &user, &system_minutes, &system) == 4);
  const double own = 60 * (user_minutes + system_minutes) + user + system;
  mlx_free(text);
  CHECK(own >= 0.02);  // two ticks of the shell's clock
  if (busy.cpu_seconds < own - 0.02 || busy.cpu_seconds > own + 0.1)
    CHECK_FAIL("%.3f s of CPU time; the child counted %.3f", busy.cpu_seconds, own);
  options.argv = SHELL("sleep 0.3");
  CHECK_OK(mlx_process_run(&options, &idle));
  CHECK(idle.cpu_seconds < 0.2 && idle.elapsed_seconds >= 0.3);
}

TEST(signal_and_exit_status_are_distinguished) {
  mlx_process_options_t options = {.argv = SHELL("kill -SEGV $$"), .log_path = log_path};
  mlx_process_result_t result;
  char text[64];
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(result.signal, SIGSEGV);
  mlx_process_describe(&result, text, sizeof text);
  CHECK_TEXT(text, "signal 11 (Segmentation fault)");
  mlx_process_describe(&(mlx_process_result_t){.exit_code = 3}, text, sizeof text);
  CHECK_TEXT(text, "exit status 3");
}

TEST(missing_tool_is_an_error_with_its_name) {
  mlx_process_options_t options = {.argv = (const char *const[]){"/no/such/tool", NULL},
                                   .log_path = log_path};
  mlx_process_result_t result;
  CHECK_ERROR(mlx_process_run(&options, &result), MLX_NOT_FOUND, "/no/such/tool");
  options.argv = (const char *const[]){"/dev/null", NULL};
  CHECK_ERROR(mlx_process_run(&options, &result), MLX_IO, "/dev/null");
  options.argv = SHELL("true");
  options.log_path = "/no/such/folder/log";
  CHECK_ERROR(mlx_process_run(&options, &result), MLX_NOT_FOUND, "/no/such/folder/log");
}

TEST(stdin_is_empty_and_open_files_are_not_inherited) {
  char *text, path[96];
  mlx_process_result_t result;
  mlx_writer_t writer;
  snprintf(path, sizeof path, "%s/marker", folder);
  CHECK_OK(mlx_writer_open(path, &writer));
  mlx_process_options_t options = {.argv = SHELL("cat; ls -l /proc/self/fd | grep -c marker")};
  CHECK_OK(mlx_process_capture(&options, 1000, &text, &result));
  CHECK_TEXT(text, "0\n");
  mlx_free(text);
  mlx_writer_abandon(&writer);
}

static bool has_file(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return mlx_is_file(path);
}

// Runs a child into its time limit. A child that was ended before it wrote the file |ready| was too slow, as
// on a busy machine: it gets twice the time.
static mlx_process_result_t run_into_limit(const char *const *argv, const char *ready) {
  mlx_process_result_t result;
  for (double limit = 0.25; limit <= 128; limit *= 2) {
    const mlx_process_options_t options = {.argv = argv, .log_path = log_path, .time_limit_seconds = limit};
    CHECK_OK(mlx_process_run(&options, &result));
    CHECK(result.timed_out && result.elapsed_seconds >= limit);
    if (has_file(ready)) return result;
  }
  CHECK_FAIL("%s was not written", ready);
}

TEST(time_limit_ends_the_whole_process_group) {
  const mlx_process_result_t result = run_into_limit(
      SHELL("echo begun; echo $$ > child; sh -c 'trap \"\" TERM; echo $$ > grandchild.new; mv grandchild.new "
            "grandchild; while :; do sleep 1; done' & wait; sleep 1000"),
      "grandchild");
  CHECK(result.signal == SIGTERM || result.signal == SIGKILL);
  CHECK(is_gone(read_pid("child")));
  CHECK(is_gone(read_pid("grandchild")));
  check_log("begun\n");
}

TEST(child_that_ignores_sigterm_is_killed) {
  CHECK_INT(run_into_limit(SHELL("trap '' TERM; : > trapped; while :; do sleep 0.1; done"), "trapped").signal,
            SIGKILL);
}

TEST(background_processes_of_a_child_end_with_it) {
  mlx_process_options_t options = {.argv = SHELL("sh -c 'echo $$ > straggler; exec sleep 1000' & "
                                                 "while [ ! -s straggler ]; do sleep 0.01; done"),
                                   .log_path = log_path};
  mlx_process_result_t result;
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(result.exit_code, 0);
  CHECK(is_gone(read_pid("straggler")));
}

TEST(child_dies_with_its_parent) {
  pid_t middle = fork();
  if (!middle) {
    mlx_process_options_t options = {.argv = SHELL("echo $$ > orphan; exec sleep 1000"),
                                     .log_path = log_path};
    mlx_process_result_t result;
    mlx_status_free(mlx_process_run(&options, &result));
    _exit(0);
  }
  pid_t orphan = read_pid("orphan");
  kill(middle, SIGKILL);
  waitpid(middle, NULL, 0);
  CHECK(is_gone(orphan));
}

static bool stop_at_third(void *user, double elapsed_seconds) {
  int *ticks = user;
  return elapsed_seconds > 0 && ++*ticks < 3;
}

TEST(tick_is_called_and_can_stop_the_child) {
  int ticks = 0;
  mlx_process_options_t options = {
      .argv = SHELL("exec sleep 1000"), .log_path = log_path, .tick = stop_at_third, .user = &ticks};
  mlx_process_result_t result;
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(ticks, 3);
  CHECK(result.cancelled && !result.timed_out);
  CHECK_INT(result.signal, SIGTERM);
}

TEST(capture_keeps_max_bytes_and_never_blocks_the_child) {
  char *text;
  mlx_process_result_t result;
  mlx_process_options_t options = {.argv = SHELL("echo one; echo two >&2")};
  CHECK_OK(mlx_process_capture(&options, 100, &text, &result));
  CHECK_TEXT(text, "one\ntwo\n");
  mlx_free(text);
  options.argv = SHELL("head -c 3000000 /dev/zero | tr '\\0' x; exit 4");
  CHECK_OK(mlx_process_capture(&options, 10, &text, &result));
  CHECK_TEXT(text, "xxxxxxxxxx");
  CHECK_INT(result.exit_code, 4);
  mlx_free(text);
  options.argv = SHELL("echo waiting; exec sleep 1000");
  bool begun = false;
  for (double limit = 0.25; limit <= 128 && !begun; limit *= 2) {  // a busy machine starts a shell late
    options.time_limit_seconds = limit;
    CHECK_OK(mlx_process_capture(&options, 100, &text, &result));
    CHECK(result.timed_out);
    begun = text[0];
    if (begun) CHECK_TEXT(text, "waiting\n");
    mlx_free(text);
  }
  CHECK(begun);
}

TEST(ignored_sigchld_is_harmless) {
  mlx_process_options_t options = {.argv = SHELL("exit 5"), .log_path = log_path};
  mlx_process_result_t result;
  signal(SIGCHLD, SIG_IGN);
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(result.exit_code, 5);
}

TEST(closed_standard_streams_are_harmless) {
  pid_t middle = fork();
  if (!middle) {
    close(0);
    close(1);
    close(2);
    mlx_process_options_t options = {.argv = SHELL("echo out; echo err >&2"), .log_path = log_path};
    mlx_process_result_t result;
    mlx_status_t status = mlx_process_run(&options, &result);
    _exit(status || result.exit_code);
  }
  int ended;
  waitpid(middle, &ended, 0);
  CHECK_INT(ended, 0);
  check_log("out\nerr\n");
}

int main(int argc, char **argv) {
  const char *base = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/mlxcel-process-XXXXXX", base && strlen(base) < 30 ? base : "/tmp");
  if (!mkdtemp(folder)) return 1;
  snprintf(log_path, sizeof log_path, "%s/log", folder);
  static const check_case_t cases[] = {
      CASE(log_has_the_head_and_both_streams),
      CASE(cpu_time_is_that_of_the_child),
      CASE(signal_and_exit_status_are_distinguished),
      CASE(missing_tool_is_an_error_with_its_name),
      CASE(stdin_is_empty_and_open_files_are_not_inherited),
      CASE(time_limit_ends_the_whole_process_group),
      CASE(child_that_ignores_sigterm_is_killed),
      CASE(background_processes_of_a_child_end_with_it),
      CASE(child_dies_with_its_parent),
      CASE(tick_is_called_and_can_stop_the_child),
      CASE(capture_keeps_max_bytes_and_never_blocks_the_child),
      CASE(ignored_sigchld_is_harmless),
      CASE(closed_standard_streams_are_harmless),
  };
  int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(folder));
  return failed;
}
