// The HTTP client. See http.h.
#include "transfer/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "transfer/url.h"

#define MAX_HEAD (256u << 10)       // bytes of header lines
#define MAX_ERROR_BODY (16u << 10)  // bytes kept of the body of an error response
#define MAX_REDIRECTS 10
#define MAX_PAUSE 60.0          // seconds; limits Retry-After
#define UPLOAD_STALL_FACTOR 10  // a registry hashes an upload before it responds, which takes time

struct mlx_http {
  mlx_http_options_t options;
  CURL *curl;
  char *ca_file;  // certificate bundle; NULL if none was found
  char error[CURL_ERROR_SIZE];
};

// One request in progress.
typedef struct exchange {
  mlx_http_t *http;
  const mlx_http_request_t *request;
  mlx_http_response_t *response;
  mlx_status_t failure;  // set by a callback that stopped the request
  struct curl_slist *headers;
  int body_fd;
  uint64_t body_done;
  double stall_seconds;  // length of the window in which enough bytes must move
  curl_off_t window;     // bytes in both directions when the current window began
  double window_at;      // when it began
  double deadline;       // of a response in memory; 0 for none
  enum { IN_TIME, STALLED, TOO_LATE } lateness;
  uint64_t late_bytes;  // moved in the window that was too slow
} exchange_t;

void mlx_http_options_initialize(mlx_http_options_t *options) {
  *options = (mlx_http_options_t){.connect_seconds = 30, .stall_seconds = 60, .tries = 5, .pause_seconds = 1};
}

const mlx_http_options_t *mlx_http_get_options(const mlx_http_t *http) { return &http->options; }

void mlx_http_response_clear(mlx_http_response_t *response) {
  mlx_text_clear(&response->head);
  mlx_text_clear(&response->body);
  mlx_free(response->url);
  *response = (mlx_http_response_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Opening

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_started;

static void start_curl(void) { curl_started = curl_global_init(CURL_GLOBAL_DEFAULT); }

#ifdef _WIN32  // the system's TLS library has its own certificate store
static const char *const bundles[] = {NULL};
#define WITHOUT_BUNDLE \
  "add its certificate authority to the system's store, or set SSL_CERT_FILE to a bundle that contains it"
#else
static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                      "/etc/pki/tls/certs/ca-bundle.crt",
                                      "/etc/ssl/ca-bundle.pem",
                                      "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                                      "/etc/pki/tls/cacert.pem",
                                      "/etc/ssl/cert.pem",
                                      NULL};
#define WITHOUT_BUNDLE \
  "no certificates are installed: install the package ca-certificates, or set SSL_CERT_FILE to a bundle"
#endif

bool mlx_http_has_system_certificates(void) { return !bundles[0]; }

mlx_status_t mlx_http_certificates(char **out_path) {
  static const char *const variables[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE"};
  *out_path = NULL;
  for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i) {
    const char *path = getenv(variables[i]);
    if (!path || !*path) continue;
    if (!mlx_is_file(path))
      return mlx_error(MLX_NOT_FOUND, "%s is set to '%s', which is not a file", variables[i], path);
    return mlx_copy_text(path, strlen(path), out_path);
  }
  for (const char *const *path = bundles; *path; ++path) {
    if (mlx_is_file(*path)) return mlx_copy_text(*path, strlen(*path), out_path);
  }
  return NULL;
}

mlx_status_t mlx_http_open(const mlx_http_options_t *options, mlx_http_t **out_http) {
  *out_http = NULL;
  pthread_once(&curl_once, start_curl);
  if (curl_started)
    return mlx_error(MLX_UNAVAILABLE, "cannot initialize libcurl: %s", curl_easy_strerror(curl_started));
  mlx_http_t *http;
  MLX_TRY(mlx_alloc(1, sizeof *http, &http));
  http->options = *options;
  mlx_status_t status = mlx_http_certificates(&http->ca_file);
  if (!status && !(http->curl = curl_easy_init())) status = mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  if (status) {
    mlx_http_close(http);
    return status;
  }
  *out_http = http;
  return NULL;
}

void mlx_http_close(mlx_http_t *http) {
  if (!http) return;
  if (http->curl) curl_easy_cleanup(http->curl);
  mlx_free(http->ca_file);
  mlx_free(http);
}

// ----------------------------------------------------------------------------------------------------------
// Callbacks of curl

static size_t on_header(char *line, size_t one, size_t length, void *user) {
  (void)one;
  mlx_http_response_t *response = ((exchange_t *)user)->response;
  if (length >= 5 && !memcmp(line, "HTTP/", 5))
    response->head.length = 0;  // a redirect or retry begins a new response
  if (response->head.length + length > MAX_HEAD) return 0;
  mlx_text_append(&response->head, line, length);
  return response->head.failed ? 0 : length;
}

static size_t on_body(char *bytes, size_t one, size_t length, void *user) {
  (void)one;
  exchange_t *e = user;
  curl_easy_getinfo(e->http->curl, CURLINFO_RESPONSE_CODE, &e->response->status);
  const bool good = e->response->status >= 200 && e->response->status < 300;
  if (good && e->request->sink) {
    e->failure = e->request->sink(e->request->user, e->response, bytes, length);
    return e->failure ? 0 : length;
  }
  mlx_text_t *body = &e->response->body;
  if (!good) {
    const size_t room = MAX_ERROR_BODY - body->length;
    mlx_text_append(body, bytes, length < room ? length : room);
  } else if (length > e->request->max_bytes - body->length) {
    e->failure = mlx_error(MLX_INVALID_INPUT, "%s: the response is longer than %zu bytes",
                           mlx_display_url(e->request->url).text, e->request->max_bytes);
    return 0;
  } else {
    mlx_text_append(body, bytes, length);
  }
  if (!e->failure && body->failed) e->failure = mlx_text_finish(body);
  return e->failure ? 0 : length;
}

static size_t on_read(char *out, size_t one, size_t room, void *user) {
  exchange_t *e = user;
  const mlx_http_request_t *request = e->request;
  const uint64_t left = request->body_length - e->body_done;
  size_t length = room * one < left ? room * one : (size_t)left;
  if (e->body_fd >= 0 && length) {
    const ssize_t got = pread(e->body_fd, out, length, (off_t)(request->body_offset + e->body_done));
    if (got <= 0) {
      e->failure = got ? mlx_io_error("read", request->body_path)
                       : mlx_error(MLX_IO, "'%s' was truncated while it was being sent", request->body_path);
      return CURL_READFUNC_ABORT;
    }
    length = (size_t)got;
  } else if (length) {
    memcpy(out, (const char *)request->body + e->body_done, length);
  }
  e->body_done += length;
  if (request->sent) request->sent(request->user, e->body_done);
  return length;
}

static int on_seek(void *user, curl_off_t offset, int origin) {
  exchange_t *e = user;
  if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > e->request->body_length)
    return CURL_SEEKFUNC_FAIL;
  e->body_done = (uint64_t)offset;
  return CURL_SEEKFUNC_OK;
}

static double document_seconds(const exchange_t *e) { return MLX_HTTP_DOCUMENT_FACTOR * e->stall_seconds; }

// A window ends when enough bytes have moved. If it lasts longer than stall_seconds, the transfer has
// stalled. curl's own low-speed check only averages over seconds.
static int on_progress(void *user, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up) {
  (void)down_all, (void)up_all;
  exchange_t *e = user;
  const double now = mlx_seconds();
  const curl_off_t moved = down + up - e->window;
  if ((double)moved >= MLX_HTTP_MIN_RATE * e->stall_seconds || moved < 0) {
    e->window = down + up;
    e->window_at = now;
  } else if (now - e->window_at > e->stall_seconds) {
    e->lateness = STALLED;
    e->late_bytes = (uint64_t)moved;
  }
  // The answer to an upload is due after the upload.
  if (e->body_done < e->request->body_length) e->deadline = now + document_seconds(e);
  if (!e->lateness && e->deadline > 0 && now > e->deadline) e->lateness = TOO_LATE;
  const atomic_bool *cancelled = e->http->options.cancelled;
  return e->lateness || (cancelled && atomic_load(cancelled));
}

// ----------------------------------------------------------------------------------------------------------
// One try

static mlx_status_t add_header(exchange_t *e, const char *line) {
  struct curl_slist *headers = curl_slist_append(e->headers, line);
  if (!headers) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  e->headers = headers;
  return NULL;
}

static mlx_status_t set_headers(exchange_t *e) {
  const mlx_http_request_t *request = e->request;
  // Without this, curl waits a second for a 100 response that many registries never send.
  MLX_TRY(add_header(e, "Expect:"));
  for (const char *const *line = request->headers; line && *line; ++line) MLX_TRY(add_header(e, *line));
  if (request->authorization) {
    char *line;
    MLX_TRY(mlx_format(&line, "Authorization: %s", request->authorization));
    mlx_status_t status = strpbrk(line, "\r\n")
                              ? mlx_error(MLX_INVALID_INPUT, "the access token contains a line break")
                              : add_header(e, line);
    mlx_free(line);
    MLX_TRY(status);
  }
  curl_easy_setopt(e->http->curl, CURLOPT_HTTPHEADER, e->headers);
  return NULL;
}

static mlx_status_t set_body(exchange_t *e) {
  CURL *curl = e->http->curl;
  const mlx_http_request_t *request = e->request;
  const char *method = request->method ? request->method : "GET";
  if (!strcmp(method, "GET")) return NULL;
  if (!strcmp(method, "HEAD")) {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    return NULL;
  }
  curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
  curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body_length);
  curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_read);
  curl_easy_setopt(curl, CURLOPT_READDATA, e);
  curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
  curl_easy_setopt(curl, CURLOPT_SEEKDATA, e);
  e->stall_seconds *= UPLOAD_STALL_FACTOR;
  // On a reused connection, curl itself retries a broken request. A fresh connection prevents that.
  if (request->no_retry) curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
  if (!request->body_path) return NULL;
  e->body_fd = open(request->body_path, O_RDONLY | O_CLOEXEC);
  return e->body_fd < 0 ? mlx_io_error("open", request->body_path) : NULL;
}

static void set_transport(exchange_t *e) {
  CURL *curl = e->http->curl;
  const mlx_http_options_t *options = &e->http->options;
  mlx_url_t url;
  mlx_status_t status = mlx_url_parse(e->request->url, &url);
  const bool secure = status || url.is_https;  // curl reports an invalid URL
  mlx_status_free(status);
  // Plain http carries a secret only to this machine: not through a proxy, which would see it.
  if (!secure && mlx_url_is_local(&url) && e->request->authorization)
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl, CURLOPT_URL, e->request->url);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, e->http->error);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "mlxcel");
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, e->request->no_redirect ? 0L : 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(options->connect_seconds * 1000));
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, e);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, e);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, e);
  if (options->insecure) {
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
  } else if (e->http->ca_file) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, e->http->ca_file);
  }
}

// curl reports a scheme that is not allowed and an answer that is not HTTP with the same code. The URL is the
// server's if it redirected.
static mlx_status_t url_error(const exchange_t *e, CURLcode code, const char *url, const char *reason) {
  const mlx_text_t *head = &e->response->head;
  const char *blank = head->length ? memchr(head->data, ' ', head->length) : NULL;
  const bool allowed = !strncasecmp(url, "http://", 7) || !strncasecmp(url, "https://", 8);
  if (blank && blank + 1 < head->data + head->length && blank[1] == '3')  // a status of 3xx
    return mlx_error(MLX_INVALID_INPUT, "%s: the server redirects to a URL that is not allowed (%s)", url,
                     reason);
  if (head->length || (code == CURLE_UNSUPPORTED_PROTOCOL && allowed))
    return mlx_error(MLX_INVALID_INPUT, "%s: the server's answer is not valid HTTP (%s)", url, reason);
  return mlx_error(MLX_USAGE, "'%s' is not a valid http or https URL (%s)", url, reason);
}

static mlx_status_t transfer_error(const exchange_t *e, CURLcode code) {
  e->http->error[strcspn(e->http->error, "\r\n")] = 0;
  const char *reason = e->http->error[0] ? e->http->error : curl_easy_strerror(code);
  const mlx_display_url_t url = mlx_display_url(e->request->url);
  switch (code) {
    case CURLE_ABORTED_BY_CALLBACK:
      if (e->lateness == STALLED && !e->late_bytes)
        return mlx_error(MLX_TIMEOUT, "%s: no data for %g seconds", url.text, e->stall_seconds);
      if (e->lateness == STALLED)
        return mlx_error(MLX_TIMEOUT, "%s: only %llu bytes in %g seconds", url.text,
                         (unsigned long long)e->late_bytes, e->stall_seconds);
      if (e->lateness == TOO_LATE)
        return mlx_error(MLX_TIMEOUT, "%s: the response is not complete after %g seconds", url.text,
                         document_seconds(e));
      return mlx_error(MLX_CANCELLED, "%s: cancelled", url.text);
    case CURLE_OUT_OF_MEMORY: return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
    case CURLE_OPERATION_TIMEDOUT: return mlx_error(MLX_TIMEOUT, "%s: %s", url.text, reason);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL: return url_error(e, code, url.text, reason);
    case CURLE_TOO_MANY_REDIRECTS:
      return mlx_error(MLX_INVALID_INPUT, "%s: redirected more than %d times", url.text, MAX_REDIRECTS);
    case CURLE_SSL_CACERT_BADFILE:
      return mlx_error(MLX_INVALID_INPUT, "cannot read certificates from '%s' (%s)", e->http->ca_file,
                       reason);
    case CURLE_PEER_FAILED_VERIFICATION:
      return mlx_status_hint(
          mlx_error(MLX_UNAVAILABLE, "%s: its certificate cannot be trusted (%s)", url.text, reason),
          "%s; --insecure accepts any certificate",
          e->http->ca_file ? "set SSL_CERT_FILE to a bundle that contains its certificate authority"
                           : WITHOUT_BUNDLE);
    case CURLE_SSL_CONNECT_ERROR:
      return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "%s: %s", url.text, reason),
                             "if the server only has http (a local registry, for example), add --plain-http");
    default: return mlx_error(MLX_UNAVAILABLE, "%s: %s", url.text, reason);
  }
}

static bool is_transient(CURLcode code) {
  return code == CURLE_COULDNT_CONNECT || code == CURLE_OPERATION_TIMEDOUT || code == CURLE_RECV_ERROR ||
         code == CURLE_SEND_ERROR || code == CURLE_GOT_NOTHING || code == CURLE_PARTIAL_FILE ||
         code == CURLE_SSL_CONNECT_ERROR;
}

static mlx_status_t perform(exchange_t *e) {
  CURL *curl = e->http->curl;
  e->http->error[0] = 0;
  const CURLcode code = curl_easy_perform(curl);
  if (e->failure) return e->failure;
  e->response->transient = is_transient(code) || e->lateness == STALLED;
  if (code) return transfer_error(e, code);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &e->response->status);
  const long status = e->response->status;
  e->response->transient = status == 408 || status == 429 || (status >= 500 && status != 501);
  const char *url = NULL;
  curl_easy_getinfo(curl, CURLINFO_EFFECTIVE_URL, &url);
  return url ? mlx_copy_text(url, strlen(url), &e->response->url) : NULL;
}

static mlx_status_t try_once(mlx_http_t *http, const mlx_http_request_t *request,
                             mlx_http_response_t *response) {
  exchange_t e = {.http = http,
                  .request = request,
                  .response = response,
                  .body_fd = -1,
                  .window_at = mlx_seconds(),
                  .stall_seconds = http->options.stall_seconds};
  curl_easy_reset(http->curl);  // keeps connections
  set_transport(&e);
  mlx_status_t status = set_headers(&e);
  if (!status) status = set_body(&e);
  if (!request->sink) e.deadline = mlx_seconds() + document_seconds(&e);
  if (!status) status = perform(&e);
  curl_slist_free_all(e.headers);
  if (e.body_fd >= 0) close(e.body_fd);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Retries

mlx_status_t mlx_http_pause(const mlx_http_options_t *options, double seconds) {
  const double end = mlx_seconds() + seconds;
  for (;;) {
    if (options->cancelled && atomic_load(options->cancelled)) return mlx_error(MLX_CANCELLED, "cancelled");
    const double left = end - mlx_seconds();
    if (left <= 0) return NULL;
    const double nap = left < 0.05 ? left : 0.05;
    nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
  }
}

static double pause_before(const mlx_http_t *http, const mlx_http_response_t *response, int tries_done) {
  double seconds = http->options.pause_seconds;
  for (int i = 1; i < tries_done; ++i) seconds *= 2;
  char header[32];
  if (mlx_http_header(response, "Retry-After", header, sizeof header)) {
    const double requested = strtod(header, NULL);
    if (requested > seconds) seconds = requested;
  }
  return seconds < MAX_PAUSE ? seconds : MAX_PAUSE;
}

mlx_status_t mlx_http_send(mlx_http_t *http, const mlx_http_request_t *request,
                           mlx_http_response_t *out_response) {
  *out_response = (mlx_http_response_t){0};
  for (int done = 1;; ++done) {
    mlx_status_t status = try_once(http, request, out_response);
    if (!out_response->transient || request->no_retry || request->sink || done >= http->options.tries)
      return status;
    const double seconds = pause_before(http, out_response, done);
    mlx_status_free(status);
    mlx_http_response_clear(out_response);
    MLX_TRY(mlx_http_pause(&http->options, seconds));
  }
}

// ----------------------------------------------------------------------------------------------------------
// Reading responses

bool mlx_http_header(const mlx_http_response_t *response, const char *name, char *out, size_t size) {
  const size_t length = strlen(name);
  *out = 0;
  const char *line = response->head.data, *end = line ? line + response->head.length : NULL;
  while (line && line < end) {
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    if (!stop) stop = end;
    if ((size_t)(stop - line) > length && line[length] == ':' && !strncasecmp(line, name, length)) {
      const char *value = line + length + 1;
      while (value < stop && (*value == ' ' || *value == '\t')) ++value;
      while (stop > value && (stop[-1] == '\r' || stop[-1] == ' ' || stop[-1] == '\t')) --stop;
      if ((size_t)(stop - value) >= size) return false;
      memcpy(out, value, (size_t)(stop - value));
      out[stop - value] = 0;
      return true;
    }
    line = stop + 1;
  }
  return false;
}

mlx_status_t mlx_http_check_secret_url(const char *text, bool *out_protected) {
  mlx_url_t url;
  mlx_status_t status = mlx_url_parse(text, &url);
  *out_protected = !status && (url.is_https || mlx_url_is_local(&url));
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY || (!status && !url.has_user)) return status;
  *out_protected = false;
  mlx_status_free(status);
  return mlx_error(MLX_INVALID_INPUT, "will not send credentials to '%s': not a plain http or https URL",
                   mlx_display_url(text).text);
}

// Copies ": " and the server's error message: its X-Error-Message header, or the first line of a text body.
static void quote_message(const mlx_http_response_t *response, char *out, size_t size) {
  char message[256] = "";
  if (!mlx_http_header(response, "X-Error-Message", message, sizeof message) && response->body.length &&
      response->body.data[0] != '<') {
    snprintf(message, sizeof message, "%.*s",
             (int)(response->body.length < 200 ? response->body.length : 200), response->body.data);
  }
  message[strcspn(message, "\r\n")] = 0;
  snprintf(out, size, message[0] ? ": %s" : "%s", message);
}

mlx_status_t mlx_http_check(const mlx_http_request_t *request, const mlx_http_response_t *response) {
  if (response->status >= 200 && response->status < 300) return NULL;
  char message[300];
  quote_message(response, message, sizeof message);
  const long code = response->status;
  const mlx_display_url_t url = mlx_display_url(request->url);
  const char *method = request->method ? request->method : "GET";
  if (code == 404) return mlx_error(MLX_NOT_FOUND, "%s %s: not found (404)%s", method, url.text, message);
  if (code == 401)
    return mlx_error(MLX_UNAVAILABLE, "%s %s: authentication required (401)%s", method, url.text, message);
  if (code == 403)
    return mlx_error(MLX_UNAVAILABLE, "%s %s: access denied (403)%s", method, url.text, message);
  if (code == 429) {
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "%s %s: too many requests (429)%s", method, url.text, message),
        "try again later");
  }
  if (code == 501)
    return mlx_error(MLX_UNSUPPORTED, "%s %s: not supported by the server (501)%s", method, url.text,
                     message);
  mlx_status_t status = mlx_error(code >= 500 ? MLX_UNAVAILABLE : MLX_INVALID_INPUT,
                                  "%s %s: the server answered %ld%s", method, url.text, code, message);
  return code >= 500 ? mlx_status_hint(status, "the server has a problem: try again later") : status;
}

void mlx_http_escape(mlx_text_t *out, const char *text, bool slashes) {
  for (; *text; ++text) {
    const unsigned char c = (unsigned char)*text;
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       strchr("-._~", c) || (slashes && c == '/');
    if (plain) {
      mlx_text_append(out, text, 1);
    } else {
      mlx_text_printf(out, "%%%02X", c);
    }
  }
}
