// mlxcel verify: who signed something, and whether it is what was signed.
#include <stdio.h>
#include <string.h>

#include "artifact/sign.h"
#include "base/memory.h"
#include "cli/cli.h"

#define MAX_FILES 256

static mlx_status_t verify_file(const char *path, const mlx_verify_options_t *options) {
  mlx_signer_t *who;
  MLX_TRY(mlx_alloc(1, sizeof *who, &who));
  mlx_status_t status = mlx_verify(path, options, who);
  if (!status) printf("%s: signed by %s, key %s: %s\n", path, who->file, who->key.text, who->comment);
  mlx_free(who);
  return status;
}

// All of them, whatever one of them is: the first failure is what the verb ends with, the others are told
// here.
static mlx_status_t verify_all(const char *const *files, size_t count, const mlx_verify_options_t *options) {
  mlx_status_t first = NULL;
  for (size_t i = 0; i < count; ++i) {
    mlx_status_t status = verify_file(files[i], options);
    if (!status || !first) {
      first = first ? first : status;
      continue;
    }
    mlx_terminal_error("mlxcel verify", status);
    mlx_status_free(status);
  }
  return first;
}

static mlx_status_t read_key(const char *path, const char *text, mlx_verify_options_t *options,
                             mlx_public_key_t *out_key) {
  if (!path && !text) return NULL;
  if (path && text) return mlx_error(MLX_USAGE, "give -p or -P, not both");
  options->key = out_key;
  options->key_name = path ? path : "the key of -P";
  return path ? mlx_public_key_load(path, out_key) : mlx_public_key_read("-P", text, strlen(text), out_key);
}

mlx_status_t mlx_cli_verify(int argc, char **argv) {
  mlx_verify_options_t options = {.report = mlx_terminal_report()};
  mlx_public_key_t key;
  const char *files[MAX_FILES], *key_path = NULL, *key_text = NULL;
  const mlx_flag_t table[] = {
      {"-p, --public-key", MLX_FLAG_TEXT, "FILE", "the key that must have signed (default: any trusted one)",
       &key_path, 0, 0},
      {"-P, --public-key-text", MLX_FLAG_TEXT, "BASE64", "the same as text", &key_text, 0, 0},
      {"-x, --signature", MLX_FLAG_TEXT, "FILE", "where the signature is (default: FILE.minisig)",
       &options.signature_path, 0, 0},
      {0}};
  size_t count;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel verify FILE... [options]\n\n"
      "Checks that somebody trusted signed each file or compiled model, and that it is what was signed: of a "
      "model every file.\n"
      "Prints whose key it was and the trusted comment. `mlxcel trust` says who is trusted.\n\n"
      "examples:\n"
      "  mlxcel verify model.mlxb\n"
      "  mlxcel verify -p release.pub mlxcel.tar.gz",
      table, argc, argv, files, MAX_FILES, &count, &help));
  if (help) return NULL;
  if (!count) return mlx_status_hint(mlx_error(MLX_USAGE, "verify wants a file"), "mlxcel verify FILE...");
  if (count > 1 && options.signature_path) return mlx_error(MLX_USAGE, "-x is for one file");
  MLX_TRY(read_key(key_path, key_text, &options, &key));
  return verify_all(files, count, &options);
}
