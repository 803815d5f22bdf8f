// Failure: an error on its way to a client. Maps statuses to HTTP and to the APIs' error objects.
#ifndef MLXCEL_SERVER_CORE_FAILURE_H_
#define MLXCEL_SERVER_CORE_FAILURE_H_

#include "server/api/api.h"
#include "server/http/http.h"

typedef enum mlx_failure_kind {
  MLX_FAILURE_REQUEST,    // while the request was read: a wrong input is 400
  MLX_FAILURE_RUN,        // while the model ran: a wrong input is not the client's
  MLX_FAILURE_CONTEXT,    // the prompt does not fit into the context: 400
  MLX_FAILURE_QUEUE,      // too many requests wait: 429
  MLX_FAILURE_DRAIN,      // the server is about to stop: 503
  MLX_FAILURE_KEY,        // no valid API key: 401
  MLX_FAILURE_FORBIDDEN,  // a web page that may not use the server: 403
  MLX_FAILURE_TYPE,       // the body is not JSON: 415
  MLX_FAILURE_METHOD      // 405
} mlx_failure_kind_t;

typedef struct mlx_failure {
  mlx_failure_kind_t kind;
  mlx_status_t status;             // owned by the caller; the message and the hint
  int64_t prompt_tokens, context;  // MLX_FAILURE_CONTEXT
} mlx_failure_t;

// The form in which clients see it, with memory for its texts.
typedef struct mlx_failure_text {
  mlx_api_error_t error;  // its texts are in this struct or constants: do not move it
  char message[2048], path[256];
} mlx_failure_text_t;
void mlx_failure_describe(const mlx_failure_t *failure, mlx_failure_text_t *out_text);

// Answers |exchange| with the error, in the form of |write| (mlx_api_t.error); NULL: OpenAI's.
void mlx_failure_respond(const mlx_failure_t *failure, void (*write)(const mlx_api_error_t *, mlx_text_t *),
                         mlx_exchange_t *exchange);

#endif  // MLXCEL_SERVER_CORE_FAILURE_H_
