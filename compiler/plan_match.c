// Matches the nodes of a graph, one after the other, in the order in which models/ builds them.
#include "compiler/plan_match.h"

#include "compiler/weights.h"

typedef struct matcher {
  const mlx_graph_t *graph;
  int at;  // id of the last matched node
  const mlx_model_t *model;
  const uint64_t *offsets;  // these three as in mlx_plan_match_t
  mlx_storage_t storage;
  size_t *indices;
  mlx_decode_plan_t *plan;
  bool fused;     // matrices of a layer are parts of one tensor
  int qkv_input;  // node that q, k and v of the layer read
  bool fits;
} matcher_t;

bool mlx_decode_in_layers(mlx_decode_weight_t weight) {
  switch (weight) {
    case MLX_DECODE_EMBED:
    case MLX_DECODE_FINAL_NORM:
    case MLX_DECODE_FINAL_NORM_BIAS:
    case MLX_DECODE_HEAD:
    case MLX_DECODE_HEAD_BIAS:
    case MLX_DECODE_POSITIONS: return false;
    default: return true;
  }
}

static bool is_input(mlx_node_kind_t kind) {
  return kind == MLX_NODE_TOKENS || kind == MLX_NODE_POSITIONS || kind == MLX_NODE_WEIGHT;
}

// The next node that computes something; 0 after the last.
static int next_node(const matcher_t *m) {
  int next = m->at + 1;
  while (next <= (int)m->graph->count && is_input(mlx_graph_node(m->graph, next)->kind)) ++next;
  return next <= (int)m->graph->count ? next : 0;
}

// The network fits only if the next node has this kind and these activations as its first operands. Returns
// its id; 0 if the network does not fit.
static int expect(matcher_t *m, mlx_node_kind_t kind, int first, int second) {
  const int next = m->fits ? next_node(m) : 0;
  const mlx_node_t *node = next ? mlx_graph_node(m->graph, next) : NULL;
  m->fits =
      node && node->kind == kind && node->operands[0] == first && (!second || node->operands[1] == second);
  if (m->fits) m->at = next;
  return m->fits ? next : 0;
}

static const mlx_node_t *node_at(const matcher_t *m, int id) { return mlx_graph_node(m->graph, id); }

// The role of a matrix, and its bit in |second| of a plan.
typedef struct matrix_role {
  mlx_decode_role_t role;
  uint8_t bit;
} matrix_role_t;

static matrix_role_t role_of(mlx_decode_weight_t which) {
  switch (which) {
    case MLX_DECODE_Q: return (matrix_role_t){MLX_DECODE_ROLE_QKV, 1};
    case MLX_DECODE_K: return (matrix_role_t){MLX_DECODE_ROLE_QKV, 2};
    case MLX_DECODE_V: return (matrix_role_t){MLX_DECODE_ROLE_QKV, 4};
    case MLX_DECODE_O: return (matrix_role_t){MLX_DECODE_ROLE_O, 8};
    case MLX_DECODE_GATE:
    case MLX_DECODE_UP: return (matrix_role_t){MLX_DECODE_ROLE_GATE, 16};
    case MLX_DECODE_DOWN: return (matrix_role_t){MLX_DECODE_ROLE_DOWN, 32};
    case MLX_DECODE_SHARED_GATE:
    case MLX_DECODE_SHARED_UP: return (matrix_role_t){MLX_DECODE_ROLE_SHARED_GATE, 64};
    case MLX_DECODE_SHARED_DOWN: return (matrix_role_t){MLX_DECODE_ROLE_SHARED_DOWN, 128};
    case MLX_DECODE_SHARED_SCORE: return (matrix_role_t){MLX_DECODE_ROLE_SHARED_SCORE, 0};
    case MLX_DECODE_HEAD: return (matrix_role_t){MLX_DECODE_ROLE_HEAD, 0};
    default: return (matrix_role_t){MLX_DECODE_ROLE_EMBED, 0};
  }
}

// Records the tile format of a matrix as the first or second of its role. A role with rows of 16-bit numbers
// has one format, because the form of the activations depends on it.
static bool match_tiles(mlx_decode_plan_t *plan, mlx_decode_weight_t which, int64_t layer,
                        mlx_tiles_t tiles) {
  const matrix_role_t role = role_of(which);
  mlx_tiles_t *formats = plan->tiles[role.role];
  if (which == MLX_DECODE_SHARED_SCORE && layer && !formats[0].bits) return false;  // layer 0 has floats
  if (!formats[0].bits) formats[0] = tiles;
  const bool second = !mlx_tiles_equal(tiles, formats[0]);
  if (second && (!role.bit || mlx_tiles_are_rows(tiles) || mlx_tiles_are_rows(formats[0]))) return false;
  if (second && !formats[1].bits) formats[1] = tiles;
  if (second && !mlx_tiles_equal(tiles, formats[1])) return false;
  if ((which == MLX_DECODE_UP && plan->form.counts[MLX_DECODE_GATE]) || which == MLX_DECODE_SHARED_UP)
    return second == ((plan->second[layer] & role.bit) != 0);
  if (second) plan->second[layer] |= role.bit;
  return true;
}

// Records a matrix of 16 bits in a network with quantized ones. Gate, up and down must be quantized, except
// those of a shared expert.
static bool match_rows16(mlx_decode_plan_t *plan, mlx_decode_weight_t which, int64_t layer,
                         mlx_dtype_t dtype) {
  const mlx_decode_role_t role = role_of(which).role;
  bool first = true;
  for (int i = 0; i < MLX_DECODE_ROLES; ++i) first &= !mlx_tiles_are_rows(plan->tiles[i][0]);
  if (first) plan->dtype = dtype;
  return dtype == plan->dtype && dtype != MLX_F32 && role != MLX_DECODE_ROLE_GATE &&
         role != MLX_DECODE_ROLE_DOWN &&
         match_tiles(plan, which, layer, (mlx_tiles_t){.bits = MLX_DECODE_ROWS});
}

// Bytes of |rows| rows, which precede another matrix in the same tensor. Fails if they do not end with a
// tile.
static bool bytes_before(mlx_stored_t stored, int64_t rows, int64_t columns, uint64_t *out_bytes) {
  *out_bytes = 0;
  if (!rows) return true;
  const int64_t width = stored.dtype == MLX_F32 ? 4 : 2;
  *out_bytes =
      stored.tiles.bits ? mlx_tiles_bytes(stored.tiles, rows, columns) : (uint64_t)(rows * columns * width);
  return !stored.tiles.bits || rows % MLX_TILE_ROWS == 0;
}

// A router, or the score of a shared expert, may have any type of floats. |type|: that of the first layer.
static bool match_float(bool first, mlx_dtype_t *type, mlx_dtype_t dtype) {
  if (first) *type = dtype;
  return dtype == *type && (dtype == MLX_F32 || dtype == MLX_BF16 || dtype == MLX_F16);
}

// Whether a weight that is not in tiles has a type that the kernel reads: vectors and biases are f32, a
// router may have any type, other matrices have one type of 16 bits.
static bool match_dtype(matcher_t *m, mlx_decode_weight_t which, int64_t layer, bool is_matrix,
                        mlx_dtype_t dtype) {
  mlx_decode_form_t *form = &m->plan->form;
  if (which >= MLX_DECODE_QKV_ORDER) return dtype == MLX_I32;
  if (!is_matrix) return dtype == MLX_F32;
  if (which == MLX_DECODE_ROUTER) return match_float(form->counts[which] == 1, &form->router, dtype);
  if (which == MLX_DECODE_SHARED_SCORE)
    return !m->plan->tiles[MLX_DECODE_ROLE_SHARED_SCORE][0].bits &&
           match_float(form->counts[which] == 1, &form->score, dtype);
  if (m->storage.layout == MLX_LAYOUT_TILES) return match_rows16(m->plan, which, layer, dtype);
  return dtype == m->plan->dtype && dtype != MLX_F32;
}

// Records |weight| as the weight |which| of |layer|, from row |first| on. Its shape has been checked.
static void record_weight(matcher_t *m, mlx_decode_weight_t which, int64_t layer, const mlx_node_t *weight,
                          int64_t first, bool is_matrix) {
  mlx_decode_offset_t *offset = &m->plan->offsets[which];
  const size_t index = weight->weight_index;
  ++m->plan->form.counts[which];
  if (m->indices) m->indices[layer * MLX_DECODE_WEIGHTS + which] = index;
  if (!m->offsets) return;
  const mlx_stored_t stored = mlx_weight_stored(&m->model->weights[index], m->storage);
  uint64_t before;
  m->fits = bytes_before(stored, first, weight->rank > 1 ? weight->dims[1] : 1, &before);
  if (!m->fits) return;
  const uint64_t at = m->offsets[index] + before;
  m->fused |= first > 0;
  if (which == MLX_DECODE_EMBED) m->plan->dtype = stored.dtype;
  if (layer == 0) offset->first = at;
  if (layer == 1) offset->stride = at - offset->first;
  if (offset->first + (uint64_t)layer * offset->stride != at) m->plan->regular = false;
  m->fits = stored.tiles.bits ? which != MLX_DECODE_ROUTER && match_tiles(m->plan, which, layer, stored.tiles)
                              : match_dtype(m, which, layer, is_matrix, stored.dtype);
}

static const mlx_node_t *weight_operand(const matcher_t *m, int id, int operand) {
  const mlx_node_t *weight = m->fits ? mlx_graph_operand(m->graph, node_at(m, id), operand) : NULL;
  return weight && weight->kind == MLX_NODE_WEIGHT ? weight : NULL;
}

// Records |rows| rows of operand |operand| of node |id|, from row |first| on, as the weight |which| of
// |layer|. If |first| is 0 the operand may have only these rows or more; the caller checks that. columns 0: a
// vector.
static void match_rows(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                       int64_t first, int64_t rows, int64_t columns) {
  const mlx_node_t *weight = weight_operand(m, id, operand);
  m->fits = weight && weight->rank == (columns ? 2 : 1) && weight->dims[0] >= first + rows &&
            (!columns || weight->dims[1] == columns);
  if (m->fits) record_weight(m, which, layer, weight, first, columns != 0);
}

// Records operand |operand| of node |id|, which has an element for each expert: matrices [experts, rows,
// columns], or biases [experts, rows] if |columns| is 0.
static void match_experts_weight(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                                 int64_t rows, int64_t columns) {
  const mlx_node_t *weight = weight_operand(m, id, operand);
  m->fits = weight && weight->rank == (columns ? 3 : 2) && weight->dims[0] == m->plan->form.experts &&
            weight->dims[1] == rows && (!columns || weight->dims[2] == columns);
  if (m->fits) record_weight(m, which, layer, weight, 0, columns != 0);
}

// Records operand |operand| of node |id| as the weight |which| of |layer|. Its shape must be [rows, columns];
// columns 0 means a vector.
static void match_weight(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                         int64_t rows, int64_t columns) {
  match_rows(m, which, layer, id, operand, 0, rows, columns);
  if (m->fits) m->fits = mlx_graph_operand(m->graph, node_at(m, id), operand)->dims[0] == rows;
}

static void match_number(matcher_t *m, bool first, double *number, double value) {
  if (first) *number = value;
  m->fits = m->fits && *number == value;
}

// The next node if it has this kind and |x| as its first operand; else 0, and the node stays the next one.
static int match_optional(matcher_t *m, mlx_node_kind_t kind, int x) {
  const int next = next_node(m);
  if (!m->fits || !next || node_at(m, next)->kind != kind || node_at(m, next)->operands[0] != x) return 0;
  return expect(m, kind, x, 0);
}

// Records the weight of |norm|, which is one of the norm nodes.
static void match_norm_weight(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int norm,
                              int64_t width) {
  if (!norm) return;
  match_weight(m, which, layer, norm, 1, width, 0);
  match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node_at(m, norm)->eps);
}

// The norm of the input of attention, of the MLP or of the head, if it has one. All of them are RMSNorm or
// all LayerNorm.
static int match_norm(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x) {
  mlx_decode_form_t *form = &m->plan->form;
  const bool of_attention = which == MLX_DECODE_ATTN_NORM, of_mlp = which == MLX_DECODE_MLP_NORM;
  const int rms = match_optional(m, MLX_NODE_RMSNORM, x),
            norm = rms ? rms : match_optional(m, MLX_NODE_LAYERNORM, x);
  if (!norm) return x;
  if (!form->norms[0] && !form->norms[1] && !form->norms[2]) form->layer_norms = !rms;
  m->fits = form->layer_norms == !rms;
  ++form->norms[of_attention ? 0 : of_mlp ? 1 : 2];
  if (rms) {
    match_norm_weight(m, which, layer, norm, m->plan->hidden);
    return norm;
  }
  match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node_at(m, norm)->eps);
  if (node_at(m, norm)->operands[1]) match_weight(m, which, layer, norm, 1, m->plan->hidden, 0);
  if (!m->fits || !node_at(m, norm)->operands[2]) return norm;
  match_weight(m,
               of_attention ? MLX_DECODE_ATTN_NORM_BIAS
               : of_mlp     ? MLX_DECODE_MLP_NORM_BIAS
                            : MLX_DECODE_FINAL_NORM_BIAS,
               layer, norm, 2, m->plan->hidden, 0);
  return norm;
}

// |x| in the order of the columns of the products that follow, if they have one.
static int match_order(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x, int64_t width) {
  const int permuted = match_optional(m, MLX_NODE_PERMUTE, x);
  if (!permuted) return x;
  match_weight(m, which, layer, permuted, 1, width, 0);
  return permuted;
}

// A product and its bias, if it has one.
static int match_linear(matcher_t *m, mlx_decode_weight_t which, mlx_decode_weight_t bias, int64_t layer,
                        int x, int64_t rows, int64_t columns) {
  const int linear = expect(m, MLX_NODE_LINEAR, x, 0);
  match_weight(m, which, layer, linear, 1, rows, columns);
  const int biased = match_optional(m, MLX_NODE_BIAS, linear);
  if (!biased) return linear;
  match_weight(m, bias, layer, biased, 1, rows, 0);
  return biased;
}

// LayerNorm of each head of queries or keys, with its own gains, if there is one.
static int match_head_layer_norm(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x,
                                 int64_t width) {
  mlx_decode_form_t *form = &m->plan->form;
  const int64_t head_dim = m->model->config.head_dim;
  const int norm = match_optional(m, MLX_NODE_HEAD_LAYERNORM, x);
  const mlx_node_t *weight = norm ? weight_operand(m, norm, 1) : NULL;
  if (!norm) return x;
  m->fits = weight && weight->rank == 2 && weight->dims[0] * head_dim == width && weight->dims[1] == head_dim;
  if (m->fits) record_weight(m, which, layer, weight, 0, false);
  match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node_at(m, norm)->eps);
  if (layer == 0 && which == MLX_DECODE_Q_NORM) form->qk_layer_norms = true;
  m->fits = m->fits && form->qk_layer_norms && node_at(m, norm)->head_dim == head_dim;
  return norm;
}

// A norm of queries or keys, if there is one here: of each head, or of all |width| numbers.
static int match_qk_norm(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x, int64_t width,
                         bool after_rope) {
  mlx_decode_form_t *form = &m->plan->form;
  const int layer_norm = after_rope ? x : match_head_layer_norm(m, which, layer, x, width);
  if (layer_norm != x) return layer_norm;
  const int by_head = match_optional(m, MLX_NODE_HEAD_RMSNORM, x);
  const int norm = by_head ? by_head : match_optional(m, MLX_NODE_RMSNORM, x);
  if (!norm) return x;
  if (layer == 0 && which == MLX_DECODE_Q_NORM)
    form->norm_after_rope = after_rope, form->whole_norms = !by_head;
  m->fits = form->norm_after_rope == after_rope && form->whole_norms == !by_head && !form->qk_layer_norms &&
            (!by_head || node_at(m, norm)->head_dim == m->model->config.head_dim);
  match_norm_weight(m, which, layer, norm, by_head ? m->model->config.head_dim : width);
  return norm;
}

// The factor of the queries that grows with the position, if there is one.
static int match_grow(matcher_t *m, int64_t layer, int q) {
  mlx_decode_form_t *form = &m->plan->form;
  const int grown = match_optional(m, MLX_NODE_GROW, q);
  const mlx_node_t *node = grown ? node_at(m, grown) : NULL;
  match_number(m, layer == 0, &form->grow_beta, node ? node->beta : 0.0);
  if (node && layer == 0) form->grow_period = node->period;
  if (node) m->fits = m->fits && node->period == form->grow_period;
  return grown ? grown : q;
}

// Whether the next node is a product of several matrices in one tensor of |rows| rows.
static bool is_fused(const matcher_t *m, int64_t rows) {
  const int next = m->fits ? next_node(m) : 0;
  const mlx_node_t *node = next ? node_at(m, next) : NULL;
  return node && node->kind == MLX_NODE_LINEAR && mlx_graph_operand(m->graph, node, 1)->dims[0] == rows;
}

// A fused product, and the bias of all its rows, if it has one: the product's node is |linear|, the bias's is
// |biased|, or the same without a bias.
typedef struct fused_product {
  int linear, biased;
} fused_product_t;

static fused_product_t match_fused(matcher_t *m, int x) {
  const int linear = expect(m, MLX_NODE_LINEAR, x, 0), biased = match_optional(m, MLX_NODE_BIAS, linear);
  return (fused_product_t){linear, biased ? biased : linear};
}

// Columns of the result of a fused product: |rows| rows of its tensor, from row |first| on.
static int match_columns(matcher_t *m, mlx_decode_weight_t which, mlx_decode_weight_t bias, int64_t layer,
                         fused_product_t product, int64_t first, int64_t rows) {
  const int part = expect(m, MLX_NODE_COLUMNS, product.biased, 0);
  match_rows(m, which, layer, product.linear, 1, first, rows, m->plan->hidden);
  if (product.biased != product.linear) match_rows(m, bias, layer, product.biased, 1, first, rows, 0);
  m->fits = m->fits && node_at(m, part)->start == first && node_at(m, part)->dims[1] == rows;
  return part;
}

// Queries and keys of a layer have the same rope, or none.
static void match_ropes(matcher_t *m, int64_t layer, int *q, int *k) {
  mlx_decode_form_t *form = &m->plan->form;
  const mlx_rope_t *rope = NULL;
  const int rotated = match_optional(m, MLX_NODE_ROPE, *q);
  if (rotated) {
    const int key = expect(m, MLX_NODE_ROPE, *k, 0);
    if (!key) return;
    rope = node_at(m, rotated)->rope;
    const int64_t head_dim = m->model->config.head_dim;
    m->fits = node_at(m, rotated)->head_dim == head_dim && node_at(m, key)->head_dim == head_dim &&
              mlx_rope_equal(rope, node_at(m, key)->rope) && rope->dims <= head_dim;
    *q = rotated;
    *k = key;
  }
  int nth = 0;
  while (nth < form->rope_count &&
         (rope && form->ropes[nth] ? !mlx_rope_equal(rope, form->ropes[nth]) : rope != form->ropes[nth]))
    ++nth;
  if (nth == MLX_DECODE_ROPES) m->fits = false;
  if (!m->fits) return;
  if (nth == form->rope_count) form->ropes[form->rope_count++] = rope;
  form->rope_of[layer] = (uint8_t)nth;
}

static void match_attention_options(matcher_t *m, int64_t layer, const mlx_attention_t *a) {
  const mlx_config_t *c = &m->model->config;
  mlx_decode_form_t *form = &m->plan->form;
  if (layer == 0) m->plan->attention = *a;
  if (a->window && !form->window) form->window = a->window;
  form->windowed[layer] = a->window != 0;
  m->fits = m->fits && a->layer == layer && a->heads == c->heads && a->kv_heads == c->kv_heads &&
            a->head_dim == c->head_dim && a->scale == m->plan->attention.scale &&
            a->softcap == m->plan->attention.softcap && (!a->window || a->window == form->window);
}

// Adds |y|, the output of attention or of the MLP, to the residual stream |x|.
static int match_residual(matcher_t *m, mlx_decode_weight_t post, int64_t layer, int x, int y) {
  const int norm = match_optional(m, MLX_NODE_RMSNORM, y);
  match_norm_weight(m, post, layer, norm, m->plan->hidden);
  if (norm) y = norm;
  const int scaled = match_optional(m, MLX_NODE_SCALE, y);
  match_number(m, post == MLX_DECODE_POST_ATTN_NORM && layer == 0, &m->plan->form.residual_scale,
               scaled ? node_at(m, scaled)->factor : 1.0);
  return expect(m, MLX_NODE_ADD, x, scaled ? scaled : y);
}

// The limit of queries, keys or values, if they have one here. |limit|: that of the plan.
static int match_clip(matcher_t *m, bool first, double *limit, int x) {
  const int clipped = match_optional(m, MLX_NODE_CLIP, x);
  match_number(m, first, limit, clipped ? node_at(m, clipped)->limit : 0.0);
  return clipped ? clipped : x;
}

static void match_qkv(matcher_t *m, int64_t layer, int h, int *q, int *k, int *v) {
  const mlx_config_t *c = &m->model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  double *clip = &m->plan->form.clip;
  h = m->qkv_input = match_order(m, MLX_DECODE_QKV_ORDER, layer, h, c->hidden);
  if (is_fused(m, queries + 2 * keys)) {
    const fused_product_t qkv = match_fused(m, h);
    *q = match_columns(m, MLX_DECODE_Q, MLX_DECODE_Q_BIAS, layer, qkv, 0, queries);
    *k = match_columns(m, MLX_DECODE_K, MLX_DECODE_K_BIAS, layer, qkv, queries, keys);
    *v = match_columns(m, MLX_DECODE_V, MLX_DECODE_V_BIAS, layer, qkv, queries + keys, keys);
    return;
  }
  *q = match_linear(m, MLX_DECODE_Q, MLX_DECODE_Q_BIAS, layer, h, queries, c->hidden);
  *q = match_clip(m, layer == 0, clip, *q);
  *k = match_linear(m, MLX_DECODE_K, MLX_DECODE_K_BIAS, layer, h, keys, c->hidden);
  *k = match_clip(m, false, clip, *k);
  *v = match_linear(m, MLX_DECODE_V, MLX_DECODE_V_BIAS, layer, h, keys, c->hidden);
  *v = match_clip(m, false, clip, *v);
}

// Returns the output of attention, which is not added to the residual stream yet. |h|: its input.
static int match_attention(matcher_t *m, int64_t layer, int h) {
  const mlx_config_t *c = &m->model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  double *clip = &m->plan->form.late_clip;
  int q, k, v;
  match_qkv(m, layer, h, &q, &k, &v);
  m->plan->nodes[layer] = (mlx_layer_nodes_t){q, k, v, 0};
  q = match_clip(m, layer == 0, clip, match_qk_norm(m, MLX_DECODE_Q_NORM, layer, q, queries, false));
  k = match_clip(m, false, clip, match_qk_norm(m, MLX_DECODE_K_NORM, layer, k, keys, false));
  v = match_clip(m, false, clip, v);
  match_ropes(m, layer, &q, &k);
  q = match_qk_norm(m, MLX_DECODE_Q_NORM, layer, q, queries, true);
  k = match_qk_norm(m, MLX_DECODE_K_NORM, layer, k, keys, true);
  q = match_grow(m, layer, q);
  const int attention = expect(m, MLX_NODE_ATTENTION, q, k);
  if (!attention) return 0;
  m->plan->nodes[layer].attention = attention;
  m->fits = node_at(m, attention)->operands[2] == v;
  match_attention_options(m, layer, &node_at(m, attention)->attention);
  if (node_at(m, attention)->operands[3]) match_weight(m, MLX_DECODE_SINKS, layer, attention, 3, c->heads, 0);
  const int attended = match_order(m, MLX_DECODE_O_ORDER, layer, attention, queries);
  return match_linear(m, MLX_DECODE_O, MLX_DECODE_O_BIAS, layer, attended, c->hidden, queries);
}

static void match_experts_form(matcher_t *m, int64_t layer, int experts) {
  mlx_decode_form_t *form = &m->plan->form;
  const mlx_experts_t *e = &node_at(m, experts)->experts;
  const mlx_node_t *gate = weight_operand(m, experts, 2);
  m->fits = m->fits && gate && gate->rank == 3;
  if (!m->fits) return;
  if (layer == 0) {
    form->experts = gate->dims[0];
    m->plan->ffn = gate->dims[1];
    form->used = e->used;
    form->sum_to_one = e->sum_to_one;
    form->limit = e->limit;
    form->slope = e->slope;
    form->act = e->act;
  }
  m->fits = form->used == e->used && form->sum_to_one == e->sum_to_one && form->limit == e->limit &&
            form->slope == e->slope && form->act == e->act;
}

// A mixture of experts.
static int match_experts(matcher_t *m, int64_t layer, int h) {
  const int64_t hidden = m->plan->hidden, experts = m->model->config.experts;
  const int scores = match_linear(m, MLX_DECODE_ROUTER, MLX_DECODE_ROUTER_BIAS, layer, h, experts, hidden);
  const int mixed = expect(m, MLX_NODE_EXPERTS, h, scores);
  if (!mixed) return 0;
  match_experts_form(m, layer, mixed);
  const int64_t ffn = m->plan->ffn;
  match_experts_weight(m, MLX_DECODE_GATE, layer, mixed, 2, ffn, hidden);
  match_experts_weight(m, MLX_DECODE_UP, layer, mixed, 3, ffn, hidden);
  match_experts_weight(m, MLX_DECODE_DOWN, layer, mixed, 4, hidden, ffn);
  static const mlx_decode_weight_t biases[] = {MLX_DECODE_GATE_BIAS, MLX_DECODE_UP_BIAS,
                                               MLX_DECODE_DOWN_BIAS};
  for (int i = 0; i < 3; ++i) {
    if (node_at(m, mixed)->operands[5 + i])
      match_experts_weight(m, biases[i], layer, mixed, 5 + i, i == 2 ? hidden : ffn, 0);
  }
  return mixed;
}

static int match_product(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x, int64_t rows,
                         int64_t columns) {
  const int linear = expect(m, MLX_NODE_LINEAR, x, 0);
  match_weight(m, which, layer, linear, 1, rows, columns);
  return linear;
}

// An expert that every token uses, times its weight. *|out_act|: its activation.
static int match_shared(matcher_t *m, int64_t layer, int h, mlx_act_t *out_act) {
  const int64_t hidden = m->plan->hidden, ffn = m->plan->form.shared_ffn = m->model->config.shared_ffn;
  const int gate = match_product(m, MLX_DECODE_SHARED_GATE, layer, h, ffn, hidden),
            up = match_product(m, MLX_DECODE_SHARED_UP, layer, h, ffn, hidden),
            act = expect(m, MLX_NODE_GATED, gate, up);
  if (!act) return 0;
  *out_act = node_at(m, act)->act;
  const int down = match_product(m, MLX_DECODE_SHARED_DOWN, layer, act, hidden, ffn),
            score = match_product(m, MLX_DECODE_SHARED_SCORE, layer, h, 1, hidden);
  return expect(m, MLX_NODE_SCALE_ROWS, down, expect(m, MLX_NODE_SIGMOID, score, 0));
}

// A mixture of experts, and an expert that every token uses if there is one.
static int match_all_experts(matcher_t *m, int64_t layer, int h) {
  if (!m->model->config.shared_ffn) return match_experts(m, layer, h);
  mlx_act_t act = MLX_ACT_SILU;
  const int shared = match_shared(m, layer, h, &act);
  if (!shared) return 0;
  const int mixed = match_experts(m, layer, h);
  m->fits = m->fits && m->plan->form.act == act && m->plan->form.limit == 0.0;
  return expect(m, MLX_NODE_ADD, mixed, shared);
}

// Whether the MLP that starts with the next node has no gate: its activation follows the first product.
static bool is_ungated(const matcher_t *m) {
  matcher_t ahead = *m;
  const int up = next_node(&ahead);
  if (!m->fits || !up) return false;
  ahead.at = up;
  const int biased = match_optional(&ahead, MLX_NODE_BIAS, up);
  return match_optional(&ahead, MLX_NODE_ACTIVATE, biased ? biased : up) != 0;
}

static int match_activation(matcher_t *m, int64_t layer, int h) {
  const int64_t hidden = m->plan->hidden, ffn = m->plan->ffn;
  h = match_order(m, MLX_DECODE_GATE_ORDER, layer, h, hidden);
  if (is_ungated(m)) {
    const int up = match_linear(m, MLX_DECODE_UP, MLX_DECODE_UP_BIAS, layer, h, ffn, hidden);
    return expect(m, MLX_NODE_ACTIVATE, up, 0);
  }
  int gate, up;
  if (is_fused(m, 2 * ffn)) {
    const fused_product_t both = match_fused(m, h);
    gate = match_columns(m, MLX_DECODE_GATE, MLX_DECODE_GATE_BIAS, layer, both, 0, ffn);
    up = match_columns(m, MLX_DECODE_UP, MLX_DECODE_UP_BIAS, layer, both, ffn, ffn);
  } else {
    gate = match_linear(m, MLX_DECODE_GATE, MLX_DECODE_GATE_BIAS, layer, h, ffn, hidden);
    up = match_linear(m, MLX_DECODE_UP, MLX_DECODE_UP_BIAS, layer, h, ffn, hidden);
  }
  return expect(m, MLX_NODE_GATED, gate, up);
}

// Returns the output of the MLP, which is not added to the residual stream yet. |h|: its input.
static int match_mlp(matcher_t *m, int64_t layer, int h) {
  if (m->model->config.experts) return match_all_experts(m, layer, h);
  const int act = match_activation(m, layer, h);
  if (!act) return 0;
  if (layer == 0) m->plan->form.act = node_at(m, act)->act;
  m->fits = node_at(m, act)->act == m->plan->form.act;
  return match_linear(m, MLX_DECODE_DOWN, MLX_DECODE_DOWN_BIAS, layer, act, m->plan->hidden, m->plan->ffn);
}

// Whether the next node has |x| as its first operand.
static bool next_reads(const matcher_t *m, int x) {
  const int next = m->fits ? next_node(m) : 0;
  return next && node_at(m, next)->operands[0] == x;
}

// The MLP's input is a norm of the residual stream |after| attention. In a parallel layer it is the input of
// q, k and v, which is a norm of the layer's input |x|, or another norm of it. The output of attention may be
// added after the MLP then.
static int match_layer(matcher_t *m, int64_t layer, int x) {
  const int norm = match_norm(m, MLX_DECODE_ATTN_NORM, layer, x), attended = match_attention(m, layer, norm),
            in = norm == x ? x : m->qkv_input;
  const bool late = in != x && next_reads(m, in);
  int after = late ? 0 : match_residual(m, MLX_DECODE_POST_ATTN_NORM, layer, x, attended);
  const bool second = in != x && !late && next_reads(m, x),
             parallel = late || second || (in != x && next_reads(m, in));
  const int h = parallel && !second ? in : match_norm(m, MLX_DECODE_MLP_NORM, layer, parallel ? x : after);
  m->fits = m->fits && (!second || h != x);  // the kernel has no MLP beside attention without a norm
  if (layer == 0) m->plan->form.parallel = parallel;
  m->fits = m->fits && m->plan->form.parallel == parallel;
  const int output = match_mlp(m, layer, h);
  if (late) after = match_residual(m, MLX_DECODE_POST_ATTN_NORM, layer, x, attended);
  return match_residual(m, MLX_DECODE_POST_MLP_NORM, layer, after, output);
}

// All norms of inputs that the network has (form->norms) have a weight, or none has. |which|: their weights.
static bool norms_agree(const mlx_decode_form_t *form, const mlx_decode_weight_t which[3]) {
  const bool any = form->counts[which[2]] != 0;
  for (int i = 0; i < 3; ++i)
    if (form->counts[which[i]] != (any ? form->norms[i] : 0)) return false;
  return true;
}

// There is a final norm, and all layers have the same norms of inputs. Only RMSNorm has a gain always.
static bool norms_are_regular(const matcher_t *m) {
  static const mlx_decode_weight_t gains[] = {MLX_DECODE_ATTN_NORM, MLX_DECODE_MLP_NORM,
                                              MLX_DECODE_FINAL_NORM},
                                   biases[] = {MLX_DECODE_ATTN_NORM_BIAS, MLX_DECODE_MLP_NORM_BIAS,
                                               MLX_DECODE_FINAL_NORM_BIAS};
  const mlx_decode_form_t *form = &m->plan->form;
  const int64_t layers = m->model->config.layers, attention = form->norms[0], mlp = form->norms[1];
  if (form->norms[2] != 1 || !norms_agree(form, gains) || !norms_agree(form, biases)) return false;
  if (form->counts[MLX_DECODE_FINAL_NORM_BIAS] && !form->counts[MLX_DECODE_FINAL_NORM]) return false;
  if (form->layer_norms)
    return attention == layers && !mlx_has_post_norms(form) && !form->experts &&
           (mlp == layers || (form->parallel && !mlp));
  return (attention == mlp || (form->parallel && !mlp)) && (!attention || attention == layers);
}

// All layers have a vector or none, and those that belong together are both there.
static bool form_is_regular(const matcher_t *m) {
  const mlx_decode_form_t *form = &m->plan->form;
  for (int i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    const int64_t most = mlx_decode_in_layers((mlx_decode_weight_t)i) ? m->model->config.layers : 1;
    if (form->counts[i] && form->counts[i] != most) return false;
  }
  for (int i = 1; i < form->rope_count; ++i) {
    const mlx_rope_t *a = form->ropes[0], *b = form->ropes[i];
    if (a && b && (a->dims != b->dims || a->adjacent != b->adjacent)) return false;
  }
  // With attention beside the MLP, gate and up have the input of q, k and v in the same order, or another
  // norm.
  if (form->parallel && form->counts[MLX_DECODE_GATE_ORDER] && !form->counts[MLX_DECODE_MLP_NORM])
    return false;
  return norms_are_regular(m) && !form->counts[MLX_DECODE_Q_NORM] == !form->counts[MLX_DECODE_K_NORM] &&
         !form->counts[MLX_DECODE_POST_ATTN_NORM] == !form->counts[MLX_DECODE_POST_MLP_NORM] &&
         (!form->experts ||
          (form->counts[MLX_DECODE_ATTN_NORM] && !mlx_has_post_norms(form) && !form->parallel)) &&
         (form->late_clip == 0.0 || !form->norm_after_rope) &&
         (!mlx_has_post_norms(form) || (form->residual_scale == 1.0 && !form->parallel));
}

static bool embeds_tokens(const matcher_t *m, int embed) {
  return mlx_graph_operand(m->graph, node_at(m, embed), 1)->kind == MLX_NODE_TOKENS;
}

// Learned positions, if the network has them: an embed node with a table of positions, added to |x|.
static int match_positions(matcher_t *m, int x) {
  const int next = m->fits ? next_node(m) : 0;
  const mlx_node_t *node = next ? node_at(m, next) : NULL;
  if (!node || node->kind != MLX_NODE_EMBED) return x;
  m->at = next;
  m->fits = mlx_graph_operand(m->graph, node, 1)->kind == MLX_NODE_POSITIONS;
  const mlx_node_t *table = weight_operand(m, next, 0);
  m->plan->form.positions = table ? table->dims[0] : 0;
  match_weight(m, MLX_DECODE_POSITIONS, 0, next, 0, m->plan->form.positions, m->plan->hidden);
  return expect(m, MLX_NODE_ADD, x, next);
}

static int match_embedding(matcher_t *m) {
  const mlx_config_t *c = &m->model->config;
  // An embed node has its table as operand 0.
  int x = 1;
  while (x <= (int)m->graph->count && node_at(m, x)->kind != MLX_NODE_EMBED) ++x;
  m->at = x;
  m->fits = x <= (int)m->graph->count && embeds_tokens(m, x);
  match_weight(m, MLX_DECODE_EMBED, 0, x, 0, c->vocab, c->hidden);
  const int scaled = match_optional(m, MLX_NODE_SCALE, x);
  m->plan->form.embed_scale = scaled ? node_at(m, scaled)->factor : 1.0;
  return match_positions(m, scaled ? scaled : x);
}

static void match_all(matcher_t *m) {
  const mlx_config_t *c = &m->model->config;
  mlx_decode_form_t *form = &m->plan->form;
  int x = m->plan->first_node = match_embedding(m);
  for (int64_t layer = 0; layer < c->layers && m->fits; ++layer) x = match_layer(m, layer, x);
  m->plan->last_node = x;
  x = match_norm(m, MLX_DECODE_FINAL_NORM, 0, x);
  x = expect(m, MLX_NODE_WANTED, x, 0);
  x = match_linear(m, MLX_DECODE_HEAD, MLX_DECODE_HEAD_BIAS, 0, x, c->vocab, c->hidden);
  const int logits_scaled = match_optional(m, MLX_NODE_SCALE, x);
  form->logit_scale = logits_scaled ? node_at(m, logits_scaled)->factor : 1.0;
  if (logits_scaled) x = logits_scaled;
  const int capped = match_optional(m, MLX_NODE_SOFTCAP, x);
  form->logit_softcap = capped ? node_at(m, capped)->cap : 0.0;
  expect(m, MLX_NODE_LOGITS, capped ? capped : x, 0);
  m->fits = m->fits && form_is_regular(m) && (m->plan->regular || !m->fused);
}

bool mlx_plan_match_network(const mlx_plan_match_t *match, mlx_decode_plan_t *plan) {
  matcher_t m = {.graph = match->graph,
                 .model = match->model,
                 .offsets = match->offsets,
                 .storage = match->storage,
                 .indices = match->indices,
                 .plan = plan,
                 .fits = true};
  match_all(&m);
  return m.fits;
}
