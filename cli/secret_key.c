// Finds and reads a secret key.
#include "cli/secret_key.h"

#include <stdio.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/user.h"
#include "cli/password.h"
#include "cli/terminal.h"

static mlx_status_t read_password(void *user, const char *path, char out_password[MLX_MAX_PASSWORD]) {
  (void)user;
  char prompt[512];
  snprintf(prompt, sizeof prompt, "password for %.480s: ", path);
  MLX_TRY(mlx_cli_password(prompt, NULL, out_password));
  mlx_report_progress(mlx_terminal_report(), "deriving a key from the password");
  return NULL;
}

mlx_status_t mlx_cli_secret_key(const char *given, mlx_secret_key_t *out_key) {
  char *pair = NULL, *path = NULL;
  mlx_status_t status = NULL;
  if (!given) {
    status = mlx_key_pair_path(&pair);
    if (!status) status = mlx_format(&path, "%s.key", pair);
    if (!status && !mlx_is_file(path)) {
      status = mlx_status_hint(mlx_error(MLX_NOT_FOUND, "secret key '%s' does not exist", path),
                               "create it with `mlxcel keygen`, or give another with --secret-key");
    }
  }
  if (!status) status = mlx_secret_key_load(given ? given : path, read_password, NULL, out_key);
  mlx_report_done(mlx_terminal_report());
  mlx_free(pair);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_cli_publish_key(const char *path, mlx_secret_key_t *out_key) {
  if (!mlx_environment("MLXCEL_REMOTE_CACHE"))
    return mlx_status_hint(mlx_error(MLX_USAGE, "--publish needs a remote cache"),
                           "set MLXCEL_REMOTE_CACHE to oci://HOST/NAME, https://HOST/PATH or a folder");
  return mlx_cli_secret_key(path, out_key);
}
