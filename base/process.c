// POSIX processes. A Windows port replaces this file: CreateProcess in a job object does what the process group and the
// death signal do here.
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

#define TICK_SECONDS 0.15
#define GRACE_SECONDS 2.0   // between asking (SIGTERM) and making (SIGKILL) a child end
#define LONGEST_NAP_MS 20   // how late we may notice that a child has ended

// Moves |fd| above the standard three: a caller may have started us with some of those closed, and then dup2 onto
// itself would leave close-on-exec set.
static int above_standard(int fd) {
  if (fd < 0 || fd > 2) return fd;
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  int error = errno;
  close(fd);
  errno = error;
  return moved;
}

static mlx_status_t make_pipe(int out_fds[2]) {
  int fds[2];
  if (pipe(fds)) return mlx_error(MLX_IO, "cannot make a pipe: %s", strerror(errno));
  for (int i = 0; i < 2; ++i) {
    out_fds[i] = above_standard(fds[i]);
    if (out_fds[i] >= 0) fcntl(out_fds[i], F_SETFD, FD_CLOEXEC);
  }
  if (out_fds[0] >= 0 && out_fds[1] >= 0) return NULL;
  mlx_status_t status = mlx_error(MLX_IO, "cannot make a pipe: %s", strerror(errno));
  for (int i = 0; i < 2; ++i) {
    if (out_fds[i] >= 0) close(out_fds[i]);
  }
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Starting

// Runs in the child, between fork and exec: only async-signal-safe calls. Does not return.
static void become_child(const char *const *argv, int input, int output, int failure_pipe, pid_t parent) {
  setpgid(0, 0);
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // we were orphaned before the line above took effect
#else
  (void)parent;
#endif
  static const int signals[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGALRM, SIGUSR1, SIGUSR2};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) signal(signals[i], SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (dup2(input, 0) == 0 && dup2(output, 1) == 1 && dup2(output, 2) == 2) {
    execv(argv[0], (char *const *)(uintptr_t)argv);
  }
  int error = errno;
  ssize_t ignored = write(failure_pipe, &error, sizeof error);
  (void)ignored;
  _exit(127);
}

// Some launchers start programs with SIGCHLD ignored: the kernel then reaps children itself, and how they ended is lost.
static void keep_zombies(void) {
  struct sigaction action;
  if (!sigaction(SIGCHLD, NULL, &action) && action.sa_handler == SIG_IGN) signal(SIGCHLD, SIG_DFL);
}

// Starts the child with both streams on |output|. The failure pipe closes by itself at a successful exec; otherwise it
// carries the errno that says why there was none.
static mlx_status_t start_child(const char *const *argv, int output, pid_t *out_pid) {
  int input = above_standard(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (input < 0) return mlx_io_error("open", "/dev/null");
  int failure[2];
  mlx_status_t status = make_pipe(failure);
  if (status) {
    close(input);
    return status;
  }
  keep_zombies();
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) become_child(argv, input, output, failure[1], parent);
  int error = pid < 0 ? errno : 0;
  close(input);
  close(failure[1]);
  if (pid > 0) {
    setpgid(pid, pid);  // here as well: whichever of the two of us comes first
    ssize_t got;
    do got = read(failure[0], &error, sizeof error);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof error) error = 0;
    if (error) waitpid(pid, NULL, 0);
  }
  close(failure[0]);
  *out_pid = pid;
  errno = error;
  return error ? mlx_io_error("run", argv[0]) : NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Watching

// Reads what is there without waiting; keeps |max_bytes| in all and drops the rest, so that the child never blocks.
static void drain(int fd, size_t max_bytes, mlx_text_t *text) {
  char bytes[4096];
  for (;;) {
    ssize_t got = read(fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    size_t room = max_bytes - text->length;
    mlx_text_append(text, bytes, (size_t)got < room ? (size_t)got : room);
  }
}

// Reaps an ended child. Its group is killed first, while the zombie still holds the number: afterwards the number could
// belong to somebody else.
static mlx_status_t reap(pid_t pid, double began, mlx_process_result_t *result) {
  kill(-pid, SIGKILL);
  int wait_status;
  struct rusage usage;
  pid_t got;
  do got = wait4(pid, &wait_status, 0, &usage);
  while (got < 0 && errno == EINTR);
  if (got < 0) return mlx_error(MLX_INTERNAL, "lost track of child %ld: %s", (long)pid, strerror(errno));
  result->elapsed_seconds = mlx_seconds() - began;
#ifdef __APPLE__
  result->peak_bytes = (uint64_t)usage.ru_maxrss;
#else
  result->peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
#endif
  if (WIFSIGNALED(wait_status)) {
    result->signal = WTERMSIG(wait_status);
  } else {
    result->exit_code = WEXITSTATUS(wait_status);
  }
  return NULL;
}

// True when the child has ended; it stays a zombie for reap. A child we cannot ask about counts as ended too.
static bool has_ended(pid_t pid) {
  siginfo_t info = {0};
  if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT)) return errno != EINTR;
  return info.si_pid == pid;
}

// A pipe with a limit to what is kept of it; fd -1 for none.
typedef struct intake {
  int fd;
  size_t max_bytes;
  mlx_text_t text;
} intake_t;

static mlx_status_t watch(const mlx_process_options_t *options, pid_t pid, intake_t *intake,
                          mlx_process_result_t *result) {
  double began = mlx_seconds(), next_tick = TICK_SECONDS, asked_at = -1;
  int nap_ms = 1;
  while (!has_ended(pid)) {
    double elapsed = mlx_seconds() - began;
    if (asked_at < 0 && options->time_limit_seconds > 0 && elapsed >= options->time_limit_seconds) {
      result->timed_out = true;
    } else if (asked_at < 0 && options->tick && elapsed >= next_tick) {
      next_tick = elapsed + TICK_SECONDS;
      result->cancelled = !options->tick(options->user, elapsed);
    }
    if (asked_at < 0 && (result->timed_out || result->cancelled)) {
      asked_at = elapsed;
      kill(-pid, SIGTERM);
    } else if (asked_at >= 0 && elapsed >= asked_at + GRACE_SECONDS) {
      kill(-pid, SIGKILL);
    }
    if (intake->fd >= 0) drain(intake->fd, intake->max_bytes, &intake->text);
    poll(NULL, 0, nap_ms);  // short naps at first: most questions are answered within milliseconds
    if (nap_ms < LONGEST_NAP_MS) ++nap_ms;
  }
  mlx_status_t status = reap(pid, began, result);
  if (intake->fd >= 0) drain(intake->fd, intake->max_bytes, &intake->text);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// The two calls

static mlx_status_t open_log(const mlx_process_options_t *options, int *out_fd) {
  // A log that is replaced, not reused: whoever still reads the old one keeps it, and a link put there is not followed.
  if (unlink(options->log_path) && errno != ENOENT) return mlx_io_error("replace", options->log_path);
  *out_fd = above_standard(open(options->log_path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (*out_fd < 0) return mlx_io_error("create", options->log_path);
  const char *cursor = options->log_head ? options->log_head : "";
  for (size_t left = strlen(cursor); left;) {
    ssize_t written = write(*out_fd, cursor, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      mlx_status_t status = mlx_io_error("write", options->log_path);
      close(*out_fd);
      return status;
    }
    cursor += written;
    left -= (size_t)written;
  }
  return NULL;
}

mlx_status_t mlx_process_run(const mlx_process_options_t *options, mlx_process_result_t *out_result) {
  *out_result = (mlx_process_result_t){0};
  int log = -1;
  pid_t pid;
  MLX_TRY(open_log(options, &log));
  mlx_status_t status = start_child(options->argv, log, &pid);
  close(log);
  intake_t nothing = {.fd = -1};
  return status ? status : watch(options, pid, &nothing, out_result);
}

mlx_status_t mlx_process_capture(const mlx_process_options_t *options, size_t max_bytes, char **out_text,
                                 mlx_process_result_t *out_result) {
  *out_text = NULL;
  *out_result = (mlx_process_result_t){0};
  int output[2];
  pid_t pid;
  MLX_TRY(make_pipe(output));
  fcntl(output[0], F_SETFL, O_NONBLOCK);
  mlx_status_t status = start_child(options->argv, output[1], &pid);
  close(output[1]);
  intake_t intake = {.fd = output[0], .max_bytes = max_bytes};
  if (!status) status = watch(options, pid, &intake, out_result);
  close(output[0]);
  if (!status) status = mlx_text_take(&intake.text, out_text, NULL);
  mlx_text_clear(&intake.text);
  return status;
}

void mlx_process_describe(const mlx_process_result_t *result, char *out_text, size_t size) {
  if (result->signal) {
    snprintf(out_text, size, "signal %d (%s)", result->signal, strsignal(result->signal));
  } else {
    snprintf(out_text, size, "exit status %d", result->exit_code);
  }
}
