// Response: the text of a response's head, chunks and error bodies.
#ifndef MLXCEL_SERVER_HTTP_RESPONSE_H_
#define MLXCEL_SERVER_HTTP_RESPONSE_H_

#include <stdint.h>

#include "base/text.h"

typedef struct mlx_http_response_head {
  int status;
  const char *content_type;  // NULL: no such header
  const mlx_text_t *fields;  // further header lines, each with its CRLF
  bool is_http_1_0;
  bool keep_alive;
  bool is_chunked;
  bool has_length;
  size_t length;
} mlx_http_response_head_t;

void mlx_http_response_write_head(const mlx_http_response_head_t *head, mlx_text_t *out);
void mlx_http_response_write_chunk(const char *bytes, size_t length,
                                   mlx_text_t *out);  // nothing if |length| is 0
// True if a response with this status has no body: 1xx, 204 and 304.
bool mlx_http_response_has_no_body(int status);
// {"error":{"message":...,"type":...,"code":...}}, for errors of the HTTP layer.
void mlx_http_response_write_error(int status, const char *message, mlx_text_t *out);
// Puts the line "NAME: VALUE\r\n" in |fields|, in place of a line with the same name. Control characters in
// |value| become spaces, so that a value cannot add a line. Returns false for a name that is not a token, and
// for a header that the HTTP layer writes itself (Content-Length, Date, ...).
bool mlx_http_response_set_field(mlx_text_t *fields, const char *name, const char *value);

#endif  // MLXCEL_SERVER_HTTP_RESPONSE_H_
