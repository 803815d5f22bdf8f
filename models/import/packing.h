// Packed matrices of Hugging Face directories: one matrix stored as several tensors, integer codes beside
// what widens them.
//
//   MLX   NAME.weight  u32 [rows, columns * bits / 32]   NAME.scales [rows, groups]  NAME.biases [rows,
//   groups] GPTQ  NAME.qweight i32 [columns / 8, rows]           NAME.scales [groups, rows]  NAME.qzeros i32
//   [groups, rows / 8]
//         NAME.g_idx   i32 [columns], the group of each column; where it is not there, column / group
//   AWQ   NAME.qweight i32 [columns, rows / 8]           NAME.scales and NAME.qzeros as GPTQ, codes of eight
//   rows interleaved MXFP4 NAME_blocks  u8 [experts, rows, columns / 32, 16]  NAME_scales u8 [experts, rows,
//   columns / 32], matrices of experts
//
// A row is an output and a column an input, as in the matrix that Hugging Face would have stored plainly.
#ifndef MLXCEL_MODELS_IMPORT_PACKING_H_
#define MLXCEL_MODELS_IMPORT_PACKING_H_

#include <stdbool.h>
#include <stdint.h>

#include "graph/codes.h"

typedef struct mlx_tensor mlx_tensor_t;

typedef enum mlx_packing_kind {
  MLX_NOT_PACKED = 0,
  MLX_PACKED_MLX,
  MLX_PACKED_GPTQ,
  MLX_PACKED_AWQ,
  MLX_PACKED_MXFP4,
  MLX_PACKING_COUNT,
} mlx_packing_kind_t;

typedef enum mlx_packed_part {
  MLX_PART_CODES = 0,
  MLX_PART_SCALES,
  MLX_PART_OFFSETS,  // MLX: biases, in the scales' type; GPTQ and AWQ: zero points
  MLX_PART_GROUPS,   // the group of each column
  MLX_PART_COUNT,
} mlx_packed_part_t;

typedef struct mlx_packing {
  mlx_packing_kind_t kind;
  int bits;  // of a code; 4 for all but MLX
  int64_t
      stack;  // matrices under one name: every part has that many, and rows counts those of all; 0: it is one
  int64_t rows, columns;
  int64_t group;                              // columns that share a scale; divides columns
  bool zeros_less_one;                        // GPTQ's first format stores its zero points less one
  const mlx_tensor_t *parts[MLX_PART_COUNT];  // borrowed from the source, shapes checked; NULL where the kind
                                              // has no such part
} mlx_packing_t;

// Widens |count| rows from |first| on into |out| [count, columns], in f32 arithmetic on the stored scales:
//   MLX         scale * code + bias, the product rounded before the sum
//   GPTQ, AWQ   scale * (code - zero), which is exact for scales of 16 bits
//   MXFP4       2^(scale - 127) * e2m1, which is exact, or infinite where it is too large
// A few dozen rows at a time are best: GPTQ and AWQ store columns, so neighbouring rows share what is read.
void mlx_packing_widen(const mlx_packing_t *packing, int64_t first, int64_t count, float *out);

// Whether 32 neighbouring columns share a scale everywhere, so that the matrix has codes: not where groups
// are shorter or columns lie in groups out of order (GPTQ's act order), and not for MXFP4, which is of
// experts. Reads the groups of GPTQ.
bool mlx_packing_has_codes(const mlx_packing_t *packing);
// Columns 32 |nth| and on of |row| of such a matrix. MLX: the codes as stored. GPTQ and AWQ: as stored with
// -zero * scale for an offset where that is exact, which it is for scales of 16 bits; otherwise less their
// zero point, without offset.
void mlx_packing_codes(const mlx_packing_t *packing, int64_t row, int64_t nth, mlx_codes_t *out);

#endif  // MLXCEL_MODELS_IMPORT_PACKING_H_
