// The registry of models and the thread that loads them.
#include "server/core/models.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/rooms.h"
#include "server/core/folders.h"
#include "server/core/model_path.h"
#include "server/core/page_cache.h"

#define MAX_LISTED 8  // names in an error

struct mlx_served_model {
  char *path, *name;  // owned
  char **aliases;     // owned
  size_t alias_count, alias_capacity;
  int64_t created;
  uint64_t size;
  // Guarded by the registry's mutex.
  int64_t scan;              // the last one that found it; 0: it was added
  bool is_gone;              // the last scan did not find it
  mlx_servings_t *servings;  // owned; NULL: not loaded
  uint64_t bytes;            // that the model may use, when it was last loaded; 0: it never was
  int64_t users;             // requests
  double used;               // time of the last use
  bool wanted;               // in the queue of the loading thread
  bool leaving;              // is unloaded as soon as it has no users; new requests wait
  bool sleeps;               // it was loaded when the models went to sleep
  mlx_page_cache_t files;    // of a model on a GPU that sleeps at level 1
  mlx_model_waiter_t *waiters, *last_waiter;
  int64_t waiting;  // number of waiters
  int64_t turn;     // of the first one, among the models that are waited for
};

struct mlx_models {
  mlx_models_options_t options;
  mlx_served_model_t **items;  // owned
  size_t count, capacity;
  uv_mutex_t mutex;
  uv_mutex_t scan_mutex;  // one scan at a time; locked before |mutex|
  int64_t scans;          // guarded by |scan_mutex|
  uv_cond_t wake;         // for the loading thread
  uv_thread_t thread;
  bool has_thread, stopping;
  int64_t loads, unloads, turns;
  int level, wanted_level;  // of sleep; 0: awake
  bool abort;               // requests, to reach |wanted_level|
  bool changing;            // a thread waits for |level| to be |wanted_level|
  uv_cond_t changed;
  mlx_status_t wake_status;        // of the models that are loaded again
  mlx_scheduler_stats_t unloaded;  // what the schedulers of unloaded models did
};

// ----------------------------------------------------------------------------------------------------------
// Names

static bool has_name(const mlx_served_model_t *model, const char *name, size_t length) {
  if (strlen(model->name) == length && !strncasecmp(model->name, name, length)) return true;
  return strlen(model->path) == length && !strncmp(model->path, name, length);
}

static bool has_alias(const mlx_served_model_t *model, const char *name, size_t length) {
  for (size_t i = 0; i < model->alias_count; ++i) {
    if (strlen(model->aliases[i]) == length && !strncasecmp(model->aliases[i], name, length)) return true;
  }
  return false;
}

// Functions named *_locked are called with the mutex. A model's own name comes before aliases of others.
static mlx_served_model_t *find_locked(const mlx_models_t *m, const char *name, bool *out_is_alias) {
  size_t length = strlen(name);
  for (int pass = 0; pass < 4; ++pass) {
    bool (*const is_called)(const mlx_served_model_t *, const char *, size_t) =
        pass % 2 ? has_alias : has_name;
    *out_is_alias = pass % 2;
    for (size_t i = 0; i < m->count; ++i) {
      if (!m->items[i]->is_gone && is_called(m->items[i], name, length)) return m->items[i];
    }
    if (pass == 1) {
      if (!mlx_ends_with_nocase(name, ":latest")) break;  // Ollama's clients add it
      length -= strlen(":latest");
    }
  }
  return NULL;
}

static mlx_served_model_t *find_known(mlx_models_t *m, const char *name) {
  bool is_alias;
  uv_mutex_lock(&m->mutex);
  mlx_served_model_t *model = find_locked(m, name, &is_alias);
  uv_mutex_unlock(&m->mutex);
  return model;
}

bool mlx_models_is_alias(mlx_models_t *m, const char *name) {
  bool is_alias;
  uv_mutex_lock(&m->mutex);
  const bool found = find_locked(m, name, &is_alias) != NULL;
  uv_mutex_unlock(&m->mutex);
  return found && is_alias;
}

mlx_served_model_t *mlx_models_find(mlx_models_t *m, const char *name) {
  char *path = NULL;
  mlx_served_model_t *model = find_known(m, name);
  if (model || !m->options.scan) return model;
  mlx_status_free(mlx_models_scan(m));  // if it fails, the models are those of the last one
  model = find_known(m, name);
  if (model || !m->options.locate) return model;
  mlx_status_free(m->options.locate(m->options.user, name, &path));
  model = path ? find_known(m, path) : NULL;
  mlx_free(path);
  return model;
}

mlx_served_model_t *mlx_models_choose(mlx_models_t *m, const char *name) {
  if (name && *name) {
    mlx_served_model_t *model = mlx_models_find(m, name);
    return model || m->options.scan || mlx_models_count(m) != 1 ? model : mlx_models_at(m, 0);
  }
  mlx_served_model_t *first = mlx_models_at(m, 0);
  if (!first) mlx_status_free(mlx_models_scan(m));
  return first ? first : mlx_models_at(m, 0);
}

mlx_status_t mlx_models_missing_error(mlx_models_t *m, const char *name) {
  mlx_text_t names = {0};
  mlx_served_model_t *model;
  size_t count = 0;
  for (; count < MAX_LISTED && (model = mlx_models_at(m, count)); ++count)
    mlx_text_printf(&names, "%s%s", count ? ", " : "", model->name);
  mlx_status_t status = name && *name ? mlx_error(MLX_NOT_FOUND, "model: '%s' does not exist", name)
                                      : mlx_error(MLX_NOT_FOUND, "model: the server has no model");
  if (!count) {
    status = mlx_status_hint(status, "`mlxcel pull NAME` on the server's machine stores one");
  } else {
    status = mlx_status_hint(status, "the models are: %s%s", names.data ? names.data : "",
                             mlx_models_at(m, count) ? ", and those of GET /v1/models" : "");
  }
  mlx_text_clear(&names);
  return status;
}

static size_t count_locked(const mlx_models_t *m) {
  size_t count = 0;
  for (size_t i = 0; i < m->count; ++i) count += !m->items[i]->is_gone;
  return count;
}

size_t mlx_models_count(mlx_models_t *m) {
  uv_mutex_lock(&m->mutex);
  const size_t count = count_locked(m);
  uv_mutex_unlock(&m->mutex);
  return count;
}

mlx_served_model_t *mlx_models_at(mlx_models_t *m, size_t index) {
  mlx_served_model_t *model = NULL;
  uv_mutex_lock(&m->mutex);
  for (size_t i = 0; i < m->count && !model; ++i) {
    if (!m->items[i]->is_gone && !index--) model = m->items[i];
  }
  uv_mutex_unlock(&m->mutex);
  return model;
}

const char *mlx_served_model_name(const mlx_served_model_t *model) { return model->name; }
size_t mlx_served_model_alias_count(const mlx_served_model_t *model) { return model->alias_count; }
const char *mlx_served_model_alias(const mlx_served_model_t *model, size_t index) {
  return model->aliases[index];
}
const char *mlx_served_model_path(const mlx_served_model_t *model) { return model->path; }
int64_t mlx_served_model_created(const mlx_served_model_t *model) { return model->created; }
uint64_t mlx_served_model_size(const mlx_served_model_t *model) { return model->size; }
mlx_servings_t *mlx_served_model_servings(const mlx_served_model_t *model) { return model->servings; }

// ----------------------------------------------------------------------------------------------------------
// Adding

static void free_model(mlx_served_model_t *model) {
  for (size_t i = 0; i < model->alias_count; ++i) mlx_free(model->aliases[i]);
  mlx_free(model->aliases);
  mlx_page_cache_release(&model->files);
  mlx_free(model->path);
  mlx_free(model->name);
  mlx_free(model);
}

// Chooses the name of a new model.
static mlx_status_t name_model(mlx_models_t *m, mlx_served_model_t *model, const char *name) {
  const char *path = model->path;
  const mlx_served_model_t *same = mlx_models_find(m, path);
  if (same && !strcmp(same->path, path))
    return mlx_status_hint(mlx_error(MLX_USAGE, "the model '%s' was given twice", path), "give it once");
  MLX_TRY(name ? mlx_copy_text(name, strlen(name), &model->name)
               : mlx_models_default_name(path, &model->name));
  if (!name && !mlx_model_is_hub(path) && mlx_models_find(m, model->name)) {
    mlx_free(model->name);
    model->name = NULL;
    MLX_TRY(mlx_model_end_of_path(path, 2, &model->name));
  }
  if (!mlx_models_find(m, model->name)) return NULL;
  const char *ending = mlx_ends_with_nocase(path, ".gguf")   ? ".gguf"
                       : mlx_ends_with_nocase(path, ".mlxb") ? ".mlxb"
                                                             : "";
  return mlx_status_hint(mlx_error(MLX_USAGE, "two models are called '%s'", model->name),
                         "make a link with another name and serve that: ln -s '%s' another-name%s", path,
                         ending);
}

// Adds |model|, or frees it if |status| or adding it fails.
static mlx_status_t keep_model(mlx_models_t *m, mlx_served_model_t *model, mlx_status_t status) {
  if (!status) mlx_model_measure(model->path, &model->created, &model->size);
  uv_mutex_lock(&m->mutex);  // other threads run already
  if (!status) status = mlx_reserve(m->count + 1, sizeof *m->items, &m->capacity, &m->items);
  if (!status) m->items[m->count++] = model;
  uv_mutex_unlock(&m->mutex);
  if (status) free_model(model);
  return status;
}

mlx_status_t mlx_models_add(mlx_models_t *m, const char *path, const char *name) {
  mlx_served_model_t *model;
  MLX_TRY(mlx_alloc(1, sizeof *model, &model));
  mlx_status_t status = mlx_copy_text(path, strlen(path), &model->path);
  if (!status) status = name_model(m, model, name);
  return keep_model(m, model, status);
}

// ----------------------------------------------------------------------------------------------------------
// Scans

// Marks the model at |path| as found. False: there is none yet.
static bool mark_found(mlx_models_t *m, const char *path) {
  bool found = false;
  uv_mutex_lock(&m->mutex);
  for (size_t i = 0; i < m->count && !found; ++i) {
    mlx_served_model_t *model = m->items[i];
    found = !strcmp(model->path, path);
    if (!found) continue;
    model->scan = m->scans;
    model->is_gone = false;
  }
  uv_mutex_unlock(&m->mutex);
  return found;
}

static mlx_status_t add_scanned(void *user, const char *path, const char *name) {
  mlx_models_t *m = user;
  mlx_served_model_t *model;
  if (mark_found(m, path)) return NULL;
  MLX_TRY(mlx_alloc(1, sizeof *model, &model));
  model->scan = m->scans;
  mlx_status_t status = mlx_copy_text(path, strlen(path), &model->path);
  if (!status) status = mlx_copy_text(name, strlen(name), &model->name);
  return keep_model(m, model, status);
}

mlx_status_t mlx_models_scan(mlx_models_t *m) {
  if (!m->options.scan) return NULL;
  uv_mutex_lock(&m->scan_mutex);
  ++m->scans;
  mlx_status_t status = m->options.scan(m->options.user, add_scanned, m);
  uv_mutex_lock(&m->mutex);
  for (size_t i = 0; i < m->count && !status; ++i)
    m->items[i]->is_gone = m->items[i]->scan && m->items[i]->scan != m->scans;
  uv_mutex_unlock(&m->mutex);
  uv_mutex_unlock(&m->scan_mutex);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Folders and aliases

typedef struct scan {
  mlx_models_t *models;
  const char *folder;
} scan_t;

static bool is_model(const char *path, const char *name) {
  char *config = NULL;
  size_t start;
  if (mlx_ends_with_nocase(name, ".gguf") &&
      (mlx_model_part_number(name, &start) > 1 || strstr(name, "mmproj")))
    return false;
  if (mlx_ends_with_nocase(path, ".gguf") || mlx_ends_with_nocase(path, ".mlxb")) return true;
  mlx_status_t status = mlx_join_path(path, "config.json", &config);
  const bool is = !status && mlx_is_file(config);
  mlx_status_free(status);
  mlx_free(config);
  return is;
}

static mlx_status_t add_found(void *user, const char *name) {
  const scan_t *scan = user;
  char *path;
  MLX_TRY(mlx_join_path(scan->folder, name, &path));
  mlx_status_t status = is_model(path, name) ? mlx_models_add(scan->models, path, NULL) : NULL;
  mlx_free(path);
  return status;
}

mlx_status_t mlx_models_add_folder(mlx_models_t *m, const char *folder) {
  const size_t before = m->count;
  scan_t scan = {m, folder};
  MLX_TRY(mlx_list_dir(folder, add_found, &scan));
  if (m->count > before) return NULL;
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "no model in '%s'", folder),
                         "put GGUF files, bundles (.mlxb) or Hugging Face directories there");
}

mlx_status_t mlx_models_alias(mlx_models_t *m, const char *alias, const char *name) {
  mlx_served_model_t *model = mlx_models_find(m, name);
  if (!model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--alias %s=%s: there is no such model", alias, name),
                           "give the model with -m %s", name);
  const mlx_served_model_t *other = mlx_models_find(m, alias);
  if (other == model) return NULL;
  if (other)
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "--alias %s=%s: the model '%s' has that name", alias, name, other->path),
        "use a name that no other model has");
  char *copy;
  MLX_TRY(mlx_copy_text(alias, strlen(alias), &copy));
  uv_mutex_lock(&m->mutex);  // other threads look for names
  mlx_status_t status =
      mlx_reserve(model->alias_count + 1, sizeof *model->aliases, &model->alias_capacity, &model->aliases);
  if (!status) model->aliases[model->alias_count++] = copy;
  uv_mutex_unlock(&m->mutex);
  if (status) mlx_free(copy);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Loading thread

// A model whose weights cannot be read any more, and that no request uses: the next one loads it again.
static bool is_damaged_locked(const mlx_served_model_t *model) {
  return model->servings && !model->users && mlx_servings_is_damaged(model->servings);
}

// Counts that the engines of a model are closed, and what they did.
static void note_unload_locked(mlx_models_t *m, const mlx_servings_t *servings) {
  mlx_servings_add_work(servings, &m->unloaded);
  ++m->unloads;
}

static void unload_damaged_locked(mlx_models_t *m, mlx_served_model_t *model) {
  mlx_servings_t *servings = model->servings;
  model->servings = NULL;
  note_unload_locked(m, servings);
  uv_mutex_unlock(&m->mutex);
  mlx_report_note(m->options.report, "unloading %s: its weights cannot be read", model->name);
  mlx_servings_free(servings);
  uv_mutex_lock(&m->mutex);
}

static uint64_t loaded_bytes_locked(const mlx_models_t *m) {
  uint64_t sum = 0;
  for (size_t i = 0; i < m->count; ++i) sum += m->items[i]->servings ? m->items[i]->bytes : 0;
  return sum;
}

// The model to unload next: the least recently used one without requests; if all have requests, the least
// recently used one. Never |keep|. NULL: there is none.
static mlx_served_model_t *oldest_locked(const mlx_models_t *m, const mlx_served_model_t *keep) {
  mlx_served_model_t *oldest = NULL;
  for (size_t i = 0; i < m->count; ++i) {
    mlx_served_model_t *model = m->items[i];
    if (!model->servings || model == keep) continue;
    const bool is_idle = !model->users, is_idler = oldest && is_idle != !oldest->users;
    if (!oldest || (is_idler ? is_idle : model->used < oldest->used)) oldest = model;
  }
  return oldest;
}

// Unloads a model when its requests have ended. False: the server ends before.
static bool unload_locked(mlx_models_t *m, mlx_served_model_t *model) {
  model->leaving = true;
  while (model->users && !m->stopping) uv_cond_wait(&m->wake, &m->mutex);
  mlx_servings_t *servings = model->users ? NULL : model->servings;
  if (!servings) return false;
  model->servings = NULL;
  model->leaving = false;
  if (model->waiters) model->wanted = true;  // requests came meanwhile
  note_unload_locked(m, servings);
  uv_mutex_unlock(&m->mutex);
  mlx_report_note(m->options.report, "unloading %s", model->name);
  mlx_servings_free(servings);
  uv_mutex_lock(&m->mutex);
  return true;
}

// Unloads a model other than |keep|. False: there is none.
static bool unload_oldest_locked(mlx_models_t *m, const mlx_served_model_t *keep) {
  mlx_served_model_t *oldest = oldest_locked(m, keep);
  return oldest && unload_locked(m, oldest);
}

// Unloads a model that had no request for |keep_seconds|. Returns the seconds until the next one is due,
// which are 0 if one was unloaded; negative: none is.
static double unload_idle_locked(mlx_models_t *m) {
  double next = -1;
  for (size_t i = 0; i < m->count && m->options.keep_seconds >= 0; ++i) {
    mlx_served_model_t *model = m->items[i];
    if (!model->servings || model->users) continue;
    const double left = mlx_models_seconds_left(m, model);
    if (left <= 0) return unload_locked(m, model) ? 0 : -1;
    if (next < 0 || left < next) next = left;
  }
  return next;
}

// Opens engine |index| of |model|. *|out_bytes| is set by tests only.
static mlx_status_t open_serving(const mlx_models_t *m, const mlx_served_model_t *model, size_t index,
                                 size_t engines, mlx_serving_t **out, uint64_t *out_bytes) {
  const int64_t count = (int64_t)engines;
  mlx_serving_options_t options = {.queue = (m->options.queue + count - 1) / count,
                                   .idle_seconds = m->options.idle_seconds,
                                   .prefill_share = m->options.prefill_share};
  if (m->options.make) return m->options.make(m->options.user, model->path, out, out_bytes);
  MLX_TRY(m->options.open(m->options.user, model->path, index, &options.engine, &options.chat));
  return mlx_serving_create(&options, out);
}

static mlx_status_t load(const mlx_models_t *m, const mlx_served_model_t *model, mlx_servings_t **out,
                         uint64_t *out_bytes) {
  const size_t engines = m->options.engines ? m->options.engines : 1;
  mlx_serving_t *serving;
  uint64_t bytes = 0;
  MLX_TRY(mlx_servings_create(m->options.stall_seconds, out));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < engines && !status; ++i) {
    status = open_serving(m, model, i, engines, &serving, &bytes);
    if (!status) status = mlx_servings_add(*out, serving);
  }
  if (status) {
    mlx_servings_free(*out);
    *out = NULL;
    return status;
  }
  *out_bytes = m->options.make ? bytes : mlx_servings_bytes(*out);
  return NULL;
}

// Loads |model|. Other models are unloaded if the limit or the memory of the device requires it.
static mlx_status_t load_locked(mlx_models_t *m, mlx_served_model_t *model) {
  mlx_servings_t *servings = NULL;
  uint64_t bytes = model->bytes > model->size ? model->bytes : model->size;  // of the last load, if any
  if (m->options.refuse_larger && model->size > m->options.memory)
    return mlx_status_hint(
        mlx_error(MLX_OUT_OF_MEMORY, "the model %s has %llu bytes; --model-memory is %llu", model->name,
                  (unsigned long long)model->size, (unsigned long long)m->options.memory),
        "use a larger --model-memory");
  while (m->options.memory && loaded_bytes_locked(m) + bytes > m->options.memory) {
    if (!unload_oldest_locked(m, model)) break;
  }
  for (;;) {
    uv_mutex_unlock(&m->mutex);
    mlx_status_t status = load(m, model, &servings, &bytes);
    if (!status && m->options.refuse_larger && bytes > m->options.memory)
      mlx_report_note(m->options.report,
                      "%s and its KV cache may use %llu MiB, more than --model-memory; --memory limits the "
                      "KV cache",
                      model->name, (unsigned long long)(bytes >> 20));
    uv_mutex_lock(&m->mutex);
    if (!status) break;
    if (mlx_status_code(status) != MLX_OUT_OF_MEMORY || !unload_oldest_locked(m, model)) return status;
    mlx_status_free(status);
  }
  model->servings = servings;
  model->bytes = bytes;
  model->used = mlx_seconds();
  ++m->loads;
  return NULL;
}

// Unloads models other than |model| until the rest is within the limit.
static void shrink_locked(mlx_models_t *m, const mlx_served_model_t *model) {
  while (m->options.memory && loaded_bytes_locked(m) > m->options.memory) {
    if (!unload_oldest_locked(m, model)) break;
  }
}

// The error of one request. A model that cannot be loaded is not the client's fault. Clients do not see where
// files are.
static mlx_status_t waiter_error(const mlx_served_model_t *model, const mlx_model_waiter_t *waiter,
                                 mlx_status_t status) {
  const char *texts[] = {mlx_status_message(status), mlx_status_hint_text(status)};
  mlx_text_t shown[2] = {0};
  for (int i = 0; i < 2; ++i) {
    if (waiter->is_local)
      mlx_text_puts(&shown[i], texts[i]);
    else
      mlx_hide_folders(texts[i], &shown[i]);
  }
  mlx_status_t error = mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "cannot load %s: %s", model->name, shown[0].data ? shown[0].data : ""), "%s",
      shown[1].data ? shown[1].data : "");
  for (int i = 0; i < 2; ++i) mlx_text_clear(&shown[i]);
  return error;
}

// Gives the loaded model, or the error, to the requests that wait for it.
static void answer_waiters_locked(mlx_models_t *m, mlx_served_model_t *model, mlx_status_t status) {
  mlx_model_waiter_t *waiter = model->waiters;
  model->waiters = model->last_waiter = NULL;
  if (!status) model->users += model->waiting;
  model->waiting = 0;
  for (mlx_model_waiter_t *w = waiter; w; w = w->next) w->model = NULL;
  uv_mutex_unlock(&m->mutex);
  if (status && waiter && !waiter->is_local)
    mlx_report_note(m->options.report, "cannot load %s: %s", model->name, mlx_status_message(status));
  for (mlx_model_waiter_t *next; waiter; waiter = next) {
    next = waiter->next;
    waiter->ready(waiter, status ? NULL : model, status ? waiter_error(model, waiter, status) : NULL);
  }
  mlx_status_free(status);
  uv_mutex_lock(&m->mutex);
}

// The model that is waited for longest.
static mlx_served_model_t *next_wanted_locked(const mlx_models_t *m) {
  mlx_served_model_t *next = NULL;
  for (size_t i = 0; i < m->count; ++i) {
    mlx_served_model_t *model = m->items[i];
    if (model->wanted && (!next || model->turn < next->turn)) next = model;
  }
  return next;
}

static mlx_status_t shutdown_error(void) { return mlx_error(MLX_UNAVAILABLE, "the server is shutting down"); }

// ---- sleep

static mlx_status_t asleep_error(const mlx_served_model_t *model) {
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "the model %s is asleep", model->name),
                         "POST /wake_up wakes it");
}

// Gives the memory of a loaded model back, at |level|.
static void put_to_sleep_locked(mlx_models_t *m, mlx_served_model_t *model, int level) {
  const mlx_engine_t *engine = mlx_serving_engine(mlx_servings_at(model->servings, 0));
  const bool on_gpu = engine && strcmp(mlx_engine_info(engine).device, "cpu");
  if (m->abort) mlx_servings_pause(model->servings);
  while (model->users && !m->stopping) uv_cond_wait(&m->wake, &m->mutex);
  if (model->users) return;
  model->sleeps = true;
  uv_mutex_unlock(&m->mutex);
  if (level == 1 && on_gpu) mlx_page_cache_hold(model->path, &model->files);
  if (level == 1 && !on_gpu) mlx_servings_trim(model->servings);
  uv_mutex_lock(&m->mutex);
  if ((level == 2 || on_gpu) && unload_locked(m, model)) mlx_memory_trim();
}

static void change_level_locked(mlx_models_t *m) {
  const int level = m->wanted_level;
  const bool wake = !level;
  if (!wake) m->level = level;  // from now on, new requests fail
  for (size_t i = 0; i < m->count && !m->stopping; ++i) {
    mlx_served_model_t *model = m->items[i];
    if (!wake && model->waiters) answer_waiters_locked(m, model, asleep_error(model));
    if (!wake && model->servings) put_to_sleep_locked(m, model, level);
    if (level == 2) mlx_page_cache_release(&model->files);
    if (!wake || !model->sleeps) continue;
    if (!model->servings) m->wake_status = mlx_status_join(m->wake_status, load_locked(m, model));
    if (model->servings) mlx_servings_resume(model->servings);
    mlx_page_cache_release(&model->files);
    model->sleeps = false;
  }
  m->level = level;
  m->changing = false;
  uv_cond_broadcast(&m->changed);
}

static mlx_status_t change_level(mlx_models_t *m, int level, bool abort) {
  mlx_status_t status = NULL;
  uv_mutex_lock(&m->mutex);
  if (m->stopping) {
    status = shutdown_error();
  } else if (m->changing) {
    status = mlx_error(MLX_UNAVAILABLE, "the models are going to sleep or waking up: another client asked");
  } else if (m->level != level) {
    m->wanted_level = level;
    m->abort = abort;
    m->changing = true;
    uv_cond_broadcast(&m->wake);
    while (m->changing) uv_cond_wait(&m->changed, &m->mutex);
    status = m->wake_status ? m->wake_status : m->level == level ? NULL : shutdown_error();
    m->wake_status = NULL;
  }
  uv_mutex_unlock(&m->mutex);
  return status;
}

mlx_status_t mlx_models_sleep(mlx_models_t *m, int level, bool abort) {
  return change_level(m, level, abort);
}

mlx_status_t mlx_models_wake(mlx_models_t *m) { return change_level(m, 0, false); }

int mlx_models_sleep_level(mlx_models_t *m) {
  uv_mutex_lock(&m->mutex);
  const int level = m->level;
  uv_mutex_unlock(&m->mutex);
  return level;
}

static void load_models(void *user) {
  mlx_models_t *m = user;
  uv_mutex_lock(&m->mutex);
  while (!m->stopping) {
    if (m->changing) change_level_locked(m);
    mlx_served_model_t *model = next_wanted_locked(m);
    if (!model) {
      const double left = unload_idle_locked(m);
      if (left < 0)
        uv_cond_wait(&m->wake, &m->mutex);
      else if (left > 0)
        uv_cond_timedwait(&m->wake, &m->mutex, (uint64_t)(left * 1e9) + 1);
      continue;
    }
    model->wanted = false;
    if (is_damaged_locked(model)) unload_damaged_locked(m, model);
    mlx_status_t status = model->servings || !model->waiters ? NULL : load_locked(m, model);
    answer_waiters_locked(m, model, status);
    shrink_locked(m, model);  // afterwards, because it may wait for requests of other models
  }
  m->changing = false;
  uv_cond_broadcast(&m->changed);
  for (size_t i = 0; i < m->count; ++i) answer_waiters_locked(m, m->items[i], shutdown_error());
  uv_mutex_unlock(&m->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Requests

// Adds |waiter| to the requests that wait for |model|.
static mlx_status_t wait_locked(mlx_models_t *m, mlx_served_model_t *model, mlx_model_waiter_t *waiter) {
  if (waiter->is_cancelled) return mlx_error(MLX_CANCELLED, "the request was cancelled");
  if (m->stopping) return shutdown_error();
  if (m->level) return asleep_error(model);
  if (model->waiting > m->options.queue) {
    waiter->is_full = true;
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "too many requests are waiting for the model %s", model->name),
        "try again later");
  }
  if (!model->waiters) model->turn = ++m->turns;
  waiter->next = NULL;
  waiter->model = model;
  *(model->last_waiter ? &model->last_waiter->next : &model->waiters) = waiter;
  model->last_waiter = waiter;
  ++model->waiting;
  if (!model->leaving) model->wanted = true;
  uv_cond_broadcast(&m->wake);
  return NULL;
}

void mlx_models_get(mlx_models_t *m, const char *name, mlx_model_waiter_t *waiter) {
  mlx_served_model_t *model = mlx_models_choose(m, name);
  if (!model) {
    waiter->ready(waiter, NULL, mlx_models_missing_error(m, name));
    return;
  }
  uv_mutex_lock(&m->mutex);
  const bool loaded =
      model->servings && !m->level && !model->leaving && !waiter->is_cancelled && !is_damaged_locked(model);
  mlx_status_t status = loaded ? NULL : wait_locked(m, model, waiter);
  const bool waits = !loaded && !status;
  if (loaded) {
    ++model->users;
    model->used = mlx_seconds();
  }
  uv_mutex_unlock(&m->mutex);
  if (!waits) waiter->ready(waiter, loaded ? model : NULL, status);
}

bool mlx_models_cancel(mlx_models_t *m, mlx_model_waiter_t *waiter) {
  uv_mutex_lock(&m->mutex);
  mlx_served_model_t *model = waiter->model;
  waiter->is_cancelled = true;
  if (model) {
    mlx_model_waiter_t *before = NULL;
    for (mlx_model_waiter_t *w = model->waiters; w != waiter; w = w->next) before = w;
    *(before ? &before->next : &model->waiters) = waiter->next;
    if (model->last_waiter == waiter) model->last_waiter = before;
    --model->waiting;
    waiter->model = NULL;
  }
  uv_mutex_unlock(&m->mutex);
  return model != NULL;
}

void mlx_models_put(mlx_models_t *m, mlx_served_model_t *model) {
  uv_mutex_lock(&m->mutex);
  --model->users;
  model->used = mlx_seconds();
  if (!model->users && (model->leaving || m->changing || m->options.keep_seconds >= 0))
    uv_cond_broadcast(&m->wake);
  uv_mutex_unlock(&m->mutex);
}

void mlx_models_visit_loaded(mlx_models_t *m,
                             void (*visit)(void *user, mlx_served_model_t *model, mlx_servings_t *servings),
                             void *user) {
  uv_mutex_lock(&m->mutex);
  for (size_t i = 0; i < m->count; ++i) {
    if (m->items[i]->servings) visit(user, m->items[i], m->items[i]->servings);
  }
  uv_mutex_unlock(&m->mutex);
}

double mlx_models_seconds_left(const mlx_models_t *m, const mlx_served_model_t *model) {
  const double keep = m->options.keep_seconds;
  if (keep < 0 || model->users) return keep;
  const double left = model->used + keep - mlx_seconds();
  return left > 0 ? left : 0;
}

void mlx_models_counts(mlx_models_t *m, int64_t *out_loads, int64_t *out_unloads) {
  uv_mutex_lock(&m->mutex);
  *out_loads = m->loads;
  *out_unloads = m->unloads;
  uv_mutex_unlock(&m->mutex);
}

mlx_scheduler_stats_t mlx_models_totals(mlx_models_t *m) {
  uv_mutex_lock(&m->mutex);
  mlx_scheduler_stats_t totals = m->unloaded;
  for (size_t i = 0; i < m->count; ++i) {
    const mlx_servings_t *servings = m->items[i]->servings;
    if (!servings) continue;
    mlx_servings_add_work(servings, &totals);
    for (size_t k = 0; k < mlx_servings_count(servings); ++k) {
      const mlx_serving_stats_t stats = mlx_serving_stats(mlx_servings_at(servings, k));
      totals.running += stats.scheduler.running;
      totals.waiting += mlx_serving_waiting(&stats);
    }
  }
  uv_mutex_unlock(&m->mutex);
  return totals;
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_models_create(const mlx_models_options_t *options, mlx_models_t **out_models) {
  // Compilers and templates nest deeply.
  const uv_thread_options_t large = {.flags = UV_THREAD_HAS_STACK_SIZE, .stack_size = (size_t)8 << 20};
  mlx_models_t *m;
  *out_models = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *m, &m));
  m->options = *options;
  uv_mutex_init(&m->mutex);
  uv_mutex_init(&m->scan_mutex);
  uv_cond_init(&m->wake);
  uv_cond_init(&m->changed);
  const int error = uv_thread_create_ex(&m->thread, &large, load_models, m);
  m->has_thread = !error;
  if (error) {
    mlx_models_free(m);
    return mlx_error(MLX_OUT_OF_MEMORY, "cannot start a thread: %s", uv_strerror(error));
  }
  *out_models = m;
  return NULL;
}

void mlx_models_stop(mlx_models_t *m) {
  uv_mutex_lock(&m->mutex);
  m->stopping = true;
  uv_cond_broadcast(&m->wake);
  uv_mutex_unlock(&m->mutex);
  if (m->has_thread) uv_thread_join(&m->thread);
  m->has_thread = false;
}

void mlx_models_free(mlx_models_t *m) {
  if (!m) return;
  mlx_models_stop(m);
  for (size_t i = 0; i < m->count; ++i) mlx_servings_free(m->items[i]->servings);
  for (size_t i = 0; i < m->count; ++i) free_model(m->items[i]);
  mlx_free(m->items);
  uv_cond_destroy(&m->wake);
  uv_cond_destroy(&m->changed);
  uv_mutex_destroy(&m->scan_mutex);
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
}
