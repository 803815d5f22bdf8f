// Quantise: plain numbers as integer codes, made when a model is compiled. The same numbers give the same
// codes on every machine.
#ifndef MLXCEL_COMPILER_QUANTIZE_H_
#define MLXCEL_COMPILER_QUANTIZE_H_

#include "graph/codes.h"

typedef enum mlx_quantize {
  MLX_QUANTIZE_NONE,
  MLX_QUANTIZE_Q4_0,  // 4 bits, a scale for 32
  MLX_QUANTIZE_Q4_1,  // 4 bits, a scale and an offset for 32
  MLX_QUANTIZE_Q8_0,  // 8 bits, a scale for 32
} mlx_quantize_t;

// From what --quantize may be: "q4" and "q8", which are "q4_1" and "q8_0" (docs/quantisation.md says why), or
// a type by its own name. NULL is MLX_QUANTIZE_NONE.
mlx_status_t mlx_quantize_parse(const char *text, mlx_quantize_t *out_kind) MLX_MUST_USE;
const char *mlx_quantize_name(mlx_quantize_t kind);  // "q4_1"
mlx_dtype_t mlx_quantize_dtype(
    mlx_quantize_t kind);  // GGUF's type of the same layout; not of MLX_QUANTIZE_NONE
// What the embedding and the head get, which spoil more than they save in 4 bits: never less than 8.
mlx_quantize_t mlx_quantize_of_vocabulary(mlx_quantize_t kind);

// 32 numbers as the codes whose squared error is the least of a small search; scales and offsets are numbers
// that f16 has. False when one of them is not finite.
bool mlx_quantize_block(mlx_quantize_t kind, const float x[MLX_CODES], mlx_codes_t *out);

#endif  // MLXCEL_COMPILER_QUANTIZE_H_
