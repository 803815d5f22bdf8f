// Files: mapped reads, atomic writes (a reader sees the whole new file or the old one), and path helpers.
//
// Calls that change the disk go through a table of functions, so that a test can make the Nth call fail.
#ifndef MLXCEL_BASE_FILE_H_
#define MLXCEL_BASE_FILE_H_

#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct mlx_file_calls {
  int (*open)(const char *path, int flags, int mode);
  ssize_t (*write)(int fd, const void *bytes, size_t length);
  int (*sync)(int fd);
  int (*close)(int fd);
  int (*rename)(const char *from, const char *to);
  int (*link)(const char *from, const char *to);
  int (*make_dir)(const char *path, int mode);
  int (*unlink)(const char *path);
  int (*remove_dir)(const char *path);
} mlx_file_calls_t;

extern const mlx_file_calls_t mlx_file_system_calls;
// Replaces the table; NULL restores the system's functions. For tests, before any thread starts.
void mlx_file_set_calls(const mlx_file_calls_t *calls);

// Opens a regular file to read. Never waits: a FIFO, a device, a socket or a folder is an error that names
// its kind. *|out_size| may be NULL. The caller closes the descriptor.
mlx_status_t mlx_open_file(const char *path, int *out_fd, uint64_t *out_size) MLX_MUST_USE;

// A whole regular file, mapped read-only. Release with mlx_unmap.
typedef struct mlx_map {
  const uint8_t *data;  // NULL for an empty file
  size_t size;
} mlx_map_t;
mlx_status_t mlx_map_file(const char *path, mlx_map_t *out_map) MLX_MUST_USE;
void mlx_unmap(mlx_map_t *map);

// Fails if the content of the file |path| is a git-LFS pointer: a short text in place of a large file.
mlx_status_t mlx_lfs_check(const char *path, const void *bytes, size_t size) MLX_MUST_USE;

// Reads a descriptor to its end, piece by piece; |name| is for errors. An error from |piece| ends the
// reading.
typedef mlx_status_t (*mlx_piece_fn_t)(void *user, const char *bytes, size_t length);
mlx_status_t mlx_read_pieces(int fd, const char *name, mlx_piece_fn_t piece, void *user) MLX_MUST_USE;

// Reads a regular file of at most |max_size| bytes; the result ends with a NUL not counted in *|out_length|.
// Release with mlx_free.
mlx_status_t mlx_read_file(const char *path, size_t max_size, char **out_bytes,
                           size_t *out_length) MLX_MUST_USE;

// The same, but |path| may also be a pipe or a device, and the call waits for their data. Only for a path
// that the user gave as an input, such as a prompt: `--file <(command)`.
mlx_status_t mlx_read_input(const char *path, size_t max_size, char **out_bytes,
                            size_t *out_length) MLX_MUST_USE;

// The same from an open descriptor, which stays open; |name| is for errors.
mlx_status_t mlx_read_stream(int fd, const char *name, size_t max_size, char **out_bytes,
                             size_t *out_length) MLX_MUST_USE;

// Writes |path| atomically: a temporary file next to it, synced, then renamed over it. On failure the old
// file is unchanged. A symbolic link stays, and its target is written. A target that is not a regular file (a
// pipe, /dev/stdout) is opened and written directly.
mlx_status_t mlx_write_file(const char *path, const void *bytes, size_t length) MLX_MUST_USE;
// The same, but a symbolic link at |path| is replaced, not followed.
mlx_status_t mlx_replace_file(const char *path, const void *bytes, size_t length) MLX_MUST_USE;
// The same with mode 0600 from the start: the file is never readable to other users.
mlx_status_t mlx_write_secret_file(const char *path, const void *bytes, size_t length) MLX_MUST_USE;

// Writes a file that only this run needs, such as the input of a tool: neither synced nor atomic.
mlx_status_t mlx_write_scratch_file(const char *path, const void *bytes, size_t length) MLX_MUST_USE;

// A new file that is written front to back. Open fails if the path exists. Close syncs; abandon removes the
// file.
typedef struct mlx_writer {
  int fd;
  char *path;  // owned
  uint64_t offset;
  uint64_t flushed;  // bytes that the system was told to write to the disk
  int unfinished;    // number of base/unfinished.h
} mlx_writer_t;
mlx_status_t mlx_writer_open(const char *path, mlx_writer_t *out_writer) MLX_MUST_USE;
mlx_status_t mlx_writer_write(mlx_writer_t *writer, const void *bytes, size_t length) MLX_MUST_USE;
mlx_status_t mlx_writer_close(mlx_writer_t *writer) MLX_MUST_USE;
void mlx_writer_abandon(mlx_writer_t *writer);  // safe after close

// Replaces everything from |offset| on by |bytes|, atomically: a copy is written next to the file and renamed
// over it. A symbolic link stays. Needs disk space for the copy.
mlx_status_t mlx_replace_tail(const char *path, uint64_t offset, const void *bytes,
                              size_t length) MLX_MUST_USE;

mlx_status_t mlx_copy_file(const char *from, const char *to) MLX_MUST_USE;  // |to| must not exist
// Makes |to| a hard link of |from| and syncs its folder. Returns false if the system cannot: another file
// system, no hard links, no permission, or |to| exists. The caller then copies the file.
bool mlx_link_file(const char *from, const char *to);
mlx_status_t mlx_rename(const char *from, const char *to) MLX_MUST_USE;  // syncs the folder of |to|
// Swaps two names, atomically if the file system supports it.
mlx_status_t mlx_exchange(const char *a, const char *b) MLX_MUST_USE;
// Like mkdir -p; |mode| is for new folders, before umask.
mlx_status_t mlx_make_dirs(const char *path, int mode) MLX_MUST_USE;
mlx_status_t mlx_remove_tree(const char *path) MLX_MUST_USE;  // like rm -rf; a missing path is fine
// "PATH.tmp.PID.N", a path that no other process or thread on this machine creates. The PID identifies
// leftovers of a killed process.
mlx_status_t mlx_temporary_path(const char *path, char **out_path) MLX_MUST_USE;
bool mlx_is_temporary_suffix(const char *suffix);  // true for one or more ".tmp.PID.N" of mlx_temporary_path
// The last component of a path, without trailing slashes, truncated to 255 bytes.
typedef struct mlx_file_name {
  char text[256];
} mlx_file_name_t;
mlx_file_name_t mlx_file_name(const char *path);
mlx_status_t mlx_folder_of(const char *path, char **out_folder) MLX_MUST_USE;  // "." for a bare name
mlx_status_t mlx_join_path(const char *folder, const char *name, char **out_path) MLX_MUST_USE;
mlx_status_t mlx_real_path(const char *path, char **out_path) MLX_MUST_USE;
// |path|, or its real path if the last component is "." or "..".
mlx_status_t mlx_named_path(const char *path, char **out_path) MLX_MUST_USE;
bool mlx_is_absolute(const char *path);
bool mlx_is_path(const char *text);  // contains a slash (on Windows a slash or a backslash)
// The folder of the file that has this code: the running program, or libmlxcel in another program. NULL in
// *|out_folder| if the system does not report it.
mlx_status_t mlx_own_folder(char **out_folder) MLX_MUST_USE;

// True for a relative path that stays below its start: no "..", no empty components, no backslashes or
// control characters.
bool mlx_is_safe_path(const char *path);

bool mlx_is_file(const char *path);
bool mlx_is_dir(const char *path);

// Identifies the state of a file without reading it: device, inode, size and both times.
typedef struct mlx_file_stamp {
  uint64_t device, inode, size;
  int64_t modified_ns, changed_ns;
} mlx_file_stamp_t;
mlx_status_t mlx_file_stamp(const char *path, mlx_file_stamp_t *out_stamp) MLX_MUST_USE;
// True if no write happened between two stamps of a path. changed_ns may differ: a new hard link, a rename or
// a change of permissions sets it too.
bool mlx_file_stamp_same_content(const mlx_file_stamp_t *a, const mlx_file_stamp_t *b);

// Calls |visit| with each name in |folder| except "." and "..", in byte order. An error from |visit| ends the
// walk.
typedef mlx_status_t (*mlx_visit_fn_t)(void *user, const char *name);
mlx_status_t mlx_list_dir(const char *folder, mlx_visit_fn_t visit, void *user) MLX_MUST_USE;

// An error about |path| from errno, with the matching code and hint.
mlx_status_t mlx_io_error(const char *action, const char *path) MLX_MUST_USE;

#endif  // MLXCEL_BASE_FILE_H_
