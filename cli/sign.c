// mlxcel sign: writes signatures in minisign's format beside the signed files.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/parse.h"
#include "cli/secret_key.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

#define MAX_FILES 256

typedef struct flags {
  mlx_sign_options_t sign;
  const char *key_path;
  bool quiet;
} flags_t;

static mlx_status_t sign_all(const char *const *files, size_t count, mlx_sign_options_t *options) {
  for (size_t i = 0; i < count; ++i) {
    char *path;
    MLX_TRY(mlx_sign(files[i], options, &path));
    puts(path);
    mlx_free(path);
  }
  return NULL;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *files[MAX_FILES];
  mlx_secret_key_t key;
  size_t count;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, files, MAX_FILES, &count, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!count) return mlx_status_hint(mlx_error(MLX_USAGE, "no file was given"), "mlxcel sign FILE...");
  if (count > 1 && f.sign.signature_path) return mlx_error(MLX_USAGE, "-x can be used with one file only");
  mlx_status_t status = mlx_cli_secret_key(f.key_path, &key);
  f.sign.report = mlx_terminal_report();
  f.sign.key = &key;
  if (!status) status = sign_all(files, count, &f.sign);
  mlx_secret_key_clear(&key);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_SECRET_KEY_FLAG(flags_t, key_path, "-s, --secret-key"),
    MLX_TEXT_FLAG(flags_t, sign.trusted_comment, "-t, --trusted-comment", "TEXT",
                  "comment that is signed too (default: the time and the file's name)"),
    MLX_TEXT_FLAG(flags_t, sign.comment, "-c, --comment", "TEXT", "comment that is not signed"),
    MLX_SIGNATURE_FLAG(flags_t, sign.signature_path),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_sign = {
    .name = "sign",
    .summary = "sign bundles or other files",
    .usage =
        "usage: mlxcel sign FILE... [options]\n\n"
        "Signs files or bundles and prints the paths of the signatures. For a bundle, mlxcel checks the "
        "SHA-256 of every file and signs the manifest, which lists them. `mlxcel verify` and `minisign -V` "
        "check signatures.\n\n"
        "examples:\n"
        "  mlxcel sign model.mlxb\n"
        "  mlxcel sign -s release.key -t 'version 1.2' mlxcel.tar.gz SHA256SUMS",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
