// Fuzz target: the bytes of a connection. The requests must be the same if the bytes arrive in one piece and
// in small pieces, and each must keep the limits.
//
// The first byte of the input chooses the lengths of the pieces.
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "server/http/request.h"

#define MAX_HEADER_BYTES 300
#define MAX_BODY_BYTES 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text) {
  const size_t length = strlen(text);
  for (size_t i = 0; i < length;) {
    const int step = mlx_utf8_length(text + i, length - i);
    if (step <= 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7f) __builtin_trap();
    i += (size_t)step;
  }
}

// Appends a text of the request, so that two runs can be compared.
static void record(mlx_exchange_request_t *request, mlx_text_t *log) {
  if (!request->method || !request->path || !request->query || !request->body.data) __builtin_trap();
  if (request->body.length > MAX_BODY_BYTES || request->headers.length > MAX_HEADER_BYTES) __builtin_trap();
  if (request->headers.length && request->headers.data[request->headers.length - 1]) __builtin_trap();
  check_text(request->path);
  check_text(request->query);
  const char *host = mlx_exchange_request_header(request, "HOST");
  if (!host && !request->is_http_1_0) __builtin_trap();
  mlx_text_printf(log, "%s %s?%s %d%d%d %s\n", request->method, request->path, request->query,
                  request->is_http_1_0, request->keep_alive, request->is_head, host ? host : "");
  mlx_text_append(log, request->headers.data, request->headers.length);
  mlx_text_append(log, request->body.data, request->body.length);
}

static size_t next_piece(uint32_t *state, size_t rest) {
  if (!*state) return rest;
  *state = *state * 1664525u + 1013904223u;
  const size_t length = 1 + (*state >> 24) % 9;
  return length < rest ? length : rest;
}

// Parses all bytes as a connection does. The log ends with "refused" if a request was refused.
static void run(const char *bytes, size_t size, uint32_t state, mlx_text_t *log) {
  mlx_http_parser_t parser;
  mlx_http_parser_initialize(&parser, MAX_HEADER_BYTES, MAX_BODY_BYTES);
  bool is_open = true;
  for (size_t done = 0; is_open && done < size;) {
    const size_t piece = next_piece(&state, size - done);
    size_t used;
    mlx_exchange_request_t request;
    const mlx_http_result_t result = mlx_http_parser_feed(&parser, bytes + done, piece, &used);
    if (used > piece || (result == MLX_REQUEST_MORE && used != piece)) __builtin_trap();
    done += used;
    if (result == MLX_REQUEST_REFUSED) {
      if (parser.refusal < 400 || !parser.reason || !*parser.reason) __builtin_trap();
      if (mlx_http_parser_take(&parser, &request)) __builtin_trap();
      mlx_exchange_request_clear(&request);
      mlx_text_puts(log, "refused");
      is_open = false;
    } else if (result == MLX_REQUEST_COMPLETE) {
      if (mlx_http_parser_take(&parser, &request)) __builtin_trap();
      record(&request, log);
      is_open = request.keep_alive;
      mlx_exchange_request_clear(&request);
    }
  }
  mlx_http_parser_clear(&parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_text_t whole = {0}, pieces = {0};
  if (!size) return 0;
  const char *bytes = (const char *)data + 1;
  run(bytes, size - 1, 0, &whole);
  run(bytes, size - 1, data[0] * 2u + 1, &pieces);
  if (whole.length != pieces.length || (whole.length && memcmp(whole.data, pieces.data, whole.length)))
    __builtin_trap();
  mlx_text_clear(&whole);
  mlx_text_clear(&pieces);
  return 0;
}
