// Quantized panels times several activation vectors, on AMX tiles.
//
// With AMX, codes and digits are bf16 numbers: both have at most 8 bits. Three tile products multiply a block
// of codes with the digits of 16 vectors, the lowest digit first. A product of tiles sums from zero, and adds
// the result to the tile. Sums of one digit have less than 24 bits, so they are exact, and only the last
// additions round: where join_digits() rounds. The digits are scaled, so the sums need no power of two. A
// vector instruction per block and vector is left: the scale.
#include "panels_by_vectors.h"

#if HAS_INTEGERS

#include "panel_codes.h"
#include "tile_amx.h"

#define BLOCKS_AHEAD 4  // blocks that each panel is prefetched ahead

// Keeps arrays in registers: without it gcc 12 unrolls too late.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// A block of a panel.
typedef struct unpacked {
  // Codes in bf16: [16 pairs of columns][16 rows][2]. The order of the columns is that of order_columns().
  _Alignas(64) uint16_t codes[TILE];
  v16 scale, second;
} unpacked_t;

// Tiles 0 to 3: sums of |rows| vectors. 4 to 6: digits. 7: codes.
static void configure_code_tiles(int32_t format, int rows) {
  _Alignas(64) uint8_t config[64];
  const int columns = has_two_scales(format) ? MLX_PANEL_BLOCK / 2 : MLX_PANEL_BLOCK;
  for (int i = 0; i < 64; ++i) config[i] = 0;
  config[0] = 1;
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = (uint8_t)(i >= 4 && i < 7 ? 2 * columns : 64);
    config[48 + i] = (uint8_t)(i < 7 ? rows : columns / 2);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

// The digits of the job after group |nth| of block |k|.
INLINE const uint16_t *next_digits(const vectors_t *x, int k, int nth) {
  const bool ends = nth + 1 == group_count(x->count);
  const int block = !ends ? k : k + 1 < x->blocks ? k + 1 : 0;  // of the next panels
  return x->tiles + entry_of(x, block, ends ? 0 : nth + 1) * DIGITS * MLX_PANEL_BLOCK;
}

INLINE __m256i bf16_of(v16 x) {  // of numbers that bf16 holds
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16));
}

// 8 columns of 4-bit codes. A permutation of 16-bit lanes uses the low 5 bits of a lane, and the table
// repeats after 16 entries, so a code needs no mask.
INLINE void unpack_nibbles(int32_t format, const uint8_t *codes, uint16_t *to) {
  // -8 to 15
  static const uint16_t bf16[24] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                    0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
  const __m256i half = _mm256_loadu_si256((const void *)(bf16 + 8 + properties[format].least));
  const __m512i table = _mm512_broadcast_i64x4(half), words = _mm512_loadu_si512(codes);
  _mm512_store_si512(to, _mm512_permutexvar_epi16(words, table));
  _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table));
  _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table));
  _mm512_store_si512(to + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table));
}

// |first| to |first| + 31 as bf16 numbers.
INLINE __m512i bf16_from(int first) {
  const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                low = _mm512_add_epi32(count, _mm512_set1_epi32(first)),
                high = _mm512_add_epi32(low, _mm512_set1_epi32(16));
  const __m256i one = bf16_of(_mm512_cvtepi32_ps(low)), two = bf16_of(_mm512_cvtepi32_ps(high));
  return _mm512_inserti64x4(_mm512_castsi256_si512(one), two, 1);
}

// Octet |octet| of codes of a table, or of 5 or 6 bits. The permutation ignores the bits above the index.
INLINE void unpack_narrow(int32_t format, const uint8_t *codes, int octet, __m512i *more, uint16_t *to) {
  const __m512i words = _mm512_loadu_si512(codes + 64 * octet), low = _mm512_set1_epi16(15);
  const bool five = code_bits(format) == 5;
  const __m512i even = code_bits(format) > 4 ? load_high_bits(format, codes, octet, more) : words,
                odd = five ? _mm512_ror_epi32(even, 1) : _mm512_ror_epi32(even, 2);
  __m512i index[4] = {words, _mm512_srli_epi16(words, 4), _mm512_srli_epi16(words, 8),
                      _mm512_srli_epi16(words, 12)};
  const __m512i high[4] = {even, odd, _mm512_srli_epi16(even, 8), _mm512_srli_epi16(odd, 8)};
  UNROLL
  for (int i = 0; i < 4; ++i) {
    if (properties[format].values) {
      const __m128i values = _mm_loadu_si128((const void *)values_of(format));
      const __m256i table = bf16_of(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(values)));
      index[i] = _mm512_permutexvar_epi16(index[i], _mm512_broadcast_i64x4(table));
    } else {
      const int least = properties[format].least;
      index[i] = _mm512_ternarylogic_epi32(low, index[i], high[i], 0xca);  // low ? index : high
      index[i] = five ? _mm512_permutexvar_epi16(index[i], bf16_from(least))
                      : _mm512_permutex2var_epi16(bf16_from(least), index[i], bf16_from(least + 32));
    }
    _mm512_store_si512(to + 32 * i, index[i]);
  }
}

// 8 columns of 8-bit codes.
INLINE void unpack_bytes(int32_t format, const uint8_t *codes, uint16_t *to) {
  for (int i = 0; i < 4; ++i)
    split_pair(load_bytes(format, codes + 16 * i), load_bytes(format, codes + 16 * i + 64), 1, to + 32 * i);
}

// Unpacks block |nth| of a panel. Prefetches the block BLOCKS_AHEAD later: after the last prepared block, of
// the panel |next| bytes later.
INLINE void unpack_block(int32_t format, const uint8_t *panel, int nth, const vectors_t *x, int64_t next,
                         unpacked_t *out) {
  const uint8_t *block = panel + mlx_panel_block_at(format, nth), *codes = block + scale_bytes(format);
  const int later = nth + BLOCKS_AHEAD;
  prefetch(panel + (later < x->first + x->blocks ? mlx_panel_block_at(format, later)
                                                 : next + mlx_panel_block_at(format, later - x->blocks)),
           (int)mlx_panel_block_stride(format));
  out->scale = load_scale(format, block, nth);
  if (has_two_scales(format) || has_offsets(format)) out->second = load_second(format, block, nth);
  __m512i more = _mm512_setzero_si512();
  UNROLL
  for (int i = 0; i < 4; ++i) {
    if (code_bits(format) == 4 && !properties[format].values)
      unpack_nibbles(format, codes + 64 * i, out->codes + 128 * i);
    else if (is_q8(format))
      unpack_bytes(format, codes + 128 * i, out->codes + 128 * i);
    else
      unpack_narrow(format, codes, i, &more, out->codes + 128 * i);
  }
}

// One block of codes, or half of one, times one group of vectors: what is left to do when the tile unit has
// multiplied it.
typedef struct sums_job {
  const unpacked_t *u;  // [panels]; NULL: nothing
  bool half;            // the second half, of a format with two scales
  const float *sums;    // the vectors' sums of the block
  v16 *total;           // of the first panel
} sums_job_t;

// Adds a tile of sums, scaled, to the totals of VECTORS vectors with panel |p|.
INLINE void scale_sums(int32_t format, int VECTORS, const sums_job_t *job, int p, const float *tile) {
  const unpacked_t *u = job->u + p;
  v16 *total = job->total + p * (sizeof(panel_sums_t) / sizeof(v16));
  const v16 scale = has_two_scales(format) && job->half ? u->second : u->scale, offset = u->second;
  UNROLL
  for (int t = 0; t < VECTORS; ++t) {
    v16 value = v_fma(scale, v_load(tile + 16 * t), total[t]);
    if (has_offsets(format)) value = v_fma(offset, v_all(job->sums[t]), value);
    total[t] = value;
  }
}

// Tile |p| = the codes of panel |p| times the digits in tiles 4 to 6, the lowest digit first.
#define MULTIPLY_CODES(p)                                   \
  do {                                                      \
    if ((p) < panels) {                                     \
      TILE_LOAD(7, job.u[p].codes + half * (TILE / 2), 64); \
      TILE_ZERO(p);                                         \
      TILE_MULTIPLY(p, 4, 7);                               \
      TILE_MULTIPLY(p, 5, 7);                               \
      TILE_MULTIPLY(p, 6, 7);                               \
    }                                                       \
  } while (0)
#define STORE_SUMS(p)                             \
  do {                                            \
    if ((p) < panels) TILE_STORE(p, tile[p], 64); \
  } while (0)
// Fetches a quarter of the next job's digits, which are in the L2 cache.
#define FETCH_DIGITS(p)                                                                        \
  do {                                                                                         \
    for (int line = (p) * 3 * VECTORS / 4; next && line < ((p) + 1) * 3 * VECTORS / 4; ++line) \
      __builtin_prefetch(next + line * MLX_PANEL_BLOCK, 0, 3);                                 \
  } while (0)
// Finishes panel |p| of the last job, and unpacks the next block of it.
#define FINISH(p)                                                                      \
  do {                                                                                 \
    if ((p) < panels && last.u) scale_sums(format, VECTORS, &last, p, tile[p]);        \
    if ((p) < panels && unpacks)                                                       \
      unpack_block(format, panel + (p) * stride, x->first + k + 1, x, panels * stride, \
                   &unpacked[(k + 1) % 2][p]);                                         \
  } while (0)

// The blocks of |panels| panels times all groups of vectors, VECTORS vectors each. A job multiplies the
// panels with the same digits, which are loaded once. The tile unit takes long for a sum, so a sum is stored
// three panels later and scaled during the next job. The next block is unpacked during a job of this block.
// Nothing waits for the tile unit until the last job.
INLINE void multiply_groups(int32_t format, int VECTORS, const uint8_t *panel, int64_t stride, int panels,
                            const vectors_t *x, panel_sums_t *out) {
  // Rows of sums that the tile unit does not write are zero: the sum of denormal numbers is slow.
  _Alignas(64) float tile[SUM_PANELS][256];
  unpacked_t unpacked[2][SUM_PANELS];
  const int halves = has_two_scales(format) ? 2 : 1, jobs = halves * group_count(x->count),
            digit = x->group * MLX_PANEL_BLOCK;
  sums_job_t last = {0};
  for (int i = 0; i < panels * (VECTORS - x->group); ++i)
    v_store(tile[i % panels] + 16 * (x->group + i / panels), v_zero());
  for (int p = 0; p < panels; ++p)
    unpack_block(format, panel + p * stride, x->first, x, panels * stride, &unpacked[0][p]);
  for (int k = 0; k < x->blocks; ++k) {
    for (int i = 0; i < jobs; ++i) {
      const int half = i % halves, nth = i / halves;
      const int64_t at = entry_of(x, k, nth);
      const uint16_t *digits = x->tiles + at * DIGITS * MLX_PANEL_BLOCK + half * 16;
      const bool unpacks = i == 0 && k + 1 < x->blocks;
      const uint16_t *next = half + 1 < halves ? NULL : next_digits(x, k, nth);
      const sums_job_t job = {unpacked[k % 2], half, x->sums + at, out->total + nth * GROUP_VECTORS};
      TILE_LOAD(4, digits, 64);
      TILE_LOAD(5, digits + digit, 64);
      TILE_LOAD(6, digits + 2 * digit, 64);
      MULTIPLY_CODES(0);
      if (last.u) STORE_SUMS(1);
      FETCH_DIGITS(0);
      FINISH(0);
      MULTIPLY_CODES(1);
      if (last.u) STORE_SUMS(2);
      FETCH_DIGITS(1);
      FINISH(1);
      MULTIPLY_CODES(2);
      if (last.u) STORE_SUMS(3);
      FETCH_DIGITS(2);
      FINISH(2);
      STORE_SUMS(0);
      MULTIPLY_CODES(3);
      FETCH_DIGITS(3);
      FINISH(3);
      last = job;
    }
  }
  STORE_SUMS(1);
  STORE_SUMS(2);
  STORE_SUMS(3);
  for (int p = 0; p < panels && last.u; ++p) scale_sums(format, VECTORS, &last, p, tile[p]);
}
#undef FINISH
#undef FETCH_DIGITS
#undef STORE_SUMS
#undef MULTIPLY_CODES

// A function of its own for each format and size of groups: in one function of all of them, the time that
// compilers take grows with the square of their number.
#define DEFINE(format)                                                                             \
  static NOT_INLINE void multiply_##format(const uint8_t *panel, int64_t stride, int panels,       \
                                           const vectors_t *x, panel_sums_t *sums) {               \
    multiply_groups(MLX_PANEL_##format, GROUP_VECTORS, panel, stride, panels, x, sums);            \
  }                                                                                                \
  static NOT_INLINE void multiply_small_##format(const uint8_t *panel, int64_t stride, int panels, \
                                                 const vectors_t *x, panel_sums_t *sums) {         \
    multiply_groups(MLX_PANEL_##format, GROUP_VECTORS / 2, panel, stride, panels, x, sums);        \
  }
CODE_FORMATS(DEFINE)
#undef DEFINE

void mlx_panels_times_vectors(int32_t format, const uint8_t *panel, int64_t stride, int panels, vectors_t *x,
                              panel_sums_t *sums) {
  const bool is_small = x->group <= GROUP_VECTORS / 2;
#define CASE(format)                                                                          \
  case MLX_PANEL_##format:                                                                    \
    (is_small ? multiply_small_##format : multiply_##format)(panel, stride, panels, x, sums); \
    break;
  switch (format) {
    CODE_FORMATS(CASE)
    default: break;
  }
#undef CASE
}

void mlx_start_products(int32_t format, const vectors_t *x, int *tiles) {
  const int wanted = 2 * x->group + has_two_scales(format);
  if (*tiles != wanted) configure_code_tiles(format, x->group);
  *tiles = wanted;
}

void mlx_end_products(int *tiles) {
  if (*tiles) release_tiles();
  *tiles = 0;
}

#endif
