// Creates the parts of the server, and ends them in order.
#include "server/core/server.h"

#include <signal.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/library.h"
#include "server/core/opening.h"
#include "server/core/route.h"
#include "server/core/server_parts.h"

#define WORKERS 4
#define CACHED_GRAMMARS 64
#define TOOL_MEMORY ((size_t)64 << 20)  // bytes
#define STORED_RESPONSES 1024
#define STORED_BYTES ((size_t)64 << 20)
#define TICK_SECONDS 0.5
#define END_SECONDS 5.0        // most time for scheduler threads to end
#define LEAST_END_SECONDS 3.0  // also if the drain is shorter

struct mlx_server {
  mlx_server_options_t options;
  mlx_site_t site;
  mlx_opening_t opening;
  // Loop thread.
  double drain_start;  // 0: not yet
  mlx_status_t ready_status;
  // Of the thread that runs options.prepare.
  mlx_status_t prepare_status;
};

void mlx_server_options_initialize(mlx_server_options_t *out) {
  *out = (mlx_server_options_t){.version = "",
                                .page = true,
                                .drain_seconds = 30,
                                .stall_seconds = 60,
                                .work_seconds = 10,
                                .idle_seconds = 300,
                                .keep_seconds = -1,
                                .queue = 1024};
  mlx_engine_options_initialize(&out->engine);
  mlx_http_server_options_initialize(&out->http);
}

// ----------------------------------------------------------------------------------------------------------
// Loop thread

static void on_request(void *user, mlx_exchange_t *exchange) {
  mlx_route_request(&((mlx_server_t *)user)->site, exchange);
}

static void on_refuse(void *user, mlx_exchange_t *exchange, int status, const char *message) {
  mlx_route_refuse(&((mlx_server_t *)user)->site, exchange, status, message);
}

static bool is_reserved(void *user, const mlx_exchange_t *exchange) {
  (void)user;
  return mlx_route_is_reserved(exchange);
}

static void on_end(void *user, const mlx_exchange_t *exchange, double seconds, uint64_t sent_bytes,
                   bool gone) {
  mlx_route_ended(&((mlx_server_t *)user)->site, exchange, seconds, sent_bytes, gone);
}

static void on_signal(void *user, int signal) {
  mlx_server_t *s = user;
  if (s->site.draining) {
    // A terminal that closes may send SIGHUP twice: from the shell and from the kernel.
    if (s->options.on_second_signal && signal != SIGHUP) s->options.on_second_signal(s->options.user, signal);
    return;
  }
  s->site.draining = true;
  s->drain_start = mlx_seconds();
  mlx_http_server_drain(s->site.http);
  mlx_report_note(s->options.report, "shutting down within %.0f s: running requests may finish",
                  s->options.drain_seconds);
}

static void on_ready(void *user) {
  mlx_server_t *s = user;
  s->site.ready = true;
  if (s->options.on_ready) s->ready_status = s->options.on_ready(s->options.user, s);
  if (s->ready_status) mlx_http_server_stop(s->site.http);
}

// The part of the drain in which scheduler threads end.
static double end_seconds(const mlx_server_t *s) {
  const double half = s->options.drain_seconds / 2;
  return half < END_SECONDS ? half : END_SECONDS;
}

// The HTTP server ends by itself when its last connection is closed: then all responses were read.
static void on_tick(void *user) {
  mlx_server_t *s = user;
  mlx_jobs_beat(&s->site.service);
  if (s->site.draining && mlx_seconds() - s->drain_start >= s->options.drain_seconds - end_seconds(s))
    mlx_http_server_stop(s->site.http);
}

// ----------------------------------------------------------------------------------------------------------
// Beginning

static mlx_status_t create_parts(mlx_server_t *s) {
  const mlx_server_options_t *o = &s->options;
  mlx_service_t *service = &s->site.service;
  const mlx_models_options_t models = {.queue = o->queue,
                                       .memory = o->model_memory,
                                       .refuse_larger = o->refuse_larger,
                                       .idle_seconds = o->idle_seconds,
                                       .keep_seconds = o->keep_seconds,
                                       .prefill_share = o->prefill_share,
                                       .stall_seconds = o->stall_seconds,
                                       .engines = mlx_opening_engines(o),
                                       .open = mlx_opening_open,
                                       .scan = o->stored ? mlx_opening_scan : NULL,
                                       .locate = o->stored ? mlx_opening_locate : NULL,
                                       .user = &s->opening,
                                       .report = o->report};
  MLX_TRY(mlx_opening_create(o, &s->opening));
  service->opening = &s->opening;
  service->plain = o->plain;
  service->strict = o->strict;
  service->sleep_mode = o->sleep_mode;
  service->defaults = o->defaults;
  service->work_seconds = o->work_seconds;
  s->site.version = o->version;
  s->site.keys = o->keys;
  s->site.key_count = o->key_count;
  s->site.cors = o->cors;
  s->site.host = o->http.unix_path ? NULL : o->http.host;
  s->site.allowed_hosts = o->allowed_hosts;
  s->site.page = o->page;
  s->site.start = mlx_seconds();
  s->site.started = (int64_t)time(NULL);
  MLX_TRY(mlx_metrics_create(&service->metrics));
  MLX_TRY(mlx_vllm_metrics_create(&service->vllm));
  MLX_TRY(mlx_ignored_fields_create(o->report, &service->ignored));
  MLX_TRY(mlx_grammars_create(CACHED_GRAMMARS, &service->grammars));
  MLX_TRY(mlx_tool_memory_create(TOOL_MEMORY, &service->memory));
  MLX_TRY(mlx_stored_responses_create(STORED_RESPONSES, STORED_BYTES, &service->stored));
  MLX_TRY(mlx_library_create(&o->library, &service->library));
  MLX_TRY(mlx_models_create(&models, &service->models));
  s->opening.models = service->models;
  MLX_TRY(mlx_workers_create(WORKERS, &service->workers));
  return o->log ? mlx_access_log_create(o->log, o->report, &s->site.log) : NULL;
}

mlx_status_t mlx_server_create(const mlx_server_options_t *options, mlx_server_t **out_server) {
  mlx_server_t *s;
  *out_server = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  s->options = *options;
  if (!s->options.model_memory) s->options.model_memory = mlx_opening_model_memory(&options->engine);
  uv_mutex_init(&s->site.service.mutex);
  mlx_status_t status = create_parts(s);
  if (status) {
    mlx_server_free(s);
    return status;
  }
  *out_server = s;
  return NULL;
}

mlx_status_t mlx_server_add(mlx_server_t *s, const char *path, const char *name) {
  return mlx_models_add(s->site.service.models, path, name);
}

mlx_status_t mlx_server_add_folder(mlx_server_t *s, const char *folder) {
  return mlx_models_add_folder(s->site.service.models, folder);
}

mlx_status_t mlx_server_alias(mlx_server_t *s, const char *alias, const char *name) {
  return mlx_models_alias(s->site.service.models, alias, name);
}

size_t mlx_server_model_count(const mlx_server_t *s) { return mlx_models_count(s->site.service.models); }

const char *mlx_server_model_name(const mlx_server_t *s, size_t index) {
  const mlx_served_model_t *model = mlx_models_at(s->site.service.models, index);
  return model ? mlx_served_model_name(model) : NULL;
}

mlx_status_t mlx_server_scan(mlx_server_t *s) { return mlx_models_scan(s->site.service.models); }

typedef struct first_load {
  mlx_model_waiter_t waiter;
  mlx_served_model_t *model;
  mlx_status_t status;
  uv_sem_t done;
} first_load_t;

static void on_first_load(mlx_model_waiter_t *waiter, mlx_served_model_t *model, mlx_status_t status) {
  first_load_t *load = (first_load_t *)(void *)waiter;
  load->model = model;
  load->status = status;
  uv_sem_post(&load->done);
}

mlx_status_t mlx_server_load(mlx_server_t *s) {
  first_load_t load = {.waiter = {.ready = on_first_load, .is_local = true}};
  uv_sem_init(&load.done, 0);
  s->opening.warm = true;
  mlx_models_get(s->site.service.models, NULL, &load.waiter);
  uv_sem_wait(&load.done);
  s->opening.warm = false;
  uv_sem_destroy(&load.done);
  if (load.model) mlx_models_put(s->site.service.models, load.model);
  return load.status;
}

mlx_status_t mlx_server_listen(mlx_server_t *s, int *out_port) {
  mlx_http_server_options_t http = s->options.http;
  http.on_request = on_request;
  http.on_refuse = on_refuse;
  http.is_reserved = is_reserved;
  http.on_ready = on_ready;
  http.on_signal = on_signal;
  http.on_end = on_end;
  http.user = s;
  MLX_TRY(mlx_http_server_create(&http, &s->site.http));
  MLX_TRY(mlx_http_server_set_timer(s->site.http, TICK_SECONDS, on_tick, s));
  *out_port = mlx_http_server_port(s->site.http);
  const mlx_kv_events_options_t *events = &s->options.kv_events;
  if (!events->endpoint) return NULL;
  MLX_TRY(mlx_kv_events_create(events, &s->opening.kv_events));
  mlx_report_note(s->options.report, "KV events on port %d", mlx_kv_events_port(s->opening.kv_events));
  const int replay = mlx_kv_events_replay_port(s->opening.kv_events);
  if (replay) mlx_report_note(s->options.report, "replay of KV events on port %d", replay);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// End

// Ends all jobs. Each part ends before the parts that it uses. Scheduler threads still push work to the
// workers, which then runs on the scheduler threads.
static void end_jobs(mlx_server_t *s) {
  mlx_service_t *service = &s->site.service;
  if (service->models) {
    mlx_opening_cancel(&s->opening);
    mlx_models_stop(service->models);
  }
  mlx_workers_stop(service->workers);
  mlx_models_free(service->models);
  service->models = NULL;
  mlx_workers_free(service->workers);
  service->workers = NULL;
}

// Ends the process if the parts do not end: a device that is stuck never returns.
typedef struct watchdog {
  const mlx_server_options_t *options;
  double seconds;  // until then
  uv_thread_t thread;
  uv_mutex_t mutex;
  uv_cond_t wake;
  bool done, started;
} watchdog_t;

static void watch(void *user) {
  watchdog_t *dog = user;
  uv_mutex_lock(&dog->mutex);
  while (!dog->done && !uv_cond_timedwait(&dog->wake, &dog->mutex, (uint64_t)(dog->seconds * 1e9))) continue;
  const bool done = dog->done;
  uv_mutex_unlock(&dog->mutex);
  if (done) return;
  mlx_report_note(dog->options->report, "a model does not respond; ending at once");
  dog->options->on_second_signal(dog->options->user, SIGTERM);
}

static void end_watched(mlx_server_t *s) {
  const double left = s->drain_start + s->options.drain_seconds - mlx_seconds();
  watchdog_t dog = {.options = &s->options, .seconds = left < END_SECONDS ? left : END_SECONDS};
  if (!s->site.draining) dog.seconds = END_SECONDS;
  if (dog.seconds < LEAST_END_SECONDS) dog.seconds = LEAST_END_SECONDS;
  uv_mutex_init(&dog.mutex);
  uv_cond_init(&dog.wake);
  dog.started = s->options.on_second_signal && !uv_thread_create(&dog.thread, watch, &dog);
  end_jobs(s);
  uv_mutex_lock(&dog.mutex);
  dog.done = true;
  uv_cond_signal(&dog.wake);
  uv_mutex_unlock(&dog.mutex);
  if (dog.started) uv_thread_join(&dog.thread);
  uv_cond_destroy(&dog.wake);
  uv_mutex_destroy(&dog.mutex);
}

mlx_site_t *mlx_server_site(mlx_server_t *s) { return &s->site; }

void mlx_server_end(mlx_server_t *s) { end_jobs(s); }

static void prepare(void *user) {
  mlx_server_t *s = user;
  s->prepare_status = s->options.prepare(s->options.user, s);
  if (s->prepare_status)
    mlx_http_server_stop(s->site.http);
  else
    mlx_http_server_ready(s->site.http);
}

mlx_status_t mlx_server_run(mlx_server_t *s) {
  // Compilers and templates nest deeply.
  const uv_thread_options_t large = {.flags = UV_THREAD_HAS_STACK_SIZE, .stack_size = (size_t)8 << 20};
  uv_thread_t thread;
  const int error = s->options.prepare ? uv_thread_create_ex(&thread, &large, prepare, s) : 0;
  if (error) return mlx_error(MLX_OUT_OF_MEMORY, "cannot start a thread: %s", uv_strerror(error));
  if (!s->options.prepare) mlx_http_server_ready(s->site.http);
  mlx_status_t status = mlx_http_server_run(s->site.http);
  if (s->options.prepare) uv_thread_join(&thread);
  end_watched(s);
  return mlx_status_join(mlx_status_join(s->prepare_status, s->ready_status), status);
}

void mlx_server_free(mlx_server_t *s) {
  if (!s) return;
  end_jobs(s);
  mlx_http_server_free(s->site.http);
  mlx_access_log_free(s->site.log);
  mlx_opening_clear(&s->opening);
  mlx_grammars_free(s->site.service.grammars);
  mlx_tool_memory_free(s->site.service.memory);
  mlx_stored_responses_free(s->site.service.stored);
  mlx_library_free(s->site.service.library);
  mlx_metrics_free(s->site.service.metrics);
  mlx_vllm_metrics_free(s->site.service.vllm);
  mlx_ignored_fields_free(s->site.service.ignored);
  uv_mutex_destroy(&s->site.service.mutex);
  mlx_free(s);
}
