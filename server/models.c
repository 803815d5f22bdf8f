// The registry of models and the thread that loads them.
#include "server/models.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"

struct mlx_model {
  char *path, *name;  // owned
  char **aliases;     // owned
  size_t alias_count, alias_capacity;
  int64_t created;
  uint64_t size;
  // Guarded by the registry's mutex.
  mlx_serving_t *serving;  // owned; NULL: not loaded
  uint64_t bytes;          // that the model may use, when it was last loaded; 0: it never was
  int64_t users;           // requests
  double used;             // time of the last use
  bool wanted;             // in the queue of the loading thread
  bool leaving;            // is unloaded as soon as it has no users; new requests wait
  mlx_model_waiter_t *waiters, *last_waiter;
  int64_t waiting;  // number of waiters
  int64_t turn;     // of the first one, among the models that are waited for
};

struct mlx_models {
  mlx_models_options_t options;
  mlx_model_t **items;  // owned
  size_t count, capacity;
  uv_mutex_t mutex;
  uv_cond_t wake;  // for the loading thread
  uv_thread_t thread;
  bool has_thread, stopping;
  int64_t loads, unloads, turns;
};

// ----------------------------------------------------------------------------------------------------------
// Names

static bool ends_with(const char *text, const char *ending) {
  const size_t length = strlen(text), size = strlen(ending);
  return length >= size && !strcasecmp(text + length - size, ending);
}

#define PART_LENGTH 15  // of "-00001-of-00003"

// The number of a GGUF file that is a part of a model: 2 of "NAME-00002-of-00003.gguf". 0: it is no part.
// *|out_start| is the length of NAME.
static int part_number(const char *path, size_t *out_start) {
  const size_t length = strlen(path), ending = strlen(".gguf");
  int number = 0;
  if (!ends_with(path, ".gguf") || length < PART_LENGTH + ending) return 0;
  const char *part = path + length - ending - PART_LENGTH;
  for (size_t i = 0; i < PART_LENGTH; ++i) {
    const char pattern = "-00000-of-00000"[i];
    if (pattern == '0' ? part[i] < '0' || part[i] > '9' : part[i] != pattern) return 0;
    if (i >= 1 && i <= 5) number = number * 10 + (part[i] - '0');
  }
  *out_start = (size_t)(part - path);
  return number;
}

static bool is_separator(char c) { return c == '/' || c == '\\'; }

// The last |parts| parts of a path, separated by '/', without ending.
static mlx_status_t end_of_path(const char *path, int parts, char **out_name) {
  static const char *const endings[] = {".gguf", ".mlxb"};
  size_t end = strlen(path), part_start = end, start;
  if (part_number(path, &part_start)) end = part_start;
  while (end > 1 && is_separator(path[end - 1])) --end;
  for (start = end; start > 0; --start) {
    if (is_separator(path[start - 1]) && start < end && !--parts) break;
  }
  MLX_TRY(mlx_copy_text(path + start, end - start, out_name));
  for (char *at = *out_name; *at; ++at) {
    if (*at == '\\') *at = '/';
  }
  for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
    if (ends_with(*out_name, endings[i])) (*out_name)[strlen(*out_name) - strlen(endings[i])] = 0;
  }
  return NULL;
}

static bool is_hub(const char *path) { return !strncmp(path, "hf:", 3); }

mlx_status_t mlx_model_default_name(const char *path, char **out_name) {
  return is_hub(path) ? end_of_path(path + 3, INT_MAX, out_name) : end_of_path(path, 1, out_name);
}

static bool is_called(const mlx_model_t *model, const char *name, size_t length) {
  if (strlen(model->name) == length && !strncasecmp(model->name, name, length)) return true;
  if (strlen(model->path) == length && !strncmp(model->path, name, length)) return true;
  for (size_t i = 0; i < model->alias_count; ++i) {
    if (strlen(model->aliases[i]) == length && !strncasecmp(model->aliases[i], name, length)) return true;
  }
  return false;
}

mlx_model_t *mlx_models_find(const mlx_models_t *m, const char *name) {
  size_t length = strlen(name);
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < m->count; ++i) {
      if (is_called(m->items[i], name, length)) return m->items[i];
    }
    if (!ends_with(name, ":latest")) break;  // Ollama's clients add it
    length -= strlen(":latest");
  }
  return NULL;
}

size_t mlx_models_count(const mlx_models_t *m) { return m->count; }
mlx_model_t *mlx_models_at(const mlx_models_t *m, size_t index) { return m->items[index]; }
const char *mlx_model_name(const mlx_model_t *model) { return model->name; }
size_t mlx_model_alias_count(const mlx_model_t *model) { return model->alias_count; }
const char *mlx_model_alias(const mlx_model_t *model, size_t index) { return model->aliases[index]; }
const char *mlx_model_path(const mlx_model_t *model) { return model->path; }
int64_t mlx_model_created(const mlx_model_t *model) { return model->created; }
uint64_t mlx_model_size(const mlx_model_t *model) { return model->size; }
mlx_serving_t *mlx_model_serving(const mlx_model_t *model) { return model->serving; }

// ----------------------------------------------------------------------------------------------------------
// Adding

static void free_model(mlx_model_t *model) {
  for (size_t i = 0; i < model->alias_count; ++i) mlx_free(model->aliases[i]);
  mlx_free(model->aliases);
  mlx_free(model->path);
  mlx_free(model->name);
  mlx_free(model);
}

typedef struct folder_size {
  const char *folder;
  uint64_t bytes;
} folder_size_t;

static mlx_status_t add_size(void *user, const char *name) {
  folder_size_t *sum = user;
  mlx_file_stamp_t stamp;
  char *path;
  MLX_TRY(mlx_join_path(sum->folder, name, &path));
  mlx_status_t status = mlx_is_file(path) ? mlx_file_stamp(path, &stamp) : NULL;
  if (!status && mlx_is_file(path)) sum->bytes += stamp.size;
  mlx_free(path);
  mlx_status_free(status);  // the size is only an estimate
  return NULL;
}

// Fills in size and time, if the path is a local file or folder.
static void measure(mlx_model_t *model) {
  mlx_file_stamp_t stamp;
  folder_size_t sum = {.folder = model->path};
  uv_fs_t request;
  if (!uv_fs_stat(NULL, &request, model->path, NULL)) model->created = request.statbuf.st_mtim.tv_sec;
  uv_fs_req_cleanup(&request);
  if (mlx_is_dir(model->path)) {
    mlx_status_free(mlx_list_dir(model->path, add_size, &sum));
    model->size = sum.bytes;
  } else if (mlx_is_file(model->path)) {
    mlx_status_t status = mlx_file_stamp(model->path, &stamp);
    if (!status) model->size = stamp.size;
    mlx_status_free(status);
  }
}

// Chooses the name of a new model.
static mlx_status_t name_model(const mlx_models_t *m, mlx_model_t *model, const char *name) {
  const char *path = model->path;
  const mlx_model_t *same = mlx_models_find(m, path);
  if (same && !strcmp(same->path, path))
    return mlx_status_hint(mlx_error(MLX_USAGE, "the model '%s' was given twice", path), "give it once");
  MLX_TRY(name ? mlx_copy_text(name, strlen(name), &model->name)
               : mlx_model_default_name(path, &model->name));
  if (!name && !is_hub(path) && mlx_models_find(m, model->name)) {
    mlx_free(model->name);
    model->name = NULL;
    MLX_TRY(end_of_path(path, 2, &model->name));
  }
  if (!mlx_models_find(m, model->name)) return NULL;
  const char *ending = ends_with(path, ".gguf") ? ".gguf" : ends_with(path, ".mlxb") ? ".mlxb" : "";
  return mlx_status_hint(mlx_error(MLX_USAGE, "two models are called '%s'", model->name),
                         "make a link with another name and serve that: ln -s '%s' another-name%s", path,
                         ending);
}

mlx_status_t mlx_models_add(mlx_models_t *m, const char *path, const char *name) {
  mlx_model_t *model;
  MLX_TRY(mlx_alloc(1, sizeof *model, &model));
  mlx_status_t status = mlx_copy_text(path, strlen(path), &model->path);
  if (!status) status = name_model(m, model, name);
  if (!status) measure(model);
  uv_mutex_lock(&m->mutex);  // the loading thread runs already
  if (!status) status = mlx_reserve(m->count + 1, sizeof *m->items, &m->capacity, &m->items);
  if (!status) m->items[m->count++] = model;
  uv_mutex_unlock(&m->mutex);
  if (status) free_model(model);
  return status;
}

typedef struct scan {
  mlx_models_t *models;
  const char *folder;
} scan_t;

static bool is_model(const char *path, const char *name) {
  char *config = NULL;
  size_t start;
  if (ends_with(name, ".gguf") && (part_number(name, &start) > 1 || strstr(name, "mmproj"))) return false;
  if (ends_with(path, ".gguf") || ends_with(path, ".mlxb")) return true;
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
  mlx_model_t *model = mlx_models_find(m, name);
  if (!model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--alias %s=%s: there is no such model", alias, name),
                           "give the model with -m %s", name);
  const mlx_model_t *other = mlx_models_find(m, alias);
  if (other == model) return NULL;
  if (other)
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "--alias %s=%s: the model '%s' has that name", alias, name, other->path),
        "use a name that no other model has");
  MLX_TRY(
      mlx_reserve(model->alias_count + 1, sizeof *model->aliases, &model->alias_capacity, &model->aliases));
  MLX_TRY(mlx_copy_text(alias, strlen(alias), &model->aliases[model->alias_count]));
  ++model->alias_count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Loading thread. Functions named *_locked are called with the mutex.

static uint64_t loaded_bytes_locked(const mlx_models_t *m) {
  uint64_t sum = 0;
  for (size_t i = 0; i < m->count; ++i) sum += m->items[i]->serving ? m->items[i]->bytes : 0;
  return sum;
}

// The model to unload next: the least recently used one without requests; if all have requests, the least
// recently used one. Never |keep|. NULL: there is none.
static mlx_model_t *oldest_locked(const mlx_models_t *m, const mlx_model_t *keep) {
  mlx_model_t *oldest = NULL;
  for (size_t i = 0; i < m->count; ++i) {
    mlx_model_t *model = m->items[i];
    if (!model->serving || model == keep) continue;
    const bool is_idle = !model->users, is_idler = oldest && is_idle != !oldest->users;
    if (!oldest || (is_idler ? is_idle : model->used < oldest->used)) oldest = model;
  }
  return oldest;
}

// Unloads a model other than |keep|, when its requests have ended. False: there is none.
static bool unload_oldest_locked(mlx_models_t *m, const mlx_model_t *keep) {
  mlx_model_t *oldest = oldest_locked(m, keep);
  if (!oldest) return false;
  oldest->leaving = true;
  while (oldest->users && !m->stopping) uv_cond_wait(&m->wake, &m->mutex);
  mlx_serving_t *serving = oldest->users ? NULL : oldest->serving;
  if (!serving) return false;
  oldest->serving = NULL;
  oldest->leaving = false;
  if (oldest->waiters) oldest->wanted = true;  // requests came meanwhile
  ++m->unloads;
  uv_mutex_unlock(&m->mutex);
  mlx_report_note(m->options.report, "unloading %s", oldest->name);
  mlx_serving_free(serving);
  uv_mutex_lock(&m->mutex);
  return true;
}

static uint64_t bytes_of(const mlx_engine_t *engine) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  return info.weight_bytes + info.pool_bytes;
}

static mlx_status_t load(mlx_models_t *m, const mlx_model_t *model, mlx_serving_t **out,
                         uint64_t *out_bytes) {
  mlx_serving_options_t options = {.queue = m->options.queue};
  if (m->options.make) return m->options.make(m->options.user, model->path, out, out_bytes);
  MLX_TRY(m->options.open(m->options.user, model->path, &options.engine, &options.chat));
  *out_bytes = bytes_of(options.engine);
  return mlx_serving_create(&options, out);
}

// Loads |model|. Other models are unloaded if the limit or the memory of the device requires it.
static mlx_status_t load_locked(mlx_models_t *m, mlx_model_t *model) {
  mlx_serving_t *serving = NULL;
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
    mlx_status_t status = load(m, model, &serving, &bytes);
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
  model->serving = serving;
  model->bytes = bytes;
  model->used = mlx_seconds();
  ++m->loads;
  return NULL;
}

// Unloads models other than |model| until the rest is within the limit.
static void shrink_locked(mlx_models_t *m, const mlx_model_t *model) {
  while (m->options.memory && loaded_bytes_locked(m) > m->options.memory) {
    if (!unload_oldest_locked(m, model)) break;
  }
}

// The error of one request. A model that cannot be loaded is not the client's fault.
static mlx_status_t waiter_error(const mlx_model_t *model, mlx_status_t status) {
  return mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "cannot load %s: %s", model->name, mlx_status_message(status)), "%s",
      mlx_status_hint_text(status));
}

// Gives the loaded model, or the error, to the requests that wait for it.
static void answer_waiters_locked(mlx_models_t *m, mlx_model_t *model, mlx_status_t status) {
  mlx_model_waiter_t *waiter = model->waiters;
  model->waiters = model->last_waiter = NULL;
  if (!status) model->users += model->waiting;
  model->waiting = 0;
  for (mlx_model_waiter_t *w = waiter; w; w = w->next) w->model = NULL;
  uv_mutex_unlock(&m->mutex);
  for (mlx_model_waiter_t *next; waiter; waiter = next) {
    next = waiter->next;
    waiter->ready(waiter, status ? NULL : model, status ? waiter_error(model, status) : NULL);
  }
  mlx_status_free(status);
  uv_mutex_lock(&m->mutex);
}

// The model that is waited for longest.
static mlx_model_t *next_wanted_locked(const mlx_models_t *m) {
  mlx_model_t *next = NULL;
  for (size_t i = 0; i < m->count; ++i) {
    mlx_model_t *model = m->items[i];
    if (model->wanted && (!next || model->turn < next->turn)) next = model;
  }
  return next;
}

static mlx_status_t shutdown_error(void) { return mlx_error(MLX_UNAVAILABLE, "the server is shutting down"); }

static void load_models(void *user) {
  mlx_models_t *m = user;
  uv_mutex_lock(&m->mutex);
  while (!m->stopping) {
    mlx_model_t *model = next_wanted_locked(m);
    if (!model) {
      uv_cond_wait(&m->wake, &m->mutex);
      continue;
    }
    model->wanted = false;
    mlx_status_t status = model->serving || !model->waiters ? NULL : load_locked(m, model);
    answer_waiters_locked(m, model, status);
    shrink_locked(m, model);  // afterwards, because it may wait for requests of other models
  }
  for (size_t i = 0; i < m->count; ++i) answer_waiters_locked(m, m->items[i], shutdown_error());
  uv_mutex_unlock(&m->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Requests

// Adds |waiter| to the requests that wait for |model|.
static mlx_status_t wait_locked(mlx_models_t *m, mlx_model_t *model, mlx_model_waiter_t *waiter) {
  if (waiter->is_cancelled) return mlx_error(MLX_CANCELLED, "the request was cancelled");
  if (m->stopping) return shutdown_error();
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
  mlx_model_t *model = !name || !*name ? (m->count ? m->items[0] : NULL) : mlx_models_find(m, name);
  if (!model && m->count == 1) model = m->items[0];
  if (!model) {
    waiter->ready(waiter, NULL,
                  mlx_status_hint(mlx_error(MLX_NOT_FOUND, "model: '%s' does not exist", name ? name : ""),
                                  "GET /v1/models lists the models"));
    return;
  }
  uv_mutex_lock(&m->mutex);
  const bool loaded = model->serving && !model->leaving && !waiter->is_cancelled;
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
  mlx_model_t *model = waiter->model;
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

void mlx_models_put(mlx_models_t *m, mlx_model_t *model) {
  uv_mutex_lock(&m->mutex);
  --model->users;
  model->used = mlx_seconds();
  if (!model->users && model->leaving) uv_cond_broadcast(&m->wake);
  uv_mutex_unlock(&m->mutex);
}

void mlx_models_visit_loaded(mlx_models_t *m,
                             void (*visit)(void *user, mlx_model_t *model, mlx_serving_t *serving),
                             void *user) {
  uv_mutex_lock(&m->mutex);
  for (size_t i = 0; i < m->count; ++i) {
    if (m->items[i]->serving) visit(user, m->items[i], m->items[i]->serving);
  }
  uv_mutex_unlock(&m->mutex);
}

void mlx_models_counts(mlx_models_t *m, int64_t *out_loads, int64_t *out_unloads) {
  uv_mutex_lock(&m->mutex);
  *out_loads = m->loads;
  *out_unloads = m->unloads;
  uv_mutex_unlock(&m->mutex);
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
  uv_cond_init(&m->wake);
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
  for (size_t i = 0; i < m->count; ++i) mlx_serving_free(m->items[i]->serving);
  for (size_t i = 0; i < m->count; ++i) free_model(m->items[i]);
  mlx_free(m->items);
  uv_cond_destroy(&m->wake);
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
}
