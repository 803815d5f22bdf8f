// Finds a model, pulls it, and chooses its public name.
#include "cli/served.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/terminal.h"
#include "open/locate.h"
#include "runtime/rooms.h"
#include "server/core/models.h"
#include "transfer/hub.h"
#include "transfer/pull_oci.h"

// The name that clients use. NULL: made from the path. A short name or a stored model keeps its name; a hub
// or registry reference is shortened as a path is.
static mlx_status_t choose_name(const char *model, const char *path, char **out_name) {
  *out_name = NULL;
  if (!strcmp(model, path) || !strncmp(model, "http", 4)) return NULL;
  if (mlx_is_hub_ref(model) || mlx_is_oci_ref(model)) return mlx_models_default_name(model, out_name);
  return mlx_copy_text(model, strlen(model), out_name);
}

mlx_status_t mlx_cli_add_served(mlx_server_t *server, const char *model, const char *given) {
  char *path, *name = NULL;
  MLX_TRY(mlx_locate(model, mlx_terminal_report(), &path));
  mlx_status_t status =
      mlx_is_file(path) || mlx_is_dir(path) ? NULL : mlx_error(MLX_NOT_FOUND, "there is no model '%s'", path);
  if (!status && !given) status = choose_name(model, path, &name);
  if (!status) status = mlx_server_add(server, path, given ? given : name);
  if (!status && strcmp(model, path) &&
      (!name || strcmp(model, name)))  // requests may use the given text too
    status = mlx_server_alias(server, model, path);
  mlx_free(name);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_cli_use_engines(const mlx_open_flags_t *open, int64_t engines, mlx_server_options_t *out) {
  const size_t gpus = open->gpu_count ? open->gpu_count : 1;
  if (gpus * (size_t)engines > MLX_MOST_ENGINES)
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "%zu GPUs with %lld engines each: a model has at most %d engines", gpus,
                  (long long)engines, MLX_MOST_ENGINES),
        "use fewer --engines");
  if (out->kv_events.endpoint && gpus * (size_t)engines != 1)
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "--kv-events needs one engine: its events do not name an engine"),
        "start a server for each GPU, each with its own --kv-events");
  for (size_t i = 0; i < open->gpu_count; ++i) {
    char text[160];
    int count;
    MLX_TRY(mlx_engine_gpu_text(open->gpus[i], text, sizeof text, &count));
  }
  out->gpus = open->gpus;
  out->gpu_count = open->gpu_count;
  out->engines = (size_t)engines;
  return NULL;
}
