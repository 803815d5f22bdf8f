// The words of graph/ops.h: each is lowered by one of our kernels where the target has one for it, and
// plainly (ops.c) elsewhere.
//
// What a kernel can do together with what comes next is not written at once: a matrix product may end in an
// addition or an activation, a rotation may be part of attention. Until then it is a value with a negative
// id, which only this file sees.
#include "graph/ops.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/graph_internal.h"

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
  return value.id ? mlx_kernel_weight(g, name, value) : value;
}

// ----------------------------------------------------------------------------------------------------------
// Notes for whoever wants to know what the network is (trace.c)

static mlx_value_t note(mlx_graph_t *g, mlx_value_t result, mlx_note_t what) {
  what.result = result.id;
  mlx_trace_add(g, &what);
  return result;
}

// ----------------------------------------------------------------------------------------------------------
// Values that wait

static mlx_later_t *later(mlx_graph_t *g, mlx_value_t x) { return x.id < 0 ? &g->later[-x.id - 1] : NULL; }

// As f32, written.
static mlx_value_t settled(mlx_graph_t *g, mlx_value_t x) {
  mlx_later_t *it = later(g, x);
  if (it && !it->done.id) {
    it->done = it->head_dim
                   ? mlx_plain_rope(g, it->name, it->x, it->head_dim, it->rope)
                   : mlx_kernel_linear(g, it->name, it->x, it->weight, (mlx_value_t){0}, MLX_LINEAR_PLAIN);
  }
  if (it) return it->done;
  return x.dtype == MLX_F32 ? x : mlx_build_convert(g->b, "wide", x, MLX_F32);
}

static bool is_product(mlx_graph_t *g, mlx_value_t x) {
  return x.id < 0 && !later(g, x)->done.id && !later(g, x)->head_dim;
}
static bool is_turn(mlx_graph_t *g, mlx_value_t x) {
  return x.id < 0 && !later(g, x)->done.id && later(g, x)->head_dim;
}

static mlx_value_t wait_with(mlx_graph_t *g, const char *name, mlx_later_t what, int64_t width) {
  mlx_status_t status = mlx_reserve(g->later_count + 1, sizeof *g->later, &g->later_capacity, &g->later);
  if (status) {
    mlx_builder_fail(g->b, status);
    return (mlx_value_t){0};
  }
  mlx_later_t *it = &g->later[g->later_count++];
  *it = what;
  snprintf(it->name, sizeof it->name, "%s", name);
  return (mlx_value_t){
      .id = -(int)g->later_count, .dtype = MLX_F32, .rank = 2, .dims = {what.x.dims[0], width}};
}

// ----------------------------------------------------------------------------------------------------------
// Words

mlx_value_t mlx_op_embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens) {
  if (table.packed) return mlx_kernel_embed(g, table, tokens);
  return note(g, mlx_plain_embed(g, table, tokens), (mlx_note_t){.kind = MLX_NOTE_EMBED, .weight = table.id});
}

mlx_value_t mlx_op_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight, double eps) {
  x = settled(g, x);
  return note(g, mlx_plain_rmsnorm(g, name, x, weight, eps),
              (mlx_note_t){.kind = MLX_NOTE_RMSNORM, .operands = {x.id}, .weight = weight.id, .number = eps});
}

mlx_value_t mlx_op_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  if (mlx_kernel_takes_linear(g, weight)) {
    if (later(g, x)) x = settled(g, x);
    return mlx_kernel_linear_is_gemv(x)
               ? mlx_kernel_linear(g, name, settled(g, x), weight, (mlx_value_t){0}, MLX_LINEAR_PLAIN)
               : wait_with(g, name, (mlx_later_t){.x = x, .weight = weight}, weight.dims[0]);
  }
  x = settled(g, x);
  return note(g, mlx_plain_linear(g, name, x, weight),
              (mlx_note_t){.kind = MLX_NOTE_LINEAR, .operands = {x.id}, .weight = weight.id});
}

mlx_value_t mlx_op_add(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  if (is_product(g, a) && !is_product(g, b)) {  // a sum has no order
    mlx_value_t other = a;
    a = b;
    b = other;
  }
  a = settled(g, a);
  if (is_product(g, b))
    return mlx_kernel_linear(g, name, later(g, b)->x, later(g, b)->weight, a, MLX_LINEAR_ADD);
  b = settled(g, b);
  return note(g, mlx_plain_add(g, name, a, b), (mlx_note_t){.kind = MLX_NOTE_ADD, .operands = {a.id, b.id}});
}

mlx_value_t mlx_op_swiglu(mlx_graph_t *g, const char *name, mlx_value_t gate, mlx_value_t up) {
  if (is_product(g, gate) && is_product(g, up) && later(g, gate)->x.id == later(g, up)->x.id &&
      mlx_kernel_takes_pair(g, later(g, gate)->weight, later(g, up)->weight)) {
    const mlx_later_t *low = later(g, gate), *high = later(g, up);
    return mlx_kernel_linear(g, name, low->x, low->weight, high->weight, MLX_LINEAR_SWIGLU);
  }
  gate = settled(g, gate);
  up = settled(g, up);
  return note(g, mlx_plain_swiglu(g, name, gate, up),
              (mlx_note_t){.kind = MLX_NOTE_SWIGLU, .operands = {gate.id, up.id}});
}

mlx_value_t mlx_op_rope(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                        const mlx_rope_t *rope) {
  x = settled(g, x);
  const bool whole = rope->dims == head_dim && !rope->adjacent;  // the attention kernel can do it
  if (g->options->kernels && whole)
    return wait_with(g, name, (mlx_later_t){.x = x, .head_dim = head_dim, .rope = rope}, x.dims[1]);
  return note(g, mlx_plain_rope(g, name, x, head_dim, rope),
              (mlx_note_t){.kind = MLX_NOTE_ROPE, .operands = {x.id}, .rope = rope, .head_dim = head_dim});
}

static mlx_value_t attend(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                          mlx_value_t v) {
  const bool turns = is_turn(g, q) && is_turn(g, k) && mlx_rope_equal(later(g, q)->rope, later(g, k)->rope) &&
                     later(g, q)->head_dim == a->head_dim && later(g, k)->head_dim == a->head_dim;
  if (!turns) return mlx_kernel_attention(g, a, settled(g, q), settled(g, k), v, NULL);
  const mlx_rope_table_t *table = mlx_rope_table(g, later(g, q)->rope);
  return mlx_kernel_attention(g, a, later(g, q)->x, later(g, k)->x, v, table);
}

mlx_value_t mlx_op_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                             mlx_value_t v) {
  v = settled(g, v);
  if (g->options->kernels)
    return attend(g, a, q, k, v);  // mlx_graph_use_kernels has seen to it that they can
  q = settled(g, q);
  k = settled(g, k);
  return note(g, mlx_plain_attention(g, a, q, k, v),
              (mlx_note_t){.kind = MLX_NOTE_ATTENTION, .operands = {q.id, k.id, v.id}, .attention = *a});
}

// ----------------------------------------------------------------------------------------------------------
// Words that only some architectures use: no kernel has them

static mlx_value_t other(mlx_graph_t *g, mlx_value_t result) {
  return note(g, result, (mlx_note_t){.kind = MLX_NOTE_OTHER});
}

mlx_value_t mlx_op_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                             mlx_value_t bias, double eps) {
  return other(g, mlx_plain_layernorm(g, name, settled(g, x), weight, bias, eps));
}

static mlx_value_t as_heads(mlx_graph_t *g, mlx_value_t x, int64_t head_dim) {
  return mlx_build_reshape(g->b, "each_head", x,
                           MLX_TYPE(MLX_F32, x.dims[0] * (x.dims[1] / head_dim), head_dim));
}

mlx_value_t mlx_op_head_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                mlx_value_t weight, double eps) {
  x = settled(g, x);
  mlx_value_t normed = mlx_plain_rmsnorm(g, "each_head_normed", as_heads(g, x, head_dim), weight, eps);
  return other(g, mlx_build_reshape(g->b, name, normed, mlx_type_of(x)));
}

mlx_value_t mlx_op_head_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                  mlx_value_t weight, double eps) {
  x = settled(g, x);
  const bool shared = weight.rank == 1;
  mlx_value_t normed = mlx_plain_layernorm(g, "each_head_normed", as_heads(g, x, head_dim),
                                           shared ? weight : MLX_NONE, MLX_NONE, eps);
  normed = mlx_build_reshape(g->b, shared ? name : "heads_normed", normed, mlx_type_of(x));
  if (shared) return other(g, normed);
  mlx_value_t wide = mlx_build_convert(g->b, "gain_f32", weight, MLX_F32);
  mlx_value_t flat = mlx_build_reshape(g->b, "gain", wide, MLX_TYPE(MLX_F32, x.dims[1]));
  mlx_value_t gains = mlx_build_broadcast(g->b, "gains", flat, (int64_t[]){1}, mlx_type_of(x));
  return other(g, mlx_build_binary(g->b, name, "multiply", normed, gains));
}

mlx_value_t mlx_op_linear_bias(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                               mlx_value_t bias) {
  if (!bias.id) return mlx_op_linear(g, name, x, weight);
  mlx_value_t product = mlx_op_linear(g, "unbiased", x, weight);
  return other(g, mlx_plain_bias(g, name, settled(g, product), bias));
}

mlx_value_t mlx_op_multiply(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  a = settled(g, a);
  b = settled(g, b);
  return other(g, mlx_build_binary(g->b, name, "multiply", a, b));
}

mlx_value_t mlx_op_scale(mlx_graph_t *g, const char *name, mlx_value_t x, double factor) {
  if (factor == 1.0) return x;
  return other(g, mlx_plain_scale(g, name, settled(g, x), factor));
}

mlx_value_t mlx_op_softcap(mlx_graph_t *g, const char *name, mlx_value_t x, double cap) {
  return other(g, mlx_plain_softcap(g, name, settled(g, x), cap));
}

mlx_value_t mlx_op_clip(mlx_graph_t *g, const char *name, mlx_value_t x, double limit) {
  return other(g, mlx_plain_clip(g, name, settled(g, x), limit));
}

mlx_value_t mlx_op_grow(mlx_graph_t *g, const char *name, mlx_value_t x, double beta, int64_t period) {
  return other(g, mlx_plain_grow(g, name, settled(g, x), beta, period));
}

mlx_value_t mlx_op_activate(mlx_graph_t *g, const char *name, mlx_act_t act, mlx_value_t x) {
  return other(g, mlx_plain_activate(g, name, act, settled(g, x)));
}

mlx_value_t mlx_op_gated(mlx_graph_t *g, const char *name, mlx_act_t act, mlx_value_t gate, mlx_value_t up) {
  if (act == MLX_ACT_SILU) return mlx_op_swiglu(g, name, gate, up);
  return mlx_op_multiply(g, name, mlx_op_activate(g, "activated", act, gate), up);
}

mlx_value_t mlx_op_experts(mlx_graph_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                           mlx_value_t scores, mlx_value_t gate, mlx_value_t up, mlx_value_t down) {
  x = settled(g, x);
  scores = settled(g, scores);
  return other(g, mlx_plain_experts(g, name, e, x, scores, gate, up, down));
}

mlx_value_t mlx_op_sigmoid(mlx_graph_t *g, const char *name, mlx_value_t x) {
  return other(g, mlx_build_unary(g->b, name, "logistic", settled(g, x)));
}

mlx_value_t mlx_op_scale_rows(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t factor) {
  x = settled(g, x);
  mlx_value_t factors =
      mlx_build_broadcast(g->b, "factors", settled(g, factor), (int64_t[]){0, 1}, mlx_type_of(x));
  return other(g, mlx_build_binary(g->b, name, "multiply", x, factors));
}

mlx_value_t mlx_op_columns(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t start, int64_t count) {
  return other(g, mlx_build_slice_last(g->b, name, settled(g, x), start, start + count));
}

mlx_value_t mlx_op_positions(mlx_graph_t *g) { return other(g, g->positions); }

int64_t mlx_op_context(const mlx_graph_t *g) { return g->options->context; }
