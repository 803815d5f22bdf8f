// See kv_events.h.
#include "server/events/kv_events.h"

#include <stdio.h>
#include <uv.h>

#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/events/kv_batch.h"
#include "server/events/publisher.h"

struct mlx_kv_events {
  mlx_publisher_t *publisher;  // owned
  mlx_kv_batch_t *batch;       // owned
  const char *topic;           // NULL: the default
  bool has_topic;              // the publisher has it
};

static void on_batch(void *user, char *payload, size_t length) {
  mlx_publisher_push(((mlx_kv_events_t *)user)->publisher, payload, length);
}

mlx_status_t mlx_kv_events_create(const mlx_kv_events_options_t *options, mlx_kv_events_t **out_events) {
  mlx_kv_events_t *e;
  *out_events = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *e, &e));
  e->topic = options->topic;
  mlx_status_t status = mlx_publisher_create(options->endpoint, options->replay, &e->publisher);
  if (!status) status = mlx_kv_batch_create(0, on_batch, e, &e->batch);
  if (status) {
    mlx_kv_events_free(e);
    return status;
  }
  *out_events = e;
  return NULL;
}

void mlx_kv_events_free(mlx_kv_events_t *e) {
  if (!e) return;
  mlx_publisher_free(e->publisher);
  mlx_kv_batch_free(e->batch);
  mlx_free(e);
}

int mlx_kv_events_port(const mlx_kv_events_t *e) { return mlx_publisher_port(e->publisher); }
int mlx_kv_events_replay_port(const mlx_kv_events_t *e) { return mlx_publisher_replay_port(e->publisher); }

// A model may be loaded several times, and has one topic.
static mlx_status_t set_topic(mlx_kv_events_t *e, const char *model) {
  char host[UV_MAXHOSTNAMESIZE], *topic;
  size_t size = sizeof host;
  if (e->has_topic) return NULL;
  e->has_topic = true;
  if (e->topic) return mlx_publisher_set_topic(e->publisher, e->topic);
  if (uv_os_gethostname(host, &size)) snprintf(host, sizeof host, "localhost");
  MLX_TRY(mlx_format(&topic, "kv@%s@%s", host, model));
  mlx_status_t status = mlx_publisher_set_topic(e->publisher, topic);
  mlx_free(topic);
  return status;
}

mlx_status_t mlx_kv_events_watch(mlx_kv_events_t *e, mlx_engine_t *engine, const char *model) {
  MLX_TRY(set_topic(e, model));
  const mlx_page_watcher_t watcher = mlx_kv_batch_watcher(e->batch);
  mlx_engine_watch_pages(engine, &watcher);
  return NULL;
}
