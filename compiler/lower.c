// Prints the launches of a function. A launch is a CUDA kernel (lower_cuda.h), or one node as plain StableHLO
// (lower_stablehlo.h).
#include "compiler/lower.h"

#include <string.h>

#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"
#include "compiler/latent.h"
#include "compiler/launches.h"
#include "compiler/lower_cuda.h"
#include "compiler/lower_cuda_few.h"
#include "compiler/lower_cuda_recurrent.h"
#include "compiler/lower_cuda_rows.h"
#include "compiler/lower_place.h"
#include "compiler/lower_stablehlo.h"

// ----------------------------------------------------------------------------------------------------------
// Operands

static const mlx_node_t *node_at(const mlx_function_t *f, int id) { return mlx_graph_node(f->graph, id); }

// The value of a node as it was emitted. Attention and gated products of 16-bit kernels are 16-bit values.
static mlx_built_t emitted(const mlx_function_t *f, int id) { return id ? f->values[id] : MLX_NO_VALUE; }

// The same as f32.
static mlx_built_t as_f32(mlx_function_t *f, int id) {
  const mlx_built_t x = emitted(f, id);
  if (x.partials)
    mlx_builder_fail(f->b, mlx_error(MLX_INTERNAL, "node %d is used before it is complete", id));
  return x.dtype == MLX_F32 || !x.id ? x : mlx_build_convert(f->b, "as_f32", x, MLX_F32);
}

// A weight is not converted: its users convert it where they need it.
static mlx_built_t weight(const mlx_function_t *f, const mlx_node_t *node, int nth) {
  return emitted(f, node->operands[nth]);
}

// Loads the weights that |node| is the first to use.
static void load_weights(mlx_function_t *f, const mlx_node_t *node) {
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
    const mlx_node_t *operand = mlx_graph_operand(f->graph, node, i);
    if (!operand || operand->kind != MLX_NODE_WEIGHT) continue;
    const mlx_built_t loaded = mlx_builder_load(f->b, operand->weight_name);
    f->values[node->operands[i]] = loaded.id ? mlx_cuda_weight(f, operand->weight_index, loaded) : loaded;
  }
}

// The nodes of that kind that a launch computes. Returns their number, at most |most|.
static int find_nodes(const mlx_function_t *f, const mlx_launch_t *l, mlx_node_kind_t kind, int most,
                      int *out_ids) {
  int count = 0;
  for (int i = 0; i < l->nodes.count && count < most; ++i)
    if (node_at(f, l->nodes.ids[i])->kind == kind) out_ids[count++] = l->nodes.ids[i];
  return count;
}

static const mlx_node_t *find_node(const mlx_function_t *f, const mlx_launch_t *l, mlx_node_kind_t kind) {
  int id;
  return find_nodes(f, l, kind, 1, &id) ? node_at(f, id) : NULL;
}

// What the addition at the end of a launch adds to the launch's own result.
static mlx_built_t addend_of(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *add = node_at(f, l->node);
  if (l->epilogue != MLX_EPILOGUE_ADD && l->epilogue != MLX_EPILOGUE_PARTIAL) return MLX_NO_VALUE;
  return as_f32(f, add->operands[mlx_launch_computes(l, add->operands[0]) ? 1 : 0]);
}

// ----------------------------------------------------------------------------------------------------------
// Products

// The operand |id| of a launch that may compute a norm by itself: x, and the norm if there is one.
static mlx_built_t before_norm(mlx_function_t *f, const mlx_launch_t *l, int id, mlx_cuda_norm_t *out_norm) {
  const mlx_node_t *node = node_at(f, id);
  *out_norm = (mlx_cuda_norm_t){0};
  if (!mlx_launch_computes(l, id)) return as_f32(f, id);
  *out_norm = (mlx_cuda_norm_t){.gain = weight(f, node, 1), .eps = node->eps};
  return as_f32(f, node->operands[0]);
}

// The bias that a launch adds to product |product|; 0: none.
static int bias_of(const mlx_function_t *f, const mlx_launch_t *l, int product) {
  for (int i = 0; i < l->nodes.count; ++i) {
    const mlx_node_t *node = node_at(f, l->nodes.ids[i]);
    if (node->kind == MLX_NODE_BIAS && node->operands[0] == product) return l->nodes.ids[i];
  }
  return 0;
}

// Products of one token, which become the values of these nodes and of their biases.
static mlx_built_t lower_token_products(mlx_function_t *f, const mlx_launch_t *l) {
  int products[MLX_GROUP_PRODUCTS];
  mlx_token_products_t p = {.residual = addend_of(f, l)};
  mlx_built_t results[MLX_GROUP_PRODUCTS] = {{0}};
  p.count = find_nodes(f, l, MLX_NODE_LINEAR, MLX_GROUP_PRODUCTS, products);
  p.x = before_norm(f, l, node_at(f, products[0])->operands[0], &p.norm);
  for (int i = 0; i < p.count; ++i) {
    const mlx_node_t *product = node_at(f, products[i]);
    const int bias = bias_of(f, l, products[i]);
    load_weights(f, product);
    p.weights[i] = weight(f, product, 1);
    if (!bias) continue;
    load_weights(f, node_at(f, bias));
    p.biases[i] = weight(f, node_at(f, bias), 1);
  }
  mlx_cuda_token_products(f, node_at(f, l->node)->name, &p, results);
  for (int i = 0; i < p.count; ++i) {
    const int bias = bias_of(f, l, products[i]);
    f->values[products[i]] = results[i];
    if (bias) f->values[bias] = results[i];
  }
  return results[0];
}

// |norm| of its operand, not yet computed.
static mlx_built_t late_norm(mlx_function_t *f, const mlx_node_t *norm) {
  mlx_built_t x = as_f32(f, norm->operands[0]);
  x.norm_gain = mlx_cuda_f32(f, "gain_f32", weight(f, norm, 1)).id;
  x.norm_eps = norm->eps;
  return x;
}

// The operand |id| of a product with an epilogue, or of many tokens.
static mlx_built_t read_product_operand(mlx_function_t *f, const mlx_launch_t *l, int id) {
  if (l->split) return f->split_parts;
  return mlx_launch_computes(l, id) ? late_norm(f, node_at(f, id)) : emitted(f, id);
}

// The launch after a split is the first that reads it. Its weights are loaded first.
static void lower_split(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_launch_t *user = l + 1;
  for (int i = 0; i < user->nodes.count; ++i)
    if (node_at(f, user->nodes.ids[i])->kind == MLX_NODE_LINEAR)
      load_weights(f, node_at(f, user->nodes.ids[i]));
  const mlx_built_t x =
      mlx_launch_computes(l, l->split) ? late_norm(f, node_at(f, l->split)) : emitted(f, l->split);
  f->split_parts = mlx_cuda_split(f, x, l->rows16);
}

// The product that is the logits is written where the caller wants them.
static mlx_built_t lower_plain_product(mlx_function_t *f, const mlx_launch_t *l, const mlx_node_t *node) {
  const bool is_head = mlx_launch_computes(l, (int)f->graph->count);
  const mlx_built_t into = is_head ? mlx_builder_load(f->b, MLX_ARG_LOGITS) : MLX_NO_VALUE,
                    x = read_product_operand(f, l, node->operands[0]), matrix = weight(f, node, 1);
  const bool scores = l->kernel == MLX_KERNEL_EXPERTS, wide = mlx_cuda_uses_gemv(x.dims[0]) || scores;
  const mlx_cuda_product_t p = {.x = wide ? as_f32(f, node->operands[0]) : x, .weight = matrix, .into = into};
  const mlx_built_t product =
      scores ? mlx_cuda_scores(f, node->name, &p) : mlx_cuda_linear(f, node->name, &p);
  if (is_head && product.id) mlx_builder_store(f->b, MLX_ARG_LOGITS, product);
  return is_head ? MLX_NO_VALUE : product;
}

static mlx_built_t lower_product(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node), *linear = find_node(f, l, MLX_NODE_LINEAR);
  if (l->epilogue == MLX_EPILOGUE_NONE) return lower_plain_product(f, l, node);
  mlx_cuda_product_t p = {
      .weight = weight(f, linear, 1), .epilogue = l->epilogue, .into_parts = l->parts, .few = l->few};
  if (l->epilogue == MLX_EPILOGUE_GATED) {
    linear = mlx_graph_operand(f->graph, node, 0);
    p.act = node->act;
    p.weight = weight(f, linear, 1);
    p.other = weight(f, mlx_graph_operand(f->graph, node, 1), 1);
  } else {
    p.other = addend_of(f, l);
  }
  p.x = read_product_operand(f, l, linear->operands[0]);
  return l->epilogue == MLX_EPILOGUE_PARTIAL ? mlx_cuda_partial_linear(f, node->name, &p)
                                             : mlx_cuda_linear(f, node->name, &p);
}

static void lower_products(mlx_function_t *f, const mlx_launch_t *l) {
  int members[MLX_GROUP_PRODUCTS];
  mlx_built_t weights[MLX_GROUP_PRODUCTS] = {{0}}, products[MLX_GROUP_PRODUCTS] = {{0}};
  const mlx_node_t *first = node_at(f, l->node);
  const int count = find_nodes(f, l, MLX_NODE_LINEAR, MLX_GROUP_PRODUCTS, members);
  for (int i = 0; i < count; ++i) {
    const mlx_node_t *member = node_at(f, members[i]);
    load_weights(f, member);
    weights[i] = weight(f, member, 1);
  }
  mlx_cuda_group(f, first->name, read_product_operand(f, l, first->operands[0]), weights, count, products);
  for (int i = 0; i < count; ++i) f->values[members[i]] = products[i];
}

static mlx_built_t lower_head_product(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  const mlx_node_t *columns = mlx_graph_operand(f->graph, node, 0);
  const bool reads_columns = mlx_launch_computes(l, node->operands[0]);
  return mlx_cuda_scores(f, node->name,
                         &(mlx_cuda_product_t){
                             .x = as_f32(f, reads_columns ? columns->operands[0] : node->operands[0]),
                             .weight = weight(f, node, 1),
                             .first = reads_columns ? columns->start : 0,
                         });
}

static mlx_expert_weights_t expert_weights(const mlx_function_t *f, const mlx_node_t *node) {
  return (mlx_expert_weights_t){.gate = weight(f, node, 2),
                                .up = weight(f, node, 3),
                                .down = weight(f, node, 4),
                                .gate_bias = weight(f, node, 5),
                                .up_bias = weight(f, node, 6),
                                .down_bias = weight(f, node, 7),
                                .choice_bias = weight(f, node, 8),
                                .factors = weight(f, node, 9)};
}

static mlx_built_t lower_experts(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = find_node(f, l, MLX_NODE_EXPERTS);
  const mlx_expert_weights_t weights = expert_weights(f, node);
  const mlx_built_t residual = addend_of(f, l);
  mlx_cuda_norm_t norm;
  const mlx_built_t x = before_norm(f, l, node->operands[0], &norm), scores = as_f32(f, node->operands[1]);
  return mlx_cuda_experts(f, node, node_at(f, l->node)->name, &weights, x, norm, scores, residual);
}

// ----------------------------------------------------------------------------------------------------------
// Elementwise ops

// The operand |id| of an elementwise kernel, which adds a bias and reads columns that it computes.
static mlx_elements_operand_t read_element(mlx_function_t *f, const mlx_launch_t *l, int id) {
  const mlx_node_t *node = node_at(f, id);
  mlx_elements_operand_t operand = {.start = 0};
  if (node->kind == MLX_NODE_BIAS && mlx_launch_computes(l, id)) {
    operand.bias = weight(f, node, 1);
    id = node->operands[0];
    node = node_at(f, id);
  }
  if (node->kind == MLX_NODE_COLUMNS && mlx_launch_computes(l, id)) {
    operand.start = node->start;
    id = node->operands[0];
  }
  operand.x = as_f32(f, id);
  return operand;
}

// The function of one number that |node| is, and its numbers.
static int element_function(const mlx_node_t *node, float *out_numbers) {
  out_numbers[0] = (float)node->number;
  if (node->kind == MLX_NODE_ACTIVATE) memcpy(out_numbers, node->act_numbers, sizeof node->act_numbers);
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

static mlx_built_t lower_elements(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  const mlx_node_kind_t kind = node->kind;
  const bool two = kind == MLX_NODE_ADD || kind == MLX_NODE_MULTIPLY || kind == MLX_NODE_GATED ||
                   kind == MLX_NODE_SCALE_ROWS;
  int first = node->operands[0], second = two ? node->operands[1] : 0;
  const bool opens = kind == MLX_NODE_SCALE_ROWS && mlx_launch_computes(l, second);  // a sigmoid
  if (opens) second = node_at(f, second)->operands[0];
  mlx_elements_t e = {.width = node->dims[1]};
  e.function = element_function(node, e.numbers);
  for (int i = 0; i < 2 && (kind == MLX_NODE_ADD || kind == MLX_NODE_MULTIPLY); ++i) {
    const mlx_node_t *changed = mlx_graph_operand(f->graph, node, i);  // it is read as the first one
    if (changed->kind != (kind == MLX_NODE_ADD ? MLX_NODE_SCALE : MLX_NODE_SIGMOID) ||
        !mlx_launch_computes(l, node->operands[i]))
      continue;
    first = changed->operands[0];
    second = node->operands[1 - i];
    e.function = element_function(changed, e.numbers);
  }
  e.from[0] = read_element(f, l, first);
  if (two) e.from[1] = read_element(f, l, second);
  if (kind == MLX_NODE_BIAS) e.from[0].bias = weight(f, node, 1);
  if (kind == MLX_NODE_COLUMNS) e.from[0].start = node->start;
  if (kind == MLX_NODE_ADD) e.combination = MLX_ELEMENTS_ADD;
  if (kind == MLX_NODE_MULTIPLY || kind == MLX_NODE_GATED) e.combination = MLX_ELEMENTS_MULTIPLY;
  if (kind == MLX_NODE_SCALE_ROWS)
    e.combination = opens ? MLX_ELEMENTS_MULTIPLY_SIGMOIDS : MLX_ELEMENTS_MULTIPLY_ROWS;
  return mlx_cuda_elements(f, node->name, &e);
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// Operand |nth| of attention, node |id|, without the ops that the attention kernel computes: those go to
// |out|. |id| 0: keys or values of another layer.
static void read_heads(mlx_function_t *f, const mlx_launch_t *l, int id, int nth, mlx_cuda_qkv_t *out) {
  if (!id) return;
  const mlx_node_t *node = node_at(f, id);
  if (node->kind == MLX_NODE_ROPE && mlx_launch_computes(l, id)) {
    out->table = mlx_rope_table(f, node->rope);
    id = node->operands[0];
    node = node_at(f, id);
  }
  if (node->kind == MLX_NODE_HEAD_RMSNORM && mlx_launch_computes(l, id)) {
    if (nth < 2)
      out->norms[nth] = (mlx_cuda_norm_t){.gain = weight(f, node, 1), .eps = node->eps};
    else
      out->value_norm = true;
    id = node->operands[0];
    node = node_at(f, id);
  }
  if (node->kind == MLX_NODE_BIAS && mlx_launch_computes(l, id)) {
    out->biases[nth] = weight(f, node, 1);
    id = node->operands[0];
  }
  out->x[nth] = as_f32(f, id);
}

static mlx_built_t lower_latent(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  mlx_latent_t found;
  if (!mlx_latent_find(f->graph, node, &found)) {  // fusion.c has found it
    mlx_builder_fail(f->b, mlx_error(MLX_INTERNAL, "latent attention was not found again"));
    return MLX_NO_VALUE;
  }
  const mlx_cuda_latent_t latent = {
      .absorbed = as_f32(f, found.absorbed),
      .q = as_f32(f, found.q),
      .row = as_f32(f, found.row),
      .norm = {.gain = weight(f, found.norm, 1), .eps = found.norm->eps},
      .table = mlx_rope_table(f, found.rope),
      .query_dim = found.columns->head_dim,
      .start = found.columns->start,
      .grow_beta = found.grow ? found.grow->beta : 0,
      .grow_period = found.grow ? found.grow->period : 0,
  };
  return mlx_cuda_attention(f, &node->attention,
                            &(mlx_cuda_qkv_t){.into_parts = l->parts, .latent = &latent});
}

static mlx_built_t lower_attention(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  mlx_cuda_qkv_t qkv = {.sinks = weight(f, node, 3), .into_parts = l->parts};
  if (node->attention.value_dim) return lower_latent(f, l);
  if (l->appended)
    qkv.x[0] = emitted(f, mlx_graph_operand(f->graph, node, 0)->operands[0]);
  else
    for (int i = 0; i < 3; ++i) read_heads(f, l, node->operands[i], i, &qkv);
  return mlx_cuda_attention(f, &node->attention, &qkv);
}

// ----------------------------------------------------------------------------------------------------------
// Rows

static mlx_built_t lower_embed(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *embed = find_node(f, l, MLX_NODE_EMBED), *node = node_at(f, l->node);
  const double factor = node->kind == MLX_NODE_SCALE ? node->factor : 1;
  const mlx_built_t table = weight(f, embed, 0), indices = emitted(f, embed->operands[1]);
  return table.quantized_weight ? mlx_cuda_quantized_embed(f, node->name, table, indices, factor)
                                : mlx_cuda_embed(f, node->name, table, indices, factor);
}

// The norm as parts, in the order of 16-bit weights or of quantized ones. Completes its operand.
static mlx_built_t norm_parts(mlx_function_t *f, const char *name, const mlx_node_t *node, bool rows16) {
  mlx_built_t *x = &f->values[node->operands[0]];
  const mlx_built_t gain = weight(f, node, 1);
  if (node->kind == MLX_NODE_LAYERNORM)
    return mlx_cuda_layernorm_parts(f, name, as_f32(f, node->operands[0]), gain, weight(f, node, 2),
                                    node->eps, rows16);
  const mlx_built_t wide = mlx_cuda_f32(f, "gain_f32", gain);
  const mlx_built_t from = x->partials ? *x : as_f32(f, node->operands[0]);
  return mlx_cuda_norm_parts(f, name, from, wide, node->eps, rows16, x);
}

static mlx_built_t lower_layernorm(mlx_function_t *f, const mlx_node_t *node) {
  const bool of_rows = node->kind == MLX_NODE_LAYERNORM;
  return mlx_cuda_layernorm(f, node->name, as_f32(f, node->operands[0]),
                            of_rows ? node->dims[1] : node->head_dim, weight(f, node, 1),
                            of_rows ? weight(f, node, 2) : MLX_NO_VALUE, node->eps);
}

static mlx_built_t lower_norm(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node), *norm = find_node(f, l, MLX_NODE_RMSNORM);
  if (l->parts) return norm_parts(f, node->name, node, l->rows16);
  if (node->kind == MLX_NODE_LAYERNORM || node->kind == MLX_NODE_HEAD_LAYERNORM)
    return lower_layernorm(f, node);
  if (!norm) norm = node;  // of heads
  const mlx_built_t addend = addend_of(f, l), x = as_f32(f, norm->operands[0]), gain = weight(f, norm, 1);
  if (node->kind == MLX_NODE_PERMUTE)
    return mlx_cuda_ordered_rmsnorm(f, node->name, x, gain, norm->eps, weight(f, node, 1));
  const int64_t width = norm->kind == MLX_NODE_RMSNORM ? norm->dims[1] : norm->head_dim;
  return mlx_cuda_rmsnorm(f, node->name, x, width, gain, norm->eps, addend);
}

static mlx_built_t lower_head_columns(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  const mlx_built_t x = as_f32(f, node->operands[0]);
  const int64_t heads = x.dims[1] / node->head_dim;
  return mlx_cuda_head_columns(f, node->name, x, node->head_dim, node->start, node->dims[1] / heads);
}

// ----------------------------------------------------------------------------------------------------------
// Recurrent ops

static mlx_built_t lower_convolve(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  return mlx_cuda_convolve(f, l->node, as_f32(f, node->operands[0]), weight(f, node, 1), weight(f, node, 2));
}

static mlx_built_t lower_delta(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  mlx_built_t operands[5];
  for (int i = 0; i < 3; ++i) operands[i] = as_f32(f, node->operands[i]);
  for (int i = 3; i < 5; ++i) operands[i] = weight(f, node, i);
  return mlx_cuda_delta(f, l->node, operands);
}

static mlx_built_t lower_scan(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_node_t *node = node_at(f, l->node);
  mlx_built_t operands[5];
  for (int i = 0; i < 2; ++i) operands[i] = as_f32(f, node->operands[i]);
  for (int i = 2; i < 5; ++i) operands[i] = weight(f, node, i);
  return mlx_cuda_scan(f, l->node, operands);
}

mlx_status_t mlx_lower_recurrent_error(void) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "recurrent layers need kernels; they have no generic path"),
      "use --kernels=auto, without --emit stablehlo; on a GPU also --dtype auto or bf16, not f32");
}

// ----------------------------------------------------------------------------------------------------------
// Ops without a kernel

static mlx_built_t as_heads(mlx_function_t *f, mlx_built_t x, int64_t head_dim) {
  return mlx_build_reshape(f->b, "each_head", x,
                           MLX_TYPE(MLX_F32, x.dims[0] * (x.dims[1] / head_dim), head_dim));
}

static mlx_built_t lower_head_rmsnorm(mlx_function_t *f, const mlx_node_t *node, mlx_built_t x) {
  const mlx_built_t heads = as_heads(f, x, node->head_dim);
  mlx_built_t gain = weight(f, node, 1);
  if (gain.id && gain.dims[0] > node->head_dim) {  // each head has its own
    const int64_t count = gain.dims[0] / node->head_dim;
    gain = mlx_build_reshape(f->b, "gain", gain, MLX_TYPE(MLX_F32, count, node->head_dim));
    gain = mlx_build_broadcast(f->b, "gains_of_heads", gain, (int64_t[]){1, 2},
                               MLX_TYPE(MLX_F32, x.dims[0], count, node->head_dim));
    gain = mlx_build_reshape(f->b, "gains_of_rows", gain, mlx_type_of(heads));
  }
  const mlx_built_t normed = mlx_generic_rmsnorm(f, "each_head_normed", heads, gain, node->eps);
  return mlx_build_reshape(f->b, node->name, normed, mlx_type_of(x));
}

static mlx_built_t lower_head_layernorm(mlx_function_t *f, const mlx_node_t *node, mlx_built_t x) {
  const mlx_built_t gain = weight(f, node, 1);
  const bool shared = gain.rank == 1;  // by all heads
  const mlx_built_t heads = as_heads(f, x, node->head_dim);
  mlx_built_t normed = mlx_generic_layernorm(f, "each_head_normed", heads, shared ? gain : MLX_NO_VALUE,
                                             MLX_NO_VALUE, node->eps);
  normed = mlx_build_reshape(f->b, shared ? node->name : "heads_normed", normed, mlx_type_of(x));
  if (shared) return normed;
  const mlx_built_t wide = mlx_build_convert(f->b, "gain_f32", gain, MLX_F32);
  const mlx_built_t flat = mlx_build_reshape(f->b, "gain", wide, MLX_TYPE(MLX_F32, x.dims[1]));
  const mlx_built_t gains = mlx_build_broadcast(f->b, "gains", flat, (int64_t[]){1}, mlx_type_of(x));
  return mlx_build_binary(f->b, node->name, "multiply", normed, gains);
}

static mlx_built_t lower_scale_rows(mlx_function_t *f, const mlx_node_t *node, mlx_built_t x) {
  const mlx_built_t factor = as_f32(f, node->operands[1]);
  const mlx_built_t factors = mlx_build_broadcast(f->b, "factors", factor, (int64_t[]){0, 1}, mlx_type_of(x));
  return mlx_build_binary(f->b, node->name, "multiply", x, factors);
}

static mlx_built_t lower_columns_of_heads(mlx_function_t *f, const mlx_node_t *node, mlx_built_t x) {
  const int64_t count = node->dims[1] / (x.dims[1] / node->head_dim);
  const mlx_built_t columns = mlx_build_slice_last(f->b, "each_head_columns", as_heads(f, x, node->head_dim),
                                                   node->start, node->start + count);
  return mlx_build_reshape(f->b, node->name, columns, MLX_TYPE(MLX_F32, x.dims[0], node->dims[1]));
}

static mlx_built_t lower_head_join(mlx_function_t *f, const mlx_node_t *node, mlx_built_t x) {
  const mlx_built_t y = as_f32(f, node->operands[1]);
  const int64_t heads = x.dims[1] / node->head_dim;
  const mlx_built_t joined = mlx_build_concat_last(f->b, "each_head_joined", as_heads(f, x, node->head_dim),
                                                   as_heads(f, y, y.dims[1] / heads));
  return mlx_build_reshape(f->b, node->name, joined, MLX_TYPE(MLX_F32, x.dims[0], node->dims[1]));
}

static mlx_built_t lower_gated(mlx_function_t *f, const mlx_node_t *node) {
  const mlx_built_t gate = as_f32(f, node->operands[0]), up = as_f32(f, node->operands[1]);
  if (node->act == MLX_ACT_SILU) return mlx_generic_swiglu(f, node->name, gate, up);
  const mlx_built_t activated = mlx_generic_activate(f, "activated", node->act, NULL, gate);
  return mlx_build_binary(f->b, node->name, "multiply", activated, up);
}

static mlx_built_t select_wanted(mlx_function_t *f, mlx_built_t x) {
  const mlx_built_t rows = mlx_build_gather(f->b, "wanted", x, f->wanted);
  const mlx_built_t hidden =
      mlx_build_update_rows(f->b, "new_hidden", mlx_builder_load(f->b, MLX_ARG_HIDDEN), rows);
  mlx_builder_store(f->b, MLX_ARG_HIDDEN, hidden);
  return rows;
}

static void store_logits(mlx_function_t *f, const mlx_node_t *node) {
  const mlx_built_t rows = as_f32(f, node->operands[0]), old = mlx_builder_load(f->b, MLX_ARG_LOGITS);
  const mlx_built_t logits = mlx_build_update_rows(f->b, "new_logits", old, rows);
  if (logits.id) mlx_builder_store(f->b, MLX_ARG_LOGITS, logits);
}

// Ops with one activation as operand; |x| is its value as f32.
static mlx_built_t lower_simple(mlx_function_t *f, const mlx_node_t *node, mlx_built_t x) {
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
    case MLX_NODE_GAIN: return mlx_generic_gain(f, name, x, weight(f, node, 1));
    case MLX_NODE_MATCH: return mlx_generic_match(f, name, x, as_f32(f, node->operands[1]), node->number);
    case MLX_NODE_SPARSIFY: return mlx_generic_sparsify(f, name, x, node->number);
    case MLX_NODE_ACTIVATE: return mlx_generic_activate(f, name, node->act, node->act_numbers, x);
    case MLX_NODE_SIGMOID: return mlx_build_unary(f->b, name, "logistic", x);
    case MLX_NODE_SCALE_ROWS: return lower_scale_rows(f, node, x);
    case MLX_NODE_JOIN: return mlx_build_concat_last(f->b, name, x, as_f32(f, node->operands[1]));
    case MLX_NODE_HEAD_JOIN: return lower_head_join(f, node, x);
    case MLX_NODE_HEAD_LINEAR: return mlx_generic_head_linear(f, name, x, weight(f, node, 1));
    case MLX_NODE_COLUMNS:
      return mlx_build_slice_last(f->b, name, x, node->start, node->start + node->dims[1]);
    case MLX_NODE_ROPE: return mlx_generic_rope(f, name, x, node->head_dim, node->rope);
    case MLX_NODE_HEAD_COLUMNS: return lower_columns_of_heads(f, node, x);
    case MLX_NODE_CONVOLVE:
    case MLX_NODE_DELTA:
    case MLX_NODE_SCAN: mlx_builder_fail(f->b, mlx_lower_recurrent_error()); return MLX_NO_VALUE;
    default:
      mlx_builder_fail(f->b,
                       mlx_error(MLX_INTERNAL, "op '%s' has no lowering", mlx_node_kind_name(node->kind)));
      return MLX_NO_VALUE;
  }
}

static mlx_built_t lower_generic(mlx_function_t *f, const mlx_node_t *node) {
  const char *name = node->name;
  const int *operands = node->operands;
  switch (node->kind) {
    case MLX_NODE_EMBED: return mlx_generic_embed(f, weight(f, node, 0), emitted(f, operands[1]), node->some);
    case MLX_NODE_LINEAR: return mlx_generic_linear(f, name, as_f32(f, operands[0]), weight(f, node, 1));
    case MLX_NODE_ADD: {
      const mlx_built_t a = as_f32(f, operands[0]), b = as_f32(f, operands[1]);
      return mlx_generic_add(f, name, a, b);
    }
    case MLX_NODE_GATED: return lower_gated(f, node);
    case MLX_NODE_EXPERTS: {
      const mlx_expert_weights_t weights = expert_weights(f, node);
      const mlx_built_t x = as_f32(f, operands[0]), scores = as_f32(f, operands[1]);
      f->hides_routes = true;
      return mlx_generic_experts(f, name, &node->experts, &weights, x, scores);
    }
    case MLX_NODE_ATTENTION: {
      const mlx_built_t q = as_f32(f, operands[0]),
                        k = node->attention.shared ? MLX_NO_VALUE : as_f32(f, operands[1]),
                        v = node->attention.shared ? MLX_NO_VALUE : as_f32(f, operands[2]);
      return mlx_generic_attention(f, &node->attention, q, k, v, weight(f, node, 3));
    }
    case MLX_NODE_SCALE: return mlx_generic_scale(f, name, as_f32(f, operands[0]), node->factor);
    case MLX_NODE_PERMUTE: return mlx_generic_permute(f, name, as_f32(f, operands[0]), weight(f, node, 1));
    case MLX_NODE_WANTED: {
      const mlx_built_t x = as_f32(f, operands[0]);
      mlx_builder_comment(f->b, "hidden states of the tokens whose logits are wanted");
      return select_wanted(f, x);
    }
    case MLX_NODE_LOGITS: store_logits(f, node); return MLX_NO_VALUE;
    default: return lower_simple(f, node, as_f32(f, operands[0]));
  }
}

// ----------------------------------------------------------------------------------------------------------
// The walk

static mlx_built_t lower_wanted(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_built_t x = as_f32(f, node_at(f, l->node)->operands[0]);
  mlx_builder_comment(f->b, "hidden states of the tokens whose logits are wanted");
  return mlx_cuda_pick(f, x);
}

static void lower_few_head(mlx_function_t *f, const mlx_launch_t *l) {
  const mlx_built_t into = mlx_builder_load(f->b, MLX_ARG_LOGITS);
  const mlx_built_t logits = mlx_cuda_few_head(f, emitted(f, node_at(f, l->node)->operands[0]), into);
  if (logits.id) mlx_builder_store(f->b, MLX_ARG_LOGITS, logits);
}

// Emits a launch and sets the values of its outputs.
static void lower_launch(mlx_function_t *f, const mlx_launch_t *l) {
  mlx_built_t *value = &f->values[l->node];
  switch (l->kind) {
    case MLX_LAUNCH_STABLEHLO: *value = lower_generic(f, node_at(f, l->node)); break;
    case MLX_LAUNCH_EMBED: *value = lower_embed(f, l); break;
    case MLX_LAUNCH_NORM: *value = lower_norm(f, l); break;
    case MLX_LAUNCH_PERMUTE: {
      const mlx_node_t *node = node_at(f, l->node);
      *value = mlx_cuda_permute(f, node->name, as_f32(f, node->operands[0]), weight(f, node, 1));
      break;
    }
    case MLX_LAUNCH_ELEMENTS: *value = lower_elements(f, l); break;
    case MLX_LAUNCH_PRODUCT: *value = lower_product(f, l); break;
    case MLX_LAUNCH_PRODUCTS: lower_products(f, l); break;
    case MLX_LAUNCH_TOKEN_PRODUCTS: *value = lower_token_products(f, l); break;
    case MLX_LAUNCH_EXPERTS: *value = lower_experts(f, l); break;
    case MLX_LAUNCH_SPLIT: lower_split(f, l); break;
    case MLX_LAUNCH_COMPLETE: norm_parts(f, "completed", find_node(f, l, MLX_NODE_RMSNORM), true); break;
    case MLX_LAUNCH_ATTENTION: *value = lower_attention(f, l); break;
    case MLX_LAUNCH_HEAD_COLUMNS: *value = lower_head_columns(f, l); break;
    case MLX_LAUNCH_HEAD_PRODUCT: *value = lower_head_product(f, l); break;
    case MLX_LAUNCH_CONVOLVE: *value = lower_convolve(f, l); break;
    case MLX_LAUNCH_DELTA: *value = lower_delta(f, l); break;
    case MLX_LAUNCH_SCAN: *value = lower_scan(f, l); break;
    case MLX_LAUNCH_WANTED: *value = lower_wanted(f, l); break;
    case MLX_LAUNCH_FEW_QKV: mlx_cuda_few_qkv(f, l->layer, l->appended); break;
    case MLX_LAUNCH_FEW_LAYER: *value = mlx_cuda_few_last(f); break;
    case MLX_LAUNCH_FEW_HEAD: lower_few_head(f, l); break;
    default: mlx_builder_fail(f->b, mlx_error(MLX_INTERNAL, "a launch has no lowering")); break;
  }
}

// Names after this node start with its scope, and a comment opens the scope.
static void enter_scope(mlx_function_t *f, const char *scope) {
  if (!strcmp(f->scope, scope)) return;
  f->scope = scope;
  if (scope[0]) mlx_builder_comment(f->b, "---- %s ----", scope);
  mlx_builder_scope(f->b, scope);
}

// Whether node |id| loads its weights when the walk reaches it: its launch follows, and reads them one by
// one.
static bool loads_weights(const mlx_launches_t *launches, int id) {
  const mlx_launch_t *l = &launches->list[launches->first_of[id - 1]];
  if (l->kind == MLX_LAUNCH_TOKEN_PRODUCTS && mlx_graph_node(launches->graph, id)->kind == MLX_NODE_BIAS)
    return false;  // lower_token_products loads it with its product
  return l->kind != MLX_LAUNCH_FEW_QKV && l->kind != MLX_LAUNCH_FEW_LAYER && l->node >= id;
}

// Enters the scope of each node up to |last| and loads its weights.
static int advance(mlx_function_t *f, const mlx_launches_t *launches, int id, int last) {
  for (; id <= last; ++id) {
    const mlx_node_t *node = node_at(f, id);
    if (mlx_node_is_input(node->kind)) continue;
    enter_scope(f, node->scope);
    if (loads_weights(launches, id)) load_weights(f, node);
  }
  return id;
}

mlx_status_t mlx_lower_network(mlx_function_t *f) {
  mlx_launches_t launches;
  int next = 1;
  MLX_TRY(mlx_launches_make(f->model, f->graph, f->options, f->size, f->few, &launches));
  f->scope = "";
  for (int id = 1; id <= (int)f->graph->count; ++id) {
    if (node_at(f, id)->kind == MLX_NODE_TOKENS) f->values[id] = f->ids;
    if (node_at(f, id)->kind == MLX_NODE_POSITIONS) f->values[id] = f->positions;
  }
  for (size_t i = 0; i < launches.count; ++i) {
    next = advance(f, &launches, next, launches.list[i].node);
    lower_launch(f, &launches.list[i]);
  }
  advance(f, &launches, next, (int)f->graph->count);
  mlx_launches_clear(&launches);
  return NULL;
}
