// Downloads files with resume and digest checks. See download.h.
#include "transfer/download.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

#define PARALLEL 4
#define MAX_ETAG 256
#define SPARE_BYTES (64u << 20)   // of disk space that stays free
#define SPACE_STEP (8u << 20)     // bytes between two checks of the free space
#define MIN_PROGRESS (16u << 10)  // bytes of a failed try that reset the retry count

// One download in progress.
typedef struct fetch {
  mlx_http_t *http;
  const mlx_download_t *d;
  mlx_progress_t *progress;
  char *part, *etag_path;
  char etag[MAX_ETAG];  // of the content of the part; "" if unknown
  mlx_writer_t writer;  // of the part; its offset counts the bytes written and hashed so far
  mlx_digest_t sha256;
  mlx_sha1_t sha1;
  uint64_t space_checked;  // offset at which the free disk space was last checked
  bool begun;              // the headers of the current response were handled
} fetch_t;

static bool has_digest(const mlx_download_t *d) { return d->sha256[0] || d->git_sha1[0]; }

static bool file_exists(const char *path, uint64_t size) {
  struct stat info;
  return !lstat(path, &info) && S_ISREG(info.st_mode) &&
         (size == MLX_SIZE_UNKNOWN || (uint64_t)info.st_size == size);
}

// ----------------------------------------------------------------------------------------------------------
// The part

static void begin_digests(fetch_t *f) {
  mlx_digest_begin(&f->sha256);
  mlx_sha1_begin(&f->sha1);
  char head[32];  // git hashes "blob SIZE\0" before the content
  const int length = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->d->size);
  if (f->d->git_sha1[0]) mlx_sha1_add(&f->sha1, head, (size_t)length + 1);
  if (f->d->begin) f->d->begin(f->d->user);
}

static void add_digests(fetch_t *f, const char *bytes, size_t length) {
  if (f->d->sha256[0]) mlx_digest_add(&f->sha256, bytes, length);
  if (f->d->git_sha1[0]) mlx_sha1_add(&f->sha1, bytes, length);
}

// Other processes write to the disk too, and a size may be unknown: the space is checked again and again.
static mlx_status_t check_space(fetch_t *f) {
  if (f->writer.offset >= f->space_checked && f->writer.offset - f->space_checked < SPACE_STEP) return NULL;
  char *folder;
  f->space_checked = f->writer.offset;
  MLX_TRY(mlx_folder_of(f->part, &folder));
  const uint64_t left = f->d->size - f->writer.offset;  // very large if the size is unknown
  mlx_status_t status = mlx_download_check_space(folder, left < SPACE_STEP ? left : SPACE_STEP);
  mlx_free(folder);
  return status;
}

static mlx_status_t start_over(fetch_t *f) {
  if (ftruncate(f->writer.fd, 0)) return mlx_io_error("truncate", f->part);
  unlink(f->etag_path);
  f->etag[0] = 0;
  atomic_fetch_sub(f->progress, f->writer.offset);
  f->writer.offset = 0;
  begin_digests(f);
  return NULL;
}

static mlx_status_t hash_old_piece(void *user, const char *bytes, size_t length) {
  fetch_t *f = user;
  add_digests(f, bytes, length);
  f->writer.offset += length;
  atomic_fetch_add(f->progress, length);
  if (f->d->piece) MLX_TRY(f->d->piece(f->d->user, bytes, length));
  const atomic_bool *cancelled = mlx_http_get_options(f->http)->cancelled;
  return cancelled && atomic_load(cancelled) ? mlx_error(MLX_CANCELLED, "download cancelled") : NULL;
}

static mlx_status_t read_etag(fetch_t *f) {
  char *text = NULL;
  size_t length = 0;
  if (!mlx_is_file(f->etag_path)) return NULL;
  mlx_status_t status = mlx_read_file(f->etag_path, MAX_ETAG - 1, &text, &length);
  if (!status && !strpbrk(text, "\r\n")) snprintf(f->etag, sizeof f->etag, "%s", text);
  mlx_free(text);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_free(status);  // ignore an unreadable ETag file
  return NULL;
}

// Opens the part and hashes the bytes that an earlier process wrote. Starts over if neither ETag nor digest
// is known, because the server's file may have changed meanwhile.
static mlx_status_t open_part(fetch_t *f) {
  MLX_TRY(mlx_copy_text(f->part, strlen(f->part), &f->writer.path));
  f->writer.fd = open(f->part, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (f->writer.fd < 0) return mlx_io_error("open", f->part);
  begin_digests(f);
  MLX_TRY(read_etag(f));
  struct stat info;
  if (fstat(f->writer.fd, &info)) return mlx_io_error("stat", f->part);
  const bool known = f->etag[0] || has_digest(f->d);
  if (!known || (uint64_t)info.st_size > f->d->size) return start_over(f);
  return mlx_read_pieces(f->writer.fd, f->part, hash_old_piece, f);
}

// ----------------------------------------------------------------------------------------------------------
// The response

// Stores the ETag for a later resume. A weak ETag does not promise equal bytes and is ignored.
static mlx_status_t save_etag(fetch_t *f, const mlx_http_response_t *response) {
  if (!mlx_http_header(response, "ETag", f->etag, sizeof f->etag) || f->etag[0] != '"') {
    f->etag[0] = 0;
    return NULL;
  }
  return mlx_write_file(f->etag_path, f->etag, strlen(f->etag));
}

static mlx_status_t begin_response(fetch_t *f, const mlx_http_response_t *response) {
  char range[96];
  if (response->status != 206) {
    if (f->writer.offset)
      MLX_TRY(start_over(f));  // the server sends the whole file: it changed, or the server has no ranges
    return save_etag(f, response);
  }
  unsigned long long first = 0;
  if (!mlx_http_header(response, "Content-Range", range, sizeof range) ||
      sscanf(range, "bytes %llu-", &first) != 1 || first != f->writer.offset) {
    return mlx_error(MLX_INVALID_INPUT, "%s: requested bytes from %llu on, but the server sent '%s'",
                     f->d->name, (unsigned long long)f->writer.offset, range);
  }
  return NULL;
}

static mlx_status_t write_piece(void *user, const mlx_http_response_t *response, const char *bytes,
                                size_t length) {
  fetch_t *f = user;
  if (!f->begun) MLX_TRY(begin_response(f, response));
  f->begun = true;
  if (length > f->d->size - f->writer.offset) {
    return mlx_error(MLX_INVALID_INPUT, "%s: the server sent more than the expected %llu bytes", f->d->name,
                     (unsigned long long)f->d->size);
  }
  if (f->d->piece) MLX_TRY(f->d->piece(f->d->user, bytes, length));
  MLX_TRY(check_space(f));
  add_digests(f, bytes, length);
  MLX_TRY(mlx_writer_write(&f->writer, bytes, length));
  atomic_fetch_add(f->progress, length);
  return NULL;
}

static mlx_status_t request_rest(fetch_t *f, mlx_http_response_t *response) {
  char range[64], condition[MAX_ETAG + 16];
  const char *headers[] = {NULL, NULL, NULL};
  if (f->writer.offset) {
    snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)f->writer.offset);
    headers[0] = range;
    snprintf(condition, sizeof condition, "If-Range: %s", f->etag);
    if (f->etag[0]) headers[1] = condition;
  }
  f->begun = false;
  const mlx_http_request_t request = {.url = f->d->url,
                                      .authorization = f->d->authorization,
                                      .headers = headers,
                                      .no_retry = true,
                                      .sink = write_piece,
                                      .user = f};
  mlx_status_t status = mlx_http_send(f->http, &request, response);
  if (status) return status;
  if (response->status == 416) return start_over(f);  // the part is longer than the server's file
  MLX_TRY(mlx_http_check(&request, response));
  if (f->d->size != MLX_SIZE_UNKNOWN && f->writer.offset < f->d->size) {
    return mlx_error(MLX_INVALID_INPUT, "%s: the server sent only %llu of %llu bytes", f->d->name,
                     (unsigned long long)f->writer.offset, (unsigned long long)f->d->size);
  }
  return NULL;
}

// Requests the rest until the file is complete. A failed try that made progress resets the retry count; a few
// bytes do not count, so a server that breaks after every byte is given up.
static mlx_status_t get_rest(fetch_t *f) {
  const mlx_http_options_t *options = mlx_http_get_options(f->http);
  double pause = options->pause_seconds;
  for (int failed = 0; f->d->size == MLX_SIZE_UNKNOWN || f->writer.offset < f->d->size || f->d->size == 0;) {
    const uint64_t before = f->writer.offset;
    mlx_http_response_t response;
    mlx_status_t status = request_rest(f, &response);
    const bool transient = response.transient, bad_range = response.status == 416;
    mlx_http_response_clear(&response);
    if (!status && !bad_range) return NULL;
    if (f->writer.offset > before && f->writer.offset - before >= MIN_PROGRESS)
      failed = 0, pause = options->pause_seconds;
    if ((!transient && !bad_range) || ++failed >= options->tries) {
      return status ? status
                    : mlx_error(MLX_INVALID_INPUT, "%s: the server rejected the requested range (416)",
                                f->d->name);
    }
    mlx_status_free(status);
    MLX_TRY(mlx_http_pause(options, pause));
    pause = pause < 15 ? pause * 2 : 30;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// One file

static mlx_status_t compare(const fetch_t *f, const char *kind, const char *got, const char *expected) {
  if (!strcmp(got, expected)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "%s: its %s is %s, expected %s", f->d->name, kind, got, expected),
      "the download was removed: run the command again; if it fails again, the server's copy is damaged");
}

static mlx_status_t check_digests(fetch_t *f) {
  char sha256[MLX_DIGEST_HEX], sha1[MLX_SHA1_HEX];
  mlx_digest_end(&f->sha256, sha256);
  mlx_sha1_end(&f->sha1, sha1);
  if (f->d->sha256[0]) MLX_TRY(compare(f, "SHA-256", sha256, f->d->sha256));
  if (f->d->git_sha1[0]) MLX_TRY(compare(f, "git digest", sha1, f->d->git_sha1));
  return NULL;
}

static mlx_status_t get_checked(fetch_t *f) {
  MLX_TRY(get_rest(f));
  mlx_status_t status = check_digests(f);
  if (status) {
    unlink(f->part);
    unlink(f->etag_path);
  }
  return status;
}

// If the digest is wrong after a resume, the old part may be damaged: downloads the file once more.
static mlx_status_t get_all(fetch_t *f) {
  MLX_TRY(open_part(f));
  const bool resumed = f->writer.offset > 0;
  if (!resumed) return get_checked(f);
  MLX_TRY(get_rest(f));
  mlx_status_t status = check_digests(f);
  if (!status) return NULL;
  mlx_status_free(status);
  MLX_TRY(start_over(f));
  return get_checked(f);
}

static mlx_status_t fetch(fetch_t *f) {
  char *folder;
  MLX_TRY(mlx_folder_of(f->d->path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0755);
  mlx_free(folder);
  MLX_TRY(status);
  MLX_TRY(mlx_format(&f->part, "%s.part", f->d->path));
  MLX_TRY(mlx_format(&f->etag_path, "%s.part.etag", f->d->path));
  if (file_exists(f->d->path, f->d->size))
    MLX_TRY(mlx_rename(f->d->path, f->part));  // check the existing file as a complete part
  MLX_TRY(get_all(f));
  MLX_TRY(mlx_writer_close(&f->writer));
  MLX_TRY(mlx_rename(f->part, f->d->path));
  unlink(f->etag_path);
  return NULL;
}

mlx_status_t mlx_download_file(mlx_http_t *http, const mlx_download_t *download, mlx_progress_t *progress) {
  if (!has_digest(download) && file_exists(download->path, download->size)) {
    if (download->size != MLX_SIZE_UNKNOWN) atomic_fetch_add(progress, download->size);
    return NULL;
  }
  fetch_t f = {.http = http, .d = download, .progress = progress, .writer = {.fd = -1}};
  mlx_status_t status = fetch(&f);
  if (status) atomic_fetch_sub(progress, f.writer.offset);  // the next try counts these bytes again
  if (f.writer.fd >= 0) close(f.writer.fd);
  mlx_free(f.writer.path);
  mlx_free(f.part);
  mlx_free(f.etag_path);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// All files

uint64_t mlx_download_present(const char *path, uint64_t size) {
  if (file_exists(path, size)) return size;
  char part[4096];
  struct stat info;
  const int length = snprintf(part, sizeof part, "%s.part", path);
  if (length < 0 || (size_t)length >= sizeof part || stat(part, &info)) return 0;
  return (uint64_t)info.st_size < size ? (uint64_t)info.st_size : size;
}

static mlx_status_t add_sizes(const mlx_download_t *downloads, size_t count, uint64_t *out_all,
                              uint64_t *out_missing) {
  *out_all = *out_missing = 0;
  for (size_t i = 0; i < count; ++i) {
    if (downloads[i].size == MLX_SIZE_UNKNOWN) continue;
    if (__builtin_add_overflow(*out_all, downloads[i].size, out_all)) {
      return mlx_error(MLX_INVALID_INPUT, "%s: invalid size: %llu bytes", downloads[i].name,
                       (unsigned long long)downloads[i].size);
    }
    *out_missing += downloads[i].size - mlx_download_present(downloads[i].path, downloads[i].size);
  }
  return NULL;
}

mlx_status_t mlx_download_check_space(const char *folder, uint64_t missing) {
  struct statvfs disk;
  if (statvfs(folder, &disk)) return mlx_io_error("get the free disk space of", folder);
  uint64_t available;
  if (__builtin_mul_overflow((uint64_t)disk.f_bavail, (uint64_t)disk.f_frsize, &available)) return NULL;
  if (!missing || (missing <= UINT64_MAX - SPARE_BYTES && missing + SPARE_BYTES <= available)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_IO,
                "not enough disk space in '%s': the download needs %s and a reserve of %s, %s are free",
                folder, mlx_bytes_show(missing).text, mlx_bytes_show(SPARE_BYTES).text,
                mlx_bytes_show(available).text),
      "free disk space, or choose another folder: set MLXCEL_CACHE, or use -o for this model");
}

static mlx_status_t download_job(void *user, size_t index, mlx_http_t *http, mlx_progress_t *progress) {
  return mlx_download_file(http, (const mlx_download_t *)user + index, progress);
}

mlx_status_t mlx_download_all(const char *title, const char *folder, const mlx_download_t *downloads,
                              size_t count, const mlx_http_options_t *http, const mlx_report_t *report) {
  uint64_t all, missing;
  MLX_TRY(mlx_make_dirs(folder, 0755));
  MLX_TRY(add_sizes(downloads, count, &all, &missing));
  MLX_TRY(mlx_download_check_space(folder, missing));
  const mlx_transfer_t transfer = {.title = title,
                                   .count = count,
                                   .parallel = PARALLEL,
                                   .bytes = all,
                                   .job = download_job,
                                   .user = (void *)(uintptr_t)downloads,
                                   .http = http,
                                   .report = report};
  return mlx_transfer_run(&transfer);
}
