// The stages of a request that scores pairs of texts: one task for each pair.
#include "server/core/rerank.h"

#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/api/openai_answer.h"
#include "server/core/json_response.h"

typedef struct rerank {
  mlx_job_t *job;
  const mlx_rerank_api_t *api;
  mlx_rerank_input_t input;
  int32_t **ids;      // [count] owned
  float *scores;      // [count] owned; until the response, before the model's activation
  int64_t tokens;     // of all pairs
  mlx_task_t *tasks;  // [count] owned
  mlx_generate_options_t options;
  atomic_bool submitted;
  mlx_workers_item_t response;
  // Scheduler thread only, until the response is written.
  mlx_after_step_t after;
  size_t done;
  mlx_status_t status;  // owned: why the first task failed
} rerank_t;

static mlx_status_t parse(mlx_job_t *job, const char **out_model) {
  rerank_t *r = job->state;
  size_t length;
  const char *body = mlx_exchange_body(job->exchange, &length);
  mlx_status_t status = mlx_rerank_parse(r->api, body, length, job->unknown, &r->input);
  if (r->input.api) job->error = r->input.api->error;
  *out_model = r->input.model;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Response

typedef struct ranked {
  size_t index;
  float score;
} ranked_t;

static int compare(const void *a, const void *b) {
  const ranked_t *x = a, *y = b;
  if (x->score > y->score || x->score < y->score) return x->score > y->score ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

// By the scores before the activation: sigmoids close to 1 can be equal although these differ.
static mlx_status_t sort(const rerank_t *r, size_t **out_order) {
  const size_t count = r->input.count;
  ranked_t *ranked;
  MLX_TRY(mlx_alloc(count, sizeof **out_order, out_order));
  MLX_TRY(mlx_alloc(count, sizeof *ranked, &ranked));
  for (size_t i = 0; i < count; ++i) ranked[i] = (ranked_t){i, r->scores[i]};
  qsort(ranked, count, sizeof *ranked, compare);
  for (size_t i = 0; i < count; ++i) (*out_order)[i] = ranked[i].index;
  mlx_free(ranked);
  return NULL;
}

// On a worker.
static void respond(mlx_workers_item_t *work) {
  rerank_t *r = (rerank_t *)(void *)((char *)work - offsetof(rerank_t, response));
  mlx_text_t body = {0};
  size_t *order = NULL;
  if (!r->status) r->status = sort(r, &order);
  if (r->status) {
    const mlx_failure_t failure = {.kind = MLX_FAILURE_RUN, .status = r->status};
    mlx_failure_respond(&failure, r->job->error, r->job->exchange);
  } else {
    if (!r->input.raw) mlx_engine_activate_scores(r->job->engine, r->scores, r->input.count);
    r->input.api->write(&(mlx_rerank_result_t){.input = &r->input,
                                               .model = mlx_served_model_name(r->job->model),
                                               .id = r->job->request_id,
                                               .scores = r->scores,
                                               .order = order,
                                               .created = (int64_t)time(NULL),
                                               .tokens = r->tokens},
                        &body);
    mlx_respond_json(r->job->exchange, 200, &body);
  }
  mlx_free(order);
  mlx_job_end(r->job);
}

static void after_step(mlx_after_step_t *after) {
  rerank_t *r = (rerank_t *)(void *)((char *)after - offsetof(rerank_t, after));
  if (r->done == r->input.count) mlx_workers_push(r->job->service->workers, &r->response);
}

static void on_done(mlx_task_t *task, const mlx_generation_t *g, mlx_status_t status) {
  rerank_t *r = task->user;
  mlx_serving_after_step(task->serving, &r->after);
  ++r->done;
  if (!status && !g->embedding) status = mlx_error(MLX_CANCELLED, "the request was cancelled");
  if (!status) r->scores[task - r->tasks] = g->embedding[0];
  r->status = mlx_status_join(r->status, status);
}

// ----------------------------------------------------------------------------------------------------------
// Run

static mlx_status_t make_tasks(rerank_t *r) {
  const size_t count = r->input.count;
  MLX_TRY(mlx_engine_check_reranker(r->job->engine));
  mlx_generate_options_initialize(&r->options);
  r->options.embed = true;
  r->after.run = after_step;
  r->response.run = respond;
  MLX_TRY(mlx_alloc(count, sizeof *r->ids, &r->ids));
  MLX_TRY(mlx_alloc(count, sizeof *r->scores, &r->scores));
  MLX_TRY(mlx_alloc(count, sizeof *r->tasks, &r->tasks));
  for (size_t i = 0; i < count; ++i) {
    size_t tokens;
    MLX_TRY(mlx_engine_tokenize_pair(r->job->engine, &r->input.pairs[i], &r->ids[i], &tokens));
    r->tokens += (int64_t)tokens;
    r->tasks[i] = (mlx_task_t){.serving = r->job->serving,
                               .ids = r->ids[i],
                               .count = tokens,
                               .options = &r->options,
                               .on_done = on_done,
                               .user = r};
  }
  return NULL;
}

static void on_gone(mlx_job_t *job) {
  rerank_t *r = job->state;
  if (!atomic_load(&r->submitted)) return;
  for (size_t i = 0; i < r->input.count; ++i) mlx_serving_cancel(&r->tasks[i]);
}

static mlx_status_t run(mlx_job_t *job, bool *out_kept) {
  rerank_t *r = job->state;
  MLX_TRY(make_tasks(r));
  atomic_store(&job->prompt_tokens, r->tokens);
  *out_kept = true;
  atomic_store(&r->submitted, true);
  if (atomic_load(&job->gone)) on_gone(job);
  mlx_status_t status = mlx_job_submit(job, r->tasks, r->input.count);
  if (status) *out_kept = false;
  return status;
}

static void clear(mlx_job_t *job) {
  rerank_t *r = job->state;
  for (size_t i = 0; r->ids && i < r->input.count; ++i) mlx_engine_free_ids(r->ids[i]);
  mlx_free(r->ids);
  mlx_free(r->scores);
  mlx_free(r->tasks);
  mlx_status_free(r->status);
  mlx_rerank_input_clear(&r->input);
  mlx_free(r);
}

static const mlx_job_kind_t rerank_kind = {.parse = parse, .run = run, .on_gone = on_gone, .clear = clear};

mlx_status_t mlx_rerank_start(mlx_job_t *job, const mlx_rerank_api_t *api) {
  rerank_t *r;
  MLX_TRY(mlx_alloc(1, sizeof *r, &r));
  r->job = job;
  r->api = api;
  mlx_job_start(job, &rerank_kind, r);
  return NULL;
}
