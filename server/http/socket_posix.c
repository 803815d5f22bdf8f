// Unix socket files, the limit of open files, and SIGPIPE.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "server/http/socket.h"

#define OTHER_FILES 256  // file descriptors that are not connections: models, caches, logs, child processes

const int mlx_socket_end_signals[MLX_SOCKET_END_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

bool mlx_socket_ignores(int signal) {
  struct sigaction action;
  return !sigaction(signal, NULL, &action) && action.sa_handler == SIG_IGN;
}

_Static_assert(sizeof(sigset_t) <= sizeof(mlx_socket_signals_t), "the signal mask does not fit");

// Tries to connect: 0, or the error. A full backlog (EAGAIN) also means that a server lives.
static int probe(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strcpy(address.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const int error = connect(fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
  close(fd);
  return error;
}

mlx_status_t mlx_socket_prepare_path(const char *path) {
  struct stat info;
  if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
    return mlx_status_hint(mlx_error(MLX_USAGE, "the path of the Unix socket is too long: %s", path),
                           "use a path shorter than %zu bytes, for example in /tmp",
                           sizeof((struct sockaddr_un *)0)->sun_path);
  if (lstat(path, &info)) return errno == ENOENT ? NULL : mlx_io_error("cannot create a socket at", path);
  if (!S_ISSOCK(info.st_mode))
    return mlx_status_hint(mlx_error(MLX_IO, "cannot create a socket at %s: another file is there", path),
                           "choose another path, or remove the file");
  const int error = probe(path);
  if (!error || error == EAGAIN)
    return mlx_status_hint(mlx_error(MLX_IO, "cannot listen on %s: another server uses it", path),
                           "stop that server, or choose another path");
  errno = error;
  if (error != ECONNREFUSED && error != ENOENT) return mlx_io_error("cannot check the socket", path);
  if (unlink(path) && errno != ENOENT) return mlx_io_error("cannot replace the unused socket", path);
  return NULL;
}

mlx_status_t mlx_socket_make_private(const char *path) {
  return chmod(path, 0600) ? mlx_io_error("cannot set the permissions of", path) : NULL;
}

size_t mlx_socket_unacknowledged(const uv_stream_t *stream) {
  uv_os_fd_t fd;
  int bytes = 0;
  if (uv_fileno((const uv_handle_t *)stream, &fd) || ioctl(fd, TIOCOUTQ, &bytes) || bytes < 0) return 0;
  return (size_t)bytes;
}

int64_t mlx_socket_reserve(int64_t connections) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY) return connections;
  const rlim_t wanted = (rlim_t)connections + OTHER_FILES;
  if (limit.rlim_cur < wanted) {
    const struct rlimit raised = {
        limit.rlim_max == RLIM_INFINITY || limit.rlim_max > wanted ? wanted : limit.rlim_max, limit.rlim_max};
    if (!setrlimit(RLIMIT_NOFILE, &raised)) limit.rlim_cur = raised.rlim_cur;
  }
  if (limit.rlim_cur >= wanted) return connections;
  const int64_t available = (int64_t)limit.rlim_cur;
  return available > 2 * OTHER_FILES ? available - OTHER_FILES : available / 2;
}

void mlx_socket_check_spare(uv_loop_t *loop) {
  if (loop->emfile_fd != -1) return;
  loop->emfile_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (loop->emfile_fd == -1) mlx_sleep_ms(10);
}

void mlx_socket_block_sigpipe(mlx_socket_signals_t *out_signals) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, (sigset_t *)out_signals->saved);
}

void mlx_socket_restore_signals(const mlx_socket_signals_t *signals) {
  const sigset_t *saved = (const sigset_t *)signals->saved;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  // A pending SIGPIPE would be delivered when it is unblocked.
  if (!sigismember(saved, SIGPIPE)) sigtimedwait(&set, NULL, &(struct timespec){0});
  pthread_sigmask(SIG_SETMASK, saved, NULL);
}
