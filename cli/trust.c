// mlxcel trust: whose signatures count here.
#include "artifact/trust.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/cli.h"

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
  if (!status) fprintf(stderr, "%zu trusted %s in %s\n", count, count == 1 ? "key" : "keys", folder);
  mlx_free(folder);
  return status;
}

static mlx_status_t add(const char *path, bool force) {
  mlx_public_key_t key;
  MLX_TRY(mlx_trust_add(path, force, &key));
  fprintf(stderr, "what key %s signs is trusted from now on\n", mlx_key_id_text(&key.id).text);
  return NULL;
}

static mlx_status_t remove_key(const char *word) {
  size_t removed;
  MLX_TRY(mlx_trust_remove(word, &removed));
  fprintf(stderr, "removed %zu %s\n", removed, removed == 1 ? "key" : "keys");
  return NULL;
}

mlx_status_t mlx_cli_trust(int argc, char **argv) {
  bool force = false, help;
  const mlx_flag_t table[] = {
      {"-f, --force", MLX_FLAG_SWITCH, NULL, "add: replace another key of the same name", &force, 0, 0}, {0}};
  const char *words[2] = {NULL, NULL};
  size_t count;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel trust add|list|remove [KEY] [options]\n\n"
                      "The keys whose signatures count on this machine: add KEY.pub, under its name; list "
                      "them; remove one by its name or number.\n"
                      "They are the *.pub files in $MLXCEL_TRUSTED, else in the folder trusted beside the "
                      "configuration file.\n\n"
                      "examples:\n"
                      "  mlxcel trust add alice.pub\n"
                      "  mlxcel trust remove alice",
                      table, argc, argv, words, 2, &count, &help));
  if (help) return NULL;
  const char *word = words[0] ? words[0] : "";
  if (!strcmp(word, "list") && count == 1) return list();
  if (!strcmp(word, "add") && count == 2) return add(words[1], force);
  if (!strcmp(word, "remove") && count == 2) return remove_key(words[1]);
  return mlx_status_hint(mlx_error(MLX_USAGE, "trust wants: list, add KEY.pub, or remove KEY"),
                         "mlxcel trust add alice.pub");
}
