// Quantize: converts floats to integer codes when a model is compiled. Equal floats give equal codes on every
// machine and with every C compiler.
#ifndef MLXCEL_COMPILER_QUANTIZE_H_
#define MLXCEL_COMPILER_QUANTIZE_H_

#include "graph/codes.h"

typedef enum mlx_quantize {
  MLX_QUANTIZE_NONE,
  MLX_QUANTIZE_Q4_0,  // 4 bits, one scale per 32 weights
  MLX_QUANTIZE_Q4_1,  // 4 bits, one scale and one offset per 32 weights
  MLX_QUANTIZE_Q8_0,  // 8 bits, one scale per 32 weights
} mlx_quantize_t;

// Parses the value of --quantize: "q4" (q4_1), "q8" (q8_0), or a type by its name. docs/quantization.md
// explains the choice. NULL gives MLX_QUANTIZE_NONE.
mlx_status_t mlx_quantize_parse(const char *text, mlx_quantize_t *out_kind) MLX_MUST_USE;
const char *mlx_quantize_name(mlx_quantize_t kind);   // "q4_1"
mlx_dtype_t mlx_quantize_dtype(mlx_quantize_t kind);  // the GGUF type with the same layout; not for NONE
// The type for embedding and head. They get at least 8 bits: 4 bits would cost more accuracy than memory is
// worth.
mlx_quantize_t mlx_quantize_of_vocabulary(mlx_quantize_t kind);

// Quantizes 32 floats by a small search for the least squared error. Scales and offsets are exact in f16.
// False if a float is not finite.
bool mlx_quantize_block(mlx_quantize_t kind, const float x[MLX_CODES], mlx_codes_t *out);

#endif  // MLXCEL_COMPILER_QUANTIZE_H_
