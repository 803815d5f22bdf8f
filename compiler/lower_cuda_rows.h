// Launches of kernels/cuda/rows.cu: embedding rows, norms, column orders, functions of single numbers and
// tables of RoPE. They replace dispatches that IREE would compile for each step.
#ifndef MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_
#define MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_

#include "compiler/function.h"
#include "kernels/kernel_tables.h"

// |factor| times the rows of a 16-bit |table|.
mlx_built_t mlx_cuda_embed(mlx_function_t *g, const char *name, mlx_built_t table, mlx_built_t tokens,
                           double factor);
// The RMS norm of each |width| numbers of |x| [M, a multiple of width], plus |addend| if it has an id. |gain|
// has |width| numbers, or as many as a row of |x|.
mlx_built_t mlx_cuda_rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, int64_t width,
                             mlx_built_t gain, double eps, mlx_built_t addend);
// The RMS norm of each row of |x|, with its columns in |order|.
mlx_built_t mlx_cuda_ordered_rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t gain,
                                     double eps, mlx_built_t order);
// The columns of |x| in |order|.
mlx_built_t mlx_cuda_permute(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t order);
// Columns [start, start + count) of each head of |x| [M, heads * head_dim].
mlx_built_t mlx_cuda_head_columns(mlx_function_t *g, const char *name, mlx_built_t x, int64_t head_dim,
                                  int64_t start, int64_t count);
// The layer norm of each |width| numbers of |x| [M, a multiple of width]. |gain| is [width], or has a row for
// each |width| numbers of a row of x; |gain| and |bias| may be MLX_NO_VALUE.
mlx_built_t mlx_cuda_layernorm(mlx_function_t *g, const char *name, mlx_built_t x, int64_t width,
                               mlx_built_t gain, mlx_built_t bias, double eps);

// Functions of one number. The first ones are those of mlx_act_t.
typedef enum mlx_elements_function {
  MLX_ELEMENTS_BEFORE_FUNCTIONS = MLX_ACTS - 1,
#define ELEMENTS_ENUMERATOR(name) MLX_ELEMENTS_##name,
  MLX_ELEMENTS_FUNCTION_TABLE(ELEMENTS_ENUMERATOR)
} mlx_elements_function_t;
typedef enum mlx_elements_combination {
  MLX_ELEMENTS_COMBINATION_TABLE(ELEMENTS_ENUMERATOR)
#undef ELEMENTS_ENUMERATOR
} mlx_elements_combination_t;

// Columns of a value, from |start| on, plus |bias| if it has an id.
typedef struct mlx_elements_operand {
  mlx_built_t x, bias;
  int64_t start;
} mlx_elements_operand_t;
typedef struct mlx_elements {
  int64_t width;                   // columns of the result
  mlx_elements_operand_t from[2];  // the second one only with a combination
  int function;                    // mlx_act_t or mlx_elements_function_t, of the first operand
  float numbers[MLX_ACT_NUMBERS];
  mlx_elements_combination_t combination;
} mlx_elements_t;
// All columns are multiples of 4.
mlx_built_t mlx_cuda_elements(mlx_function_t *g, const char *name, const mlx_elements_t *elements);
mlx_rope_table_t mlx_cuda_rope_table(mlx_function_t *g, const mlx_rope_t *rope);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_
