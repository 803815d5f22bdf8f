// mlxcel trust: lists, adds and removes the trusted public keys.
#include "artifact/trust.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef struct flags {
  bool force, quiet;
} flags_t;

static mlx_status_t print_key(void *user, const char *file, const mlx_public_key_t *key) {
  ++*(size_t *)user;
  printf("%s  %s\n", mlx_key_id_text(&key->id).text, file);
  return NULL;
}

static mlx_status_t list(void) {
  size_t count = 0;
  char *folder;
  MLX_TRY(mlx_trust_folder(&folder));
  mlx_status_t status = mlx_trust_list(print_key, &count);
  if (!status) mlx_terminal_note("%zu trusted %s in %s\n", count, mlx_plural(count, "key", "keys"), folder);
  mlx_free(folder);
  return status;
}

static mlx_status_t add(const char *path, bool force) {
  mlx_public_key_t key;
  MLX_TRY(mlx_trust_add(path, force, &key));
  mlx_terminal_note("added key %s: its signatures are trusted now\n", mlx_key_id_text(&key.id).text);
  return NULL;
}

static mlx_status_t remove_key(const char *word) {
  size_t removed;
  MLX_TRY(mlx_trust_remove(word, &removed));
  mlx_terminal_note("removed %zu %s\n", removed, mlx_plural(removed, "key", "keys"));
  return NULL;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  bool help;
  const char *words[2] = {NULL, NULL};
  size_t count;
  MLX_TRY(mlx_command_line_parse(line, &f, words, 2, &count, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  const char *word = words[0] ? words[0] : "";
  if (!strcmp(word, "list") && count == 1) return list();
  if (!strcmp(word, "add") && count == 2) return add(words[1], f.force);
  if (!strcmp(word, "remove") && count == 2) return remove_key(words[1]);
  return mlx_status_hint(mlx_error(MLX_USAGE, "trust expects: list, add KEY.pub, or remove KEY"),
                         "mlxcel trust add alice.pub");
}

static const mlx_flag_t flags[] = {
    MLX_SWITCH_FLAG(flags_t, force, "-f, --force", "add: replace another key with the same name"),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};

const mlx_verb_t mlx_verb_trust = {
    .name = "trust",
    .summary = "list, add or remove trusted public keys",
    .usage =
        "usage: mlxcel trust add|list|remove [KEY] [options]\n\n"
        "Manages the keys whose signatures this machine trusts: adds KEY.pub under its name, lists the "
        "keys, or removes one by its name or id.\n"
        "The keys are the *.pub files in $MLXCEL_TRUSTED, else in the folder trusted beside the "
        "configuration file.\n\n"
        "examples:\n"
        "  mlxcel trust add alice.pub\n"
        "  mlxcel trust remove alice",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
