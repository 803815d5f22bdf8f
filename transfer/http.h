// HTTP: a client for http and https, built on libcurl. Only http.c and url.c include curl's headers.
//
// A client keeps its connection between requests. It follows redirects, but never from https to http, and
// never sends an Authorization header to another host. Proxies come from http_proxy, https_proxy, all_proxy
// and no_proxy. Certificates are checked against $CURL_CA_BUNDLE, $SSL_CERT_FILE or the system's bundle,
// unless |insecure| is set.
//
// Connection errors, 408, 429 and 5xx except 501 are retried. The pause doubles each time, or is what the
// server requests. Any other response is returned, whatever its status; mlx_http_check turns it into an
// error.
//
// Threads: a client belongs to one thread at a time. Different clients may be used in parallel.
#ifndef MLXCEL_TRANSFER_HTTP_H_
#define MLXCEL_TRANSFER_HTTP_H_

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct mlx_http mlx_http_t;

// Bytes per second, averaged over stall_seconds. A slower transfer ends: a server that sends one byte from
// time to time must not hold a process forever.
#define MLX_HTTP_MIN_RATE 1024
// A response that is kept in memory must be complete after this many times stall_seconds.
#define MLX_HTTP_DOCUMENT_FACTOR 2

typedef struct mlx_http_options {
  bool insecure;           // accept any certificate
  double connect_seconds;  // timeout for making a connection
  double stall_seconds;    // timeout with fewer than MLX_HTTP_MIN_RATE bytes per second sent or received
  int tries;               // of a request, including the first
  double pause_seconds;    // before the second try
  const atomic_bool *cancelled;  // if set, ends the current request with MLX_CANCELLED; borrowed, may be NULL
} mlx_http_options_t;
void mlx_http_options_initialize(mlx_http_options_t *options);

mlx_status_t mlx_http_open(const mlx_http_options_t *options, mlx_http_t **out_http) MLX_MUST_USE;
void mlx_http_close(mlx_http_t *http);  // NULL is fine
const mlx_http_options_t *mlx_http_get_options(const mlx_http_t *http);

// Path of the certificate bundle; NULL if there is none. Release with mlx_free.
mlx_status_t mlx_http_certificates(char **out_path) MLX_MUST_USE;
bool mlx_http_has_system_certificates(void);  // true if the system needs no bundle file, as on Windows

typedef struct mlx_http_response {
  long status;      // 0 without a response
  bool transient;   // connection error, stall, 408, 429 or 5xx except 501: a retry may succeed
  mlx_text_t head;  // header lines of the last response
  mlx_text_t body;  // unless a sink took it; of an error response, at most the first 16 KiB
  char *url;        // after redirects
} mlx_http_response_t;
void mlx_http_response_clear(mlx_http_response_t *response);

typedef struct mlx_http_request {
  const char *method;  // NULL for GET
  const char *url;
  const char *authorization;   // "Bearer ..."; may be NULL
  const char *const *headers;  // "Name: value" lines, ending with NULL; may be NULL
  bool no_redirect;            // do not follow redirects
  bool no_retry;               // try only once
  size_t max_bytes;            // of the body in memory; a longer body is an error
  // Body of a POST, PUT or PATCH request: memory, or a range of a file.
  const void *body;
  const char *body_path;
  uint64_t body_offset, body_length;
  // Receives the body of a 2xx response in pieces; may be NULL. A request with a sink is never retried.
  mlx_status_t (*sink)(void *user, const mlx_http_response_t *response, const char *bytes, size_t length);
  void (*sent)(void *user, uint64_t bytes);  // called with the number of body bytes sent so far; may be NULL
  void *user;                                // passed to |sink| and |sent|
} mlx_http_request_t;

// Sends a request. Fails if there is no response. Clear the response also after an error.
mlx_status_t mlx_http_send(mlx_http_t *http, const mlx_http_request_t *request,
                           mlx_http_response_t *out_response) MLX_MUST_USE;

// Returns NULL for a 2xx response, else an error with method, URL, status and the server's message.
mlx_status_t mlx_http_check(const mlx_http_request_t *request,
                            const mlx_http_response_t *response) MLX_MUST_USE;

// Copies the value of a header to |out|; the name is case-insensitive. Returns false, and sets |out| to "",
// if the header is missing or does not fit.
bool mlx_http_header(const mlx_http_response_t *response, const char *name, char *out, size_t size);

// Sleeps. Returns MLX_CANCELLED if cancelled meanwhile.
mlx_status_t mlx_http_pause(const mlx_http_options_t *options, double seconds) MLX_MUST_USE;

// Checks a URL that a server named as the destination of a secret. Fails unless it is http or https without
// user name or password, which could disguise the host. Sets *|out_protected| for https and for this machine.
mlx_status_t mlx_http_check_secret_url(const char *url, bool *out_protected) MLX_MUST_USE;

// Appends |text| percent-encoded for a path ("a b" becomes "a%20b"). Slashes stay if |slashes| is set.
void mlx_http_escape(mlx_text_t *out, const char *text, bool slashes);

#endif  // MLXCEL_TRANSFER_HTTP_H_
