// Walks the nodes of a network. A node becomes a CUDA kernel (lower_cuda.h) if its path says so, else plain
// StableHLO (lower_stablehlo.h). A node that a kernel computes together with its user is emitted with the
// user (mlx_paths_fuse).
#include "compiler/lower.h"

#include <string.h>

#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"
#include "compiler/lower_cuda_few.h"
#include "compiler/lower_cuda_rows.h"
#include "compiler/lower_place.h"
#include "compiler/lower_stablehlo.h"

// ----------------------------------------------------------------------------------------------------------
// Operands

static bool is_fused(const mlx_function_t *f, int id) { return f->paths.fused[id - 1]; }

// Whether a fused node belongs to the elementwise kernel of its user.
static bool is_element(const mlx_function_t *f, int id) {
  const mlx_node_kind_t kind = mlx_graph_node(f->graph, id)->kind;
  return !f->paths.leaders[id - 1] &&
         (kind == MLX_NODE_BIAS || kind == MLX_NODE_COLUMNS || kind == MLX_NODE_SCALE);
}

// The value of a node as it was emitted. Attention and gated products of 16-bit kernels are 16-bit values.
static mlx_value_t emitted(const mlx_function_t *f, int id) { return id ? f->values[id] : MLX_NONE; }

// The same as f32.
static mlx_value_t as_f32(mlx_function_t *f, int id) {
  const mlx_value_t x = emitted(f, id);
  if (x.partials)
    mlx_builder_fail(f->b, mlx_error(MLX_INTERNAL, "node %d is used before it is complete", id));
  return x.dtype == MLX_F32 || !x.id ? x : mlx_build_convert(f->b, "as_f32", x, MLX_F32);
}

// A weight is not converted: its users convert it where they need it.
static mlx_value_t weight(const mlx_function_t *f, const mlx_node_t *node, int nth) {
  return emitted(f, node->operands[nth]);
}

// Loads the weights that |node| is the first to use.
static void load_weights(mlx_function_t *f, const mlx_node_t *node) {
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
    const mlx_node_t *operand = mlx_graph_operand(f->graph, node, i);
    if (!operand || operand->kind != MLX_NODE_WEIGHT) continue;
    const mlx_value_t loaded = mlx_builder_load(f->b, operand->weight_name);
    f->values[node->operands[i]] = loaded.id ? mlx_cuda_weight(f, operand->weight_index, loaded) : loaded;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Products and attention

// The operand |id| of a kernel that may compute a norm by itself: x, and the norm if there is one.
static mlx_value_t before_norm(mlx_function_t *f, int id, mlx_cuda_norm_t *out_norm) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  *out_norm = (mlx_cuda_norm_t){0};
  if (!f->paths.token[id - 1] || node->kind != MLX_NODE_RMSNORM) return as_f32(f, id);
  *out_norm = (mlx_cuda_norm_t){.gain = weight(f, node, 1), .eps = node->eps};
  return as_f32(f, node->operands[0]);
}

// Products of one token, which become the values of these nodes and of their biases.
static mlx_value_t lower_token_products(mlx_function_t *f, const char *name, const int *products, int count,
                                        mlx_value_t residual) {
  mlx_token_products_t p = {.count = count, .residual = residual};
  mlx_value_t results[MLX_GROUP_PRODUCTS] = {{0}};
  p.x = before_norm(f, mlx_graph_node(f->graph, products[0])->operands[0], &p.norm);
  for (int i = 0; i < count; ++i) {
    const mlx_node_t *product = mlx_graph_node(f->graph, products[i]);
    const int bias = mlx_paths_bias(&f->paths, f->graph, products[i]);
    load_weights(f, product);
    p.weights[i] = weight(f, product, 1);
    if (!bias) continue;
    load_weights(f, mlx_graph_node(f->graph, bias));
    p.biases[i] = weight(f, mlx_graph_node(f->graph, bias), 1);
  }
  mlx_cuda_token_products(f, name, &p, results);
  for (int i = 0; i < count; ++i) {
    const int bias = mlx_paths_bias(&f->paths, f->graph, products[i]);
    f->values[products[i]] = results[i];
    if (bias) f->values[bias] = results[i];
  }
  return results[0];
}

static mlx_value_t lower_linear(mlx_function_t *f, int id, const mlx_node_t *node) {
  if (f->paths.token[id - 1]) return lower_token_products(f, node->name, &id, 1, MLX_NONE);
  const mlx_value_t x = emitted(f, node->operands[0]);
  if (!f->paths.nodes[id - 1].kernel)
    return mlx_generic_linear(f, node->name, as_f32(f, node->operands[0]), weight(f, node, 1));
  const mlx_value_t matrix = weight(f, node, 1);
  const bool wide = mlx_cuda_uses_gemv(x.dims[0]) || (!matrix.quantized_weight && matrix.dtype == MLX_F32);
  return mlx_cuda_linear(f, node->name, wide ? as_f32(f, node->operands[0]) : x, matrix, MLX_NONE,
                         MLX_EPILOGUE_NONE);
}

// |residual|: added by the kernel; MLX_NONE on the generic path.
static mlx_value_t lower_experts(mlx_function_t *f, int id, const mlx_node_t *node, const char *name,
                                 mlx_value_t residual) {
  mlx_experts_t experts = node->experts;
  experts.gate_bias = weight(f, node, 5);
  experts.up_bias = weight(f, node, 6);
  experts.down_bias = weight(f, node, 7);
  mlx_cuda_norm_t norm;
  const mlx_value_t x = before_norm(f, node->operands[0], &norm), scores = as_f32(f, node->operands[1]),
                    gate = weight(f, node, 2), up = weight(f, node, 3), down = weight(f, node, 4);
  return f->paths.nodes[id - 1].kernel
             ? mlx_cuda_experts(f, name, &experts, x, norm, scores, gate, up, down, residual)
             : mlx_generic_experts(f, name, &experts, x, scores, gate, up, down);
}

// The products that share the launch of product |id|, if there are any.
static bool lower_group(mlx_function_t *f, int id, const mlx_node_t *node) {
  int members[MLX_GROUP_PRODUCTS] = {id}, count = 1;
  for (int other = id + 1; other <= (int)f->graph->count && count < MLX_GROUP_PRODUCTS; ++other)
    if (f->paths.leaders[other - 1] == id && mlx_graph_node(f->graph, other)->kind == MLX_NODE_LINEAR)
      members[count++] = other;
  if (count == 1) return false;
  if (f->paths.token[id - 1]) {
    lower_token_products(f, node->name, members, count, MLX_NONE);
    return true;
  }
  mlx_value_t weights[MLX_GROUP_PRODUCTS] = {{0}}, products[MLX_GROUP_PRODUCTS] = {{0}};
  for (int i = 0; i < count; ++i) {
    const mlx_node_t *member = mlx_graph_node(f->graph, members[i]);
    load_weights(f, member);
    weights[i] = weight(f, member, 1);
  }
  mlx_cuda_group(f, node->name, emitted(f, node->operands[0]), weights, count, products);
  for (int i = 0; i < count; ++i) f->values[members[i]] = products[i];
  return true;
}

// The first node that uses node |id|.
static const mlx_node_t *first_user(const mlx_function_t *f, int id) {
  for (int user = id + 1; user <= (int)f->graph->count; ++user) {
    const mlx_node_t *node = mlx_graph_node(f->graph, user);
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
      if (node->operands[i] == id) return node;
  }
  return NULL;
}

// The residual with the partial sums of a product, if a norm uses it first and adds them; else MLX_NONE.
static mlx_value_t lower_partial(mlx_function_t *f, int id, const mlx_node_t *product, mlx_value_t residual) {
  const mlx_node_t *user = first_user(f, id);
  if (!user || user->kind != MLX_NODE_RMSNORM) return MLX_NONE;
  return mlx_cuda_partial_linear(f, mlx_graph_node(f->graph, id)->name, emitted(f, product->operands[0]),
                                 weight(f, product, 1), residual);
}

// The operand |id| of an elementwise kernel, which adds a bias that is fused and reads columns that are.
static mlx_elements_operand_t read_element(mlx_function_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  mlx_elements_operand_t operand = {.start = 0};
  if (node->kind == MLX_NODE_BIAS && is_fused(f, id)) {
    operand.bias = weight(f, node, 1);
    id = node->operands[0];
    node = mlx_graph_node(f->graph, id);
  }
  if (node->kind == MLX_NODE_COLUMNS && is_fused(f, id)) {
    operand.start = node->start;
    id = node->operands[0];
  }
  operand.x = as_f32(f, id);
  return operand;
}

// The function of one number that |node| is.
static int element_function(const mlx_node_t *node, double *out_number) {
  *out_number = node->number;
  switch (node->kind) {
    case MLX_NODE_ACTIVATE:
    case MLX_NODE_GATED: return (int)node->act;
    case MLX_NODE_SIGMOID: return MLX_ELEMENTS_SIGMOID;
    case MLX_NODE_SOFTCAP: return MLX_ELEMENTS_SOFTCAP;
    case MLX_NODE_CLIP: return MLX_ELEMENTS_CLIP;
    case MLX_NODE_SCALE: return MLX_ELEMENTS_SCALE;
    default: return MLX_ELEMENTS_COPY;
  }
}

static mlx_value_t lower_elements(mlx_function_t *f, const mlx_node_t *node) {
  const mlx_node_kind_t kind = node->kind;
  const bool two = kind == MLX_NODE_ADD || kind == MLX_NODE_MULTIPLY || kind == MLX_NODE_GATED ||
                   kind == MLX_NODE_SCALE_ROWS;
  int first = node->operands[0], second = two ? node->operands[1] : 0;
  mlx_elements_t e = {.width = node->dims[1]};
  e.function = element_function(node, &e.number);
  for (int i = 0; i < 2 && kind == MLX_NODE_ADD; ++i) {  // the scaled operand is the first one
    const mlx_node_t *scale = mlx_graph_operand(f->graph, node, i);
    if (scale->kind != MLX_NODE_SCALE || !is_fused(f, node->operands[i])) continue;
    first = scale->operands[0];
    second = node->operands[1 - i];
    e.function = element_function(scale, &e.number);
  }
  e.from[0] = read_element(f, first);
  if (two) e.from[1] = read_element(f, second);
  if (kind == MLX_NODE_BIAS) e.from[0].bias = weight(f, node, 1);
  if (kind == MLX_NODE_COLUMNS) e.from[0].start = node->start;
  if (kind == MLX_NODE_ADD) e.combination = MLX_ELEMENTS_ADD;
  if (kind == MLX_NODE_MULTIPLY || kind == MLX_NODE_GATED) e.combination = MLX_ELEMENTS_MULTIPLY;
  if (kind == MLX_NODE_SCALE_ROWS) e.combination = MLX_ELEMENTS_MULTIPLY_ROWS;
  return mlx_cuda_elements(f, node->name, &e);
}

static mlx_value_t lower_add(mlx_function_t *f, int add, const mlx_node_t *node) {
  for (int i = 0; i < 2; ++i) {
    const mlx_node_t *product = mlx_graph_operand(f->graph, node, i);
    if (!is_fused(f, node->operands[i]) || is_element(f, node->operands[i])) continue;
    const int id = product->kind == MLX_NODE_BIAS ? product->operands[0] : node->operands[i];
    const mlx_value_t addend = as_f32(f, node->operands[1 - i]);
    if (product->kind == MLX_NODE_RMSNORM)
      return mlx_cuda_rmsnorm(f, node->name, as_f32(f, product->operands[0]), product->dims[1],
                              weight(f, product, 1), product->eps, addend);
    if (product->kind == MLX_NODE_EXPERTS) return lower_experts(f, id, product, node->name, addend);
    if (f->paths.token[id - 1]) return lower_token_products(f, node->name, &id, 1, addend);
    const mlx_value_t partial = lower_partial(f, add, product, addend);
    if (partial.id) return partial;
    return mlx_cuda_linear(f, node->name, emitted(f, product->operands[0]), weight(f, product, 1), addend,
                           MLX_EPILOGUE_ADD);
  }
  if (f->paths.nodes[add - 1].kernel) return lower_elements(f, node);
  const mlx_value_t a = as_f32(f, node->operands[0]), b = as_f32(f, node->operands[1]);
  return mlx_generic_add(f, node->name, a, b);
}

static mlx_value_t lower_gated(mlx_function_t *f, int id, const mlx_node_t *node) {
  if (is_fused(f, node->operands[0]) && !is_element(f, node->operands[0])) {
    const mlx_node_t *gate = mlx_graph_operand(f->graph, node, 0), *up = mlx_graph_operand(f->graph, node, 1);
    f->into_parts = f->paths.parts[id - 1];
    f->act = node->act;
    const mlx_value_t gated = mlx_cuda_linear(f, node->name, emitted(f, gate->operands[0]),
                                              weight(f, gate, 1), weight(f, up, 1), MLX_EPILOGUE_GATED);
    f->into_parts = false;
    return gated;
  }
  if (f->paths.nodes[id - 1].kernel) return lower_elements(f, node);
  const mlx_value_t gate = as_f32(f, node->operands[0]), up = as_f32(f, node->operands[1]);
  if (node->act == MLX_ACT_SILU) return mlx_generic_swiglu(f, node->name, gate, up);
  const mlx_value_t activated = mlx_generic_activate(f, "activated", node->act, gate);
  return mlx_build_binary(f->b, node->name, "multiply", activated, up);
}

// Operand |nth| of attention, node |id|, without the ops that the attention kernel computes: those go to
// |out|.
static void read_heads(mlx_function_t *f, int id, int nth, mlx_cuda_qkv_t *out) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  if (node->kind == MLX_NODE_ROPE && is_fused(f, id)) {
    out->table = mlx_rope_table(f, node->rope);
    id = node->operands[0];
    node = mlx_graph_node(f->graph, id);
  }
  if (node->kind == MLX_NODE_HEAD_RMSNORM && is_fused(f, id)) {
    out->norms[nth] = (mlx_cuda_norm_t){.gain = weight(f, node, 1), .eps = node->eps};
    id = node->operands[0];
    node = mlx_graph_node(f->graph, id);
  }
  if (node->kind == MLX_NODE_BIAS && is_fused(f, id)) {
    out->biases[nth] = weight(f, node, 1);
    id = node->operands[0];
  }
  out->x[nth] = as_f32(f, id);
}

static mlx_value_t kernel_attention(mlx_function_t *f, const mlx_attention_t *a, const mlx_node_t *node) {
  mlx_cuda_qkv_t qkv = {.table = NULL};
  if (mlx_cuda_few_appends(f, node))
    qkv.x[0] = emitted(f, mlx_graph_operand(f->graph, node, 0)->operands[0]);
  else
    for (int i = 0; i < 3; ++i) read_heads(f, node->operands[i], i, &qkv);
  return mlx_cuda_attention(f, a, &qkv);
}

static mlx_value_t lower_attention(mlx_function_t *f, int id, const mlx_node_t *node) {
  mlx_attention_t a = node->attention;
  a.sinks = weight(f, node, 3);
  if (f->paths.nodes[id - 1].kernel) {
    f->into_parts = f->paths.parts[id - 1];
    const mlx_value_t attended = kernel_attention(f, &a, node);
    f->into_parts = false;
    return attended;
  }
  const mlx_value_t q = as_f32(f, node->operands[0]), k = as_f32(f, node->operands[1]),
                    v = as_f32(f, node->operands[2]);
  return mlx_generic_attention(f, &a, q, k, v);
}

// ----------------------------------------------------------------------------------------------------------
// Ops without a kernel

static mlx_value_t as_heads(mlx_function_t *f, mlx_value_t x, int64_t head_dim) {
  return mlx_build_reshape(f->b, "each_head", x,
                           MLX_TYPE(MLX_F32, x.dims[0] * (x.dims[1] / head_dim), head_dim));
}

static mlx_value_t lower_head_rmsnorm(mlx_function_t *f, const mlx_node_t *node, mlx_value_t x) {
  const mlx_value_t heads = as_heads(f, x, node->head_dim);
  const mlx_value_t normed = mlx_generic_rmsnorm(f, "each_head_normed", heads, weight(f, node, 1), node->eps);
  return mlx_build_reshape(f->b, node->name, normed, mlx_type_of(x));
}

static mlx_value_t lower_head_layernorm(mlx_function_t *f, const mlx_node_t *node, mlx_value_t x) {
  const mlx_value_t gain = weight(f, node, 1);
  const bool shared = gain.rank == 1;  // by all heads
  const mlx_value_t heads = as_heads(f, x, node->head_dim);
  mlx_value_t normed =
      mlx_generic_layernorm(f, "each_head_normed", heads, shared ? gain : MLX_NONE, MLX_NONE, node->eps);
  normed = mlx_build_reshape(f->b, shared ? node->name : "heads_normed", normed, mlx_type_of(x));
  if (shared) return normed;
  const mlx_value_t wide = mlx_build_convert(f->b, "gain_f32", gain, MLX_F32);
  const mlx_value_t flat = mlx_build_reshape(f->b, "gain", wide, MLX_TYPE(MLX_F32, x.dims[1]));
  const mlx_value_t gains = mlx_build_broadcast(f->b, "gains", flat, (int64_t[]){1}, mlx_type_of(x));
  return mlx_build_binary(f->b, node->name, "multiply", normed, gains);
}

static mlx_value_t lower_scale_rows(mlx_function_t *f, const mlx_node_t *node, mlx_value_t x) {
  const mlx_value_t factor = as_f32(f, node->operands[1]);
  const mlx_value_t factors = mlx_build_broadcast(f->b, "factors", factor, (int64_t[]){0, 1}, mlx_type_of(x));
  return mlx_build_binary(f->b, node->name, "multiply", x, factors);
}

static mlx_value_t lower_embed(mlx_function_t *f, int id, const mlx_node_t *node, const char *name,
                               double factor) {
  const mlx_value_t table = weight(f, node, 0), indices = emitted(f, node->operands[1]);
  if (!f->paths.nodes[id - 1].kernel) return mlx_generic_embed(f, table, indices);
  return table.quantized_weight ? mlx_cuda_quantized_embed(f, name, table, indices, factor)
                                : mlx_cuda_embed(f, name, table, indices, factor);
}

static mlx_value_t lower_scale(mlx_function_t *f, int scale, const mlx_node_t *node) {
  const int id = node->operands[0];
  const bool embeds = is_fused(f, id) && !is_element(f, id);
  if (!embeds && f->paths.nodes[scale - 1].kernel) return lower_elements(f, node);
  if (!embeds) return mlx_generic_scale(f, node->name, as_f32(f, id), node->factor);
  return lower_embed(f, id, mlx_graph_node(f->graph, id), node->name, node->factor);
}

static mlx_value_t lower_norm(mlx_function_t *f, const mlx_node_t *node) {
  const bool of_rows = node->kind == MLX_NODE_RMSNORM || node->kind == MLX_NODE_LAYERNORM;
  const int64_t width = of_rows ? node->dims[1] : node->head_dim;
  if (node->kind == MLX_NODE_LAYERNORM || node->kind == MLX_NODE_HEAD_LAYERNORM)
    return mlx_cuda_layernorm(f, node->name, as_f32(f, node->operands[0]), width, weight(f, node, 1),
                              node->kind == MLX_NODE_LAYERNORM ? weight(f, node, 2) : MLX_NONE, node->eps);
  return mlx_cuda_rmsnorm(f, node->name, as_f32(f, node->operands[0]), width, weight(f, node, 1), node->eps,
                          MLX_NONE);
}

// The norm as bf16 parts, in the order of 16-bit weights or of quantized ones. Completes its operand.
static mlx_value_t norm_parts(mlx_function_t *f, const char *name, const mlx_node_t *node, bool rows16) {
  mlx_value_t *x = &f->values[node->operands[0]];
  const mlx_value_t gain = weight(f, node, 1);
  if (node->kind == MLX_NODE_LAYERNORM)
    return mlx_cuda_layernorm_parts(f, name, as_f32(f, node->operands[0]), gain, weight(f, node, 2),
                                    node->eps, rows16);
  const mlx_value_t wide = gain.dtype == MLX_F32 ? gain : mlx_build_convert(f->b, "gain_f32", gain, MLX_F32);
  const mlx_value_t from = x->partials ? *x : as_f32(f, node->operands[0]);
  return mlx_cuda_norm_parts(f, name, from, wide, node->eps, rows16, x);
}

// The same in the order of its first user.
static mlx_value_t lower_norm_parts(mlx_function_t *f, int id, const mlx_node_t *node) {
  const mlx_node_t *weight_node = mlx_graph_operand(f->graph, first_user(f, id), 1);
  const mlx_tiles_t *tiles = f->options->kernels->tiles;
  return norm_parts(f, node->name, node, !tiles || !tiles[weight_node->weight_index].bits);
}

// Completes the operand of a norm whose kernel does not. The kernel that stores parts does it.
static void complete_operand(mlx_function_t *f, const mlx_node_t *norm) {
  if (emitted(f, norm->operands[0]).partials) norm_parts(f, "completed", norm, true);
}

static mlx_value_t lower_permute(mlx_function_t *f, int id, const mlx_node_t *node) {
  const mlx_node_t *norm = mlx_graph_operand(f->graph, node, 0);
  const mlx_value_t order = weight(f, node, 1);
  if (is_fused(f, node->operands[0])) {
    complete_operand(f, norm);
    return mlx_cuda_ordered_rmsnorm(f, node->name, as_f32(f, norm->operands[0]), weight(f, norm, 1),
                                    norm->eps, order);
  }
  const mlx_value_t x = as_f32(f, node->operands[0]);
  return f->paths.nodes[id - 1].kernel ? mlx_cuda_permute(f, node->name, x, order)
                                       : mlx_generic_permute(f, node->name, x, order);
}

// Ops with one activation as operand; |x| is its value as f32.
static mlx_value_t lower_simple(mlx_function_t *f, const mlx_node_t *node, mlx_value_t x) {
  const char *name = node->name;
  switch (node->kind) {
    case MLX_NODE_RMSNORM: return mlx_generic_rmsnorm(f, name, x, weight(f, node, 1), node->eps);
    case MLX_NODE_LAYERNORM:
      return mlx_generic_layernorm(f, name, x, weight(f, node, 1), weight(f, node, 2), node->eps);
    case MLX_NODE_HEAD_RMSNORM: return lower_head_rmsnorm(f, node, x);
    case MLX_NODE_HEAD_LAYERNORM: return lower_head_layernorm(f, node, x);
    case MLX_NODE_BIAS: return mlx_generic_bias(f, name, x, weight(f, node, 1));
    case MLX_NODE_MULTIPLY: return mlx_build_binary(f->b, name, "multiply", x, as_f32(f, node->operands[1]));
    case MLX_NODE_SOFTCAP: return mlx_generic_softcap(f, name, x, node->cap);
    case MLX_NODE_CLIP: return mlx_generic_clip(f, name, x, node->limit);
    case MLX_NODE_GROW: return mlx_generic_grow(f, name, x, node->beta, node->period);
    case MLX_NODE_ACTIVATE: return mlx_generic_activate(f, name, node->act, x);
    case MLX_NODE_SIGMOID: return mlx_build_unary(f->b, name, "logistic", x);
    case MLX_NODE_SCALE_ROWS: return lower_scale_rows(f, node, x);
    case MLX_NODE_COLUMNS:
      return mlx_build_slice_last(f->b, name, x, node->start, node->start + node->dims[1]);
    case MLX_NODE_ROPE: return mlx_generic_rope(f, name, x, node->head_dim, node->rope);
    default:
      mlx_builder_fail(f->b,
                       mlx_error(MLX_INTERNAL, "op '%s' has no lowering", mlx_node_kind_name(node->kind)));
      return MLX_NONE;
  }
}

// ----------------------------------------------------------------------------------------------------------
// The walk

static mlx_value_t lower_node(mlx_function_t *f, int id, const mlx_node_t *node) {
  const bool norm = node->kind == MLX_NODE_RMSNORM || node->kind == MLX_NODE_LAYERNORM;
  if (norm && f->paths.parts[id - 1]) return lower_norm_parts(f, id, node);
  if (node->kind == MLX_NODE_RMSNORM) complete_operand(f, node);  // the last norm has no parts
  switch (node->kind) {
    case MLX_NODE_EMBED: return lower_embed(f, id, node, node->name, 1);
    case MLX_NODE_LINEAR: return lower_linear(f, id, node);
    case MLX_NODE_ADD: return lower_add(f, id, node);
    case MLX_NODE_GATED: return lower_gated(f, id, node);
    case MLX_NODE_EXPERTS: return lower_experts(f, id, node, node->name, MLX_NONE);
    case MLX_NODE_ATTENTION: return lower_attention(f, id, node);
    case MLX_NODE_SCALE: return lower_scale(f, id, node);
    case MLX_NODE_PERMUTE: return lower_permute(f, id, node);
    case MLX_NODE_RMSNORM:
    case MLX_NODE_HEAD_RMSNORM:
    case MLX_NODE_LAYERNORM:
    case MLX_NODE_HEAD_LAYERNORM:
      if (f->paths.nodes[id - 1].kernel) return lower_norm(f, node);
      return lower_simple(f, node, as_f32(f, node->operands[0]));
    default:
      if (f->paths.nodes[id - 1].kernel) return lower_elements(f, node);
      return lower_simple(f, node, as_f32(f, node->operands[0]));
  }
}

static bool on_gpu(const mlx_function_t *f) { return f->options->kernels && f->options->kernels->gpu; }

static mlx_value_t select_wanted(mlx_function_t *f, mlx_value_t x) {
  mlx_builder_comment(f->b, "hidden states of the tokens whose logits are wanted");
  if (on_gpu(f)) return mlx_cuda_pick(f, x);
  const mlx_value_t rows = mlx_build_gather(f->b, "wanted", x, f->wanted);
  const mlx_value_t hidden =
      mlx_build_update_rows(f->b, "new_hidden", mlx_builder_load(f->b, MLX_ARG_HIDDEN), rows);
  mlx_builder_store(f->b, MLX_ARG_HIDDEN, hidden);
  return rows;
}

// A product that a kernel computes and that is the logits themselves is written where the caller wants it.
static bool is_head(const mlx_function_t *f, int id) {
  const mlx_node_t *last = mlx_graph_node(f->graph, (int)f->graph->count),
                   *node = mlx_graph_node(f->graph, id);
  return f->paths.nodes[id - 1].kernel && node->kind == MLX_NODE_LINEAR && last->operands[0] == id &&
         node->uses == 1;
}

static void lower_head(mlx_function_t *f, int id, const mlx_node_t *node) {
  f->into = mlx_builder_load(f->b, MLX_ARG_LOGITS);
  const mlx_value_t logits =
      f->few ? mlx_cuda_few_head(f, emitted(f, node->operands[0])) : lower_linear(f, id, node);
  f->into = MLX_NONE;
  if (logits.id) mlx_builder_store(f->b, MLX_ARG_LOGITS, logits);
}

static void store_logits(mlx_function_t *f, const mlx_node_t *node) {
  if (is_head(f, node->operands[0])) return;
  const mlx_value_t rows = as_f32(f, node->operands[0]), old = mlx_builder_load(f->b, MLX_ARG_LOGITS);
  const mlx_value_t logits = mlx_build_update_rows(f->b, "new_logits", old, rows);
  if (logits.id) mlx_builder_store(f->b, MLX_ARG_LOGITS, logits);
}

// Names after this node start with its scope, and a comment opens the scope.
static void enter_scope(mlx_function_t *f, const char *scope) {
  if (!strcmp(f->scope, scope)) return;
  f->scope = scope;
  if (scope[0]) mlx_builder_comment(f->b, "---- %s ----", scope);
  mlx_builder_scope(f->b, scope);
}

void mlx_lower_network(mlx_function_t *f) {
  mlx_paths_fuse(f->model, f->graph, f->options, f->size.tokens, f->size.wanted, &f->paths);
  f->scope = "";
  for (int id = 1; id <= (int)f->graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(f->graph, id);
    mlx_value_t *value = &f->values[id];
    if (node->kind == MLX_NODE_TOKENS) {
      *value = f->ids;
    } else if (node->kind == MLX_NODE_POSITIONS) {
      *value = f->positions;
    } else if (node->kind != MLX_NODE_WEIGHT) {
      enter_scope(f, node->scope);
      if (f->paths.leaders[id - 1] || (f->few && mlx_cuda_few_lower(f, id, node))) continue;
      load_weights(f, node);
      const bool folded = node->kind == MLX_NODE_RMSNORM && f->paths.token[id - 1];
      if (folded || is_fused(f, id) || lower_group(f, id, node)) continue;
      if (node->kind == MLX_NODE_LOGITS)
        store_logits(f, node);
      else if (is_head(f, id))
        lower_head(f, id, node);
      else
        *value = node->kind == MLX_NODE_WANTED ? select_wanted(f, as_f32(f, node->operands[0]))
                                               : lower_node(f, id, node);
    }
  }
}
