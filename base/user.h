// User: where the files of the person who runs us lie, by the habits of the system.
#ifndef MLXCEL_BASE_USER_H_
#define MLXCEL_BASE_USER_H_

#include "base/status.h"

typedef enum mlx_user_kind {
  MLX_USER_CONFIG,  // $XDG_CONFIG_HOME/mlxcel, else ~/.config/mlxcel;     Windows: %APPDATA%\mlxcel
  MLX_USER_CACHE,  // $XDG_CACHE_HOME/mlxcel, else ~/.cache/mlxcel;       Windows: %LOCALAPPDATA%\mlxcel\cache
  MLX_USER_STATE,  // $XDG_STATE_HOME/mlxcel, else ~/.local/state/mlxcel; Windows: %LOCALAPPDATA%\mlxcel
} mlx_user_kind_t;

// The folder, whether it exists or not; NULL where the environment tells none. Release with mlx_free.
mlx_status_t mlx_user_folder(mlx_user_kind_t kind, char **out_folder) MLX_MUST_USE;
// "HOME is", "A and B are": the variables that tell, for messages.
const char *mlx_user_variables(mlx_user_kind_t kind);

// The environment variable |name|, or NULL if it is unset or empty.
const char *mlx_environment(const char *name);

// Refuses a folder that others may put things into: all but whoever runs us, and root, who can do anything
// anyway. |what| is it, for messages, and |variable| names another.
mlx_status_t mlx_user_owns(const char *folder, const char *what, const char *variable) MLX_MUST_USE;

#endif  // MLXCEL_BASE_USER_H_
