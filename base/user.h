// User: the per-user folders for configuration, cache and state, by the conventions of the system.
#ifndef MLXCEL_BASE_USER_H_
#define MLXCEL_BASE_USER_H_

#include "base/status.h"

//           Linux: below the XDG variable, else below $HOME    Windows
//   CONFIG  $XDG_CONFIG_HOME/mlxcel, ~/.config/mlxcel          %APPDATA%\mlxcel
//   CACHE   $XDG_CACHE_HOME/mlxcel, ~/.cache/mlxcel            %LOCALAPPDATA%\mlxcel\cache
//   STATE   $XDG_STATE_HOME/mlxcel, ~/.local/state/mlxcel      %LOCALAPPDATA%\mlxcel
// $MLXCEL_STATE replaces the state folder. The cache and the trusted keys have such variables too
// (cache/cache.h, artifact/trust.h).
typedef enum mlx_user_kind { MLX_USER_CONFIG, MLX_USER_CACHE, MLX_USER_STATE } mlx_user_kind_t;

// The folder, which may not exist; NULL if the environment does not define it. Release with mlx_free.
mlx_status_t mlx_user_folder(mlx_user_kind_t kind, char **out_folder) MLX_MUST_USE;
// "HOME is", "A and B are": the environment variables involved, for messages.
const char *mlx_user_variables(mlx_user_kind_t kind);

// The environment variable |name|, or NULL if it is unset or empty.
const char *mlx_environment(const char *name);

// Fails if another user owns a file or folder or may write to it; root is trusted. |path| is its path and
// |what| describes it, for the error. The hints are for a wrong owner and for a wrong mode.
struct stat;
mlx_status_t mlx_user_check_stat(const struct stat *info, const char *path, const char *what,
                                 const char *owner_hint, const char *mode_hint) MLX_MUST_USE;
// The same for a folder. |variable| is the environment variable that selects another folder.
mlx_status_t mlx_user_check_owner(const char *folder, const char *what, const char *variable) MLX_MUST_USE;

#endif  // MLXCEL_BASE_USER_H_
