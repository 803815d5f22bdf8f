// Element types and weight formats: the one table that describes them (dtype.c).
#ifndef MLXCEL_GRAPH_DTYPE_H_
#define MLXCEL_GRAPH_DTYPE_H_

#include <stdint.h>

#include "base/status.h"
#include "kernels/cpu/panel_format.h"

typedef enum mlx_dtype {
  MLX_F32 = 0,
  MLX_F16,
  MLX_BF16,
  MLX_I32,
  MLX_I64,
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

// One row per type: every fact about a weight format that import, storage and `mlxcel show` use. mlx_tiles_of
// has the GPU tile format.
typedef struct mlx_dtype_info {
  const char *name;          // as GGUF and users write it: "F32", "Q4_1"
  const char *mlir;          // element type in MLIR; NULL for quantized types
  const char *safetensors;   // dtype in a safetensors header; NULL if it has none
  int gguf_type;             // ggml_type number; -1 if it has none
  size_t block_elements;     // elements stored together; 1 for types that are not quantized
  size_t block_bytes;        // bytes of such a block
  mlx_panel_format_t panel;  // CPU panel format that holds the same values; or MLX_PANEL_NONE
  // Dequantizes |blocks| whole blocks to f32, bit for bit as the gguf Python package does. NULL for types
  // that no weight has.
  void (*to_f32)(const uint8_t *source, size_t blocks, float *out);
  // Rounds |count| floats to the nearest value, ties to even. Values too large for f16 become infinite; a NaN
  // becomes a quiet NaN. |out| needs no alignment. NULL for types that weights are never converted to.
  void (*from_f32)(const float *source, size_t count, uint8_t *out);
} mlx_dtype_info_t;

// Never NULL for a valid enum value.
const mlx_dtype_info_t *mlx_dtype_info(mlx_dtype_t dtype);

bool mlx_dtype_is_quantized(mlx_dtype_t dtype);
double mlx_dtype_bits(mlx_dtype_t dtype);  // per element, scales and offsets included: 4.5 for Q4_0

// Parses a type that weights can be converted to (from_f32), by its MLIR name: "f32", "f16", "bf16". Fails
// with MLX_USAGE and a hint that lists them.
mlx_status_t mlx_dtype_parse(const char *name, mlx_dtype_t *out_dtype) MLX_MUST_USE;

// Bytes of a tensor with these dims. False if a dim is negative, the size overflows, or the innermost dim is
// no multiple of the block.
bool mlx_dtype_tensor_bytes(mlx_dtype_t dtype, int rank, const int64_t *dims, size_t *out_bytes);

#endif  // MLXCEL_GRAPH_DTYPE_H_
