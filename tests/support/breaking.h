// Fault injection for files: file calls that fail, or kill the process, at the Nth call.
#ifndef MLXCEL_TESTS_BREAKING_H_
#define MLXCEL_TESTS_BREAKING_H_

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/file.h"

static struct {
  long count, target;  // calls so far, and the call that fails
  int error;           // errno of that call; 0: the process is killed there
  bool halfway;        // kill in the middle of the call instead of before it
} breaking;

// True if this call must fail.
static bool breaks(void) {
  if (++breaking.count != breaking.target) return false;
  if (breaking.error) {
    errno = breaking.error;
    return true;
  }
  if (!breaking.halfway) raise(SIGKILL);
  return false;
}

static int end(int result) {
  if (breaking.count == breaking.target && !breaking.error && breaking.halfway) raise(SIGKILL);
  return result;
}

static int break_open(const char *path, int flags, int mode) {
  return breaks() ? -1 : end(mlx_file_system_calls.open(path, flags, mode));
}
static ssize_t break_write(int fd, const void *bytes, size_t length) {
  if (breaks()) return -1;
  bool dies = breaking.count == breaking.target && breaking.halfway;
  ssize_t written = mlx_file_system_calls.write(fd, bytes, dies ? length / 2 : length);
  end(0);
  return written;
}
// Does not call fsync: it has no effect that a test can see, and is slow on a busy disk.
static int break_sync(int fd) {
  (void)fd;
  return breaks() ? -1 : end(0);
}
static int break_close(int fd) {
  bool fails = breaks();
  int result = end(mlx_file_system_calls.close(fd));  // as on Linux, a failed close has closed the descriptor
  if (fails) errno = breaking.error;
  return fails ? -1 : result;
}
static int break_rename(const char *from, const char *to) {
  return breaks() ? -1 : end(mlx_file_system_calls.rename(from, to));
}
static int break_link(const char *from, const char *to) {
  return breaks() ? -1 : end(mlx_file_system_calls.link(from, to));
}
static int break_make_dir(const char *path, int mode) {
  return breaks() ? -1 : end(mlx_file_system_calls.make_dir(path, mode));
}
static int break_unlink(const char *path) { return breaks() ? -1 : end(mlx_file_system_calls.unlink(path)); }
static int break_remove_dir(const char *path) {
  return breaks() ? -1 : end(mlx_file_system_calls.remove_dir(path));
}

static const mlx_file_calls_t breaking_calls = {
    break_open, break_write,    break_sync,   break_close,      break_rename,
    break_link, break_make_dir, break_unlink, break_remove_dir,
};

static void break_at(long target, int error, bool halfway) {
  breaking.count = 0;
  breaking.target = target;
  breaking.error = error;
  breaking.halfway = halfway;
  mlx_file_set_calls(&breaking_calls);  // a target of 0 injects no fault
}

#endif  // MLXCEL_TESTS_BREAKING_H_
