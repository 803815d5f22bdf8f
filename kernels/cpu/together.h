// A quantized panel times several activation vectors. The panel is unpacked once for all vectors. Each vector
// gets exactly the bits that it gets alone (integers.h), because every operation that rounds is the same, in
// the same order.
//
// With AMX, one tile product multiplies the codes of a block with all digits of four vectors. The sums are
// exact integers, so it does not matter that the hardware adds them in another order.
#ifndef MLXCEL_KERNELS_CPU_TOGETHER_H_
#define MLXCEL_KERNELS_CPU_TOGETHER_H_

#include "integers.h"
#include "tiles.h"

// Blocks of a panel that are unpacked at a time: whole super-blocks.
#define UNPACKED_BLOCKS 16
_Static_assert(UNPACKED_BLOCKS % MLX_PANEL_GROUP == 0, "blocks are unpacked in whole super-blocks");

// Sums of a panel with several vectors: |total| of scaled codes, |second| of the second halves' scaled codes,
// or of the offsets. The product is total + second.
typedef struct panel_sums {
  v16 total[MAX_VECTORS], second[MAX_VECTORS];
} panel_sums_t;

#if HAS_INTEGERS
#define TILE_VECTORS 4                                // vectors of a tile: their digits are its rows
#define CODE_TILE (MLX_PANEL_ROWS * MLX_PANEL_BLOCK)  // bytes of the codes of a block

typedef struct unpacked {
  // Tiles of unsigned codes. A format with two scales has two tiles: one with the second half of the columns
  // cleared, one with the first half cleared.
  _Alignas(64) uint8_t codes[UNPACKED_BLOCKS][2][CODE_TILE];
  v16 scale[UNPACKED_BLOCKS], second[UNPACKED_BLOCKS];
} unpacked_t;

// Tiles 0 to 3: sums. 4 and 5: digits. 6 and 7: codes.
static void configure_byte_tiles(void) {
  _Alignas(64) uint8_t config[64];
  for (int i = 0; i < 64; ++i) config[i] = 0;
  config[0] = 1;
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = i == 4 || i == 5 ? MLX_PANEL_BLOCK : 64;
    config[48 + i] = i < 6 ? 16 : MLX_PANEL_BLOCK / 4;
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
#define TILE_MULTIPLY_BYTES(sum, a, b) __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #sum)

INLINE void unpack_block(int32_t format, const uint8_t *block, int nth, unpacked_t *out, int to) {
  const uint8_t *codes = block + scale_bytes(format);
  out->scale[to] = load_scale(format, block, nth);
  if (has_two_scales(format) || has_offsets(format)) out->second[to] = load_second(format, block, nth);
  for (int i = 0; i < 4; ++i) {
    __m512i even, odd;
    load_code_bytes(format, codes + i * octet_bytes(format), &even, &odd);
    uint8_t *tile = out->codes[to][has_two_scales(format) && i >= 2] + 128 * i,
            *other = out->codes[to][has_two_scales(format) && i < 2] + 128 * i;
    _mm512_store_si512(tile, even);
    _mm512_store_si512(tile + 64, odd);
    if (!has_two_scales(format)) continue;
    _mm512_store_si512(other, _mm512_setzero_si512());
    _mm512_store_si512(other + 64, _mm512_setzero_si512());
  }
}

// The product of a block for vector |nth| of a tile of sums.
INLINE v16 block_product(int32_t format, const int32_t *sums, int nth, int32_t (*const digit_sums)[DIGITS],
                         int half) {
  const int bias = code_bias(format);
  __m512i sum[DIGITS];
  for (int i = 0; i < DIGITS; ++i) {
    sum[i] = _mm512_load_si512(sums + 16 * (DIGITS * nth + i));
    if (!bias) continue;
    const int all = has_two_scales(format) ? digit_sums[half][i] : digit_sums[0][i] + digit_sums[1][i];
    sum[i] = _mm512_sub_epi32(sum[i], _mm512_set1_epi32(bias * all));
  }
  return join_digits(sum);
}

// Adds block |k| of the unpacked blocks, which is block |at| of the prepared ones, to the sums of
// TILE_VECTORS vectors. |sums|: its tile of sums, with two scales the two tiles of its halves.
INLINE void scale_sums(int32_t format, const unpacked_t *u, int k, vectors_t *x, int64_t at,
                       const int32_t *sums, v16 *total, v16 *second) {
  for (int t = 0; t < TILE_VECTORS; ++t) {
    const v16 power = v_all(x->power[at + t]);
    const v16 product = block_product(format, sums, t, x->digit_sums[at + t], 0);
    total[t] = v_fma(u->scale[k], v_mul(product, power), total[t]);
    if (has_two_scales(format)) {
      const v16 high = block_product(format, sums + 256, t, x->digit_sums[at + t], 1);
      second[t] = v_fma(u->second[k], v_mul(high, power), second[t]);
    }
    if (has_offsets(format)) second[t] = v_fma(u->second[k], v_all(x->sums[at + t]), second[t]);
  }
}

// Two tile products: of the halves of block |k|, or of the blocks |k| and |next|.
INLINE void multiply_two(int32_t format, const unpacked_t *u, int k, int next, const int8_t *digits,
                         const int8_t *next_digits, int32_t *sums) {
  TILE_LOAD(4, digits, MLX_PANEL_BLOCK);
  TILE_LOAD(6, u->codes[k][0], 64);
  TILE_ZERO(0);
  TILE_MULTIPLY_BYTES(0, 4, 6);
  TILE_ZERO(1);
  if (has_two_scales(format)) {
    TILE_LOAD(7, u->codes[k][1], 64);
    TILE_MULTIPLY_BYTES(1, 4, 7);
  } else {
    TILE_LOAD(5, next_digits, MLX_PANEL_BLOCK);
    TILE_LOAD(7, u->codes[next][0], 64);
    TILE_MULTIPLY_BYTES(1, 5, 7);
  }
  TILE_STORE(0, sums, 64);
  TILE_STORE(1, sums + 256, 64);
}

// |blocks| unpacked blocks times TILE_VECTORS vectors, starting at |vector|. Scales sums while the tile unit
// multiplies the next blocks. Prefetches |bytes| bytes per block from |ahead| on.
INLINE void multiply_unpacked(int32_t format, const unpacked_t *u, int blocks, vectors_t *x, int64_t first,
                              int vector, const uint8_t *ahead, int bytes, panel_sums_t *out) {
  _Alignas(64) int32_t sums[2][512];
  const int step = has_two_scales(format) ? 1 : 2;
  const int64_t at = first * x->stride + vector;
  v16 total[TILE_VECTORS], second[TILE_VECTORS];
  for (int t = 0; t < TILE_VECTORS; ++t) {
    total[t] = out->total[vector + t];
    second[t] = out->second[vector + t];
  }
  for (int k = 0, turn = 0; k < blocks + step; k += step, turn = !turn) {
    if (k < blocks) {
      const int next = k + 1 < blocks ? k + 1 : k;  // the sums of a block past the last are not used
      prefetch(ahead + k * bytes, step * bytes);
      multiply_two(format, u, k, next, x->digits[at + k * x->stride], x->digits[at + next * x->stride],
                   sums[turn]);
    }
    for (int i = k - step; i >= 0 && i < k && i < blocks; ++i)
      scale_sums(format, u, i, x, at + i * x->stride, sums[!turn] + 256 * (i - k + step), total, second);
  }
  for (int t = 0; t < TILE_VECTORS; ++t) {
    out->total[vector + t] = total[t];
    out->second[vector + t] = second[t];
  }
}

#define MULTIPLY_ALIGNMENT TILE_VECTORS

#else

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
  for (int i = 0; !is_q4(format) && i < MLX_PANEL_BLOCK; ++i)
    v_store(at + 16 * i, load_bytes(format, codes + 16 * i));
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
#define MULTIPLY_ALIGNMENT 4  // vectors multiplied at a time: as many sums as fit in registers
#else
#define MULTIPLY_ALIGNMENT 1
#endif

// Sums over |columns| columns of codes times x, for MULTIPLY_ALIGNMENT vectors: the sums of multiply_q4 and
// multiply_bytes.
INLINE void sum_codes(const float *codes, const float *const *x, int columns, v16 *out) {
  v16 sum[MULTIPLY_ALIGNMENT][4];
  for (int t = 0; t < MULTIPLY_ALIGNMENT; ++t) {
    for (int i = 0; i < 4; ++i) sum[t][i] = v_zero();
  }
  for (int c = 0; c < columns; c += 4) {
    for (int i = 0; i < 4; ++i) {
      const v16 code = v_load(codes + 16 * (c + i));
      for (int t = 0; t < MULTIPLY_ALIGNMENT; ++t) sum[t][i] = v_fma(code, v_all(x[t][c + i]), sum[t][i]);
    }
  }
  for (int t = 0; t < MULTIPLY_ALIGNMENT; ++t) out[t] = sum_of_four(sum[t]);
}

INLINE void multiply_unpacked(int32_t format, const unpacked_t *u, int blocks, vectors_t *x, int64_t first,
                              int vector, const uint8_t *ahead, int bytes, panel_sums_t *out) {
  const int columns = has_two_scales(format) ? 16 : MLX_PANEL_BLOCK;
  const float *at[MULTIPLY_ALIGNMENT];
  v16 sum[MULTIPLY_ALIGNMENT];
  for (int t = 0; t < MULTIPLY_ALIGNMENT; ++t) {
    const int nth = vector + t < x->count ? vector + t : x->count - 1;
    at[t] = x->x[nth] + (x->first + first) * MLX_PANEL_BLOCK;
  }
  for (int k = 0; k < blocks; ++k) {
    v16 *total = &out->total[vector], *second = &out->second[vector];
    prefetch(ahead + k * bytes, bytes);
    sum_codes(u->codes[k], at, columns, sum);
    for (int t = 0; t < MULTIPLY_ALIGNMENT; ++t) {
      total[t] = v_fma(u->scale[k], sum[t], total[t]);
      at[t] += columns;
      if (has_offsets(format))
        second[t] = v_fma(u->second[k], v_all(x->sums[(first + k) * x->stride + vector + t]), second[t]);
    }
    if (!has_two_scales(format)) continue;
    sum_codes(u->codes[k] + 256, at, columns, sum);
    for (int t = 0; t < MULTIPLY_ALIGNMENT; ++t) {
      second[t] = v_fma(u->second[k], sum[t], second[t]);
      at[t] += columns;
    }
  }
}

#endif

INLINE void multiply_prepared(int32_t format, const uint8_t *panel, vectors_t *x, panel_sums_t *out) {
  unpacked_t unpacked;
  const int bytes = (int)mlx_panel_block_stride(format);
  for (int k = 0; k < x->blocks; k += UNPACKED_BLOCKS) {
    const int count = x->blocks - k < UNPACKED_BLOCKS ? x->blocks - k : UNPACKED_BLOCKS;
    const uint8_t *end = panel + mlx_panel_block_at(format, x->first + k + count);
    for (int i = 0; i < count; ++i) {
      const int nth = x->first + k + i;
      unpack_block(format, panel + mlx_panel_block_at(format, nth), nth, &unpacked, i);
    }
    // The next blocks are fetched during the products with the first vectors.
    for (int vector = 0; vector < x->count; vector += MULTIPLY_ALIGNMENT)
      multiply_unpacked(format, &unpacked, count, x, k, vector, end, vector ? 0 : bytes, out);
  }
}

// Adds the prepared blocks of a panel to |sums|. With AMX the caller has configured the byte tiles.
#define TOGETHER_CASE(format) \
  case MLX_PANEL_##format: multiply_prepared(MLX_PANEL_##format, panel, x, sums); break
static void multiply_together(int32_t format, const uint8_t *panel, vectors_t *x, panel_sums_t *sums) {
  switch (format) {
    TOGETHER_CASE(Q4_0);
    TOGETHER_CASE(Q4_1);
    TOGETHER_CASE(Q4_WIDE);
    TOGETHER_CASE(Q4_BF16);
    TOGETHER_CASE(Q4_K);
    TOGETHER_CASE(Q5_K);
    TOGETHER_CASE(Q6_K);
    TOGETHER_CASE(Q8_0);
    TOGETHER_CASE(Q8_1);
    TOGETHER_CASE(Q8_BF16);
    TOGETHER_CASE(Q8_WIDE);
    TOGETHER_CASE(Q8_HALVES);
    default: break;
  }
}
#undef TOGETHER_CASE

// Plain values and Q2_K: the product of each vector by itself, complete. -0 does not change it when it is
// added.
static void multiply_each(int32_t format, const uint8_t *panel, const vectors_t *x, int columns,
                          panel_sums_t *sums) {
  for (int t = 0; t < x->count; ++t) {
    if (format == MLX_PANEL_Q2_K)
      sums->total[t] = multiply_q2_k(panel, x->x[t], columns);
    else
      multiply_plain_panels(format, 1, panel, 0, x->x[t], columns, &sums->total[t]);
    sums->second[t] = v_all(-0.0f);
  }
}

#endif  // MLXCEL_KERNELS_CPU_TOGETHER_H_
