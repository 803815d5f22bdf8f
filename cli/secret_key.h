// Secret key: the key of verbs that sign.
#ifndef MLXCEL_CLI_SECRET_KEY_H_
#define MLXCEL_CLI_SECRET_KEY_H_

#include "artifact/sign.h"
#include "cli/flags.h"

// Reads the key in the file |path|, or the user's own if it is NULL, and asks for its password. Clear the key
// with mlx_secret_key_clear, also after an error.
mlx_status_t mlx_cli_secret_key(const char *path, mlx_secret_key_t *out_key) MLX_MUST_USE;

// The same for --publish; fails if there is no remote cache.
mlx_status_t mlx_cli_publish_key(const char *path, mlx_secret_key_t *out_key) MLX_MUST_USE;

// clang-format off
#define MLX_PUBLISH_FLAG(type, field) \
  MLX_SWITCH_FLAG(type, field, "--publish", "sign the modules and add them to the cache at $MLXCEL_REMOTE_CACHE")
// clang-format on
#define MLX_SECRET_KEY_FLAG(type, field, names) \
  MLX_TEXT_FLAG(type, field, names, "FILE", "secret key (default: mlxcel.key, in the configuration folder)")

#endif  // MLXCEL_CLI_SECRET_KEY_H_
