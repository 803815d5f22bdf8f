// Writes plots as SVG text.
#include "cli/plot.h"

#include <math.h>
#include <string.h>

#define PANEL_WIDTH 520
#define HEIGHT 420
#define LEFT 70  // margins between a panel's edges and its axes
#define RIGHT 24
#define TOP 112  // holds the titles and the legend
#define BOTTOM 56
#define MAX_TICKS 7

typedef struct axis {
  double last, step;     // the last tick and the distance of ticks; the first tick is 0
  double origin, scale;  // position of 0 and length of a unit, in pixels
} axis_t;

static double position(const axis_t *axis, double value) { return axis->origin + value * axis->scale; }

// Ticks are at multiples of 1, 2 or 5 times a power of ten.
static axis_t make_axis(double largest, double origin, double length) {
  axis_t axis = {.origin = origin, .step = 1};
  if (!(largest > 0) || !isfinite(largest)) largest = 1;
  axis.step = pow(10, floor(log10(largest / MAX_TICKS)));
  static const double factors[] = {1, 2, 5, 10};
  for (size_t i = 0; i < 4; ++i) {
    const double step = axis.step * factors[i];
    if (largest / step > MAX_TICKS && i < 3) continue;
    axis.step = step;
    break;
  }
  axis.last = axis.step * ceil(largest / axis.step - 1e-9);
  axis.scale = length / axis.last;
  return axis;
}

// Escapes |text| for XML; replaces bytes that XML does not allow.
static void put_text(mlx_text_t *out, const char *text) {
  for (size_t left = strlen(text); left;) {
    const int length = mlx_utf8_length(text, left);
    const unsigned char c = (unsigned char)*text;
    const bool noncharacter =
        length == 3 && c == 0xef && (unsigned char)text[1] == 0xbf && (unsigned char)text[2] >= 0xbe;
    const char *entity = c == '&'   ? "&amp;"
                         : c == '<' ? "&lt;"
                         : c == '>' ? "&gt;"
                         : c == '"' ? "&quot;"
                                    : NULL;
    if (entity) {
      mlx_text_puts(out, entity);
    } else if (length <= 0 || c < 0x20 || c == 0x7f || noncharacter) {
      mlx_text_puts(out, "?");
    } else {
      mlx_text_append(out, text, (size_t)length);
    }
    text += length > 0 ? length : 1;
    left -= length > 0 ? (size_t)length : 1;
  }
}

static void put_label(mlx_text_t *out, const char *class, double x, double y, const char *anchor,
                      const char *text) {
  mlx_text_printf(out, "  <text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y, anchor);
  put_text(out, text);
  mlx_text_puts(out, "</text>\n");
}

// clang-format off
static const char style[] =
    "  <style>\n"
    "    svg { background: #ffffff; }\n"
    "    text { font: 13px system-ui, sans-serif; fill: #1f2328; }\n"
    "    .title { font-size: 17px; font-weight: 600; }\n"
    "    .panel { font-weight: 600; }\n"
    "    .soft, .tick { fill: #59636e; }\n"
    "    .tick { font-size: 12px; }\n"
    "    .grid { stroke: #d1d9e0; stroke-width: 1; }\n"
    "    .axis { stroke: #59636e; stroke-width: 1.2; }\n"
    "    .line { fill: none; stroke-width: 2; }\n"
    "    .bar { stroke-width: 1.5; }\n"
    "    .limit { stroke-dasharray: 6 4; }\n"
    "    .s0 { stroke: #0072b2; } .s1 { stroke: #d55e00; } "
    ".s2 { stroke: #009e73; } .s3 { stroke: #aa4499; }\n"
    "    .s4 { stroke: #8a6d00; } .s5 { stroke: #332288; } "
    ".s6 { stroke: #117733; } .s7 { stroke: #882255; }\n"
    "    .limit { stroke: #59636e; }\n"
    "    circle { fill: #ffffff; stroke-width: 2; }\n"
    "    @media (prefers-color-scheme: dark) {\n"
    "      svg { background: #0d1117; }\n"
    "      text { fill: #f0f6fc; }\n"
    "      .soft, .tick { fill: #9198a1; }\n"
    "      .grid { stroke: #3d444d; }\n"
    "      .axis, .limit { stroke: #9198a1; }\n"
    "      .s0 { stroke: #56b4e9; } .s1 { stroke: #ff9e4a; } "
    ".s2 { stroke: #3fcf9d; } .s3 { stroke: #e39ad2; }\n"
    "      .s4 { stroke: #e0c341; } .s5 { stroke: #a99bff; } "
    ".s6 { stroke: #7fd48b; } .s7 { stroke: #f08fb0; }\n"
    "      .limit { stroke: #9198a1; }\n"
    "      circle { fill: #0d1117; }\n"
    "    }\n"
    "  </style>\n";
// clang-format on

// ----------------------------------------------------------------------------------------------------------
// A panel

static void put_axes(mlx_text_t *out, const mlx_plot_panel_t *panel, const axis_t *x, const axis_t *y,
                     double left) {
  const double right = left + PANEL_WIDTH - RIGHT, bottom = HEIGHT - BOTTOM;
  for (int i = 0; i <= (int)lround(y->last / y->step); ++i) {
    const double value = i * y->step, at = position(y, value);
    mlx_text_printf(out, "  <line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                    x->origin, at, right, at);
    mlx_text_printf(out,
                    "  <text class=\"tick y\" data-value=\"%.10g\" x=\"%.1f\" y=\"%.1f\" dy=\"4\" "
                    "text-anchor=\"end\">%.10g</text>\n",
                    value, x->origin - 8, at, value);
  }
  for (int i = 0; i <= (int)lround(x->last / x->step); ++i) {
    const double value = i * x->step, at = position(x, value);
    mlx_text_printf(out, "  <line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", at,
                    bottom, at, bottom + 5);
    mlx_text_printf(out,
                    "  <text class=\"tick x\" data-value=\"%.10g\" x=\"%.1f\" y=\"%.1f\" "
                    "text-anchor=\"middle\">%.10g</text>\n",
                    value, at, bottom + 20, value);
  }
  mlx_text_printf(out, "  <line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                  x->origin, bottom, right, bottom);
  put_label(out, "soft", (x->origin + right) / 2, bottom + 42, "middle", panel->x_label);
  put_label(out, "soft", left + 14, TOP - 10, "start", panel->y_label);
}

static void put_line(mlx_text_t *out, const mlx_plot_series_t *series, size_t color, const axis_t *x,
                     const axis_t *y) {
  if (series->is_limit) {
    mlx_text_puts(out, "  <path class=\"line limit\" d=\"");
  } else {
    mlx_text_printf(out, "  <path class=\"line s%zu\" d=\"", color);
  }
  for (size_t i = 0; i < series->count; ++i) {
    mlx_text_printf(out, "%s%.1f %.1f", i ? " L" : "M", position(x, series->points[i].x),
                    position(y, series->points[i].y));
  }
  mlx_text_puts(out, "\"/>\n");
}

static void put_marks(mlx_text_t *out, const mlx_plot_series_t *series, size_t color, const axis_t *x,
                      const axis_t *y) {
  for (size_t i = 0; i < series->count; ++i) {
    const mlx_plot_point_t *point = &series->points[i];
    const double at = position(x, point->x), below = point->y > point->error ? point->y - point->error : 0;
    if (point->error > 0) {
      mlx_text_printf(out, "  <line class=\"bar s%zu\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                      color, at, position(y, below), at, position(y, point->y + point->error));
    }
    mlx_text_printf(out,
                    "  <circle class=\"s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\" data-x=\"%.10g\" "
                    "data-y=\"%.6f\" data-error=\"%.6f\"><title>",
                    color, at, position(y, point->y), point->x, point->y, point->error);
    put_text(out, series->name);
    mlx_text_printf(out, " at %.10g: %.2f ± %.2f</title></circle>\n", point->x, point->y, point->error);
  }
}

static void put_legend(mlx_text_t *out, const mlx_plot_panel_t *panel, double left) {
  double at = left + 14;
  for (size_t i = 0; i < panel->count; ++i) {
    const mlx_plot_series_t *series = &panel->series[i];
    if (series->is_limit) {
      mlx_text_printf(out, "  <line class=\"line limit\" x1=\"%.1f\" y1=\"80\" x2=\"%.1f\" y2=\"80\"/>\n", at,
                      at + 24);
    } else {
      mlx_text_printf(out, "  <line class=\"line s%zu\" x1=\"%.1f\" y1=\"80\" x2=\"%.1f\" y2=\"80\"/>\n", i,
                      at, at + 24);
    }
    put_label(out, "legend", at + 30, 84, "start", series->name);
    at += 30 + 7.5 * (double)strlen(series->name) + 22;
  }
}

static void put_panel(mlx_text_t *out, const mlx_plot_panel_t *panel, size_t number) {
  double width = 0, height = 0;
  const double left = (double)number * PANEL_WIDTH;
  for (size_t i = 0; i < panel->count; ++i) {
    for (size_t j = 0; j < panel->series[i].count; ++j) {
      const mlx_plot_point_t *point = &panel->series[i].points[j];
      width = fmax(width, point->x);
      height = fmax(height, point->y + point->error);
    }
  }
  const axis_t x = make_axis(width, left + LEFT, PANEL_WIDTH - LEFT - RIGHT);
  const axis_t y = make_axis(height, HEIGHT - BOTTOM, -(HEIGHT - BOTTOM - TOP));
  mlx_text_puts(out, "  <g>\n");
  put_label(out, "panel", left + 14, 62, "start", panel->title);
  put_legend(out, panel, left);
  put_axes(out, panel, &x, &y, left);
  for (size_t i = 0; i < panel->count; ++i) put_line(out, &panel->series[i], i, &x, &y);
  for (size_t i = 0; i < panel->count; ++i) {
    if (!panel->series[i].is_limit) put_marks(out, &panel->series[i], i, &x, &y);
  }
  mlx_text_puts(out, "  </g>\n");
}

void mlx_plot_write(const char *title, const char *subtitle, const mlx_plot_panel_t *panels, size_t count,
                    mlx_text_t *out) {
  const int width = PANEL_WIDTH * (int)count;
  mlx_text_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" role=\"img\">\n  <title>",
                  width, HEIGHT, width, HEIGHT);
  put_text(out, title);
  mlx_text_puts(out, "</title>\n");
  mlx_text_puts(out, style);
  put_label(out, "title", 14, 24, "start", title);
  put_label(out, "soft", 14, 42, "start", subtitle);
  for (size_t i = 0; i < count; ++i) put_panel(out, &panels[i], i);
  mlx_text_puts(out, "</svg>\n");
}
