// Counts responses by endpoint and status, and the times of generating requests.
#include "server/core/metrics.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"
#include "server/core/histogram.h"

#define MAX_ROWS 256

static const double bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

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
  mlx_histogram_t queue, first, token, response;
  mlx_metrics_totals_t totals;
};

mlx_status_t mlx_metrics_create(mlx_metrics_t **out_metrics) {
  mlx_metrics_t *m;
  MLX_TRY(mlx_alloc(1, sizeof *m, &m));
  mlx_histogram_t *const histograms[] = {&m->queue, &m->first, &m->token, &m->response};
  for (size_t i = 0; i < sizeof histograms / sizeof *histograms; ++i) {
    histograms[i]->bounds = bounds;
    histograms[i]->bound_count = sizeof bounds / sizeof *bounds;
  }
  uv_mutex_init(&m->mutex);
  *out_metrics = m;
  return NULL;
}

void mlx_metrics_free(mlx_metrics_t *m) {
  if (!m) return;
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
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
  mlx_histogram_add(&m->response, seconds, 1);
  m->gone += gone;
  uv_mutex_unlock(&m->mutex);
}

void mlx_metrics_generated(mlx_metrics_t *m, const mlx_metrics_generation_t *g) {
  uv_mutex_lock(&m->mutex);
  mlx_histogram_add(&m->queue, g->queue_seconds, 1);
  mlx_histogram_add(&m->first, g->first_seconds, 1);
  if (g->token_seconds > 0) mlx_histogram_add(&m->token, g->token_seconds, 1);
  mlx_metrics_totals_t *totals = &m->totals;
  totals->prompt_tokens += g->prompt_tokens;
  totals->prompt_seconds += g->first_seconds - g->queue_seconds;
  if (g->output_tokens > 1) totals->later_tokens += g->output_tokens - 1;
  if (g->output_tokens > 1) totals->later_seconds += g->token_seconds * (double)(g->output_tokens - 1);
  if (g->length > totals->longest) totals->longest = g->length;
  uv_mutex_unlock(&m->mutex);
}

mlx_metrics_totals_t mlx_metrics_totals(mlx_metrics_t *m) {
  uv_mutex_lock(&m->mutex);
  const mlx_metrics_totals_t totals = m->totals;
  uv_mutex_unlock(&m->mutex);
  return totals;
}

// ----------------------------------------------------------------------------------------------------------
// Output

void mlx_metrics_put(mlx_text_t *out, const char *name, const char *type, const char *help, double value) {
  mlx_metric_put_header(out, name, type, help);
  mlx_text_printf(out, "%s %.17g\n", name, value);
}

static void put_histogram(mlx_text_t *out, const char *name, const char *help, const mlx_histogram_t *h) {
  mlx_metric_put_header(out, name, "histogram", help);
  mlx_histogram_put(out, name, "", h);
}

void mlx_metrics_write(mlx_metrics_t *m, mlx_text_t *out) {
  uv_mutex_lock(&m->mutex);
  mlx_metric_put_header(out, "mlxcel_http_responses_total", "counter",
                        "HTTP responses by endpoint and status.");
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
