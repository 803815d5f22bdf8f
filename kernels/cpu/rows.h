// Instructions that compute one row (one token) at a time: embedding, norms, element-wise ops, RoPE, and
// storing keys and values.
#ifndef MLXCEL_KERNELS_CPU_ROWS_H_
#define MLXCEL_KERNELS_CPU_ROWS_H_

#include "call.h"
#include "functions.h"
#include "panels.h"

// Row of the input for row |row| of the output.
INLINE int source_row(const call_t *c, const mlx_instruction_t *i, int row) {
  return i->rows == MLX_ROWS_SELECT ? c->wanted_of[row] : row;
}

static void embed_row(const call_t *c, const mlx_instruction_t *i, int row) {
  const int index = i->op == MLX_INDEX_POSITIONS ? c->position_of[row] : c->id_of[row];
  dequantize_row(i->weight.format, c->weights + i->weight.at, min_int(index, i->out_rows - 1), i->width,
                 row_at(c, &i->out, row));
  store_row_parts(c, i, row, i->width);
}

static void fill_rope_table(const call_t *c, const mlx_instruction_t *i, int row) {
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

// ----------------------------------------------------------------------------------------------------------
// Norms

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
static void norm_row(const call_t *c, const mlx_instruction_t *i, int row) {
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

// ----------------------------------------------------------------------------------------------------------
// Element-wise ops

// The factor of a whole row, for ops that have one.
static float row_factor(const call_t *c, const mlx_instruction_t *i, int row, const float *b) {
  if (i->op == MLX_MAP_SCALE) return i->numbers[0];
  if (i->op == MLX_MAP_SCALE_ROWS) return b[0];
  const double periods = (double)(c->position_of[row] / i->dims);
  return (float)(1 + (double)i->numbers[0] * natural_log(1 + periods));
}

INLINE v16 map_values(const mlx_instruction_t *i, v16 a, v16 b) {
  switch (i->op) {
    case MLX_MAP_COPY: return a;
    case MLX_MAP_ADD: return v_add(a, b);
    case MLX_MAP_BIAS: return v_add(a, b);
    case MLX_MAP_MULTIPLY: return v_mul(a, b);
    case MLX_MAP_SOFTCAP: return v_softcap(a, i->numbers[0]);
    case MLX_MAP_CLIP: return v_clip(a, i->numbers[0]);
    case MLX_MAP_SIGMOID: return v_sigmoid(a);
    default:
      return i->op < MLX_MAP_GATED ? v_activate(i->op - MLX_MAP_ACTIVATE, a)
                                   : v_mul(v_activate(i->op - MLX_MAP_GATED, a), b);
  }
}

static void map_row(const call_t *c, const mlx_instruction_t *i, int row) {
  const int source = source_row(c, i, row);
  const bool scales = i->op == MLX_MAP_SCALE || i->op == MLX_MAP_SCALE_ROWS || i->op == MLX_MAP_GROW;
  const bool binary = i->op == MLX_MAP_ADD || i->op == MLX_MAP_MULTIPLY || i->op >= MLX_MAP_GATED;
  const float *a = row_at(c, &i->a, source), *b = row_at(c, &i->b, source);
  float *out = row_at(c, &i->out, row);
  if (i->op == MLX_MAP_BIAS) b = vector_at(c, &i->weight);
  const v16 factor = v_all(scales ? row_factor(c, i, source, b) : 0);
  for (int k = 0; k < i->width; k += 16) {
    const int count = min_int(16, i->width - k);
    const v16 first = load_some(a + k, count),
              second = binary || i->op == MLX_MAP_BIAS ? load_some(b + k, count) : first;
    store_some(out + k, scales ? v_mul(first, factor) : map_values(i, first, second), count);
  }
  store_row_parts(c, i, row, i->width);
}

// Column i of the result is column order[i] of a. A damaged archive must not lead out of bounds.
static void permute_row(const call_t *c, const mlx_instruction_t *i, int row) {
  const int32_t *order = (const int32_t *)(const void *)(c->weights + i->weight.at);
  const float *a = row_at(c, &i->a, row);
  float *out = row_at(c, &i->out, row);
  for (int k = 0; k < i->width; ++k) out[k] = a[(uint32_t)order[k] < (uint32_t)i->width ? order[k] : 0];
  store_row_parts(c, i, row, i->width);
}

// ----------------------------------------------------------------------------------------------------------
// RoPE and the KV pool

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
static void rope_row(const call_t *c, const mlx_instruction_t *i, int row) {
  const float *x = row_at(c, &i->a, row), *cosine = row_at(c, &i->b, row), *sine = cosine + i->dims / 2;
  float *out = row_at(c, &i->out, row);
  for (int head = 0; head < i->heads; ++head, x += i->head_dim, out += i->head_dim) {
    (i->op ? rotate_pairs : rotate_halves)(x, cosine, sine, i->dims / 2, out);
    for (int k = i->dims; x != out && k < i->head_dim; ++k) out[k] = x[k];
  }
}

INLINE uint16_t bf16_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Stores the keys (or values) of one head and one position: element d at |first| + d * |step|.
static void store_kv(int32_t format, const float *x, int head_dim, uint8_t *at, int64_t first, int64_t step) {
  for (int d = 0; d < head_dim; ++d, first += step) {
    if (format == MLX_KV_F32)
      ((float *)(void *)at)[first] = x[d];
    else
      ((uint16_t *)(void *)at)[first] = format == MLX_KV_F16 ? f16_bits(x[d]) : bf16_bits(x[d]);
  }
}

// Q8: codes of -127 to 127 with one scale.
static void store_kv_q8(const float *x, int head_dim, uint8_t *at, int64_t first, int64_t step,
                        float *scale) {
  float largest = 0;
  for (int d = 0; d < head_dim; ++d) {
    const float size = x[d] < 0 ? -x[d] : x[d];
    largest = size > largest ? size : largest;
  }
  *scale = largest / 127;
  const float inverse = largest > 0 ? 127 / largest : 0;
  for (int d = 0; d < head_dim; ++d, first += step) {
    const float code = x[d] * inverse;
    at[first] = (uint8_t)(int8_t)(code < 0 ? code - 0.5f : code + 0.5f);
  }
}

static void append_row(const call_t *c, const mlx_instruction_t *i, int row) {
  const mlx_program_t *n = c->n;
  const int place = c->position_of[row] % MLX_CPU_PAGE, hd = i->head_dim, padded = (int)mlx_round_up(hd, 16);
  const float *k = row_at(c, &i->a, row), *v = row_at(c, &i->b, row);
  const int64_t bytes = mlx_kv_head_bytes(n->kv_format, hd);
  const pages_t *pages = &c->pages[i->pages];
  uint8_t *keys = pages->first + c->page_of[i->pages][row] * pages->bytes + i->kv_at;
  for (int head = 0; head < i->kv_heads; ++head, k += hd, v += hd, keys += 2 * bytes) {
    uint8_t *values = keys + bytes;
    if (n->kv_format == MLX_KV_Q8) {
      store_kv_q8(k, hd, keys, place, MLX_CPU_PAGE, (float *)(void *)(keys + bytes) - MLX_CPU_PAGE + place);
      store_kv_q8(v, hd, values, place * padded, 1, (float *)(void *)(values + bytes) - MLX_CPU_PAGE + place);
      continue;
    }
    store_kv(n->kv_format, k, hd, keys, place, MLX_CPU_PAGE);
    store_kv(n->kv_format, v, hd, values, place * padded, 1);
  }
}

// The input of the output head.
static void copy_hidden(const call_t *c, const mlx_instruction_t *i, int row) {
  const float *from = row_at(c, &i->a, row);
  float *to = c->hidden + (int64_t)row * c->n->hidden;
  for (int k = 0; k < i->width; k += 16) store_some(to + k, load_some(from + k, i->width - k), i->width - k);
}

#endif  // MLXCEL_KERNELS_CPU_ROWS_H_
