// Panels: matrices as the CPU's kernel reads them, 16 rows together (kernels/cpu/layout.h has the layouts),
// and the table of what each format holds, for whoever writes such matrices or computes with them.
#ifndef MLXCEL_COMPILER_PANELS_H_
#define MLXCEL_COMPILER_PANELS_H_

#include <stdbool.h>
#include <stddef.h>

#include "graph/codes.h"
#include "graph/dtype.h"
#include "kernels/cpu/layout.h"
#include "models/import/packing.h"

// What a block of 32 columns of a row holds, in this order: scales, offsets, codes.
typedef struct mlx_panel_info {
  const char *name;     // for people
  mlx_dtype_t number;   // of plain numbers; of the scales and offsets where there are codes
  int scales, offsets;  // for the 32: 0, 1, or 2 for 16 each
  int code_bits;        // 4 or 8; 0: plain numbers
  int least_code;  // 4 bits are stored so much higher, from 0 on; 8 bits are signed when this is less than 0
  bool
      grouped;  // scales and offsets are integers of 8 bits, signed where codes are, that multiply one number
                // for 256 columns: a scale and, where there are offsets, an offset, before the 8 blocks
} mlx_panel_info_t;
const mlx_panel_info_t *mlx_panel_info(mlx_panel_format_t format);

// Bits of a weight, scales and offsets included.
double mlx_panel_bits(mlx_panel_format_t format);

// The format that holds the very numbers of a dtype, or of a packed matrix; false when there is none.
bool mlx_panel_format(mlx_dtype_t dtype, mlx_panel_format_t *out_format);
bool mlx_panel_format_of_packing(const mlx_packing_t *packing, mlx_panel_format_t *out_format);

// Bytes of a matrix; |columns| are whole blocks of the format's dtype.
uint64_t mlx_panels_bytes(mlx_panel_format_t format, int64_t rows, int64_t columns);

// Packs |count| rows of plain numbers, |row_bytes| apart, into one panel at |out|; rows past those are zero.
void mlx_panel_pack(mlx_panel_format_t format, const uint8_t *rows, size_t row_bytes, int64_t count,
                    int64_t columns, uint8_t *out);
// Puts block |nth| of row |row| of a panel that was zero before. Nothing is rounded: the format must be one
// that holds what |codes| has.
void mlx_panel_put(mlx_panel_format_t format, const mlx_codes_t *codes, int64_t row, int64_t nth,
                   uint8_t *panel);

#endif  // MLXCEL_COMPILER_PANELS_H_
