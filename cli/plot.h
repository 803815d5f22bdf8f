// Plot: line charts as one SVG document, readable on light and dark pages. Deliberately small: panels side by
// side, with linear axes from zero.
#ifndef MLXCEL_CLI_PLOT_H_
#define MLXCEL_CLI_PLOT_H_

#include "base/text.h"

typedef struct mlx_plot_point {
  double x, y;
  double error;  // half the length of the error bar; 0 for none
} mlx_plot_point_t;

#define MLX_PLOT_SERIES 8  // per panel

typedef struct mlx_plot_series {
  const char *name;                // for the legend
  const mlx_plot_point_t *points;  // borrowed; x increases
  size_t count;
  bool is_limit;  // drawn dashed and without marks: not a measurement
} mlx_plot_series_t;

typedef struct mlx_plot_panel {
  const char *title, *x_label, *y_label;
  mlx_plot_series_t series[MLX_PLOT_SERIES];
  size_t count;
} mlx_plot_panel_t;

// Appends an SVG document with the panels side by side. Names may be any bytes. Each mark has its values in
// data-x and data-y and a title that browsers show; each tick has its value in data-value.
void mlx_plot_write(const char *title, const char *subtitle, const mlx_plot_panel_t *panels, size_t count,
                    mlx_text_t *out);

#endif  // MLXCEL_CLI_PLOT_H_
