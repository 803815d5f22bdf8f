// POSIX file calls on Windows: files and folders by path and by descriptor.
#include <errno.h>
#include <stdarg.h>

#include "base/windows/internal.h"

#define SHARE (FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE)
#define MAX_BYTES (1u << 30)  // per call: the C library counts bytes in 32 bits

static HANDLE handle_of(int fd) { return (HANDLE)_get_osfhandle(fd); }

// ----------------------------------------------------------------------------------------------------------
// Opening

static DWORD access_for(int flags) {
  const int mode = flags & (O_RDONLY | O_WRONLY | O_RDWR);
  if (mode == O_RDWR) return GENERIC_READ | GENERIC_WRITE;
  if (mode == O_WRONLY)  // the system appends atomically
    return flags & O_APPEND ? FILE_APPEND_DATA | SYNCHRONIZE : GENERIC_WRITE;
  return GENERIC_READ;
}

static DWORD disposition_for(int flags) {
  if (flags & O_CREAT) return flags & O_EXCL ? CREATE_NEW : flags & O_TRUNC ? CREATE_ALWAYS : OPEN_ALWAYS;
  return flags & O_TRUNC ? TRUNCATE_EXISTING : OPEN_EXISTING;
}

static HANDLE open_handle(const wchar_t *path, int flags) {
  const DWORD attributes = (flags & O_DIRECTORY ? FILE_FLAG_BACKUP_SEMANTICS : FILE_ATTRIBUTE_NORMAL) |
                           (flags & O_NOFOLLOW ? FILE_FLAG_OPEN_REPARSE_POINT : 0);
  const DWORD access = access_for(flags), disposition = disposition_for(flags);
  if (access == GENERIC_READ && disposition == OPEN_EXISTING) {  // try to allow futimens
    HANDLE handle =
        CreateFileW(path, access | FILE_WRITE_ATTRIBUTES, SHARE, NULL, disposition, attributes, NULL);
    if (handle != INVALID_HANDLE_VALUE) return handle;
  }
  return CreateFileW(path, access, SHARE, NULL, disposition, attributes, NULL);
}

static bool is_link(HANDLE handle) {
  BY_HANDLE_FILE_INFORMATION info;
  return GetFileInformationByHandle(handle, &info) && info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT;
}

static int fail_to_open(const wchar_t *path, int flags) {
  mlx_windows_set_errno();
  const DWORD attributes = errno == EACCES ? GetFileAttributesW(path) : INVALID_FILE_ATTRIBUTES;
  if (attributes != INVALID_FILE_ATTRIBUTES && attributes & FILE_ATTRIBUTE_DIRECTORY &&
      !(flags & O_DIRECTORY))
    errno = EISDIR;
  return -1;
}

int mlx_posix_open(const char *path, int flags, ...) {
  wchar_t *wide = mlx_wide_path(path);
  if (!wide) return -1;
  HANDLE handle = open_handle(wide, flags);
  int fd = handle == INVALID_HANDLE_VALUE ? fail_to_open(wide, flags) : 0;
  free(wide);
  if (fd) return -1;
  if (flags & O_NOFOLLOW && is_link(handle)) {
    CloseHandle(handle);
    errno = ELOOP;
    return -1;
  }
  fd = _open_osfhandle((intptr_t)handle, (flags & (O_RDWR | O_WRONLY | O_APPEND)) | O_BINARY | O_NOINHERIT);
  if (fd < 0) CloseHandle(handle);
  return fd;
}

FILE *mlx_posix_fopen(const char *path, const char *mode) {
  wchar_t *wide = mlx_wide_path(path), wide_mode[8] = L"";
  for (size_t i = 0; i < 6 && mode[i]; ++i) wide_mode[i] = (unsigned char)mode[i];
  wcscat(wide_mode, L"b");
  FILE *file = wide ? _wfopen(wide, wide_mode) : NULL;
  free(wide);
  return file;
}

// ----------------------------------------------------------------------------------------------------------
// Reading and writing

// The console returns whole lines in UTF-16; Ctrl-Z at the start of a line is the end of input.
static ssize_t read_console(HANDLE console, void *bytes, size_t length) {
  wchar_t wide[1024];
  DWORD got = 0, room = length / 3 < 1024 ? (DWORD)(length / 3) : 1024;  // a UTF-16 unit is at most 3 bytes
  if (!ReadConsoleW(console, wide, room, &got, NULL)) return mlx_windows_set_errno();
  if (!got || wide[0] == 0x1a) return 0;
  DWORD kept = 0;
  for (DWORD i = 0; i < got; ++i) {
    if (wide[i] != L'\r') wide[kept++] = wide[i];
  }
  return WideCharToMultiByte(CP_UTF8, 0, wide, (int)kept, bytes,
                             (int)(length < MAX_BYTES ? length : MAX_BYTES), NULL, NULL);
}

ssize_t mlx_posix_read(int fd, void *bytes, size_t length) {
  if (mlx_posix_isatty(fd) && length >= 3) return read_console(handle_of(fd), bytes, length);
  return _read(fd, bytes, length < MAX_BYTES ? (unsigned)length : MAX_BYTES);
}

ssize_t mlx_posix_write(int fd, const void *bytes, size_t length) {
  return _write(fd, bytes, length < MAX_BYTES ? (unsigned)length : MAX_BYTES);
}

static OVERLAPPED overlapped_at(int64_t offset) {
  return (OVERLAPPED){.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};
}

ssize_t pread(int fd, void *bytes, size_t length, int64_t offset) {
  OVERLAPPED at = overlapped_at(offset);
  DWORD got = 0;
  if (ReadFile(handle_of(fd), bytes, length < MAX_BYTES ? (DWORD)length : MAX_BYTES, &got, &at)) return got;
  return GetLastError() == ERROR_HANDLE_EOF ? 0 : mlx_windows_set_errno();
}

ssize_t pwrite(int fd, const void *bytes, size_t length, int64_t offset) {
  OVERLAPPED at = overlapped_at(offset);
  DWORD done = 0;
  return WriteFile(handle_of(fd), bytes, length < MAX_BYTES ? (DWORD)length : MAX_BYTES, &done, &at)
             ? (ssize_t)done
             : mlx_windows_set_errno();
}

int mlx_posix_ftruncate(int fd, int64_t length) {
  FILE_END_OF_FILE_INFO end = {.EndOfFile.QuadPart = length};
  return SetFileInformationByHandle(handle_of(fd), FileEndOfFileInfo, &end, sizeof end)
             ? 0
             : mlx_windows_set_errno();
}

int fsync(int fd) {
  if (FlushFileBuffers(handle_of(fd))) return 0;
  mlx_windows_set_errno();
  if (errno == EACCES) errno = EINVAL;
  return -1;
}

int mlx_posix_isatty(int fd) {
  DWORD mode;
  return GetConsoleMode(handle_of(fd), &mode) != 0;
}

// ----------------------------------------------------------------------------------------------------------
// File information

static struct timespec time_of(LARGE_INTEGER ticks) {
  const int64_t since_1970 = ticks.QuadPart - INT64_C(116444736000000000);  // ticks of 100 ns since 1601
  return (struct timespec){.tv_sec = since_1970 / 10000000, .tv_nsec = (long)(since_1970 % 10000000 * 100)};
}

static int stat_handle(HANDLE handle, struct mlx_posix_stat *out) {
  BY_HANDLE_FILE_INFORMATION info;
  FILE_BASIC_INFO times;
  *out = (struct mlx_posix_stat){0};
  const DWORD type = GetFileType(handle);
  if (type != FILE_TYPE_DISK) {
    out->st_mode = type == FILE_TYPE_PIPE ? S_IFIFO : S_IFCHR;
    return 0;
  }
  if (!GetFileInformationByHandle(handle, &info) ||
      !GetFileInformationByHandleEx(handle, FileBasicInfo, &times, sizeof times)) {
    return mlx_windows_set_errno();
  }
  const DWORD attributes = info.dwFileAttributes;
  out->st_dev = info.dwVolumeSerialNumber;
  out->st_ino = (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
  out->st_size = (int64_t)((uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow);
  out->st_mode = attributes & FILE_ATTRIBUTE_REPARSE_POINT ? S_IFLNK | 0700
                 : attributes & FILE_ATTRIBUTE_DIRECTORY   ? S_IFDIR | 0700
                                                           : S_IFREG | 0600;
  out->st_nlink = info.nNumberOfLinks;
  out->st_atim = time_of(times.LastAccessTime);
  out->st_mtim = time_of(times.LastWriteTime);
  out->st_ctim = time_of(times.ChangeTime);
  return 0;
}

static HANDLE open_attributes(const char *path, DWORD flags) {
  wchar_t *wide = mlx_wide_path(path);
  if (!wide) return INVALID_HANDLE_VALUE;
  HANDLE handle = CreateFileW(wide, FILE_READ_ATTRIBUTES, SHARE, NULL, OPEN_EXISTING,
                              FILE_FLAG_BACKUP_SEMANTICS | flags, NULL);
  if (handle == INVALID_HANDLE_VALUE) mlx_windows_set_errno();
  free(wide);
  return handle;
}

static int stat_path(const char *path, DWORD flags, struct mlx_posix_stat *out) {
  HANDLE handle = open_attributes(path, flags);
  if (handle == INVALID_HANDLE_VALUE) return -1;
  const int result = stat_handle(handle, out);
  CloseHandle(handle);
  // A followed link that is still a reparse point is not a symbolic link: a file in cloud storage, a volume.
  if (!result && !flags && S_ISLNK(out->st_mode)) out->st_mode = S_IFREG | 0600;
  return result;
}

int mlx_posix_stat(const char *path, struct mlx_posix_stat *out) { return stat_path(path, 0, out); }
int mlx_posix_lstat(const char *path, struct mlx_posix_stat *out) {
  return stat_path(path, FILE_FLAG_OPEN_REPARSE_POINT, out);
}
int mlx_posix_fstat(int fd, struct mlx_posix_stat *out) { return stat_handle(handle_of(fd), out); }

int mlx_posix_access(const char *path, int mode) {
  struct mlx_posix_stat info;
  (void)mode;
  return mlx_posix_stat(path, &info);
}

// Converts "\\?\C:\a" to C:/a, and "\\?\UNC\server\share" to //server/share.
static char *plain_path(wchar_t *path) {
  if (!wcsncmp(path, L"\\\\?\\UNC\\", 8)) {
    path += 6;
    path[0] = L'\\';
  } else if (!wcsncmp(path, L"\\\\?\\", 4)) {
    path += 4;
  }
  for (wchar_t *c = path; *c; ++c) {
    if (*c == L'\\') *c = L'/';
  }
  return mlx_narrow(path);
}

// The absolute path, without resolving links.
static char *full_path(const char *path) {
  wchar_t *given = mlx_wide_path(path);
  const DWORD size = given ? GetFullPathNameW(given, 0, NULL, NULL) : 0;
  wchar_t *whole = size ? malloc(size * sizeof *whole) : NULL;
  char *result = whole && GetFullPathNameW(given, size, whole, NULL) ? plain_path(whole) : NULL;
  free(whole);
  free(given);
  return result;
}

char *realpath(const char *path, char *resolved) {
  (void)resolved;
  HANDLE handle = open_attributes(path, 0);
  if (handle == INVALID_HANDLE_VALUE) return NULL;
  const DWORD size = GetFinalPathNameByHandleW(handle, NULL, 0, VOLUME_NAME_DOS);
  wchar_t *wide = size ? malloc((size + 1) * sizeof *wide) : NULL;
  char *result = NULL;
  if (wide && GetFinalPathNameByHandleW(handle, wide, size + 1, VOLUME_NAME_DOS)) result = plain_path(wide);
  if (!result) result = full_path(path);  // Wine 8 does not report names of more than 260 characters
  if (!result) mlx_windows_set_errno();
  free(wide);
  CloseHandle(handle);
  return result;
}

// ----------------------------------------------------------------------------------------------------------
// Renaming and removing

// A file that another process has open (a reader, an indexer, a virus scanner) cannot be replaced until it is
// closed. So retry for a while.
static int replace(const wchar_t *from, const wchar_t *to) {
  static const DWORD delays_ms[] = {1, 5, 20, 50, 100, 200, 400};
  for (size_t i = 0;; ++i) {
    if (MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) return 0;
    const DWORD attributes =
        GetLastError() == ERROR_ACCESS_DENIED || GetLastError() == ERROR_SHARING_VIOLATION
            ? GetFileAttributesW(to)
            : INVALID_FILE_ATTRIBUTES;
    mlx_windows_set_errno();
    const bool is_file = attributes != INVALID_FILE_ATTRIBUTES && !(attributes & FILE_ATTRIBUTE_DIRECTORY);
    if (!is_file || i == sizeof delays_ms / sizeof *delays_ms) return -1;
    Sleep(delays_ms[i]);
  }
}

int mlx_posix_rename(const char *from, const char *to) {
  wchar_t *a = mlx_wide_path(from), *b = a ? mlx_wide_path(to) : NULL;
  const int result = b ? replace(a, b) : -1;
  free(a);
  free(b);
  return result;
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  (void)from_folder, (void)from, (void)to_folder, (void)to, (void)flags;
  errno = ENOSYS;
  return -1;
}

int mlx_posix_unlink(const char *path) {
  wchar_t *wide = mlx_wide_path(path);
  if (!wide) return -1;
  int result = DeleteFileW(wide) ? 0 : mlx_windows_set_errno();
  const DWORD attributes = result && errno == EACCES ? GetFileAttributesW(wide) : INVALID_FILE_ATTRIBUTES;
  if (attributes != INVALID_FILE_ATTRIBUTES) {
    if (attributes & FILE_ATTRIBUTE_DIRECTORY &&
        attributes & FILE_ATTRIBUTE_REPARSE_POINT) {  // a link to a folder
      if (RemoveDirectoryW(wide)) result = 0;
    } else if (attributes & FILE_ATTRIBUTE_READONLY &&
               SetFileAttributesW(wide, attributes & ~(DWORD)FILE_ATTRIBUTE_READONLY)) {
      if (DeleteFileW(wide)) result = 0;  // POSIX allows this if the folder is writable
    }
  }
  free(wide);
  return result;
}

int mlx_posix_rmdir(const char *path) {
  wchar_t *wide = mlx_wide_path(path);
  const int result = wide && RemoveDirectoryW(wide) ? 0 : wide ? mlx_windows_set_errno() : -1;
  free(wide);
  return result;
}

int mlx_posix_mkdir(const char *path, int mode) {
  (void)mode;
  wchar_t *wide = mlx_wide_path(path);
  if (!wide) return -1;
  const int result = CreateDirectoryW(wide, NULL) ? 0 : mlx_windows_set_errno();
  if (result && GetFileAttributesW(wide) != INVALID_FILE_ATTRIBUTES)
    errno = EEXIST;  // creating a drive's root reports another error
  free(wide);
  return result;
}

// ----------------------------------------------------------------------------------------------------------
// Open files

int futimens(int fd, const struct timespec times[2]) {
  FILETIME now;
  (void)times;
  GetSystemTimeAsFileTime(&now);
  return SetFileTime(handle_of(fd), NULL, &now, &now) ? 0 : mlx_windows_set_errno();
}

// A Windows lock blocks reads and writes of its range, so lock a byte far past the end of any file.
int flock(int fd, int operation) {
  OVERLAPPED at = overlapped_at(INT64_C(1) << 62);
  const DWORD flags = (operation & LOCK_EX ? LOCKFILE_EXCLUSIVE_LOCK : 0) |
                      (operation & LOCK_NB ? LOCKFILE_FAIL_IMMEDIATELY : 0);
  if (LockFileEx(handle_of(fd), flags, 0, 1, 0, &at)) return 0;
  mlx_windows_set_errno();
  if (errno == EAGAIN) errno = EWOULDBLOCK;
  return -1;
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, int64_t offset) {
  (void)address, (void)protection, (void)flags, (void)offset;
  HANDLE mapping = CreateFileMappingW(handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);
  void *data = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, length) : NULL;
  if (!data) mlx_windows_set_errno();
  if (mapping) CloseHandle(mapping);  // the view keeps the mapping alive
  return data ? data : MAP_FAILED;
}

int munmap(void *address, size_t length) {
  (void)length;
  return UnmapViewOfFile(address) ? 0 : mlx_windows_set_errno();
}

int statvfs(const char *path, struct statvfs *out) {
  ULARGE_INTEGER bytes;
  wchar_t *wide = mlx_wide_path(path);
  const int result = wide && GetDiskFreeSpaceExW(wide, &bytes, NULL, NULL) ? 0
                     : wide                                                ? mlx_windows_set_errno()
                                                                           : -1;
  if (!result) *out = (struct statvfs){.f_bavail = bytes.QuadPart, .f_frsize = 1};
  free(wide);
  return result;
}

// ----------------------------------------------------------------------------------------------------------
// Folders

struct mlx_posix_dir {
  HANDLE find;
  WIN32_FIND_DATAW data;
  bool fresh;  // |data| was not returned yet
  struct mlx_posix_dirent entry;
};

DIR *opendir(const char *path) {
  const size_t length = strlen(path);
  char *pattern = malloc(length + 3);
  DIR *dir = pattern ? calloc(1, sizeof *dir) : NULL;
  if (dir) {
    snprintf(pattern, length + 3, "%s/*", path);
    wchar_t *wide = mlx_wide_path(pattern);
    dir->find = wide ? FindFirstFileW(wide, &dir->data) : INVALID_HANDLE_VALUE;
    if (wide && dir->find == INVALID_HANDLE_VALUE) mlx_windows_set_errno();
    dir->fresh = true;
    free(wide);
    if (dir->find == INVALID_HANDLE_VALUE) {
      free(dir);
      dir = NULL;
    }
  }
  free(pattern);
  return dir;
}

struct dirent *readdir(DIR *dir) {
  if (!dir->fresh && !FindNextFileW(dir->find, &dir->data)) return NULL;
  dir->fresh = false;
  if (!WideCharToMultiByte(CP_UTF8, 0, dir->data.cFileName, -1, dir->entry.d_name, sizeof dir->entry.d_name,
                           NULL, NULL))
    return NULL;
  return &dir->entry;
}

int closedir(DIR *dir) {
  FindClose(dir->find);
  free(dir);
  return 0;
}
