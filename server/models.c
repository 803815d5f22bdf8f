// The registry of models and the thread that loads them.
#include "server/models.h"

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
  uint64_t bytes;          // of the loaded model
  int64_t users;           // requests
  double used;             // time of the last use
  bool wanted;             // in the queue of the loading thread
  bool leaving;            // is unloaded as soon as it has no users; new requests wait
  mlx_model_waiter_t *waiters;
};

struct mlx_models {
  mlx_models_options_t options;
  mlx_model_t **items;  // owned
  size_t count, capacity;
  uv_mutex_t mutex;
  uv_cond_t wake;  // for the loading thread
  uv_thread_t thread;
  bool has_thread, stopping;
  int64_t loads, unloads;
};

// ----------------------------------------------------------------------------------------------------------
// Names

static bool ends_with(const char *text, const char *ending) {
  const size_t length = strlen(text), size = strlen(ending);
  return length >= size && !strcasecmp(text + length - size, ending);
}

mlx_status_t mlx_model_default_name(const char *path, char **out_name) {
  static const char *const endings[] = {".gguf", ".mlxb"};
  const bool is_hub = !strncmp(path, "hf:", 3);
  const char *from = is_hub ? path + 3 : path;
  size_t length = strlen(from);
  while (length > 1 && from[length - 1] == '/') --length;
  if (!is_hub) {
    for (size_t at = length; at-- > 0;) {
      if (from[at] != '/' && from[at] != '\\') continue;
      length -= at + 1;
      from += at + 1;
      break;
    }
  }
  MLX_TRY(mlx_copy_text(from, length, out_name));
  for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
    if (ends_with(*out_name, endings[i])) (*out_name)[strlen(*out_name) - strlen(endings[i])] = 0;
  }
  return NULL;
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

mlx_status_t mlx_models_add(mlx_models_t *m, const char *path, const char *name) {
  mlx_model_t *model;
  MLX_TRY(mlx_alloc(1, sizeof *model, &model));
  mlx_status_t status = mlx_copy_text(path, strlen(path), &model->path);
  if (!status)
    status =
        name ? mlx_copy_text(name, strlen(name), &model->name) : mlx_model_default_name(path, &model->name);
  if (!status && mlx_models_find(m, model->name))
    status = mlx_status_hint(mlx_error(MLX_USAGE, "two models are called '%s'", model->name),
                             "give one of them another name: --alias NAME=%s", path);
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

static bool is_model(const char *path) {
  char *config = NULL;
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
  mlx_status_t status = is_model(path) ? mlx_models_add(scan->models, path, NULL) : NULL;
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

// The least recently used loaded model; NULL: none.
static mlx_model_t *oldest_locked(const mlx_models_t *m) {
  mlx_model_t *oldest = NULL;
  for (size_t i = 0; i < m->count; ++i) {
    mlx_model_t *model = m->items[i];
    if (model->serving && (!oldest || model->used < oldest->used)) oldest = model;
  }
  return oldest;
}

// Unloads the least recently used model, when its requests have ended. False: there is none.
static bool unload_oldest_locked(mlx_models_t *m) {
  mlx_model_t *oldest = oldest_locked(m);
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
  return info.weight_bytes + info.kv_bytes * (uint64_t)info.context;
}

static mlx_status_t load(mlx_models_t *m, const mlx_model_t *model, mlx_serving_t **out,
                         uint64_t *out_bytes) {
  mlx_serving_options_t options = {.queue = m->options.queue};
  MLX_TRY(m->options.open(m->options.user, model->path, &options.engine, &options.chat));
  *out_bytes = bytes_of(options.engine);
  return mlx_serving_create(&options, out);
}

// Loads |model|. Other models are unloaded if the limit or the memory of the device requires it.
static mlx_status_t load_locked(mlx_models_t *m, mlx_model_t *model) {
  mlx_serving_t *serving = NULL;
  uint64_t bytes = model->size;
  if (m->options.memory && bytes > m->options.memory)
    return mlx_status_hint(
        mlx_error(MLX_OUT_OF_MEMORY, "the model %s has %llu bytes; --model-memory is %llu", model->name,
                  (unsigned long long)bytes, (unsigned long long)m->options.memory),
        "use a larger --model-memory");
  while (m->options.memory && loaded_bytes_locked(m) + bytes > m->options.memory) {
    if (!unload_oldest_locked(m)) break;
  }
  for (;;) {
    uv_mutex_unlock(&m->mutex);
    mlx_status_t status = load(m, model, &serving, &bytes);
    uv_mutex_lock(&m->mutex);
    if (!status) break;
    if (mlx_status_code(status) != MLX_OUT_OF_MEMORY || !unload_oldest_locked(m)) return status;
    mlx_status_free(status);
  }
  model->serving = serving;
  model->bytes = bytes;
  model->used = mlx_seconds();
  ++m->loads;
  while (m->options.memory && loaded_bytes_locked(m) > m->options.memory && oldest_locked(m) != model) {
    if (!unload_oldest_locked(m)) break;
  }
  return NULL;
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
  model->waiters = NULL;
  for (const mlx_model_waiter_t *w = waiter; w && !status; w = w->next) ++model->users;
  uv_mutex_unlock(&m->mutex);
  for (mlx_model_waiter_t *next; waiter; waiter = next) {
    next = waiter->next;
    waiter->ready(waiter, status ? NULL : model, status ? waiter_error(model, status) : NULL);
  }
  mlx_status_free(status);
  uv_mutex_lock(&m->mutex);
}

static mlx_model_t *next_wanted_locked(const mlx_models_t *m) {
  for (size_t i = 0; i < m->count; ++i) {
    if (m->items[i]->wanted) return m->items[i];
  }
  return NULL;
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
    mlx_status_t status = model->serving ? NULL : load_locked(m, model);
    answer_waiters_locked(m, model, status);
  }
  for (size_t i = 0; i < m->count; ++i) answer_waiters_locked(m, m->items[i], shutdown_error());
  uv_mutex_unlock(&m->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Requests

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
  const bool loaded = model->serving && !model->leaving, stopping = m->stopping;
  if (loaded) {
    ++model->users;
    model->used = mlx_seconds();
  } else if (!stopping) {
    waiter->next = model->waiters;
    model->waiters = waiter;
    if (!model->leaving) model->wanted = true;
    uv_cond_broadcast(&m->wake);
  }
  uv_mutex_unlock(&m->mutex);
  if (loaded) waiter->ready(waiter, model, NULL);
  if (!loaded && stopping) waiter->ready(waiter, NULL, shutdown_error());
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
