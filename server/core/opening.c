// Opens the models of a server through open/. See opening.h.
#include "server/core/opening.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/memory.h"
#include "open/locate.h"
#include "open/open.h"
#include "open/stored_models.h"
#include "open/texts.h"
#include "runtime/rooms.h"

#define CPU_PARALLEL 32  // sequences
#define GPU_PARALLEL 256
#define MOST_SHARES 4  // of the KV caches' memory, if several models are served

mlx_status_t mlx_opening_create(const mlx_server_options_t *options, mlx_opening_t *out) {
  *out = (mlx_opening_t){.options = options};
  MLX_TRY(mlx_cancel_create(&out->cancel));
  if (options->report) out->report = *options->report;
  out->report.cancel = out->cancel;
  return NULL;
}

void mlx_opening_clear(mlx_opening_t *opening) {
  mlx_cancel_free(opening->cancel);
  mlx_kv_events_free(opening->kv_events);
  *opening = (mlx_opening_t){0};
}

void mlx_opening_cancel(mlx_opening_t *opening) { mlx_cancel_set(opening->cancel); }

// ----------------------------------------------------------------------------------------------------------
// Sizes

static bool uses_gpu(const mlx_engine_options_t *options) {
  char target[64];
  uint64_t memory;
  if (options->device == MLX_USE_CPU) return false;
  mlx_status_t no_gpu = mlx_engine_gpu_target(options->gpu, target, sizeof target, &memory);
  mlx_status_free(no_gpu);
  return !no_gpu;
}

uint64_t mlx_opening_model_memory(const mlx_engine_options_t *options) {
  const uint64_t memory = mlx_physical_memory();
  return uses_gpu(options) || memory == UINT64_MAX ? 0 : memory / 4 * 3;
}

// Chooses the number of sequences and the memory for the device, unless the user did.
static void choose_sizes(const mlx_opening_t *opening, mlx_engine_options_t *inout) {
  const bool gpu = uses_gpu(inout);
  const uint64_t limit = opening->options->model_memory;
  if (!inout->sequences) inout->sequences = gpu ? -GPU_PARALLEL : -CPU_PARALLEL;  // by default
  if (gpu || inout->memory || mlx_physical_memory() == UINT64_MAX) return;
  // The KV cache grows as it is used: keep half of the memory for the rest of the machine, and a third of the
  // models' memory for weights.
  uint64_t caches = mlx_physical_memory() / 2;
  if (limit && limit / 3 * 2 < caches) caches = limit / 3 * 2;
  const size_t count = mlx_models_count(opening->models), shares = count < MOST_SHARES ? count : MOST_SHARES;
  inout->memory = caches / (shares ? shares : 1) / mlx_opening_engines(opening->options);
}

size_t mlx_opening_engines(const mlx_server_options_t *options) {
  const size_t gpus = options->gpu_count ? options->gpu_count : 1;
  return gpus * (options->engines ? options->engines : 1);
}

// Chooses the device of engine |index| and its part of it. Engines of one GPU are opened one after the other,
// so each gets a part of the memory that is free then; those of a CPU divide its threads.
static void choose_device(const mlx_server_options_t *options, size_t index, mlx_engine_options_t *inout) {
  const size_t each = options->engines ? options->engines : 1;
  if (options->gpu_count) inout->gpu = options->gpus[index / each];
  inout->memory_shares = (int)(each - index % each);
  if (inout->threads || each == 1) return;
  const int threads = mlx_cpu_count() / (int)each;
  inout->threads = threads ? threads : 1;
}

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t open_engine(const mlx_opening_t *opening, const char *path,
                                const mlx_engine_options_t *options, mlx_engine_t **out_engine) {
  mlx_open_times_t times;
  const unsigned long long faults = mlx_fault_count();
  MLX_TRY(mlx_open_located(path, options, opening->options->publish_key, out_engine, &times));
  if (mlx_fault_count() != faults) {  // parts of a file were read as zeros
    mlx_engine_close(*out_engine);
    *out_engine = NULL;
    return mlx_error(MLX_IO, "'%s' cannot be read: it was truncated meanwhile, or its disk has an error",
                     path);
  }
  mlx_status_t status = opening->warm ? mlx_engine_warm(*out_engine) : NULL;
  if (!status && opening->kv_events)
    status = mlx_kv_events_watch(opening->kv_events, *out_engine,
                                 mlx_served_model_name(mlx_models_at(opening->models, 0)));
  if (status) {
    mlx_engine_close(*out_engine);
    *out_engine = NULL;
    return status;
  }
  const mlx_server_options_t *o = opening->options;
  if (o->on_open) o->on_open(o->user, path, *out_engine, times.compile_seconds + times.load_seconds);
  return NULL;
}

mlx_status_t mlx_opening_open(void *opening, const char *path, size_t index, mlx_engine_t **out_engine,
                              mlx_chat_t **out_chat) {
  const mlx_opening_t *own = opening;
  const mlx_server_options_t *o = own->options;
  mlx_engine_options_t options = o->engine;
  *out_engine = NULL;
  *out_chat = NULL;
  options.report = &own->report;
  if (o->stored) MLX_TRY(mlx_stored_models_check(path));
  choose_device(o, index, &options);
  choose_sizes(own, &options);
  if (o->chat_template) MLX_TRY(mlx_find_chat(path, &options, o->chat_template, out_chat));
  mlx_status_t status = open_engine(own, path, &options, out_engine);
  if (!status) return NULL;
  mlx_chat_free(*out_chat);
  *out_chat = NULL;
  return status;
}

mlx_status_t mlx_opening_find_chat(void *opening, const char *path, mlx_chat_t **out_chat) {
  const mlx_server_options_t *o = ((const mlx_opening_t *)opening)->options;
  *out_chat = NULL;
  if (!mlx_is_file(path) && !mlx_is_dir(path)) return NULL;
  return mlx_find_chat(path, &o->engine, o->chat_template, out_chat);
}

// ----------------------------------------------------------------------------------------------------------
// Stored models

typedef struct finder {
  mlx_models_found_fn_t found;
  void *user;
} finder_t;

static mlx_status_t find_stored(void *user, const mlx_stored_model_t *model) {
  const finder_t *finder = user;
  return finder->found(finder->user, model->path, model->name);
}

mlx_status_t mlx_opening_scan(void *opening, mlx_models_found_fn_t found, void *found_user) {
  (void)opening;
  return mlx_stored_models_walk_served(find_stored, &(finder_t){found, found_user});
}

mlx_status_t mlx_opening_locate(void *opening, const char *name, char **out_path) {
  (void)opening;
  return mlx_locate_stored(name, out_path);
}
