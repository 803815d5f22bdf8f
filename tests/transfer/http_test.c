// The HTTP client and downloads, against a server that injects faults (tests/support/hub_server.py).
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/support/command.h"
#include "tests/support/server.h"
#include "transfer/download.h"

#define CERT MLXCEL_SOURCE_DIR "/tests/fixtures/tls/cert.pem"
#define KEY MLXCEL_SOURCE_DIR "/tests/fixtures/tls/key.pem"
#define SIZE 300000

static char folder[64];
static server_t server;
static mlx_http_options_t options;
static mlx_http_t *http;

static void clean_up(void) {
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

// Starts one server for all tests, because starting Python is slow.
static void start(void) {
  static char body[SIZE];
  char path[128];
  plain_environment();
  strcpy(folder, "/tmp/mlxcel-http-XXXXXX");
  CHECK(mkdtemp(folder));
  for (int i = 0; i < SIZE; ++i) body[i] = (char)(i * 31 + i / 251);
  snprintf(path, sizeof path, "%s/big", folder);
  CHECK_OK(mlx_write_file(path, body, SIZE));
  server_start(
      &server,
      (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py", folder, NULL},
      "http");
  atexit(clean_up);
}

static void begin(void) {
  char path[128];
  if (!server.port) start();
  snprintf(path, sizeof path, "%s/got", folder);
  CHECK_OK(mlx_remove_tree(path));
  server_control(&server, "{}");
  quick_http(&options);
  CHECK_OK(mlx_http_open(&options, &http));
}

static void end(void) { mlx_http_close(http); }

static const char *url_of(const char *path) {
  static char url[160];
  snprintf(url, sizeof url, "%s%s", server.url, path);
  return url;
}

static mlx_status_t get(const char *path, size_t max_bytes, mlx_http_response_t *response) {
  const mlx_http_request_t request = {.url = url_of(path), .max_bytes = max_bytes};
  mlx_status_t status = mlx_http_send(http, &request, response);
  return status ? status : mlx_http_check(&request, response);
}

TEST(response_has_body_and_headers) {
  begin();
  mlx_http_response_t response;
  char etag[64];
  CHECK_OK(get("/plain/big", SIZE, &response));
  CHECK_INT(response.body.length, SIZE);
  CHECK(mlx_http_header(&response, "etag", etag, sizeof etag) && etag[0] == '"');
  CHECK(!mlx_http_header(&response, "ETag", etag, 5));
  mlx_http_response_clear(&response);
  CHECK_ERROR(get("/plain/big", SIZE - 1, &response), MLX_INVALID_INPUT, "longer than");
  mlx_http_response_clear(&response);
  const mlx_http_request_t head = {.method = "HEAD", .url = url_of("/plain/big")};
  CHECK_OK(mlx_http_send(http, &head, &response));
  CHECK_INT(response.status, 200);
  CHECK_INT(response.body.length, 0);
  mlx_http_response_clear(&response);
  end();
}

TEST(bodies_are_sent_from_memory_and_from_files) {
  begin();
  char path[128];
  mlx_http_response_t response;
  snprintf(path, sizeof path, "%s/big", folder);
  const mlx_http_request_t post = {
      .method = "POST", .url = url_of("/echo"), .body = "hello", .body_length = 5, .max_bytes = 100};
  CHECK_OK(mlx_http_send(http, &post, &response));
  CHECK_INT(response.status, 201);
  CHECK_TEXT(response.body.data, "hello");
  mlx_http_response_clear(&response);
  char *whole;
  CHECK_OK(mlx_read_file(path, SIZE, &whole, NULL));
  const mlx_http_request_t patch = {.method = "PATCH",
                                    .url = url_of("/echo"),
                                    .body_path = path,
                                    .body_offset = 1000,
                                    .body_length = 5000,
                                    .max_bytes = SIZE};
  CHECK_OK(mlx_http_send(http, &patch, &response));
  CHECK_INT(response.body.length, 5000);
  CHECK(!memcmp(response.body.data, whole + 1000, 5000));
  mlx_free(whole);
  mlx_http_response_clear(&response);
  const mlx_http_request_t missing = {
      .method = "PUT", .url = url_of("/echo"), .body_path = "/nonexistent", .body_length = 5};
  CHECK_ERROR(mlx_http_send(http, &missing, &response), MLX_NOT_FOUND, "/nonexistent");
  mlx_http_response_clear(&response);
  end();
}

TEST(server_errors_are_retried_and_refusals_are_not) {
  begin();
  mlx_http_response_t response;
  server_control(&server, "{\"big\": {\"status\": [500, 429, 503]}}");
  CHECK_OK(get("/plain/big", SIZE, &response));
  mlx_http_response_clear(&response);
  CHECK_INT(count_of(server_log(&server), "/plain/big"), 4);
  server_control(&server, "{\"big\": {\"status\": [500, 500, 500, 500, 500, 500]}}");
  CHECK_ERROR(get("/plain/big", SIZE, &response), MLX_UNAVAILABLE, "answered 500");
  mlx_http_response_clear(&response);
  CHECK_INT(count_of(server_log(&server), "/plain/big"), 5);
  static const struct {
    const char *control;
    mlx_code_t code;
    const char *part;
  } refusals[] = {{"{\"big\": {\"status\": [403]}}", MLX_UNAVAILABLE, "(403): {\"error\": \"asked for\"}"},
                  {"{\"big\": {\"status\": [401]}}", MLX_UNAVAILABLE, "(401)"},
                  {"{\"big\": {\"status\": [404]}}", MLX_NOT_FOUND, "(404)"},
                  {"{\"big\": {\"status\": [418]}}", MLX_INVALID_INPUT, "answered 418"}};
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
    server_control(&server, refusals[i].control);
    CHECK_ERROR(get("/plain/big", SIZE, &response), refusals[i].code, refusals[i].part);
    mlx_http_response_clear(&response);
    CHECK_INT(count_of(server_log(&server), "/plain/big"), 1);
  }
  CHECK_ERROR(get("/loop", 10, &response), MLX_INVALID_INPUT, "redirected more than");
  mlx_http_response_clear(&response);
  end();
}

TEST(unreachable_server_is_reported_without_secrets) {
  begin();
  mlx_http_response_t response;
  mlx_http_request_t request = {.url = "http://127.0.0.1:1/x?signature=secret"};
  mlx_status_t status = mlx_http_send(http, &request, &response);
  CHECK_INT(mlx_status_code(status), MLX_UNAVAILABLE);
  CHECK_CONTAINS(mlx_status_message(status), "http://127.0.0.1:1/x");
  CHECK(!strstr(mlx_status_message(status), "secret"));
  mlx_status_free(status);
  mlx_http_response_clear(&response);
  request.url = "file:///etc/passwd";
  CHECK_ERROR(mlx_http_send(http, &request, &response), MLX_USAGE, "not a valid http or https URL");
  mlx_http_response_clear(&response);
  server_control(&server, "{\"big\": {\"stall\": [100, 100, 100, 100, 100]}}");
  options.tries = 1;
  mlx_http_close(http);
  CHECK_OK(mlx_http_open(&options, &http));
  CHECK_ERROR(get("/plain/big", SIZE, &response), MLX_TIMEOUT, "only 100 bytes in 1 seconds");
  mlx_http_response_clear(&response);
  end();
}

static mlx_download_t big_download(void) {
  static char source[128], path[128], url[160];
  snprintf(source, sizeof source, "%s/big", folder);
  snprintf(path, sizeof path, "%s/got/big", folder);
  snprintf(url, sizeof url, "%s/plain/big", server.url);
  mlx_download_t download = {.name = "big", .url = url, .path = path, .size = SIZE};
  CHECK_OK(mlx_digest_file(source, NULL, download.sha256));
  return download;
}

// Neither a byte from time to time nor a long list of them keeps a request alive.
TEST(dripping_server_is_given_up) {
  begin();
  mlx_http_response_t response;
  mlx_download_t download = big_download();
  mlx_progress_t progress = 0;
  options.tries = 2;
  mlx_http_close(http);
  CHECK_OK(mlx_http_open(&options, &http));
  server_control(&server, "{\"big\": {\"drip\": [1, 0.2]}}");
  CHECK_ERROR(get("/plain/big", SIZE, &response), MLX_TIMEOUT, " bytes in 1 seconds");
  mlx_http_response_clear(&response);
  CHECK_ERROR(mlx_download_file(http, &download, &progress), MLX_TIMEOUT, " bytes in 1 seconds");
  CHECK_INT(count_of(server_log(&server), "/plain/big"), 4);  // each is tried twice
  // Fast enough for a download, but too slow for a document.
  server_control(&server, "{\"big\": {\"drip\": [4096, 0.1]}}");
  CHECK_ERROR(get("/plain/big", SIZE, &response), MLX_TIMEOUT,
              "the response is not complete after 2 seconds");
  mlx_http_response_clear(&response);
  CHECK_INT(count_of(server_log(&server), "/plain/big"), 1);  // not tried again
  end();
}

// A small file system that fills while the file arrives. The reserve stays free.
TEST(download_of_unknown_size_keeps_the_reserve_free) {
  begin();
  command_t run;
  struct statvfs disk;
  char place[128];
  mlx_download_t download = big_download();
  mlx_progress_t progress = 0;
  snprintf(place, sizeof place, "%s/got", folder);
  CHECK_OK(mlx_make_dirs(place, 0755));
  command_start(&run, (const char *const[]){"mount", "-t", "tmpfs", "-o", "size=100m", "none", place, NULL});
  command_wait(&run);
  const int code = run.exit_code;
  command_free(&run);
  if (code) {
    end();
    SKIP("cannot mount a tmpfs");
  }
  download.size = MLX_SIZE_UNKNOWN;
  download.sha256[0] = 0;
  server_control(&server, "{\"big\": {\"endless\": \"x\"}}");
  mlx_status_t status = mlx_download_file(http, &download, &progress);
  CHECK(!statvfs(place, &disk));
  command_start(&run, (const char *const[]){"umount", place, NULL});
  command_wait(&run);
  command_done(&run);
  CHECK_ERROR(status, MLX_IO, "not enough disk space");
  CHECK(disk.f_bavail * disk.f_frsize >= 64 << 20);
  end();
}

// The user did not choose the URL of a redirect.
TEST(redirect_to_a_file_is_an_error_of_the_server) {
  begin();
  mlx_http_response_t response;
  server_control(&server, "{\"big\": {\"location\": \"file:///etc/passwd\"}}");
  CHECK_ERROR(get("/plain/big", SIZE, &response), MLX_INVALID_INPUT,
              "/plain/big: the server redirects to a URL that is not allowed");
  mlx_http_response_clear(&response);
  end();
}

TEST(proxies_come_from_the_environment) {
  begin();
  mlx_http_response_t response;
  const mlx_http_request_t request = {.url = "http://nowhere.invalid/plain/big", .max_bytes = SIZE};
  setenv("http_proxy", server.url, 1);
  CHECK_OK(mlx_http_send(http, &request, &response));
  CHECK_INT(response.body.length, SIZE);
  mlx_http_response_clear(&response);
  setenv("no_proxy", "nowhere.invalid", 1);
  CHECK_ERROR(mlx_http_send(http, &request, &response), MLX_UNAVAILABLE, "nowhere.invalid");
  mlx_http_response_clear(&response);
  unsetenv("http_proxy");
  unsetenv("no_proxy");
  CHECK_CONTAINS(server_log(&server), "http://nowhere.invalid/plain/big");
  end();
}

TEST(cancelled_request_stops) {
  begin();
  mlx_http_response_t response;
  mlx_http_t *client;
  atomic_bool cancelled = true;
  options.cancelled = &cancelled;
  CHECK_OK(mlx_http_open(&options, &client));
  const mlx_http_request_t request = {.url = url_of("/plain/big"), .max_bytes = SIZE};
  CHECK_ERROR(mlx_http_send(client, &request, &response), MLX_CANCELLED, "cancelled");
  mlx_http_response_clear(&response);
  CHECK_ERROR(mlx_http_pause(&options, 60), MLX_CANCELLED, "cancelled");
  mlx_http_close(client);
  end();
}

TEST(certificates_are_checked) {
  begin();
  server_t secure;
  server_start(&secure,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py", folder,
                                     CERT, KEY, NULL},
               "https");
  char url[96];
  mlx_http_response_t response;
  mlx_http_t *client;
  snprintf(url, sizeof url, "%s/plain/big", secure.url);
  const mlx_http_request_t request = {.url = url, .max_bytes = SIZE};
  mlx_status_t status = mlx_http_send(http, &request, &response);
  CHECK_INT(mlx_status_code(status), MLX_UNAVAILABLE);
  CHECK_CONTAINS(mlx_status_message(status), "certificate cannot be trusted");
  CHECK_CONTAINS(mlx_status_hint_text(status), "SSL_CERT_FILE");
  mlx_status_free(status);
  mlx_http_response_clear(&response);
  setenv("SSL_CERT_FILE", CERT, 1);
  CHECK_OK(mlx_http_open(&options, &client));
  CHECK_OK(mlx_http_send(client, &request, &response));
  CHECK_INT(response.body.length, SIZE);
  mlx_http_response_clear(&response);
  mlx_http_close(client);
  setenv("SSL_CERT_FILE", "/nonexistent", 1);
  CHECK_ERROR(mlx_http_open(&options, &client), MLX_NOT_FOUND, "SSL_CERT_FILE");
  unsetenv("SSL_CERT_FILE");
  mlx_http_options_t trusting = options;
  trusting.insecure = true;
  CHECK_OK(mlx_http_open(&trusting, &client));
  CHECK_OK(mlx_http_send(client, &request, &response));
  mlx_http_response_clear(&response);
  mlx_http_close(client);
  server_stop(&secure);
  end();
}

// ----------------------------------------------------------------------------------------------------------
// Downloads

static void check_downloaded(const mlx_download_t *download) {
  char sha256[MLX_DIGEST_HEX], part[160];
  CHECK_OK(mlx_digest_file(download->path, NULL, sha256));
  CHECK_TEXT(sha256, download->sha256);
  snprintf(part, sizeof part, "%s.part", download->path);
  CHECK(!mlx_is_file(part));
  snprintf(part, sizeof part, "%s.part.etag", download->path);
  CHECK(!mlx_is_file(part));
}

TEST(download_resumes_after_every_kind_of_fault) {
  static const struct {
    const char *control, *seen;
    int requests;
  } breaks[] = {
      {"{}", "GET", 1},
      {"{\"big\": {\"cut\": [1, 70000, 299999]}}", "\"Range\": \"bytes=299999-\", \"If-Range\": \"", 4},
      {"{\"big\": {\"cut\": [0, 0, 100]}}", "\"Range\": \"bytes=100-\"", 4},
      {"{\"big\": {\"stall\": [5000]}}", "\"Range\": \"bytes=5000-\"", 2},
      {"{\"big\": {\"status\": [500, 502], \"cut\": [5]}}", "\"Range\": \"bytes=5-\"", 4},
      {"{\"big\": {\"cut\": [5000], \"no_range\": true}}", "\"Range\": \"bytes=5000-\"", 2},
      {"{\"big\": {\"cut\": [5000], \"weak\": true}}", "\"Range\": \"bytes=5000-\"}", 2}};
  begin();
  for (size_t i = 0; i < sizeof breaks / sizeof *breaks; ++i) {
    mlx_download_t download = big_download();
    mlx_progress_t progress = 0;
    server_control(&server, breaks[i].control);
    CHECK_OK(mlx_download_file(http, &download, &progress));
    check_downloaded(&download);
    CHECK_INT(progress, SIZE);
    CHECK_CONTAINS(server_log(&server), breaks[i].seen);
    CHECK_INT(count_of(server_log(&server), "/plain/big"), breaks[i].requests);
    CHECK(!unlink(download.path));
  }
  end();
}

// Creates the files of a killed download: |length| bytes of the part, damaged if |wrong|, and an ETag if not
// NULL.
static void leave_part(const mlx_download_t *download, size_t length, const char *etag, bool wrong) {
  char path[160], *bytes;
  snprintf(path, sizeof path, "%s/big", folder);
  CHECK_OK(mlx_read_file(path, SIZE, &bytes, NULL));
  if (wrong) bytes[0] ^= 1;
  snprintf(path, sizeof path, "%s/got", folder);
  CHECK_OK(mlx_make_dirs(path, 0755));
  snprintf(path, sizeof path, "%s.part", download->path);
  CHECK_OK(mlx_write_file(path, bytes, length));
  snprintf(path, sizeof path, "%s.part.etag", download->path);
  if (etag) CHECK_OK(mlx_write_file(path, etag, strlen(etag)));
  mlx_free(bytes);
}

TEST(part_of_a_killed_download_is_resumed_or_replaced) {
  begin();
  mlx_download_t download = big_download();
  mlx_progress_t progress = 0;
  server_control(&server, "{}");
  leave_part(&download, 1234, NULL, false);  // without an ETag, the digest decides
  CHECK_OK(mlx_download_file(http, &download, &progress));
  check_downloaded(&download);
  CHECK_CONTAINS(server_log(&server), "bytes=1234-");
  CHECK(!unlink(download.path));
  leave_part(&download, SIZE, NULL, false);  // complete, but not renamed
  server_control(&server, "{}");
  CHECK_OK(mlx_download_file(http, &download, &progress));
  check_downloaded(&download);
  CHECK_INT(count_of(server_log(&server), "/plain/big"), 0);
  CHECK(!unlink(download.path));
  leave_part(&download, 1234, "\"another\"", false);  // the server's file has changed
  CHECK_OK(mlx_download_file(http, &download, &progress));
  check_downloaded(&download);
  CHECK(!unlink(download.path));
  download.size = 1000;  // the server sends more than expected
  download.sha256[0] = 0;
  CHECK_ERROR(mlx_download_file(http, &download, &progress), MLX_INVALID_INPUT,
              "more than the expected 1000 bytes");
  end();
}

TEST(wrong_digest_leaves_no_file) {
  begin();
  mlx_download_t download = big_download();
  mlx_progress_t progress = 0;
  char part[160];
  snprintf(part, sizeof part, "%s.part", download.path);
  server_control(&server, "{\"big\": {\"corrupt\": true}}");
  CHECK_ERROR(mlx_download_file(http, &download, &progress), MLX_INVALID_INPUT, "big: its SHA-256 is");
  CHECK(!mlx_is_file(part) && !mlx_is_file(download.path));
  server_control(&server, "{}");
  leave_part(&download, 500, NULL, true);  // a damaged part: the download is repeated
  CHECK_OK(mlx_download_file(http, &download, &progress));
  check_downloaded(&download);
  end();
}

TEST(one_failure_stops_all_and_disk_space_is_checked_first) {
  begin();
  mlx_download_t downloads[3] = {big_download(), big_download(), big_download()};
  char paths[3][160];
  for (int i = 0; i < 3; ++i) {
    snprintf(paths[i], sizeof paths[i], "%s/got/%d", folder, i);
    downloads[i].path = paths[i];
  }
  CHECK_OK(mlx_download_all("pulling", folder, downloads, 3, &options, NULL));
  for (int i = 0; i < 3; ++i) check_downloaded(&downloads[i]);
  for (int i = 0; i < 3; ++i) CHECK(!unlink(paths[i]));
  downloads[1].sha256[0] = downloads[1].sha256[0] == '0' ? '1' : '0';
  CHECK_ERROR(mlx_download_all("pulling", folder, downloads, 3, &options, NULL), MLX_INVALID_INPUT,
              "SHA-256");
  CHECK(!mlx_is_file(paths[1]));
  downloads[2].size = (uint64_t)1 << 60;
  CHECK_ERROR(mlx_download_all("pulling", folder, downloads, 3, &options, NULL), MLX_IO,
              "not enough disk space");
  end();
}

TEST(unsafe_paths_are_detected) {
  static const char *const good[] = {"a", "a/b.gguf", "..a/b..", "a b"};
  static const char *const bad[] = {"", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\\b", "a\nb", "c:a"};
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) CHECK(mlx_is_safe_path(good[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) CHECK(!mlx_is_safe_path(bad[i]));
}

TEST(sha1_matches_git) {
  static const struct {
    const char *text, *hex;
  } known[] = {{"blob 0", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}};
  char hex[MLX_SHA1_HEX];
  mlx_sha1_t sha1;
  mlx_sha1_begin(&sha1);
  mlx_sha1_add(&sha1, known[0].text, strlen(known[0].text) + 1);
  mlx_sha1_end(&sha1, hex);
  CHECK_TEXT(hex, known[0].hex);
  mlx_sha1_begin(&sha1);
  for (int i = 0; i < 1000000; ++i) mlx_sha1_add(&sha1, "a", 1);
  mlx_sha1_end(&sha1, hex);
  CHECK_TEXT(hex, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST_MAIN(CASE(response_has_body_and_headers), CASE(bodies_are_sent_from_memory_and_from_files),
          CASE(server_errors_are_retried_and_refusals_are_not),
          CASE(unreachable_server_is_reported_without_secrets), CASE(dripping_server_is_given_up),
          CASE(download_of_unknown_size_keeps_the_reserve_free),
          CASE(redirect_to_a_file_is_an_error_of_the_server), CASE(proxies_come_from_the_environment),
          CASE(cancelled_request_stops), CASE(certificates_are_checked),
          CASE(download_resumes_after_every_kind_of_fault),
          CASE(part_of_a_killed_download_is_resumed_or_replaced), CASE(wrong_digest_leaves_no_file),
          CASE(one_failure_stops_all_and_disk_space_is_checked_first), CASE(unsafe_paths_are_detected),
          CASE(sha1_matches_git))
