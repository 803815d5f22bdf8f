// mlxcel rm: removes one stored model and the modules compiled from it.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "cache/cache.h"
#include "cli/confirm.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "open/removal.h"
#include "open/stored_models.h"
#include "transfer/hub.h"
#include "transfer/pull_gguf.h"
#include "transfer/pull_hub.h"
#include "transfer/pull_oci.h"
#include "transfer/short_names.h"
#include "transfer/transfer.h"

typedef struct flags {
  bool yes, quiet;
} flags_t;

// ----------------------------------------------------------------------------------------------------------
// Finding the model

static mlx_status_t find_pulled(const char *model, char **out_path) {
  const mlx_short_name_t *known = mlx_short_name_find(model);
  mlx_hub_ref_t ref;
  char name[sizeof ref.org + sizeof ref.name];
  *out_path = NULL;
  if (mlx_is_oci_ref(model)) return mlx_pull_oci_find(model, out_path);
  if (mlx_is_gguf_url(model) && !mlx_is_hub_ref(model)) return mlx_pull_gguf_find(model, out_path);
  if (!known && !mlx_is_hub_ref(model)) return mlx_stored_models_find(model, out_path);
  const char *text = known ? known->ref : model;
  MLX_TRY(mlx_pull_hub_find(text, out_path));
  if (*out_path) return NULL;
  MLX_TRY(mlx_hub_ref_parse(text, &ref));
  if (ref.selector[0]) return NULL;
  snprintf(name, sizeof name, "%s/%s", ref.org, ref.name);  // one of its quantizations may be there
  return mlx_stored_models_find(name, out_path);
}

typedef struct lookup {
  const char *path;
  bool found;
} lookup_t;

static mlx_status_t compare_path(void *user, const mlx_stored_model_t *model) {
  lookup_t *lookup = user;
  lookup->found = lookup->found || !strcmp(model->path, lookup->path);
  return NULL;
}

// Refuses a path that is not a stored model: it is the user's own file.
static mlx_status_t find_model(const char *model, const char *cache_folder, char **out_path) {
  struct stat info;
  char *real;
  MLX_TRY(find_pulled(model, out_path));
  if (*out_path) return NULL;
  if (stat(model, &info))
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "no stored model '%s'", model),
                           "`mlxcel list` shows the stored models");
  MLX_TRY(mlx_real_path(model, &real));
  lookup_t lookup = {.path = real};
  mlx_status_t status = mlx_stored_models_walk(cache_folder, compare_path, &lookup);
  if (!status && lookup.found) {
    *out_path = real;
    return NULL;
  }
  mlx_free(real);
  MLX_TRY(status);
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "'%s' is your own file: mlxcel removes only models that it stores", model),
      "remove the file yourself; `mlxcel cache clear` removes what was compiled from it");
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t confirm(const mlx_removal_t *removal, bool yes, bool *out_confirmed) {
  mlx_terminal_note("%s: %s\n", removal->path, mlx_bytes_show(removal->model_bytes).text);
  if (removal->count)
    mlx_terminal_note("%zu %s compiled from a file named %s: %s\n", removal->count,
                      mlx_plural(removal->count, "cache entry", "cache entries"), removal->name,
                      mlx_bytes_show(removal->entry_bytes).text);
  if (removal->other_files)
    mlx_terminal_note("keeps %zu GGUF %s in its folder: `mlxcel list` shows them\n", removal->other_files,
                      mlx_plural(removal->other_files, "file", "files"));
  if (removal->same_name > 1)
    mlx_terminal_note("keeps what was compiled from it: another stored model has the same file name\n");
  *out_confirmed = yes;
  if (yes) return NULL;
  if (!mlx_cli_can_ask())
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "cannot ask whether to remove '%s': stdin or stderr is not a terminal",
                  removal->path),
        "pass --yes to remove it without a question");
  char question[384];
  snprintf(question, sizeof question, "remove %s%s and free %s?", removal->label,
           removal->count ? ", what was compiled from it," : "",
           mlx_bytes_show(removal->model_bytes + removal->entry_bytes).text);
  *out_confirmed = mlx_cli_ask(question);
  if (!*out_confirmed) mlx_terminal_note("nothing was removed\n");
  return NULL;
}

static mlx_status_t remove_confirmed(mlx_removal_t *removal, bool yes) {
  mlx_cache_cleared_t cleared;
  bool confirmed;
  MLX_TRY(confirm(removal, yes, &confirmed));
  if (!confirmed) return NULL;
  mlx_status_t status = mlx_removal_run(removal, &cleared);
  if (status) return status;
  mlx_terminal_note("removed; freed %s", mlx_bytes_show(removal->model_bytes + cleared.bytes).text);
  if (cleared.in_use) mlx_terminal_note("; kept %zu in use", cleared.in_use);
  if (cleared.kept) mlx_terminal_note("; kept %zu that a bundle without weights needs", cleared.kept);
  mlx_terminal_note("\n");
  return NULL;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *model = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &model, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel rm NAME");
  mlx_removal_t removal = {0};
  mlx_cache_t *cache;
  char *path = NULL;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = find_model(model, mlx_cache_folder(cache), &path);
  if (!status) status = mlx_removal_plan(cache, path, &removal);
  if (!status) status = remove_confirmed(&removal, f.yes);
  mlx_removal_clear(&removal);
  mlx_free(path);
  mlx_cache_close(cache);
  return status;
}

static const mlx_flag_t flags[] = {
    MLX_YES_FLAG(flags_t, yes),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};

const mlx_verb_t mlx_verb_rm = {
    .name = "rm",
    .summary = "remove a stored model and what was compiled from it",
    .usage =
        "usage: mlxcel rm NAME [options]\n\n"
        "NAME is a name that `mlxcel list` prints, a short name, hf:ORG/NAME[:QUANT], a URL or an oci:// "
        "reference. Removes the model and the modules, weights and tokenizer compiled from it. Prints what "
        "that frees, and asks at a terminal. Files outside the cache are never removed.\n\n"
        "examples:\n"
        "  mlxcel rm smollm2:135m\n"
        "  mlxcel rm hf:ORG/NAME:Q4_K_M --yes",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
