// RoPE: the table of sines and cosines of a row, and the rotation of its heads.
#include "rows.h"

void mlx_run_rope_table(const call_t *c, const mlx_instruction_t *i, int row) {
  const int half = i->dims / 2;
  const float *frequencies = c->floats + i->floats;
  float *cosine = row_at(c, &i->out, row), *sine = cosine + half;
  for (int k = 0; k < half; ++k) {
    sine_and_cosine((float)c->position_of[row] * frequencies[k], &sine[k], &cosine[k]);
    if (i->numbers[0] == 1) continue;
    sine[k] *= i->numbers[0];
    cosine[k] *= i->numbers[0];
  }
}

static void rotate_halves(const float *x, const float *cosine, const float *sine, int half, float *out) {
  for (int i = 0; i < half; ++i) {
    const float low = x[i], high = x[half + i];
    out[i] = low * cosine[i] - high * sine[i];
    out[half + i] = high * cosine[i] + low * sine[i];
  }
}
static void rotate_pairs(const float *x, const float *cosine, const float *sine, int half, float *out) {
  for (int i = 0; i < half; ++i) {
    const float low = x[2 * i], high = x[2 * i + 1];
    out[2 * i] = low * cosine[i] - high * sine[i];
    out[2 * i + 1] = high * cosine[i] + low * sine[i];
  }
}
void mlx_run_rope(const call_t *c, const mlx_instruction_t *i, int row) {
  const float *x = row_at(c, &i->a, row), *cosine = row_at(c, &i->b, row), *sine = cosine + i->dims / 2;
  float *out = row_at(c, &i->out, row);
  for (int head = 0; head < i->heads; ++head, x += i->head_dim, out += i->head_dim) {
    (i->op ? rotate_pairs : rotate_halves)(x, cosine, sine, i->dims / 2, out);
    for (int k = i->dims; x != out && k < i->head_dim; ++k) out[k] = x[k];
  }
}
