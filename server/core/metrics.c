// Counts responses by endpoint and status, and the times of generating requests.
#include "server/core/metrics.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"

#define MAX_ROWS 256

static const double bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
#define BOUNDS (sizeof bounds / sizeof *bounds)

typedef struct histogram {
  int64_t counts[BOUNDS + 1];  // the last one: above all bounds
  double sum;
} histogram_t;

typedef struct row {
  const char *endpoint;
  int status;
  int64_t count;
} row_t;

struct mlx_metrics {
  uv_mutex_t mutex;
  row_t rows[MAX_ROWS];
  size_t row_count;
  int64_t gone;
  histogram_t queue, first, token, response;
};

mlx_status_t mlx_metrics_create(mlx_metrics_t **out_metrics) {
  MLX_TRY(mlx_alloc(1, sizeof **out_metrics, out_metrics));
  uv_mutex_init(&(*out_metrics)->mutex);
  return NULL;
}

void mlx_metrics_free(mlx_metrics_t *m) {
  if (!m) return;
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
}

static void observe(histogram_t *h, double seconds) {
  size_t at = 0;
  while (at < BOUNDS && seconds > bounds[at]) ++at;
  ++h->counts[at];
  h->sum += seconds;
}

static void count_row(mlx_metrics_t *m, const char *endpoint, int status) {
  for (size_t i = 0; i < m->row_count; ++i) {
    if (m->rows[i].status != status || strcmp(m->rows[i].endpoint, endpoint)) continue;
    ++m->rows[i].count;
    return;
  }
  if (m->row_count < MAX_ROWS) m->rows[m->row_count++] = (row_t){endpoint, status, 1};
}

void mlx_metrics_response(mlx_metrics_t *m, const char *endpoint, int status, double seconds, bool gone) {
  uv_mutex_lock(&m->mutex);
  count_row(m, endpoint ? endpoint : "none", status);
  observe(&m->response, seconds);
  m->gone += gone;
  uv_mutex_unlock(&m->mutex);
}

void mlx_metrics_generated(mlx_metrics_t *m, const mlx_metrics_generation_t *g) {
  uv_mutex_lock(&m->mutex);
  observe(&m->queue, g->queue_seconds);
  observe(&m->first, g->first_seconds);
  if (g->token_seconds > 0) observe(&m->token, g->token_seconds);
  uv_mutex_unlock(&m->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Output

static void put_header(mlx_text_t *out, const char *name, const char *type, const char *help) {
  mlx_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void mlx_metrics_put(mlx_text_t *out, const char *name, const char *type, const char *help, double value) {
  put_header(out, name, type, help);
  mlx_text_printf(out, "%s %.17g\n", name, value);
}

static void put_histogram(mlx_text_t *out, const char *name, const char *help, const histogram_t *h) {
  int64_t total = 0;
  put_header(out, name, "histogram", help);
  for (size_t i = 0; i < BOUNDS; ++i) {
    total += h->counts[i];
    mlx_text_printf(out, "%s_bucket{le=\"%g\"} %lld\n", name, bounds[i], (long long)total);
  }
  total += h->counts[BOUNDS];
  mlx_text_printf(out, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.9g\n%s_count %lld\n", name, (long long)total,
                  name, h->sum, name, (long long)total);
}

void mlx_metrics_write(mlx_metrics_t *m, mlx_text_t *out) {
  uv_mutex_lock(&m->mutex);
  put_header(out, "mlxcel_http_responses_total", "counter", "HTTP responses by endpoint and status.");
  for (size_t i = 0; i < m->row_count; ++i)
    mlx_text_printf(out, "mlxcel_http_responses_total{endpoint=\"%s\",status=\"%d\"} %lld\n",
                    m->rows[i].endpoint, m->rows[i].status, (long long)m->rows[i].count);
  mlx_metrics_put(out, "mlxcel_http_disconnects_total", "counter",
                  "Clients that left before the end of the response.", (double)m->gone);
  put_histogram(out, "mlxcel_http_response_seconds", "Time from the request to the end of the response.",
                &m->response);
  put_histogram(out, "mlxcel_queue_seconds", "Time that a request waited before it ran.", &m->queue);
  put_histogram(out, "mlxcel_time_to_first_token_seconds", "Time to the first token.", &m->first);
  put_histogram(out, "mlxcel_time_per_output_token_seconds", "Average time between the tokens of a request.",
                &m->token);
  uv_mutex_unlock(&m->mutex);
}
