// Quantized panels times several activation vectors, in f32; and the products of panels that every level
// multiplies vector by vector.
#include "panels_by_vectors.h"

#include "panel_by_vector.h"
#include "panel_f32.h"

#if !HAS_INTEGERS

#define UNPACKED_BLOCKS 4  // blocks of a panel that are unpacked at a time

// The codes of a block as f32: [32 columns][16 rows].
typedef struct unpacked {
  float codes[UNPACKED_BLOCKS][MLX_PANEL_BLOCK * 16];
  v16 scale[UNPACKED_BLOCKS], second[UNPACKED_BLOCKS];
} unpacked_t;

INLINE void unpack_block(int32_t format, const uint8_t *block, int nth, unpacked_t *out, int to) {
  const uint8_t *codes = block + scale_bytes(format);
  const table_t table = codes_table(format);
  float *at = out->codes[to];
  out->scale[to] = load_scale(format, block, nth);
  if (has_two_scales(format) || has_offsets(format)) out->second[to] = load_second(format, block, nth);
  for (int i = 0; is_q8(format) && i < MLX_PANEL_BLOCK; ++i)
    v_store(at + 16 * i, load_bytes(format, codes + 16 * i));
  for (int i = 0; !is_q8(format) && !is_q4(format) && i < 8; ++i) {
    const codes_t four = load_narrow(format, codes, i / 2, i % 2);
    float *column = at + 16 * (8 * (i / 2) + i % 2);
    v_store(column, narrow_column(format, four, 0));
    v_store(column + 32, narrow_column(format, four, 1));
    v_store(column + 64, narrow_column(format, four, 2));
    v_store(column + 96, narrow_column(format, four, 3));
  }
  for (int i = 0; is_q4(format) && i < 4; ++i, at += 128) {
    const codes_t octet = codes_load(codes + 64 * i);
    v_store(at, CODES_COLUMN(table, octet, 0));
    v_store(at + 16, CODES_COLUMN(table, octet, 1));
    v_store(at + 32, CODES_COLUMN(table, octet, 2));
    v_store(at + 48, CODES_COLUMN(table, octet, 3));
    v_store(at + 64, CODES_COLUMN(table, octet, 4));
    v_store(at + 80, CODES_COLUMN(table, octet, 5));
    v_store(at + 96, CODES_COLUMN(table, octet, 6));
    v_store(at + 112, CODES_COLUMN(table, octet, 7));
  }
}

#if defined(__AVX512F__)
#define VECTORS_AT_ONCE 4  // as many sums as fit in registers
#else
#define VECTORS_AT_ONCE 1
#endif

// Sums over |columns| columns of codes times x, for VECTORS_AT_ONCE vectors: the sums of multiply_q4 and
// multiply_bytes.
INLINE void sum_codes(const float *codes, const float *const *x, int columns, v16 *out) {
  v16 sum[VECTORS_AT_ONCE][4];
  for (int t = 0; t < VECTORS_AT_ONCE; ++t) {
    for (int i = 0; i < 4; ++i) sum[t][i] = v_zero();
  }
  for (int c = 0; c < columns; c += 4) {
    for (int i = 0; i < 4; ++i) {
      const v16 code = v_load(codes + 16 * (c + i));
      for (int t = 0; t < VECTORS_AT_ONCE; ++t) sum[t][i] = v_fma(code, v_all(x[t][c + i]), sum[t][i]);
    }
  }
  for (int t = 0; t < VECTORS_AT_ONCE; ++t) out[t] = sum_of_four(sum[t]);
}

INLINE void multiply_unpacked(int32_t format, const unpacked_t *u, int blocks, vectors_t *x, int first,
                              int vector, const uint8_t *ahead, int bytes, panel_sums_t *out) {
  const int columns = has_two_scales(format) ? 16 : MLX_PANEL_BLOCK;
  const float *at[VECTORS_AT_ONCE];
  v16 sum[VECTORS_AT_ONCE];
  for (int t = 0; t < VECTORS_AT_ONCE; ++t) {
    const int nth = vector + t < x->count ? vector + t : x->count - 1;
    at[t] = x->x[nth] + (x->first + first) * MLX_PANEL_BLOCK;
  }
  for (int k = 0; k < blocks; ++k) {
    v16 *total = &out->total[vector], *second = &out->second[vector];
    prefetch(ahead + k * bytes, bytes);
    sum_codes(u->codes[k], at, columns, sum);
    for (int t = 0; t < VECTORS_AT_ONCE; ++t) {
      total[t] = v_fma(u->scale[k], sum[t], total[t]);
      at[t] += columns;
      if (has_offsets(format))
        second[t] = v_fma(u->second[k], v_all(x->sums[entry_of(x, first + k, 0) + vector + t]), second[t]);
    }
    if (!has_two_scales(format)) continue;
    sum_codes(u->codes[k] + 256, at, columns, sum);
    for (int t = 0; t < VECTORS_AT_ONCE; ++t) {
      second[t] = v_fma(u->second[k], sum[t], second[t]);
      at[t] += columns;
    }
  }
}

INLINE void multiply_prepared(int32_t format, const uint8_t *panel, int64_t stride, int panels, vectors_t *x,
                              panel_sums_t *out) {
  unpacked_t unpacked;
  const int bytes = (int)mlx_panel_block_stride(format);
  for (int p = 0; p < panels; ++p, panel += stride) {
    for (int k = 0; k < x->blocks; k += UNPACKED_BLOCKS) {
      const int count = x->blocks - k < UNPACKED_BLOCKS ? x->blocks - k : UNPACKED_BLOCKS;
      const uint8_t *end = panel + mlx_panel_block_at(format, x->first + k + count);
      for (int i = 0; i < count; ++i) {
        const int nth = x->first + k + i;
        unpack_block(format, panel + mlx_panel_block_at(format, nth), nth, &unpacked, i);
      }
      // The next blocks are fetched during the products with the first vectors.
      for (int vector = 0; vector < x->count; vector += VECTORS_AT_ONCE)
        multiply_unpacked(format, &unpacked, count, x, k, vector, end, vector ? 0 : bytes, &out[p]);
    }
  }
}

// A function of its own for each format, as in panels_by_vectors_integer.c.
#define DEFINE(format)                                                                                     \
  static NOT_INLINE void multiply_##format(const uint8_t *panel, int64_t stride, int panels, vectors_t *x, \
                                           panel_sums_t *sums) {                                           \
    multiply_prepared(MLX_PANEL_##format, panel, stride, panels, x, sums);                                 \
  }
CODE_FORMATS(DEFINE)
#undef DEFINE

void mlx_panels_times_vectors(int32_t format, const uint8_t *panel, int64_t stride, int panels, vectors_t *x,
                              panel_sums_t *sums) {
#define CASE(format) \
  case MLX_PANEL_##format: multiply_##format(panel, stride, panels, x, sums); break;
  switch (format) {
    CODE_FORMATS(CASE)
    default: break;
  }
#undef CASE
}

void mlx_start_products(int32_t format, const vectors_t *x, int *tiles) {
  (void)format;
  (void)x;
  (void)tiles;
}
void mlx_end_products(int *tiles) { *tiles = 0; }

#endif

void mlx_panel_times_each_vector(int32_t format, const uint8_t *panel, const vectors_t *x, int columns,
                                 panel_sums_t *sums) {
  for (int t = 0; t < x->count; ++t) {
    const int at = sum_index(x, t);
    if (format == MLX_PANEL_Q2_K)
      sums->total[at] = mlx_q2_k_times_vector(panel, x->x[t], columns);
    else
      mlx_plain_panels_times_vector(format, 1, panel, 0, x->x[t], columns, &sums->total[at]);
#if !HAS_INTEGERS
    sums->second[at] = v_all(-0.0f);  // changes nothing when it is added
#endif
  }
}
