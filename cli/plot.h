// Plots: lines over axes as one SVG text, readable on light and on dark pages. Deliberately small: a few
// panels, linear axes from zero.
#ifndef MLXCEL_CLI_PLOT_H_
#define MLXCEL_CLI_PLOT_H_

#include "base/text.h"

typedef struct mlx_plot_point {
  double x, y;
  double error;  // a bar of this much above and below; 0: none
} mlx_plot_point_t;

#define MLX_PLOT_SERIES 8  // of a panel

typedef struct mlx_plot_series {
  const char *name;                // for the legend
  const mlx_plot_point_t *points;  // borrowed, by growing x
  size_t count;
  bool is_limit;  // dashed, without marks: no measurement
} mlx_plot_series_t;

typedef struct mlx_plot_panel {
  const char *title, *x_label, *y_label;
  mlx_plot_series_t series[MLX_PLOT_SERIES];
  size_t count;
} mlx_plot_panel_t;

// Appends a whole SVG document with the panels side by side. Names may be any bytes. Every mark carries its
// numbers in data-x and data-y, every tick its own in data-value, and a title that a browser shows.
void mlx_plot_write(const char *title, const char *subtitle, const mlx_plot_panel_t *panels, size_t count,
                    mlx_text_t *out);

#endif  // MLXCEL_CLI_PLOT_H_
