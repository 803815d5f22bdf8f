// The vector functions of kernels/cpu against plain C. A separate program, because
// tests/kernels/cpu_vectors.sh compiles it for one CPU level, links it with the kernel objects of that level,
// and runs it on this machine or under an emulator. Prints a digest of all results: levels with fused
// multiply-add print the same digest.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/activation_functions.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/panel_by_vector.h"
#include "kernels/cpu/panel_f32.h"
#include "kernels/cpu/tile_f32.h"

#if defined(__aarch64__) || defined(__FMA__)
#define FUSED 1
#else
#define FUSED 0
#endif

static int failures;
static uint64_t result_digest = 14695981039346656037u;

static void hash_result(const void *bytes, size_t count) {
  for (size_t i = 0; i < count; ++i)
    result_digest = (result_digest ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
}

static void expect(const char *name, int lane, float have, float want) {
  if (have == want || (have != have && want != want)) return;
  if (failures++ < 20) printf("%s: lane %d is %.9g, expected %.9g\n", name, lane, (double)have, (double)want);
}

static void expect_all(const char *name, v16 have, const float want[16]) {
  float lanes[16];
  v_store(lanes, have);
  hash_result(lanes, sizeof lanes);
  for (int i = 0; i < 16; ++i) expect(name, i, lanes[i], want[i]);
}

static uint32_t next_bits(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}
static float next_float(void) { return ((float)next_bits() * 0x1p-30f - 1) * (float)(1 << next_bits() % 12); }

static float fma_reference(float a, float b, float c) { return FUSED ? fmaf(a, b, c) : a * b + c; }

// ----------------------------------------------------------------------------------------------------------

static void check_sums(void) {
  float x[16], y[16], z[16], want[16];
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < 16; ++i) x[i] = next_float(), y[i] = next_float(), z[i] = next_float();
    const v16 a = v_load(x), b = v_load(y), c = v_load(z);
#define EVERY(name, have, expression)                  \
  for (int i = 0; i < 16; ++i) want[i] = (expression); \
  expect_all(name, have, want)
    EVERY("v_add", v_add(a, b), x[i] + y[i]);
    EVERY("v_sub", v_sub(a, b), x[i] - y[i]);
    EVERY("v_mul", v_mul(a, b), x[i] * y[i]);
    EVERY("v_div", v_div(a, b), x[i] / y[i]);
    EVERY("v_max", v_max(a, b), x[i] > y[i] ? x[i] : y[i]);
    EVERY("v_min", v_min(a, b), x[i] < y[i] ? x[i] : y[i]);
    EVERY("v_fma", v_fma(a, b, c), fma_reference(x[i], y[i], z[i]));
    EVERY("v_round", v_round(a), rintf(x[i]));
    EVERY("v_all", v_all(x[3]), x[3]);
    EVERY("v_keep_first", v_keep_first(a, round % 20 - 1), i < round % 20 - 1 ? x[i] : -INFINITY);
    EVERY("v_where_above", v_where_above(a, y[0], c), x[i] > y[0] ? z[i] : 0);
    EVERY("v_power2", v_power2(v_all((float)(round % 253 - 126))), ldexpf(1, round % 253 - 126));
    float eight[8], largest = x[0];
    for (int i = 0; i < 8; ++i) eight[i] = x[i] + x[i + 8];
    for (int i = 1; i < 16; ++i) largest = x[i] > largest ? x[i] : largest;
    const float four[4] = {eight[0] + eight[4], eight[1] + eight[5], eight[2] + eight[6],
                           eight[3] + eight[7]};
    expect("v_sum", 0, v_sum(a), (four[0] + four[2]) + (four[1] + four[3]));
    expect("v_reduce_max", 0, v_reduce_max(a), largest);
    expect("v_find", 0, (float)v_find(a, x[round % 16]), (float)(round % 16));
    expect("v_find", 0, (float)v_find(a, 1e9f), 16);
    expect("square_root", 0, square_root(fabsf(x[0])), sqrtf(fabsf(x[0])));
  }
}

static void check_exp(void) {
  float x[16], have[16];
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < 16; ++i) x[i] = -90 + (float)(next_bits() % 178000) * 0.001f;
    v_store(have, v_exp(v_load(x)));
    hash_result(have, sizeof have);
    for (int i = 0; i < 16; ++i) {
      const double want = x[i] > -87.33654f ? exp(x[i] < 88.02969f ? (double)x[i] : 88.02969) : 0;
      if (fabs(have[i] - want) > 3e-7 * want) {
        printf("v_exp of %.9g is %.9g, expected %.9g\n", (double)x[i], (double)have[i], want);
        ++failures;
      }
    }
  }
}

// |error| is relative to the largest value the function has near x, |size|.
static void expect_near(const char *name, float x, float have, double want, double size, double error) {
  if (fabs(have - want) <= error * size) return;
  if (failures++ < 20) printf("%s of %.9g is %.9g, expected %.9g\n", name, (double)x, (double)have, want);
}

static void check_functions(void) {
  float x[16], have[16];
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < 16; ++i) x[i] = ((float)(next_bits() % 20000) - 10000) * (round % 2 ? 1e-3f : 1e-6f);
#define NEAR(name, function, want, size) \
  v_store(have, function(v_load(x)));    \
  hash_result(have, sizeof have);        \
  for (int i = 0; i < 16; ++i) expect_near(name, x[i], have[i], want, size, 1e-6)
    NEAR("tanh", v_tanh, tanh((double)x[i]), fabs(tanh((double)x[i])));
    NEAR("erf", v_erf, erf((double)x[i]), fabs(erf((double)x[i])));
    NEAR("sigmoid", v_sigmoid, 1 / (1 + exp(-(double)x[i])), 1);
    NEAR("gelu", v_gelu, x[i] * (1 + erf(x[i] * 0.70710678118654752)) / 2, fabs((double)x[i]));
#undef NEAR
    const double log_of = 1 + (double)next_bits();
    expect_near("log", (float)log_of, (float)natural_log(log_of), log(log_of), 1, 2e-6);
  }
}

// 16 pairs of bf16.
static void check_pairs(void) {
  uint32_t words[16];
  float first[16], second[16];
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 16; ++i) {
      words[i] = next_bits() * 2 & 0xbfffbfff;  // no infinity, no NaN
      const uint32_t low = words[i] << 16, high = words[i] & 0xffff0000;
      memcpy(&first[i], &low, 4);
      memcpy(&second[i], &high, 4);
    }
    expect_all("v_load_first", v_load_first(words), first);
    expect_all("v_load_second", v_load_second(words), second);
  }
}

// ----------------------------------------------------------------------------------------------------------
// All 16-bit floats

static float half_value(unsigned bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24));
}

static void check_halves(void) {
  for (unsigned from = 0; from < 65536; from += 16) {
    uint16_t halves[16];
    float want[16], lanes[16];
    for (unsigned i = 0; i < 16; ++i) halves[i] = (uint16_t)(from + i), want[i] = half_value(from + i);
    v_store(lanes, v_load_f16(halves));
    for (int i = 0; i < 16; ++i) expect("v_load_f16", i, lanes[i], want[i]);
    for (unsigned i = 0; i < 16; ++i) {
      if (want[i] == want[i] && f16_bits(want[i]) != from + i)
        printf("f16_bits of %.9g\n", (double)want[i]), ++failures;
      const uint32_t f32_bits = (from + i) << 16;
      memcpy(&want[i], &f32_bits, sizeof f32_bits);
    }
    v_store(lanes, v_load_bf16(halves));
    if (memcmp(lanes, want, sizeof want)) printf("v_load_bf16 from %u\n", from), ++failures;
  }
  static const struct {
    float value;
    uint16_t bits;
  } rounded[] = {
      {1 + 0x1p-11f, 0x3c00}, {1 + 3 * 0x1p-11f, 0x3c02}, {65519, 0x7bff}, {65520, 0x7c00}, {-1e9f, 0xfc00},
      {0x1p-25f, 0},          {3 * 0x1p-25f, 2}};
  for (size_t i = 0; i < sizeof rounded / sizeof *rounded; ++i) {
    if (f16_bits(rounded[i].value) == rounded[i].bits) continue;
    printf("f16_bits of %.9g is %04x, expected %04x\n", (double)rounded[i].value, f16_bits(rounded[i].value),
           rounded[i].bits);
    ++failures;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Panels

// Random scales that are finite numbers.
static void fill_scales(int32_t format, uint8_t *at, int bytes) {
  for (int i = 0; format == MLX_PANEL_MXFP4 && i < bytes; ++i) at[i] = (uint8_t)(100 + next_bits() % 40);
  if (format == MLX_PANEL_MXFP4) return;
  for (int i = 0; i < bytes / (has_f32_scales(format) ? 4 : 2); ++i) {
    const float scale = next_float() * 0x1p-10f;
    const uint16_t half =
        has_bf16_scales(format) ? (uint16_t)(next_bits() % 0x400 + 0x3b00) : f16_bits(scale);
    has_f32_scales(format) ? memcpy(at + 4 * i, &scale, 4) : memcpy(at + 2 * i, &half, 2);
  }
}

static void fill_block(int32_t format, uint8_t *block) {
  const int scales = format < MLX_PANEL_Q4_0 ? 0 : scale_bytes(format),
            bytes = (int)mlx_panel_block_stride(format);
  for (int i = 0; i < bytes; ++i) block[i] = (uint8_t)next_bits();
  if (!has_super_blocks(format)) fill_scales(format, block, scales);  // else the scales are integers
  for (int i = 0; !scales && i < bytes / (format == MLX_PANEL_F32 ? 4 : 2); ++i) {
    const float value = next_float();
    const uint16_t half = format == MLX_PANEL_F16 ? f16_bits(value) : (uint16_t)(next_bits() & 0xbfff);
    format == MLX_PANEL_F32 ? memcpy(block + 4 * i, &value, 4) : memcpy(block + 2 * i, &half, 2);
  }
}

// The f32 product, which every level has. On sapphirerapids mlx_panel_times_vector uses integers for
// quantized panels.
static v16 multiply_in_floats(int32_t format, const uint8_t *panel, const vectors_t *x, int columns) {
  v16 product;
  if (!is_quantized(format)) {
    mlx_plain_panels_times_vector(format, 1, panel, 0, x->x[0], columns, &product);
    return product;
  }
  if (format == MLX_PANEL_Q2_K) return mlx_q2_k_times_vector(panel, x->x[0], columns);
  static float placed[MLX_CPU_MAX_COLUMNS];
  place_columns(x->x[0], columns, placed);
  return multiply_in_f32(format, panel, x->x[0], placed, x->sums, columns);
}

// A panel times a vector equals its dequantized values times the vector, up to f32 rounding.
static void check_panels(void) {
  enum { COLUMNS = 256 };  // one super-block
  _Alignas(64) static uint8_t panel[16384 + AHEAD];
  static vectors_t vector;
  static float dequantized[COLUMNS][16], x[COLUMNS];
  for (int32_t format = 0; format < MLX_PANEL_FORMATS; ++format) {
    float have[16];
    if (has_super_blocks(format)) fill_scales(format, panel, (int)mlx_panel_group_bytes(format));
    for (int b = 0; b < COLUMNS / 32; ++b) fill_block(format, panel + mlx_panel_block_at(format, b));
    for (int i = 0; i < COLUMNS; ++i) x[i] = next_float();
    mlx_prepare_vectors((const float *[]){x}, 1, 0, COLUMNS / MLX_PANEL_BLOCK, is_quantized(format), &vector);
    mlx_dequantize_panel(format, panel, 0, COLUMNS, dequantized[0], 16);
    hash_result(dequantized, sizeof dequantized);
    v_store(have, multiply_in_floats(format, panel, &vector, COLUMNS));
    hash_result(have, sizeof have);
    if (is_quantized(format)) v_store(have, mlx_panel_times_vector(format, panel, &vector, COLUMNS));
    for (int row = 0; row < 16; ++row) {
      double want = 0, size = 0;
      for (int k = 0; k < COLUMNS; ++k)
        want += (double)dequantized[k][row] * x[k], size += fabs((double)dequantized[k][row] * x[k]);
      if (fabs(have[row] - want) <= 4e-6 * size) continue;
      printf("format %d, row %d: %.9g, expected %.9g\n", (int)format, row, (double)have[row], want);
      ++failures;
    }
  }
}

static void check_tile(void) {
  enum { COLUMNS = 40 };
  static float weights[COLUMNS * TILE_ROWS], x[TILE_TOKENS][COLUMNS], sums[TILE_TOKENS * TILE_ROWS];
  const float *rows[TILE_TOKENS];
  for (int i = 0; i < COLUMNS * TILE_ROWS; ++i) weights[i] = next_float();
  for (int t = 0; t < TILE_TOKENS; ++t) {
    rows[t] = x[t];
    for (int k = 0; k < COLUMNS; ++k) x[t][k] = next_float();
  }
  for (int tokens = 1; tokens <= TILE_TOKENS; ++tokens) {
    memset(sums, 0, sizeof sums);
    multiply_tile(tokens, weights, rows, COLUMNS, sums);
    for (int t = 0; t < tokens; ++t) {
      for (int row = 0; row < TILE_ROWS; ++row) {
        float want = 0;
        for (int k = 0; k < COLUMNS; ++k) want = fma_reference(weights[k * TILE_ROWS + row], x[t][k], want);
        expect("multiply_tile", row, sums[t * TILE_ROWS + row], want);
      }
    }
  }
}

int main(void) {
  check_sums();
  check_exp();
  check_functions();
  check_pairs();
  check_halves();
  check_panels();
  check_tile();
  printf("%016llx%s\n", (unsigned long long)result_digest, FUSED ? "" : " (not fused)");
  return failures > 0;
}
