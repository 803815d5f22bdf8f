// The generic path: each node as plain StableHLO. It is the reference that kernels are tested
// against. lower_attention.c has RoPE and attention, lower_experts.c mixtures of experts.
//
// In these files each statement makes one call to the builder. C does not define the order in which arguments
// are evaluated, and the emitted text must not depend on the C compiler.
#ifndef MLXCEL_COMPILER_LOWER_STABLEHLO_H_
#define MLXCEL_COMPILER_LOWER_STABLEHLO_H_

#include "compiler/function.h"

mlx_value_t mlx_generic_embed(mlx_function_t *g, mlx_value_t table, mlx_value_t tokens);
mlx_value_t mlx_generic_permute(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t order);
mlx_value_t mlx_generic_rmsnorm(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                                double eps);
mlx_value_t mlx_generic_layernorm(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                                  mlx_value_t bias, double eps);
mlx_value_t mlx_generic_linear(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t weight);
mlx_value_t mlx_generic_add(mlx_function_t *g, const char *name, mlx_value_t a, mlx_value_t b);
mlx_value_t mlx_generic_swiglu(mlx_function_t *g, const char *name, mlx_value_t gate, mlx_value_t up);
mlx_value_t mlx_generic_bias(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t bias);
mlx_value_t mlx_generic_scale(mlx_function_t *g, const char *name, mlx_value_t x, double factor);
mlx_value_t mlx_generic_softcap(mlx_function_t *g, const char *name, mlx_value_t x, double cap);
mlx_value_t mlx_generic_clip(mlx_function_t *g, const char *name, mlx_value_t x, double limit);
mlx_value_t mlx_generic_grow(mlx_function_t *g, const char *name, mlx_value_t x, double beta, int64_t period);
mlx_value_t mlx_generic_activate(mlx_function_t *g, const char *name, mlx_act_t act, mlx_value_t x);

// ---- lower_attention.c ----

// The table for the function's positions; emitted on first use, then shared by all layers.
const mlx_rope_table_t *mlx_rope_table(mlx_function_t *g, const mlx_rope_t *rope);
mlx_value_t mlx_generic_rope(mlx_function_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                             const mlx_rope_t *rope);
mlx_value_t mlx_generic_attention(mlx_function_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                                  mlx_value_t v);

// ---- lower_experts.c ----

mlx_value_t mlx_generic_experts(mlx_function_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                                mlx_value_t scores, mlx_value_t gate, mlx_value_t up, mlx_value_t down);

#endif  // MLXCEL_COMPILER_LOWER_STABLEHLO_H_
