// Request: an HTTP/1 request as it arrives, parsed by llhttp in its strict mode. No sockets and no threads:
// the fuzz target feeds it bytes in arbitrary pieces.
//
// Refused with a status: a malformed request (400), a request that proxies and servers could read in two
// ways (400: both Content-Length and Transfer-Encoding, repeated Host, bare LF, folded headers, ...), too
// many header bytes (431), too many body bytes (413, or 503 if all requests together have too many), HTTP
// versions other than 1.0 and 1.1 (505), CONNECT and transfer encodings other than chunked (501).
// "Connection: upgrade" is ignored.
//
// Threads: a parser and a request belong to one thread at a time.
#ifndef MLXCEL_SERVER_HTTP_REQUEST_H_
#define MLXCEL_SERVER_HTTP_REQUEST_H_

#include <stdatomic.h>
#include <stdint.h>

#include "base/text.h"
#include "llhttp.h"

// The body bytes that all requests of a server hold together. Any thread.
typedef struct mlx_http_body_budget {
  atomic_size_t used;
  size_t max;
} mlx_http_body_budget_t;

// A request. Strings are never NULL after mlx_http_parser_take.
typedef struct mlx_exchange_request {
  const char *method;  // constant text; "" if the request line was not read
  char *path, *query;
  mlx_text_t headers;  // "name\0value\0" for each; names in lower case
  mlx_text_t body;
  mlx_http_body_budget_t *budget;  // that has the body's bytes; borrowed; NULL: none
  bool is_http_1_0, is_head;
  bool keep_alive;  // the client accepts further responses on its connection
} mlx_exchange_request_t;

const char *mlx_exchange_request_header(const mlx_exchange_request_t *request,
                                        const char *name);  // the first; NULL if absent
void mlx_exchange_request_clear(mlx_exchange_request_t *request);
// Releases the body and its share of the budget.
void mlx_exchange_request_drop_body(mlx_exchange_request_t *request);

typedef enum mlx_http_stage {
  MLX_STAGE_IDLE,  // no byte of the next request has arrived
  MLX_STAGE_HEADERS,
  MLX_STAGE_BODY
} mlx_http_stage_t;

typedef enum mlx_http_result {
  MLX_REQUEST_MORE,      // all bytes are parsed
  MLX_REQUEST_CONTINUE,  // the headers are complete, and the client waits for "100 Continue"
  MLX_REQUEST_COMPLETE,  // take the request, then feed the rest
  MLX_REQUEST_REFUSED    // |refusal| and |reason| tell why; the connection cannot be used any more
} mlx_http_result_t;

typedef struct mlx_http_parser {
  mlx_http_stage_t stage;
  int refusal;         // HTTP status
  const char *reason;  // plain English; constant text, or |reason_text|
  char reason_text[160];
  size_t max_header_bytes, max_body_bytes;
  mlx_http_body_budget_t *budget;  // may be set after mlx_http_parser_initialize; NULL: no limit
  // Private
  llhttp_t llhttp;
  mlx_exchange_request_t request;
  mlx_text_t target;
  size_t header_bytes, name_start;
  bool in_value, expects_continue, complete;
  uint64_t seen;  // bits of headers that must not be repeated
} mlx_http_parser_t;

void mlx_http_parser_initialize(mlx_http_parser_t *out_parser, size_t max_header_bytes,
                                size_t max_body_bytes);
// Parses bytes; *out_used is how many. Fewer than |length| are used unless the result is MLX_REQUEST_MORE.
mlx_http_result_t mlx_http_parser_feed(mlx_http_parser_t *parser, const char *bytes, size_t length,
                                       size_t *out_used);
// Moves the request, or what has been read of a refused one, to the caller. Release with
// mlx_exchange_request_clear. The parser is then ready for the next request.
mlx_status_t mlx_http_parser_take(mlx_http_parser_t *parser,
                                  mlx_exchange_request_t *out_request) MLX_MUST_USE;
void mlx_http_parser_clear(mlx_http_parser_t *parser);

#endif  // MLXCEL_SERVER_HTTP_REQUEST_H_
