// HTTP and HTTPS: one request at a time to a hub, a registry or a plain web server. The only place that
// includes curl's headers.
//
// A client keeps its connection between requests. Redirects are followed (never from https down to http) and
// an Authorization is not carried to another host. Proxies come from http_proxy, https_proxy, all_proxy and
// no_proxy. Certificates are checked against $CURL_CA_BUNDLE, $SSL_CERT_FILE or the system's bundle; only
// |insecure| turns that off.
//
// Connection errors, 429 and 5xx but 501 are tried again after a pause that doubles (or that the server asks
// for); any other answer is an answer, whatever its status: mlx_http_check makes an error of one.
//
// Threads: a client belongs to one thread at a time; any number of clients may be used side by side.
#ifndef MLXCEL_TRANSFER_HTTP_H_
#define MLXCEL_TRANSFER_HTTP_H_

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct mlx_http mlx_http_t;

typedef struct mlx_http_options {
  bool insecure;                 // accept any certificate
  double connect_seconds;        // for a connection to be made
  double stall_seconds;          // without a byte, after which a transfer has failed
  int tries;                     // of a request, the first included
  double pause_seconds;          // before the second try
  const atomic_bool *cancelled;  // ends whatever is under way with MLX_CANCELLED; borrowed, may be NULL
} mlx_http_options_t;
void mlx_http_options_initialize(mlx_http_options_t *options);

mlx_status_t mlx_http_open(const mlx_http_options_t *options, mlx_http_t **out_http) MLX_MUST_USE;
void mlx_http_close(mlx_http_t *http);  // NULL is fine
const mlx_http_options_t *mlx_http_settings(const mlx_http_t *http);

// The file of certificates that servers are checked against; *|out_path| (release with mlx_free) is NULL
// where there is none.
mlx_status_t mlx_http_certificates(char **out_path) MLX_MUST_USE;
bool mlx_http_has_store(void);  // whether the system keeps certificates that need no file, as Windows does

typedef struct mlx_http_response {
  long status;      // 0: there was none
  bool passing;     // a connection that failed or stalled, 408, 429 or 5xx but 501: the same request may go
                    // better later
  mlx_text_t head;  // the header lines of the last answer
  mlx_text_t body;  // what no sink took; of an error at most a beginning
  char *url;        // where the answer came from, after redirects
} mlx_http_response_t;
void mlx_http_response_clear(mlx_http_response_t *response);

typedef struct mlx_http_request {
  const char *method;  // NULL: GET
  const char *url;
  const char *authorization;   // "Bearer ..."; may be NULL
  const char *const *headers;  // "Name: value", ends with NULL; may be NULL
  bool stay;                   // do not follow redirects
  bool once;                   // do not try again
  size_t max_bytes;            // of the answer in memory; one that is longer is an error
  // What is sent with POST, PUT and PATCH: memory, or a part of a file.
  const void *body;
  const char *body_path;
  uint64_t body_offset, body_length;
  // Takes the body of a 2xx answer a piece at a time; may be NULL. Such a request is never tried again.
  mlx_status_t (*sink)(void *user, const mlx_http_response_t *response, const char *bytes, size_t length);
  void (*sent)(void *user, uint64_t bytes);  // told how much of the body is sent so far; may be NULL
  void *user;
} mlx_http_request_t;

// Fails when there was no answer. Clear the response in any case.
mlx_status_t mlx_http_send(mlx_http_t *http, const mlx_http_request_t *request,
                           mlx_http_response_t *out_response) MLX_MUST_USE;

// NULL for a 2xx answer, else an error that names status and address, and what the server said about it.
mlx_status_t mlx_http_check(const mlx_http_request_t *request,
                            const mlx_http_response_t *response) MLX_MUST_USE;

// Copies the value of a header, of any case of letters, into |out|. False, and an empty text, when it is
// missing or too long.
bool mlx_http_header(const mlx_http_response_t *response, const char *name, char *out, size_t size);

// Waits, unless cancelled, which is MLX_CANCELLED.
mlx_status_t mlx_http_pause(const mlx_http_options_t *options, double seconds) MLX_MUST_USE;

// An address as messages show it: without a query, which may hold a signature, and without a password.
typedef struct mlx_http_shown {
  char text[512];
} mlx_http_shown_t;
mlx_http_shown_t mlx_http_show(const char *url);

// Looks at an address that a server gave for something secret. Fails for what is none of http or https, and
// for one that hides its host behind a name or a password. *|out_protected|: what is sent there stays between
// us, by https or because it is this very machine.
mlx_status_t mlx_http_judge(const char *url, bool *out_protected) MLX_MUST_USE;

// Appends |text| as it must be written inside a path ("a b" is "a%20b"); slashes stay where |slashes|.
void mlx_http_escape(mlx_text_t *out, const char *text, bool slashes);

#endif  // MLXCEL_TRANSFER_HTTP_H_
