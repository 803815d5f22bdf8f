// The generic path: each node as plain StableHLO. It is the reference that kernels are tested against.
// lower_attention.c has RoPE and attention, lower_experts.c mixtures of experts.
//
// In these files each statement makes one call to the builder. C does not define the order in which arguments
// are evaluated, and the emitted text must not depend on the C compiler.
#ifndef MLXCEL_COMPILER_LOWER_STABLEHLO_H_
#define MLXCEL_COMPILER_LOWER_STABLEHLO_H_

#include "compiler/function.h"

mlx_built_t mlx_generic_embed(mlx_function_t *g, mlx_built_t table, mlx_built_t tokens, bool some);
mlx_built_t mlx_generic_permute(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t order);
mlx_built_t mlx_generic_rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight,
                                double eps);
mlx_built_t mlx_generic_layernorm(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight,
                                  mlx_built_t bias, double eps);
mlx_built_t mlx_generic_linear(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight);
// x [M, heads * in] times weight [heads, out, in] -> [M, heads * out]
mlx_built_t mlx_generic_head_linear(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight);
mlx_built_t mlx_generic_add(mlx_function_t *g, const char *name, mlx_built_t a, mlx_built_t b);
mlx_built_t mlx_generic_swiglu(mlx_function_t *g, const char *name, mlx_built_t gate, mlx_built_t up);
mlx_built_t mlx_generic_bias(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t bias);
mlx_built_t mlx_generic_scale(mlx_function_t *g, const char *name, mlx_built_t x, double factor);
mlx_built_t mlx_generic_softcap(mlx_function_t *g, const char *name, mlx_built_t x, double cap);
mlx_built_t mlx_generic_clip(mlx_function_t *g, const char *name, mlx_built_t x, double limit);
mlx_built_t mlx_generic_grow(mlx_function_t *g, const char *name, mlx_built_t x, double beta, int64_t period);
mlx_built_t mlx_generic_gain(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight);
mlx_built_t mlx_generic_match(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t like,
                              double least);
mlx_built_t mlx_generic_sparsify(mlx_function_t *g, const char *name, mlx_built_t x, double deviations);
// |numbers|: MLX_ACT_NUMBERS of them; NULL: the activation has none.
mlx_built_t mlx_generic_activate(mlx_function_t *g, const char *name, mlx_act_t act, const float *numbers,
                                 mlx_built_t x);

// ---- lower_attention.c ----

// The table for the function's positions; emitted on first use, then shared by all layers.
const mlx_rope_table_t *mlx_rope_table(mlx_function_t *g, const mlx_rope_t *rope);
mlx_built_t mlx_generic_rope(mlx_function_t *g, const char *name, mlx_built_t x, int64_t head_dim,
                             const mlx_rope_t *rope);
mlx_built_t mlx_generic_attention(mlx_function_t *g, const mlx_attention_t *a, mlx_built_t q, mlx_built_t k,
                                  mlx_built_t v, mlx_built_t sinks);

// ---- lower_experts.c ----

mlx_built_t mlx_generic_experts(mlx_function_t *g, const char *name, const mlx_experts_t *e,
                                const mlx_expert_weights_t *weights, mlx_built_t x, mlx_built_t scores);

#endif  // MLXCEL_COMPILER_LOWER_STABLEHLO_H_
