// Requests without a connection, and the queue of their responses.
#include "server/core/local.h"

#include "base/memory.h"
#include "server/core/route.h"
#include "server/core/server_parts.h"

typedef struct entry {
  mlx_local_t *local;
  mlx_exchange_t *exchange;
  void *user;
  struct entry *next;  // in the list of ended requests
} entry_t;

struct mlx_local {
  mlx_server_t *server;
  entry_t *present;  // owned: whose response the caller has
  uv_mutex_t mutex;
  uv_cond_t wake;
  // Under the mutex.
  entry_t *first, *last;  // ended requests
};

// Any thread.
static void on_ended(void *user, mlx_exchange_t *exchange) {
  entry_t *entry = user;
  mlx_local_t *local = entry->local;
  (void)exchange;
  uv_mutex_lock(&local->mutex);
  if (local->last)
    local->last->next = entry;
  else
    local->first = entry;
  local->last = entry;
  uv_cond_signal(&local->wake);
  uv_mutex_unlock(&local->mutex);
}

mlx_status_t mlx_local_create(mlx_server_t *server, mlx_local_t **out_local) {
  mlx_local_t *local;
  *out_local = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *local, &local));
  local->server = server;
  uv_mutex_init(&local->mutex);
  uv_cond_init(&local->wake);
  mlx_status_t status = mlx_server_load(server);
  mlx_server_site(server)->ready = !status;
  if (status)
    mlx_local_free(local);
  else
    *out_local = local;
  return status;
}

mlx_status_t mlx_local_post(mlx_local_t *local, const char *path, const char *body, size_t length,
                            void *user) {
  entry_t *entry;
  MLX_TRY(mlx_alloc(1, sizeof *entry, &entry));
  *entry = (entry_t){.local = local, .user = user};
  mlx_status_t status = mlx_exchange_create_local(path, body, length, on_ended, entry, &entry->exchange);
  if (status) {
    mlx_free(entry);
    return status;
  }
  mlx_route_request(mlx_server_site(local->server), entry->exchange);
  return NULL;
}

static void end_entry(mlx_local_t *local, entry_t *entry) {
  if (!entry) return;
  mlx_route_ended(mlx_server_site(local->server), entry->exchange, 0, 0, false);
  mlx_exchange_release(entry->exchange);
  mlx_free(entry);
}

// With the mutex: the first ended request; NULL if there is none.
static entry_t *take_locked(mlx_local_t *local) {
  entry_t *entry = local->first;
  if (!entry) return NULL;
  local->first = entry->next;
  if (!local->first) local->last = NULL;
  return entry;
}

bool mlx_local_wait(mlx_local_t *local, double seconds, mlx_local_response_t *out) {
  bool complete;
  end_entry(local, local->present);
  uv_mutex_lock(&local->mutex);
  if (!local->first) uv_cond_timedwait(&local->wake, &local->mutex, (uint64_t)(seconds * 1e9));
  entry_t *entry = local->present = take_locked(local);
  uv_mutex_unlock(&local->mutex);
  if (!entry) return false;
  *out = (mlx_local_response_t){.user = entry->user};
  out->body = mlx_exchange_local_response(entry->exchange, &out->length, &complete);
  out->status = complete ? mlx_exchange_status(entry->exchange) : 0;
  return true;
}

static void add_stats(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  mlx_local_stats_t *stats = user;
  (void)model;
  *stats = (mlx_local_stats_t){.has_chat = mlx_serving_chat(mlx_servings_at(servings, 0)) != NULL};
  for (size_t i = 0; i < mlx_servings_count(servings); ++i) {
    mlx_serving_t *serving = mlx_servings_at(servings, i);
    const mlx_scheduler_stats_t s = mlx_serving_stats(serving).scheduler;
    stats->sequences += mlx_engine_info(mlx_serving_engine(serving)).sequences;
    stats->prompt_tokens += s.prompt_tokens;
    stats->output_tokens += s.output_tokens;
    stats->running += s.running;
  }
}

mlx_local_stats_t mlx_local_stats(mlx_local_t *local) {
  mlx_local_stats_t stats = {0};
  mlx_models_visit_loaded(mlx_server_site(local->server)->service.models, add_stats, &stats);
  return stats;
}

void mlx_local_free(mlx_local_t *local) {
  if (!local) return;
  mlx_server_end(local->server);  // every open request ends, with an error
  end_entry(local, local->present);
  while (local->first) end_entry(local, take_locked(local));
  uv_cond_destroy(&local->wake);
  uv_mutex_destroy(&local->mutex);
  mlx_free(local);
}
