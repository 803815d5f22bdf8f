// Why a lock file is compared with its path after locking: `clear` removes lock files (while it holds them).
// A process that had opened the file before and got the lock after would hold a file that nobody else can
// see, beside a second holder.
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
// The maker's lock

// The holder's process id in the lock file is for messages only; nothing depends on it being written or being
// right.
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

// One attempt. *out_fd is -1 when another holds the lock.
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
                             "this file system may have no locks: use a folder on a local disk (for the "
                             "cache MLXCEL_CACHE names it)");
    }
    if (is_same_file(fd, path)) {
      *out_fd = fd;
      write_holder(fd);
      return NULL;
    }
    close(fd);  // a clear removed it while we were opening it: there will be a new one
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

static void say_waiting(const char *path, const char *title, int waited_ms, const mlx_report_t *report) {
  // The first time as a note that stays; a moment late, so that a holder who is just finishing causes no
  // noise.
  if (waited_ms == 2 * POLL_MS) {
    long holder = read_holder(path);
    if (holder > 0) {
      mlx_report_note(report, "waiting for another mlxcel (pid %ld) that is making the same %s", holder,
                      title);
    } else {
      mlx_report_note(report, "waiting for another mlxcel that is making the same %s", title);
    }
  } else if (waited_ms % 250 == 0) {
    mlx_report_progress(report, "waiting for another mlxcel: %s ... %d s", title, waited_ms / 1000);
  }
}

mlx_status_t mlx_lock_take(const char *path, const char *title, const mlx_report_t *report,
                           mlx_lock_t *out_lock) {
  mlx_status_t status = mlx_lock_try(path, out_lock);
  int waited_ms = 0;
  while (!status && out_lock->fd < 0) {
    mlx_nap(POLL_MS);
    waited_ms += POLL_MS;
    say_waiting(path, title, waited_ms, report);
    status = mlx_lock_try(path, out_lock);
  }
  if (waited_ms) mlx_report_done(report);
  return status;
}

void mlx_lock_release(mlx_lock_t *lock) {
  if (lock->fd >= 0) {
    int ignored = ftruncate(lock->fd, 0);  // only the message of the next waiter depends on it
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
// Leases

int mlx_lease_take(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  // A file system without locks has no `clear` to fear either (that would fail there): go on without.
  if (lock_file(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) {
    close(fd);
    return -1;
  }
  return fd;
}

bool mlx_lease_holds(int lease, const char *path) { return is_same_file(lease, path); }

void mlx_lease_end(int lease) {
  if (lease >= 0) close(lease);
}

mlx_lease_state_t mlx_lease_reserve(const char *path, int *out_lease) {
  *out_lease = -1;
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return MLX_LEASE_NONE;
  if (lock_file(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
    close(fd);
    return MLX_LEASE_HELD;
  }
  *out_lease = fd;
  return MLX_LEASE_RESERVED;
}

void mlx_lease_let_move(int *inout_lease) {
#ifdef _WIN32  // for the same reason the move fails when somebody else comes in between
  mlx_lease_end(*inout_lease);
  *inout_lease = -1;
#else
  (void)inout_lease;
#endif
}
