// mlxcel cache: lists or clears the compiled modules and prepared weights in the cache.
#include "cache/cache.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/meter.h"
#include "base/user.h"
#include "cli/confirm.h"
#include "cli/parse.h"
#include "cli/secret_key.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "open/needed.h"
#include "open/remote_modules.h"
#include "transfer/transfer.h"

#define MODULES "vmfb"  // kind of cache entry

typedef struct flags {
  const char *secret_key;
  bool yes, quiet;
} flags_t;

static mlx_status_t print_item(void *user, const mlx_cache_item_t *item) {
  uint64_t *total = user;
  char when[32] = "-";
  time_t created = (time_t)item->created;
  struct tm parts;
  if (created && localtime_r(&created, &parts)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &parts);
  printf("%-9s %.12s  %9s  %s  %s\n", item->kind, item->key, mlx_bytes_show(item->bytes).text, when,
         item->title ? item->title : "(damaged)");
  *total += item->bytes;
  return NULL;
}

static mlx_status_t list(mlx_cache_t *cache) {
  uint64_t total = 0;
  MLX_TRY(mlx_cache_list(cache, print_item, &total));
  mlx_terminal_note("%s in %s\n", mlx_bytes_show(total).text, mlx_cache_folder(cache));
  return NULL;
}

typedef struct total {
  size_t entries;
  uint64_t bytes;
} total_t;

static mlx_status_t add_item(void *user, const mlx_cache_item_t *item) {
  total_t *total = user;
  ++total->entries;
  total->bytes += item->bytes;
  return NULL;
}

// Asks if stdin is a terminal. A script is not asked: everything that is removed can be made again.
static mlx_status_t confirm(mlx_cache_t *cache, bool yes, bool *out_confirmed) {
  total_t total = {0};
  char question[160];
  MLX_TRY(mlx_cache_list(cache, add_item, &total));
  *out_confirmed = yes || !total.entries || !isatty(STDIN_FILENO);
  if (*out_confirmed) return NULL;
  if (!mlx_cli_can_ask())
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "cannot ask whether to clear the cache: stderr is not a terminal"),
        "pass --yes to clear it without a question");
  snprintf(question, sizeof question, "remove %zu %s, %s? models are compiled again when they are used",
           total.entries, mlx_plural(total.entries, "entry", "entries"), mlx_bytes_show(total.bytes).text);
  *out_confirmed = mlx_cli_ask(question);
  if (!*out_confirmed) mlx_terminal_note("nothing was removed\n");
  return NULL;
}

static mlx_status_t clear(mlx_cache_t *cache, bool yes) {
  mlx_cache_cleared_t cleared;
  mlx_needed_t needed;
  bool confirmed;
  MLX_TRY(confirm(cache, yes, &confirmed));
  if (!confirmed) return NULL;
  MLX_TRY(mlx_needed_read(&needed));
  needed.drop_missing = yes;
  const mlx_cache_keep_t keep = mlx_needed_keep(&needed);
  mlx_status_t status = mlx_cache_clear(cache, &keep, &cleared);
  mlx_terminal_note("removed %zu %s, %s", cleared.removed, mlx_plural(cleared.removed, "entry", "entries"),
                    mlx_bytes_show(cleared.bytes).text);
  if (cleared.in_use) mlx_terminal_note("; kept %zu in use", cleared.in_use);
  if (cleared.kept)
    mlx_terminal_note("; kept %zu with weights that bundles without weights need (%s)", cleared.kept,
                      needed.kept ? needed.kept : needed.kept_missing);
  mlx_terminal_note("\n");
  if (needed.kept_missing)
    mlx_terminal_note(
        "%s is not there: it was moved or removed. `mlxcel cache clear --yes` removes its weights\n",
        needed.kept_missing);
  if (needed.dropped)
    mlx_terminal_note("removed the weights of %s, which is not there; if it was moved, compile it again\n",
                      needed.dropped);
  mlx_needed_clear(&needed);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Push

typedef struct push {
  mlx_cache_t *cache;
  mlx_remote_cache_t *remote;
  mlx_secret_key_t key;
  size_t added, present;
} push_t;

static mlx_status_t push_item(void *user, const mlx_cache_item_t *item) {
  push_t *push = user;
  mlx_cache_entry_t entry;
  bool added;
  if (strcmp(item->kind, MODULES)) return NULL;
  MLX_TRY(mlx_cache_find(push->cache, item->kind, item->key, &entry));
  if (!entry.folder) return NULL;  // damaged
  mlx_status_t status = mlx_remote_modules_put(push->remote, entry.folder, &push->key, &added);
  mlx_cache_release(&entry);
  push->added += !status && added;
  push->present += !status && !added;
  return status;
}

static mlx_status_t push_modules(mlx_cache_t *cache, const flags_t *f) {
  const char *place = mlx_environment("MLXCEL_REMOTE_CACHE");
  push_t push = {.cache = cache};
  if (!place)
    return mlx_status_hint(mlx_error(MLX_USAGE, "there is no remote cache"),
                           "set MLXCEL_REMOTE_CACHE to oci://HOST/NAME, https://HOST/PATH or a folder");
  mlx_status_t status = mlx_cli_secret_key(f->secret_key, &push.key);
  if (!status) status = mlx_remote_cache_open(place, mlx_terminal_report(), &push.remote);
  if (!status) status = mlx_cache_list(cache, push_item, &push);
  mlx_secret_key_clear(&push.key);
  mlx_remote_cache_close(push.remote);
  if (!status)
    mlx_terminal_note("pushed %zu %s to %s; %zu %s there already\n", push.added,
                      mlx_plural(push.added, "module", "modules"), place, push.present,
                      mlx_plural(push.present, "was", "were"));
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The verb

static mlx_status_t run_word(mlx_cache_t *cache, const char *word, const flags_t *f) {
  if (!strcmp(word, "push")) return push_modules(cache, f);
  if (!strcmp(word, "list")) return list(cache);
  if (!strcmp(word, "clear")) return clear(cache, f->yes);
  puts(mlx_cache_folder(cache));
  return NULL;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  static const char *const known[] = {"list", "clear", "path", "push"};
  flags_t f;
  const char *word = NULL;
  size_t words, i = 0;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &word, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  while (word && i < sizeof known / sizeof *known && strcmp(word, known[i]) != 0) ++i;
  if (!word || i == sizeof known / sizeof *known)
    return mlx_status_hint(mlx_error(MLX_USAGE, "cache expects one of: list, clear, path, push"),
                           "mlxcel cache list");
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = run_word(cache, word, &f);
  mlx_cache_close(cache);
  return status;
}

static const mlx_flag_t flags[] = {
    MLX_YES_FLAG(flags_t, yes),
    MLX_SECRET_KEY_FLAG(flags_t, secret_key, "--secret-key"),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};

const mlx_verb_t mlx_verb_cache = {
    .name = "cache",
    .summary = "list, clear or share compiled models",
    .usage =
        "usage: mlxcel cache list|clear|path|push [options]\n\n"
        "Lists the compiled modules and prepared weights, removes those that no process uses, or prints "
        "the cache folder. `clear` asks first at a terminal; it keeps pulled models, and weights that a "
        "bundle without weights needs. --yes also removes the weights of such a bundle that is no longer "
        "where it was compiled. `mlxcel rm NAME` removes one model. `push` signs the modules and adds them "
        "to "
        "the cache at $MLXCEL_REMOTE_CACHE, from which other machines take them.\n"
        "The folder is $MLXCEL_CACHE, else $XDG_CACHE_HOME/mlxcel, else ~/.cache/mlxcel.\n\n"
        "examples:\n"
        "  mlxcel cache list\n"
        "  mlxcel cache clear",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
