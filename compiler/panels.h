// Panels: matrices as the CPU's kernel reads them, 16 rows together (kernels/cpu/network.h has the layouts).
#ifndef MLXCEL_COMPILER_PANELS_H_
#define MLXCEL_COMPILER_PANELS_H_

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/network.h"
#include "models/dtype.h"

// False when there are no panels of |dtype|.
bool mlx_panel_format(mlx_dtype_t dtype, mlx_panel_format_t *out_format);

// Bytes of a matrix; |columns| are whole blocks of the format's dtype.
uint64_t mlx_panels_bytes(mlx_panel_format_t format, int64_t rows, int64_t columns);

// Packs 16 rows of |columns| elements, as |dtype| stores them, |row_bytes| apart, into one panel of its format at |out|. Of the rows
// only |count| are there, the others are zero. Nothing is rounded.
void mlx_panel_pack(mlx_dtype_t dtype, const uint8_t *rows, size_t row_bytes, int64_t count, int64_t columns, uint8_t *out);

#endif  // MLXCEL_COMPILER_PANELS_H_
