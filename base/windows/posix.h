// The part of POSIX that mlxcel uses, on Windows. CMake includes this header before every source file of
// mlxcel, so that the other code is written once; third-party code does not see it. Each declaration notes
// what it does not support.
//
// Text is UTF-8 here and UTF-16 in the system. Paths may have both slashes and a drive; returned paths have
// '/'. Paths longer than 260 characters work. /dev/null and /proc/self/exe work as on Linux. Every file is
// opened so that other processes may rename or remove it; child processes do not inherit it. All files are
// binary.
//
// This is not a full POSIX layer: processes (base/child.h), terminals (line/tty.h) and shared libraries
// (base/library.h) have their own Windows implementations.
#ifndef MLXCEL_BASE_WINDOWS_POSIX_H_
#define MLXCEL_BASE_WINDOWS_POSIX_H_

#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// ----------------------------------------------------------------------------------------------------------
// The program

// main.c has the real main. It passes UTF-8 arguments, with '/' and without ".exe" in argv[0].
#define main mlx_posix_main
int mlx_posix_main(int argc, char **argv);

#define getenv mlx_posix_getenv  // HOME falls back to USERPROFILE
char *mlx_posix_getenv(const char *name);
int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);

#define SIGPIPE 13  // never raised: the write fails instead
#define signal mlx_posix_signal
typedef void (*mlx_posix_handler_t)(int);
mlx_posix_handler_t mlx_posix_signal(int number, mlx_posix_handler_t handler);

#define geteuid() 0  // ownership is in access control lists, which mlxcel does not check

// ----------------------------------------------------------------------------------------------------------
// Files

#define O_CLOEXEC 0
#define O_NONBLOCK 0  // no file of Windows waits when it is opened
#define O_NOCTTY 0
#define O_NOFOLLOW 0x10000000
#define O_DIRECTORY 0x20000000

#define open mlx_posix_open
#define read mlx_posix_read
#define write mlx_posix_write
#define rename mlx_posix_rename
#define unlink mlx_posix_unlink
#define rmdir mlx_posix_rmdir
#define mkdir mlx_posix_mkdir
#define access mlx_posix_access
#define ftruncate mlx_posix_ftruncate
#define isatty mlx_posix_isatty
#define fopen mlx_posix_fopen
int mlx_posix_open(const char *path, int flags, ...);
ssize_t mlx_posix_read(int fd, void *bytes, size_t length);
ssize_t mlx_posix_write(int fd, const void *bytes, size_t length);
int mlx_posix_rename(const char *from, const char *to);  // replaces |to| as soon as no process has it open
int mlx_posix_unlink(const char *path);
int mlx_posix_rmdir(const char *path);
int mlx_posix_mkdir(const char *path, int mode);   // ignores |mode|; permissions are inherited
int mlx_posix_access(const char *path, int mode);  // only checks that |path| exists
int mlx_posix_ftruncate(int fd, int64_t length);
int mlx_posix_isatty(int fd);
FILE *mlx_posix_fopen(const char *path, const char *mode);
int fsync(int fd);  // EINVAL for a file opened for reading
ssize_t pread(int fd, void *bytes, size_t length, int64_t offset);
ssize_t pwrite(int fd, const void *bytes, size_t length, int64_t offset);
char *realpath(const char *path, char *resolved);  // |resolved| must be NULL
static inline int fchmod(int fd, int mode) { return (void)fd, (void)mode, 0; }

#define AT_FDCWD (-100)
#define RENAME_EXCHANGE 2
// Always fails with ENOSYS: Windows cannot swap two names.
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);

// Permissions are not checked: st_mode always grants access only to the owner.
#undef stat
#undef fstat
#define stat mlx_posix_stat
#define lstat mlx_posix_lstat
#define fstat mlx_posix_fstat
#define st_atime st_atim.tv_sec
#define st_mtime st_mtim.tv_sec
struct mlx_posix_stat {
  uint64_t st_dev, st_ino;
  int64_t st_size;
  unsigned st_mode, st_nlink;
  long st_uid;
  struct timespec st_atim, st_mtim, st_ctim;
};
int mlx_posix_stat(const char *path, struct mlx_posix_stat *out);
int mlx_posix_lstat(const char *path, struct mlx_posix_stat *out);
int mlx_posix_fstat(int fd, struct mlx_posix_stat *out);
#define S_IFLNK 0120000
#define S_ISLNK(mode) (((mode) & 0170000) == S_IFLNK)

int futimens(int fd, const struct timespec times[2]);  // |times| must be NULL: sets the current time

#define LOCK_SH 1
#define LOCK_EX 2
#define LOCK_NB 4
int flock(int fd, int operation);  // files only, not folders

#define PROT_READ 1
#define MAP_PRIVATE 2
#define MAP_FAILED ((void *)-1)
// Maps a whole file for reading.
void *mmap(void *address, size_t length, int protection, int flags, int fd, int64_t offset);
int munmap(void *address, size_t length);

struct statvfs {
  uint64_t f_bavail, f_frsize;
};
int statvfs(const char *path, struct statvfs *out);

#define DIR mlx_posix_dir
#define dirent mlx_posix_dirent
typedef struct mlx_posix_dir mlx_posix_dir;
struct mlx_posix_dirent {
  char d_name[1024];
};
DIR *opendir(const char *path);
struct dirent *readdir(DIR *dir);
int closedir(DIR *dir);

// ----------------------------------------------------------------------------------------------------------
// The machine, and functions missing from the C library

#define _SC_PHYS_PAGES 1
#define _SC_PAGESIZE 2
long sysconf(int name);

#define RUSAGE_SELF 0
struct rusage {
  long ru_maxrss;  // KiB
};
int getrusage(int who, struct rusage *out);

ssize_t getrandom(void *bytes, size_t length, unsigned flags);
void *memmem(const void *where, size_t length, const void *what, size_t what_length);

#endif  // MLXCEL_BASE_WINDOWS_POSIX_H_
