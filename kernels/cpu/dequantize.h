// Panels as f32 values.
#ifndef MLXCEL_KERNELS_CPU_DEQUANTIZE_H_
#define MLXCEL_KERNELS_CPU_DEQUANTIZE_H_

#include "layout.h"

// Columns [from, from + count) to out[column * step][16]; |from| is a multiple of the block.
void mlx_dequantize_panel(int32_t format, const uint8_t *panel, int from, int count, float *out,
                          int64_t step);
// Row |row| of a matrix.
void mlx_dequantize_row(int32_t format, const uint8_t *matrix, int row, int columns, float *out);

#endif  // MLXCEL_KERNELS_CPU_DEQUANTIZE_H_
