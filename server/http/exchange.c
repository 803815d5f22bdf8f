// Exchanges: what handlers read and write, and the queue from their threads to the loop thread.
#include "server/http/exchange.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/http/response.h"

// ----------------------------------------------------------------------------------------------------------
// The queue

mlx_status_t mlx_exchange_queue_initialize(mlx_exchange_queue_t *queue) {
  memset(queue, 0, sizeof *queue);
  if (uv_mutex_init(&queue->mutex)) return mlx_error(MLX_OUT_OF_MEMORY, "cannot create a mutex");
  return NULL;
}

void mlx_exchange_queue_set_wake(mlx_exchange_queue_t *queue, uv_async_t *wake) {
  uv_mutex_lock(&queue->mutex);
  queue->wake = wake;
  uv_mutex_unlock(&queue->mutex);
}

void mlx_exchange_queue_wake(mlx_exchange_queue_t *queue) {
  uv_mutex_lock(&queue->mutex);
  if (queue->wake) uv_async_send(queue->wake);
  uv_mutex_unlock(&queue->mutex);
}

static void push(mlx_exchange_queue_t *queue, mlx_exchange_t *exchange) {
  mlx_exchange_retain(exchange);
  exchange->next = NULL;
  uv_mutex_lock(&queue->mutex);
  const bool was_empty = !queue->first;
  if (queue->last)
    queue->last->next = exchange;
  else
    queue->first = exchange;
  queue->last = exchange;
  if (was_empty && queue->wake) uv_async_send(queue->wake);
  uv_mutex_unlock(&queue->mutex);
}

mlx_exchange_t *mlx_exchange_queue_pop(mlx_exchange_queue_t *queue) {
  uv_mutex_lock(&queue->mutex);
  mlx_exchange_t *exchange = queue->first;
  if (exchange) queue->first = exchange->next;
  if (!queue->first) queue->last = NULL;
  uv_mutex_unlock(&queue->mutex);
  return exchange;
}

void mlx_exchange_queue_clear(mlx_exchange_queue_t *queue) {
  for (mlx_exchange_t *exchange; (exchange = mlx_exchange_queue_pop(queue));) mlx_exchange_release(exchange);
  uv_mutex_destroy(&queue->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Lifetime

mlx_status_t mlx_exchange_create(mlx_exchange_queue_t *queue, mlx_exchange_request_t *request,
                                 const char *remote, mlx_exchange_t **out_exchange) {
  mlx_exchange_t *exchange;
  MLX_TRY(mlx_alloc(1, sizeof *exchange, &exchange));
  if (uv_mutex_init(&exchange->mutex)) {
    mlx_free(exchange);
    return mlx_error(MLX_OUT_OF_MEMORY, "cannot create a mutex");
  }
  if (uv_cond_init(&exchange->idle)) {
    uv_mutex_destroy(&exchange->mutex);
    mlx_free(exchange);
    return mlx_error(MLX_OUT_OF_MEMORY, "cannot create a condition variable");
  }
  atomic_init(&exchange->references, 1);
  exchange->request = *request;
  exchange->keep_alive = request->keep_alive;
  memset(request, 0, sizeof *request);
  snprintf(exchange->remote, sizeof exchange->remote, "%s", remote);
  exchange->queue = queue;
  exchange->begin = mlx_seconds();
  *out_exchange = exchange;
  return NULL;
}

void mlx_exchange_retain(mlx_exchange_t *exchange) {
  atomic_fetch_add_explicit(&exchange->references, 1, memory_order_relaxed);
}

void mlx_exchange_release(mlx_exchange_t *exchange) {
  if (atomic_fetch_sub_explicit(&exchange->references, 1, memory_order_acq_rel) > 1) return;
  mlx_exchange_request_clear(&exchange->request);
  mlx_text_clear(&exchange->fields);
  mlx_text_clear(&exchange->output);
  uv_cond_destroy(&exchange->idle);
  uv_mutex_destroy(&exchange->mutex);
  mlx_free(exchange);
}

mlx_status_t mlx_exchange_create_local(const char *path, const char *body, size_t length,
                                       void (*ended)(void *user, mlx_exchange_t *exchange), void *user,
                                       mlx_exchange_t **out_exchange) {
  mlx_exchange_request_t request = {.method = "POST"};
  mlx_text_append(&request.body, body, length);
  mlx_status_t status = mlx_text_finish(&request.body);
  if (!status) status = mlx_copy_text(path, strlen(path), &request.path);
  if (!status) status = mlx_copy_text("", 0, &request.query);
  if (!status) status = mlx_exchange_create(NULL, &request, "batch", out_exchange);
  mlx_exchange_request_clear(&request);
  if (status) return status;
  (*out_exchange)->local_ended = ended;
  (*out_exchange)->local_user = user;
  return NULL;
}

const char *mlx_exchange_local_response(const mlx_exchange_t *exchange, size_t *out_length,
                                        bool *out_complete) {
  *out_length = exchange->output.length;
  *out_complete = exchange->ended && !exchange->aborted;
  return exchange->output.data ? exchange->output.data : "";
}

// ----------------------------------------------------------------------------------------------------------
// The request

const char *mlx_exchange_method(const mlx_exchange_t *exchange) { return exchange->request.method; }
const char *mlx_exchange_path(const mlx_exchange_t *exchange) { return exchange->request.path; }
const char *mlx_exchange_query(const mlx_exchange_t *exchange) { return exchange->request.query; }

const char *mlx_exchange_header(const mlx_exchange_t *exchange, const char *name) {
  return mlx_exchange_request_header(&exchange->request, name);
}

const char *mlx_exchange_body(const mlx_exchange_t *exchange, size_t *out_length) {
  *out_length = exchange->request.body.length;
  return exchange->request.body.data ? exchange->request.body.data : "";
}

void mlx_exchange_drop_body(mlx_exchange_t *exchange) { mlx_exchange_request_drop_body(&exchange->request); }

const char *mlx_exchange_remote(const mlx_exchange_t *exchange) { return exchange->remote; }
int mlx_exchange_status(const mlx_exchange_t *exchange) { return atomic_load(&exchange->status); }
void *mlx_exchange_user(const mlx_exchange_t *exchange) { return exchange->user; }
void mlx_exchange_set_user(mlx_exchange_t *exchange, void *user) { exchange->user = user; }

// ----------------------------------------------------------------------------------------------------------
// The response. Functions named *_locked need the exchange's mutex.

static bool can_write_locked(const mlx_exchange_t *exchange) {
  return !exchange->is_gone && !exchange->ended;
}

// Tells the loop thread that there are bytes, or that the response has ended.
static void announce_locked(mlx_exchange_t *exchange) {
  if (exchange->output.failed || exchange->fields.failed) exchange->ended = exchange->aborted = true;
  if (!exchange->queue) {
    if (exchange->ended) exchange->local_ended(exchange->local_user, exchange);
    return;
  }
  if (exchange->is_queued) return;
  exchange->is_queued = true;
  push(exchange->queue, exchange);
}

void mlx_exchange_set_header(mlx_exchange_t *exchange, const char *name, const char *value) {
  uv_mutex_lock(&exchange->mutex);
  if (can_write_locked(exchange) && !exchange->begun) {
    if (!strcasecmp(name, "connection"))
      exchange->keep_alive = exchange->keep_alive && strcasecmp(value, "close");
    else
      mlx_http_response_set_field(&exchange->fields, name, value);
  }
  uv_mutex_unlock(&exchange->mutex);
}

static void write_head_locked(mlx_exchange_t *exchange, int status, const char *content_type, bool has_length,
                              size_t length) {
  const mlx_exchange_request_t *request = &exchange->request;
  const bool no_body = mlx_http_response_has_no_body(status);
  exchange->begun = true;
  atomic_store(&exchange->status, status);
  exchange->has_body = !no_body && !request->is_head;
  if (!exchange->queue) return;  // the caller gets the status and the body
  exchange->is_chunked = !has_length && !no_body && !request->is_http_1_0;
  if (atomic_load(&exchange->queue->draining)) exchange->keep_alive = false;
  if (!has_length && request->is_http_1_0) exchange->keep_alive = false;  // the end of the body is its close
  mlx_http_response_write_head(&(mlx_http_response_head_t){.status = status,
                                                           .content_type = content_type,
                                                           .fields = &exchange->fields,
                                                           .is_http_1_0 = request->is_http_1_0,
                                                           .keep_alive = exchange->keep_alive,
                                                           .is_chunked = exchange->is_chunked,
                                                           .has_length = has_length && !no_body,
                                                           .length = length},
                               &exchange->output);
}

static void respond_locked(mlx_exchange_t *exchange, int status, const char *content_type, const char *body,
                           size_t length) {
  if (!can_write_locked(exchange) || exchange->begun) return;
  write_head_locked(exchange, status, content_type, true, length);
  if (exchange->has_body) mlx_text_append(&exchange->output, body, length);
  exchange->ended = true;
  announce_locked(exchange);
}

void mlx_exchange_respond(mlx_exchange_t *exchange, int status, const char *content_type, const char *body,
                          size_t length) {
  uv_mutex_lock(&exchange->mutex);
  respond_locked(exchange, status, content_type, body, length);
  uv_mutex_unlock(&exchange->mutex);
}

void mlx_exchange_begin(mlx_exchange_t *exchange, int status, const char *content_type) {
  uv_mutex_lock(&exchange->mutex);
  if (can_write_locked(exchange) && !exchange->begun) {
    write_head_locked(exchange, status, content_type, false, 0);
    announce_locked(exchange);
  }
  uv_mutex_unlock(&exchange->mutex);
}

void mlx_exchange_write(mlx_exchange_t *exchange, const char *bytes, size_t length) {
  uv_mutex_lock(&exchange->mutex);
  if (can_write_locked(exchange) && exchange->begun && exchange->has_body && length) {
    if (exchange->is_chunked)
      mlx_http_response_write_chunk(bytes, length, &exchange->output);
    else
      mlx_text_append(&exchange->output, bytes, length);
    announce_locked(exchange);
  }
  uv_mutex_unlock(&exchange->mutex);
}

void mlx_exchange_end(mlx_exchange_t *exchange) {
  uv_mutex_lock(&exchange->mutex);
  if (can_write_locked(exchange) && exchange->begun) {
    if (exchange->is_chunked && exchange->has_body) mlx_text_puts(&exchange->output, "0\r\n\r\n");
    exchange->ended = true;
    announce_locked(exchange);
  }
  uv_mutex_unlock(&exchange->mutex);
}

void mlx_exchange_abort(mlx_exchange_t *exchange) {
  uv_mutex_lock(&exchange->mutex);
  if (can_write_locked(exchange)) {
    exchange->ended = exchange->aborted = true;
    announce_locked(exchange);
  }
  uv_mutex_unlock(&exchange->mutex);
}

void mlx_exchange_refuse(mlx_exchange_t *exchange, int status, const char *message) {
  mlx_text_t body = {0};
  mlx_http_response_write_error(status, message, &body);
  uv_mutex_lock(&exchange->mutex);
  if (can_write_locked(exchange)) {
    exchange->keep_alive = false;
    if (exchange->begun || body.failed)
      exchange->ended = exchange->aborted = true;
    else
      respond_locked(exchange, status, "application/json", body.data, body.length);
  }
  uv_mutex_unlock(&exchange->mutex);
  mlx_text_clear(&body);
}

void mlx_exchange_take(mlx_exchange_t *exchange, mlx_text_t spare, mlx_exchange_output_t *out_output) {
  uv_mutex_lock(&exchange->mutex);
  *out_output = (mlx_exchange_output_t){exchange->output, exchange->begun, exchange->ended, exchange->aborted,
                                        exchange->keep_alive};
  exchange->output = spare;
  exchange->is_queued = false;
  uv_mutex_unlock(&exchange->mutex);
  exchange->sent_bytes += out_output->bytes.length;
}

// ----------------------------------------------------------------------------------------------------------
// Clients that leave

bool mlx_exchange_is_gone(const mlx_exchange_t *exchange) { return atomic_load(&exchange->is_gone); }

// Calls the handler's callback once, without the mutex.
static void call_gone_locked(mlx_exchange_t *exchange) {
  void (*const gone)(void *user) = exchange->gone;
  void *const user = exchange->gone_user;
  exchange->gone = NULL;
  if (!gone) return;
  exchange->is_calling = true;
  exchange->caller = uv_thread_self();
  uv_mutex_unlock(&exchange->mutex);
  gone(user);
  uv_mutex_lock(&exchange->mutex);
  exchange->is_calling = false;
  uv_cond_broadcast(&exchange->idle);
}

void mlx_exchange_leave(mlx_exchange_t *exchange) {
  uv_mutex_lock(&exchange->mutex);
  if (!exchange->is_gone) {
    atomic_store(&exchange->is_gone, true);
    if (!exchange->ended) call_gone_locked(exchange);
  }
  uv_mutex_unlock(&exchange->mutex);
}

void mlx_exchange_on_gone(mlx_exchange_t *exchange, void (*gone)(void *user), void *user) {
  uv_mutex_lock(&exchange->mutex);
  const uv_thread_t self = uv_thread_self();
  while (exchange->is_calling && !uv_thread_equal(&exchange->caller, &self))
    uv_cond_wait(&exchange->idle, &exchange->mutex);
  exchange->gone = gone;
  exchange->gone_user = user;
  if (exchange->is_gone && !exchange->ended) call_gone_locked(exchange);
  uv_mutex_unlock(&exchange->mutex);
}
