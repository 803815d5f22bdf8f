// Models: the models that the server has. A model is loaded on first use. When memory is short, the least
// recently used one is unloaded, after its requests have ended.
//
// Threads: any thread, except create and free.
#ifndef MLXCEL_SERVER_MODELS_H_
#define MLXCEL_SERVER_MODELS_H_

#include "base/report.h"
#include "server/serving.h"

typedef struct mlx_models mlx_models_t;
typedef struct mlx_model mlx_model_t;  // one of the models; valid as long as |mlx_models_t|

typedef struct mlx_models_options {
  int64_t queue;  // requests of a model that may wait; besides the one that causes it to be loaded
  // Most bytes of loaded models, with their KV caches at full size; 0: until opening one fails for want of
  // memory. A model that is larger alone is served alone; if |refuse_larger|, its weights must fit.
  uint64_t memory;
  bool refuse_larger;
  // Opens the model at |path|. *|out_chat| may be a chat template in place of the model's own. Runs on its
  // own thread, one call at a time. Releases: mlx_engine_close and mlx_chat_free.
  mlx_status_t (*open)(void *user, const char *path, mlx_engine_t **out_engine, mlx_chat_t **out_chat);
  // Tests only: makes the serving of |path|, which will use |*out_bytes|, in place of |open|.
  mlx_status_t (*make)(void *user, const char *path, mlx_serving_t **out_serving, uint64_t *out_bytes);
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

// Before the server runs: adds a model under |name|. NULL: the name that mlx_model_default_name makes; if
// another model has it, with the name of the folder before it ("FOLDER/NAME").
mlx_status_t mlx_models_add(mlx_models_t *models, const char *path, const char *name) MLX_MUST_USE;
// Adds every model in a folder: GGUF files, bundles, and folders with a config.json. Of a model in several
// GGUF files only the first counts. Projectors of vision models (mmproj) are no models.
mlx_status_t mlx_models_add_folder(mlx_models_t *models, const char *folder) MLX_MUST_USE;
// Another name for a model. |name| is one of its names or its path. Fails if another model has the name.
mlx_status_t mlx_models_alias(mlx_models_t *models, const char *alias, const char *name) MLX_MUST_USE;
// The public name of a path or reference, without folder, ending and number of parts. Release with mlx_free.
mlx_status_t mlx_model_default_name(const char *path, char **out_name) MLX_MUST_USE;

// A request that waits for its model. Zero-initialize.
typedef struct mlx_model_waiter {
  // Called once: with the loaded model, which the callee returns with mlx_models_put; or with NULL and a
  // status, which the callee owns. Either at once, in mlx_models_get, or later on the loading thread. It must
  // not block.
  void (*ready)(struct mlx_model_waiter *waiter, mlx_model_t *model, mlx_status_t status);
  bool is_full;  // for |ready|, with a status: too many requests wait for the model
  // Owned by the models.
  struct mlx_model_waiter *next;
  mlx_model_t *model;  // that it waits for; NULL: it does not wait
  bool is_cancelled;
} mlx_model_waiter_t;
// |name| NULL or "": the first model. If the server has one model only, any name means that model. Requests
// that wait get the model in the order of their calls.
void mlx_models_get(mlx_models_t *models, const char *name, mlx_model_waiter_t *waiter);
// The request needs no model any more. True: it waited, and |ready| will not be called. Otherwise |ready| was
// called or will be; if mlx_models_get is called only later, with MLX_CANCELLED.
bool mlx_models_cancel(mlx_models_t *models, mlx_model_waiter_t *waiter);
void mlx_models_put(mlx_models_t *models, mlx_model_t *model);

size_t mlx_models_count(const mlx_models_t *models);
mlx_model_t *mlx_models_at(const mlx_models_t *models, size_t index);
// NULL if there is no such model.
mlx_model_t *mlx_models_find(const mlx_models_t *models, const char *name);
const char *mlx_model_name(const mlx_model_t *model);
size_t mlx_model_alias_count(const mlx_model_t *model);
const char *mlx_model_alias(const mlx_model_t *model, size_t index);
const char *mlx_model_path(const mlx_model_t *model);
int64_t mlx_model_created(const mlx_model_t *model);  // time of the file, in seconds since 1970
uint64_t mlx_model_size(const mlx_model_t *model);    // bytes on disk; 0: unknown
// Of a model that the caller got: never NULL.
mlx_serving_t *mlx_model_serving(const mlx_model_t *model);

// Calls |visit| for each loaded model. Models are not unloaded meanwhile.
void mlx_models_visit_loaded(mlx_models_t *models,
                             void (*visit)(void *user, mlx_model_t *model, mlx_serving_t *serving),
                             void *user);
// How often models were loaded and unloaded.
void mlx_models_counts(mlx_models_t *models, int64_t *out_loads, int64_t *out_unloads);

#endif  // MLXCEL_SERVER_MODELS_H_
