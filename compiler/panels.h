// Panels: matrices as the CPU kernel reads them, 16 rows together (kernels/cpu/panel_format.h).
#ifndef MLXCEL_COMPILER_PANELS_H_
#define MLXCEL_COMPILER_PANELS_H_

#include <stdbool.h>
#include <stddef.h>

#include "graph/codes.h"
#include "graph/dtype.h"
#include "kernels/cpu/panel_format.h"
#include "models/import/packing.h"

// A row of MLX_PANEL_TABLE, which documents the columns.
typedef struct mlx_panel_info {
  const char *name;  // for users
  mlx_dtype_t number;
  int scales, offsets;
  int code_bits;  // 0: plain values
  int least_code;
  mlx_panel_values_t values;
  bool grouped;
} mlx_panel_info_t;
const mlx_panel_info_t *mlx_panel_info(mlx_panel_format_t format);

double mlx_panel_bits(mlx_panel_format_t format);  // per weight, scales and offsets included

// The format that holds exactly the values of a quantized checkpoint matrix; false if there is none. For a
// dtype see mlx_dtype_info_t.panel.
bool mlx_panel_format_of_packing(const mlx_packing_t *packing, mlx_panel_format_t *out_format);

// Bytes of a matrix. |columns| is a multiple of the format's block.
uint64_t mlx_panels_bytes(mlx_panel_format_t format, int64_t rows, int64_t columns);

// Writes |count| rows of plain values, |row_bytes| apart, as one panel at |out|. Missing rows become zero.
void mlx_panel_pack(mlx_panel_format_t format, const uint8_t *rows, size_t row_bytes, int64_t count,
                    int64_t columns, uint8_t *out);
// Writes block |nth| of row |row| into a panel that the caller zeroed. Does not round: the format must hold
// the values of |codes| exactly.
void mlx_panel_put(mlx_panel_format_t format, const mlx_codes_t *codes, int64_t row, int64_t nth,
                   uint8_t *panel);
// Writes 16 whole rows as they are in a file, in the panel format of their own type: the bytes that
// mlx_panel_put writes for the codes of mlx_codes_read. False for a type without codes, and for numbers that
// are not finite; the panel is then undefined.
bool mlx_panel_copy(mlx_dtype_t dtype, const uint8_t *const rows[MLX_PANEL_ROWS], int64_t columns,
                    uint8_t *panel);

#endif  // MLXCEL_COMPILER_PANELS_H_
