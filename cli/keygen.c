// mlxcel keygen: a key pair, in the files that minisign has.
#include <sodium/utils.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/cli.h"
#include "cli/password.h"

typedef struct keygen {
  const char *name;
  bool no_password, force;
} keygen_t;

static mlx_status_t choose_password(char out_password[MLX_MAX_PASSWORD]) {
  MLX_TRY(mlx_status_hint(mlx_cli_password("password for the new key: ", "the same again: ", out_password),
                          "set MLXCEL_PASSWORD or write one to stdin; -W makes a key without a password"));
  if (*out_password) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "an empty password protects nothing"),
                         "-W makes a key without a password");
}

static mlx_status_t print_pair(const char *path, const mlx_public_key_t *key, bool encrypted) {
  char *text;
  MLX_TRY(mlx_public_key_write(key, &text, NULL));
  fprintf(stderr,
          "made key %s\n  %s.key  signs: keep it to yourself%s\n  %s.pub  verifies: give it to everybody\n",
          mlx_key_id_text(&key->id).text, path, encrypted ? "" : "; it has no password", path);
  fputs(strchr(text, '\n') + 1, stdout);
  mlx_free(text);
  return NULL;
}

static mlx_status_t make(const char *path, const keygen_t *options) {
  char password[MLX_MAX_PASSWORD] = "";
  mlx_public_key_t key;
  mlx_status_t status = options->no_password ? NULL : choose_password(password);
  if (!status && !options->no_password)
    mlx_report_progress(mlx_terminal_report(), "deriving a key from the password");
  if (!status)
    status = mlx_key_pair_make(path, options->no_password ? NULL : password, &mlx_key_cost_default,
                               options->force, &key);
  mlx_report_done(mlx_terminal_report());
  sodium_memzero(password, sizeof password);
  return status ? status : print_pair(path, &key, !options->no_password);
}

mlx_status_t mlx_cli_keygen(int argc, char **argv) {
  keygen_t options = {0};
  const mlx_flag_t table[] = {
      {"-o, --output", MLX_FLAG_TEXT, "NAME",
       "write NAME.key and NAME.pub (default: mlxcel, in the configuration's folder)", &options.name, 0, 0},
      {"-W, --no-password", MLX_FLAG_SWITCH, NULL, "do not encrypt the secret key", &options.no_password, 0,
       0},
      {"-f, --force", MLX_FLAG_SWITCH, NULL, "replace a key pair that is there", &options.force, 0, 0},
      {0}};
  size_t words;
  bool help;
  char *path = NULL;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel keygen [options]\n\n"
                      "Makes a key pair for Ed25519 signatures, as minisign has them: NAME.key signs, "
                      "NAME.pub verifies. Prints the public key.\n"
                      "The password is asked for at a terminal; elsewhere it is $MLXCEL_PASSWORD or the "
                      "first line of stdin.\n\n"
                      "examples:\n"
                      "  mlxcel keygen\n"
                      "  mlxcel keygen -o release -W",
                      table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  mlx_status_t status =
      options.name ? mlx_copy_text(options.name, strlen(options.name), &path) : mlx_key_pair_path(&path);
  if (!status) status = make(path, &options);
  mlx_free(path);
  return status;
}
