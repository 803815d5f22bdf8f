// File access and paths on POSIX. On Windows base/windows/posix.h supplies the POSIX calls used here.
#include "base/file.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unfinished.h"

#define READ_BYTES (1u << 20)
#define HUGE_BYTES ((size_t)2 << 20)
#define FLUSH_BYTES (64u << 20)  // start_flush: fewer, larger requests to the disk

static int system_open(const char *path, int flags, int mode) { return open(path, flags, mode); }
static int system_make_dir(const char *path, int mode) { return mkdir(path, (mode_t)mode); }

#ifdef _WIN32
static int system_link(const char *from, const char *to) {
  (void)from, (void)to;
  errno = ENOSYS;
  return -1;
}
#else
static int system_link(const char *from, const char *to) { return link(from, to); }
#endif

const mlx_file_calls_t mlx_file_system_calls = {
    .open = system_open,
    .write = write,
    .sync = fsync,
    .close = close,
    .rename = rename,
    .link = system_link,
    .make_dir = system_make_dir,
    .unlink = unlink,
    .remove_dir = rmdir,
};
static const mlx_file_calls_t *calls = &mlx_file_system_calls;

void mlx_file_set_calls(const mlx_file_calls_t *new_calls) {
  calls = new_calls ? new_calls : &mlx_file_system_calls;
}

// The length of the temporary suffix at |text|, as mlx_temporary_path and the cache make it; 0 if there is
// none.
static size_t temporary_suffix_length(const char *text) {
  long pid;
  unsigned long long when;
  unsigned long number;
  int end = 0;
  return sscanf(text, ".tmp.%ld.%llx-%lx%n", &pid, &when, &number, &end) == 3 && end ? (size_t)end : 0;
}

// Removes temporary suffixes: an error names the file that the user asked for.
static void remove_suffixes(char *path) {
  char *to = path;
  for (const char *from = path; *from;) {
    const size_t length = *from == '.' ? temporary_suffix_length(from) : 0;
    from += length;
    if (!length) *to++ = *from++;
  }
  *to = 0;
}

mlx_status_t mlx_io_error(const char *action, const char *path) {
  int error = errno;
  mlx_code_t code = error == ENOENT ? MLX_NOT_FOUND : error == ENOMEM ? MLX_OUT_OF_MEMORY : MLX_IO;
  char plain[4096];
  snprintf(plain, sizeof plain, "%s", path);
  remove_suffixes(plain);
  const bool temporary = strlen(plain) < strlen(path);
  mlx_status_t status = mlx_error(code, "cannot %s '%s': %s", action, plain, strerror(error));
  if (error == ENOSPC)
    return mlx_status_hint(status, "free some space on that disk and run the command again");
  if (error == EFBIG)
    return mlx_status_hint(status, "raise the limit on file sizes (ulimit -f), or use another file system");
  if (error != EACCES && error != EPERM) return status;
  char *slash = temporary ? strrchr(plain, '/') : NULL;  // the folder refuses a new file
  if (slash) slash[slash == plain] = 0;
  return mlx_status_hint(status, "check its owner and permissions: ls -ld '%s'",
                         temporary && !slash ? "." : plain);
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static const char *kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "a special file";
}

static mlx_status_t not_regular(const char *path, const char *kind) {
  return mlx_error(MLX_INVALID_INPUT, "'%s' is %s, not a regular file", path, kind);
}

mlx_status_t mlx_lfs_check(const char *path, const void *bytes, size_t size) {
  static const char start[] = "version https://git-lfs.github.com/spec/";
  if (size < sizeof start - 1 || memcmp(bytes, start, sizeof start - 1)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT,
                "'%s' is a git-LFS pointer, not the file itself: it was cloned without git-LFS", path),
      "fetch the file: run `git lfs install` once, then `git lfs pull` in that folder");
}

// O_NONBLOCK: without it, opening a FIFO waits for a writer. It does not change how a regular file is read.
mlx_status_t mlx_open_file(const char *path, int *out_fd, uint64_t *out_size) {
  struct stat info;
  mlx_status_t status = NULL;
  *out_fd = -1;
  int fd = calls->open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
  if (fd < 0 && errno == ENXIO) return not_regular(path, "a special file");  // a socket
  if (fd < 0 && errno == EISDIR) return not_regular(path, "a folder");       // Windows opens no folder
  if (fd < 0) return mlx_io_error("open", path);
  if (fstat(fd, &info)) {
    status = mlx_io_error("stat", path);
  } else if (!S_ISREG(info.st_mode)) {
    status = not_regular(path, kind_of(info.st_mode));
  }
  if (status) {
    calls->close(fd);
    return status;
  }
  *out_fd = fd;
  if (out_size) *out_size = (uint64_t)info.st_size;
  return NULL;
}

// Reads a file that is not cached yet in huge pages, if its file system can. A file that is cached already
// keeps the pages that it has (MLX_ARCHIVE_PIECE in artifact/archive.h).
static void use_huge_pages(void *data, size_t size) {
#ifdef __linux__
  if (size >= HUGE_BYTES) (void)!madvise(data, size, MADV_HUGEPAGE);
#else
  (void)data, (void)size;
#endif
}

mlx_status_t mlx_map_file(const char *path, mlx_map_t *out_map) {
  uint64_t size = 0;
  int fd;
  *out_map = (mlx_map_t){0};
  MLX_TRY(mlx_open_file(path, &fd, &size));
  mlx_status_t status = NULL;
  if (size > SIZE_MAX) {
    status = mlx_error(MLX_UNSUPPORTED, "'%s' is too large to be mapped", path);
  } else if (size > 0) {
    void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      status = mlx_io_error("map", path);
    } else {
      *out_map = (mlx_map_t){.data = data, .size = (size_t)size};
      use_huge_pages(data, (size_t)size);
      mlx_fault_add_map(data, size, path);
    }
  }
  calls->close(fd);
  return status;
}

void mlx_unmap(mlx_map_t *map) {
  if (map->data) {
    mlx_fault_remove_map(map->data);
    munmap((void *)(uintptr_t)map->data, map->size);
  }
  *map = (mlx_map_t){0};
}

// Uses read, not mmap: a pipe cannot be mapped, a mapped file counts as process memory, and the data must not
// change under the caller.
mlx_status_t mlx_read_pieces(int fd, const char *name, mlx_piece_fn_t piece, void *user) {
  char *buffer;
  MLX_TRY(mlx_alloc(READ_BYTES, 1, &buffer));
  mlx_status_t status = NULL;
  for (ssize_t length; !status && (length = read(fd, buffer, READ_BYTES));) {
    if (length < 0 && errno == EINTR) continue;
    status = length < 0 ? mlx_io_error("read", name) : piece(user, buffer, (size_t)length);
  }
  mlx_free(buffer);
  return status;
}

typedef struct collect {
  const char *name;
  size_t max_size;
  mlx_text_t text;
} collect_t;

static mlx_status_t collect_piece(void *user, const char *bytes, size_t length) {
  collect_t *collect = user;
  if (length > collect->max_size - collect->text.length) {
    return mlx_error(MLX_INVALID_INPUT, "'%s' is larger than the limit of %zu bytes", collect->name,
                     collect->max_size);
  }
  mlx_text_append(&collect->text, bytes, length);
  return collect->text.failed ? mlx_text_finish(&collect->text) : NULL;
}

mlx_status_t mlx_read_stream(int fd, const char *name, size_t max_size, char **out_bytes,
                             size_t *out_length) {
  *out_bytes = NULL;
  if (out_length) *out_length = 0;
  collect_t collect = {.name = name, .max_size = max_size};
  mlx_status_t status = mlx_read_pieces(fd, name, collect_piece, &collect);
  if (!status) status = mlx_text_take(&collect.text, out_bytes, out_length);
  mlx_text_clear(&collect.text);
  return status;
}

mlx_status_t mlx_read_file(const char *path, size_t max_size, char **out_bytes, size_t *out_length) {
  int fd;
  *out_bytes = NULL;
  MLX_TRY(mlx_open_file(path, &fd, NULL));
  mlx_status_t status = mlx_read_stream(fd, path, max_size, out_bytes, out_length);
  calls->close(fd);
  return status;
}

mlx_status_t mlx_read_input(const char *path, size_t max_size, char **out_bytes, size_t *out_length) {
  *out_bytes = NULL;
  int fd = calls->open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return mlx_io_error("open", path);
  mlx_status_t status = mlx_read_stream(fd, path, max_size, out_bytes, out_length);
  calls->close(fd);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

static mlx_status_t open_writer(const char *path, int mode, mlx_writer_t *out_writer) {
  *out_writer = (mlx_writer_t){.fd = -1};
  MLX_TRY(mlx_copy_text(path, strlen(path), &out_writer->path));
  out_writer->fd = calls->open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (out_writer->fd >= 0) {
    out_writer->unfinished = mlx_unfinished_add(path);
    return NULL;
  }
  mlx_status_t status = mlx_io_error("create", path);
  mlx_free(out_writer->path);
  out_writer->path = NULL;
  return status;
}

mlx_status_t mlx_writer_open(const char *path, mlx_writer_t *out_writer) {
  return open_writer(path, 0644, out_writer);
}

// Starts to write what is complete to the disk, without waiting, so that the sync of a large file at the end
// has little left to do. Errors are not reported here: the sync reports them.
static void start_flush(mlx_writer_t *writer) {
#ifdef __linux__
  if (writer->offset - writer->flushed < FLUSH_BYTES) return;
  (void)!sync_file_range(writer->fd, (int64_t)writer->flushed, (int64_t)(writer->offset - writer->flushed),
                         SYNC_FILE_RANGE_WRITE);
  writer->flushed = writer->offset;
#else
  (void)writer;
#endif
}

mlx_status_t mlx_writer_write(mlx_writer_t *writer, const void *bytes, size_t length) {
  const char *cursor = bytes;
  while (length) {
    ssize_t written = calls->write(writer->fd, cursor, length);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return mlx_io_error("write", writer->path);
    cursor += written;
    length -= (size_t)written;
    writer->offset += (uint64_t)written;
  }
  start_flush(writer);
  return NULL;
}

mlx_status_t mlx_writer_close(mlx_writer_t *writer) {
  mlx_status_t status = NULL;
  if (calls->sync(writer->fd)) status = mlx_io_error("sync", writer->path);
  if (calls->close(writer->fd) && !status) status = mlx_io_error("close", writer->path);
  writer->fd = -1;
  if (status) calls->unlink(writer->path);
  mlx_unfinished_remove(writer->unfinished);
  mlx_free(writer->path);
  writer->path = NULL;
  return status;
}

void mlx_writer_abandon(mlx_writer_t *writer) {
  if (!writer->path) return;
  calls->close(writer->fd);
  calls->unlink(writer->path);
  mlx_unfinished_remove(writer->unfinished);
  mlx_free(writer->path);
  *writer = (mlx_writer_t){.fd = -1};
}

// Closes a writer whose work ended with |status|; on an error removes the file.
static mlx_status_t writer_end(mlx_writer_t *writer, mlx_status_t status) {
  if (!status) return mlx_writer_close(writer);
  mlx_writer_abandon(writer);
  return status;
}

// Syncs the folder of |path|, which makes a rename in it durable.
static mlx_status_t sync_folder_of(const char *path) {
  char *folder;
  MLX_TRY(mlx_folder_of(path, &folder));
  int fd = calls->open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  mlx_status_t status = NULL;
  // Some file systems refuse to sync a folder (EINVAL); the rename itself is still atomic there.
  if (fd < 0 || (calls->sync(fd) && errno != EINVAL)) status = mlx_io_error("sync folder", folder);
  if (fd >= 0) calls->close(fd);
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_exchange(const char *a, const char *b) {
  if (!renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)) return sync_folder_of(b);
  if (errno != EINVAL && errno != ENOSYS) return mlx_io_error("rename to", b);
  char *temporary;  // the file system has no RENAME_EXCHANGE: three renames instead
  MLX_TRY(mlx_temporary_path(b, &temporary));
  mlx_status_t status = mlx_rename(b, temporary);
  if (!status) {
    status = mlx_rename(a, b);
    status = mlx_status_join(status, mlx_rename(temporary, status ? b : a));
  }
  mlx_free(temporary);
  return status;
}

mlx_status_t mlx_rename(const char *from, const char *to) {
  if (calls->rename(from, to)) return mlx_io_error("rename to", to);
  return sync_folder_of(to);
}

mlx_status_t mlx_temporary_path(const char *path, char **out_path) {
  static atomic_uint number;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);  // two containers that share a folder may have equal PIDs
  return mlx_format(out_path, "%s.tmp.%ld.%llx-%x", path, (long)getpid(),
                    (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec,
                    atomic_fetch_add(&number, 1));
}

// A temporary file may be written through a second one, so the suffix may repeat.
bool mlx_is_temporary_suffix(const char *suffix) {
  do {
    long pid;
    unsigned long long when;
    unsigned number;
    int end = 0;
    if (sscanf(suffix, ".tmp.%ld.%llx-%x%n", &pid, &when, &number, &end) != 3 || !end) return false;
    suffix += end;
  } while (*suffix);
  return true;
}

// Writes to a target that must not be replaced: opens |path|, or uses |stream| if it is not -1.
static mlx_status_t write_through(const char *path, int stream, const void *bytes, size_t length) {
  mlx_writer_t writer = {
      .fd = stream >= 0 ? dup(stream) : calls->open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644),
      .path = (char *)(uintptr_t)path};
  if (writer.fd < 0) return mlx_io_error("open", path);
  mlx_status_t status = mlx_writer_write(&writer, bytes, length);
  if (calls->close(writer.fd) && !status) status = mlx_io_error("close", path);
  return status;
}

// The new file gets the permissions of |old|, the file to be replaced, or |mode| if |old| is NULL.
static mlx_status_t write_and_rename(const char *path, const struct stat *old, int mode, const void *bytes,
                                     size_t length) {
  char *temporary;
  MLX_TRY(mlx_temporary_path(path, &temporary));
  mlx_writer_t writer;
  mlx_status_t status = open_writer(temporary, mode, &writer);
  if (!status) {
    status = mlx_writer_write(&writer, bytes, length);
    if (!status && old && fchmod(writer.fd, old->st_mode & 07777))
      status = mlx_io_error("set the permissions of", temporary);
    status = writer_end(&writer, status);
  }
  if (!status) {
    status = mlx_rename(temporary, path);
    if (status) calls->unlink(temporary);
  }
  mlx_free(temporary);
  return status;
}

mlx_status_t mlx_write_scratch_file(const char *path, const void *bytes, size_t length) {
  mlx_writer_t writer = {.fd = calls->open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644),
                         .path = (char *)(uintptr_t)path};
  if (writer.fd < 0) return mlx_io_error("create", path);
  mlx_status_t status = mlx_writer_write(&writer, bytes, length);
  if (calls->close(writer.fd) && !status) status = mlx_io_error("close", path);
  return status;
}

mlx_status_t mlx_write_file(const char *path, const void *bytes, size_t length) {
  struct stat info, link;
  char *target;
  if (!strcmp(path, "/dev/stdout")) return write_through(path, STDOUT_FILENO, bytes, length);
  if (!strcmp(path, "/dev/stderr")) return write_through(path, STDERR_FILENO, bytes, length);
  if (stat(path, &info)) {  // missing, or a link to a missing file
    return lstat(path, &link) ? write_and_rename(path, NULL, 0644, bytes, length)
                              : write_through(path, -1, bytes, length);
  }
  if (!S_ISREG(info.st_mode)) return write_through(path, -1, bytes, length);
  MLX_TRY(mlx_real_path(path, &target));
  mlx_status_t status = write_and_rename(target, &info, 0644, bytes, length);
  mlx_free(target);
  return status;
}

mlx_status_t mlx_replace_file(const char *path, const void *bytes, size_t length) {
  return write_and_rename(path, NULL, 0644, bytes, length);
}

mlx_status_t mlx_write_secret_file(const char *path, const void *bytes, size_t length) {
  return write_and_rename(path, NULL, 0600, bytes, length);
}

static mlx_status_t copy_piece(void *user, const char *bytes, size_t length) {
  return mlx_writer_write(user, bytes, length);
}

// Appends the first |length| bytes of |fd| to |writer|.
static mlx_status_t copy_front(int fd, const char *path, uint64_t length, mlx_writer_t *writer) {
  const size_t size = 1 << 20;
  char *buffer;
  mlx_status_t status = NULL;
  MLX_TRY(mlx_alloc(size, 1, &buffer));
  for (uint64_t done = 0; done < length && !status;) {
    const ssize_t got = pread(fd, buffer, length - done < size ? (size_t)(length - done) : size, (off_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = mlx_io_error("read", path);
    if (got == 0) status = mlx_error(MLX_IO, "'%s' is shorter than expected", path);
    if (got > 0) status = mlx_writer_write(writer, buffer, (size_t)got);
    if (got > 0) done += (uint64_t)got;
  }
  mlx_free(buffer);
  return status;
}

static mlx_status_t write_with_tail(const char *path, const char *temporary, uint64_t offset,
                                    const void *bytes, size_t length) {
  struct stat info;
  mlx_writer_t writer;
  int fd = calls->open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return mlx_io_error("open", path);
  mlx_status_t status = fstat(fd, &info) ? mlx_io_error("stat", path) : NULL;
  if (!status) {
    status = open_writer(temporary, 0600, &writer);
    if (!status) {
      status = copy_front(fd, path, offset, &writer);
      if (!status) status = mlx_writer_write(&writer, bytes, length);
      if (!status && fchmod(writer.fd, info.st_mode & 07777))
        status = mlx_io_error("set the permissions of", temporary);
      status = writer_end(&writer, status);
    }
  }
  calls->close(fd);
  return status;
}

mlx_status_t mlx_replace_tail(const char *path, uint64_t offset, const void *bytes, size_t length) {
  char *target, *temporary = NULL;
  MLX_TRY(mlx_real_path(path, &target));
  mlx_status_t status = mlx_temporary_path(target, &temporary);
  if (!status) status = write_with_tail(target, temporary, offset, bytes, length);
  if (!status) {
    status = mlx_rename(temporary, target);
    if (status) calls->unlink(temporary);
  }
  mlx_free(temporary);
  mlx_free(target);
  return status;
}

mlx_status_t mlx_copy_file(const char *from, const char *to) {
  int fd;
  MLX_TRY(mlx_open_file(from, &fd, NULL));
  mlx_writer_t writer;
  mlx_status_t status = mlx_writer_open(to, &writer);
  if (!status) {
    status = writer_end(&writer, mlx_read_pieces(fd, from, copy_piece, &writer));
  }
  calls->close(fd);
  return status;
}

bool mlx_link_file(const char *from, const char *to) {
  if (calls->link(from, to)) return false;
  mlx_status_t status = sync_folder_of(to);
  if (!status) return true;
  mlx_status_free(status);
  calls->unlink(to);
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Folders and paths

#ifdef _WIN32
static bool is_slash(char c) { return c == '/' || c == '\\'; }
bool mlx_is_absolute(const char *path) {
  return is_slash(path[0]) || (path[0] && path[1] == ':' && is_slash(path[2]));
}
#else
static bool is_slash(char c) { return c == '/'; }
bool mlx_is_absolute(const char *path) { return is_slash(path[0]); }
#endif

bool mlx_is_path(const char *text) {
  while (*text && !is_slash(*text)) ++text;
  return *text != 0;
}

mlx_status_t mlx_make_dirs(const char *path, int mode) {
  char *partial;
  if (!path[0]) return mlx_error(MLX_IO, "cannot create a folder: its path is empty");
  MLX_TRY(mlx_copy_text(path, strlen(path), &partial));
  mlx_status_t status = NULL;
  for (char *cursor = partial + 1; !status; ++cursor) {
    if (*cursor && !is_slash(*cursor)) continue;
    char saved = *cursor;
    *cursor = 0;
    if (calls->make_dir(partial, mode) && errno != EEXIST) status = mlx_io_error("create folder", partial);
    *cursor = saved;
    if (!saved) break;
  }
  if (!status && !mlx_is_dir(path)) status = mlx_error(MLX_IO, "'%s' exists and is not a folder", path);
  mlx_free(partial);
  return status;
}

static mlx_status_t remove_child(void *user, const char *name) {
  char *path;
  MLX_TRY(mlx_join_path(user, name, &path));
  mlx_status_t status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_remove_tree(const char *path) {
  struct stat info;
  if (lstat(path, &info)) return errno == ENOENT ? NULL : mlx_io_error("stat", path);
  if (!S_ISDIR(info.st_mode)) {
    return calls->unlink(path) && errno != ENOENT ? mlx_io_error("remove", path) : NULL;
  }
  MLX_TRY(mlx_list_dir(path, remove_child, (void *)(uintptr_t)path));
  return calls->remove_dir(path) && errno != ENOENT ? mlx_io_error("remove folder", path) : NULL;
}

mlx_file_name_t mlx_file_name(const char *path) {
  mlx_file_name_t name;
  size_t length = strlen(path), start;
  while (length > 1 && is_slash(path[length - 1])) --length;
  for (start = length; start > 0 && !is_slash(path[start - 1]); --start) continue;
  snprintf(name.text, sizeof name.text, "%.*s", (int)(length - start), path + start);
  return name;
}

mlx_status_t mlx_folder_of(const char *path, char **out_folder) {
  size_t end = strlen(path);
  while (end > 1 && is_slash(path[end - 1])) --end;  // the folder of "a/b/" is "a"
  while (end > 0 && !is_slash(path[end - 1])) --end;
  if (!end) return mlx_copy_text(".", 1, out_folder);
  return mlx_copy_text(path, end == 1 ? 1 : end - 1, out_folder);
}

mlx_status_t mlx_join_path(const char *folder, const char *name, char **out_path) {
  size_t length = strlen(folder);
  return mlx_format(out_path, "%s%s%s", folder, length && is_slash(folder[length - 1]) ? "" : "/", name);
}

mlx_status_t mlx_real_path(const char *path, char **out_path) {
  *out_path = NULL;
  char *resolved = realpath(path, NULL);
  if (!resolved) return mlx_io_error("find", path);
  mlx_status_t status = mlx_copy_text(resolved, strlen(resolved), out_path);
  free(resolved);
  return status;
}

mlx_status_t mlx_named_path(const char *path, char **out_path) {
  const mlx_file_name_t name = mlx_file_name(path);
  const bool named = strcmp(name.text, ".") && strcmp(name.text, "..");
  return named ? mlx_copy_text(path, strlen(path), out_path) : mlx_real_path(path, out_path);
}

// For a program, dladdr returns the name by which it was started, which may be relative to another folder. On
// Windows, /proc/self/exe is the file that has this code (base/windows/text.c).
static mlx_status_t find_own_file(char **out_path) {
#ifndef _WIN32
  Dl_info info;
  const bool found = dladdr((const void *)(uintptr_t)mlx_own_folder, &info) && info.dli_fname;
  if (found && !strncmp(mlx_file_name(info.dli_fname).text, "libmlxcel.", 10))
    return mlx_real_path(info.dli_fname, out_path);
#endif
  return mlx_real_path("/proc/self/exe", out_path);
}

mlx_status_t mlx_own_folder(char **out_folder) {
  *out_folder = NULL;
  char *self;
  mlx_status_t status = find_own_file(&self);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_free(status);
  if (!self) return NULL;
  status = mlx_folder_of(self, out_folder);
  mlx_free(self);
  return status;
}

bool mlx_is_safe_path(const char *path) {
  if (!*path || strlen(path) > 1024) return false;
  for (const char *part = path;;) {
    const size_t length = strcspn(part, "/");
    if (!length || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
      return false;
    for (size_t i = 0; i < length; ++i) {
      if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f || strchr("\\:*?\"<>|", part[i])) return false;
    }
    if (!part[length]) return true;
    part += length + 1;
  }
}

bool mlx_is_file(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISREG(info.st_mode);
}

bool mlx_is_dir(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISDIR(info.st_mode);
}

mlx_status_t mlx_file_stamp(const char *path, mlx_file_stamp_t *out_stamp) {
  struct stat info;
  if (stat(path, &info)) return mlx_io_error("stat", path);
  *out_stamp = (mlx_file_stamp_t){
      .device = (uint64_t)info.st_dev,
      .inode = (uint64_t)info.st_ino,
      .size = (uint64_t)info.st_size,
      .modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
      .changed_ns = (int64_t)info.st_ctim.tv_sec * 1000000000 + info.st_ctim.tv_nsec,
  };
  return NULL;
}

bool mlx_file_stamp_same_content(const mlx_file_stamp_t *a, const mlx_file_stamp_t *b) {
  return a->device == b->device && a->inode == b->inode && a->size == b->size &&
         a->modified_ns == b->modified_ns;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

mlx_status_t mlx_list_dir(const char *folder, mlx_visit_fn_t visit, void *user) {
  DIR *dir = opendir(folder);
  if (!dir) return mlx_io_error("open folder", folder);
  char **names = NULL;
  size_t count = 0, capacity = 0;
  mlx_status_t status = NULL;
  for (struct dirent *entry; !status && (entry = readdir(dir));) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    status = mlx_reserve(count + 1, sizeof *names, &capacity, &names);
    if (!status) status = mlx_copy_text(entry->d_name, strlen(entry->d_name), &names[count]);
    if (!status) ++count;
  }
  closedir(dir);
  if (count) qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 0; i < count; ++i) {
    if (!status) status = visit(user, names[i]);
    mlx_free(names[i]);
  }
  mlx_free(names);
  return status;
}
