// Child processes on POSIX: each child leads its own process group. On Linux it gets a parent-death signal.
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "base/clock.h"
#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"

// Moves |fd| above the three standard descriptors. If mlxcel was started with a standard descriptor closed,
// |fd| may have its number, and dup2 onto the same number would leave close-on-exec set.
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
  if (pipe(fds)) return mlx_error(MLX_IO, "cannot create a pipe: %s", strerror(errno));
  for (int i = 0; i < 2; ++i) {
    out_fds[i] = above_standard(fds[i]);
    if (out_fds[i] >= 0) fcntl(out_fds[i], F_SETFD, FD_CLOEXEC);
  }
  if (out_fds[0] >= 0 && out_fds[1] >= 0) return NULL;
  mlx_status_t status = mlx_error(MLX_IO, "cannot create a pipe: %s", strerror(errno));
  for (int i = 0; i < 2; ++i) {
    if (out_fds[i] >= 0) close(out_fds[i]);
  }
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Starting

extern char **environ;

// Our environment with another TMPDIR, which |variable| has. Release with mlx_free. The strings are borrowed.
static mlx_status_t make_environment(char *variable, char ***out_environment) {
  size_t count = 0, kept = 0;
  while (environ[count]) ++count;
  MLX_TRY(mlx_alloc(count + 2, sizeof **out_environment, out_environment));
  for (size_t i = 0; i < count; ++i) {
    if (strncmp(environ[i], "TMPDIR=", 7)) (*out_environment)[kept++] = environ[i];
  }
  (*out_environment)[kept] = variable;
  return NULL;
}

// Runs in the child between fork and exec: only async-signal-safe calls. Does not return.
static void become_child(const char *const *argv, char **environment, int input, int output, int failure_pipe,
                         pid_t parent) {
  setpgid(0, 0);
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before prctl took effect
#else
  (void)parent;
#endif
  static const int signals[] = {SIGINT,  SIGQUIT, SIGTERM, SIGHUP,  SIGPIPE,
                                SIGCHLD, SIGALRM, SIGUSR1, SIGUSR2, SIGXFSZ};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) signal(signals[i], SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (dup2(input, 0) == 0 && dup2(output, 1) == 1 && dup2(output, 2) == 2) {
    execve(argv[0], (char *const *)(uintptr_t)argv, environment);
  }
  int error = errno;
  ssize_t ignored = write(failure_pipe, &error, sizeof error);
  (void)ignored;
  _exit(127);
}

// Some launchers start programs with SIGCHLD ignored. The kernel then reaps children itself, and their exit
// status is lost.
static void keep_zombies(void) {
  struct sigaction action;
  if (!sigaction(SIGCHLD, NULL, &action) && action.sa_handler == SIG_IGN) signal(SIGCHLD, SIG_DFL);
}

// Starts the child with both streams on |output|. The failure pipe closes at a successful exec; otherwise the
// child writes its errno to it.
static mlx_status_t start_in(const mlx_process_options_t *options, char **environment, int output,
                             pid_t *out_pid) {
  const char *const *argv = options->argv, *from = options->input_path ? options->input_path : "/dev/null";
  int input = above_standard(open(from, O_RDONLY | O_CLOEXEC));
  if (input < 0) return mlx_io_error("open", from);
  int failure[2];
  mlx_status_t status = make_pipe(failure);
  if (status) {
    close(input);
    return status;
  }
  keep_zombies();
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) become_child(argv, environment, input, output, failure[1], parent);
  int error = pid < 0 ? errno : 0;
  close(input);
  close(failure[1]);
  if (pid > 0) {
    setpgid(pid, pid);  // parent and child both do this, because either may run first
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

static mlx_status_t start_child(const mlx_process_options_t *options, int output, pid_t *out_pid) {
  mlx_text_t variable = {0};
  char **environment = NULL;
  if (!options->temporary_folder) return start_in(options, environ, output, out_pid);
  mlx_text_printf(&variable, "TMPDIR=%s", options->temporary_folder);
  mlx_status_t status = mlx_text_finish(&variable);
  if (!status) status = make_environment(variable.data, &environment);
  if (!status) status = start_in(options, environment, output, out_pid);
  mlx_free(environment);
  mlx_text_clear(&variable);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Watching

size_t mlx_child_read(const mlx_child_t *child, char *bytes, size_t size) {
  ssize_t got;
  do got = read((int)child->output, bytes, size);
  while (got < 0 && errno == EINTR);
  return got > 0 ? (size_t)got : 0;
}

void mlx_child_terminate(const mlx_child_t *child) { kill(-(pid_t)child->id, SIGTERM); }
void mlx_child_kill(const mlx_child_t *child) { kill(-(pid_t)child->id, SIGKILL); }

// Reaps an ended child. Kills its process group first, while the zombie still reserves the group number:
// afterwards the number could belong to an unrelated process.
mlx_status_t mlx_child_reap(mlx_child_t *child, mlx_process_result_t *result) {
  const pid_t pid = (pid_t)child->id;
  mlx_child_kill(child);
  int wait_status;
  struct rusage usage;
  pid_t got;
  do got = wait4(pid, &wait_status, 0, &usage);
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return mlx_error(MLX_INTERNAL, "cannot wait for child process %ld: %s", (long)pid, strerror(errno));
  result->elapsed_seconds = mlx_seconds() - child->began;
  result->cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                        1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
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

// WNOWAIT keeps the child a zombie, for mlx_child_reap.
bool mlx_child_has_ended(const mlx_child_t *child) {
  const pid_t pid = (pid_t)child->id;
  siginfo_t info = {0};
  if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT)) return errno != EINTR;
  return info.si_pid == pid;
}

// ----------------------------------------------------------------------------------------------------------
// Starting and closing

static mlx_status_t open_log(const char *path, const char *head, int *out_fd) {
  // Replace the log instead of truncating it: a process that still reads the old log keeps it, and a symbolic
  // link is not followed.
  if (unlink(path) && errno != ENOENT) return mlx_io_error("replace", path);
  *out_fd = above_standard(open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (*out_fd < 0) return mlx_io_error("create", path);
  const char *cursor = head ? head : "";
  for (size_t left = strlen(cursor); left;) {
    ssize_t written = write(*out_fd, cursor, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      mlx_status_t status = mlx_io_error("write", path);
      close(*out_fd);
      return status;
    }
    cursor += written;
    left -= (size_t)written;
  }
  return NULL;
}

mlx_status_t mlx_child_start(const mlx_process_options_t *options, const char *log_path,
                             mlx_child_t *out_child) {
  *out_child = (mlx_child_t){.id = -1, .output = -1, .began = mlx_seconds()};
  int ends[2] = {-1, -1};  // the two ends of a pipe, or only [1]: a log file
  pid_t pid = -1;
  MLX_TRY(log_path ? open_log(log_path, options->log_head, &ends[1]) : make_pipe(ends));
  if (ends[0] >= 0) fcntl(ends[0], F_SETFL, O_NONBLOCK);
  mlx_status_t status = start_child(options, ends[1], &pid);
  close(ends[1]);
  out_child->output = ends[0];
  if (!status) out_child->id = pid;
  return status;
}

void mlx_child_close(mlx_child_t *child) {
  if (child->output >= 0) close((int)child->output);
  child->output = -1;
}

void mlx_process_describe(const mlx_process_result_t *result, char *out_text, size_t size) {
  if (result->signal) {
    snprintf(out_text, size, "signal %d (%s)", result->signal, strsignal(result->signal));
  } else {
    snprintf(out_text, size, "exit status %d", result->exit_code);
  }
}

bool mlx_process_is_running(long pid) { return !kill((pid_t)pid, 0) || errno != ESRCH; }
