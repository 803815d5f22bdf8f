// RMS norm and layer norm of a row, or of each head of it.
#include "rows.h"

static void rms_norm(const float *x, const float *gain, int width, float eps, float *out) {
  const int whole = width / 16 * 16;
  v16 squares = v_zero();
  for (int i = 0; i < whole; i += 16) squares = v_fma(v_load(x + i), v_load(x + i), squares);
  float sum = v_sum(squares);
  for (int i = whole; i < width; ++i) sum += x[i] * x[i];
  const float scale = 1 / square_root(sum / (float)width + eps);
  for (int i = 0; i < whole; i += 16) {
    const v16 value = v_mul(v_load(x + i), v_all(scale));
    v_store(out + i, gain ? v_mul(value, v_load(gain + i)) : value);
  }
  for (int i = whole; i < width; ++i) out[i] = x[i] * scale * (gain ? gain[i] : 1);
}

static void layer_norm(const float *x, const float *gain, const float *bias, int width, float eps,
                       float *out) {
  const int whole = width / 16 * 16;
  v16 sums = v_zero(), squares = v_zero();
  for (int i = 0; i < whole; i += 16) sums = v_add(sums, v_load(x + i));
  float sum = v_sum(sums);
  for (int i = whole; i < width; ++i) sum += x[i];
  const float mean = sum / (float)width;
  for (int i = 0; i < whole; i += 16) {
    const v16 centered = v_sub(v_load(x + i), v_all(mean));
    squares = v_fma(centered, centered, squares);
  }
  float variance = v_sum(squares);
  for (int i = whole; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const float scale = 1 / square_root(variance / (float)width + eps);
  for (int i = 0; i < width; i += 16) {
    const int count = min_int(16, width - i);
    v16 value = v_mul(v_sub(load_some(x + i, count), v_all(mean)), v_all(scale));
    if (gain) value = v_mul(value, load_some(gain + i, count));
    if (bias) value = v_add(value, load_some(bias + i, count));
    store_some(out + i, value, count);
  }
}

// |dims| is the distance between the weights of two heads: 0 if they share one.
void mlx_run_norm(const call_t *c, const mlx_instruction_t *i, int row) {
  const float *x = row_at(c, &i->a, source_row(c, i, row));
  float *out = row_at(c, &i->out, row);
  for (int head = 0; head < i->heads; ++head, x += i->width, out += i->width) {
    const float *gain = has_weight(&i->weight) ? vector_at(c, &i->weight) + head * i->dims : 0;
    if (i->op == MLX_NORM_RMS)
      rms_norm(x, gain, i->width, i->numbers[0], out);
    else
      layer_norm(x, gain, has_weight(&i->bias) ? vector_at(c, &i->bias) : 0, i->width, i->numbers[0], out);
  }
  store_row_parts(c, i, row, i->width * i->heads);
}
