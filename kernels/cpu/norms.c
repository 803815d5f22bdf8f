// RMS norm and layer norm of a row, or of each head of it, and other ops with sums over a row.
#include "rows.h"

static float mean_of_squares(const float *x, int width) {
  const int whole = width / 16 * 16;
  v16 squares = v_zero();
  for (int i = 0; i < whole; i += 16) squares = v_fma(v_load(x + i), v_load(x + i), squares);
  float sum = v_sum(squares);
  for (int i = whole; i < width; ++i) sum += x[i] * x[i];
  return sum / (float)width;
}

static void rms_norm(const float *x, const float *gain, int width, float eps, float *out) {
  const int whole = width / 16 * 16;
  const float scale = 1 / square_root(mean_of_squares(x, width) + eps);
  for (int i = 0; i < whole; i += 16) {
    const v16 value = v_mul(v_load(x + i), v_all(scale));
    v_store(out + i, gain ? v_mul(value, v_load(gain + i)) : value);
  }
  for (int i = whole; i < width; ++i) out[i] = x[i] * scale * (gain ? gain[i] : 1);
}

// Returns the variance.
static float mean_and_variance(const float *x, int width, float *out_mean) {
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
  *out_mean = mean;
  return variance / (float)width;
}

static void layer_norm(const float *x, const float *gain, const float *bias, int width, float eps,
                       float *out) {
  float mean;
  const float scale = 1 / square_root(mean_and_variance(x, width, &mean) + eps);
  for (int i = 0; i < width; i += 16) {
    const int count = min_int(16, width - i);
    v16 value = v_mul(v_sub(load_some(x + i, count), v_all(mean)), v_all(scale));
    if (gain) value = v_mul(value, load_some(gain + i, count));
    if (bias) value = v_add(value, load_some(bias + i, count));
    store_some(out + i, value, count);
  }
}

static void match(const float *x, const float *like, int width, float least, float *out) {
  const float mean = mean_of_squares(x, width), wanted = square_root(mean_of_squares(like, width));
  const float factor = wanted / square_root(mean > least ? mean : least);
  for (int i = 0; i < width; i += 16) {
    const int count = min_int(16, width - i);
    store_some(out + i, v_mul(load_some(x + i, count), v_all(factor)), count);
  }
}

static void sparsify(const float *x, int width, float deviations, float *out) {
  float mean;
  const float deviation = square_root(mean_and_variance(x, width, &mean)),
              cutoff = mean + deviation * deviations;
  for (int i = 0; i < width; i += 16) {
    const int count = min_int(16, width - i);
    store_some(out + i, v_max(v_sub(load_some(x + i, count), v_all(cutoff)), v_zero()), count);
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
    else if (i->op == MLX_NORM_MATCH)
      match(x, row_at(c, &i->b, row), i->width, i->numbers[0], out);
    else if (i->op == MLX_NORM_SPARSIFY)
      sparsify(x, i->width, i->numbers[0], out);
    else
      layer_norm(x, gain, has_weight(&i->bias) ? vector_at(c, &i->bias) : 0, i->width, i->numbers[0], out);
  }
  store_row_parts(c, i, row, i->width * i->heads);
}
