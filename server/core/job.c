// Moves jobs through their stages.
#include "server/core/job.h"

#include <stddef.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "server/api/fields.h"

#define QUEUE_SECONDS 30.0     // a job that waited longer for a worker is refused
#define LONG_BODY (64 * 1024)  // bytes of a body; work on more may be overtaken

mlx_status_t mlx_job_create(mlx_service_t *service, const char *endpoint, mlx_exchange_t *exchange,
                            mlx_job_t **out_job) {
  MLX_TRY(mlx_alloc(1, sizeof **out_job, out_job));
  mlx_job_t *job = *out_job;
  job->service = service;
  job->exchange = exchange;
  job->endpoint = endpoint;
  job->start = mlx_seconds();
  atomic_init(&job->users, 1);
  mlx_exchange_set_user(exchange, job);
  return NULL;
}

void mlx_job_release(mlx_job_t *job) {
  if (job && atomic_fetch_sub(&job->users, 1) == 1) mlx_free(job);
}

// ----------------------------------------------------------------------------------------------------------
// End

static void unlink_job(mlx_job_t *job) {
  uv_mutex_lock(&job->service->mutex);
  if (job->next) job->next->previous = job->previous;
  if (job->previous)
    job->previous->next = job->next;
  else
    job->service->jobs = job->next;
  uv_mutex_unlock(&job->service->mutex);
}

void mlx_job_end(mlx_job_t *job) {
  mlx_exchange_t *exchange = job->exchange;
  mlx_exchange_on_gone(exchange, NULL, NULL);
  unlink_job(job);
  job->kind->clear(job);
  if (job->model) mlx_models_put(job->service->models, job->model);
  mlx_job_release(job);
  mlx_exchange_release(exchange);
}

// Answers with the error and ends the job. Takes |status|.
static void fail(mlx_job_t *job, mlx_status_t status) {
  job->failure.status = status;
  mlx_failure_respond(&job->failure, job->error, job->exchange);
  mlx_status_free(status);
  mlx_job_end(job);
}

// ----------------------------------------------------------------------------------------------------------
// Stages

static void run_with_model(mlx_job_t *job) {
  if (atomic_load(&job->gone)) {
    mlx_job_end(job);
    return;
  }
  bool kept = false;
  mlx_budget_limit_thread(job->service->work_seconds, 0);
  mlx_status_t status = job->kind->run(job, &kept);
  mlx_budget_limit_thread(0, 0);
  if (status)
    fail(job, status);
  else if (!kept)
    mlx_job_end(job);
}

static mlx_job_t *of_work(mlx_workers_item_t *work) {
  return (mlx_job_t *)(void *)((char *)work - offsetof(mlx_job_t, work));
}

static void run_work(mlx_workers_item_t *work) { run_with_model(of_work(work)); }

static void on_model(mlx_model_waiter_t *waiter, mlx_served_model_t *model, mlx_status_t status) {
  mlx_job_t *job = (mlx_job_t *)(void *)((char *)waiter - offsetof(mlx_job_t, waiter));
  const uv_thread_t self = uv_thread_self();
  if (status) {
    if (waiter->is_full) job->failure.kind = MLX_FAILURE_QUEUE;
    fail(job, status);
    return;
  }
  job->model = model;
  job->servings = mlx_served_model_servings(model);
  job->serving = mlx_servings_at(job->servings, 0);
  job->engine = mlx_serving_engine(job->serving);
  atomic_store(&job->model_name, mlx_served_model_name(model));
  if (uv_thread_equal(&self, &job->worker)) {  // the model was loaded already
    run_with_model(job);
    return;
  }
  job->work.run = run_work;
  mlx_workers_push(job->service->workers, &job->work);
}

// Unknown fields are ignored, unless the server is strict: clients send those of other servers.
static mlx_status_t parse_body(mlx_job_t *job, const char **out_model) {
  mlx_service_t *service = job->service;
  mlx_text_t unknown = {0};
  job->unknown = service->strict ? NULL : &unknown;
  mlx_status_t status = job->kind->parse(job, out_model);
  job->unknown = NULL;
  mlx_ignored_fields_add(service->ignored, mlx_exchange_path(job->exchange), &unknown, job->exchange);
  mlx_text_clear(&unknown);
  return status;
}

static void parse_work(mlx_workers_item_t *work) {
  mlx_job_t *job = of_work(work);
  const char *model = NULL;
  if (atomic_load(&job->gone)) {
    mlx_job_end(job);
    return;
  }
  mlx_status_t status = NULL;
  if (mlx_seconds() - job->start > QUEUE_SECONDS)
    status = mlx_error(MLX_UNAVAILABLE, "the server is overloaded: the request waited %.0f s for a worker",
                       QUEUE_SECONDS);
  mlx_budget_limit_thread(job->service->work_seconds, 0);
  if (!status) status = parse_body(job, &model);
  mlx_budget_limit_thread(0, 0);
  if (status) {
    fail(job, status);
    return;
  }
  mlx_exchange_drop_body(job->exchange);  // a request may wait and run for long
  if (job->kind->answer && job->kind->answer(job, model)) {
    mlx_job_end(job);
    return;
  }
  job->worker = uv_thread_self();
  job->waiter.ready = on_model;
  mlx_models_get(job->service->models, model, &job->waiter);  // may end the job
}

mlx_status_t mlx_job_check_context(mlx_job_t *job, size_t count) {
  const mlx_engine_info_t info = mlx_engine_info(job->engine);
  const int64_t context = info.context;
  if ((int64_t)count <= context) return NULL;  // the logits of the last position give one more token
  job->failure.kind = MLX_FAILURE_CONTEXT;
  job->failure.prompt_tokens = (int64_t)count;
  job->failure.context = context;
  mlx_status_t status = mlx_error(MLX_USAGE, "the prompt has at least %zu tokens, the context holds %lld",
                                  count, (long long)context);
  if ((int64_t)count <= info.model_context)
    return mlx_status_hint(
        status, "shorten the prompt, or start the server with a larger context: -c N, at most %lld",
        (long long)info.model_context);
  return mlx_status_hint(status, "shorten the prompt: the model supports at most %lld tokens",
                         (long long)info.model_context);
}

mlx_status_t mlx_job_submit(mlx_job_t *job, mlx_task_t *tasks, size_t count) {
  bool full;
  mlx_status_t status = mlx_servings_submit(job->servings, tasks, count, &full);
  if (status || !full) return status;
  job->failure.kind = MLX_FAILURE_QUEUE;
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "too many requests are waiting"), "try again later");
}

// ----------------------------------------------------------------------------------------------------------
// Beginning

static void on_gone(void *user) {
  mlx_job_t *job = user;
  atomic_store(&job->gone, true);
  if (job->kind->on_gone) job->kind->on_gone(job);
  if (mlx_models_cancel(job->service->models, &job->waiter)) mlx_job_end(job);
}

void mlx_job_start(mlx_job_t *job, const mlx_job_kind_t *kind, void *state) {
  mlx_service_t *service = job->service;
  size_t length;
  job->kind = kind;
  job->state = state;
  atomic_fetch_add(&job->users, 1);
  mlx_exchange_retain(job->exchange);
  uv_mutex_lock(&service->mutex);
  job->next = service->jobs;
  if (job->next) job->next->previous = job;
  service->jobs = job;
  uv_mutex_unlock(&service->mutex);
  mlx_exchange_body(job->exchange, &length);
  mlx_exchange_on_gone(job->exchange, on_gone, job);
  job->work.run = parse_work;
  job->work.is_long = length > LONG_BODY;
  mlx_workers_push(service->workers, &job->work);
}

void mlx_jobs_beat(mlx_service_t *service) {
  uv_mutex_lock(&service->mutex);
  for (mlx_job_t *job = service->jobs; job; job = job->next) {
    if (job->kind->beat && atomic_load(&job->beats)) job->kind->beat(job);
  }
  uv_mutex_unlock(&service->mutex);
}
