// Locate: what the name of a model means. A name is a path, hf:ORG/NAME, oci://HOST/NAME:TAG, the URL of a
// GGUF file, a short name (transfer/short_names.h) or the name of a stored model (open/stored_models.h).
#ifndef MLXCEL_OPEN_LOCATE_H_
#define MLXCEL_OPEN_LOCATE_H_

#include "base/report.h"

// The path of the model |name|: |name| itself if it exists, else its local copy, which is pulled if there is
// none. Another name is an error with similar names. A missing path, such as "dir/x.gguf", is returned as it
// is. |report| may be NULL. Release with mlx_free.
mlx_status_t mlx_locate(const char *name, const mlx_report_t *report, char **out_path) MLX_MUST_USE;

// The error of a name that mlx_locate can neither find on this machine nor pull; NULL for others. Uses no
// network, so that a wrong name is refused before anything slow begins.
mlx_status_t mlx_locate_check(const char *name) MLX_MUST_USE;

// The same as mlx_locate among the models that are stored in the cache: pulls nothing, and looks at no other
// path. *|out_path| is NULL if there is none. |model| may also be ORG/NAME[:QUANT] of a hub, and may end with
// ":latest".
mlx_status_t mlx_locate_stored(const char *model, char **out_path) MLX_MUST_USE;

// The whole short name that |name| stands for, static: "qwen3:8b" of "qwen3". NULL: it is no short name.
const char *mlx_locate_short_name(const char *name);
// The hub's reference that |name| means, "hf:ORG/NAME[@REVISION][:FILE-OR-QUANT]": of a short name, a
// reference in any form, or ORG/NAME. *|out_ref| is NULL for anything else. Release with mlx_free.
mlx_status_t mlx_locate_reference(const char *name, char **out_ref) MLX_MUST_USE;

// True if |word| can only be a model: a path, a reference, a short name or a stored model. Uses no network.
bool mlx_is_model_name(const char *word);

#endif  // MLXCEL_OPEN_LOCATE_H_
