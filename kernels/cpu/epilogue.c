// Finishes the sums of a product, and stores them.
#include "epilogue.h"

#include "activation_functions.h"

// 16 values of a bias: [rows] or, for experts, [experts, rows].
INLINE v16 load_bias(const call_t *c, const product_t *p, const mlx_program_weight_t *bias, int panel,
                     int count) {
  return load_some(vector_at(c, bias) + (int64_t)p->expert * p->rows + 16 * panel, count);
}

// The gate of gpt-oss: g * sigmoid(slope * g) * (u + 1), with g and u clamped.
INLINE v16 clamped_gate(const mlx_instruction_t *i, v16 gate, v16 up) {
  const v16 g = v_min(gate, v_all(i->clip)), u = v_clip(up, i->clip);
  return v_mul(v_add(u, v_all(1)), v_mul(g, v_sigmoid(v_mul(g, v_all(i->slope)))));
}

INLINE v16 finish_value(const call_t *c, const product_t *p, int panel, int count, v16 value, v16 up) {
  const mlx_instruction_t *i = p->i;
  if (has_weight(&i->bias)) value = v_add(value, load_bias(c, p, &i->bias, panel, count));
  if (p->up && has_weight(&i->up_bias)) up = v_add(up, load_bias(c, p, &i->up_bias, panel, count));
  if (i->slope != 0) return clamped_gate(i, value, up);
  if (i->clip != 0) value = v_clip(value, i->clip);
  if (p->up && i->act == MLX_RUN_SILU)
    value = v_mul(v_silu(value), up);
  else if (p->up)
    value = v_mul(v_activate(i->act, i->numbers, value), up);
  else if (i->act != MLX_RUN_NO_ACT)
    value = v_activate(i->act, i->numbers, value);
  if (i->factor != 0) value = v_mul(value, v_all(i->factor));
  return i->cap != 0 ? v_softcap(value, i->cap) : value;
}

// Keeps the largest logit of each panel, for greedy sampling. +infinity marks a panel with a logit that is
// not finite. Rows past the last one have zero weights, so their values are finite.
static void store_logits(const call_t *c, const product_t *p, int row, int panel, int count, v16 value) {
  const float nothing = v_sum(v_sub(value, value));
  c->best[(int64_t)row * panel_count(p) + panel] =
      nothing == 0 ? v_reduce_max(v_keep_first(value, count)) : __builtin_inff();
  store_some(c->logits + (int64_t)row * p->rows + 16 * panel, value, count);
}

void mlx_finish_product(const call_t *c, const product_t *p, int token, int panel, v16 value, v16 up) {
  const mlx_instruction_t *i = p->i;
  const int count = min_int(16, p->rows - 16 * panel), row = output_row(p, token);
  value = finish_value(c, p, panel, count, value, up);
  if (i->logits) {
    store_logits(c, p, token, panel, count, value);
    return;
  }
  if (i->adds) value = v_add(load_some(row_at(c, &i->b, row) + 16 * panel, count), value);
  if (stores_parts(c, i, row)) store_parts(parts_of_buffer(c, &i->out), value, row, p->rows, 16 * panel);
  if (stores_plain(c, i, row))
    store_some(row_at(c, &i->out, row) + (int64_t)p->head * p->rows + 16 * panel, value, count);
}

// Whether mlx_finish_product() only adds a bias, applies SiLU to the gate or adds |b|, and stores f32 values.
INLINE bool has_plain_epilogue(const product_t *p, int panel) {
  const mlx_instruction_t *i = p->i;
  return !p->pairs && !p->head && !i->logits && !i->out.parts && !has_weight(&i->up_bias) && i->slope == 0 &&
         i->clip == 0 && i->factor == 0 && i->cap == 0 && 16 * panel + 16 <= p->rows &&
         i->act == (p->up ? MLX_RUN_SILU : MLX_RUN_NO_ACT);
}

void mlx_finish_products(const call_t *c, const product_t *p, int row, int count, int panel,
                         const vectors_t *x, const panel_sums_t *one, const panel_sums_t *up) {
  const mlx_instruction_t *i = p->i;
  if (!has_plain_epilogue(p, panel)) {
    for (int t = 0; t < count; ++t)
      mlx_finish_product(c, p, row + t, panel, sum_at(one, x, t), sum_at(p->up ? up : one, x, t));
    return;
  }
  const bool has_bias = has_weight(&i->bias), adds = i->adds;
  const v16 bias = has_bias ? load_bias(c, p, &i->bias, panel, 16) : v_zero();
  float *out = row_at(c, &i->out, row) + 16 * panel;
  const float *b = adds ? row_at(c, &i->b, row) + 16 * panel : out;
  const int64_t stride = i->out.stride, b_stride = i->b.stride;
  for (int t = 0; t < count; ++t, out += stride, b += b_stride) {
    v16 value = sum_at(one, x, t);
    if (has_bias) value = v_add(value, bias);
    if (p->up) value = v_mul(v_silu(value), sum_at(up, x, t));
    v_store(out, adds ? v_add(v_load(b), value) : value);
  }
}

INLINE bool has_numbers(int act) {
#define IS_ACT(name) act == MLX_RUN_##name ||
  return MLX_ACTIVATION_NUMBERS_TABLE(IS_ACT) false;
#undef IS_ACT
}

// Whether mlx_finish_product() only adds a bias, applies an activation without numbers, and adds |b|.
INLINE bool has_usual_epilogue(const product_t *p, int panel) {
  const mlx_instruction_t *i = p->i;
  return !p->pairs && !p->head && !p->up && !i->logits && i->slope == 0 && i->clip == 0 && i->factor == 0 &&
         i->cap == 0 && 16 * panel + 16 <= p->rows && !has_numbers(i->act);
}

// The same as mlx_finish_product(), with |act| known and everything else that rows share read once.
INLINE void finish_rows(const call_t *c, const product_t *p, int act, int row, int count, int panel,
                        const float *sums, int64_t step) {
  const mlx_instruction_t *i = p->i;
  const bool adds = i->adds;
  const v16 bias = has_weight(&i->bias) ? load_bias(c, p, &i->bias, panel, 16) : v_zero();
  for (int t = row; t < row + count; ++t, sums += step) {
    v16 value = v_load(sums);
    if (has_weight(&i->bias)) value = v_add(value, bias);
    value = v_activate(act, i->numbers, value);
    if (adds) value = v_add(v_load(row_at(c, &i->b, t) + 16 * panel), value);
    if (stores_parts(c, i, t)) store_parts(parts_of_buffer(c, &i->out), value, t, p->rows, 16 * panel);
    if (stores_plain(c, i, t)) v_store(row_at(c, &i->out, t) + 16 * panel, value);
  }
}

void mlx_finish_rows(const call_t *c, const product_t *p, int row, int count, int panel, const float *sums,
                     const float *up, int64_t step) {
  if (has_usual_epilogue(p, panel)) {
    switch (p->i->act) {
      case MLX_RUN_GELU: finish_rows(c, p, MLX_RUN_GELU, row, count, panel, sums, step); return;
      case MLX_RUN_NO_ACT: finish_rows(c, p, MLX_RUN_NO_ACT, row, count, panel, sums, step); return;
      default: finish_rows(c, p, p->i->act, row, count, panel, sums, step); return;
    }
  }
  for (int t = 0; t < count; ++t)
    mlx_finish_product(c, p, row + t, panel, v_load(sums + t * step), v_load(up + t * step));
}
