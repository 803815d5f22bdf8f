// Chooses the path of each node, and finds the nodes that kernels compute together. compiler/launches.h gives
// the result.
#include "compiler/fusion.h"

#include "base/memory.h"
#include "compiler/cuda_launch.h"
#include "compiler/latent.h"

// ----------------------------------------------------------------------------------------------------------
// Path of each node

static mlx_stored_t stored_weight(const mlx_model_t *model, const mlx_module_options_t *options,
                                  const mlx_node_t *weight) {
  return mlx_weight_stored(&model->weights[weight->weight_index], mlx_module_storage(options));
}

// linear.cu and packed.cu multiply 16-bit and quantized matrices. packed.cu, which does not round
// activations, needs whole blocks of 32 columns. NULL: supported.
static const char *unsupported_linear(const mlx_stored_t stored, const mlx_module_options_t *options,
                                      const mlx_node_t *weight) {
  if (stored.tiles.bits) return NULL;
  if (stored.dtype == MLX_F32) return "products with f32 matrices";
  if (options->narrow)
    return weight->dims[1] % 8 ? "matrices whose number of columns is not a multiple of 8" : NULL;
  return weight->dims[1] % MLX_CODES ? "matrices whose number of columns is not a multiple of 32" : NULL;
}

// Routers of quantized models are f32 matrices. experts.cu multiplies them and other small ones that no other
// kernel takes.
static bool uses_scores(const mlx_stored_t stored, const mlx_module_options_t *options,
                        const mlx_node_t *weight) {
  return unsupported_linear(stored, options, weight) && mlx_cuda_has_scores(weight->dims[0], weight->dims[1]);
}

// experts.cu, and packed.cu for the matrices of experts. NULL: supported.
static const char *unsupported_experts(const mlx_model_t *model, const mlx_module_options_t *options,
                                       const mlx_graph_t *graph, const mlx_node_t *node) {
  mlx_stored_t stored[3];  // gate, up, down
  if (!node->operands[3]) return "experts without a gate";
  for (int i = 0; i < 3; ++i) {
    const mlx_node_t *weight = mlx_graph_operand(graph, node, 2 + i);
    stored[i] = stored_weight(model, options, weight);
    if (weight->dims[0] > MLX_EXPERTS_MOST || node->experts.used > MLX_EXPERTS_MOST_USED)
      return "mixtures of this many experts";
    if (node->experts.groups > MLX_EXPERTS_MOST_GROUPS) return "this many groups of experts";
    if (stored[i].tiles.bits) continue;
    if (stored[i].dtype == MLX_F32) return "experts with f32 matrices";
    if (weight->dims[2] % MLX_CODES) return "experts whose number of columns is not a multiple of 32";
  }
  return mlx_tiles_equal(stored[0].tiles, stored[1].tiles) && stored[0].dtype == stored[1].dtype
             ? NULL
             : "experts whose gate and up have different formats";
}

static bool same_heads(const mlx_attention_t *a, const mlx_attention_t *b) {
  return a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
         a->value_dim == b->value_dim;
}

// The feature of a layer's attention that attention.cu and attention_f32.cu do not support; NULL: there is
// none.
static const char *unsupported_attention(const mlx_graph_t *graph, const mlx_node_t *node) {
  const mlx_attention_t *a = &node->attention;
  mlx_latent_t latent;
  if (!mlx_attend_has(a->head_dim, a->value_dim)) return "attention heads of this size";
  if (a->value_dim && !mlx_latent_find(graph, node, &latent)) return "latent attention of this form";
  if (a->heads % a->kv_heads != 0) return "attention with this number of KV heads";
  return NULL;
}

static bool is_row_norm(mlx_node_kind_t kind) {
  return kind == MLX_NODE_RMSNORM || kind == MLX_NODE_LAYERNORM;
}

static bool is_norm(mlx_node_kind_t kind) {
  return is_row_norm(kind) || kind == MLX_NODE_HEAD_RMSNORM || kind == MLX_NODE_HEAD_LAYERNORM;
}

// Whether ELEMENTS of rows.cu computes this kind. A scale is also one of an embedding kernel.
static bool is_elementwise(mlx_node_kind_t kind) {
  return kind == MLX_NODE_BIAS || kind == MLX_NODE_ADD || kind == MLX_NODE_MULTIPLY ||
         kind == MLX_NODE_SCALE || kind == MLX_NODE_SOFTCAP || kind == MLX_NODE_CLIP ||
         kind == MLX_NODE_ACTIVATE || kind == MLX_NODE_GATED || kind == MLX_NODE_SIGMOID ||
         kind == MLX_NODE_SCALE_ROWS || kind == MLX_NODE_COLUMNS;
}

// recurrent.cu. NULL: supported.
static const char *unsupported_recurrent(const mlx_graph_t *graph, const mlx_node_t *node) {
  if (node->kind == MLX_NODE_DELTA)
    return node->delta.key_dim > MLX_CUDA_MAX_KEY_DIM ? "keys of this size" : NULL;
  if (node->kind == MLX_NODE_SCAN)
    return node->scan.state_size > MLX_CUDA_MAX_KEY_DIM ? "states of this size" : NULL;
  return mlx_graph_operand(graph, node, 1)->dims[1] > MLX_CUDA_MAX_TAPS ? "convolutions of so many taps"
                                                                        : NULL;
}

static int64_t greatest_divisor(int64_t a, int64_t b) { return b ? greatest_divisor(b, a % b) : a; }

int mlx_attention_kind(const mlx_graph_t *graph, const mlx_network_attention_t *attention,
                       const mlx_attention_t *a) {
  int kind = 0;
  while (kind < attention->kinds &&
         !same_heads(a, &mlx_graph_node(graph, attention->kind_nodes[kind])->attention))
    ++kind;
  return kind;
}

// Adds the heads of attention node |id|.
static void add_heads(const mlx_graph_t *graph, int id, mlx_network_attention_t *out) {
  const mlx_attention_t *a = &mlx_graph_node(graph, id)->attention;
  if (!out->unsupported) out->unsupported = unsupported_attention(graph, mlx_graph_node(graph, id));
  if (mlx_attention_kind(graph, out, a) < out->kinds) return;
  if (out->kinds < MLX_HEAD_KINDS)
    out->kind_nodes[out->kinds++] = id;
  else if (!out->unsupported)
    out->unsupported = "more than 4 kinds of heads";
}

mlx_network_attention_t mlx_network_attention(const mlx_graph_t *graph, const mlx_module_options_t *options) {
  mlx_network_attention_t out = {.layers = 0};
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (node->kind != MLX_NODE_ATTENTION) continue;
    if (!out.row) out.form = node->attention;
    out.layers += mlx_node_stores_kv(node);
    out.row = greatest_divisor(node->attention.kv_heads * node->attention.head_dim, out.row);
    add_heads(graph, id, &out);
  }
  if (!out.layers) {  // the pool has pages all the same
    out.layers = 1;
    out.form = (mlx_attention_t){.heads = 1, .kv_heads = 1, .head_dim = out.row = MLX_NO_HEAD_DIM};
    out.kinds = 1;
  }
  out.kernel = options->kernels && options->kernels->gpu && !out.unsupported;
  return out;
}

static void choose(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_module_options_t *options,
                   const char *unsupported_network, const mlx_node_t *node, mlx_fused_node_t *out) {
  if (node->kind == MLX_NODE_LINEAR) {
    const mlx_node_t *weight = mlx_graph_operand(graph, node, 1);
    const mlx_stored_t stored = stored_weight(model, options, weight);
    out->scores = uses_scores(stored, options, weight);
    if (!out->scores) out->unsupported = unsupported_linear(stored, options, weight);
    out->kernel = !out->unsupported;
  } else if (node->kind == MLX_NODE_EMBED) {
    const mlx_stored_t stored = stored_weight(model, options, mlx_graph_operand(graph, node, 0));
    out->kernel = stored.tiles.bits || (stored.dtype != MLX_F32 && node->dims[1] % 8 == 0);
  } else if (is_norm(node->kind)) {
    // In the 16-bit mode, IREE rounds and normalizes in one dispatch.
    out->kernel = !options->narrow && (is_row_norm(node->kind) ? node->dims[1] : node->head_dim) % 4 == 0;
  } else if (node->kind == MLX_NODE_PERMUTE) {
    out->kernel = node->dims[1] % 4 == 0;
  } else if (is_elementwise(node->kind)) {
    // In the 16-bit mode, IREE also rounds in the same dispatch. Of the logits, it stores the result as well.
    const bool wide = node->kind == MLX_NODE_COLUMNS && mlx_graph_operand(graph, node, 0)->dims[1] % 4;
    out->kernel = !options->narrow && node->dims[0] == MLX_DIM_TOKENS && node->dims[1] % 4 == 0 && !wide &&
                  node->start % 4 == 0;
  } else if (node->kind == MLX_NODE_ATTENTION) {
    out->unsupported = unsupported_network;
    out->kernel = !out->unsupported;
  } else if (node->kind == MLX_NODE_EXPERTS) {
    out->unsupported = unsupported_experts(model, options, graph, node);
    out->kernel = !out->unsupported;
  } else if (mlx_node_is_recurrent(node->kind)) {
    out->unsupported = unsupported_recurrent(graph, node);
    out->kernel = !out->unsupported;
  } else if (node->kind == MLX_NODE_HEAD_LINEAR) {
    out->kernel = mlx_graph_operand(graph, node, 1)->dims[2] % 4 == 0;
    if (!out->kernel) out->unsupported = "products of heads of this size";
  } else if (node->kind == MLX_NODE_HEAD_COLUMNS) {
    out->kernel = true;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Nodes that kernels compute together

static mlx_fused_node_t *at(const mlx_fusion_t *f, int id) { return &f->nodes[id - 1]; }

// Whether |id| is a product that a kernel with an epilogue computes, and only one node uses it. Products of
// few tokens have no epilogue.
static bool is_free_product(const mlx_fusion_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  const int64_t rows = node->dims[0] == MLX_DIM_TOKENS ? f->tokens : f->wanted;
  return node->kind == MLX_NODE_LINEAR && at(f, id)->kernel && node->uses == 1 && !mlx_cuda_uses_gemv(rows) &&
         !at(f, id)->scores;
}

// Mixtures of experts of any number of tokens add, too.
static bool is_free_mixture(const mlx_fusion_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  return node->kind == MLX_NODE_EXPERTS && at(f, id)->kernel && node->uses == 1;
}

// Whether |id| is a norm of rows.cu that only one node uses.
static bool is_free_norm(const mlx_fusion_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  return node->kind == MLX_NODE_RMSNORM && at(f, id)->kernel && node->uses == 1;
}

// Whether |id| is a product of one token, or the bias after it, that only one node uses.
static bool is_free_token_product(const mlx_fusion_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  return node->uses == 1 && ((node->kind == MLX_NODE_LINEAR && at(f, id)->token) ||
                             (node->kind == MLX_NODE_BIAS && at(f, id)->leader));
}

// Whether ELEMENTS of rows.cu computes |id|, of a kind it may compute together with the only user.
static bool is_free_element(const mlx_fusion_t *f, int id, mlx_node_kind_t kind) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  return node->kind == kind && at(f, id)->kernel && node->uses == 1 && !at(f, id)->leader;
}

// The operand |id| of an elementwise kernel, which adds a bias to it and reads the columns that it is.
static void fuse_element_operand(const mlx_fusion_t *f, int id) {
  if (is_free_element(f, id, MLX_NODE_BIAS)) {
    at(f, id)->fused = true;
    id = mlx_graph_node(f->graph, id)->operands[0];
  }
  if (is_free_element(f, id, MLX_NODE_COLUMNS)) at(f, id)->fused = true;
}

// The operand of |node| that an elementwise kernel scales, or takes the sigmoid of; 0: none.
static int changed_operand(const mlx_fusion_t *f, const mlx_node_t *node) {
  for (int i = 0; i < 2; ++i) {
    const int id = node->operands[i];
    const mlx_node_t *operand = id ? mlx_graph_node(f->graph, id) : NULL;
    if (node->kind == MLX_NODE_ADD && is_free_element(f, id, MLX_NODE_SCALE) &&
        mlx_graph_operand(f->graph, operand, 0)->kind != MLX_NODE_EMBED)
      return id;
    if (node->kind == MLX_NODE_MULTIPLY && is_free_element(f, id, MLX_NODE_SIGMOID)) return id;
    // The factors of rows: one number per row, which no kernel computes alone.
    if (node->kind == MLX_NODE_SCALE_ROWS && i && operand->kind == MLX_NODE_SIGMOID && operand->uses == 1)
      return id;
  }
  return 0;
}

// The operands of node |id|, if an elementwise kernel computes it. That kernel also scales one operand of an
// addition, and takes the sigmoid of a factor. A bias leaves its operand alone: the attention kernel may add
// it.
static void fuse_elements(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  const bool two =
      node->kind == MLX_NODE_ADD || node->kind == MLX_NODE_MULTIPLY || node->kind == MLX_NODE_GATED;
  if (!is_elementwise(node->kind) || !at(f, id)->kernel || node->kind == MLX_NODE_BIAS ||
      node->kind == MLX_NODE_COLUMNS || (two && node->operands[0] == node->operands[1]))
    return;
  for (int i = 0; i <= two; ++i)
    if (at(f, node->operands[i])->fused) return;  // another kernel computes the node
  const int changed = changed_operand(f, node);
  if (changed) at(f, changed)->fused = true;
  for (int i = 0; i <= two; ++i)
    if (node->operands[i] != changed) fuse_element_operand(f, node->operands[i]);
}

static void fuse_add(const mlx_fusion_t *f, const mlx_node_t *node) {
  for (int i = 1; i >= 0; --i) {
    const int id = node->operands[i];
    if (!is_free_product(f, id) && !is_free_norm(f, id) && !is_free_mixture(f, id) &&
        !is_free_token_product(f, id))
      continue;
    at(f, id)->fused = true;
    if (at(f, id)->leader) at(f, at(f, id)->leader)->fused = true;
    return;
  }
}

static bool same_format(const mlx_fusion_t *f, const mlx_node_t *a, const mlx_node_t *b) {
  const mlx_node_t *first = mlx_graph_operand(f->graph, a, 1), *second = mlx_graph_operand(f->graph, b, 1);
  const mlx_stored_t one = stored_weight(f->model, f->options, first),
                     other = stored_weight(f->model, f->options, second);
  return mlx_tiles_equal(one.tiles, other.tiles) && (one.tiles.bits || one.dtype == other.dtype);
}

static void fuse_gated(const mlx_fusion_t *f, const mlx_node_t *node) {
  const mlx_node_t *gate = mlx_graph_operand(f->graph, node, 0), *up = mlx_graph_operand(f->graph, node, 1);
  if (gate == up || !is_free_product(f, node->operands[0]) || !is_free_product(f, node->operands[1]) ||
      gate->operands[0] != up->operands[0] || gate->dims[1] != up->dims[1] || !same_format(f, gate, up))
    return;
  at(f, node->operands[0])->fused = at(f, node->operands[1])->fused = true;
}

static void fuse_permute(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  if (at(f, id)->kernel && is_free_norm(f, node->operands[0])) at(f, node->operands[0])->fused = true;
}

// A product of heads reads columns of each head.
static void fuse_head_columns(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  const mlx_node_t *columns = mlx_graph_operand(f->graph, node, 0);
  if (at(f, id)->kernel && columns->kind == MLX_NODE_HEAD_COLUMNS && columns->uses == 1 &&
      columns->head_dim % 4 == 0 && columns->start % 4 == 0)
    at(f, node->operands[0])->fused = true;
}

static void fuse_scale(const mlx_fusion_t *f, const mlx_node_t *node) {
  const mlx_node_t *embed = mlx_graph_operand(f->graph, node, 0);
  if (embed->kind != MLX_NODE_EMBED || embed->uses != 1 || !at(f, node->operands[0])->kernel) return;
  at(f, node->operands[0])->fused = true;
}

static bool is_free_rope(const mlx_fusion_t *f, int id, int64_t head_dim) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  return node->kind == MLX_NODE_ROPE && node->uses == 1 && node->head_dim == head_dim &&
         node->rope->dims <= head_dim;
}

// The append kernel normalizes a head by the threads that rotate it, a power of two of them. |eps|: that of
// the norm.
static bool is_free_head_norm(const mlx_fusion_t *f, int id, int64_t head_dim, double eps) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  return node->kind == MLX_NODE_HEAD_RMSNORM && at(f, id)->kernel && node->uses == 1 && node->eps == eps &&
         node->head_dim == head_dim && head_dim % 8 == 0 && (head_dim & (head_dim - 1)) == 0;
}
static bool has_head_gain(const mlx_fusion_t *f, int id) {
  const mlx_node_t *gain = mlx_graph_operand(f->graph, mlx_graph_node(f->graph, id), 1);
  return gain && gain->dims[0] == mlx_graph_node(f->graph, id)->head_dim;
}

// |operands|: q, k and v before RoPE; after the call, before their norms if those are fused. k and v are 0 if
// the layer has none. Values have a norm without a gain.
static void fuse_head_norms(const mlx_fusion_t *f, int *operands, int64_t head_dim) {
  const double eps = mlx_graph_node(f->graph, operands[0])->eps;
  for (int i = 0; i < 2 && operands[i]; ++i)
    if (!is_free_head_norm(f, operands[i], head_dim, eps) || !has_head_gain(f, operands[i])) return;
  for (int i = 0; i < 3 && operands[i]; ++i) {
    const mlx_node_t *node = mlx_graph_node(f->graph, operands[i]);
    if (i == 2 && (!is_free_head_norm(f, operands[i], head_dim, eps) || node->operands[1])) continue;
    at(f, operands[i])->fused = true;
    operands[i] = node->operands[0];
  }
}

// The append kernel adds the bias |id| of q, k or v. The product of one token has done so already.
static void fuse_head_bias(const mlx_fusion_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  if (node->kind == MLX_NODE_BIAS && node->uses == 1 && !at(f, id)->leader) at(f, id)->fused = true;
}

// The append kernel of latent attention completes queries, and normalizes and rotates keys.
static void fuse_latent(const mlx_fusion_t *f, const mlx_node_t *node) {
  mlx_latent_t latent;
  if (!mlx_latent_find(f->graph, node, &latent)) return;
  for (int i = 0; i < latent.count; ++i) at(f, latent.nodes[i])->fused = true;
}

static void fuse_attention(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  const int q = node->operands[0], k = node->operands[1];
  int operands[3] = {q, k, node->operands[2]};
  const int64_t head_dim = node->attention.head_dim;
  if (!at(f, id)->kernel) return;
  if (node->attention.value_dim) {
    fuse_latent(f, node);
    return;
  }
  if (q != k && is_free_rope(f, q, head_dim) &&
      (!k || (is_free_rope(f, k, head_dim) &&
              mlx_rope_equal(mlx_graph_node(f->graph, q)->rope, mlx_graph_node(f->graph, k)->rope)))) {
    for (int i = 0; i < 2 && operands[i]; ++i) {
      at(f, operands[i])->fused = true;
      operands[i] = mlx_graph_node(f->graph, operands[i])->operands[0];
    }
    fuse_head_norms(f, operands, head_dim);
  }
  for (int i = 0; i < 3 && operands[i]; ++i) fuse_head_bias(f, operands[i]);
}

// Whether |node| is a product of all tokens that reads its operand as parts (packed.cu). *out_rows16: in
// the order of 16-bit weights.
static bool reads_parts(const mlx_fusion_t *f, int id, bool *out_rows16) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  if (node->kind != MLX_NODE_LINEAR || !at(f, id)->kernel || at(f, id)->scores) return false;
  *out_rows16 = !stored_weight(f->model, f->options, mlx_graph_operand(f->graph, node, 1)).tiles.bits;
  return !*out_rows16 || !f->options->narrow;
}

// Whether the kernel of |node| can store its result as bf16 parts in the order of 16-bit weights: gate and
// up, and attention with the accuracy of f32. Products of at most MLX_FEW_TOKENS tokens split the result of
// attention.
static bool writes_parts(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  if (node->dims[1] % 128) return false;
  if (node->kind == MLX_NODE_ATTENTION) return at(f, id)->kernel && f->tokens > MLX_FEW_TOKENS;
  return node->kind == MLX_NODE_GATED && at(f, node->operands[0])->fused &&
         mlx_graph_operand(f->graph, node, 0)->kind == MLX_NODE_LINEAR;
}

// Whether a product of few tokens with an epilogue and 16-bit weights reads its operand as f32 (FEW of
// packed.cu), which it splits itself.
static bool splits_operand(const mlx_fusion_t *f, int id, bool rows16) {
  return rows16 && f->tokens <= MLX_FEW_TOKENS && f->options->kernels->gpu->kernel_sm == 90 &&
         at(f, id)->fused;
}

// After all fusions.
static void find_parts(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  bool rows16 = false, first = false;
  int users = 0;
  const bool writes = writes_parts(f, id, node), layernorm = node->kind == MLX_NODE_LAYERNORM;
  if ((!is_row_norm(node->kind) && !writes) || mlx_cuda_uses_gemv(f->tokens) || node->dims[1] % MLX_CODES)
    return;
  for (int user = id + 1; user <= (int)f->graph->count; ++user) {
    const mlx_node_t *other = mlx_graph_node(f->graph, user);
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
      if (other->operands[i] != id) continue;
      if (i || !reads_parts(f, user, &rows16) || (users && rows16 != first)) return;
      if (layernorm && splits_operand(f, user, rows16)) return;
      first = rows16;
      ++users;
    }
  }
  at(f, id)->parts = users > 0 && users == node->uses && (!writes || first);
}

// ----------------------------------------------------------------------------------------------------------
// One token

static bool is_token_product(const mlx_fusion_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  if (f->tokens != 1 || node->kind != MLX_NODE_LINEAR || node->dims[0] != MLX_DIM_TOKENS) return false;
  const mlx_node_t *weight = mlx_graph_operand(f->graph, node, 1);
  return at(f, id)->kernel && mlx_cuda_has_token_product(weight->dims[0], weight->dims[1]);
}

static void fuse_bias(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  const int product = node->operands[0];
  if (at(f, product)->token && mlx_graph_node(f->graph, product)->uses == 1) at(f, id)->leader = product;
}

// Whether |user| computes the norm of its operand |nth| by itself.
static bool computes_norm(const mlx_fusion_t *f, int user, int nth) {
  const mlx_node_t *node = mlx_graph_node(f->graph, user);
  if (nth != 0) return false;
  return node->kind == MLX_NODE_EXPERTS ? at(f, user)->kernel
                                        : node->kind == MLX_NODE_LINEAR && at(f, user)->token;
}

static void fold_norm(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  if (f->tokens != 1 || node->kind != MLX_NODE_RMSNORM || !at(f, id)->kernel ||
      node->dims[1] > MLX_TOKEN_COLUMNS || node->dims[1] % 32)
    return;
  for (int user = id + 1; user <= (int)f->graph->count; ++user)
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
      if (mlx_graph_node(f->graph, user)->operands[i] == id && !computes_norm(f, user, i)) return;
  at(f, id)->token = true;
}

int mlx_fusion_bias(const mlx_fusion_t *f, int product) {
  for (int id = product + 1; id <= (int)f->graph->count; ++id)
    if (at(f, id)->leader == product && mlx_graph_node(f->graph, id)->kind == MLX_NODE_BIAS) return id;
  return 0;
}

static bool has_bias(const mlx_fusion_t *f, int product) { return mlx_fusion_bias(f, product) != 0; }

// Products of the same x with weights of the same format.
static void group_token_products(const mlx_fusion_t *f, int id) {
  const mlx_node_t *first = mlx_graph_node(f->graph, id);
  int count = 1;
  if (!at(f, id)->token || first->kind != MLX_NODE_LINEAR || at(f, id)->leader || at(f, id)->fused) return;
  for (int other = id + 1; other <= (int)f->graph->count && count < MLX_GROUP_PRODUCTS; ++other) {
    const mlx_node_t *node = mlx_graph_node(f->graph, other);
    if (node->kind != MLX_NODE_LINEAR || node->operands[0] != first->operands[0] || !at(f, other)->token ||
        at(f, other)->fused || at(f, other)->leader || !same_format(f, first, node) ||
        has_bias(f, other) != has_bias(f, id))
      continue;
    at(f, other)->leader = id;
    ++count;
  }
}

// ----------------------------------------------------------------------------------------------------------
// All fusions

// Whether |id| is a product of all tokens that is not fused. Products of many tokens with quantized weights
// fill the GPU without others.
static bool may_share(const mlx_fusion_t *f, int id) {
  bool rows16 = false;
  const bool parts = reads_parts(f, id, &rows16);
  return mlx_graph_node(f->graph, id)->dims[0] == MLX_DIM_TOKENS && !at(f, id)->fused && !at(f, id)->leader &&
         (rows16 || (parts && f->tokens <= MLX_FEW_TOKENS));
}

// Up to three products of the same x share a launch, which is then large enough to fill the GPU. The rows of
// a tile must belong to one matrix.
static void group_products(const mlx_fusion_t *f, int id) {
  const mlx_node_t *first = mlx_graph_node(f->graph, id);
  int members[MLX_GROUP_PRODUCTS] = {id}, count = 1;
  if (mlx_cuda_uses_gemv(f->tokens) || !may_share(f, id)) return;
  int64_t rows = first->dims[1];
  for (int other = id + 1; other <= (int)f->graph->count && count < MLX_GROUP_PRODUCTS; ++other) {
    const mlx_node_t *node = mlx_graph_node(f->graph, other);
    if (node->kind != MLX_NODE_LINEAR || node->operands[0] != first->operands[0] || !may_share(f, other) ||
        !same_format(f, first, node))
      continue;
    members[count++] = other;
    rows += node->dims[1];
  }
  const mlx_gpu_kind_t *gpu = f->options->kernels->gpu;
  const mlx_node_t *weight = mlx_graph_operand(f->graph, first, 1);
  const bool rows16 = !stored_weight(f->model, f->options, weight).tiles.bits;
  const mlx_quantized_tile_t tile =
      mlx_quantized_tile(f->tokens, rows, weight->dims[1], false, rows16, gpu->kernel_sm == 90, gpu->blocks);
  for (int i = 0; i + 1 < count; ++i)
    if (mlx_graph_node(f->graph, members[i])->dims[1] % tile.n) return;
  for (int i = 0; f->options->narrow && i < count; ++i)
    if (mlx_graph_node(f->graph, members[i])->dims[1] % 128) return;  // the largest tile of linear.cu
  for (int i = 1; i < count; ++i) at(f, members[i])->leader = id;
}

// A product that a kernel computes and that is the logits themselves is written where the caller wants it.
static void fuse_logits(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  const int product = node->operands[0];
  const mlx_node_t *linear = mlx_graph_node(f->graph, product);
  if (linear->kind == MLX_NODE_LINEAR && at(f, product)->kernel && linear->uses == 1)
    at(f, id)->leader = product;
}

static void fuse(const mlx_fusion_t *f, int id, const mlx_node_t *node) {
  if (node->kind == MLX_NODE_BIAS) fuse_bias(f, id, node);
  if (node->kind == MLX_NODE_ADD) fuse_add(f, node);
  if (node->kind == MLX_NODE_GATED) fuse_gated(f, node);
  if (node->kind == MLX_NODE_PERMUTE) fuse_permute(f, id, node);
  if (node->kind == MLX_NODE_SCALE) fuse_scale(f, node);
  if (node->kind == MLX_NODE_HEAD_LINEAR) fuse_head_columns(f, id, node);
  if (node->kind == MLX_NODE_ATTENTION) fuse_attention(f, id, node);
  if (node->kind == MLX_NODE_LOGITS) fuse_logits(f, id, node);
  fuse_elements(f, id, node);
  fold_norm(f, id, node);
}

mlx_status_t mlx_fusion_make(const mlx_model_t *model, const mlx_graph_t *graph,
                             const mlx_module_options_t *options, mlx_step_size_t size,
                             mlx_fusion_t *out_fusion) {
  *out_fusion = (mlx_fusion_t){
      .model = model, .graph = graph, .options = options, .tokens = size.tokens, .wanted = size.wanted};
  const mlx_fusion_t *f = out_fusion;
  const int count = (int)graph->count;
  MLX_TRY(mlx_alloc(graph->count, sizeof *out_fusion->nodes, &out_fusion->nodes));
  if (!options->kernels || !options->kernels->gpu) return NULL;
  const char *unsupported = mlx_network_attention(graph, options).unsupported;
  for (int id = 1; id <= count; ++id) {
    choose(model, graph, options, unsupported, mlx_graph_node(graph, id), at(f, id));
    at(f, id)->token = is_token_product(f, id);
  }
  for (int id = 1; id <= count; ++id) fuse(f, id, mlx_graph_node(graph, id));
  for (int id = 1; id <= count; ++id) {
    find_parts(f, id, mlx_graph_node(graph, id));
    group_products(f, id);
    group_token_products(f, id);
  }
  return NULL;
}

void mlx_fusion_clear(mlx_fusion_t *fusion) {
  mlx_free(fusion->nodes);
  *fusion = (mlx_fusion_t){.nodes = NULL};
}
