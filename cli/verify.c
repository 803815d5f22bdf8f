// mlxcel verify: checks the signatures of files and bundles.
#include <stdio.h>
#include <string.h>

#include "artifact/sign.h"
#include "base/memory.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

#define MAX_FILES 256

typedef struct flags {
  mlx_verify_options_t verify;
  const char *key_path, *key_text;
  bool quiet;
} flags_t;

static mlx_status_t verify_file(const char *path, const mlx_verify_options_t *options) {
  mlx_signer_t *signer;
  MLX_TRY(mlx_alloc(1, sizeof *signer, &signer));
  mlx_status_t status = mlx_verify(path, options, signer);
  if (!status)
    printf("%s: signed by %s, key %s: %s\n", path, signer->file, signer->key.text, signer->comment);
  mlx_free(signer);
  return status;
}

// Verifies every file. Returns the first failure and prints the later ones.
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
  if (path && text) return mlx_error(MLX_USAGE, "-p and -P were both given");
  options->key = out_key;
  options->key_name = path ? path : "the key of -P";
  return path ? mlx_public_key_load(path, out_key) : mlx_public_key_read("-P", text, strlen(text), out_key);
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  mlx_public_key_t key;
  const char *files[MAX_FILES];
  size_t count;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, files, MAX_FILES, &count, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!count) return mlx_status_hint(mlx_error(MLX_USAGE, "no file was given"), "mlxcel verify FILE...");
  if (count > 1 && f.verify.signature_path) return mlx_error(MLX_USAGE, "-x can be used with one file only");
  f.verify.report = mlx_terminal_report();
  MLX_TRY(read_key(f.key_path, f.key_text, &f.verify, &key));
  return verify_all(files, count, &f.verify);
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_TEXT_FLAG(flags_t, key_path, "-p, --public-key", "FILE",
                  "public key that must have signed (default: any trusted key)"),
    MLX_TEXT_FLAG(flags_t, key_text, "-P, --public-key-text", "BASE64", "the public key as text"),
    MLX_SWITCH_FLAG(flags_t, verify.may_lack_weights, "--no-weights",
                    "the bundle has no weights (compile --no-weights); check them only if they are found by digest"),
    MLX_SIGNATURE_FLAG(flags_t, verify.signature_path),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_verify = {
    .name = "verify",
    .summary = "verify the signature of a bundle or a file",
    .usage =
        "usage: mlxcel verify FILE... [options]\n\n"
        "Checks that a trusted key signed each file or bundle and that its contents match the signature; "
        "for a bundle, every file in it.\n"
        "Prints the key and the trusted comment. `mlxcel trust` manages the trusted keys.\n\n"
        "examples:\n"
        "  mlxcel verify model.mlxb\n"
        "  mlxcel verify -p release.pub mlxcel.tar.gz",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
