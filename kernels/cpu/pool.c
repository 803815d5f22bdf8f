// One vector of the hidden states of a text. All its tokens are in the step, in consecutive rows, and the
// last one is wanted.
#include "rows.h"

INLINE v16 pool_rows(const call_t *c, const mlx_instruction_t *i, int first, int last, int column) {
  const int count = i->width - column;
  v16 sum = load_some(row_at(c, &i->a, first) + column, count);
  for (int row = first + 1; row <= last; ++row) {
    const v16 next = load_some(row_at(c, &i->a, row) + column, count);
    sum = i->op == MLX_POOL_OF_MAX ? v_max(sum, next) : v_add(sum, next);
  }
  return i->op == MLX_POOL_OF_MEAN ? v_mul(sum, v_all(1 / (float)(last - first + 1))) : sum;
}

void mlx_run_pool(const call_t *c, const mlx_instruction_t *i, int row) {
  const int end = c->wanted_of[row], start = max_int(0, end - c->position_of[end]),
            first = i->op == MLX_POOL_OF_LAST ? end : start, last = i->op == MLX_POOL_OF_FIRST ? start : end;
  float *out = row_at(c, &i->out, row);
  for (int k = 0; k < i->width; k += 16) store_some(out + k, pool_rows(c, i, first, last, k), i->width - k);
  store_row_parts(c, i, row, i->width);
}
