// Server: serves models over HTTP.
//
// Threads: the loop thread, which calls mlx_server_run; a few workers; a thread that loads models; and a
// scheduler thread for each loaded model (docs/internals/server.md).
#ifndef MLXCEL_SERVER_CORE_SERVER_H_
#define MLXCEL_SERVER_CORE_SERVER_H_

#include "base/report.h"
#include "runtime/mlxcel.h"
#include "server/core/defaults.h"
#include "server/core/library_rules.h"
#include "server/core/models.h"
#include "server/events/kv_events.h"
#include "server/http/http.h"

typedef struct mlx_server mlx_server_t;

// All pointers must be valid until mlx_server_free.
typedef struct mlx_server_options {
  mlx_http_server_options_t http;  // address and limits; its callbacks are replaced
  const char *version;             // of mlxcel
  const char *const *keys;         // API keys; none: every client is allowed
  size_t key_count;
  const char *cors;  // origins that browsers may call from, separated by commas, or "*"; NULL: none
  const char
      *allowed_hosts;  // further names that clients use for this server (server/core/origin.h); NULL: none
  bool plain;          // special tokens in texts of clients are text, unless a request has parse_special
  bool sleep_mode;     // clients may put models to sleep
  bool strict;         // refuse requests with unknown fields
  mlx_request_defaults_t defaults;  // of requests
  mlx_library_rules_t library;      // what clients may do with the models
  const char *log;                  // file of the access log; NULL: none
  bool page;                        // serve the chat page
  double drain_seconds;             // after the first signal, running requests have so long to finish
  double stall_seconds;             // /health fails if a model with work completes no step for so long
  int64_t work_seconds;             // most time of the JSON, template, tokens and grammar of a request
  int64_t queue;                    // requests of a model that may wait
  uint64_t
      model_memory;     // most bytes of loaded models (server/core/models.h); 0: 3/4 of the RAM, on a GPU any
  bool refuse_larger;   // refuse a model whose weights have more
  double idle_seconds;  // without requests for so long, a model on a CPU gives its KV cache back; 0: never
  double keep_seconds;  // unload a model that had no request for so long; negative: never for that
  double prefill_share;        // as in mlx_scheduler_options_t
  const mlx_report_t *report;  // notes; called by several threads
  // How models are opened. 0 sequences: 32 on a CPU, 256 on a GPU. 0 memory, on a CPU: 2/3 of |model_memory|,
  // divided by up to 4 models. Its report is not used.
  mlx_engine_options_t engine;
  const struct mlx_secret_key *publish_key;  // of mlx_open_located; NULL: modules are not published
  const int *gpus;                           // the GPUs of each model's engines, in place of engine.gpu
  size_t gpu_count;                          // 0: one device
  size_t engines;             // of a model on each device; 0: 1. All together are at most MLX_MOST_ENGINES
  const char *chat_template;  // a format or a file, in place of the models' own; NULL: their own
  mlx_kv_events_options_t kv_events;  // of the only model; strings are borrowed
  bool stored;  // the models are those in the cache (open/stored_models.h), which come and go
  // Adds and loads models, on a thread of its own, when the server listens. Until it returns, /health and
  // most endpoints are 503. If it fails, mlx_server_run ends with its status. NULL: the server is ready.
  mlx_status_t (*prepare)(void *user, mlx_server_t *server);
  // The server is ready: signals drain it. On the loop thread. If it fails, mlx_server_run ends with its
  // status. May be NULL.
  mlx_status_t (*on_ready)(void *user, mlx_server_t *server);
  // A model was opened, in |seconds|. Called on the loading thread. May be NULL.
  void (*on_open)(void *user, const char *path, mlx_engine_t *engine, double seconds);
  // A second signal arrived: the caller should end the process at once. NULL: it is ignored.
  void (*on_second_signal)(void *user, int signal);
  void *user;
} mlx_server_options_t;
// 30 s to drain, 60 s until a stall, 10 s of work, a queue of 1024, models are kept, with the page; http as
// in server/http/http.h.
void mlx_server_options_initialize(mlx_server_options_t *out_options);

// Release with mlx_server_free.
mlx_status_t mlx_server_create(const mlx_server_options_t *options, mlx_server_t **out_server) MLX_MUST_USE;
// Before mlx_server_run: adds models and names (server/core/models.h). |name| NULL: a name made from the
// path.
mlx_status_t mlx_server_add(mlx_server_t *server, const char *path, const char *name) MLX_MUST_USE;
mlx_status_t mlx_server_add_folder(mlx_server_t *server, const char *folder) MLX_MUST_USE;
mlx_status_t mlx_server_alias(mlx_server_t *server, const char *alias, const char *name) MLX_MUST_USE;
mlx_status_t mlx_server_scan(mlx_server_t *server) MLX_MUST_USE;
size_t mlx_server_model_count(const mlx_server_t *server);
// NULL after the last one.
const char *mlx_server_model_name(const mlx_server_t *server, size_t index);
// Loads the first model now and runs its first step, so that the first request does not wait and errors are
// seen at the start. Before the server runs, or in |prepare|.
mlx_status_t mlx_server_load(mlx_server_t *server) MLX_MUST_USE;
// Binds and listens, before models are pulled and loaded: then a port in use is an error at once, and clients
// can ask whether the server is ready. *|out_port| is the port; 0 for a Unix socket.
mlx_status_t mlx_server_listen(mlx_server_t *server, int *out_port) MLX_MUST_USE;
// Serves until a signal ends it: refuses new work, finishes running requests, and returns within
// |drain_seconds|.
mlx_status_t mlx_server_run(mlx_server_t *server) MLX_MUST_USE;
void mlx_server_free(mlx_server_t *server);  // NULL is fine

#endif  // MLXCEL_SERVER_CORE_SERVER_H_
