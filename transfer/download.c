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
#define SPARE_BYTES (64u << 20)  // of the disk, left free

// One file on its way.
typedef struct fetch {
  mlx_http_t *http;
  const mlx_download_t *d;
  mlx_tally_t *tally;
  char *part, *etag_path;
  char etag[MAX_ETAG];  // of what is in the part; "": not known
  mlx_writer_t writer;  // on the part; its offset is what is there, and digested
  mlx_digest_t sha256;
  mlx_sha1_t sha1;
  bool begun;  // this answer's head was looked at
} fetch_t;

static bool has_digest(const mlx_download_t *d) { return d->sha256[0] || d->git_sha1[0]; }

static bool is_there(const char *path, uint64_t size) {
  struct stat info;
  return !lstat(path, &info) && S_ISREG(info.st_mode) &&
         (size == MLX_SIZE_UNKNOWN || (uint64_t)info.st_size == size);
}

// ----------------------------------------------------------------------------------------------------------
// The part

static void begin_digests(fetch_t *f) {
  mlx_digest_begin(&f->sha256);
  mlx_sha1_begin(&f->sha1);
  char head[32];  // git names a file by the digest of its kind, its length and its bytes
  const int length = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->d->size);
  if (f->d->git_sha1[0]) mlx_sha1_add(&f->sha1, head, (size_t)length + 1);
}

static void add_digests(fetch_t *f, const char *bytes, size_t length) {
  if (f->d->sha256[0]) mlx_digest_add(&f->sha256, bytes, length);
  if (f->d->git_sha1[0]) mlx_sha1_add(&f->sha1, bytes, length);
}

static mlx_status_t start_over(fetch_t *f) {
  if (ftruncate(f->writer.fd, 0)) return mlx_io_error("truncate", f->part);
  unlink(f->etag_path);
  f->etag[0] = 0;
  atomic_fetch_sub(f->tally, f->writer.offset);
  f->writer.offset = 0;
  begin_digests(f);
  return NULL;
}

static mlx_status_t take_old_piece(void *user, const char *bytes, size_t length) {
  fetch_t *f = user;
  add_digests(f, bytes, length);
  f->writer.offset += length;
  atomic_fetch_add(f->tally, length);
  const atomic_bool *cancelled = mlx_http_settings(f->http)->cancelled;
  return cancelled && atomic_load(cancelled) ? mlx_error(MLX_CANCELLED, "stopped") : NULL;
}

static mlx_status_t read_etag(fetch_t *f) {
  char *text = NULL;
  size_t length = 0;
  if (!mlx_is_file(f->etag_path)) return NULL;
  mlx_status_t status = mlx_read_file(f->etag_path, MAX_ETAG - 1, &text, &length);
  if (!status && !strpbrk(text, "\r\n")) snprintf(f->etag, sizeof f->etag, "%s", text);
  mlx_free(text);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_free(status);  // one that cannot be read is as good as none
  return NULL;
}

// Opens the part and reads what an earlier process left of it. Without an ETag or a digest nothing tells
// whether the rest would belong to it.
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
  return mlx_read_pieces(f->writer.fd, f->part, take_old_piece, f);
}

// ----------------------------------------------------------------------------------------------------------
// The answer

// Remembers what the server calls this state of the file. A weak one does not promise equal bytes.
static mlx_status_t keep_etag(fetch_t *f, const mlx_http_response_t *response) {
  if (!mlx_http_header(response, "ETag", f->etag, sizeof f->etag) || f->etag[0] != '"') {
    f->etag[0] = 0;
    return NULL;
  }
  return mlx_write_file(f->etag_path, f->etag, strlen(f->etag));
}

static mlx_status_t begin_answer(fetch_t *f, const mlx_http_response_t *response) {
  char range[96];
  if (response->status != 206) {
    if (f->writer.offset)
      MLX_TRY(start_over(f));  // the server sends all of it: it changed, or ranges are not for it
    return keep_etag(f, response);
  }
  unsigned long long first = 0;
  if (!mlx_http_header(response, "Content-Range", range, sizeof range) ||
      sscanf(range, "bytes %llu-", &first) != 1 || first != f->writer.offset) {
    return mlx_error(MLX_INVALID_INPUT, "%s: asked for the bytes from %llu on, the server sent '%s'",
                     f->d->name, (unsigned long long)f->writer.offset, range);
  }
  return NULL;
}

static mlx_status_t take_piece(void *user, const mlx_http_response_t *response, const char *bytes,
                               size_t length) {
  fetch_t *f = user;
  if (!f->begun) MLX_TRY(begin_answer(f, response));
  f->begun = true;
  if (length > f->d->size - f->writer.offset) {
    return mlx_error(MLX_INVALID_INPUT, "%s: the server sends more than the %llu bytes it should have",
                     f->d->name, (unsigned long long)f->d->size);
  }
  add_digests(f, bytes, length);
  MLX_TRY(mlx_writer_write(&f->writer, bytes, length));
  atomic_fetch_add(f->tally, length);
  return NULL;
}

static mlx_status_t ask(fetch_t *f, mlx_http_response_t *response) {
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
                                      .once = true,
                                      .sink = take_piece,
                                      .user = f};
  mlx_status_t status = mlx_http_send(f->http, &request, response);
  if (status) return status;
  if (response->status == 416) return start_over(f);  // there is no such range any more
  MLX_TRY(mlx_http_check(&request, response));
  if (f->d->size != MLX_SIZE_UNKNOWN && f->writer.offset < f->d->size) {
    return mlx_error(MLX_INVALID_INPUT, "%s: the server sent %llu of %llu bytes", f->d->name,
                     (unsigned long long)f->writer.offset, (unsigned long long)f->d->size);
  }
  return NULL;
}

// Asks until all is there. A try that brought something does not count against the tries.
static mlx_status_t get_rest(fetch_t *f) {
  const mlx_http_options_t *options = mlx_http_settings(f->http);
  double pause = options->pause_seconds;
  for (int failed = 0; f->d->size == MLX_SIZE_UNKNOWN || f->writer.offset < f->d->size || f->d->size == 0;) {
    const uint64_t before = f->writer.offset;
    mlx_http_response_t response;
    mlx_status_t status = ask(f, &response);
    const bool passing = response.passing, unsatisfied = response.status == 416;
    mlx_http_response_clear(&response);
    if (!status && !unsatisfied) return NULL;
    if (f->writer.offset > before) failed = 0, pause = options->pause_seconds;
    if ((!passing && !unsatisfied) || ++failed >= options->tries) {
      return status ? status
                    : mlx_error(MLX_INVALID_INPUT, "%s: the server has no bytes to give (416)", f->d->name);
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
      mlx_error(MLX_INVALID_INPUT, "%s: its %s is %s, it should be %s", f->d->name, kind, got, expected),
      "what came was removed: run the command again; if it stays so, the server's copy is damaged");
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

// What an earlier process left may be damaged: with it a wrong digest is no reason to give up.
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
  if (is_there(f->d->path, f->d->size))
    MLX_TRY(mlx_rename(f->d->path, f->part));  // a part that lacks nothing, and is read as one
  MLX_TRY(get_all(f));
  MLX_TRY(mlx_writer_close(&f->writer));
  MLX_TRY(mlx_rename(f->part, f->d->path));
  unlink(f->etag_path);
  return NULL;
}

mlx_status_t mlx_download_file(mlx_http_t *http, const mlx_download_t *download, mlx_tally_t *tally) {
  if (!has_digest(download) && is_there(download->path, download->size)) {
    if (download->size != MLX_SIZE_UNKNOWN) atomic_fetch_add(tally, download->size);
    return NULL;
  }
  fetch_t f = {.http = http, .d = download, .tally = tally, .writer = {.fd = -1}};
  mlx_status_t status = fetch(&f);
  if (status) atomic_fetch_sub(tally, f.writer.offset);  // whoever tries again counts again
  if (f.writer.fd >= 0) close(f.writer.fd);
  mlx_free(f.writer.path);
  mlx_free(f.part);
  mlx_free(f.etag_path);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// All of them

uint64_t mlx_download_present(const char *path, uint64_t size) {
  if (is_there(path, size)) return size;
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
      return mlx_error(MLX_INVALID_INPUT, "%s: its size, %llu bytes, cannot be", downloads[i].name,
                       (unsigned long long)downloads[i].size);
    }
    *out_missing += downloads[i].size - mlx_download_present(downloads[i].path, downloads[i].size);
  }
  return NULL;
}

mlx_status_t mlx_download_check_space(const char *folder, uint64_t missing) {
  struct statvfs disk;
  if (statvfs(folder, &disk)) return mlx_io_error("ask the disk of", folder);
  uint64_t room;
  if (__builtin_mul_overflow((uint64_t)disk.f_bavail, (uint64_t)disk.f_frsize, &room)) return NULL;
  if (!missing || (missing <= UINT64_MAX - SPARE_BYTES && missing + SPARE_BYTES <= room)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_IO, "%s are to come and %s stay free, the disk of '%s' has room for %s",
                mlx_bytes_show(missing).text, mlx_bytes_show(SPARE_BYTES).text, folder,
                mlx_bytes_show(room).text),
      "free some space, or put it elsewhere: MLXCEL_CACHE names the folder, -o the place of one model");
}

static mlx_status_t download_job(void *user, size_t index, mlx_http_t *http, mlx_tally_t *tally) {
  return mlx_download_file(http, (const mlx_download_t *)user + index, tally);
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
