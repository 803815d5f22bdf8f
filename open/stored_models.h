// Stored models: the models that are stored in the folder models/ of the cache: pulled models, and bundles
// that the user put there.
#ifndef MLXCEL_OPEN_STORED_MODELS_H_
#define MLXCEL_OPEN_STORED_MODELS_H_

#include "base/status.h"

typedef struct mlx_stored_model {
  const char *name;  // the path below models/ without commit hashes: "org/name/x.gguf"
  // A GGUF file (the first part of a split one), a model folder or a bundle. GGUF files in a model folder are
  // models of their own.
  const char *path;
  bool is_bundle;
} mlx_stored_model_t;

// Calls |visit| with every model below |cache_folder|/models. An error from |visit| ends the walk.
typedef mlx_status_t (*mlx_stored_models_visit_fn_t)(void *user, const mlx_stored_model_t *model);
mlx_status_t mlx_stored_models_walk(const char *cache_folder, mlx_stored_models_visit_fn_t visit,
                                    void *user) MLX_MUST_USE;

// The same with the names that a server gives to its clients: the short name (transfer/short_names.h) of a
// model that was pulled by it, else |name|. If an earlier model has that name, as for two commits of a
// repository, the path below models/. Leaves out projectors of vision models (mmproj), which are no models.
mlx_status_t mlx_stored_models_walk_served(mlx_stored_models_visit_fn_t visit, void *user) MLX_MUST_USE;

// Fails if another user may have changed the stored model at |path|.
mlx_status_t mlx_stored_models_check(const char *path) MLX_MUST_USE;

// Finds the stored model that |name| means: its name, the folders at the beginning of its name ("org/name"),
// or the end of its name, with or without ".gguf" or ".mlxb". A whole name wins over parts. *|out_path| is
// NULL if there is none; release it with mlx_free. Several models with such a name are an error that lists
// them, by their paths if names are equal.
mlx_status_t mlx_stored_models_find(const char *name, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_OPEN_STORED_MODELS_H_
