// Walks the folder of pulled models, and finds one by name. See stored_models.h.
#include "open/stored_models.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cache/cache.h"
#include "transfer/hub.h"
#include "transfer/pull_hub.h"
#include "transfer/short_names.h"

#define MAX_DEPTH 5   // of folders below models/: org/name/commit/folder
#define MAX_LISTED 8  // models named in an error

typedef struct walk {
  mlx_stored_models_visit_fn_t visit;
  void *user;
  const char *folder;  // current one
  size_t root;         // length of the path before a model's name
  int depth;
  bool in_model;  // |folder| is a model: only GGUF files in it are further models
} walk_t;

// Appends a model's path without the commit hashes in it: "org/name/0123...cdef/x.gguf" gives
// org/name/x.gguf.
static void put_name(mlx_text_t *out, const char *path) {
  while (*path) {
    const size_t length = strcspn(path, "/");
    const bool is_commit = length == 40 && strspn(path, "0123456789abcdef") == 40;
    if (!is_commit) mlx_text_printf(out, "%s%.*s", out->length ? "/" : "", (int)length, path);
    path += length + (path[length] == '/');
  }
}

static mlx_status_t visit_model(walk_t *walk, const char *path, bool is_bundle) {
  mlx_text_t name = {0};
  put_name(&name, path + walk->root);
  mlx_status_t status = mlx_text_finish(&name);
  if (!status) {
    const mlx_stored_model_t model = {.name = name.data, .path = path, .is_bundle = is_bundle};
    status = walk->visit(walk->user, &model);
  }
  mlx_text_clear(&name);
  return status;
}

static mlx_status_t walk_name(void *user, const char *name);

static mlx_status_t walk_folder(walk_t *walk, const char *folder, bool in_model) {
  const char *above = walk->folder;
  const bool was_in_model = walk->in_model;
  if (walk->depth == MAX_DEPTH) return NULL;
  walk->folder = folder;
  walk->in_model = in_model;
  ++walk->depth;
  mlx_status_t status = mlx_list_dir(folder, walk_name, walk);
  --walk->depth;
  walk->in_model = was_in_model;
  walk->folder = above;
  return status;
}

// A folder is a bundle, a model, which may have GGUF files of the same commit beside it, or has models in it.
static mlx_status_t visit_folder(walk_t *walk, const char *path) {
  char *config;
  if (walk->in_model) return NULL;
  if (mlx_is_bundle(path)) return visit_model(walk, path, true);
  MLX_TRY(mlx_join_path(path, "config.json", &config));
  const bool is_model = mlx_is_file(config);
  mlx_free(config);
  if (is_model) MLX_TRY(visit_model(walk, path, false));
  return walk_folder(walk, path, is_model);
}

// Visits the model |name|, or walks into it if it is a folder of models. A split GGUF model is visited once,
// by its first part.
static mlx_status_t walk_name(void *user, const char *name) {
  walk_t *walk = user;
  char *path;
  int part, parts;
  const char *dash = strstr(name, "-of-");
  const bool later_part =
      dash && dash - name >= 6 && sscanf(dash - 6, "-%5d-of-%5d.gguf", &part, &parts) == 2 && part != 1;
  if (name[0] == '.' || mlx_ends_with(name, ".part")) return NULL;  // .part: an unfinished pull
  MLX_TRY(mlx_join_path(walk->folder, name, &path));
  mlx_status_t status = NULL;
  if (mlx_is_dir(path)) {
    status = visit_folder(walk, path);
  } else if (mlx_ends_with(name, ".gguf")) {
    // A FIFO or a device is not a model.
    if (!later_part && mlx_is_file(path)) status = visit_model(walk, path, false);
  } else if (!walk->in_model && mlx_is_bundle(path)) {
    status = visit_model(walk, path, true);
  }
  mlx_free(path);
  return status;
}

mlx_status_t mlx_stored_models_walk(const char *cache_folder, mlx_stored_models_visit_fn_t visit,
                                    void *user) {
  char *folder;
  MLX_TRY(mlx_join_path(cache_folder, "models", &folder));
  walk_t walk = {.visit = visit, .user = user, .root = strlen(folder) + 1};
  mlx_status_t status = mlx_is_dir(folder) ? walk_folder(&walk, folder, false) : NULL;
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Serving

typedef struct served {
  mlx_stored_models_visit_fn_t visit;
  void *user;
  size_t root;       // length of the path before a model's name
  mlx_text_t names;  // so far, each followed by a newline
} served_t;

// True if |ref|, "hf:ORG/NAME:SELECTOR", names the model's repository. Saves reading the records of the
// others.
static bool is_in_repository(const char *name, const char *ref) {
  const char *repository = ref + strlen(MLX_HUB_PREFIX);
  const size_t length = strcspn(repository, "@:");
  return !strncmp(name, repository, length) && (!name[length] || name[length] == '/');
}

// The short name whose pull stored the model; NULL if there is none.
static const char *short_name_of(const mlx_stored_model_t *model) {
  const mlx_short_name_t *row;
  for (size_t i = 0; (row = mlx_short_name(i)); ++i) {
    char *path = NULL;
    if (!is_in_repository(model->name, row->ref)) continue;
    mlx_status_free(mlx_pull_hub_find(row->ref, &path));  // a damaged record: the model has no short name
    const bool is_same = path && !strcmp(path, model->path);
    mlx_free(path);
    if (is_same) return row->name;
  }
  return NULL;
}

static bool has_line(const mlx_text_t *lines, const char *line) {
  const size_t length = strlen(line);
  for (const char *at = lines->data; at && *at; at = strchr(at, '\n') + 1) {
    if (!strncmp(at, line, length) && at[length] == '\n') return true;
  }
  return false;
}

static mlx_status_t visit_served(void *user, const mlx_stored_model_t *model) {
  served_t *served = user;
  mlx_stored_model_t renamed = *model;
  if (mlx_ends_with(model->path, ".gguf") && strstr(mlx_file_name(model->path).text, "mmproj")) return NULL;
  const char *known = short_name_of(model);
  if (known) renamed.name = known;
  if (has_line(&served->names, renamed.name)) renamed.name = model->path + served->root;
  mlx_text_printf(&served->names, "%s\n", renamed.name);
  MLX_TRY(mlx_text_finish(&served->names));
  return served->visit(served->user, &renamed);
}

mlx_status_t mlx_stored_models_walk_served(mlx_stored_models_visit_fn_t visit, void *user) {
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  const char *folder = mlx_cache_folder(cache);
  served_t served = {.visit = visit, .user = user, .root = strlen(folder) + strlen("/models/")};
  mlx_status_t status = mlx_stored_models_walk(folder, visit_served, &served);
  mlx_text_clear(&served.names);
  mlx_cache_close(cache);
  return status;
}

mlx_status_t mlx_stored_models_check(const char *path) {
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_cache_check_tree(cache, path);
  mlx_cache_close(cache);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Finding

typedef struct search {
  const char *name;
  bool exact;  // only models whose whole name is |name|
  char *path;  // of the first match
  size_t count;
  mlx_text_t names, paths;  // of the matches, for an error
  bool same_name;           // two matches have one name: two commits of a repository
} search_t;

static bool is_end(const char *rest) { return !*rest || !strcmp(rest, ".gguf") || !strcmp(rest, ".mlxb"); }

static bool matches(const char *name, const char *word, bool exact) {
  const size_t length = strlen(word);
  if (!length) return false;
  if (exact) return !strncasecmp(name, word, length) && is_end(name + length);
  if (!strncasecmp(name, word, length) && name[length] == '/') return true;
  for (const char *at = name; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL) {
    if (!strncasecmp(at, word, length) && is_end(at + length)) return true;
  }
  return false;
}

static mlx_status_t add_match(void *user, const mlx_stored_model_t *model) {
  search_t *search = user;
  if (!matches(model->name, search->name, search->exact)) return NULL;
  if (!search->count) MLX_TRY(mlx_copy_text(model->path, strlen(model->path), &search->path));
  if (search->count++ >= MAX_LISTED) return NULL;
  const size_t length = strlen(model->name);
  for (const char *at = search->names.data; at && *at; at += strcspn(at, ",")) {
    at += strspn(at, ", ");
    search->same_name |= !strncmp(at, model->name, length) && (!at[length] || at[length] == ',');
  }
  mlx_text_printf(&search->names, "%s%s", search->names.length ? ", " : "", model->name);
  mlx_text_printf(&search->paths, "%s%s", search->paths.length ? ", " : "", model->path);
  mlx_status_t status = mlx_text_finish(&search->names);
  return mlx_status_join(status, mlx_text_finish(&search->paths));
}

static void clear_search(search_t *search) {
  mlx_free(search->path);
  mlx_text_clear(&search->names);
  mlx_text_clear(&search->paths);
  *search = (search_t){.name = search->name};
}

mlx_status_t mlx_stored_models_find(const char *name, char **out_path) {
  search_t search = {.name = name, .exact = true};
  mlx_cache_t *cache;
  *out_path = NULL;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_stored_models_walk(mlx_cache_folder(cache), add_match, &search);
  if (!status && !search.count) {
    clear_search(&search);
    status = mlx_stored_models_walk(mlx_cache_folder(cache), add_match, &search);
  }
  if (!status && search.count == 1) status = mlx_cache_check_tree(cache, search.path);
  if (!status && search.count > 1)
    status = mlx_status_hint(
        mlx_error(MLX_USAGE, "'%s' matches %zu models", name, search.count), "name one of them: %s%s",
        search.same_name ? search.paths.data : search.names.data, search.count > MAX_LISTED ? ", ..." : "");
  if (!status) {
    *out_path = search.path;
    search.path = NULL;
  }
  clear_search(&search);
  mlx_cache_close(cache);
  return status;
}
