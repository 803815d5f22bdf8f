// Element types: one table from a type to everything the rest of the tree asks about it.
#ifndef MLXCEL_GRAPH_DTYPE_H_
#define MLXCEL_GRAPH_DTYPE_H_

#include <stdint.h>

#include "base/status.h"

typedef enum mlx_dtype {
  MLX_F32 = 0,
  MLX_F16,
  MLX_BF16,
  MLX_I32,
  MLX_U32,
  MLX_U8,
  MLX_I1,
  MLX_Q4_0,
  MLX_Q4_1,
  MLX_Q5_0,
  MLX_Q5_1,
  MLX_Q8_0,
  MLX_Q2_K,
  MLX_Q3_K,
  MLX_Q4_K,
  MLX_Q5_K,
  MLX_Q6_K,
  MLX_IQ4_NL,
  MLX_IQ4_XS,
  MLX_MXFP4,
  MLX_DTYPE_COUNT,
} mlx_dtype_t;

typedef struct mlx_dtype_info {
  const char *name;         // as GGUF and people write it: "F32", "Q4_1"
  const char *mlir;         // element type in MLIR; NULL for packed types
  const char *safetensors;  // dtype in a safetensors header; NULL when it has none
  int gguf_type;            // ggml_type number; -1 when it has none
  size_t block_elements;    // elements stored together
  size_t block_bytes;
  // Widens |blocks| whole blocks to f32, bit for bit as the gguf Python package does. NULL for non-weight
  // types.
  void (*to_f32)(const uint8_t *source, size_t blocks, float *out);
  // Rounds |count| floats to the nearest value, ties to even; too large for f16 is infinite, a NaN stays one
  // and becomes quiet. |out| needs no alignment. NULL for types that nothing is rounded to.
  void (*from_f32)(const float *source, size_t count, uint8_t *out);
} mlx_dtype_info_t;

// Never NULL for a valid enum value.
const mlx_dtype_info_t *mlx_dtype_info(mlx_dtype_t dtype);

// The type that a compiled model can be asked to store weights as, by its name in MLIR: those with a
// from_f32. Another name is MLX_USAGE, with a hint that lists them.
mlx_status_t mlx_dtype_parse(const char *name, mlx_dtype_t *out_dtype) MLX_MUST_USE;

// Bytes of a tensor with these dims; false when it overflows, a dim is negative, or the innermost dim is not
// whole blocks.
bool mlx_dtype_tensor_bytes(mlx_dtype_t dtype, int rank, const int64_t *dims, size_t *out_bytes);

#endif  // MLXCEL_GRAPH_DTYPE_H_
