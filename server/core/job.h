// Job: a request of a client, from its arrival to its line in the access log.
//
// route.c makes a job for each request; its counts are for the log and the metrics. A request that needs a
// worker, and usually a loaded model, also passes these stages:
//
//   parse   on a worker: reads the body and names the model
//           then the model is loaded, if it is not
//   run     on a worker, with the model: answers, or passes the job on to another thread
//
// The stages end with mlx_job_end, on any thread. If one of them fails, job.c answers and ends them.
//
// Threads: a job belongs to one thread at a time, except its atomic members.
#ifndef MLXCEL_SERVER_CORE_JOB_H_
#define MLXCEL_SERVER_CORE_JOB_H_

#include <stdatomic.h>
#include <uv.h>

#include "server/core/defaults.h"
#include "server/core/failure.h"
#include "server/core/grammars.h"
#include "server/core/ignored_fields.h"
#include "server/core/library_rules.h"
#include "server/core/metrics.h"
#include "server/core/models.h"
#include "server/core/vllm_metrics.h"
#include "server/core/worker.h"
#include "server/tools/tool_memory.h"

#define MLX_MAX_REQUEST_ID 128  // bytes

typedef struct mlx_job mlx_job_t;

// What all jobs share.
typedef struct mlx_service {
  mlx_workers_t *workers;
  mlx_models_t *models;
  mlx_grammars_t *grammars;
  mlx_metrics_t *metrics;
  mlx_vllm_metrics_t *vllm;
  mlx_tool_memory_t *memory;
  struct mlx_opening *opening;  // server/core/opening.h
  mlx_ignored_fields_t *ignored;
  mlx_stored_responses_t *stored;
  mlx_library_t *library;
  mlx_request_defaults_t defaults;
  bool sleep_mode;       // clients may put models to sleep
  bool strict;           // unknown fields are refused
  bool plain;            // special tokens in texts of clients are text, unless a request has parse_special
  int64_t work_seconds;  // most time of a stage on a worker
  uv_mutex_t mutex;      // for |jobs|
  mlx_job_t *jobs;       // that have stages
} mlx_service_t;

// The stages of one kind of job, as constant data.
typedef struct mlx_job_kind {
  // *|out_model| is the model's name: borrowed until the job ends; NULL: the server's first model.
  mlx_status_t (*parse)(mlx_job_t *job, const char **out_model);
  // Optional, on the worker after parse: answers a request that does not need its model to be loaded. Returns
  // false if it needs it.
  bool (*answer)(mlx_job_t *job, const char *model);
  // Sets *|out_kept| if it passed the job on: the other thread calls mlx_job_end, maybe before run returns.
  // Otherwise job.c ends it.
  mlx_status_t (*run)(mlx_job_t *job, bool *out_kept);
  void (*beat)(mlx_job_t *job);     // twice a second, on the loop thread, after run; may be NULL
  void (*on_gone)(mlx_job_t *job);  // the client has left, on the loop thread; may be NULL
  void (*clear)(mlx_job_t *job);    // releases |state|
} mlx_job_kind_t;

struct mlx_job {
  mlx_service_t *service;    // borrowed
  mlx_exchange_t *exchange;  // retained by the stages
  // For the log and the metrics.
  const char *endpoint;                     // constant: "chat"
  double start;                             // mlx_seconds
  char request_id[MLX_MAX_REQUEST_ID + 1];  // the client's or made here; also in the response
  _Atomic(const char *) model_name;         // NULL: none
  _Atomic int64_t prompt_tokens, cached_tokens, output_tokens;
  _Atomic int64_t first_token_us;  // microseconds until the first token; 0: none

  // Of the stages.
  const mlx_job_kind_t *kind;
  void *state;          // of the kind
  mlx_text_t *unknown;  // in the parse stage: gets the paths of unknown fields; NULL: they are refused
  void (*error)(const mlx_api_error_t *error, mlx_text_t *out);  // form of errors; set by route.c
  mlx_failure_t failure;      // a stage that fails may set its members, except the status
  mlx_served_model_t *model;  // of the run stage, and what it has:
  mlx_servings_t *servings;
  mlx_serving_t *serving;      // its first one; the tasks of the job may run on another
  const mlx_engine_t *engine;  // that of |serving|
  atomic_bool gone;            // the client has left
  atomic_bool beats;           // |beat| may be called
  // Of job.c.
  atomic_int users;
  mlx_workers_item_t work;
  mlx_model_waiter_t waiter;
  uv_thread_t worker;  // that runs the parse stage
  mlx_job_t *next, *previous;
};

// Loop thread: a job without stages for |exchange|, which gets it as its user pointer. The exchange has the
// only reference.
mlx_status_t mlx_job_create(mlx_service_t *service, const char *endpoint, mlx_exchange_t *exchange,
                            mlx_job_t **out_job) MLX_MUST_USE;
void mlx_job_release(mlx_job_t *job);  // NULL is fine
// Loop thread: begins the stages of |kind|, which own |state|.
void mlx_job_start(mlx_job_t *job, const mlx_job_kind_t *kind, void *state);
void mlx_job_end(mlx_job_t *job);
// In the run stage: fails, and fills |failure|, if |count| tokens do not fit into the model's context.
mlx_status_t mlx_job_check_context(mlx_job_t *job, size_t count) MLX_MUST_USE;
// In the run stage: submits the tasks. Fails, and fills |failure|, if too many requests wait.
mlx_status_t mlx_job_submit(mlx_job_t *job, mlx_task_t *tasks, size_t count) MLX_MUST_USE;
// Loop thread: calls |beat| of all jobs.
void mlx_jobs_beat(mlx_service_t *service);

#endif  // MLXCEL_SERVER_CORE_JOB_H_
