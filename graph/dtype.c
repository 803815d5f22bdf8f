// The table of element types, exact dequantization to f32 (kquants.c has the types with several scales per
// block), and rounding from f32.
//
// Dequantization is the reference: bit for bit what the gguf Python package computes. The only exceptions are
// NaNs made by arithmetic, whose bits IEEE 754 does not define. It is not the fast path; kernels read
// quantized bytes.
//
// The C compiler cannot change a result by fusing or reordering steps. A scale is an f16 (11 significant
// bits) and a quant has at most 8, so scale * quant is exact in f32. Then scale * quant + minimum rounds
// once, with or without an FMA.
#include "graph/dtype.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "graph/half.h"
#include "graph/kquants.h"

#define QUANT_BLOCK 32  // elements in a block of every quantized type in this file

static uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static void f32_to_f32(const uint8_t *source, size_t blocks, float *out) {
  if (blocks) memcpy(out, source, blocks * sizeof *out);
}

static void f16_row_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (size_t i = 0; i < blocks; ++i) {
    float value = mlx_load_f16(source + 2 * i);
    memcpy(&out[i], &value, sizeof value);
  }
}

static void bf16_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (size_t i = 0; i < blocks; ++i) {
    uint32_t bits = (uint32_t)mlx_load_u16(source + 2 * i) << 16;
    memcpy(&out[i], &bits, sizeof bits);
  }
}

// In the next four types, byte j of the nibbles holds element j in its low half and element j + 16 in its
// high half.

static void q4_0_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 18, out += QUANT_BLOCK) {
    float scale = mlx_load_f16(source);
    const uint8_t *nibbles = source + 2;
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * (float)((nibbles[j] & 15) - 8);
      out[j + 16] = scale * (float)((nibbles[j] >> 4) - 8);
    }
  }
}

static void q4_1_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 20, out += QUANT_BLOCK) {
    float scale = mlx_load_f16(source), minimum = mlx_load_f16(source + 2);
    const uint8_t *nibbles = source + 4;
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * (float)(nibbles[j] & 15) + minimum;
      out[j + 16] = scale * (float)(nibbles[j] >> 4) + minimum;
    }
  }
}

// Bit j of |high| (little-endian) is the fifth bit of element j.
static int fifth_bit(const uint8_t *high, int j) { return (high[j / 8] >> j % 8 & 1) << 4; }

static void q5_0_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 22, out += QUANT_BLOCK) {
    float scale = mlx_load_f16(source);
    const uint8_t *high = source + 2, *nibbles = source + 6;
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * (float)(((nibbles[j] & 15) | fifth_bit(high, j)) - 16);
      out[j + 16] = scale * (float)((nibbles[j] >> 4 | fifth_bit(high, j + 16)) - 16);
    }
  }
}

static void q5_1_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 24, out += QUANT_BLOCK) {
    float scale = mlx_load_f16(source), minimum = mlx_load_f16(source + 2);
    const uint8_t *high = source + 4, *nibbles = source + 8;
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * (float)((nibbles[j] & 15) | fifth_bit(high, j)) + minimum;
      out[j + 16] = scale * (float)(nibbles[j] >> 4 | fifth_bit(high, j + 16)) + minimum;
    }
  }
}

static void q8_0_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 34, out += QUANT_BLOCK) {
    float scale = mlx_load_f16(source);
    for (int j = 0; j < QUANT_BLOCK; ++j) out[j] = (float)(int8_t)source[2 + j] * scale;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Rounding. Without branches, so that the compiler vectorizes the loops.

// |bits| without its lowest |drop| bits, rounded to nearest, ties to even. A carry into the exponent is
// correct.
static uint32_t drop_bits(uint32_t bits, int drop) {
  return (bits + (1u << (drop - 1)) - 1 + (bits >> drop & 1)) >> drop;
}

static uint16_t f32_to_bf16(float value) {
  uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
  return (uint16_t)(magnitude > 0x7f800000 ? bits >> 16 | 0x40 : drop_bits(bits, 16));
}

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Adds the part of the value below the smallest normal f16, 2^-14, and the part above it, each rounded in its
// own steps. gcc does not vectorize a choice between the two cases.
static uint16_t f32_to_f16(float value) {
  const uint32_t min_normal = 0x38800000,
                 infinite = 0x477ff000;  // 65520, halfway between 65504 and the next step
  uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  // An f32 in [0.5, 1) has steps of 2^-24, as subnormal f16 values have: the addition rounds.
  uint32_t below =
      bits_of_float(mlx_float_of_bits(min_u32(magnitude, min_normal)) + 0.5f) - bits_of_float(0.5f);
  uint32_t above = drop_bits(min_u32(max_u32(magnitude, min_normal), infinite) - min_normal, 13);
  uint32_t nan = magnitude > 0x7f800000 ? 0x200 | (magnitude >> 13 & 0x3ff)
                                        : 0;  // combined with the exponent of an infinity
  return (uint16_t)(sign | (below + above) | nan);
}

static void f32_from_f32(const float *source, size_t count, uint8_t *out) {
  if (count) memcpy(out, source, count * sizeof *source);
}

static void f16_from_f32(const float *source, size_t count, uint8_t *out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t half = f32_to_f16(source[i]);
    memcpy(out + 2 * i, &half, sizeof half);
  }
}

static void bf16_from_f32(const float *source, size_t count, uint8_t *out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t half = f32_to_bf16(source[i]);
    memcpy(out + 2 * i, &half, sizeof half);
  }
}

// ----------------------------------------------------------------------------------------------------------
// The table. Columns: see mlx_dtype_info_t.

// clang-format off
static const mlx_dtype_info_t infos[MLX_DTYPE_COUNT] = {
  //             name       mlir    safet.  gguf elems bytes panel                to_f32             from_f32
  [MLX_F32] =    {"F32",    "f32",  "F32",  0,   1,    4,    MLX_PANEL_F32,       f32_to_f32,        f32_from_f32},
  [MLX_F16] =    {"F16",    "f16",  "F16",  1,   1,    2,    MLX_PANEL_F16,       f16_row_to_f32,    f16_from_f32},
  [MLX_BF16] =   {"BF16",   "bf16", "BF16", 30,  1,    2,    MLX_PANEL_BF16,      bf16_to_f32,       bf16_from_f32},
  [MLX_I32] =    {"I32",    "i32",  "I32",  26,  1,    4,    MLX_PANEL_NONE,      NULL,              NULL},
  [MLX_I64] =    {"I64",    "i64",  "I64",  27,  1,    8,    MLX_PANEL_NONE,      NULL,              NULL},
  [MLX_U32] =    {"U32",    "ui32", "U32",  -1,  1,    4,    MLX_PANEL_NONE,      NULL,              NULL},
  [MLX_U8] =     {"U8",     "ui8",  "U8",   -1,  1,    1,    MLX_PANEL_NONE,      NULL,              NULL},
  [MLX_I1] =     {"I1",     "i1",   NULL,   -1,  1,    1,    MLX_PANEL_NONE,      NULL,              NULL},
  [MLX_Q4_0] =   {"Q4_0",   NULL,   NULL,   2,   32,   18,   MLX_PANEL_Q4_0,      q4_0_to_f32,       NULL},
  [MLX_Q4_1] =   {"Q4_1",   NULL,   NULL,   3,   32,   20,   MLX_PANEL_Q4_1,      q4_1_to_f32,       NULL},
  [MLX_Q5_0] =   {"Q5_0",   NULL,   NULL,   6,   32,   22,   MLX_PANEL_Q5_0,      q5_0_to_f32,       NULL},
  [MLX_Q5_1] =   {"Q5_1",   NULL,   NULL,   7,   32,   24,   MLX_PANEL_Q5_1,      q5_1_to_f32,       NULL},
  [MLX_Q8_0] =   {"Q8_0",   NULL,   NULL,   8,   32,   34,   MLX_PANEL_Q8_0,      q8_0_to_f32,       NULL},
  [MLX_Q2_K] =   {"Q2_K",   NULL,   NULL,   10,  256,  84,   MLX_PANEL_Q2_K,      mlx_q2_k_to_f32,   NULL},
  [MLX_Q3_K] =   {"Q3_K",   NULL,   NULL,   11,  256,  110,  MLX_PANEL_Q3_K,      mlx_q3_k_to_f32,   NULL},
  [MLX_Q4_K] =   {"Q4_K",   NULL,   NULL,   12,  256,  144,  MLX_PANEL_Q4_K,      mlx_q4_k_to_f32,   NULL},
  [MLX_Q5_K] =   {"Q5_K",   NULL,   NULL,   13,  256,  176,  MLX_PANEL_Q5_K,      mlx_q5_k_to_f32,   NULL},
  [MLX_Q6_K] =   {"Q6_K",   NULL,   NULL,   14,  256,  210,  MLX_PANEL_Q6_K,      mlx_q6_k_to_f32,   NULL},
  [MLX_IQ4_NL] = {"IQ4_NL", NULL,   NULL,   20,  32,   18,   MLX_PANEL_IQ4_NL,    mlx_iq4_nl_to_f32, NULL},
  [MLX_IQ4_XS] = {"IQ4_XS", NULL,   NULL,   23,  256,  136,  MLX_PANEL_IQ4_XS,    mlx_iq4_xs_to_f32, NULL},
  [MLX_MXFP4] =  {"MXFP4",  NULL,   NULL,   39,  32,   17,   MLX_PANEL_MXFP4,     mlx_mxfp4_to_f32,  NULL},
};
// clang-format on

const mlx_dtype_info_t *mlx_dtype_info(mlx_dtype_t dtype) { return &infos[dtype]; }

bool mlx_dtype_is_quantized(mlx_dtype_t dtype) { return infos[dtype].block_elements > 1; }

double mlx_dtype_bits(mlx_dtype_t dtype) {
  return 8.0 * (double)infos[dtype].block_bytes / (double)infos[dtype].block_elements;
}

mlx_status_t mlx_dtype_parse(const char *name, mlx_dtype_t *out_dtype) {
  mlx_text_t known = {0};
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    if (!infos[i].from_f32) continue;
    if (!strcmp(name, infos[i].mlir)) {
      *out_dtype = (mlx_dtype_t)i;
      mlx_text_clear(&known);
      return NULL;
    }
    mlx_text_printf(&known, "%s%s", known.length ? ", " : "", infos[i].mlir);
  }
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown dtype '%s'", name);
  status = mlx_status_hint(status, "dtypes: %s", known.data ? known.data : "");
  mlx_text_clear(&known);
  return status;
}

bool mlx_dtype_tensor_bytes(mlx_dtype_t dtype, int rank, const int64_t *dims, size_t *out_bytes) {
  const mlx_dtype_info_t *info = mlx_dtype_info(dtype);
  size_t elements = 1, bytes;
  for (int i = 0; i < rank; ++i) {
    if (dims[i] < 0 || !mlx_mul(elements, (size_t)dims[i], &elements)) return false;
  }
  // Callers count elements in int64_t, so that many must fit as well as the bytes.
  if (elements > INT64_MAX) return false;
  size_t innermost = rank ? (size_t)dims[rank - 1] : 1;
  if (innermost % info->block_elements) return false;
  if (!mlx_mul(elements / info->block_elements, info->block_bytes, &bytes)) return false;
  *out_bytes = bytes;
  return true;
}
