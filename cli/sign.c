// mlxcel sign: signatures that minisign can check, beside what they sign.
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/password.h"

#define MAX_FILES 256

static mlx_status_t ask_password(void *user, const char *path, char out_password[MLX_MAX_PASSWORD]) {
  (void)user;
  char prompt[512];
  snprintf(prompt, sizeof prompt, "password for %.480s: ", path);
  MLX_TRY(mlx_cli_password(prompt, NULL, out_password));
  mlx_report_progress(mlx_terminal_report(), "deriving a key from the password");
  return NULL;
}

static mlx_status_t load_key(const char *given, mlx_secret_key_t *out_key) {
  char *pair = NULL, *path = NULL;
  mlx_status_t status = NULL;
  if (!given) {
    status = mlx_key_pair_path(&pair);
    if (!status) status = mlx_format(&path, "%s.key", pair);
    if (!status && !mlx_is_file(path)) {
      status = mlx_status_hint(mlx_error(MLX_NOT_FOUND, "there is no key to sign with, '%s'", path),
                               "make one with `mlxcel keygen`, or name one with -s");
    }
  }
  if (!status) status = mlx_secret_key_load(given ? given : path, ask_password, NULL, out_key);
  mlx_report_done(mlx_terminal_report());
  mlx_free(pair);
  mlx_free(path);
  return status;
}

static mlx_status_t sign_all(const char *const *files, size_t count, mlx_sign_options_t *options) {
  for (size_t i = 0; i < count; ++i) {
    char *path;
    MLX_TRY(mlx_sign(files[i], options, &path));
    puts(path);
    mlx_free(path);
  }
  return NULL;
}

mlx_status_t mlx_cli_sign(int argc, char **argv) {
  mlx_sign_options_t options = {.report = mlx_terminal_report()};
  const char *key_path = NULL, *files[MAX_FILES];
  mlx_secret_key_t key;
  const mlx_flag_t table[] = {
      {"-s, --secret-key", MLX_FLAG_TEXT, "FILE",
       "the key to sign with (default: mlxcel.key, in the configuration's folder)", &key_path, 0, 0},
      {"-t, --trusted-comment", MLX_FLAG_TEXT, "TEXT",
       "a line that is signed too (default: the time and the file's name)", &options.trusted_comment, 0, 0},
      {"-c, --comment", MLX_FLAG_TEXT, "TEXT", "a line that is not signed", &options.comment, 0, 0},
      {"-x, --signature", MLX_FLAG_TEXT, "FILE", "where to write the signature (default: FILE.minisig)",
       &options.signature_path, 0, 0},
      {0}};
  size_t count;
  bool help;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel sign FILE... [options]\n\n"
                      "Signs files or compiled models and prints where the signatures are. Of a model its "
                      "manifest is signed, which lists the\n"
                      "SHA-256 of its other files; they are compared first. `mlxcel verify` and `minisign "
                      "-V` check signatures.\n\n"
                      "examples:\n"
                      "  mlxcel sign model.mlxb\n"
                      "  mlxcel sign -s release.key -t 'version 1.2' mlxcel.tar.gz SHA256SUMS",
                      table, argc, argv, files, MAX_FILES, &count, &help));
  if (help) return NULL;
  if (!count) return mlx_status_hint(mlx_error(MLX_USAGE, "sign wants a file"), "mlxcel sign FILE...");
  if (count > 1 && options.signature_path) return mlx_error(MLX_USAGE, "-x is for one file");
  mlx_status_t status = load_key(key_path, &key);
  options.key = &key;
  if (!status) status = sign_all(files, count, &options);
  mlx_secret_key_clear(&key);
  return status;
}
