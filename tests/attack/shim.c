// Fault injection for a whole process: a library that LD_PRELOAD puts before the C library (Linux).
//
// Each system call wrapper below belongs to a group. The library counts the calls of the selected groups, and
// at the Nth one kills the process or returns an error. Only the process that was started is attacked: the
// library removes LD_PRELOAD from its environment, and ignores calls in a forked child.
//
//   ATTACK_GROUPS=write,meta    groups to count; each name is in group_names
//   ATTACK_AT=N                 the call to attack, from 1; 0 or unset: only count
//   ATTACK_DO=WHAT              kill: SIGKILL before the call; after: SIGKILL after it; half: SIGKILL after
//                               half of a write; a number: fail with this errno
//   ATTACK_ON=1                 fail every call from the Nth on (a full disk stays full)
//   ATTACK_COUNTS=FILE          write the number of calls of each group here, one line each
//   ATTACK_LOG=FILE             write one line here about the call that was attacked
//
// Threads: the counter is atomic. Which thread makes the Nth call may differ between two runs.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum {
  OPEN,        // open for reading, opendir
  DESCRIPTOR,  // socket, pipe, dup, epoll_create1, eventfd
  CREATE,      // open for writing, mkstemp
  WRITE,       // data of regular files and of stdout
  READ,        // data of regular files
  META,        // rename, unlink, mkdir, ftruncate, fchmod, ...
  SYNC,        // fsync, close of a file that was open for writing
  STAT,        // stat, fstat, lstat, statvfs, access, readdir
  LOCK,        // flock
  MAP,         // mmap
  MEMORY,      // malloc, calloc, realloc, aligned_alloc
  THREAD,      // pthread_create
  PROCESS,     // fork, waitpid
  NETWORK,     // connect, send, recv, sendmsg, recvmsg
  GROUPS
} group_t;
static const char *const group_names[GROUPS] = {"open",   "descriptor", "create",  "write",  "read",
                                                "meta",   "sync",       "stat",    "lock",   "map",
                                                "memory", "thread",     "process", "network"};

static struct {
  bool active, on, selected[GROUPS];
  pid_t process;
  long at;
  int error;  // 0: kill
  enum { KILL, AFTER, HALF } kill;
  const char *counts, *log;
} attack;
static atomic_long selected_calls, group_calls[GROUPS];
// Set while this library itself calls the C library: those calls are not attacked.
static _Thread_local __attribute__((tls_model("initial-exec"))) bool inside;

static void *find(const char *name) {
  const bool before = inside;
  inside = true;
  void *function = dlsym(RTLD_NEXT, name);
  inside = before;
  return function;
}

// ---- what happens at the Nth call ------------------------------------------------------------------------

// Found at the start: an allocation inside the dynamic linker may fail, and dlsym must not run there.
static int (*real_open)(const char *, int, ...);
static ssize_t (*real_write)(int, const void *, size_t);

static void write_log(const char *name, const char *path, int fd) {
  char link[32], target[512] = "", line[640];
  if (!path && fd >= 0) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length > 0 ? length : 0] = 0;
  }
  int length = snprintf(line, sizeof line, "%s %s\n", name, path ? path : target);
  int log = real_open(attack.log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (log < 0 || length < 0) return;
  size_t size = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
  if (real_write(log, line, size) < 0) abort();
}

typedef enum { PASS, FAIL, DIE_AFTER, DIE_HALFWAY } verdict_t;

// Counts a call and decides its fate. Kills the process here if it must die before the call.
static verdict_t count(group_t group, const char *name, const char *path, int fd) {
  if (!attack.active || inside || getpid() != attack.process) return PASS;
  atomic_fetch_add(&group_calls[group], 1);
  if (!attack.selected[group] || !attack.at) return PASS;
  long number = atomic_fetch_add(&selected_calls, 1) + 1;
  if (number != attack.at && !(attack.on && number > attack.at)) return PASS;
  if (number == attack.at && attack.log) {
    int before = errno;
    write_log(name, path, fd);
    errno = before;
  }
  if (attack.error) {
    errno = attack.error;
    return FAIL;
  }
  if (attack.kill == AFTER) return DIE_AFTER;
  if (attack.kill == HALF && group == WRITE) return DIE_HALFWAY;
  if (attack.kill == HALF) return DIE_AFTER;
  raise(SIGKILL);
  return PASS;
}

static void end(verdict_t verdict) {
  if (verdict == DIE_AFTER || verdict == DIE_HALFWAY) raise(SIGKILL);
}

// True if |list|, names with commas between them, contains |word|.
static bool has_word(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; (at = strstr(at, word)); at += length) {
    if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
  }
  return false;
}

__attribute__((constructor)) static void start(void) {
  const char *groups = getenv("ATTACK_GROUPS"), *at = getenv("ATTACK_AT"), *act = getenv("ATTACK_DO");
  for (int i = 0; i < GROUPS; ++i) {
    attack.selected[i] = groups && has_word(groups, group_names[i]);
  }
  attack.at = at ? atol(at) : 0;
  attack.on = getenv("ATTACK_ON") != NULL;
  attack.error = act ? atoi(act) : 0;
  attack.kill = act && !strcmp(act, "after") ? AFTER : act && !strcmp(act, "half") ? HALF : KILL;
  attack.counts = getenv("ATTACK_COUNTS");
  attack.log = getenv("ATTACK_LOG");
  attack.process = getpid();
  real_open = (int (*)(const char *, int, ...))(uintptr_t)find("open");
  real_write = (ssize_t(*)(int, const void *, size_t))(uintptr_t)find("write");
  unsetenv("LD_PRELOAD");
  attack.active = true;
}

__attribute__((destructor)) static void finish(void) {
  if (!attack.active || !attack.counts || getpid() != attack.process) return;
  attack.active = false;
  FILE *file = fopen(attack.counts, "w");
  if (!file) return;
  for (int i = 0; i < GROUPS; ++i) fprintf(file, "%s %ld\n", group_names[i], group_calls[i]);
  fclose(file);
}

// True for descriptors whose writes a user can lose: regular files and stdout.
static bool holds_data(int fd) {
  struct stat info;
  int (*real)(int, struct stat *) = find("fstat");
  return fd == 1 || (real && !real(fd, &info) && S_ISREG(info.st_mode));
}

// ---- the wrappers ----------------------------------------------------------------------------------------

// Defines a function that calls the C library's function of this name unless the call must fail.
#define WRAP_IF(condition, group, type, name, failed, path, fd, parameters, arguments) \
  type name parameters {                                                               \
    static type(*real) parameters;                                                     \
    if (!real) real = (type(*) parameters)(uintptr_t)find(#name);                      \
    verdict_t verdict = (condition) ? count(group, #name, path, fd) : PASS;            \
    if (verdict == FAIL) return failed;                                                \
    type result = real arguments;                                                      \
    end(verdict);                                                                      \
    return result;                                                                     \
  }
#define WRAP(...) WRAP_IF(true, __VA_ARGS__)

#define WRAP_OPEN(name)                                                        \
  int name(const char *path, int flags, ...) {                                 \
    static int (*real)(const char *, int, ...);                                \
    if (!real) real = (int (*)(const char *, int, ...))(uintptr_t)find(#name); \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    int mode = flags & O_CREAT ? va_arg(list, int) : 0;                        \
    va_end(list);                                                              \
    bool writes = flags & (O_WRONLY | O_RDWR | O_CREAT);                       \
    verdict_t verdict = count(writes ? CREATE : OPEN, #name, path, -1);        \
    if (verdict == FAIL) return -1;                                            \
    int result = real(path, flags, mode);                                      \
    end(verdict);                                                              \
    return result;                                                             \
  }
WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP(OPEN, FILE *, fopen, NULL, path, -1, (const char *path, const char *mode), (path, mode))
WRAP(OPEN, FILE *, fopen64, NULL, path, -1, (const char *path, const char *mode), (path, mode))
WRAP(OPEN, DIR *, opendir, NULL, path, -1, (const char *path), (path))
WRAP(CREATE, int, mkstemp, -1, path, -1, (char *path), (path))
WRAP(DESCRIPTOR, int, socket, -1, NULL, -1, (int family, int type, int protocol), (family, type, protocol))
WRAP(DESCRIPTOR, int, pipe, -1, NULL, -1, (int fds[2]), (fds))
WRAP(DESCRIPTOR, int, pipe2, -1, NULL, -1, (int fds[2], int flags), (fds, flags))
WRAP(DESCRIPTOR, int, dup, -1, NULL, fd, (int fd), (fd))
WRAP(DESCRIPTOR, int, epoll_create1, -1, NULL, -1, (int flags), (flags))
WRAP(DESCRIPTOR, int, eventfd, -1, NULL, -1, (unsigned start, int flags), (start, flags))

ssize_t write(int fd, const void *bytes, size_t length) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = (ssize_t(*)(int, const void *, size_t))(uintptr_t)find("write");
  verdict_t verdict = attack.active && holds_data(fd) ? count(WRITE, "write", NULL, fd) : PASS;
  if (verdict == FAIL) return -1;
  ssize_t result = real(fd, bytes, verdict == DIE_HALFWAY ? length / 2 : length);
  end(verdict);
  return result;
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (!real) real = (ssize_t(*)(int, const void *, size_t, off_t))(uintptr_t)find("pwrite");
  verdict_t verdict = attack.active && holds_data(fd) ? count(WRITE, "pwrite", NULL, fd) : PASS;
  if (verdict == FAIL) return -1;
  ssize_t result = real(fd, bytes, verdict == DIE_HALFWAY ? length / 2 : length, offset);
  end(verdict);
  return result;
}
WRAP_IF(file != stderr, WRITE, size_t, fwrite, 0, NULL, fileno(file),
        (const void *bytes, size_t size, size_t items, FILE *file), (bytes, size, items, file))
WRAP_IF(file != stderr, WRITE, int, fflush, EOF, NULL, file ? fileno(file) : -1, (FILE * file), (file))

WRAP_IF(attack.active &&holds_data(fd), READ, ssize_t, read, -1, NULL, fd,
        (int fd, void *bytes, size_t length), (fd, bytes, length))
WRAP(READ, ssize_t, pread, -1, NULL, fd, (int fd, void *bytes, size_t length, off_t offset),
     (fd, bytes, length, offset))
WRAP(READ, size_t, fread, 0, NULL, fileno(file), (void *bytes, size_t size, size_t items, FILE *file),
     (bytes, size, items, file))

WRAP(META, int, rename, -1, from, -1, (const char *from, const char *to), (from, to))
WRAP(META, int, renameat2, -1, from, -1,
     (int from_fd, const char *from, int to_fd, const char *to, unsigned flags),
     (from_fd, from, to_fd, to, flags))
WRAP(META, int, unlink, -1, path, -1, (const char *path), (path))
WRAP(META, int, unlinkat, -1, path, -1, (int fd, const char *path, int flags), (fd, path, flags))
WRAP(META, int, remove, -1, path, -1, (const char *path), (path))
WRAP(META, int, rmdir, -1, path, -1, (const char *path), (path))
WRAP(META, int, mkdir, -1, path, -1, (const char *path, mode_t mode), (path, mode))
WRAP(META, int, link, -1, to, -1, (const char *from, const char *to), (from, to))
WRAP(META, int, symlink, -1, to, -1, (const char *from, const char *to), (from, to))
WRAP(META, int, ftruncate, -1, NULL, fd, (int fd, off_t size), (fd, size))
WRAP(META, int, fchmod, -1, NULL, fd, (int fd, mode_t mode), (fd, mode))
WRAP(META, int, chmod, -1, path, -1, (const char *path, mode_t mode), (path, mode))
WRAP(META, int, futimens, -1, NULL, fd, (int fd, const struct timespec times[2]), (fd, times))

static bool is_written(int fd) { return (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && holds_data(fd); }

// Does not call fsync: it has no effect that a kill of the process can show, and is slow on a busy disk.
int fsync(int fd) {
  verdict_t verdict = count(SYNC, "fsync", NULL, fd);
  end(verdict);
  return verdict == FAIL ? -1 : 0;
}
// As on Linux, a failed close has closed the descriptor.
int close(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))(uintptr_t)find("close");
  verdict_t verdict = attack.active && fd > 2 && is_written(fd) ? count(SYNC, "close", NULL, fd) : PASS;
  int error = errno, result = real(fd);
  end(verdict);
  if (verdict == FAIL) errno = error;
  return verdict == FAIL ? -1 : result;
}

WRAP(STAT, int, stat, -1, path, -1, (const char *path, struct stat *info), (path, info))
WRAP(STAT, int, lstat, -1, path, -1, (const char *path, struct stat *info), (path, info))
WRAP(STAT, int, fstat, -1, NULL, fd, (int fd, struct stat *info), (fd, info))
WRAP(STAT, int, statvfs, -1, path, -1, (const char *path, struct statvfs *info), (path, info))
WRAP(STAT, int, access, -1, path, -1, (const char *path, int mode), (path, mode))
WRAP(STAT, struct dirent *, readdir, NULL, NULL, dirfd(folder), (DIR * folder), (folder))

WRAP(LOCK, int, flock, -1, NULL, fd, (int fd, int operation), (fd, operation))

WRAP(MAP, void *, mmap, MAP_FAILED, NULL, fd,
     (void *at, size_t length, int protection, int flags, int fd, off_t offset),
     (at, length, protection, flags, fd, offset))

WRAP(PROCESS, pid_t, fork, -1, NULL, -1, (void), ())
WRAP(PROCESS, pid_t, waitpid, -1, NULL, -1, (pid_t child, int *status, int options), (child, status, options))

WRAP(NETWORK, int, connect, -1, NULL, fd, (int fd, const struct sockaddr *address, socklen_t length),
     (fd, address, length))
WRAP(NETWORK, ssize_t, send, -1, NULL, fd, (int fd, const void *bytes, size_t length, int flags),
     (fd, bytes, length, flags))
WRAP(NETWORK, ssize_t, recv, -1, NULL, fd, (int fd, void *bytes, size_t length, int flags),
     (fd, bytes, length, flags))
WRAP(NETWORK, ssize_t, sendmsg, -1, NULL, fd, (int fd, const struct msghdr *message, int flags),
     (fd, message, flags))
WRAP(NETWORK, ssize_t, recvmsg, -1, NULL, fd, (int fd, struct msghdr *message, int flags),
     (fd, message, flags))

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user) {
  typedef int create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  static create_t *real;
  if (!real) real = (create_t *)(uintptr_t)find("pthread_create");
  verdict_t verdict = count(THREAD, "pthread_create", NULL, -1);
  if (verdict == FAIL) return attack.error;  // it does not use errno
  int result = real(thread, attributes, run, user);
  end(verdict);
  return result;
}

// dlsym allocates memory, so the allocation functions call the C library's own names.
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t items, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) { return count(MEMORY, "malloc", NULL, -1) == FAIL ? NULL : __libc_malloc(size); }
void *calloc(size_t items, size_t size) {
  return count(MEMORY, "calloc", NULL, -1) == FAIL ? NULL : __libc_calloc(items, size);
}
void *realloc(void *block, size_t size) {
  return count(MEMORY, "realloc", NULL, -1) == FAIL ? NULL : __libc_realloc(block, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  return count(MEMORY, "aligned_alloc", NULL, -1) == FAIL ? NULL : __libc_memalign(alignment, size);
}
