// Products of a few rows, panel by panel: one row, or several that are prepared together.
#include "epilogue.h"
#include "panel_by_vector.h"
#include "products_by.h"

// Prepares the blocks from |first| on of |count| rows, starting at |row|, unless the worker has them.
static void prepare_rows(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int row,
                         int count, int first) {
  vectors_t *v = &worker->vectors;
  const float *x[MAX_VECTORS];
  const bool codes = has_codes(p);
  bool same =
      worker->vectors_phase == phase && v->count == count && v->first == first && (!codes || v->quantized);
  for (int t = 0; t < count; ++t) {
    x[t] = input_row(c, p, row + t);
    same = same && x[t] == v->x[t];
  }
  if (same) return;
  const int blocks = codes ? min_int(p->columns / MLX_PANEL_BLOCK - first, prepared_blocks(count)) : 0;
  mlx_prepare_vectors(x, count, first, blocks, codes, v);
  worker->vectors_phase = phase;
}

INLINE int multiply_panels(int32_t format, const uint8_t *matrix, int panel, int count, vectors_t *x,
                           int columns, v16 *out) {
  const int64_t bytes = mlx_panel_bytes(format, columns);
  if (!is_quantized(format))
    return mlx_plain_panels_times_vector(format, count, matrix + panel * bytes, bytes, x->x[0], columns, out);
  out[0] = mlx_panel_times_vector(format, matrix + panel * bytes, x, columns);
  return 1;
}

static void multiply_row(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int row,
                         int from, int to) {
  v16 value[PLAIN_PANELS], up[PLAIN_PANELS];
  vectors_t *x = &worker->vectors;
  prepare_rows(c, p, worker, phase, row, 1, 0);
  for (int panel = from, done; panel < to; panel += done) {
    done = multiply_panels(p->format, p->weight, panel, to - panel, x, p->columns, value);
    for (int i = 0, more; p->up && i < done; i += more)
      more = multiply_panels(p->up_format, p->up, panel + i, done - i, x, p->columns, up + i);
    for (int i = 0; i < done; ++i)
      mlx_finish_product(c, p, row, panel + i, value[i], p->up ? up[i] : value[i]);
  }
}

// The prepared blocks of |panels| panels, starting at panel |first|.
static void add_panels(int32_t format, const uint8_t *matrix, int first, int panels, worker_t *worker,
                       int columns, panel_sums_t *sums) {
  vectors_t *x = &worker->vectors;
  const int64_t stride = mlx_panel_bytes(format, columns);
  const uint8_t *panel = matrix + first * stride;
  for (int i = 0; x->first == 0 && i < panels; ++i) clear_sums(&sums[i], x);
  if (is_quantized(format) && format != MLX_PANEL_Q2_K) {
    mlx_start_products(format, x, &worker->tiles);
    mlx_panels_times_vectors(format, panel, stride, panels, x, sums);
    return;
  }
  for (int i = 0; x->first == 0 && i < panels; ++i)
    mlx_panel_times_each_vector(format, panel + i * stride, x, columns, &sums[i]);
}

// |count| rows of a quantized product, starting at |row|, with up to panels_together() panels.
static void multiply_rows(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int row,
                          int count, int from, int to) {
  panel_sums_t sums[SLICE_PANELS], *up_sums = sums + panels_together(p, count);
  for (int first = 0; first < p->columns / MLX_PANEL_BLOCK; first += prepared_blocks(count)) {
    prepare_rows(c, p, worker, phase, row, count, first);
    for (int panel = from; panel < to; panel += SUM_PANELS) {
      const int panels = min_int(SUM_PANELS, to - panel);
      add_panels(p->format, p->weight, panel, panels, worker, p->columns, sums + panel - from);
      if (p->up) add_panels(p->up_format, p->up, panel, panels, worker, p->columns, up_sums + panel - from);
    }
  }
  for (int panel = from; panel < to; ++panel)
    mlx_finish_products(c, p, row, count, panel, &worker->vectors, sums + panel - from,
                        up_sums + panel - from);
}

void mlx_multiply_by_vector(const call_t *c, const product_t *p, const share_t *share, worker_t *worker,
                            uint64_t phase, int from, int to) {
  const int panels = panel_count(p);
  while (from < to) {
    const int group = from / panels, row = share->first + group * MAX_VECTORS,
              count = min_int(MAX_VECTORS, share->first + share->count - row), first = from - group * panels;
    int end = min_int(panels, to - group * panels);
    if (count == 1) {
      multiply_row(c, p, worker, phase, row, first, end);
    } else {
      end = min_int(end, first + panels_together(p, count));
      multiply_rows(c, p, worker, phase, row, count, first, end);
    }
    from = group * panels + end;
  }
  mlx_end_products(&worker->tiles);
}
