// mlxcel cache: lists or clears the compiled modules and prepared weights in the cache.
#include "cache/cache.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "artifact/bundle.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef struct flags {
  bool quiet;
} flags_t;

static mlx_status_t print_item(void *user, const mlx_cache_item_t *item) {
  uint64_t *total = user;
  char when[32] = "-";
  time_t created = (time_t)item->created;
  struct tm parts;
  if (created && localtime_r(&created, &parts)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &parts);
  printf("%-8s %.12s  %9.1f MiB  %s  %s\n", item->kind, item->key, (double)item->bytes / (1 << 20), when,
         item->title ? item->title : "(damaged)");
  *total += item->bytes;
  return NULL;
}

static mlx_status_t list(mlx_cache_t *cache) {
  uint64_t total = 0;
  MLX_TRY(mlx_cache_list(cache, print_item, &total));
  mlx_terminal_note("%.1f MiB in %s\n", (double)total / (1 << 20), mlx_cache_folder(cache));
  return NULL;
}

static mlx_status_t count_bundle(void *user, const mlx_cache_item_t *item) {
  *(size_t *)user += !strcmp(item->kind, MLX_BUNDLE_KIND);
  return NULL;
}

static mlx_status_t clear(mlx_cache_t *cache) {
  mlx_cache_cleared_t cleared;
  size_t before = 0, after = 0;
  MLX_TRY(mlx_cache_list(cache, count_bundle, &before));
  mlx_status_t status = mlx_cache_clear(cache, &cleared);
  mlx_status_free(mlx_cache_list(cache, count_bundle, &after));
  mlx_terminal_note("removed %zu %s, %.1f MiB", cleared.removed,
                    mlx_plural(cleared.removed, "entry", "entries"), (double)cleared.bytes / (1 << 20));
  if (cleared.in_use) mlx_terminal_note("; kept %zu in use", cleared.in_use);
  if (before > after)
    mlx_terminal_note("; %zu %s no longer recognized as compiled here", before - after,
                      mlx_plural(before - after, "bundle is", "bundles are"));
  mlx_terminal_note("\n");
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *word = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &word, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!word || (strcmp(word, "list") && strcmp(word, "clear") && strcmp(word, "path")))
    return mlx_status_hint(mlx_error(MLX_USAGE, "cache expects one of: list, clear, path"),
                           "mlxcel cache list");
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = NULL;
  if (!strcmp(word, "path")) {
    puts(mlx_cache_folder(cache));
  } else {
    status = !strcmp(word, "list") ? list(cache) : clear(cache);
  }
  mlx_cache_close(cache);
  return status;
}

static const mlx_flag_t flags[] = {MLX_QUIET_FLAG(flags_t, quiet), {0}};

const mlx_verb_t mlx_verb_cache = {
    .name = "cache",
    .summary = "list or clear compiled models",
    .usage =
        "usage: mlxcel cache list|clear|path [options]\n\n"
        "Lists the compiled modules and prepared weights, removes those that no process uses, or prints "
        "the cache folder.\n"
        "The folder is $MLXCEL_CACHE, else $XDG_CACHE_HOME/mlxcel, else ~/.cache/mlxcel.\n\n"
        "examples:\n"
        "  mlxcel cache list\n"
        "  mlxcel cache clear",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
