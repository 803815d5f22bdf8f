// Models: the models that the server has. They are added before it runs, or found by a scan, and then come
// and go while it runs. A model is loaded on first use. When memory is short, the least recently used one is
// unloaded, after its requests have ended.
//
// Threads: any thread, except create and free.
#ifndef MLXCEL_SERVER_CORE_MODELS_H_
#define MLXCEL_SERVER_CORE_MODELS_H_

#include "base/report.h"
#include "server/core/servings.h"

typedef struct mlx_models mlx_models_t;
typedef struct mlx_served_model mlx_served_model_t;  // one of the models; valid as long as |mlx_models_t|

// What a scan calls for each model that it finds. |name| is the model's public name.
typedef mlx_status_t (*mlx_models_found_fn_t)(void *found_user, const char *path, const char *name);

typedef struct mlx_models_options {
  int64_t queue;  // requests of a model that may wait; besides the one that causes it to be loaded
  // Most bytes of loaded models, with their KV caches at full size; 0: until opening one fails for want of
  // memory. A model that is larger alone is served alone; if |refuse_larger|, its weights must fit.
  uint64_t memory;
  bool refuse_larger;
  double idle_seconds;   // of each serving (server/core/serving.h)
  double keep_seconds;   // unload a model that had no request for so long; negative: when memory is needed
  double prefill_share;  // as in mlx_scheduler_options_t
  double stall_seconds;  // an engine with work that completes no step for so long does not work; 0: no limit
  size_t engines;        // of each model, at most MLX_MOST_ENGINES; 0: 1
  // Opens the engine |index| of the model at |path|. *|out_chat| may be a chat template in place of the
  // model's own. Runs on its own thread, one call at a time. Releases: mlx_engine_close and mlx_chat_free.
  mlx_status_t (*open)(void *user, const char *path, size_t index, mlx_engine_t **out_engine,
                       mlx_chat_t **out_chat);
  // Tests only: makes a serving of |path|, which will use |*out_bytes|, in place of |open|.
  mlx_status_t (*make)(void *user, const char *path, mlx_serving_t **out_serving, uint64_t *out_bytes);
  // Calls |found| for each model that there is now. NULL: the models are those that were added. Called by any
  // thread, one call at a time.
  mlx_status_t (*scan)(void *user, mlx_models_found_fn_t found, void *found_user);
  // With |scan|: the path of the model that |name| means, if it is not its public name; *|out_path| is NULL
  // if there is none. Release: mlx_free. Called by any thread.
  mlx_status_t (*locate)(void *user, const char *name, char **out_path);
  void *user;
  const mlx_report_t *report;  // for notes about loading; borrowed
} mlx_models_options_t;

// Without models. Release with mlx_models_free.
mlx_status_t mlx_models_create(const mlx_models_options_t *options, mlx_models_t **out_models) MLX_MUST_USE;
// Waits for a load in progress and ends the loading thread. Requests that wait for a model get an error, now
// and later.
void mlx_models_stop(mlx_models_t *models);
// Also ends all requests of loaded models.
void mlx_models_free(mlx_models_t *models);  // NULL is fine

// Before the server runs: adds a model under |name|. NULL: the name that mlx_models_default_name makes; if
// another model has it, with the name of the folder before it ("FOLDER/NAME").
mlx_status_t mlx_models_add(mlx_models_t *models, const char *path, const char *name) MLX_MUST_USE;
// Adds every model in a folder: GGUF files, bundles, and folders with a config.json. Of a model in several
// GGUF files only the first counts. Projectors of vision models (mmproj) are no models.
mlx_status_t mlx_models_add_folder(mlx_models_t *models, const char *folder) MLX_MUST_USE;
// Another name for a model. |name| is one of its names or its path. Fails if another model has the name.
// While the server runs: on the thread that reads lists of names.
mlx_status_t mlx_models_alias(mlx_models_t *models, const char *alias, const char *name) MLX_MUST_USE;
// Updates the models with the scan: adds new ones, and leaves out those that are gone. Requests of a loaded
// model that is gone still run. Without a scan, does nothing.
mlx_status_t mlx_models_scan(mlx_models_t *models) MLX_MUST_USE;
// The public name of a path or reference, without folder, ending and number of parts. Release with mlx_free.
mlx_status_t mlx_models_default_name(const char *path, char **out_name) MLX_MUST_USE;

// A request that waits for its model. Zero-initialize.
typedef struct mlx_model_waiter {
  // Called once: with the loaded model, which the callee returns with mlx_models_put; or with NULL and a
  // status, which the callee owns. Either at once, in mlx_models_get, or later on the loading thread. It must
  // not block.
  void (*ready)(struct mlx_model_waiter *waiter, mlx_served_model_t *model, mlx_status_t status);
  bool is_local;  // not for a client: an error may name folders
  bool is_full;   // for |ready|, with a status: too many requests wait for the model
  // Owned by the models.
  struct mlx_model_waiter *next;
  mlx_served_model_t *model;  // that it waits for; NULL: it does not wait
  bool is_cancelled;
} mlx_model_waiter_t;
// Gives the model of mlx_models_choose. Requests that wait get the model in the order of their calls.
void mlx_models_get(mlx_models_t *models, const char *name, mlx_model_waiter_t *waiter);
// The request needs no model any more. True: it waited, and |ready| will not be called. Otherwise |ready| was
// called or will be; if mlx_models_get is called only later, with MLX_CANCELLED.
bool mlx_models_cancel(mlx_models_t *models, mlx_model_waiter_t *waiter);
void mlx_models_put(mlx_models_t *models, mlx_served_model_t *model);

// Ends the requests of loaded models, with an error if |abort|, and gives their memory back: at level 1 that
// of their KV caches, and of weights on a GPU; at level 2 also weights on a CPU. At level 1, files of models
// on a GPU stay in the page cache. New requests fail with MLX_UNAVAILABLE until mlx_models_wake, which loads
// the same models again. Both wait for the loading thread; MLX_UNAVAILABLE if another call waits.
mlx_status_t mlx_models_sleep(mlx_models_t *models, int level, bool abort) MLX_MUST_USE;
mlx_status_t mlx_models_wake(mlx_models_t *models) MLX_MUST_USE;
int mlx_models_sleep_level(mlx_models_t *models);  // 0: awake

size_t mlx_models_count(mlx_models_t *models);
// NULL after the last one. A scan may change the number of models between two calls.
mlx_served_model_t *mlx_models_at(mlx_models_t *models, size_t index);
// NULL if there is no such model. An unknown name causes a scan.
mlx_served_model_t *mlx_models_find(mlx_models_t *models, const char *name);
// Whether |name| is a further name of a model (mlx_models_alias), and no model's own.
bool mlx_models_is_alias(mlx_models_t *models, const char *name);
// The model of a request. |name| NULL or "": the first one. If one model was added and there is no scan, any
// name means that model. NULL if there is none.
mlx_served_model_t *mlx_models_choose(mlx_models_t *models, const char *name);
// The error of a request whose |name| is none of the models; its hint has their names.
mlx_status_t mlx_models_missing_error(mlx_models_t *models, const char *name) MLX_MUST_USE;
const char *mlx_served_model_name(const mlx_served_model_t *model);
size_t mlx_served_model_alias_count(const mlx_served_model_t *model);
const char *mlx_served_model_alias(const mlx_served_model_t *model, size_t index);
const char *mlx_served_model_path(const mlx_served_model_t *model);
int64_t mlx_served_model_created(const mlx_served_model_t *model);  // time of the file, in seconds since 1970
uint64_t mlx_served_model_size(const mlx_served_model_t *model);    // bytes on disk; 0: unknown
// The engines of a model that the caller got: never NULL.
mlx_servings_t *mlx_served_model_servings(const mlx_served_model_t *model);

// Calls |visit| for each loaded model. Models are not unloaded meanwhile.
void mlx_models_visit_loaded(mlx_models_t *models,
                             void (*visit)(void *user, mlx_served_model_t *model, mlx_servings_t *servings),
                             void *user);
// In |visit|: seconds until the model is unloaded if no request comes; negative: it stays until its memory is
// needed.
double mlx_models_seconds_left(const mlx_models_t *models, const mlx_served_model_t *model);
// How often models were loaded and unloaded.
void mlx_models_counts(mlx_models_t *models, int64_t *out_loads, int64_t *out_unloads);
// What the schedulers of all models did, also of models that are unloaded; |running| is of the loaded ones,
// |waiting| also counts tasks that their scheduler has not taken yet, and pages are 0.
mlx_scheduler_stats_t mlx_models_totals(mlx_models_t *models);

#endif  // MLXCEL_SERVER_CORE_MODELS_H_
