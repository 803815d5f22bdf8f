// Errand: a request that needs a worker, and usually a loaded model. Its stages:
//
//   parse   on a worker: reads the body and names the model
//           then the model is loaded, if it is not
//   run     on a worker, with the model: answers, or passes the errand on to another thread
//
// The errand ends with mlx_errand_end, on any thread. If a stage fails, errand.c answers and ends it.
//
// Threads: an errand belongs to one thread at a time, except |gone|.
#ifndef MLXCEL_SERVER_ERRAND_H_
#define MLXCEL_SERVER_ERRAND_H_

#include <stdatomic.h>
#include <uv.h>

#include "server/failure.h"
#include "server/grammars.h"
#include "server/metrics.h"
#include "server/models.h"
#include "server/record.h"
#include "server/tool_memory.h"
#include "server/worker.h"

typedef struct mlx_errand mlx_errand_t;

// What all errands share.
typedef struct mlx_service {
  mlx_workers_t *workers;
  mlx_models_t *models;
  mlx_grammars_t *grammars;
  mlx_metrics_t *metrics;
  mlx_tool_memory_t *memory;
  // Reads the chat template of a model that is not loaded, on a worker; NULL if it has none.
  mlx_status_t (*find_chat)(void *user, const char *path, mlx_chat_t **out_chat);
  void *user;
  int64_t work_seconds;  // most time of a stage on a worker
  uv_mutex_t mutex;      // for |errands|
  mlx_errand_t *errands;
} mlx_service_t;

// The stages of one kind of errand, as constant data.
typedef struct mlx_errand_kind {
  size_t size;  // of the struct that begins with mlx_errand_t
  // *|out_model| is the model's name: borrowed until the errand ends; NULL: the server's first model.
  mlx_status_t (*parse)(mlx_errand_t *errand, const char **out_model);
  // Optional, on the worker after parse: answers a request that does not need its model to be loaded. Returns
  // false if it needs it.
  bool (*answer)(mlx_errand_t *errand, const char *model);
  // Sets *|out_kept| if it passed the errand on: the other thread calls mlx_errand_end, maybe before run
  // returns. Otherwise errand.c ends it.
  mlx_status_t (*run)(mlx_errand_t *errand, bool *out_kept);
  void (*beat)(mlx_errand_t *errand);     // twice a second, on the loop thread, after run; may be NULL
  void (*on_gone)(mlx_errand_t *errand);  // the client has left, on the loop thread; may be NULL
  void (*clear)(mlx_errand_t *errand);    // releases what the kind added; may be NULL
} mlx_errand_kind_t;

struct mlx_errand {
  const mlx_errand_kind_t *kind;
  mlx_service_t *service;    // borrowed
  mlx_exchange_t *exchange;  // retained
  mlx_record_t *record;      // retained
  mlx_model_t *model;        // of the run stage
  mlx_failure_t failure;     // a stage that fails may set its members, except the status
  void (*error)(const mlx_api_error_t *error, mlx_text_t *out);  // form of errors; NULL: OpenAI's
  atomic_bool gone;                                              // the client has left
  atomic_bool beats;                                             // |beat| may be called
  // Of errand.c.
  mlx_work_t work;
  mlx_model_waiter_t waiter;
  uv_thread_t worker;  // that runs the parse stage
  double started;
  mlx_errand_t *next, *previous;
};

// Loop thread: creates an errand for |exchange|, whose user pointer is its record. The errand is zeroed
// beyond mlx_errand_t; the caller may fill it before mlx_errand_start.
mlx_status_t mlx_errand_create(const mlx_errand_kind_t *kind, mlx_service_t *service,
                               mlx_exchange_t *exchange, mlx_errand_t **out_errand) MLX_MUST_USE;
void mlx_errand_start(mlx_errand_t *errand);
void mlx_errand_end(mlx_errand_t *errand);
// Loop thread: calls |beat| of all errands.
void mlx_errands_beat(mlx_service_t *service);
bool mlx_errands_live(mlx_service_t *service);  // any thread: there are errands

#endif  // MLXCEL_SERVER_ERRAND_H_
