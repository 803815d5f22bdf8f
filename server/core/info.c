// Health, metrics and lists of models.
#include "server/core/info.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/llama_answer.h"
#include "server/api/ollama.h"
#include "server/api/ollama_text.h"
#include "server/core/histogram.h"
#include "server/core/json_response.h"
#include "server/core/llama_metrics.h"

#define MAX_LOADED 128               // engines in /metrics
#define OLLAMA_API_VERSION "0.12.0"  // of Ollama's API; clients refuse older ones

// An engine of a loaded model. It has no pointer into the engine: the model may be unloaded meanwhile.
typedef struct loaded_model {
  const mlx_served_model_t *model;
  size_t engine;        // its number among those of the model
  bool works;           // requests are placed on it
  double seconds_left;  // mlx_models_seconds_left
  mlx_serving_stats_t stats;
  char device[16], architecture[64], dtype[32];
  int64_t context, sequences;
  uint64_t weight_bytes;
} loaded_model_t;

typedef struct loaded {
  const mlx_models_t *models;
  loaded_model_t items[MAX_LOADED];
  size_t count;
} loaded_t;

// Runs with the mutex of the models.
static void add_engine(loaded_t *all, const mlx_served_model_t *model, const mlx_servings_t *servings,
                       size_t index) {
  mlx_serving_t *serving = mlx_servings_at(servings, index);
  const mlx_engine_info_t info = mlx_engine_info(mlx_serving_engine(serving));
  loaded_model_t *item = &all->items[all->count++];
  *item = (loaded_model_t){.model = model,
                           .engine = index,
                           .seconds_left = mlx_models_seconds_left(all->models, model),
                           .stats = mlx_serving_stats(serving),
                           .context = info.context,
                           .sequences = info.sequences,
                           .weight_bytes = info.weight_bytes};
  snprintf(item->device, sizeof item->device, "%s", info.device);
  snprintf(item->architecture, sizeof item->architecture, "%s", info.architecture);
  snprintf(item->dtype, sizeof item->dtype, "%s", info.dtype);
  item->works = mlx_servings_works(servings, &item->stats);
}

static void add_loaded(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  loaded_t *all = user;
  for (size_t i = 0; i < mlx_servings_count(servings) && all->count < MAX_LOADED; ++i)
    add_engine(all, model, servings, i);
}

// ----------------------------------------------------------------------------------------------------------
// Health

typedef struct health {
  const char *status;
  char problem[512];  // "": none
} health_t;

// A model works as long as one of its engines does.
static void check_model(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  health_t *health = user;
  if (health->problem[0]) return;
  mlx_servings_problem(servings, mlx_served_model_name(model), health->problem, sizeof health->problem);
}

// Whether the process works: a replica that does not should be started again. It may still load its model, or
// end.
static health_t check_live(mlx_site_t *site) {
  health_t health = {.status = "ok"};
  mlx_models_visit_loaded(site->service.models, check_model, &health);
  if (health.problem[0]) health.status = "error";
  return health;
}

// Whether the server takes requests.
static health_t check_ready(mlx_site_t *site) {
  health_t health = check_live(site);
  if (!site->ready) {
    health.status = "loading";
    snprintf(health.problem, sizeof health.problem, "the server is loading its model");
  }
  if (site->draining) {
    health.status = "draining";
    snprintf(health.problem, sizeof health.problem, "the server is shutting down");
  }
  return health;
}

static void respond_health(const health_t *health, mlx_exchange_t *exchange) {
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  const bool ok = !health->problem[0];
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "status", health->status);
  if (!ok) {
    mlx_json_begin_object(&json, "error", MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "message", health->problem);
    mlx_json_put_text(&json, "type", "unavailable_error");
    mlx_json_put_int(&json, "code", 503);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_respond_json(exchange, ok ? 200 : 503, &out);
}

void mlx_info_health(mlx_site_t *site, mlx_exchange_t *exchange) {
  const health_t health = check_ready(site);
  respond_health(&health, exchange);
}

// A model that sleeps is healthy, but takes no requests.
static health_t check_awake(mlx_site_t *site) {
  health_t health = check_ready(site);
  if (health.problem[0] || !mlx_models_sleep_level(site->service.models)) return health;
  health.status = "sleeping";
  snprintf(health.problem, sizeof health.problem, "the models are asleep: POST /wake_up");
  return health;
}

void mlx_info_ready(mlx_site_t *site, mlx_exchange_t *exchange) {
  const health_t health = check_awake(site);
  respond_health(&health, exchange);
}

void mlx_info_live(mlx_site_t *site, mlx_exchange_t *exchange) {
  const health_t health = check_live(site);
  respond_health(&health, exchange);
}

// In the form of KServe's protocol V2.
static void respond_v2(const health_t *health, const char *name, mlx_exchange_t *exchange) {
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  const bool ok = !health->problem[0];
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_bool(&json, name, ok);
  mlx_json_end(&json);
  mlx_respond_json(exchange, ok ? 200 : 503, &out);
}

void mlx_info_v2_live(mlx_site_t *site, mlx_exchange_t *exchange) {
  const health_t health = check_live(site);
  respond_v2(&health, "live", exchange);
}

void mlx_info_v2_ready(mlx_site_t *site, mlx_exchange_t *exchange) {
  const health_t health = check_awake(site);
  respond_v2(&health, "ready", exchange);
}

// ----------------------------------------------------------------------------------------------------------
// Metrics

typedef struct family {
  const char *name, *type, *help;
  double (*value)(const mlx_serving_stats_t *stats);
} family_t;

static double running(const mlx_serving_stats_t *s) { return (double)s->scheduler.running; }
static double waiting(const mlx_serving_stats_t *s) { return (double)mlx_serving_waiting(s); }
static double pages_used(const mlx_serving_stats_t *s) { return (double)s->scheduler.pages_used; }
static double pages_cached(const mlx_serving_stats_t *s) { return (double)s->scheduler.pages_cached; }
static double pages_free(const mlx_serving_stats_t *s) { return (double)s->scheduler.pages_free; }
static double window_pages_used(const mlx_serving_stats_t *s) {
  return (double)s->scheduler.window_pages_used;
}
static double window_pages_cached(const mlx_serving_stats_t *s) {
  return (double)s->scheduler.window_pages_cached;
}
static double window_pages_free(const mlx_serving_stats_t *s) {
  return (double)s->scheduler.window_pages_free;
}
static double pages_total(const mlx_serving_stats_t *s) {
  return pages_used(s) + pages_cached(s) + pages_free(s);
}
static double window_pages_total(const mlx_serving_stats_t *s) {
  return window_pages_used(s) + window_pages_cached(s) + window_pages_free(s);
}
static double steps(const mlx_serving_stats_t *s) { return (double)s->scheduler.steps; }
static double failed_steps(const mlx_serving_stats_t *s) { return (double)s->failed_steps; }
static double prompt_tokens(const mlx_serving_stats_t *s) { return (double)s->scheduler.prompt_tokens; }
static double output_tokens(const mlx_serving_stats_t *s) { return (double)s->scheduler.output_tokens; }
static double prefix_hits(const mlx_serving_stats_t *s) { return (double)s->scheduler.prefix_hits; }
static double preemptions(const mlx_serving_stats_t *s) { return (double)s->scheduler.preemptions; }

static const family_t families[] = {
    {"mlxcel_requests_running", "gauge", "Sequences that run.", running},
    {"mlxcel_requests_waiting", "gauge", "Sequences that wait.", waiting},
    {"mlxcel_kv_pages_used", "gauge", "Pages of the KV cache that sequences use.", pages_used},
    {"mlxcel_kv_pages_cached", "gauge", "Pages that are kept for later prefixes.", pages_cached},
    {"mlxcel_kv_pages_free", "gauge", "Free pages.", pages_free},
    {"mlxcel_kv_pages", "gauge", "All pages.", pages_total},
    {"mlxcel_kv_window_pages_used", "gauge", "Window pages that sequences use.", window_pages_used},
    {"mlxcel_kv_window_pages_cached", "gauge", "Window pages that are kept for later prefixes.",
     window_pages_cached},
    {"mlxcel_kv_window_pages_free", "gauge", "Free window pages.", window_pages_free},
    {"mlxcel_kv_window_pages", "gauge", "All window pages; 0: the model has none.", window_pages_total},
    {"mlxcel_steps_total", "counter", "Steps.", steps},
    {"mlxcel_failed_steps_total", "counter", "Steps that failed.", failed_steps},
    {"mlxcel_prompt_tokens_total", "counter", "Prompt tokens that were computed.", prompt_tokens},
    {"mlxcel_output_tokens_total", "counter", "Tokens that were generated.", output_tokens},
    {"mlxcel_prefix_hit_tokens_total", "counter", "Prompt tokens whose pages were shared.", prefix_hits},
    {"mlxcel_preemptions_total", "counter", "Sequences that lost their pages to others.", preemptions},
};

static void put_sample(mlx_text_t *out, const char *name, const loaded_model_t *item, double value) {
  mlx_text_printf(out, "%s{model_name=\"", name);
  mlx_metric_put_label(out, mlx_served_model_name(item->model));
  mlx_text_printf(out, "\",engine=\"%zu\"} %.17g\n", item->engine, value);
}

static void put_family(mlx_text_t *out, const family_t *family, const loaded_t *all) {
  mlx_metric_put_header(out, family->name, family->type, family->help);
  for (size_t i = 0; i < all->count; ++i)
    put_sample(out, family->name, &all->items[i], family->value(&all->items[i].stats));
}

// Returns the number of loaded models.
static size_t put_engines(mlx_text_t *out, const loaded_t *all) {
  static const char name[] = "mlxcel_engine_works";
  size_t models = 0;
  mlx_metric_put_header(out, name, "gauge",
                        "1: requests are placed on the engine; 0: its last step failed, or it stalls.");
  for (size_t i = 0; i < all->count; ++i) {
    put_sample(out, name, &all->items[i], all->items[i].works);
    models += !all->items[i].engine;
  }
  return models;
}

void mlx_info_metrics(mlx_site_t *site, mlx_exchange_t *exchange) {
  loaded_t all = {.models = site->service.models};
  mlx_text_t out = {0};
  char started[24];
  int64_t loads, unloads;
  mlx_models_visit_loaded(site->service.models, add_loaded, &all);
  mlx_models_counts(site->service.models, &loads, &unloads);
  for (size_t i = 0; i < sizeof families / sizeof *families; ++i) put_family(&out, &families[i], &all);
  const size_t models = put_engines(&out, &all);
  mlx_metrics_put(&out, "mlxcel_models_loaded", "gauge", "Loaded models.", (double)models);
  mlx_metrics_put(&out, "mlxcel_model_loads_total", "counter", "Models that were loaded.", (double)loads);
  mlx_metrics_put(&out, "mlxcel_model_unloads_total", "counter", "Models that were unloaded.",
                  (double)unloads);
  mlx_metrics_put(&out, "mlxcel_tool_memory_bytes", "gauge", "Bytes of remembered answers with tool calls.",
                  (double)mlx_tool_memory_bytes(site->service.memory));
  mlx_metrics_put(&out, "mlxcel_http_connections", "gauge", "Open connections.",
                  (double)mlx_http_server_connections(site->http));
  mlx_metrics_put(&out, "mlxcel_log_lines_dropped_total", "counter",
                  "Lines of the access log that could not be written.",
                  (double)mlx_access_log_dropped(site->log));
  mlx_metrics_write(site->service.metrics, &out);
  mlx_vllm_metrics_write(site->service.vllm, site->service.models, &out);
  mlx_llama_metrics_write(site->service.models, site->service.metrics, &out);
  snprintf(started, sizeof started, "%lld", (long long)site->started);
  mlx_exchange_set_header(exchange, "Process-Start-Time-Unix", started);  // as of llama-server
  mlx_status_t status = mlx_text_finish(&out);
  if (status)
    mlx_exchange_respond(exchange, 500, "text/plain", "out of memory\n", 14);
  else
    mlx_exchange_respond(exchange, 200, "text/plain; version=0.0.4", out.data, out.length);
  mlx_status_free(status);
  mlx_text_clear(&out);
}

// ----------------------------------------------------------------------------------------------------------
// Models

static void put_loaded(mlx_json_writer_t *json, const loaded_model_t *item) {
  const mlx_serving_stats_t *stats = &item->stats;
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "model", mlx_served_model_name(item->model));
  mlx_json_put_uint(json, "engine", item->engine);
  mlx_json_put_bool(json, "works", item->works);
  mlx_json_put_text(json, "device", item->device);
  mlx_json_put_int(json, "context_length", item->context);
  mlx_json_put_int(json, "max_running_requests", item->sequences);
  mlx_json_put_int(json, "running_requests", stats->scheduler.running);
  mlx_json_put_int(json, "waiting_requests", (int64_t)waiting(stats));
  mlx_json_put_int(json, "max_requests", stats->limit);
  mlx_json_put_int(json, "kv_pages_used", stats->scheduler.pages_used);
  mlx_json_put_int(json, "kv_pages_total", (int64_t)pages_total(stats));
  mlx_json_put_int(json, "kv_window_pages_used", stats->scheduler.window_pages_used);
  mlx_json_put_int(json, "kv_window_pages_total", (int64_t)window_pages_total(stats));
  mlx_json_end(json);
}

void mlx_info_server(mlx_site_t *site, mlx_exchange_t *exchange) {
  loaded_t all = {.models = site->service.models};
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  mlx_models_visit_loaded(site->service.models, add_loaded, &all);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "version", site->version);
  mlx_json_put_int(&json, "uptime_seconds", (int64_t)(mlx_seconds() - site->start));
  mlx_json_put_int(&json, "models", (int64_t)mlx_models_count(site->service.models));
  mlx_json_begin_list(&json, "loaded_models", MLX_JSON_COMPACT);
  for (size_t i = 0; i < all.count; ++i) put_loaded(&json, &all.items[i]);
  mlx_json_end(&json);
  mlx_json_put_int(&json, "connections", mlx_http_server_connections(site->http));
  mlx_json_put_bool(&json, "draining", site->draining);
  mlx_json_end(&json);
  mlx_respond_json(exchange, 200, &out);
}

// The fields of OpenAI's and of Anthropic's form. Clients of each ignore those of the other.
static void put_model(mlx_json_writer_t *json, const mlx_served_model_t *model, const char *name) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "id", name);
  mlx_json_put_text(json, "object", "model");
  mlx_json_put_int(json, "created", mlx_served_model_created(model));
  mlx_json_put_text(json, "owned_by", "mlxcel");
  mlx_json_put_text(json, "type", "model");
  mlx_json_put_text(json, "display_name", name);
  mlx_json_put_text(json, "lifecycle", "active");
  mlx_ollama_put_time(json, "created_at", mlx_served_model_created(model));
  mlx_json_end(json);
}

void mlx_info_models(mlx_site_t *site, mlx_exchange_t *exchange) {
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  const mlx_served_model_t *model;
  const char *first = NULL, *last = NULL;
  mlx_status_free(mlx_models_scan(site->service.models));
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "object", "list");
  mlx_json_begin_list(&json, "data", MLX_JSON_COMPACT);
  for (size_t i = 0; (model = mlx_models_at(site->service.models, i)); ++i) {
    last = mlx_served_model_name(model);
    if (!first) first = last;
    put_model(&json, model, last);
    for (size_t k = 0; k < mlx_served_model_alias_count(model); ++k) {
      last = mlx_served_model_alias(model, k);
      put_model(&json, model, last);
    }
  }
  mlx_json_end(&json);
  mlx_json_put_bool(&json, "has_more", false);  // Anthropic's pages: there is one
  mlx_json_put_text(&json, "first_id", first);
  mlx_json_put_text(&json, "last_id", last);
  mlx_json_end(&json);
  mlx_respond_json(exchange, 200, &out);
}

// The alias that |name| is, or the model's name.
static const char *listed_name(const mlx_served_model_t *model, const char *name) {
  for (size_t i = 0; i < mlx_served_model_alias_count(model); ++i) {
    if (!strcmp(mlx_served_model_alias(model, i), name)) return mlx_served_model_alias(model, i);
  }
  return mlx_served_model_name(model);
}

mlx_status_t mlx_info_model(mlx_site_t *site, const char *name, mlx_exchange_t *exchange) {
  const mlx_served_model_t *model = mlx_models_find(site->service.models, name);
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  if (!model) return mlx_models_missing_error(site->service.models, name);
  put_model(&json, model, listed_name(model, name));
  mlx_respond_json(exchange, 200, &out);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Ollama

static const char *format_of(const mlx_served_model_t *model) {
  const char *path = mlx_served_model_path(model);
  return strstr(path, ".gguf") ? "gguf" : strstr(path, ".mlxb") ? "mlxb" : "safetensors";
}

static mlx_ollama_model_t describe(const mlx_served_model_t *model) {
  return (mlx_ollama_model_t){.name = mlx_served_model_name(model),
                              .format = format_of(model),
                              .size = mlx_served_model_size(model),
                              .modified = mlx_served_model_created(model)};
}

void mlx_info_tags(mlx_site_t *site, mlx_exchange_t *exchange) {
  mlx_ollama_model_t *models = NULL;
  const mlx_served_model_t *model;
  size_t count = 0, capacity = 0;
  mlx_text_t out = {0};
  mlx_status_t status = NULL;
  mlx_status_free(mlx_models_scan(site->service.models));
  for (size_t i = 0; !status && (model = mlx_models_at(site->service.models, i)); ++i) {
    const size_t aliases = mlx_served_model_alias_count(model);
    status = mlx_reserve(count + aliases + 1, sizeof *models, &capacity, &models);
    if (status) break;
    models[count++] = describe(model);
    for (size_t k = 0; k < aliases; ++k) {
      models[count] = describe(model);
      models[count++].name = mlx_served_model_alias(model, k);
    }
  }
  if (!status) mlx_ollama_write_tags(models, count, &out);
  if (status) out.failed = true;
  mlx_status_free(status);
  mlx_free(models);
  mlx_respond_json(exchange, 200, &out);
}

void mlx_info_running(mlx_site_t *site, mlx_exchange_t *exchange) {
  loaded_t all = {.models = site->service.models};
  mlx_ollama_model_t models[MAX_LOADED];
  size_t count = 0;
  mlx_text_t out = {0};
  mlx_models_visit_loaded(site->service.models, add_loaded, &all);
  for (size_t i = 0; i < all.count; ++i) {
    const loaded_model_t *item = &all.items[i];
    const uint64_t on_gpu = strcmp(item->device, "cuda") ? 0 : item->weight_bytes;
    if (item->engine) {
      models[count - 1].size_vram += on_gpu;
      continue;
    }
    mlx_ollama_model_t *model = &models[count++];
    *model = describe(item->model);
    model->family = item->architecture;
    model->quantization = item->dtype;
    model->context = item->context;
    model->size_vram = on_gpu;
    model->is_loaded = true;
    model->expires = item->seconds_left < 0 ? 0 : (int64_t)time(NULL) + (int64_t)item->seconds_left;
  }
  mlx_ollama_write_ps(models, count, &out);
  mlx_respond_json(exchange, 200, &out);
}

void mlx_info_version(mlx_site_t *site, mlx_exchange_t *exchange) {
  mlx_text_t out = {0};
  (void)site;
  mlx_ollama_write_version(OLLAMA_API_VERSION, &out);
  mlx_respond_json(exchange, 200, &out);
}

typedef struct slot_list {
  int64_t context;
  mlx_slot_t *slots;   // owned; NULL: no model is loaded
  size_t count, each;  // of all engines, one after the other, and of an engine
  mlx_status_t status;
} slot_list_t;

// Of the first loaded model.
static void copy_slots(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  slot_list_t *list = user;
  const size_t engines = mlx_servings_count(servings);
  (void)model;
  if (list->slots || list->status) return;
  list->each = mlx_serving_slots(mlx_servings_at(servings, 0), NULL, 0);
  list->count = list->each * engines;
  list->context = mlx_engine_info(mlx_serving_engine(mlx_servings_at(servings, 0))).context;
  list->status = mlx_alloc(list->count, sizeof *list->slots, &list->slots);
  for (size_t i = 0; i < engines && !list->status; ++i)
    mlx_serving_slots(mlx_servings_at(servings, i), list->slots + i * list->each, list->each);
}

static void put_slot(mlx_json_writer_t *json, const slot_list_t *list, size_t index) {
  const mlx_slot_t *slot = &list->slots[index];
  mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_uint(json, "id", index);
  mlx_json_put_uint(json, "engine", index / list->each);
  mlx_json_put_int(json, "n_ctx", list->context);
  mlx_json_put_bool(json, "speculative", false);
  mlx_json_put_bool(json, "is_processing", slot->task > 0);
  if (slot->task) {
    mlx_json_put_int(json, "id_task", slot->task);
    mlx_json_put_int(json, "n_prompt_tokens", slot->prompt_tokens);
    mlx_json_put_int(json, "n_prompt_tokens_processed", slot->read_tokens - slot->cached_tokens);
    mlx_json_put_int(json, "n_prompt_tokens_cache", slot->cached_tokens);
    mlx_json_begin_object(json, "params", MLX_JSON_ONE_LINE);
    mlx_llama_put_sampling(json, &slot->sampling);
    mlx_json_put_int(json, "n_predict", slot->max_tokens);
    mlx_json_put_int(json, "max_tokens", slot->max_tokens);
    mlx_json_put_bool(json, "ignore_eos", slot->ignore_eos);
    mlx_json_end(json);
    mlx_json_begin_list(json, "next_token", MLX_JSON_ONE_LINE);
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_bool(json, "has_next_token", true);
    mlx_json_put_int(json, "n_remain", slot->max_tokens < 0 ? -1 : slot->max_tokens - slot->generated);
    mlx_json_put_int(json, "n_decoded", slot->generated);
    mlx_json_end(json);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

void mlx_info_slots(mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *query = mlx_exchange_query(exchange);
  slot_list_t list = {0};
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  size_t busy = 0;
  mlx_models_visit_loaded(site->service.models, copy_slots, &list);
  for (size_t i = 0; i < list.count && !list.status; ++i) busy += list.slots[i].task > 0;
  if (!list.status && busy == list.count && query && strstr(query, "fail_on_no_slot=1"))
    list.status = mlx_error(MLX_UNAVAILABLE, "all %zu slots are busy", list.count);
  if (list.status) {
    mlx_failure_respond(&(mlx_failure_t){.kind = MLX_FAILURE_REQUEST, .status = list.status},
                        mlx_llama_write_error, exchange);
  } else {
    mlx_json_begin_list(&json, NULL, MLX_JSON_ONE_LINE);
    for (size_t i = 0; i < list.count; ++i) put_slot(&json, &list, i);
    mlx_json_end(&json);
    mlx_respond_json(exchange, 200, &out);
  }
  mlx_status_free(list.status);
  mlx_free(list.slots);
}

void mlx_info_build(mlx_site_t *site, mlx_exchange_t *exchange) {
  mlx_text_t out = {0};
  mlx_ollama_write_version(site->version, &out);
  mlx_respond_json(exchange, 200, &out);
}

void mlx_info_ping(mlx_site_t *site, mlx_exchange_t *exchange) {
  (void)site;
  mlx_exchange_respond(exchange, 200, "application/json", "", 0);
}
