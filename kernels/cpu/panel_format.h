// Panel formats: how the CPU kernel stores a matrix, 16 rows together. Freestanding C, because kernels/cpu,
// graph/ and compiler/ include it. layout.h describes the bytes of each format in words.
#ifndef MLXCEL_KERNELS_CPU_PANEL_FORMAT_H_
#define MLXCEL_KERNELS_CPU_PANEL_FORMAT_H_

#include <stdint.h>

#define MLX_PANEL_ROWS 16
#define MLX_PANEL_BLOCK 32  // columns in a quantized block
#define MLX_PANEL_GROUP 8   // blocks in a super-block of the K formats

// One row per panel format. All sizes of a panel derive from it.
//
//   number   type of the values; of the scales and offsets of a quantized format. U8: the exponent of a
//            power of two (MLX_PANEL_POWER_BIAS)
//   scales   per row and block of 32 columns: 0, 1, or 2 (one for each 16 columns)
//   offsets  as scales
//   bits     of a code: 4, 5, 6 or 8; 0: the format stores plain values
//   least    smallest code. Codes of less than 8 bits are stored as code - least; 8-bit codes are signed if
//            least < 0
//   values   table of the values of the codes, or PLAIN: a code is its own value
//   grouped  1: scales and offsets are bytes, signed if the format has no offsets. They multiply one number
//            for a super-block of 256 columns: a scale and, if the format has offsets, an offset
// clang-format off
//  format     number scales offsets bits least values grouped text for users
#define MLX_PANEL_TABLE(X) \
  X(F32,       F32,  0, 0, 0, 0,    PLAIN, 0, "f32") \
  X(F16,       F16,  0, 0, 0, 0,    PLAIN, 0, "f16") \
  X(BF16,      BF16, 0, 0, 0, 0,    PLAIN, 0, "bf16") \
  X(Q4_0,      F16,  1, 0, 4, -8,   PLAIN, 0, "4-bit codes, a scale in f16") \
  X(Q4_1,      F16,  1, 1, 4, 0,    PLAIN, 0, "4-bit codes, scale and offset in f16") \
  X(Q5_0,      F16,  1, 0, 5, -16,  PLAIN, 0, "5-bit codes, a scale in f16") \
  X(Q5_1,      F16,  1, 1, 5, 0,    PLAIN, 0, "5-bit codes, scale and offset in f16") \
  X(Q8_0,      F16,  1, 0, 8, -128, PLAIN, 0, "8-bit codes, a scale in f16") \
  X(Q4_WIDE,   F32,  1, 1, 4, 0,    PLAIN, 0, "4-bit codes, scale and offset in f32") \
  X(Q8_WIDE,   F32,  1, 1, 8, 0,    PLAIN, 0, "8-bit codes, scale and offset in f32") \
  X(Q8_HALVES, F32,  2, 0, 8, -128, PLAIN, 0, "8-bit codes, two scales in f32") \
  X(Q8_1,      F16,  1, 1, 8, 0,    PLAIN, 0, "8-bit codes, scale and offset in f16") \
  X(Q4_BF16,   BF16, 1, 1, 4, 0,    PLAIN, 0, "4-bit codes, scale and offset in bf16") \
  X(Q8_BF16,   BF16, 1, 1, 8, 0,    PLAIN, 0, "8-bit codes, scale and offset in bf16") \
  X(IQ4_NL,    F16,  1, 0, 4, 0,    IQ4,   0, "4-bit codes of a table, a scale in f16") \
  X(MXFP4,     U8,   1, 0, 4, 0,    MXFP4, 0, "4-bit floats, a power of two") \
  X(Q4_K,      F16,  1, 1, 4, 0,    PLAIN, 1, "4-bit codes, scale and offset of 8 bits times f16") \
  X(Q5_K,      F16,  1, 1, 5, 0,    PLAIN, 1, "5-bit codes, scale and offset of 8 bits times f16") \
  X(Q6_K,      F16,  2, 0, 6, -32,  PLAIN, 1, "6-bit codes, two scales of 8 bits times f16") \
  X(Q2_K,      F16,  2, 2, 4, 0,    PLAIN, 1, "4-bit codes, two scales and offsets of 8 bits times f16") \
  X(Q3_K,      F16,  2, 0, 4, -4,   PLAIN, 1, "4-bit codes, two scales of 8 bits times f16") \
  X(IQ4_XS,    F16,  1, 0, 4, 0,    IQ4,   1, "4-bit codes of a table, a scale of 8 bits times f16")
// clang-format on

#define MLX_PANEL_BYTES_F32 4
#define MLX_PANEL_BYTES_F16 2
#define MLX_PANEL_BYTES_BF16 2
#define MLX_PANEL_BYTES_U8 1

// An exponent e stands for 2^(e - MLX_PANEL_POWER_BIAS).
#define MLX_PANEL_POWER_BIAS 128

// Tables of values, for 16 codes. MXFP4 values are doubled, so that they are integers.
typedef enum mlx_panel_values {
  MLX_PANEL_VALUES_PLAIN,
  MLX_PANEL_VALUES_IQ4,
  MLX_PANEL_VALUES_MXFP4
} mlx_panel_values_t;
#define MLX_PANEL_IQ4 -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define MLX_PANEL_MXFP4_DOUBLED 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

typedef enum mlx_panel_format {
#define MLX_PANEL_ENUM(format, ...) MLX_PANEL_##format,
  MLX_PANEL_TABLE(MLX_PANEL_ENUM)
#undef MLX_PANEL_ENUM
      MLX_PANEL_FORMATS,
  MLX_PANEL_NONE = MLX_PANEL_FORMATS  // for types that no weight has
} mlx_panel_format_t;

// Bytes of the numbers at the start of a super-block; 0 for formats without super-blocks.
#define MLX_PANEL_GROUP_BYTES(number, offsets, grouped) \
  ((grouped) * MLX_PANEL_ROWS * MLX_PANEL_BYTES_##number * ((offsets) ? 2 : 1))

// Bytes of a panel per 32 columns, with the block's share of the super-block's numbers. A panel of plain
// values may have any number of columns, not only a multiple of 32.
static inline int64_t mlx_panel_block_bytes(int32_t format) {
  switch (format) {
#define MLX_PANEL_CASE(format, number, scales, offsets, bits, least, values, grouped, text)                  \
  case MLX_PANEL_##format:                                                                                   \
    return (bits) ? MLX_PANEL_ROWS * (MLX_PANEL_BLOCK * (bits) / 8 +                                         \
                                      ((scales) + (offsets)) * ((grouped) ? 1 : MLX_PANEL_BYTES_##number)) + \
                        MLX_PANEL_GROUP_BYTES(number, offsets, grouped) / MLX_PANEL_GROUP                    \
                  : MLX_PANEL_ROWS * MLX_PANEL_BLOCK * MLX_PANEL_BYTES_##number;
    MLX_PANEL_TABLE(MLX_PANEL_CASE)
#undef MLX_PANEL_CASE
    default: return 0;
  }
}

static inline int64_t mlx_panel_group_bytes(int32_t format) {
  switch (format) {
#define MLX_PANEL_CASE(format, number, scales, offsets, bits, least, values, grouped, text) \
  case MLX_PANEL_##format: return MLX_PANEL_GROUP_BYTES(number, offsets, grouped);
    MLX_PANEL_TABLE(MLX_PANEL_CASE)
#undef MLX_PANEL_CASE
    default: return 0;
  }
}

// Bytes from one block to the next one of the same super-block.
static inline int64_t mlx_panel_block_stride(int32_t format) {
  return mlx_panel_block_bytes(format) - mlx_panel_group_bytes(format) / MLX_PANEL_GROUP;
}

// Byte offset of block |nth| in a panel.
static inline int64_t mlx_panel_block_at(int32_t format, int64_t nth) {
  return nth * mlx_panel_block_stride(format) + (nth / MLX_PANEL_GROUP + 1) * mlx_panel_group_bytes(format);
}

static inline int64_t mlx_panel_bytes(int32_t format, int64_t columns) {
  if (format == MLX_PANEL_BF16) columns += columns % 2;  // stored in pairs
  return mlx_panel_block_bytes(format) * columns / MLX_PANEL_BLOCK;
}

#endif  // MLXCEL_KERNELS_CPU_PANEL_FORMAT_H_
