// mlxcel rm: removes one stored model and the modules compiled from it.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "cache/cache.h"
#include "cache/lock.h"
#include "cli/confirm.h"
#include "cli/needed.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "open/stored_models.h"
#include "transfer/hub.h"
#include "transfer/pull_gguf.h"
#include "transfer/pull_hub.h"
#include "transfer/pull_oci.h"
#include "transfer/short_names.h"
#include "transfer/transfer.h"

#define MAX_TITLE 64  // bytes of a file name in the title of a cache entry

typedef struct flags {
  bool yes, quiet;
} flags_t;

typedef struct entry {
  char kind[33], key[MLX_DIGEST_HEX];
} entry_t;

typedef struct removal {
  mlx_cache_t *cache;
  char *path;        // of the model
  char *repository;  // models/ORG/NAME: its folder may go too; NULL for a model directly below models/
  char name[MAX_TITLE + 1];  // the model's name in titles of cache entries
  char label[256];           // the model's name as `mlxcel list` prints it
  size_t same_name;          // stored models with that name
  size_t other_files;        // GGUF files in the model's folder, which are models of their own
  entry_t *entries;          // compiled from the model
  size_t count, capacity;
  uint64_t model_bytes, entry_bytes;
} removal_t;

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
// What is removed

// Calls |visit| with every file of the model: the parts of a split GGUF file, or |path| itself.
static mlx_status_t each_file(const char *path, mlx_status_t (*visit)(void *user, const char *path),
                              void *user) {
  unsigned part, parts;
  int used = 0;
  const size_t suffix = strlen("-00001-of-00002.gguf"), length = strlen(path);
  if (length < suffix || sscanf(path + length - suffix, "-%5u-of-%5u.gguf%n", &part, &parts, &used) != 2 ||
      (size_t)used != suffix)
    return visit(user, path);
  for (unsigned i = 1; i <= parts; ++i) {
    char *file;
    MLX_TRY(mlx_format(&file, "%.*s-%05u-of-%05u.gguf", (int)(length - suffix), path, i, parts));
    mlx_status_t status = visit(user, file);
    mlx_free(file);
    MLX_TRY(status);
  }
  return NULL;
}

static mlx_status_t add_bytes(void *user, const char *path);

typedef struct sum {
  uint64_t *bytes;
  const char *folder;
} sum_t;

// GGUF files in a model's folder are other models: rm of the folder keeps them.
static bool is_other_model(const char *path) { return mlx_ends_with(path, ".gguf"); }

static mlx_status_t add_child(void *user, const char *name) {
  const sum_t *sum = user;
  char *path;
  if (is_other_model(name)) return NULL;
  MLX_TRY(mlx_join_path(sum->folder, name, &path));
  mlx_status_t status = add_bytes(sum->bytes, path);
  mlx_free(path);
  return status;
}

static mlx_status_t add_bytes(void *user, const char *path) {
  uint64_t *bytes = user;
  struct stat info;
  if (lstat(path, &info)) return NULL;
  if (S_ISREG(info.st_mode)) *bytes += (uint64_t)info.st_size;
  return S_ISDIR(info.st_mode) ? mlx_list_dir(path, add_child, &(sum_t){bytes, path}) : NULL;
}

static mlx_status_t remove_file(void *user, const char *name) {
  char *path;
  if (is_other_model(name)) return NULL;
  MLX_TRY(mlx_join_path(user, name, &path));
  mlx_status_t status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

static mlx_status_t count_other(void *user, const char *name) {
  *(size_t *)user += is_other_model(name);
  return NULL;
}

static mlx_status_t remove_path(void *user, const char *path) {
  const removal_t *removal = user;
  return removal->other_files ? mlx_list_dir(path, remove_file, (void *)(uintptr_t)path)
                              : mlx_remove_tree(path);
}

static void title_name(const char *path, char out[MAX_TITLE + 1]) {
  snprintf(out, MAX_TITLE + 1, "%.*s", MAX_TITLE, mlx_file_name(path).text);
}

static mlx_status_t count_name(void *user, const mlx_stored_model_t *model) {
  removal_t *removal = user;
  char name[MAX_TITLE + 1];
  title_name(model->path, name);
  removal->same_name += !strcmp(name, removal->name);
  if (!strcmp(model->path, removal->path)) snprintf(removal->label, sizeof removal->label, "%s", model->name);
  return NULL;
}

// True if |item| was made from a model of this name.
static bool is_made_from(const mlx_cache_item_t *item, const char *name) {
  static const struct {
    const char *kind, *before, *after;  // the title: |before|, the name, |after|
  } kinds[] = {{"vmfb", "", " as "}, {"weights", "weights of ", " as "}, {"tokenizer", "tokenizer of ", ""}};
  const char *title = item->title;
  for (size_t i = 0; title && i < sizeof kinds / sizeof *kinds; ++i) {
    const size_t before = strlen(kinds[i].before), length = strlen(name), after = strlen(kinds[i].after);
    if (strcmp(item->kind, kinds[i].kind) || strncmp(title, kinds[i].before, before)) continue;
    const char *end = title + before + length;
    return !strncmp(title + before, name, length) && (after ? !strncmp(end, kinds[i].after, after) : !*end);
  }
  return false;
}

// Adds a compiled module, an archive of weights or the tokenizer of the model.
static mlx_status_t add_entry(void *user, const mlx_cache_item_t *item) {
  removal_t *removal = user;
  if (!is_made_from(item, removal->name)) return NULL;
  MLX_TRY(mlx_reserve(removal->count + 1, sizeof *removal->entries, &removal->capacity, &removal->entries));
  entry_t *entry = &removal->entries[removal->count++];
  snprintf(entry->kind, sizeof entry->kind, "%s", item->kind);
  snprintf(entry->key, sizeof entry->key, "%s", item->key);
  removal->entry_bytes += item->bytes;
  return NULL;
}

// models/ORG/NAME of the model at |path|, or NULL.
static mlx_status_t find_repository(const char *path, size_t models_length, char **out_folder) {
  const char *org_end = strchr(path + models_length + 1, '/');
  const char *name_end = org_end ? strchr(org_end + 1, '/') : NULL;
  *out_folder = NULL;
  return name_end ? mlx_copy_text(path, (size_t)(name_end - path), out_folder) : NULL;
}

static mlx_status_t plan(removal_t *removal, const char *models) {
  title_name(removal->path, removal->name);
  MLX_TRY(find_repository(removal->path, strlen(models), &removal->repository));
  MLX_TRY(each_file(removal->path, add_bytes, &removal->model_bytes));
  if (mlx_is_dir(removal->path)) MLX_TRY(mlx_list_dir(removal->path, count_other, &removal->other_files));
  snprintf(removal->label, sizeof removal->label, "%s", mlx_file_name(removal->path).text);
  MLX_TRY(mlx_stored_models_walk(mlx_cache_folder(removal->cache), count_name, removal));
  // A title has no folder: modules of another model with the same file name have the same title.
  return removal->same_name > 1 ? NULL : mlx_cache_list(removal->cache, add_entry, removal);
}

// ----------------------------------------------------------------------------------------------------------
// Removing

typedef struct remaining {
  const char *folder;
  size_t count;
} remaining_t;

static mlx_status_t count_remaining(void *user, const mlx_stored_model_t *model) {
  remaining_t *remaining = user;
  const size_t length = strlen(remaining->folder);
  remaining->count += !strncmp(model->path, remaining->folder, length) && model->path[length] == '/';
  return NULL;
}

static void remove_empty_folder_of(const char *path) {
  char *folder = NULL;
  mlx_status_t status = mlx_folder_of(path, &folder);
  if (!status) (void)!rmdir(folder);  // fails if it is not empty
  mlx_status_free(status);
  mlx_free(folder);
}

static mlx_status_t remove_child(void *user, const char *name) {
  char *path;
  if (!strcmp(name, ".lock")) return NULL;  // held
  MLX_TRY(mlx_join_path(user, name, &path));
  mlx_status_t status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

// Empties the folder of a repository without models: removes its records and unfinished pulls. The folder of
// a web server may contain a pull of another process, so nothing else in it is removed.
static mlx_status_t prune(const removal_t *removal, const char *models) {
  remaining_t remaining = {.folder = removal->repository};
  const bool is_url = !strncmp(removal->repository + strlen(models), "/url/", 5);
  remove_empty_folder_of(removal->path);
  MLX_TRY(mlx_stored_models_walk(mlx_cache_folder(removal->cache), count_remaining, &remaining));
  return remaining.count || is_url ? NULL
                                   : mlx_list_dir(removal->repository, remove_child, removal->repository);
}

static mlx_status_t remove_model(removal_t *removal, const char *models) {
  char *lock_path;
  mlx_lock_t lock = {.fd = -1};
  if (!removal->repository) return each_file(removal->path, remove_path, removal);
  MLX_TRY(mlx_join_path(removal->repository, ".lock", &lock_path));
  mlx_status_t status = mlx_lock_try(lock_path, &lock);
  if (!status && lock.fd < 0)
    status = mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "another process pulls to '%s'", removal->repository),
                             "run the command again when it is done");
  if (!status) status = each_file(removal->path, remove_path, removal);
  if (!status) status = prune(removal, models);
  mlx_lock_release_and_remove(&lock);
  if (!status) {
    (void)!rmdir(removal->repository);  // fails if it has other models, or is gone
    remove_empty_folder_of(removal->repository);
  }
  mlx_free(lock_path);
  return status;
}

static mlx_status_t remove_entries(const removal_t *removal, mlx_cache_cleared_t *cleared) {
  mlx_needed_t needed;
  mlx_status_t status = NULL;
  MLX_TRY(mlx_needed_read(&needed));
  const mlx_cache_keep_t keep = mlx_needed_keep(&needed);
  for (size_t i = 0; i < removal->count; ++i)
    status = mlx_status_join(status, mlx_cache_remove(removal->cache, removal->entries[i].kind,
                                                      removal->entries[i].key, &keep, cleared));
  mlx_needed_clear(&needed);
  return status;
}

static mlx_status_t confirm(const removal_t *removal, bool yes, bool *out_confirmed) {
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

static mlx_status_t remove_all(removal_t *removal, const char *models, bool yes) {
  mlx_cache_cleared_t cleared = {0};
  bool confirmed;
  MLX_TRY(plan(removal, models));
  MLX_TRY(confirm(removal, yes, &confirmed));
  if (!confirmed) return NULL;
  MLX_TRY(remove_model(removal, models));
  mlx_status_t status = remove_entries(removal, &cleared);
  mlx_terminal_note("removed; freed %s", mlx_bytes_show(removal->model_bytes + cleared.bytes).text);
  if (cleared.in_use) mlx_terminal_note("; kept %zu in use", cleared.in_use);
  if (cleared.kept) mlx_terminal_note("; kept %zu that a bundle without weights needs", cleared.kept);
  mlx_terminal_note("\n");
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *model = NULL;
  char *models = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &model, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel rm NAME");
  removal_t removal = {0};
  MLX_TRY(mlx_cache_open(NULL, &removal.cache));
  mlx_status_t status = mlx_join_path(mlx_cache_folder(removal.cache), "models", &models);
  if (!status) status = find_model(model, mlx_cache_folder(removal.cache), &removal.path);
  if (!status) status = remove_all(&removal, models, f.yes);
  mlx_free(models);
  mlx_free(removal.entries);
  mlx_free(removal.repository);
  mlx_free(removal.path);
  mlx_cache_close(removal.cache);
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
