// Per-user folders from the environment, and the ownership check.
#include "base/user.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

typedef struct folder_rule {
  const char *variable, *below;            // subfolder of the folder in |variable|
  const char *home_variable, *below_home;  // fallback if |variable| is not set; NULL for none
  const char *variables;                   // for messages
} folder_rule_t;

#ifdef _WIN32
static const folder_rule_t rules[] = {
    [MLX_USER_CONFIG] = {"APPDATA", "mlxcel", NULL, NULL, "APPDATA is"},
    [MLX_USER_CACHE] = {"LOCALAPPDATA", "mlxcel/cache", NULL, NULL, "LOCALAPPDATA is"},
    [MLX_USER_STATE] = {"LOCALAPPDATA", "mlxcel", NULL, NULL, "LOCALAPPDATA is"},
};
#else
static const folder_rule_t rules[] = {
    [MLX_USER_CONFIG] = {"XDG_CONFIG_HOME", "mlxcel", "HOME", ".config/mlxcel",
                         "XDG_CONFIG_HOME and HOME are"},
    [MLX_USER_CACHE] = {"XDG_CACHE_HOME", "mlxcel", "HOME", ".cache/mlxcel", "XDG_CACHE_HOME and HOME are"},
    [MLX_USER_STATE] = {"XDG_STATE_HOME", "mlxcel", "HOME", ".local/state/mlxcel",
                        "XDG_STATE_HOME and HOME are"},
};
#endif

mlx_status_t mlx_user_folder(mlx_user_kind_t kind, char **out_folder) {
  *out_folder = NULL;
  const folder_rule_t *rule = &rules[kind];
  const char *state = kind == MLX_USER_STATE ? mlx_environment("MLXCEL_STATE") : NULL;
  if (state) return mlx_copy_text(state, strlen(state), out_folder);
  const char *base = getenv(rule->variable), *home = rule->home_variable ? getenv(rule->home_variable) : NULL;
  if (base && mlx_is_absolute(base))  // the XDG specification requires that relative paths are ignored
    return mlx_join_path(base, rule->below, out_folder);
  return home && *home ? mlx_join_path(home, rule->below_home, out_folder) : NULL;
}

const char *mlx_user_variables(mlx_user_kind_t kind) { return rules[kind].variables; }

mlx_status_t mlx_user_check_stat(const struct stat *info, const char *path, const char *what,
                                 const char *owner_hint, const char *mode_hint) {
  if (info->st_uid != geteuid() && info->st_uid != 0) {
    return mlx_status_hint(
        mlx_error(MLX_IO, "%s '%s' belongs to another user (uid %ld)", what, path, (long)info->st_uid), "%s",
        owner_hint);
  }
  if (info->st_mode & (S_IWGRP | S_IWOTH)) {
    return mlx_status_hint(mlx_error(MLX_IO, "%s '%s' is writable by other users (mode %03o)", what, path,
                                     (unsigned)info->st_mode & 0777),
                           "%s", mode_hint);
  }
  return NULL;
}

mlx_status_t mlx_user_check_owner(const char *folder, const char *what, const char *variable) {
  struct stat info;
  char *owner_hint = NULL, *mode_hint = NULL;
  if (stat(folder, &info)) return mlx_io_error("stat", folder);
  mlx_status_t status = mlx_format(&owner_hint, "set %s to a folder that you own", variable);
  if (!status)
    status = mlx_format(&mode_hint, "run `chmod -R go-w '%s'` if you trust its contents, or set %s", folder,
                        variable);
  if (!status) status = mlx_user_check_stat(&info, folder, what, owner_hint, mode_hint);
  mlx_free(mode_hint);
  mlx_free(owner_hint);
  return status;
}

const char *mlx_environment(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}
