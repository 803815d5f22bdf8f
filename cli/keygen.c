// mlxcel keygen: creates a key pair in minisign's file formats.
#include <sodium/utils.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/parse.h"
#include "cli/password.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef struct flags {
  const char *name;
  bool no_password, force, quiet;
} flags_t;

static mlx_status_t choose_password(char out_password[MLX_MAX_PASSWORD]) {
  MLX_TRY(
      mlx_status_hint(mlx_cli_password("password for the new key: ", "repeat the password: ", out_password),
                      "set MLXCEL_PASSWORD or write it to stdin; -W makes a key without a password"));
  if (*out_password) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "the password is empty"), "-W makes a key without a password");
}

static mlx_status_t print_pair(const char *path, const mlx_public_key_t *key, bool encrypted) {
  char *text;
  MLX_TRY(mlx_public_key_write(key, &text, NULL));
  mlx_terminal_note("created key %s\n  %s.key  secret key, signs: keep it private%s\n",
                    mlx_key_id_text(&key->id).text, path, encrypted ? "" : "; it has no password");
  mlx_terminal_note("  %s.pub  public key, verifies: give it to others\n", path);
  fputs(strchr(text, '\n') + 1, stdout);
  mlx_free(text);
  return NULL;
}

static mlx_status_t make(const char *path, const flags_t *options) {
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

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  size_t words;
  bool help;
  char *path = NULL;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  mlx_status_t status = f.name ? mlx_copy_text(f.name, strlen(f.name), &path) : mlx_key_pair_path(&path);
  if (!status) status = make(path, &f);
  mlx_free(path);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_TEXT_FLAG(flags_t, name, "-o, --output", "NAME",
                  "write NAME.key and NAME.pub (default: mlxcel, in the configuration folder)"),
    MLX_SWITCH_FLAG(flags_t, no_password, "-W, --no-password", "do not encrypt the secret key"),
    MLX_SWITCH_FLAG(flags_t, force, "-f, --force", "replace an existing key pair"),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_keygen = {
    .name = "keygen",
    .summary = "create a key pair for signing",
    .usage =
        "usage: mlxcel keygen [options]\n\n"
        "Creates an Ed25519 key pair in minisign's format: NAME.key signs, NAME.pub verifies. Prints the "
        "public key.\n"
        "The password is $MLXCEL_PASSWORD, else a terminal prompts for it, else it is the first line of "
        "stdin.\n\n"
        "examples:\n"
        "  mlxcel keygen\n"
        "  mlxcel keygen -o release -W",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
