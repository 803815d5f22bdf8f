// Codes: the integers and scales inside quantized types, for code that computes with them directly.
#ifndef MLXCEL_GRAPH_CODES_H_
#define MLXCEL_GRAPH_CODES_H_

#include "graph/dtype.h"

#define MLX_CODES 32

// 32 consecutive elements. Element i is scale[i / 16] * code[i] + offset[i / 16], with the product rounded
// before the sum. The result equals to_f32 bit for bit, except for the sign of zeros.
typedef struct mlx_codes {
  float scale[2], offset[2];
  int16_t code[MLX_CODES];  // -128 to 255
  // K types and IQ4_XS only: the scale and offset of the super-block of 256 elements, and the 8-bit integers
  // that multiply them to give |scale| and |offset|.
  float block_scale, block_offset;
  int16_t scale_factor[2], offset_factor[2];
} mlx_codes_t;

// Reads elements 32 * |nth| to 32 * |nth| + 31 of |row|. False for a type without codes.
bool mlx_codes_read(mlx_dtype_t dtype, const uint8_t *row, size_t nth, mlx_codes_t *out);

#endif  // MLXCEL_GRAPH_CODES_H_
