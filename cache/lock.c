// Lock files and entry locks on flock.
//
// A lock file is compared with its path after locking, because `clear` removes lock files while it holds
// them. A process that opened the file before the removal and locked it afterwards would hold a lock on a
// deleted file. A second process could then lock the new file.
#include "cache/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"

#define POLL_MS 50

static int lock_file(int fd, int operation) {
  int result;
  do result = flock(fd, operation);
  while (result && errno == EINTR);
  return result;
}

static bool is_same_file(int fd, const char *path) {
  struct stat held, named;
  return !fstat(fd, &held) && !stat(path, &named) && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

// ----------------------------------------------------------------------------------------------------------
// Lock files

// The process id in the lock file is only for messages.
static void write_holder(int fd) {
  char text[32];
  int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)length, 0) != length) return;
}

static long read_holder(const char *path) {
  char text[32] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? strtol(text, NULL, 10) : 0;
}

// One attempt. *out_fd is -1 if another process holds the lock.
static mlx_status_t attempt(const char *path, int *out_fd) {
  *out_fd = -1;
  for (;;) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return mlx_io_error("create lock file", path);
    if (lock_file(fd, LOCK_EX | LOCK_NB)) {
      bool busy = errno == EWOULDBLOCK;
      mlx_status_t status = busy ? NULL : mlx_io_error("lock", path);
      close(fd);
      return mlx_status_hint(status,
                             "the file system may not support locks: use a folder on a local disk "
                             "(MLXCEL_CACHE sets the cache folder)");
    }
    if (is_same_file(fd, path)) {
      *out_fd = fd;
      write_holder(fd);
      return NULL;
    }
    close(fd);  // `clear` removed the file after we opened it: try again with the new one
  }
}

mlx_status_t mlx_lock_try(const char *path, mlx_lock_t *out_lock) {
  *out_lock = (mlx_lock_t){.fd = -1};
  char *copy;
  MLX_TRY(mlx_copy_text(path, strlen(path), &copy));
  mlx_status_t status = attempt(path, &out_lock->fd);
  if (out_lock->fd >= 0) {
    out_lock->path = copy;
  } else {
    mlx_free(copy);
  }
  return status;
}

static void report_waiting(const char *path, const char *title, int waited_ms, const mlx_report_t *report) {
  // Report a note once, after a short delay: if the holder is about to finish, there is no message.
  if (waited_ms == 2 * POLL_MS) {
    long holder = read_holder(path);
    if (holder > 0) {
      mlx_report_note(report, "waiting for another mlxcel process (pid %ld) that creates the same %s", holder,
                      title);
    } else {
      mlx_report_note(report, "waiting for another mlxcel process that creates the same %s", title);
    }
  } else if (waited_ms % 250 == 0) {
    mlx_report_progress(report, "waiting for another mlxcel process: %s ... %d s", title, waited_ms / 1000);
  }
}

mlx_status_t mlx_lock_take(const char *path, const char *title, const mlx_report_t *report,
                           mlx_lock_t *out_lock) {
  mlx_status_t status = mlx_lock_try(path, out_lock);
  int waited_ms = 0;
  while (!status && out_lock->fd < 0) {
    mlx_sleep_ms(POLL_MS);
    waited_ms += POLL_MS;
    report_waiting(path, title, waited_ms, report);
    status = mlx_report_check(report);
    if (!status) status = mlx_lock_try(path, out_lock);
  }
  if (waited_ms) mlx_report_done(report);
  return status;
}

void mlx_lock_release(mlx_lock_t *lock) {
  if (lock->fd >= 0) {
    int ignored = ftruncate(lock->fd, 0);  // only the message of the next waiting process depends on it
    (void)ignored;
    close(lock->fd);
  }
  mlx_free(lock->path);
  *lock = (mlx_lock_t){.fd = -1};
}

void mlx_lock_release_and_remove(mlx_lock_t *lock) {
  if (lock->fd >= 0) unlink(lock->path);
  mlx_lock_release(lock);
}

// ----------------------------------------------------------------------------------------------------------
// Entry locks

int mlx_entry_lock_share(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  // On a file system without locks `clear` fails too, so it is safe to continue without a lock.
  if (lock_file(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) {
    close(fd);
    return -1;
  }
  return fd;
}

bool mlx_entry_lock_is_current(int lock_fd, const char *path) { return is_same_file(lock_fd, path); }

void mlx_entry_lock_release(int lock_fd) {
  if (lock_fd >= 0) close(lock_fd);
}

mlx_entry_lock_state_t mlx_entry_lock_try_exclusive(const char *path, int *out_lock_fd) {
  *out_lock_fd = -1;
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return MLX_ENTRY_LOCK_MISSING;
  if (lock_file(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
    close(fd);
    return MLX_ENTRY_LOCK_IN_USE;
  }
  *out_lock_fd = fd;
  return MLX_ENTRY_LOCK_TAKEN;
}

void mlx_entry_lock_allow_rename(int *inout_lock_fd) {
#ifdef _WIN32
  mlx_entry_lock_release(*inout_lock_fd);
  *inout_lock_fd = -1;
#else
  (void)inout_lock_fd;
#endif
}
