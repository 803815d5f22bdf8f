// Moves errands through their stages.
#include "server/errand.h"

#include <stddef.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"

#define QUEUE_SECONDS 30.0  // an errand that waited longer for a worker is refused

// ----------------------------------------------------------------------------------------------------------
// End

static void unlink_errand(mlx_errand_t *e) {
  uv_mutex_lock(&e->service->mutex);
  if (e->next) e->next->previous = e->previous;
  if (e->previous)
    e->previous->next = e->next;
  else
    e->service->errands = e->next;
  uv_mutex_unlock(&e->service->mutex);
}

void mlx_errand_end(mlx_errand_t *e) {
  mlx_exchange_on_gone(e->exchange, NULL, NULL);
  unlink_errand(e);
  if (e->kind->clear) e->kind->clear(e);
  if (e->model) mlx_models_put(e->service->models, e->model);
  mlx_record_release(e->record);
  mlx_exchange_release(e->exchange);
  mlx_free(e);
}

// Answers with the error and ends the errand. Takes |status|.
static void fail(mlx_errand_t *e, mlx_status_t status) {
  e->failure.status = status;
  mlx_failure_respond(&e->failure, e->error, e->exchange);
  mlx_status_free(status);
  mlx_errand_end(e);
}

// ----------------------------------------------------------------------------------------------------------
// Stages

static void run_with_model(mlx_errand_t *e) {
  if (atomic_load(&e->gone)) {
    mlx_errand_end(e);
    return;
  }
  bool kept = false;
  mlx_budget_limit_thread(e->service->work_seconds, 0);
  mlx_status_t status = e->kind->run(e, &kept);
  mlx_budget_limit_thread(0, 0);
  if (status)
    fail(e, status);
  else if (!kept)
    mlx_errand_end(e);
}

static mlx_errand_t *of_work(mlx_work_t *work) {
  return (mlx_errand_t *)(void *)((char *)work - offsetof(mlx_errand_t, work));
}

static void run_work(mlx_work_t *work) { run_with_model(of_work(work)); }

static void on_model(mlx_model_waiter_t *waiter, mlx_model_t *model, mlx_status_t status) {
  mlx_errand_t *e = (mlx_errand_t *)(void *)((char *)waiter - offsetof(mlx_errand_t, waiter));
  const uv_thread_t self = uv_thread_self();
  if (status) {
    if (waiter->is_full) e->failure.kind = MLX_FAILURE_QUEUE;
    fail(e, status);
    return;
  }
  e->model = model;
  atomic_store(&e->record->model, mlx_model_name(model));
  if (uv_thread_equal(&self, &e->worker)) {  // the model was loaded already
    run_with_model(e);
    return;
  }
  e->work.run = run_work;
  mlx_workers_push(e->service->workers, &e->work);
}

static void parse_work(mlx_work_t *work) {
  mlx_errand_t *e = of_work(work);
  const char *model = NULL;
  if (atomic_load(&e->gone)) {
    mlx_errand_end(e);
    return;
  }
  mlx_status_t status = NULL;
  if (mlx_seconds() - e->started > QUEUE_SECONDS)
    status = mlx_error(MLX_UNAVAILABLE, "the server is overloaded: the request waited %.0f s for a worker",
                       QUEUE_SECONDS);
  mlx_budget_limit_thread(e->service->work_seconds, 0);
  if (!status) status = e->kind->parse(e, &model);
  mlx_budget_limit_thread(0, 0);
  if (status) {
    fail(e, status);
    return;
  }
  mlx_exchange_drop_body(e->exchange);  // a request may wait and run for long
  if (e->kind->answer && e->kind->answer(e, model)) {
    mlx_errand_end(e);
    return;
  }
  e->worker = uv_thread_self();
  e->waiter.ready = on_model;
  mlx_models_get(e->service->models, model, &e->waiter);  // may end the errand
}

// ----------------------------------------------------------------------------------------------------------
// Beginning

mlx_status_t mlx_errand_create(const mlx_errand_kind_t *kind, mlx_service_t *service,
                               mlx_exchange_t *exchange, mlx_errand_t **out_errand) {
  MLX_TRY(mlx_alloc(1, kind->size, out_errand));
  mlx_errand_t *e = *out_errand;
  e->kind = kind;
  e->service = service;
  e->exchange = exchange;
  e->record = mlx_exchange_user(exchange);
  e->started = mlx_seconds();
  mlx_record_retain(e->record);
  mlx_exchange_retain(exchange);
  uv_mutex_lock(&service->mutex);
  e->next = service->errands;
  if (e->next) e->next->previous = e;
  service->errands = e;
  uv_mutex_unlock(&service->mutex);
  return NULL;
}

static void on_gone(void *user) {
  mlx_errand_t *e = user;
  atomic_store(&e->gone, true);
  if (e->kind->on_gone) e->kind->on_gone(e);
  if (mlx_models_cancel(e->service->models, &e->waiter)) mlx_errand_end(e);
}

void mlx_errand_start(mlx_errand_t *e) {
  mlx_exchange_on_gone(e->exchange, on_gone, e);
  e->work.run = parse_work;
  mlx_workers_push(e->service->workers, &e->work);
}

void mlx_errands_beat(mlx_service_t *service) {
  uv_mutex_lock(&service->mutex);
  for (mlx_errand_t *e = service->errands; e; e = e->next) {
    if (e->kind->beat && atomic_load(&e->beats)) e->kind->beat(e);
  }
  uv_mutex_unlock(&service->mutex);
}

bool mlx_errands_live(mlx_service_t *service) {
  uv_mutex_lock(&service->mutex);
  const bool live = service->errands != NULL;
  uv_mutex_unlock(&service->mutex);
  return live;
}
