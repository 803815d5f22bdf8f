// Operators of expressions, with Python's meaning.
#ifndef MLXCEL_TEMPLATE_OPERATORS_H_
#define MLXCEL_TEMPLATE_OPERATORS_H_

#include "template/value.h"

typedef enum mlx_op {
  MLX_OP_NONE,
  MLX_OP_ADD,
  MLX_OP_SUB,
  MLX_OP_MUL,
  MLX_OP_DIV,
  MLX_OP_FLOORDIV,
  MLX_OP_MOD,
  MLX_OP_POW,
  MLX_OP_EQ,
  MLX_OP_NE,
  MLX_OP_LT,
  MLX_OP_LE,
  MLX_OP_GT,
  MLX_OP_GE,
  MLX_OP_IN,
  MLX_OP_NOT_IN,
} mlx_op_t;

// ADD to POW.
mlx_status_t mlx_var_binary(mlx_render_t *r, mlx_op_t op, const mlx_var_t *a, const mlx_var_t *b,
                            mlx_var_t *out) MLX_MUST_USE;
// EQ to NOT_IN.
mlx_status_t mlx_var_compare(mlx_render_t *r, mlx_op_t op, const mlx_var_t *a, const mlx_var_t *b,
                             bool *out) MLX_MUST_USE;
mlx_status_t mlx_var_sign(mlx_render_t *r, bool minus, const mlx_var_t *a, mlx_var_t *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_OPERATORS_H_
