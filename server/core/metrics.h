// Metrics: counters and histograms in Prometheus' text format.
//
// Threads: any thread.
#ifndef MLXCEL_SERVER_CORE_METRICS_H_
#define MLXCEL_SERVER_CORE_METRICS_H_

#include <stdint.h>

#include "base/text.h"

typedef struct mlx_metrics mlx_metrics_t;

mlx_status_t mlx_metrics_create(mlx_metrics_t **out_metrics) MLX_MUST_USE;
void mlx_metrics_free(mlx_metrics_t *metrics);  // NULL is fine

// A response has ended. |endpoint| is constant text; NULL: the request was not understood. |gone|: the client
// left before the end.
void mlx_metrics_response(mlx_metrics_t *metrics, const char *endpoint, int status, double seconds,
                          bool gone);
// A generating request is done.
typedef struct mlx_metrics_generation {
  double queue_seconds;   // until it ran
  double first_seconds;   // until its first token
  double token_seconds;   // average time between tokens; 0: fewer than two tokens
  int64_t prompt_tokens;  // that were computed
  int64_t output_tokens;
  int64_t length;  // of the sequence
} mlx_metrics_generation_t;
void mlx_metrics_generated(mlx_metrics_t *metrics, const mlx_metrics_generation_t *generation);

// Of all generating requests that are done.
typedef struct mlx_metrics_totals {
  int64_t prompt_tokens;  // that were computed
  double prompt_seconds;  // from the beginning of a request to its first token
  int64_t later_tokens;   // generated after the first token of their request
  double later_seconds;   // their time
  int64_t longest;        // tokens of the longest sequence
} mlx_metrics_totals_t;
mlx_metrics_totals_t mlx_metrics_totals(mlx_metrics_t *metrics);

void mlx_metrics_write(mlx_metrics_t *metrics, mlx_text_t *out);
// One metric with its header: "# HELP", "# TYPE" and the value. |type| is "gauge" or "counter".
void mlx_metrics_put(mlx_text_t *out, const char *name, const char *type, const char *help, double value);

#endif  // MLXCEL_SERVER_CORE_METRICS_H_
