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
#include "transfer/settings.h"

#define MAX_HEAD (256u << 10)       // of header lines
#define MAX_ERROR_BODY (16u << 10)  // kept of an answer that is an error
#define MAX_REDIRECTS 10
#define LONGEST_PAUSE 60.0  // whatever a server asks for
#define UPLOAD_PATIENCE 10  // a registry reads what it was sent once more before it answers

struct mlx_http {
  mlx_http_options_t options;
  CURL *curl;
  char *ca_file;  // NULL: none was found
  char error[CURL_ERROR_SIZE];
};

// One request on its way.
typedef struct exchange {
  mlx_http_t *http;
  const mlx_http_request_t *request;
  mlx_http_response_t *response;
  mlx_status_t failure;  // why a callback stopped it
  struct curl_slist *headers;
  int body_fd;
  uint64_t body_done;
  curl_off_t moved;      // bytes both ways at the last look
  double moved_at;       // when they last changed
  double stall_seconds;  // how long they may stay
  bool stalled;
} exchange_t;

void mlx_http_options_initialize(mlx_http_options_t *options) {
  *options = (mlx_http_options_t){.connect_seconds = 30, .stall_seconds = 60, .tries = 5, .pause_seconds = 1};
}

const mlx_http_options_t *mlx_http_settings(const mlx_http_t *http) { return &http->options; }

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

#ifdef _WIN32  // the system's own TLS has its own store
static const char *const bundles[] = {NULL};
#define WITHOUT_BUNDLE \
  "add its authority to the system's certificates, or set SSL_CERT_FILE to a bundle that holds it"
#else
static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                      "/etc/pki/tls/certs/ca-bundle.crt",
                                      "/etc/ssl/ca-bundle.pem",
                                      "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                                      "/etc/pki/tls/cacert.pem",
                                      "/etc/ssl/cert.pem",
                                      NULL};
#define WITHOUT_BUNDLE \
  "no certificates are installed here: install the system's ca-certificates, or set SSL_CERT_FILE"
#endif

bool mlx_http_has_store(void) { return !bundles[0]; }

mlx_status_t mlx_http_certificates(char **out_path) {
  static const char *const variables[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE"};
  *out_path = NULL;
  for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i) {
    const char *path = getenv(variables[i]);
    if (!path || !*path) continue;
    if (!mlx_is_file(path))
      return mlx_error(MLX_NOT_FOUND, "%s is '%s', which is not a file", variables[i], path);
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
    return mlx_error(MLX_UNAVAILABLE, "libcurl does not start: %s", curl_easy_strerror(curl_started));
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
// What curl calls

static size_t on_header(char *line, size_t one, size_t length, void *user) {
  (void)one;
  mlx_http_response_t *response = ((exchange_t *)user)->response;
  if (length >= 5 && !memcmp(line, "HTTP/", 5)) response->head.length = 0;  // the next of several answers
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
    e->failure = mlx_error(MLX_INVALID_INPUT, "%s: the answer is longer than %zu bytes",
                           mlx_http_show(e->request->url).text, e->request->max_bytes);
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
                       : mlx_error(MLX_IO, "'%s' became shorter while it was sent", request->body_path);
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

// Curl's own watch over slow transfers averages over seconds; this one sees a connection on which nothing
// comes.
static int on_progress(void *user, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up) {
  (void)down_all, (void)up_all;
  exchange_t *e = user;
  const double now = mlx_seconds();
  if (down + up != e->moved) e->moved = down + up, e->moved_at = now;
  e->stalled = now - e->moved_at > e->stall_seconds;
  const atomic_bool *cancelled = e->http->options.cancelled;
  return e->stalled || (cancelled && atomic_load(cancelled));
}

// ----------------------------------------------------------------------------------------------------------
// One try

static mlx_status_t add_header(exchange_t *e, const char *line) {
  struct curl_slist *longer = curl_slist_append(e->headers, line);
  if (!longer) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  e->headers = longer;
  return NULL;
}

static mlx_status_t set_headers(exchange_t *e) {
  const mlx_http_request_t *request = e->request;
  MLX_TRY(add_header(e, "Expect:"));  // registries that never say 100 would cost a second each
  for (const char *const *line = request->headers; line && *line; ++line) MLX_TRY(add_header(e, *line));
  if (request->authorization) {
    char *line;
    MLX_TRY(mlx_format(&line, "Authorization: %s", request->authorization));
    mlx_status_t status = strpbrk(line, "\r\n")
                              ? mlx_error(MLX_INVALID_INPUT, "a token with a line break in it cannot be sent")
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
  e->stall_seconds *= UPLOAD_PATIENCE;
  // On a connection that was used before, curl sends a request that broke once more by itself: not what
  // "once" means.
  if (request->once) curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
  if (!request->body_path) return NULL;
  e->body_fd = open(request->body_path, O_RDONLY | O_CLOEXEC);
  return e->body_fd < 0 ? mlx_io_error("open", request->body_path) : NULL;
}

static void set_transport(exchange_t *e) {
  CURL *curl = e->http->curl;
  const mlx_http_options_t *options = &e->http->options;
  const bool secure = !strncasecmp(e->request->url, "https:", 6);
  curl_easy_setopt(curl, CURLOPT_URL, e->request->url);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, e->http->error);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "mlxcel");
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, e->request->stay ? 0L : 1L);
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

static mlx_status_t transfer_error(const exchange_t *e, CURLcode code) {
  e->http->error[strcspn(e->http->error, "\r\n")] = 0;
  const char *said = e->http->error[0] ? e->http->error : curl_easy_strerror(code);
  const mlx_http_shown_t url = mlx_http_show(e->request->url);
  switch (code) {
    case CURLE_ABORTED_BY_CALLBACK:
      if (e->stalled)
        return mlx_error(MLX_TIMEOUT, "%s: nothing came for %g seconds", url.text, e->stall_seconds);
      return mlx_error(MLX_CANCELLED, "%s: stopped", url.text);
    case CURLE_OUT_OF_MEMORY: return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
    case CURLE_OPERATION_TIMEDOUT: return mlx_error(MLX_TIMEOUT, "%s: %s", url.text, said);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return mlx_error(MLX_USAGE, "'%s' is not an address of http or https (%s)", url.text, said);
    case CURLE_TOO_MANY_REDIRECTS:
      return mlx_error(MLX_INVALID_INPUT, "%s: redirected more than %d times", url.text, MAX_REDIRECTS);
    case CURLE_SSL_CACERT_BADFILE:
      return mlx_error(MLX_INVALID_INPUT, "'%s' holds no certificates (%s)", e->http->ca_file, said);
    case CURLE_PEER_FAILED_VERIFICATION:
      return mlx_status_hint(
          mlx_error(MLX_UNAVAILABLE, "%s: its certificate cannot be trusted (%s)", url.text, said),
          "%s; --insecure accepts any certificate",
          e->http->ca_file ? "set SSL_CERT_FILE to a bundle that holds its authority" : WITHOUT_BUNDLE);
    case CURLE_SSL_CONNECT_ERROR:
      return mlx_status_hint(
          mlx_error(MLX_UNAVAILABLE, "%s: %s", url.text, said),
          "it may not speak https: a registry of one's own that does not wants --plain-http");
    default: return mlx_error(MLX_UNAVAILABLE, "%s: %s", url.text, said);
  }
}

static bool is_passing(CURLcode code) {
  return code == CURLE_COULDNT_CONNECT || code == CURLE_OPERATION_TIMEDOUT || code == CURLE_RECV_ERROR ||
         code == CURLE_SEND_ERROR || code == CURLE_GOT_NOTHING || code == CURLE_PARTIAL_FILE ||
         code == CURLE_SSL_CONNECT_ERROR;
}

static mlx_status_t perform(exchange_t *e) {
  CURL *curl = e->http->curl;
  e->http->error[0] = 0;
  const CURLcode code = curl_easy_perform(curl);
  if (e->failure) return e->failure;
  e->response->passing = is_passing(code) || e->stalled;
  if (code) return transfer_error(e, code);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &e->response->status);
  const long status = e->response->status;
  e->response->passing = status == 408 || status == 429 || (status >= 500 && status != 501);
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
                  .moved_at = mlx_seconds(),
                  .stall_seconds = http->options.stall_seconds};
  curl_easy_reset(http->curl);  // keeps connections
  set_transport(&e);
  mlx_status_t status = set_headers(&e);
  if (!status) status = set_body(&e);
  if (!status) status = perform(&e);
  curl_slist_free_all(e.headers);
  if (e.body_fd >= 0) close(e.body_fd);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// And again

mlx_status_t mlx_http_pause(const mlx_http_options_t *options, double seconds) {
  const double end = mlx_seconds() + seconds;
  for (;;) {
    if (options->cancelled && atomic_load(options->cancelled)) return mlx_error(MLX_CANCELLED, "stopped");
    const double left = end - mlx_seconds();
    if (left <= 0) return NULL;
    const double nap = left < 0.05 ? left : 0.05;
    nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
  }
}

static double pause_before(const mlx_http_t *http, const mlx_http_response_t *response, int tries_done) {
  double seconds = http->options.pause_seconds;
  for (int i = 1; i < tries_done; ++i) seconds *= 2;
  char asked[32];
  if (mlx_http_header(response, "Retry-After", asked, sizeof asked)) {
    const double wanted = strtod(asked, NULL);
    if (wanted > seconds) seconds = wanted;
  }
  return seconds < LONGEST_PAUSE ? seconds : LONGEST_PAUSE;
}

mlx_status_t mlx_http_send(mlx_http_t *http, const mlx_http_request_t *request,
                           mlx_http_response_t *out_response) {
  *out_response = (mlx_http_response_t){0};
  for (int done = 1;; ++done) {
    mlx_status_t status = try_once(http, request, out_response);
    if (!out_response->passing || request->once || request->sink || done >= http->options.tries)
      return status;
    const double seconds = pause_before(http, out_response, done);
    mlx_status_free(status);
    mlx_http_response_clear(out_response);
    MLX_TRY(mlx_http_pause(&http->options, seconds));
  }
}

// ----------------------------------------------------------------------------------------------------------
// Reading answers

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

mlx_http_shown_t mlx_http_show(const char *url) {
  mlx_http_shown_t out;
  const char *host = strstr(url, "://");
  host = host ? host + 3 : url;
  const char *at = memchr(host, '@', strcspn(host, "/?#"));
  const char *rest = at ? at + 1 : host;
  snprintf(out.text, sizeof out.text, "%.*s%.*s", (int)(host - url), url, (int)strcspn(rest, "?#"), rest);
  return out;
}

static mlx_status_t judge(CURLU *parts, const char *url, bool *out_protected) {
  char *host = NULL;
  const bool secure = !strncasecmp(url, "https://", 8);
  const bool good = (secure || !strncasecmp(url, "http://", 7)) &&
                    !curl_url_set(parts, CURLUPART_URL, url, CURLU_DISALLOW_USER) &&
                    !curl_url_get(parts, CURLUPART_HOST, &host, 0);
  *out_protected = good && (secure || mlx_is_local_host(host, strlen(host)));
  curl_free(host);
  return good
             ? NULL
             : mlx_error(MLX_INVALID_INPUT, "'%s' is not an address of http or https that a secret may go to",
                         mlx_http_show(url).text);
}

mlx_status_t mlx_http_judge(const char *url, bool *out_protected) {
  *out_protected = false;
  CURLU *parts = curl_url();
  if (!parts) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  mlx_status_t status = judge(parts, url, out_protected);
  curl_url_cleanup(parts);
  return status;
}

// What the server said of its refusal: a header of its own, or the beginning of a short text.
static void quote_reason(const mlx_http_response_t *response, char *out, size_t size) {
  char said[256] = "";
  if (!mlx_http_header(response, "X-Error-Message", said, sizeof said) && response->body.length &&
      response->body.data[0] != '<') {
    snprintf(said, sizeof said, "%.*s", (int)(response->body.length < 200 ? response->body.length : 200),
             response->body.data);
  }
  said[strcspn(said, "\r\n")] = 0;
  snprintf(out, size, said[0] ? ": %s" : "%s", said);
}

mlx_status_t mlx_http_check(const mlx_http_request_t *request, const mlx_http_response_t *response) {
  if (response->status >= 200 && response->status < 300) return NULL;
  char said[300];
  quote_reason(response, said, sizeof said);
  const long code = response->status;
  const mlx_http_shown_t url = mlx_http_show(request->url);
  const char *method = request->method ? request->method : "GET";
  if (code == 404)
    return mlx_error(MLX_NOT_FOUND, "%s %s: the server has no such thing (404)%s", method, url.text, said);
  if (code == 401)
    return mlx_error(MLX_UNAVAILABLE, "%s %s: the server wants to know who asks (401)%s", method, url.text,
                     said);
  if (code == 403)
    return mlx_error(MLX_UNAVAILABLE, "%s %s: the server forbids it (403)%s", method, url.text, said);
  if (code == 429) {
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "%s %s: too many requests (429)%s", method, url.text, said),
        "try again later");
  }
  if (code == 501)
    return mlx_error(MLX_UNSUPPORTED, "%s %s: the server does not do this (501)%s", method, url.text, said);
  mlx_status_t status = mlx_error(code >= 500 ? MLX_UNAVAILABLE : MLX_INVALID_INPUT,
                                  "%s %s: the server answered %ld%s", method, url.text, code, said);
  return code >= 500 ? mlx_status_hint(status, "the server is at fault: try again later") : status;
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
