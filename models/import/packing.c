// Reference dequantization of the formats in packing.h to f32. Codes are unsigned and little-endian.
#include "models/import/packing.h"

#include <math.h>
#include <string.h>

#include "graph/kquants.h"

#define WORD_CODES 8  // 4-bit codes in a word of GPTQ and AWQ

static uint32_t load_u32(const uint8_t *bytes, int64_t index) {
  bytes += 4 * (size_t)index;
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static float load_float(const mlx_tensor_t *tensor, int64_t index) {
  const mlx_dtype_info_t *info = mlx_dtype_info(tensor->dtype);
  float value;
  info->to_f32(tensor->data + (size_t)index * info->block_bytes, 1, &value);
  return value;
}

const char *mlx_packing_name(mlx_packing_kind_t kind) {
  static const char *const names[MLX_PACKING_COUNT] = {[MLX_PACKED_MLX] = "MLX",
                                                       [MLX_PACKED_GPTQ] = "GPTQ",
                                                       [MLX_PACKED_AWQ] = "AWQ",
                                                       [MLX_PACKED_MXFP4] = "MXFP4"};
  return names[kind];
}

// ----------------------------------------------------------------------------------------------------------
// MLX

// A row is one bit stream: if |bits| does not divide 32, a code can straddle two words.
static void dequantize_mlx_row(const mlx_packing_t *p, int64_t row, float *out) {
  const int64_t groups = p->columns / p->group;
  int64_t word = row * (p->columns * p->bits / 32);
  uint64_t held = 0;
  int held_bits = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = load_float(p->parts[MLX_PART_SCALES], row * groups + g);
    const float bias = load_float(p->parts[MLX_PART_OFFSETS], row * groups + g);
    for (int64_t i = 0; i < p->group; ++i) {
      if (held_bits < p->bits) {
        held |= (uint64_t)load_u32(p->parts[MLX_PART_CODES]->data, word++) << held_bits;
        held_bits += 32;
      }
      // Two statements: in one expression the compiler may contract them to an FMA, which rounds differently
      // for f32 scales.
      const float product = scale * (float)(held & ((1u << p->bits) - 1));
      *out++ = product + bias;
      held >>= p->bits;
      held_bits -= p->bits;
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// GPTQ and AWQ

// The position in a word of the codes of eight rows (or columns).
static const uint8_t in_order[WORD_CODES] = {0, 1, 2, 3, 4, 5, 6, 7},
                     interleaved[WORD_CODES] = {0, 4, 1, 5, 2, 6, 3, 7};

// The code of |row| in line |line| of a tensor whose words hold eight rows each.
static int code_along_rows(const mlx_packing_t *p, mlx_packed_part_t part, int64_t line, int64_t row) {
  const uint8_t *positions = p->kind == MLX_PACKED_AWQ ? interleaved : in_order;
  const uint32_t word = load_u32(p->parts[part]->data, line * (p->rows / WORD_CODES) + row / WORD_CODES);
  return (int)(word >> 4 * positions[row % WORD_CODES] & 15);
}

// GPTQ: the code of one column of the file.
static int code_along_columns(const mlx_packing_t *p, int64_t row, int64_t column) {
  const uint32_t word = load_u32(p->parts[MLX_PART_CODES]->data, column / WORD_CODES * p->rows + row);
  return (int)(word >> 4 * (column % WORD_CODES) & 15);
}

// The codes of eight columns starting at |column|, which must be a multiple of eight.
static void load_codes(const mlx_packing_t *p, int64_t row, int64_t column, int *out) {
  if (p->order) {
    for (int i = 0; i < WORD_CODES; ++i) out[i] = code_along_columns(p, row, p->order[column + i]);
  } else if (p->kind == MLX_PACKED_AWQ) {
    for (int i = 0; i < WORD_CODES; ++i) out[i] = code_along_rows(p, MLX_PART_CODES, column + i, row);
  } else {
    const uint32_t word = load_u32(p->parts[MLX_PART_CODES]->data, column / WORD_CODES * p->rows + row);
    for (int i = 0; i < WORD_CODES; ++i) out[i] = (int)(word >> 4 * i & 15);
  }
}

// auto-gptq masks after adding 1, so a stored 15 is the zero point 0.
static int zero_of(const mlx_packing_t *p, int64_t group, int64_t row) {
  return (code_along_rows(p, MLX_PART_OFFSETS, group, row) + p->zeros_minus_one) & 15;
}

bool mlx_packing_is_symmetric(const mlx_packing_t *p) {
  if (p->kind != MLX_PACKED_GPTQ && p->kind != MLX_PACKED_AWQ) return false;
  const uint32_t expected = 0x11111111u * (uint32_t)(MLX_SYMMETRIC_ZERO - p->zeros_minus_one);
  const int64_t words = p->columns / p->group * (p->rows / WORD_CODES);
  for (int64_t i = 0; i < words; ++i) {
    if (load_u32(p->parts[MLX_PART_OFFSETS]->data, i) != expected) return false;
  }
  return true;
}

// The group of a column, of the order or else of the file.
static int64_t group_of(const mlx_packing_t *p, int64_t column) {
  const mlx_tensor_t *groups = p->parts[MLX_PART_GROUPS];
  return groups && !p->order ? (int64_t)load_u32(groups->data, column) : column / p->group;
}

bool mlx_packing_sort_columns(const mlx_packing_t *p, int64_t *starts, int32_t *out_order) {
  const int64_t groups = p->columns / p->group;
  bool sorted = true;
  if (p->kind != MLX_PACKED_GPTQ || p->stack || p->order || p->group % MLX_CODES || p->columns > INT32_MAX)
    return false;
  for (int64_t g = 0; g < groups; ++g) starts[g] = g * p->group;
  for (int64_t i = 0; i < p->columns; ++i) {
    const int64_t g = group_of(p, i);
    if (g >= groups || starts[g] == (g + 1) * p->group) return false;
    sorted = sorted && starts[g] == i;
    out_order[starts[g]++] = (int32_t)i;
  }
  return !sorted;
}

// Eight columns of all rows at a time, because neighbouring rows share cache lines.
static void dequantize_columns(const mlx_packing_t *p, int64_t first, int64_t count, int64_t column,
                               float *out) {
  int64_t groups[WORD_CODES];
  for (int i = 0; i < WORD_CODES; ++i) groups[i] = group_of(p, column + i);
  for (int64_t row = first; row < first + count; ++row, out += p->columns) {
    float scale = 0;
    int zero = 0, codes[WORD_CODES];
    load_codes(p, row, column, codes);
    for (int i = 0; i < WORD_CODES; ++i) {
      if (!i || groups[i] != groups[i - 1]) {
        scale = load_float(p->parts[MLX_PART_SCALES], groups[i] * p->rows + row);
        zero = zero_of(p, groups[i], row);
      }
      out[i] = scale * (float)(codes[i] - zero);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// MXFP4

#define BLOCK 32  // elements that share a scale, two per byte, the first in the low four bits

static void dequantize_mxfp4_row(const mlx_packing_t *p, int64_t row, float *out) {
  static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  const int64_t blocks = p->columns / BLOCK;
  const uint8_t *scales = p->parts[MLX_PART_SCALES]->data + row * blocks;
  const uint8_t *codes = p->parts[MLX_PART_CODES]->data + row * blocks * (BLOCK / 2);
  for (int64_t i = 0; i < blocks; ++i, codes += BLOCK / 2) {
    float scaled[16];  // by ldexpf: 0.5 * 2^128 is finite, but 2^128 itself is not
    for (int k = 0; k < 16; ++k) scaled[k] = ldexpf(values[k], scales[i] - 127);
    for (int k = 0; k < BLOCK; ++k) *out++ = scaled[codes[k / 2] >> k % 2 * 4 & 15];
  }
}

// ----------------------------------------------------------------------------------------------------------
// Codes

bool mlx_packing_has_codes(const mlx_packing_t *p) {
  const mlx_tensor_t *groups = p->parts[MLX_PART_GROUPS];
  if (p->group % MLX_CODES) return false;
  for (int64_t i = 0; groups && !p->order && i < p->columns; ++i) {
    if (group_of(p, i) != i / p->group) return false;
  }
  return true;
}

static void set_scale(mlx_codes_t *out, float scale, float offset) {
  out->scale[0] = out->scale[1] = scale;
  out->offset[0] = out->offset[1] = offset;
}

static void read_mlx_codes(const mlx_packing_t *p, int64_t row, int64_t nth, mlx_codes_t *out) {
  const int64_t at = row * (p->columns / p->group) + nth * MLX_CODES / p->group;
  set_scale(out, load_float(p->parts[MLX_PART_SCALES], at), load_float(p->parts[MLX_PART_OFFSETS], at));
  int64_t word = row * (p->columns * p->bits / 32) + nth * p->bits;  // 32 codes are whole words
  uint64_t held = 0;
  int held_bits = 0;
  for (int i = 0; i < MLX_CODES; ++i) {
    if (held_bits < p->bits) {
      held |= (uint64_t)load_u32(p->parts[MLX_PART_CODES]->data, word++) << held_bits;
      held_bits += 32;
    }
    out->code[i] = (int16_t)(held & ((1u << p->bits) - 1));
    held >>= p->bits;
    held_bits -= p->bits;
  }
}

// Codes are doubled, so that they are integers.
static void read_mxfp4_codes(const mlx_packing_t *p, int64_t row, int64_t nth, mlx_codes_t *out) {
  const int64_t block = row * (p->columns / BLOCK) + nth;
  const uint8_t *codes = p->parts[MLX_PART_CODES]->data + block * (BLOCK / 2);
  set_scale(out, mlx_mxfp4_half_scale(p->parts[MLX_PART_SCALES]->data[block]), 0);
  for (int i = 0; i < MLX_CODES; i += 2) {
    out->code[i] = mlx_mxfp4_doubled[codes[i / 2] & 15];
    out->code[i + 1] = mlx_mxfp4_doubled[codes[i / 2] >> 4];
  }
}

void mlx_packing_codes(const mlx_packing_t *p, int64_t row, int64_t nth, mlx_codes_t *out) {
  if (p->kind == MLX_PACKED_MLX) {
    read_mlx_codes(p, row, nth, out);
    return;
  }
  if (p->kind == MLX_PACKED_MXFP4) {
    read_mxfp4_codes(p, row, nth, out);
    return;
  }
  const int64_t group = nth * MLX_CODES / p->group;
  const float scale = load_float(p->parts[MLX_PART_SCALES], group * p->rows + row);
  const int zero = zero_of(p, group, row);
  const bool offset =
      p->parts[MLX_PART_SCALES]->dtype == MLX_BF16;  // no CPU panel has bf16 scales without offsets
  set_scale(out, scale, offset ? scale * (float)-zero : 0);
  for (int i = 0; i < MLX_CODES; i += WORD_CODES) {
    int codes[WORD_CODES];
    load_codes(p, row, nth * MLX_CODES + i, codes);
    for (int k = 0; k < WORD_CODES; ++k) out->code[i + k] = (int16_t)(codes[k] - (offset ? 0 : zero));
  }
}

void mlx_packing_dequantize(const mlx_packing_t *p, int64_t first, int64_t count, float *out) {
  if (p->kind == MLX_PACKED_GPTQ || p->kind == MLX_PACKED_AWQ) {
    for (int64_t column = 0; column < p->columns; column += WORD_CODES)
      dequantize_columns(p, first, count, column, out + column);
    return;
  }
  for (int64_t i = 0; i < count; ++i, out += p->columns) {
    if (p->kind == MLX_PACKED_MLX)
      dequantize_mlx_row(p, first + i, out);
    else
      dequantize_mxfp4_row(p, first + i, out);
  }
}
