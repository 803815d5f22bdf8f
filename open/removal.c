// Plans and runs the removal of a stored model. See removal.h.
#include "open/removal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cache/lock.h"
#include "open/needed.h"
#include "open/stored_models.h"

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
  const mlx_removal_t *removal = user;
  return removal->other_files ? mlx_list_dir(path, remove_file, (void *)(uintptr_t)path)
                              : mlx_remove_tree(path);
}

static void title_name(const char *path, char out[MLX_REMOVAL_NAME + 1]) {
  snprintf(out, MLX_REMOVAL_NAME + 1, "%.*s", MLX_REMOVAL_NAME, mlx_file_name(path).text);
}

static mlx_status_t count_name(void *user, const mlx_stored_model_t *model) {
  mlx_removal_t *removal = user;
  char name[MLX_REMOVAL_NAME + 1];
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
  mlx_removal_t *removal = user;
  if (!is_made_from(item, removal->name)) return NULL;
  MLX_TRY(mlx_reserve(removal->count + 1, sizeof *removal->entries, &removal->capacity, &removal->entries));
  mlx_removal_entry_t *entry = &removal->entries[removal->count++];
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

static mlx_status_t plan(mlx_removal_t *removal) {
  title_name(removal->path, removal->name);
  MLX_TRY(find_repository(removal->path, strlen(removal->models), &removal->repository));
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
static mlx_status_t prune(const mlx_removal_t *removal) {
  remaining_t remaining = {.folder = removal->repository};
  const bool is_url = !strncmp(removal->repository + strlen(removal->models), "/url/", 5);
  remove_empty_folder_of(removal->path);
  MLX_TRY(mlx_stored_models_walk(mlx_cache_folder(removal->cache), count_remaining, &remaining));
  return remaining.count || is_url ? NULL
                                   : mlx_list_dir(removal->repository, remove_child, removal->repository);
}

static mlx_status_t remove_model(mlx_removal_t *removal) {
  char *lock_path;
  mlx_lock_t lock = {.fd = -1};
  if (!removal->repository) return each_file(removal->path, remove_path, removal);
  MLX_TRY(mlx_join_path(removal->repository, ".lock", &lock_path));
  mlx_status_t status = mlx_lock_try(lock_path, &lock);
  if (!status && lock.fd < 0)
    status = mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "another process pulls to '%s'", removal->repository),
                             "run the command again when it is done");
  if (!status) status = each_file(removal->path, remove_path, removal);
  if (!status) status = prune(removal);
  mlx_lock_release_and_remove(&lock);
  if (!status) {
    (void)!rmdir(removal->repository);  // fails if it has other models, or is gone
    remove_empty_folder_of(removal->repository);
  }
  mlx_free(lock_path);
  return status;
}

static mlx_status_t remove_entries(const mlx_removal_t *removal, mlx_cache_cleared_t *cleared) {
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

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_removal_plan(mlx_cache_t *cache, const char *path, mlx_removal_t *out) {
  *out = (mlx_removal_t){.cache = cache};
  mlx_status_t status = mlx_copy_text(path, strlen(path), &out->path);
  if (!status) status = mlx_join_path(mlx_cache_folder(cache), "models", &out->models);
  if (!status) status = plan(out);
  if (status) mlx_removal_clear(out);
  return status;
}

mlx_status_t mlx_removal_run(mlx_removal_t *removal, mlx_cache_cleared_t *out_cleared) {
  *out_cleared = (mlx_cache_cleared_t){0};
  MLX_TRY(remove_model(removal));
  return remove_entries(removal, out_cleared);
}

void mlx_removal_clear(mlx_removal_t *removal) {
  mlx_free(removal->entries);
  mlx_free(removal->repository);
  mlx_free(removal->models);
  mlx_free(removal->path);
  *removal = (mlx_removal_t){0};
}
