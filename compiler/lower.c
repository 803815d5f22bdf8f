// Implements graph/ops.h: chooses the lowering of each op. An op becomes a CUDA kernel (lower_cuda.h) if the
// module links kernels and one supports the op, else plain StableHLO (lower_stablehlo.h).
//
// A kernel may fuse an op with its consumer: a matrix product with the addition or activation after it, a
// rotation with attention. Emission of such an op is deferred. Until its consumer decides, the op's value has
// a negative id, which only this file sees.
#include "graph/ops.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"
#include "compiler/lower_stablehlo.h"
#include "compiler/trace.h"

void mlx_op_scope(mlx_graph_t *g, const char *fmt, ...) {
  char scope[64];
  va_list args;
  va_start(args, fmt);
  vsnprintf(scope, sizeof scope, fmt, args);
  va_end(args);
  if (scope[0]) mlx_builder_comment(g->b, "---- %s ----", scope);
  mlx_builder_scope(g->b, scope);
}

mlx_value_t mlx_op_weight(mlx_graph_t *g, const char *fmt, ...) {
  char name[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(name, sizeof name, fmt, args);
  va_end(args);
  mlx_value_t value = mlx_builder_load(g->b, name);
  return value.id ? mlx_cuda_weight(g, name, value) : value;
}

static mlx_value_t traced(mlx_graph_t *g, mlx_value_t result, mlx_trace_op_t op) {
  op.result = result.id;
  mlx_trace_add(g, &op);
  return result;
}

// ----------------------------------------------------------------------------------------------------------
// Deferred values

static mlx_deferred_t *deferred(mlx_graph_t *g, mlx_value_t x) {
  return x.id < 0 ? &g->deferred[-x.id - 1] : NULL;
}

// |x| as an emitted f32 value: emits a deferred op by itself, widens a 16-bit value.
static mlx_value_t materialize(mlx_graph_t *g, mlx_value_t x) {
  mlx_deferred_t *op = deferred(g, x);
  if (op && !op->emitted.id) {
    op->emitted = op->head_dim
                      ? mlx_generic_rope(g, op->name, op->x, op->head_dim, op->rope)
                      : mlx_cuda_linear(g, op->name, op->x, op->weight, (mlx_value_t){0}, MLX_EPILOGUE_NONE);
  }
  if (op) return op->emitted;
  return x.dtype == MLX_F32 ? x : mlx_build_convert(g->b, "wide", x, MLX_F32);
}

static bool is_deferred_product(mlx_graph_t *g, mlx_value_t x) {
  return x.id < 0 && !deferred(g, x)->emitted.id && !deferred(g, x)->head_dim;
}
static bool is_deferred_rope(mlx_graph_t *g, mlx_value_t x) {
  return x.id < 0 && !deferred(g, x)->emitted.id && deferred(g, x)->head_dim;
}

static mlx_value_t defer(mlx_graph_t *g, const char *name, mlx_deferred_t op, int64_t width) {
  mlx_status_t status =
      mlx_reserve(g->deferred_count + 1, sizeof *g->deferred, &g->deferred_capacity, &g->deferred);
  if (status) {
    mlx_builder_fail(g->b, status);
    return (mlx_value_t){0};
  }
  mlx_deferred_t *added = &g->deferred[g->deferred_count++];
  *added = op;
  snprintf(added->name, sizeof added->name, "%s", name);
  return (mlx_value_t){
      .id = -(int)g->deferred_count, .dtype = MLX_F32, .rank = 2, .dims = {op.x.dims[0], width}};
}

// ----------------------------------------------------------------------------------------------------------
// Ops that kernels have

mlx_value_t mlx_op_embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens) {
  if (table.quantized_weight) return mlx_cuda_quantized_embed(g, table, tokens);
  return traced(g, mlx_generic_embed(g, table, tokens),
                (mlx_trace_op_t){.kind = MLX_TRACE_EMBED, .weight = table.id});
}

mlx_value_t mlx_op_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight, double eps) {
  x = materialize(g, x);
  return traced(
      g, mlx_generic_rmsnorm(g, name, x, weight, eps),
      (mlx_trace_op_t){.kind = MLX_TRACE_RMSNORM, .operands = {x.id}, .weight = weight.id, .number = eps});
}

mlx_value_t mlx_op_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  if (mlx_cuda_supports_linear(g, weight)) {
    if (deferred(g, x)) x = materialize(g, x);
    return mlx_cuda_uses_gemv(x.dims[0])
               ? mlx_cuda_linear(g, name, materialize(g, x), weight, (mlx_value_t){0}, MLX_EPILOGUE_NONE)
               : defer(g, name, (mlx_deferred_t){.x = x, .weight = weight}, weight.dims[0]);
  }
  x = materialize(g, x);
  return traced(g, mlx_generic_linear(g, name, x, weight),
                (mlx_trace_op_t){.kind = MLX_TRACE_LINEAR, .operands = {x.id}, .weight = weight.id});
}

mlx_value_t mlx_op_add(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  if (is_deferred_product(g, a) && !is_deferred_product(g, b)) {  // addition commutes
    mlx_value_t other = a;
    a = b;
    b = other;
  }
  a = materialize(g, a);
  if (is_deferred_product(g, b))
    return mlx_cuda_linear(g, name, deferred(g, b)->x, deferred(g, b)->weight, a, MLX_EPILOGUE_ADD);
  b = materialize(g, b);
  return traced(g, mlx_generic_add(g, name, a, b),
                (mlx_trace_op_t){.kind = MLX_TRACE_ADD, .operands = {a.id, b.id}});
}

mlx_value_t mlx_op_swiglu(mlx_graph_t *g, const char *name, mlx_value_t gate, mlx_value_t up) {
  if (is_deferred_product(g, gate) && is_deferred_product(g, up) &&
      deferred(g, gate)->x.id == deferred(g, up)->x.id &&
      mlx_cuda_supports_swiglu(g, deferred(g, gate)->weight, deferred(g, up)->weight)) {
    const mlx_deferred_t *first = deferred(g, gate), *second = deferred(g, up);
    return mlx_cuda_linear(g, name, first->x, first->weight, second->weight, MLX_EPILOGUE_SWIGLU);
  }
  gate = materialize(g, gate);
  up = materialize(g, up);
  return traced(g, mlx_generic_swiglu(g, name, gate, up),
                (mlx_trace_op_t){.kind = MLX_TRACE_SWIGLU, .operands = {gate.id, up.id}});
}

mlx_value_t mlx_op_rope(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                        const mlx_rope_t *rope) {
  x = materialize(g, x);
  const bool fusable = rope->dims == head_dim && !rope->adjacent;  // with the attention kernel
  if (g->options->kernels && fusable)
    return defer(g, name, (mlx_deferred_t){.x = x, .head_dim = head_dim, .rope = rope}, x.dims[1]);
  return traced(
      g, mlx_generic_rope(g, name, x, head_dim, rope),
      (mlx_trace_op_t){.kind = MLX_TRACE_ROPE, .operands = {x.id}, .rope = rope, .head_dim = head_dim});
}

static mlx_value_t kernel_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                                    mlx_value_t v) {
  const bool fused = is_deferred_rope(g, q) && is_deferred_rope(g, k) &&
                     mlx_rope_equal(deferred(g, q)->rope, deferred(g, k)->rope) &&
                     deferred(g, q)->head_dim == a->head_dim && deferred(g, k)->head_dim == a->head_dim;
  if (!fused) return mlx_cuda_attention(g, a, materialize(g, q), materialize(g, k), v, NULL);
  const mlx_rope_table_t *table = mlx_rope_table(g, deferred(g, q)->rope);
  return mlx_cuda_attention(g, a, deferred(g, q)->x, deferred(g, k)->x, v, table);
}

mlx_value_t mlx_op_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                             mlx_value_t v) {
  v = materialize(g, v);
  // mlx_module_use_kernels links kernels only if they support the attention of every layer.
  if (g->options->kernels) return kernel_attention(g, a, q, k, v);
  q = materialize(g, q);
  k = materialize(g, k);
  return traced(
      g, mlx_generic_attention(g, a, q, k, v),
      (mlx_trace_op_t){.kind = MLX_TRACE_ATTENTION, .operands = {q.id, k.id, v.id}, .attention = *a});
}

// ----------------------------------------------------------------------------------------------------------
// Ops without a kernel. Their trace entries carry a name for messages.

static mlx_value_t other(mlx_graph_t *g, const char *op, mlx_value_t result) {
  return traced(g, result, (mlx_trace_op_t){.kind = MLX_TRACE_OTHER, .name = op});
}

mlx_value_t mlx_op_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                             mlx_value_t bias, double eps) {
  return other(g, "layer norm", mlx_generic_layernorm(g, name, materialize(g, x), weight, bias, eps));
}

static mlx_value_t as_heads(mlx_graph_t *g, mlx_value_t x, int64_t head_dim) {
  return mlx_build_reshape(g->b, "each_head", x,
                           MLX_TYPE(MLX_F32, x.dims[0] * (x.dims[1] / head_dim), head_dim));
}

mlx_value_t mlx_op_head_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                mlx_value_t weight, double eps) {
  x = materialize(g, x);
  mlx_value_t normed = mlx_generic_rmsnorm(g, "each_head_normed", as_heads(g, x, head_dim), weight, eps);
  return other(g, "QK norm", mlx_build_reshape(g->b, name, normed, mlx_type_of(x)));
}

mlx_value_t mlx_op_head_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                  mlx_value_t weight, double eps) {
  x = materialize(g, x);
  const bool shared = weight.rank == 1;
  mlx_value_t normed = mlx_generic_layernorm(g, "each_head_normed", as_heads(g, x, head_dim),
                                             shared ? weight : MLX_NONE, MLX_NONE, eps);
  normed = mlx_build_reshape(g->b, shared ? name : "heads_normed", normed, mlx_type_of(x));
  if (shared) return other(g, "QK norm", normed);
  mlx_value_t wide = mlx_build_convert(g->b, "gain_f32", weight, MLX_F32);
  mlx_value_t flat = mlx_build_reshape(g->b, "gain", wide, MLX_TYPE(MLX_F32, x.dims[1]));
  mlx_value_t gains = mlx_build_broadcast(g->b, "gains", flat, (int64_t[]){1}, mlx_type_of(x));
  return other(g, "QK norm", mlx_build_binary(g->b, name, "multiply", normed, gains));
}

mlx_value_t mlx_op_linear_bias(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                               mlx_value_t bias) {
  if (!bias.id) return mlx_op_linear(g, name, x, weight);
  mlx_value_t product = mlx_op_linear(g, "unbiased", x, weight);
  return other(g, "biases", mlx_generic_bias(g, name, materialize(g, product), bias));
}

mlx_value_t mlx_op_multiply(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  a = materialize(g, a);
  b = materialize(g, b);
  return other(g, "elementwise products", mlx_build_binary(g->b, name, "multiply", a, b));
}

mlx_value_t mlx_op_scale(mlx_graph_t *g, const char *name, mlx_value_t x, double factor) {
  if (factor == 1.0) return x;
  return other(g, "scaled activations", mlx_generic_scale(g, name, materialize(g, x), factor));
}

mlx_value_t mlx_op_softcap(mlx_graph_t *g, const char *name, mlx_value_t x, double cap) {
  return other(g, "softcap", mlx_generic_softcap(g, name, materialize(g, x), cap));
}

mlx_value_t mlx_op_clip(mlx_graph_t *g, const char *name, mlx_value_t x, double limit) {
  return other(g, "clipping", mlx_generic_clip(g, name, materialize(g, x), limit));
}

mlx_value_t mlx_op_grow(mlx_graph_t *g, const char *name, mlx_value_t x, double beta, int64_t period) {
  return other(g, "position-scaled queries", mlx_generic_grow(g, name, materialize(g, x), beta, period));
}

mlx_value_t mlx_op_activate(mlx_graph_t *g, const char *name, mlx_act_t act, mlx_value_t x) {
  return other(g, "this activation function", mlx_generic_activate(g, name, act, materialize(g, x)));
}

mlx_value_t mlx_op_gated(mlx_graph_t *g, const char *name, mlx_act_t act, mlx_value_t gate, mlx_value_t up) {
  if (act == MLX_ACT_SILU) return mlx_op_swiglu(g, name, gate, up);
  return mlx_op_multiply(g, name, mlx_op_activate(g, "activated", act, gate), up);
}

mlx_value_t mlx_op_experts(mlx_graph_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                           mlx_value_t scores, mlx_value_t gate, mlx_value_t up, mlx_value_t down) {
  x = materialize(g, x);
  scores = materialize(g, scores);
  return other(g, "mixture of experts", mlx_generic_experts(g, name, e, x, scores, gate, up, down));
}

mlx_value_t mlx_op_sigmoid(mlx_graph_t *g, const char *name, mlx_value_t x) {
  return other(g, "sigmoid gates", mlx_build_unary(g->b, name, "logistic", materialize(g, x)));
}

mlx_value_t mlx_op_scale_rows(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t factor) {
  x = materialize(g, x);
  mlx_value_t factors =
      mlx_build_broadcast(g->b, "factors", materialize(g, factor), (int64_t[]){0, 1}, mlx_type_of(x));
  return other(g, "per-token scaling", mlx_build_binary(g->b, name, "multiply", x, factors));
}

mlx_value_t mlx_op_columns(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t start, int64_t count) {
  return other(g, "fused projections",
               mlx_build_slice_last(g->b, name, materialize(g, x), start, start + count));
}

mlx_value_t mlx_op_positions(mlx_graph_t *g) { return other(g, "learned position embeddings", g->positions); }

int64_t mlx_op_context(const mlx_graph_t *g) { return g->options->context; }
