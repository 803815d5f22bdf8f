// Histogram: counts of values in buckets, in Prometheus' text format.
//
// Threads: the owner locks it.
#ifndef MLXCEL_SERVER_CORE_HISTOGRAM_H_
#define MLXCEL_SERVER_CORE_HISTOGRAM_H_

#include <stdint.h>

#include "base/text.h"

#define MLX_HISTOGRAM_MAX 32  // buckets

// A text for the clients of /metrics: "# HELP" and "# TYPE".
void mlx_metric_put_header(mlx_text_t *out, const char *name, const char *type, const char *help);
// The value of a label: backslashes and quotes are escaped.
void mlx_metric_put_label(mlx_text_t *out, const char *value);

typedef struct mlx_histogram {
  const double *bounds;                   // constant, ascending
  size_t bound_count;                     // at most MLX_HISTOGRAM_MAX
  int64_t counts[MLX_HISTOGRAM_MAX + 1];  // [bound_count]: above all bounds
  double sum;
} mlx_histogram_t;

// The same value |times| times.
void mlx_histogram_add(mlx_histogram_t *histogram, double value, int64_t times);
// The samples, without a header. |labels|: "" or labels without braces, which end with a comma.
void mlx_histogram_put(mlx_text_t *out, const char *name, const char *labels,
                       const mlx_histogram_t *histogram);

#endif  // MLXCEL_SERVER_CORE_HISTOGRAM_H_
