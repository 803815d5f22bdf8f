// The integers inside the packed types, for whoever computes with them instead of widening.
#ifndef MLXCEL_GRAPH_CODES_H_
#define MLXCEL_GRAPH_CODES_H_

#include "graph/dtype.h"

#define MLX_CODES 32

// 32 neighbouring elements: element i is scale[i / 16] * code[i] + offset[i / 16], the product rounded before
// the sum, bit for bit what widening gives but for the sign of zeros.
typedef struct mlx_codes {
  float scale[2], offset[2];
  int16_t code[MLX_CODES];  // -128 to 255
  // Of the K types and IQ4_XS, whose 256 neighbours share a scale and an offset: those, and by what integers
  // of 8 bits they are multiplied to be the ones above.
  float block_scale, block_offset;
  int16_t scale_factor[2], offset_factor[2];
} mlx_codes_t;

// Elements 32 |nth| and on of a |row|. False for a type without integers.
bool mlx_codes_read(mlx_dtype_t dtype, const uint8_t *row, size_t nth, mlx_codes_t *out);

#endif  // MLXCEL_GRAPH_CODES_H_
