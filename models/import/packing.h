// Quantized matrices of Hugging Face directories. One matrix is stored as several tensors: integer codes, and
// the scales and offsets that dequantize them. A row is an output and a column an input, as in the matrix
// that Hugging Face would store unquantized.
//
//   MLX    NAME.weight   u32 [rows, columns * bits / 32]
//          NAME.scales   [rows, groups]
//          NAME.biases   [rows, groups]
//   GPTQ   NAME.qweight  i32 [columns / 8, rows]
//          NAME.scales   [groups, rows]
//          NAME.qzeros   i32 [groups, rows / 8]
//          NAME.g_idx    i32 [columns], the group of each column; if missing, column / group
//   AWQ    NAME.qweight  i32 [columns, rows / 8], eight rows interleaved in a word
//          NAME.scales   [groups, rows]
//          NAME.qzeros   i32 [groups, rows / 8], interleaved as qweight
//   MXFP4  NAME_blocks   u8 [experts, rows, columns / 32, 16]
//          NAME_scales   u8 [experts, rows, columns / 32]
#ifndef MLXCEL_MODELS_IMPORT_PACKING_H_
#define MLXCEL_MODELS_IMPORT_PACKING_H_

#include <stdbool.h>
#include <stdint.h>

#include "graph/codes.h"
#include "models/tensor.h"

typedef enum mlx_packing_kind {
  MLX_NOT_PACKED = 0,
  MLX_PACKED_MLX,
  MLX_PACKED_GPTQ,
  MLX_PACKED_AWQ,
  MLX_PACKED_MXFP4,
  MLX_PACKING_COUNT,
} mlx_packing_kind_t;

const char *mlx_packing_name(mlx_packing_kind_t kind);  // "GPTQ"; not of MLX_NOT_PACKED

typedef enum mlx_packed_part {
  MLX_PART_CODES = 0,
  MLX_PART_SCALES,
  MLX_PART_OFFSETS,  // MLX: biases, in the scales' type; GPTQ and AWQ: zero points
  MLX_PART_GROUPS,   // the group of each column
  MLX_PART_COUNT,
} mlx_packed_part_t;

typedef struct mlx_packing {
  mlx_packing_kind_t kind;
  int bits;               // per code; 4 except for MLX
  int64_t stack;          // matrices under one name; 0: a single matrix. Every part then has |stack| of them
  int64_t rows, columns;  // rows of all stacked matrices together
  int64_t group;          // columns that share a scale; divides columns
  bool zeros_minus_one;   // GPTQ version 1 stores zero point - 1
  bool symmetric;         // GPTQ, AWQ: every zero point is MLX_SYMMETRIC_ZERO
  // GPTQ in act order: column i below is column order[i] of the file, and belongs to group i / group (see
  // mlx_packing_sort_columns). Borrowed; NULL: columns are in the order of the file.
  const int32_t *order;
  const mlx_tensor_t *parts[MLX_PART_COUNT];  // borrowed from the source, shapes checked; NULL: no such part
} mlx_packing_t;

// Dequantizes |count| rows from |first| on into |out| [count, columns], in f32 arithmetic:
//
//   MLX         scale * code + bias, with the product rounded before the sum
//   GPTQ, AWQ   scale * (code - zero), exact for 16-bit scales
//   MXFP4       2^(scale - 127) * e2m1, exact, or infinite on overflow
//
// Columns are in packing->order. Pass a few dozen rows at a time: GPTQ and AWQ store columns, so neighbouring
// rows share cache lines.
void mlx_packing_dequantize(const mlx_packing_t *packing, int64_t first, int64_t count, float *out);

// Whether a matrix of GPTQ or AWQ has no other zero point than MLX_SYMMETRIC_ZERO. Reads all of them.
#define MLX_SYMMETRIC_ZERO 8
bool mlx_packing_is_symmetric(const mlx_packing_t *packing);

// GPTQ's act order quantizes the columns by importance, so that the columns of a group are not adjacent.
// Writes the order that sorts them by group to |out_order| [columns]; columns of a group stay in the order of
// the file. False if there is nothing to sort, if groups differ in size, or if a block of 32 sorted columns
// would need more than one scale. |starts|: [columns / group], scratch memory.
bool mlx_packing_sort_columns(const mlx_packing_t *packing, int64_t *starts, int32_t *out_order);

// True if mlx_packing_codes works: all blocks of 32 neighbouring columns share one scale. False for shorter
// groups and for GPTQ's act order without packing->order. Reads GPTQ's group indices.
bool mlx_packing_has_codes(const mlx_packing_t *packing);
// Reads the codes of columns 32 * |nth| to 32 * |nth| + 31 of |row|. MLX: codes as stored. GPTQ and AWQ:
// code - zero and no offset; with bf16 scales codes as stored and the offset -zero * scale, which is exact in
// f32. MXFP4: twice the value of each code, and half the scale.
void mlx_packing_codes(const mlx_packing_t *packing, int64_t row, int64_t nth, mlx_codes_t *out);

#endif  // MLXCEL_MODELS_IMPORT_PACKING_H_
