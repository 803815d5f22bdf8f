// Target: the part of a request line that names what is asked for, "/v1/models?limit=3".
#ifndef MLXCEL_SERVER_HTTP_TARGET_H_
#define MLXCEL_SERVER_HTTP_TARGET_H_

#include "base/status.h"

// Splits a target into a percent-decoded path and a raw query. Both are new strings; release with mlx_free.
//
// Accepted are "/path?query", "http://host/path?query" (proxies send it) and "*". Refused, with
// MLX_INVALID_INPUT: an invalid percent encoding, an encoded NUL or other control character, a path that is
// not UTF-8, a fragment, and bytes in the query that are not printable ASCII or UTF-8.
mlx_status_t mlx_http_target_parse(const char *target, size_t length, char **out_path,
                                   char **out_query) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_HTTP_TARGET_H_
