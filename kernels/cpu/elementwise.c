// Element-wise ops: sums, products, factors, activations; the order of columns; copies.
#include "activation_functions.h"
#include "rows.h"

// The factor of a whole row, for ops that have one.
static float row_factor(const call_t *c, const mlx_instruction_t *i, int row, const float *b) {
  if (i->op == MLX_MAP_SCALE) return i->numbers[0];
  if (i->op == MLX_MAP_SCALE_ROWS) return b[0];
  const int periods = c->position_of[row] / i->dims;
  return (float)(1 + (double)i->numbers[0] * natural_log(1 + periods));
}

INLINE v16 map_values(const mlx_instruction_t *i, v16 a, v16 b) {
  switch (i->op) {
    case MLX_MAP_COPY: return a;
    case MLX_MAP_ADD: return v_add(a, b);
    case MLX_MAP_BIAS: return v_add(a, b);
    case MLX_MAP_GAIN:
    case MLX_MAP_MULTIPLY: return v_mul(a, b);
    case MLX_MAP_SOFTCAP: return v_softcap(a, i->numbers[0]);
    case MLX_MAP_CLIP: return v_clip(a, i->numbers[0]);
    case MLX_MAP_SIGMOID: return v_sigmoid(a);
    default:
      return i->op < MLX_MAP_GATED ? v_activate(i->op - MLX_MAP_ACTIVATE, i->numbers, a)
                                   : v_mul(v_activate(i->op - MLX_MAP_GATED, i->numbers, a), b);
  }
}

void mlx_run_map(const call_t *c, const mlx_instruction_t *i, int row) {
  const int source = source_row(c, i, row);
  const bool scales = i->op == MLX_MAP_SCALE || i->op == MLX_MAP_SCALE_ROWS || i->op == MLX_MAP_GROW;
  const bool binary = i->op == MLX_MAP_ADD || i->op == MLX_MAP_MULTIPLY || i->op >= MLX_MAP_GATED;
  const float *a = row_at(c, &i->a, source), *b = row_at(c, &i->b, source);
  float *out = row_at(c, &i->out, row);
  const bool by_vector = i->op == MLX_MAP_BIAS || i->op == MLX_MAP_GAIN;
  if (by_vector) b = vector_at(c, &i->weight);
  const v16 factor = v_all(scales ? row_factor(c, i, source, b) : 0);
  for (int k = 0; k < i->width; k += 16) {
    const int count = min_int(16, i->width - k);
    const v16 first = load_some(a + k, count), second = binary || by_vector ? load_some(b + k, count) : first;
    store_some(out + k, scales ? v_mul(first, factor) : map_values(i, first, second), count);
  }
  store_row_parts(c, i, row, i->width);
}

// Column i of the result is column order[i] of a. A damaged archive must not lead out of bounds.
void mlx_run_permute(const call_t *c, const mlx_instruction_t *i, int row) {
  const int32_t *order = (const int32_t *)(const void *)(c->weights + i->weight.at);
  const float *a = row_at(c, &i->a, row);
  float *out = row_at(c, &i->out, row);
  for (int k = 0; k < i->width; ++k) out[k] = a[(uint32_t)order[k] < (uint32_t)i->width ? order[k] : 0];
  store_row_parts(c, i, row, i->width);
}

void mlx_run_pick(const call_t *c, const mlx_instruction_t *i, int row) {
  const float *a = row_at(c, &i->a, row) + i->dims;
  float *out = row_at(c, &i->out, row);
  for (int head = 0; head < i->heads; ++head, a += i->head_dim, out += i->out_rows)
    for (int k = 0; k < i->width; k += 16) store_some(out + k, load_some(a + k, i->width - k), i->width - k);
  store_row_parts(c, i, row, i->out_rows * i->heads);
}

// The input of the output head.
void mlx_run_hidden(const call_t *c, const mlx_instruction_t *i, int row) {
  const float *from = row_at(c, &i->a, row);
  float *to = c->hidden + (int64_t)row * c->n->hidden;
  for (int k = 0; k < i->width; k += 16) store_some(to + k, load_some(from + k, i->width - k), i->width - k);
}
