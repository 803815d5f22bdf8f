// HTTP statuses and error objects.
#include "server/core/failure.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
  int http_status;
  const char *type;
} row_t;

// Wrong input of the request itself.
static row_t of_request(mlx_code_t code) {
  switch (code) {
    case MLX_USAGE:
    case MLX_INVALID_INPUT:
    case MLX_UNSUPPORTED:
    case MLX_TIMEOUT: return (row_t){400, "invalid_request_error"};
    case MLX_NOT_FOUND: return (row_t){404, "not_found_error"};
    case MLX_UNAVAILABLE:
    case MLX_CANCELLED:
    case MLX_OUT_OF_MEMORY: return (row_t){503, "unavailable_error"};
    default: return (row_t){500, "server_error"};
  }
}

static row_t row_of(const mlx_failure_t *failure) {
  const mlx_code_t code = mlx_status_code(failure->status);
  switch (failure->kind) {
    case MLX_FAILURE_REQUEST: return of_request(code);
    case MLX_FAILURE_CONTEXT: return (row_t){400, "exceed_context_size_error"};
    case MLX_FAILURE_QUEUE: return (row_t){429, "rate_limit_error"};
    case MLX_FAILURE_DRAIN: return (row_t){503, "unavailable_error"};
    case MLX_FAILURE_KEY: return (row_t){401, "authentication_error"};
    case MLX_FAILURE_FORBIDDEN: return (row_t){403, "permission_error"};
    case MLX_FAILURE_TYPE: return (row_t){415, "invalid_request_error"};
    case MLX_FAILURE_METHOD: return (row_t){405, "invalid_request_error"};
    case MLX_FAILURE_RUN: break;
  }
  if (code == MLX_UNSUPPORTED || code == MLX_USAGE || code == MLX_TIMEOUT)
    return (row_t){400, "invalid_request_error"};
  if (code == MLX_UNAVAILABLE || code == MLX_OUT_OF_MEMORY || code == MLX_CANCELLED)
    return (row_t){503, "unavailable_error"};
  return (row_t){500, "server_error"};
}

static const char *code_of(const mlx_failure_t *failure, int http_status) {
  if (failure->kind == MLX_FAILURE_CONTEXT) return "context_length_exceeded";
  if (failure->kind == MLX_FAILURE_QUEUE) return "queue_full";
  if (failure->kind == MLX_FAILURE_KEY) return "invalid_api_key";
  return http_status == 404 ? "not_found" : NULL;
}

void mlx_failure_describe(const mlx_failure_t *failure, mlx_failure_text_t *out) {
  const char *message = mlx_status_message(failure->status), *hint = mlx_status_hint_text(failure->status);
  const row_t row = row_of(failure);
  snprintf(out->message, sizeof out->message, "%s%s%s", message, *hint ? ". Hint: " : "", hint);
  mlx_api_error_path(message, out->path, sizeof out->path);
  const bool has_path = out->path[0] && row.http_status < 500;
  out->error = (mlx_api_error_t){.http_status = row.http_status,
                                 .type = row.type,
                                 .message = out->message,
                                 .param = has_path ? out->path : NULL,
                                 .code = code_of(failure, row.http_status),
                                 .prompt_tokens = failure->prompt_tokens,
                                 .context = failure->context};
}

void mlx_failure_respond(const mlx_failure_t *failure, void (*write)(const mlx_api_error_t *, mlx_text_t *),
                         mlx_exchange_t *exchange) {
  mlx_failure_text_t text;
  mlx_text_t body = {0};
  mlx_failure_describe(failure, &text);
  (write ? write : mlx_api_chat.error)(&text.error, &body);
  if (text.error.http_status == 429 || text.error.http_status == 503)
    mlx_exchange_set_header(exchange, "Retry-After", failure->kind == MLX_FAILURE_QUEUE ? "1" : "5");
  if (text.error.http_status == 401) mlx_exchange_set_header(exchange, "WWW-Authenticate", "Bearer");
  mlx_exchange_respond(exchange, text.error.http_status, "application/json", body.data ? body.data : "{}",
                       body.data ? body.length : 2);
  mlx_text_clear(&body);
}
