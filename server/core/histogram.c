// See histogram.h.
#include "server/core/histogram.h"

#include <string.h>

void mlx_metric_put_header(mlx_text_t *out, const char *name, const char *type, const char *help) {
  mlx_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void mlx_metric_put_label(mlx_text_t *out, const char *value) {
  for (; *value; ++value) {
    if (*value == '\\' || *value == '"') mlx_text_puts(out, "\\");
    mlx_text_append(out, *value == '\n' ? " " : value, 1);
  }
}

void mlx_histogram_add(mlx_histogram_t *h, double value, int64_t times) {
  size_t at = 0;
  while (at < h->bound_count && value > h->bounds[at]) ++at;
  h->counts[at] += times;
  h->sum += value * (double)times;
}

void mlx_histogram_put(mlx_text_t *out, const char *name, const char *labels, const mlx_histogram_t *h) {
  int64_t total = 0;
  for (size_t i = 0; i < h->bound_count; ++i) {
    total += h->counts[i];
    mlx_text_printf(out, "%s_bucket{%sle=\"%g\"} %lld\n", name, labels, h->bounds[i], (long long)total);
  }
  total += h->counts[h->bound_count];
  mlx_text_printf(out, "%s_bucket{%sle=\"+Inf\"} %lld\n", name, labels, (long long)total);
  const int length = (int)strlen(labels);
  const char *open = length ? "{" : "", *close = length ? "}" : "";
  const int kept = length ? length - 1 : 0;  // without the comma
  mlx_text_printf(out, "%s_sum%s%.*s%s %.9g\n", name, open, kept, labels, close, h->sum);
  mlx_text_printf(out, "%s_count%s%.*s%s %lld\n", name, open, kept, labels, close, (long long)total);
}
