// URL: the one parser of http and https URLs. Every decision about a host uses it. It is libcurl's parser, so
// the host that is checked is the host that curl connects to: in http://localhost:x@elsewhere/ that is
// "elsewhere".
#ifndef MLXCEL_TRANSFER_URL_H_
#define MLXCEL_TRANSFER_URL_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_url {
  bool is_https;    // else http
  bool has_user;    // contains a user name or a password
  char host[256];   // an IPv6 address is in brackets
  uint16_t port;    // the scheme's default if the URL has none
  char place[264];  // "HOST", or "HOST:PORT" if the URL has a port
} mlx_url_t;

// Fails with MLX_INVALID_INPUT unless |url| is an absolute http or https URL with a host. The message names
// the URL without its query and password.
mlx_status_t mlx_url_parse(const char *url, mlx_url_t *out_url) MLX_MUST_USE;
// True if the host is this machine: plain http may carry a secret there.
bool mlx_url_is_local(const mlx_url_t *url);
// True if scheme, host and port are equal.
bool mlx_url_same_server(const mlx_url_t *a, const mlx_url_t *b);

// Makes an absolute URL from |link|, which a response of the absolute URL |from| contained: an absolute URL,
// a path that begins with a slash, or a query. Fails if the link changes from https to http, or to another
// scheme. Release with mlx_free.
mlx_status_t mlx_url_resolve(const char *from, const char *link, char **out_url) MLX_MUST_USE;

// A URL for messages: without its query, which may contain a signature, and without user name and password.
typedef struct mlx_display_url {
  char text[512];
} mlx_display_url_t;
mlx_display_url_t mlx_display_url(const char *url);

#endif  // MLXCEL_TRANSFER_URL_H_
