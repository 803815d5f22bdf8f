// Exchange: a request and its response. The thread that answers formats the response into a buffer; the loop
// thread takes the bytes and writes them to the client.
//
// This header is for the HTTP layer. server/http/http.h declares the functions of handlers.
//
// Threads: fields under "Loop thread" belong to the loop thread. |mutex| guards the fields under it. A thread
// that holds an exchange's mutex may lock the queue's, not the other way around.
#ifndef MLXCEL_SERVER_HTTP_EXCHANGE_H_
#define MLXCEL_SERVER_HTTP_EXCHANGE_H_

#include <stdatomic.h>

#include "server/http/http.h"
#include "server/http/request.h"
#include "uv.h"

// The exchanges that have bytes for the loop thread.
typedef struct mlx_exchange_queue {
  uv_mutex_t mutex;
  mlx_exchange_t *first, *last;  // each holds a reference
  uv_async_t *wake;              // NULL: the loop thread does not run any more
  atomic_bool draining;          // responses that begin now end their connection
  mlx_http_body_budget_t bodies;
} mlx_exchange_queue_t;

struct mlx_exchange {
  atomic_int references;
  mlx_exchange_request_t
      request;  // constant once the handler has the exchange, except that it may drop the body
  char remote[64];
  void *user;
  mlx_exchange_queue_t *queue;  // NULL: a request without a connection
  // Of a request without a connection, else NULL.
  void (*local_ended)(void *user, mlx_exchange_t *exchange);
  void *local_user;

  // Loop thread
  void *connection;     // NULL once the exchange has ended
  double begin;         // mlx_seconds of the request's first byte
  uint64_t sent_bytes;  // bytes of the response that were taken

  uv_mutex_t mutex;
  uv_cond_t idle;        // signalled when a call of |gone| has returned
  mlx_exchange_t *next;  // in the queue
  bool is_queued;        // the loop thread will take the output without a further wake-up
  mlx_text_t fields;     // header lines of the response
  mlx_text_t output;     // bytes that the loop thread has not taken
  bool begun, ended, aborted;
  bool is_chunked, has_body;
  bool keep_alive;  // the connection stays open after the response
  bool is_calling;  // |gone| is being called, by |caller|
  uv_thread_t caller;
  void (*gone)(void *user);
  void *gone_user;
  atomic_bool is_gone;
  atomic_int status;
};

// What the loop thread takes from an exchange.
typedef struct mlx_exchange_output {
  mlx_text_t bytes;  // owned
  bool begun, ended, aborted, keep_alive;
} mlx_exchange_output_t;

// Takes ownership of the request. The caller has the first reference.
mlx_status_t mlx_exchange_create(mlx_exchange_queue_t *queue, mlx_exchange_request_t *request,
                                 const char *remote, mlx_exchange_t **out_exchange) MLX_MUST_USE;
// Loop thread: the bytes since the last call. |spare| is an empty buffer for the exchange to use; it may be
// zero.
void mlx_exchange_take(mlx_exchange_t *exchange, mlx_text_t spare, mlx_exchange_output_t *out_output);
// Loop thread: answers with an error of the HTTP layer and ends the connection. If a response has begun, it
// is aborted; if it has ended, nothing happens.
void mlx_exchange_refuse(mlx_exchange_t *exchange, int status, const char *message);
// Loop thread: the client has left. Calls the handler's callback unless the response has ended.
void mlx_exchange_leave(mlx_exchange_t *exchange);

mlx_status_t mlx_exchange_queue_initialize(mlx_exchange_queue_t *out_queue) MLX_MUST_USE;
void mlx_exchange_queue_set_wake(mlx_exchange_queue_t *queue, uv_async_t *wake);
void mlx_exchange_queue_wake(mlx_exchange_queue_t *queue);  // any thread
// Loop thread: the first exchange, whose reference moves to the caller; NULL if the queue is empty.
mlx_exchange_t *mlx_exchange_queue_pop(mlx_exchange_queue_t *queue);
void mlx_exchange_queue_clear(mlx_exchange_queue_t *queue);

#endif  // MLXCEL_SERVER_HTTP_EXCHANGE_H_
