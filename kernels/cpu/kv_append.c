// Stores the keys and values of a row in the KV pool.
#include "rows.h"

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

// The padding of a row is zero: scores are sums over whole vectors.
static void append_latent(const call_t *c, const mlx_instruction_t *i, int row) {
  const int32_t format = c->n->kv_format;
  const int place = c->position_of[row] % MLX_CPU_PAGE, padded = (int)mlx_round_up(i->head_dim, 16);
  const float *x = row_at(c, &i->a, row);
  const pages_t *pages = &c->pages[i->pages];
  uint8_t *keys = pages->first + c->page_of[i->pages][row] * pages->bytes + i->kv_at;
  float key[MLX_CPU_MAX_LATENT];
  for (int d = 0; d < padded; d += 16) v_store(key + d, load_some(x + d, i->head_dim - d));
  if (format == MLX_KV_Q8)
    store_kv_q8(key, padded, keys, place * padded, 1,
                (float *)(void *)(keys + MLX_CPU_PAGE * padded) + place);
  else
    store_kv(format, key, padded, keys, place * padded, 1);
}

void mlx_run_append(const call_t *c, const mlx_instruction_t *i, int row) {
  const mlx_program_t *n = c->n;
  if (i->op) {
    append_latent(c, i, row);
    return;
  }
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
