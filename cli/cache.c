// mlxcel cache: what compiling has left behind, and how to be rid of it.
#include "cache/cache.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "artifact/bundle.h"
#include "cli/cli.h"

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
  fprintf(stderr, "%.1f MiB in %s\n", (double)total / (1 << 20), mlx_cache_folder(cache));
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
  fprintf(stderr, "removed %zu entries, %.1f MiB", cleared.removed, (double)cleared.bytes / (1 << 20));
  if (cleared.in_use) fprintf(stderr, "; left %zu that are in use", cleared.in_use);
  if (before > after)
    fprintf(stderr, "; %zu compiled %s no longer known as made here", before - after,
            before - after == 1 ? "model is" : "models are");
  fputc('\n', stderr);
  return status;
}

mlx_status_t mlx_cli_cache(int argc, char **argv) {
  const mlx_flag_t table[] = {{0}};
  const char *word = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel cache list|clear|path\n\n"
      "What compiling left behind: list it, remove all that nobody is using, or say where it is.\n"
      "The folder is $MLXCEL_CACHE, else $XDG_CACHE_HOME/mlxcel, else ~/.cache/mlxcel.\n\n"
      "examples:\n  mlxcel cache list\n  mlxcel cache clear",
      table, argc, argv, &word, 1, &words, &help));
  if (help) return NULL;
  if (!word || (strcmp(word, "list") && strcmp(word, "clear") && strcmp(word, "path"))) {
    return mlx_error(MLX_USAGE, "cache wants one of: list, clear, path");
  }
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
