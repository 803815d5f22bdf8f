// vLLM's names for what the server counts. See vllm_metrics.h.
#include "server/core/vllm_metrics.h"

#include <uv.h>

#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/core/histogram.h"

#define MAX_LOADED 128  // engines

// Buckets, as vLLM has them: dashboards compute quantiles from them.
static const double first_token[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                     1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double between_tokens[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                        0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double of_requests[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double tokens[] = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                                1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};

typedef enum kind {
  FIRST,
  BETWEEN,
  BETWEEN_OLD,
  TOTAL,
  QUEUE,
  PREFILL,
  DECODE,
  PROMPT,
  OUTPUT,
  KINDS
} kind_t;

#define BUCKETS(list) list, sizeof list / sizeof *list
static const struct {
  const char *name, *help;
  const double *bounds;
  size_t count;
} histograms[KINDS] = {
    {"vllm:time_to_first_token_seconds", "Time to the first token.", BUCKETS(first_token)},
    {"vllm:inter_token_latency_seconds", "Time between tokens of a request.", BUCKETS(between_tokens)},
    {"vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds.",
     BUCKETS(between_tokens)},
    {"vllm:e2e_request_latency_seconds", "Time of a request.", BUCKETS(of_requests)},
    {"vllm:request_queue_time_seconds", "Time that a request waited before it ran.", BUCKETS(of_requests)},
    {"vllm:request_prefill_time_seconds", "Time of the prompt of a request.", BUCKETS(of_requests)},
    {"vllm:request_decode_time_seconds", "Time from the first token of a request to its end.",
     BUCKETS(of_requests)},
    {"vllm:request_prompt_tokens", "Tokens of a prompt.", BUCKETS(tokens)},
    {"vllm:request_generation_tokens", "Generated tokens of a request.", BUCKETS(tokens)},
};

// How requests end, in vLLM's words.
typedef enum reason { BY_STOP, BY_LENGTH, BY_ABORT, BY_ERROR, REASONS } reason_t;  // ERROR is a Windows macro
static const char *const reasons[REASONS] = {"stop", "length", "abort", "error"};

typedef struct series {
  const mlx_served_model_t *model;
  size_t engine;
  mlx_histogram_t histograms[KINDS];
  int64_t ended[REASONS];
} series_t;

struct mlx_vllm_metrics {
  uv_mutex_t mutex;
  series_t *series;  // one for each engine that had a request
  size_t count, capacity;
};

mlx_status_t mlx_vllm_metrics_create(mlx_vllm_metrics_t **out_metrics) {
  MLX_TRY(mlx_alloc(1, sizeof **out_metrics, out_metrics));
  uv_mutex_init(&(*out_metrics)->mutex);
  return NULL;
}

void mlx_vllm_metrics_free(mlx_vllm_metrics_t *m) {
  if (!m) return;
  mlx_free(m->series);
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
}

// ----------------------------------------------------------------------------------------------------------
// Counting

// NULL if there is no memory: then the value is not counted.
static series_t *series_of(mlx_vllm_metrics_t *m, const mlx_served_model_t *model, size_t engine) {
  for (size_t i = 0; i < m->count; ++i) {
    if (m->series[i].model == model && m->series[i].engine == engine) return &m->series[i];
  }
  mlx_status_t status = mlx_reserve(m->count + 1, sizeof *m->series, &m->capacity, &m->series);
  mlx_status_free(status);
  if (status) return NULL;
  series_t *series = &m->series[m->count++];
  *series = (series_t){.model = model, .engine = engine};
  for (int i = 0; i < KINDS; ++i) {
    series->histograms[i].bounds = histograms[i].bounds;
    series->histograms[i].bound_count = histograms[i].count;
  }
  return series;
}

void mlx_vllm_metrics_tokens(mlx_vllm_metrics_t *m, const mlx_served_model_t *model, size_t engine,
                             int64_t count, double seconds) {
  uv_mutex_lock(&m->mutex);
  series_t *series = series_of(m, model, engine);
  for (int i = BETWEEN; series && i <= BETWEEN_OLD; ++i)
    mlx_histogram_add(&series->histograms[i], seconds, count);
  uv_mutex_unlock(&m->mutex);
}

static reason_t reason_of(mlx_finish_reason_t reason) {
  switch (reason) {
    case MLX_FINISH_LENGTH: return BY_LENGTH;
    case MLX_FINISH_CANCELLED: return BY_ABORT;
    case MLX_FINISH_ERROR: return BY_ERROR;
    default: return BY_STOP;
  }
}

void mlx_vllm_metrics_request(mlx_vllm_metrics_t *m, const mlx_served_model_t *model, size_t engine,
                              const mlx_vllm_request_t *r) {
  const double first = r->seconds - r->decode_seconds, prefill = first - r->queue_seconds;
  const double values[KINDS] = {[FIRST] = first,
                                [TOTAL] = r->seconds,
                                [QUEUE] = r->queue_seconds,
                                [PREFILL] = prefill > 0 ? prefill : 0,
                                [DECODE] = r->decode_seconds,
                                [PROMPT] = (double)r->prompt_tokens,
                                [OUTPUT] = (double)r->output_tokens};
  const reason_t reason = reason_of(r->reason);
  uv_mutex_lock(&m->mutex);
  series_t *series = series_of(m, model, engine);
  if (series) ++series->ended[reason];
  for (int i = 0; series && reason < BY_ABORT && i < KINDS; ++i) {
    if (i == BETWEEN || i == BETWEEN_OLD || (i == FIRST && !r->output_tokens)) continue;
    mlx_histogram_add(&series->histograms[i], values[i], 1);
  }
  uv_mutex_unlock(&m->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Output

typedef struct loaded {
  struct {
    const char *name;
    size_t engine;
    mlx_serving_stats_t stats;
  } items[MAX_LOADED];
  size_t count;
} loaded_t;

static void add_loaded(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  loaded_t *all = user;
  for (size_t i = 0; i < mlx_servings_count(servings) && all->count < MAX_LOADED; ++i) {
    all->items[all->count].name = mlx_served_model_name(model);
    all->items[all->count].engine = i;
    all->items[all->count++].stats = mlx_serving_stats(mlx_servings_at(servings, i));
  }
}

static double running(const mlx_serving_stats_t *s) { return (double)s->scheduler.running; }
static double waiting(const mlx_serving_stats_t *s) { return (double)mlx_serving_waiting(s); }
static double usage(const mlx_serving_stats_t *s) { return mlx_serving_pool_usage(s); }
// vLLM's prompt tokens include those whose blocks are in the cache.
static double prompts(const mlx_serving_stats_t *s) {
  return (double)(s->scheduler.prompt_tokens + s->scheduler.prefix_hits);
}
static double outputs(const mlx_serving_stats_t *s) { return (double)s->scheduler.output_tokens; }
static double queries(const mlx_serving_stats_t *s) { return (double)s->scheduler.prefix_queries; }
static double hits(const mlx_serving_stats_t *s) { return (double)s->scheduler.prefix_hits; }
static double preemptions(const mlx_serving_stats_t *s) { return (double)s->scheduler.preemptions; }

static const struct {
  const char *name, *type, *help;
  double (*value)(const mlx_serving_stats_t *stats);
} rows[] = {
    {"vllm:num_requests_running", "gauge", "Sequences that run.", running},
    {"vllm:num_requests_waiting", "gauge", "Sequences that wait.", waiting},
    {"vllm:kv_cache_usage_perc", "gauge",
     "Used part of the KV cache, 0 to 1: of pages or of window pages, the larger one.", usage},
    {"vllm:gpu_cache_usage_perc", "gauge", "The older name of vllm:kv_cache_usage_perc.", usage},
    {"vllm:prompt_tokens_total", "counter", "Tokens of prompts, computed and shared.", prompts},
    {"vllm:generation_tokens_total", "counter", "Tokens that were generated.", outputs},
    {"vllm:num_preemptions_total", "counter", "Sequences that lost their pages to others.", preemptions},
    {"vllm:prefix_cache_queries_total", "counter", "Tokens that were looked for in the KV cache.", queries},
    {"vllm:prefix_cache_hits_total", "counter", "Tokens that were found there.", hits},
    {"vllm:gpu_prefix_cache_queries_total", "counter", "The older name of vllm:prefix_cache_queries_total.",
     queries},
    {"vllm:gpu_prefix_cache_hits_total", "counter", "The older name of vllm:prefix_cache_hits_total.", hits},
};

// model_name="NAME",engine="0",
static void put_labels(mlx_text_t *out, const char *name, size_t engine) {
  mlx_text_puts(out, "model_name=\"");
  mlx_metric_put_label(out, name);
  mlx_text_printf(out, "\",engine=\"%zu\"", engine);
}

static void put_loaded(mlx_text_t *out, const loaded_t *all) {
  for (size_t row = 0; row < sizeof rows / sizeof *rows; ++row) {
    mlx_metric_put_header(out, rows[row].name, rows[row].type, rows[row].help);
    for (size_t i = 0; i < all->count; ++i) {
      mlx_text_printf(out, "%s{", rows[row].name);
      put_labels(out, all->items[i].name, all->items[i].engine);
      mlx_text_printf(out, "} %.17g\n", rows[row].value(&all->items[i].stats));
    }
  }
  static const char config[] = "vllm:cache_config_info";
  mlx_metric_put_header(out, config, "gauge", "Positions of a page, and pages of the KV cache.");
  for (size_t i = 0; i < all->count; ++i) {
    const mlx_scheduler_stats_t *s = &all->items[i].stats.scheduler;
    mlx_text_printf(out, "%s{", config);
    put_labels(out, all->items[i].name, all->items[i].engine);
    mlx_text_printf(out, ",block_size=\"%d\",num_gpu_blocks=\"%lld\"} 1\n", MLX_PAGE_POSITIONS,
                    (long long)(s->pages_used + s->pages_cached + s->pages_free));
  }
}

static void put_series(mlx_vllm_metrics_t *m, mlx_text_t *out) {
  static const char success[] = "vllm:request_success_total";
  mlx_metric_put_header(out, success, "counter", "Requests that ended, by reason.");
  for (size_t i = 0; i < m->count; ++i) {
    for (int reason = 0; reason < REASONS; ++reason) {
      mlx_text_printf(out, "%s{", success);
      put_labels(out, mlx_served_model_name(m->series[i].model), m->series[i].engine);
      mlx_text_printf(out, ",finished_reason=\"%s\"} %lld\n", reasons[reason],
                      (long long)m->series[i].ended[reason]);
    }
  }
  for (int kind = 0; kind < KINDS; ++kind) {
    mlx_metric_put_header(out, histograms[kind].name, "histogram", histograms[kind].help);
    for (size_t i = 0; i < m->count; ++i) {
      mlx_text_t labels = {0};
      put_labels(&labels, mlx_served_model_name(m->series[i].model), m->series[i].engine);
      mlx_text_puts(&labels, ",");
      if (labels.failed)
        out->failed = true;
      else
        mlx_histogram_put(out, histograms[kind].name, labels.data, &m->series[i].histograms[kind]);
      mlx_text_clear(&labels);
    }
  }
}

void mlx_vllm_metrics_write(mlx_vllm_metrics_t *m, mlx_models_t *models, mlx_text_t *out) {
  loaded_t all = {0};
  mlx_models_visit_loaded(models, add_loaded, &all);
  put_loaded(out, &all);
  uv_mutex_lock(&m->mutex);
  put_series(m, out);
  uv_mutex_unlock(&m->mutex);
}
