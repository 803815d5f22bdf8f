// The part of POSIX that mlxcel calls, on Windows. CMake puts this header before every file of ours there, so
// that the rest of the tree is written once; third-party code never sees it. What a call cannot do there it
// says at its place.
//
// Text is UTF-8 on our side and UTF-16 on the system's. Paths may have either slash and a drive; those we
// hand out have '/'. Paths longer than 260 characters work, and /dev/null and /proc/self/exe are what they
// are elsewhere. Every file is opened so that others may rename or remove it, is not inherited by children,
// and is never translated.
//
// This is not a port of POSIX: processes (base/child.h), terminals (line/tty.h) and shared libraries
// (base/library.h) have halves of their own.
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

// start.c has the real one: it hands over UTF-8, argv[0] with '/' and without ".exe".
#define main mlx_posix_main

#define getenv mlx_posix_getenv  // HOME is USERPROFILE where there is none
char *mlx_posix_getenv(const char *name);
int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);

#define SIGPIPE 13  // there is none: writing fails
#define signal mlx_posix_signal
typedef void (*mlx_posix_handler_t)(int);
mlx_posix_handler_t mlx_posix_signal(int number, mlx_posix_handler_t handler);

#define geteuid() 0  // who owns what is said by access lists, which are not looked at

// ----------------------------------------------------------------------------------------------------------
// Files

#define O_CLOEXEC 0
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
int mlx_posix_rename(const char *from, const char *to);  // replaces a file as soon as nobody has it open
int mlx_posix_unlink(const char *path);
int mlx_posix_rmdir(const char *path);
int mlx_posix_mkdir(const char *path, int mode);   // the mode is that of the folder above
int mlx_posix_access(const char *path, int mode);  // whether it is there
int mlx_posix_ftruncate(int fd, int64_t length);
int mlx_posix_isatty(int fd);
FILE *mlx_posix_fopen(const char *path, const char *mode);
int fsync(int fd);  // EINVAL for what was opened for reading
ssize_t pread(int fd, void *bytes, size_t length, int64_t offset);
ssize_t pwrite(int fd, const void *bytes, size_t length, int64_t offset);
char *realpath(const char *path, char *resolved);  // |resolved| is NULL
static inline int fchmod(int fd, int mode) { return (void)fd, (void)mode, 0; }

#define AT_FDCWD (-100)
#define RENAME_EXCHANGE 2
int renameat2(int from_folder, const char *from, int to_folder, const char *to,
              unsigned flags);  // ENOSYS: nothing exchanges two names

// A file's permissions are not looked at: its mode says that its owner may do everything, and nobody else.
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

int futimens(int fd, const struct timespec times[2]);  // |times| is NULL: now

#define LOCK_SH 1
#define LOCK_EX 2
#define LOCK_NB 4
int flock(int fd, int operation);  // not of a folder

#define PROT_READ 1
#define MAP_PRIVATE 2
#define MAP_FAILED ((void *)-1)
void *mmap(void *address, size_t length, int protection, int flags, int fd,
           int64_t offset);  // a whole file, for reading
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
// The machine, and what other C libraries have

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
