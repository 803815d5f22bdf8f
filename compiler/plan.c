// Matches the nodes of a graph against a decoder, and plans the launch of the CUDA decode kernel.
#include "compiler/plan.h"

#include "base/memory.h"
#include "compiler/cuda_launch.h"
#include "compiler/weights.h"
#include "kernels/step.h"

// ----------------------------------------------------------------------------------------------------------
// Matching the nodes, one after the other, in the order in which models/ builds them

typedef struct matcher {
  const mlx_graph_t *graph;
  int at;  // id of the last matched node
  const mlx_model_t *model;
  const uint64_t *offsets;  // of the weights in the archive; NULL: offsets need no fixed stride
  mlx_storage_t storage;    // of the weights at those offsets
  size_t *indices;          // [layers][MLX_DECODE_WEIGHTS] of the model's weights; may be NULL
  mlx_decode_plan_t *plan;
  bool fused;  // matrices of a layer are parts of one tensor
  bool fits;
} matcher_t;

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
    case MLX_DECODE_HEAD: return (matrix_role_t){MLX_DECODE_ROLE_HEAD, 0};
    default: return (matrix_role_t){MLX_DECODE_ROLE_EMBED, 0};
  }
}

static bool is_rows(mlx_tiles_t tiles) { return tiles.bits == MLX_DECODE_ROWS; }

// Records the tile format of a matrix as the first or second of its role. A role with rows of 16-bit numbers
// has one format, because the form of the activations depends on it.
static bool match_tiles(mlx_decode_plan_t *plan, mlx_decode_weight_t which, int64_t layer,
                        mlx_tiles_t tiles) {
  const matrix_role_t role = role_of(which);
  mlx_tiles_t *formats = plan->tiles[role.role];
  if (!formats[0].bits) formats[0] = tiles;
  const bool second = !mlx_tiles_equal(tiles, formats[0]);
  if (second && (!role.bit || is_rows(tiles) || is_rows(formats[0]))) return false;
  if (second && !formats[1].bits) formats[1] = tiles;
  if (second && !mlx_tiles_equal(tiles, formats[1])) return false;
  if (which == MLX_DECODE_UP) return second == ((plan->second[layer] & role.bit) != 0);
  if (second) plan->second[layer] |= role.bit;
  return true;
}

// Records a matrix of 16 bits in a network with quantized ones. Gate, up and down must be quantized.
static bool match_rows16(mlx_decode_plan_t *plan, mlx_decode_weight_t which, int64_t layer,
                         mlx_dtype_t dtype) {
  const mlx_decode_role_t role = role_of(which).role;
  bool first = true;
  for (int i = 0; i < MLX_DECODE_ROLES; ++i) first &= !is_rows(plan->tiles[i][0]);
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

// Whether a weight that is not in tiles has a type that the kernel reads: vectors and biases are f32, a
// router may have any type, other matrices have one type of 16 bits.
static bool match_dtype(matcher_t *m, mlx_decode_weight_t which, int64_t layer, bool is_matrix,
                        mlx_dtype_t dtype) {
  mlx_decode_form_t *form = &m->plan->form;
  if (!is_matrix) return dtype == MLX_F32;
  if (which == MLX_DECODE_ROUTER) {
    if (form->counts[which] == 1) form->router = dtype;
    return dtype == form->router && (dtype == MLX_F32 || dtype == MLX_BF16 || dtype == MLX_F16);
  }
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
  m->fits = bytes_before(stored, first, weight->dims[1], &before);
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

static bool has_post_norms(const mlx_decode_form_t *form) {
  return form->counts[MLX_DECODE_POST_ATTN_NORM] > 0;
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

// The norm of the input of attention or MLP, if it has one.
static int match_norm(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x) {
  const int norm = match_optional(m, MLX_NODE_RMSNORM, x);
  match_norm_weight(m, which, layer, norm, m->plan->hidden);
  return norm ? norm : x;
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

// A norm of queries or keys, if there is one here: of each head, or of all |width| numbers.
static int match_qk_norm(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x, int64_t width,
                         bool after_rope) {
  mlx_decode_form_t *form = &m->plan->form;
  const int by_head = match_optional(m, MLX_NODE_HEAD_RMSNORM, x);
  const int norm = by_head ? by_head : match_optional(m, MLX_NODE_RMSNORM, x);
  if (!norm) return x;
  if (layer == 0 && which == MLX_DECODE_Q_NORM)
    form->norm_after_rope = after_rope, form->whole_norms = !by_head;
  m->fits = form->norm_after_rope == after_rope && form->whole_norms == !by_head &&
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

// Columns of the result of a fused product: |rows| rows of its tensor, from row |first| on.
static int match_columns(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int linear, int64_t first,
                         int64_t rows) {
  const int part = expect(m, MLX_NODE_COLUMNS, linear, 0);
  match_rows(m, which, layer, linear, 1, first, rows, m->plan->hidden);
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

static void match_qkv(matcher_t *m, int64_t layer, int h, int *q, int *k, int *v) {
  const mlx_config_t *c = &m->model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  if (is_fused(m, queries + 2 * keys)) {
    const int linear = expect(m, MLX_NODE_LINEAR, h, 0);
    *q = match_columns(m, MLX_DECODE_Q, layer, linear, 0, queries);
    *k = match_columns(m, MLX_DECODE_K, layer, linear, queries, keys);
    *v = match_columns(m, MLX_DECODE_V, layer, linear, queries + keys, keys);
    return;
  }
  *q = match_linear(m, MLX_DECODE_Q, MLX_DECODE_Q_BIAS, layer, h, queries, c->hidden);
  *k = match_linear(m, MLX_DECODE_K, MLX_DECODE_K_BIAS, layer, h, keys, c->hidden);
  *v = match_linear(m, MLX_DECODE_V, MLX_DECODE_V_BIAS, layer, h, keys, c->hidden);
}

static int match_attention(matcher_t *m, int64_t layer, int x) {
  const mlx_config_t *c = &m->model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  int q, k, v, h = match_norm(m, MLX_DECODE_ATTN_NORM, layer, x);
  match_qkv(m, layer, h, &q, &k, &v);
  m->plan->nodes[layer] = (mlx_layer_nodes_t){q, k, v, 0};
  q = match_qk_norm(m, MLX_DECODE_Q_NORM, layer, q, queries, false);
  k = match_qk_norm(m, MLX_DECODE_K_NORM, layer, k, keys, false);
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
  int o = match_linear(m, MLX_DECODE_O, MLX_DECODE_O_BIAS, layer, attention, c->hidden, queries);
  return match_residual(m, MLX_DECODE_POST_ATTN_NORM, layer, x, o);
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
static int match_experts(matcher_t *m, int64_t layer, int x, int h) {
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
  return match_residual(m, MLX_DECODE_POST_MLP_NORM, layer, x, mixed);
}

static int match_mlp(matcher_t *m, int64_t layer, int x) {
  const mlx_config_t *c = &m->model->config;
  int h = match_norm(m, MLX_DECODE_MLP_NORM, layer, x);
  if (c->experts) return match_experts(m, layer, x, h);
  int gate, up;
  if (is_fused(m, 2 * c->ffn)) {
    const int linear = expect(m, MLX_NODE_LINEAR, h, 0);
    gate = match_columns(m, MLX_DECODE_GATE, layer, linear, 0, c->ffn);
    up = match_columns(m, MLX_DECODE_UP, layer, linear, c->ffn, c->ffn);
  } else {
    gate = match_linear(m, MLX_DECODE_GATE, MLX_DECODE_GATE_BIAS, layer, h, c->ffn, c->hidden);
    up = match_linear(m, MLX_DECODE_UP, MLX_DECODE_UP_BIAS, layer, h, c->ffn, c->hidden);
  }
  int act = expect(m, MLX_NODE_GATED, gate, up);
  if (!act) return 0;
  if (layer == 0) m->plan->form.act = node_at(m, act)->act;
  m->fits = node_at(m, act)->act == m->plan->form.act;
  int down = match_linear(m, MLX_DECODE_DOWN, MLX_DECODE_DOWN_BIAS, layer, act, c->hidden, c->ffn);
  return match_residual(m, MLX_DECODE_POST_MLP_NORM, layer, x, down);
}

// All layers have a vector or none, and those that belong together are both there.
static bool form_is_regular(const matcher_t *m) {
  const mlx_decode_form_t *form = &m->plan->form;
  for (int i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    const bool once = i == MLX_DECODE_EMBED || i == MLX_DECODE_FINAL_NORM || i == MLX_DECODE_HEAD;
    if (form->counts[i] && form->counts[i] != (once ? 1 : m->model->config.layers)) return false;
  }
  for (int i = 1; i < form->rope_count; ++i) {
    const mlx_rope_t *a = form->ropes[0], *b = form->ropes[i];
    if (a && b && (a->dims != b->dims || a->adjacent != b->adjacent)) return false;
  }
  return form->counts[MLX_DECODE_FINAL_NORM] &&
         !form->counts[MLX_DECODE_ATTN_NORM] == !form->counts[MLX_DECODE_MLP_NORM] &&
         !form->counts[MLX_DECODE_Q_NORM] == !form->counts[MLX_DECODE_K_NORM] &&
         !form->counts[MLX_DECODE_POST_ATTN_NORM] == !form->counts[MLX_DECODE_POST_MLP_NORM] &&
         (!form->experts || (form->counts[MLX_DECODE_ATTN_NORM] && !has_post_norms(form))) &&
         (!has_post_norms(form) || form->residual_scale == 1.0);
}

static bool embeds_tokens(const matcher_t *m, int embed) {
  return mlx_graph_operand(m->graph, node_at(m, embed), 1)->kind == MLX_NODE_TOKENS;
}

static void match_network(matcher_t *m) {
  const mlx_config_t *c = &m->model->config;
  // An embed node has its table as operand 0.
  int x = 1;
  while (x <= (int)m->graph->count && node_at(m, x)->kind != MLX_NODE_EMBED) ++x;
  m->at = x;
  m->fits = x <= (int)m->graph->count && embeds_tokens(m, x);
  match_weight(m, MLX_DECODE_EMBED, 0, x, 0, c->vocab, c->hidden);
  mlx_decode_form_t *form = &m->plan->form;
  const int scaled = match_optional(m, MLX_NODE_SCALE, x);
  form->embed_scale = scaled ? node_at(m, scaled)->factor : 1.0;
  if (scaled) x = scaled;
  m->plan->first_node = x;
  for (int64_t layer = 0; layer < c->layers && m->fits; ++layer)
    x = match_mlp(m, layer, match_attention(m, layer, x));
  m->plan->last_node = x;
  x = match_norm(m, MLX_DECODE_FINAL_NORM, 0, x);
  x = expect(m, MLX_NODE_WANTED, x, 0);
  x = expect(m, MLX_NODE_LINEAR, x, 0);
  match_weight(m, MLX_DECODE_HEAD, 0, x, 1, c->vocab, c->hidden);
  const int logits_scaled = match_optional(m, MLX_NODE_SCALE, x);
  form->logit_scale = logits_scaled ? node_at(m, logits_scaled)->factor : 1.0;
  if (logits_scaled) x = logits_scaled;
  const int capped = match_optional(m, MLX_NODE_SOFTCAP, x);
  form->logit_softcap = capped ? node_at(m, capped)->cap : 0.0;
  expect(m, MLX_NODE_LOGITS, capped ? capped : x, 0);
  m->fits = m->fits && form_is_regular(m) && (m->plan->regular || !m->fused);
}

// ----------------------------------------------------------------------------------------------------------
// Launch of the CUDA decode kernel. The sizes must match the structs of kernels/cuda/decode.cu, which asserts
// it.

static int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_int(int64_t a, int64_t b) { return a > b ? a : b; }

// Runs of 128 columns of each warp, if rows of |width| columns are divided into |segments|.
static int64_t runs_of(int64_t width, int64_t segments) {
  return segments * mlx_ceil_div(mlx_ceil_div(mlx_ceil_div(width, segments), 128), 8);
}

// The same with the best number of segments, of |segment| columns at most.
static int64_t fewest_runs(int64_t width, int64_t segment) {
  const int64_t least = mlx_ceil_div(width, segment);
  int64_t runs = runs_of(width, least);
  for (int64_t i = least + 1; i <= 2 * least; ++i) runs = min_int(runs, runs_of(width, i));
  return runs;
}

static bool is_quantized(const mlx_decode_plan_t *plan, mlx_decode_role_t role) {
  const mlx_tiles_t tiles = plan->tiles[role][0];
  return tiles.bits && !is_rows(tiles);
}

// Shared memory for the activations that rows of |width| columns are multiplied with. Activations of up to 8
// runs (16 with quantized weights), and those that are multiplied in parts, are kept in registers, and only
// some runs are in shared memory at a time.
static int64_t staged_bytes(const mlx_decode_plan_t *plan, mlx_decode_role_t role, int64_t width) {
  const bool quantized = is_quantized(plan, role), in_parts = role == MLX_DECODE_ROLE_DOWN;
  int64_t runs = fewest_runs(width, plan->segment);
  if (runs <= (quantized ? 16 : 8) || in_parts) runs = min_int(runs, quantized ? 4 : 2);
  return 8 * (quantized ? 640 : 768) * mlx_ceil_div(runs, 2) * 2;
}

// The largest of them.
static int64_t most_staged_bytes(const mlx_decode_plan_t *plan, int64_t queries, int64_t down) {
  int64_t most = 0;
  for (int i = 0; i < MLX_DECODE_ROLE_EMBED; ++i) {
    const int64_t width = i == MLX_DECODE_ROLE_DOWN ? down : i == MLX_DECODE_ROLE_O ? queries : plan->hidden;
    most = max_int(most, staged_bytes(plan, (mlx_decode_role_t)i, width));
  }
  return most;
}

// Whether the activations of 16-bit rows in a network with quantized matrices fit into registers.
static bool rows_fit(const mlx_decode_plan_t *plan, int64_t queries) {
  for (int i = 0; i < MLX_DECODE_ROLE_EMBED; ++i) {
    const int64_t width = i == MLX_DECODE_ROLE_O ? queries : plan->hidden;
    if (is_rows(plan->tiles[i][0]) && fewest_runs(width, plan->segment) > 8) return false;
  }
  return true;
}

// Shared memory of attention.
static int64_t attention_bytes(const mlx_config_t *c, mlx_dtype_t kv) {
  const int64_t group = c->heads / c->kv_heads, d = c->head_dim;
  const bool wide = kv == MLX_F32 || kv == MLX_Q8_0;
  const int64_t value_warps = wide ? (d <= 128 || group <= 4 ? 1 : 2) : d <= 64 ? 1 : d <= 128 ? 2 : 4;
  const int64_t merge = 4 * (8 * d + 16), mixed = 4 * (8 / value_warps * group * (d + 2));
  if (wide) return max_int(merge, mixed + 4 * (2 + group) * d + 2048 + 256);
  return max_int(merge, mixed + (group + 3) / 4 * ((d + 31) / 32) * 1024 + 4 * d + 256);
}

// Large GPUs have stages of up to 24 KB, and stages with rows of both gate and up.
static bool has_large_stages(const mlx_decode_plan_t *plan) { return plan->shared_bytes >= 160 << 10; }

// The largest stage of the ring buffer that weights stream through, with its barriers. A stage has at least
// one tile (128 columns) for each of 8 warps.
static int64_t stage_bytes(const mlx_decode_plan_t *plan, bool quantized) {
  if (!quantized) return 8 * (2 * plan->segment + 64) + 16;
  int64_t largest = 0;
  for (int i = 0; i < 2 * MLX_DECODE_ROLES; ++i) {
    const mlx_tiles_t tiles = plan->tiles[i / 2][i % 2];
    const int64_t rows = i / 2 == MLX_DECODE_ROLE_GATE && has_large_stages(plan) ? 2 : 1;
    if (!tiles.bits) continue;
    if (is_rows(tiles)) {
      if (i / 2 != MLX_DECODE_ROLE_EMBED)
        largest = max_int(largest, 8 * (2 * min_int(plan->segment, 1024) + 64));
      continue;
    }
    const int64_t least = rows * (int64_t)mlx_tiles_bytes(tiles, 1, 1024),
                  whole = rows * (int64_t)mlx_tiles_bytes(tiles, 1, plan->segment);
    largest = max_int(largest, min_int(whole, max_int(least, 24 << 10)));
  }
  return largest + 16;
}

// Columns of the down projection: those of the experts that a token uses follow each other, each padded to
// whole pairs of tiles.
static int64_t down_columns(const mlx_decode_plan_t *plan, bool quantized) {
  if (!plan->form.experts) return plan->ffn;
  return plan->form.used * (quantized ? mlx_ceil_div(plan->ffn, 256) * 256 : plan->ffn);
}

// Rows of gate, or of up, in the matrices that a token is multiplied with.
static int64_t mlp_rows(const mlx_decode_plan_t *plan) {
  return plan->form.experts ? plan->form.used * plan->ffn : plan->ffn;
}

// Shared memory for the sums of tiles that are completed together: BATCH of the kernel.
static int64_t sums_bytes(const mlx_decode_plan_t *plan, bool quantized) {
  const int64_t tiles = mlx_ceil_div(mlp_rows(plan), MLX_TILE_ROWS * plan->blocks);
  return 512 * (quantized && has_large_stages(plan) ? max_int(8, min_int(32, 2 * tiles)) : 8);
}

// Every block needs at least one row of every matrix, or one tile row (8 rows) of a quantized one.
static void plan_launch(const mlx_model_t *model, const mlx_gpu_kind_t *gpu, bool quantized,
                        mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim,
                together = quantized ? MLX_TILE_ROWS : 1;
  const int64_t rows = min_int(min_int(c->hidden, mlp_rows(plan)), min_int(c->vocab, queries + 2 * keys));
  plan->blocks = min_int(gpu->blocks, mlx_ceil_div(rows, together));
  plan->shared_bytes = gpu->shared_bytes;
  const int64_t splits = max_int(1, plan->blocks / c->kv_heads);
  const int64_t choice = plan->blocks * (8 + 4 * (2 + 2 * 64)) + mlx_ceil_div(c->vocab, 4) * 4;
  plan->scratch_words = 64 + choice + 3 * c->hidden + 2 * queries + 2 * keys;
  plan->scratch_words += 2 * down_columns(plan, quantized) + 2 * mlx_ceil_div(plan->form.experts, 4) * 4;
  plan->scratch_words += c->heads * splits * (c->head_dim + 2);
}

// The activations of all experts of a token are kept in registers, in one part.
static bool experts_fit(const mlx_decode_plan_t *plan, bool quantized) {
  const mlx_decode_form_t *form = &plan->form;
  return !form->experts ||
         (form->used <= 32 && form->experts <= 1024 && plan->ffn % MLX_TILE_ROWS == 0 &&
          fewest_runs(down_columns(plan, quantized), plan->segment) <= (quantized ? 16 : 8));
}

// Whether stages of plan->segment columns fit. The ring buffer needs one stage more than the kernel requests
// ahead.
static bool segment_fits(const mlx_model_t *model, mlx_dtype_t kv, bool quantized,
                         const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim,
                staged = most_staged_bytes(plan, queries, down_columns(plan, quantized));
  const int64_t residual = has_post_norms(&plan->form) ? 4 * c->hidden : 0;
  const int64_t work = max_int(attention_bytes(c, kv), staged) + residual, unit = quantized ? MLX_CODES : 8;
  return experts_fit(plan, quantized) && rows_fit(plan, queries) && c->hidden % unit == 0 &&
         plan->ffn % unit == 0 && c->head_dim % 16 == 0 && c->head_dim <= 256 &&
         4 * stage_bytes(plan, quantized) + work + sums_bytes(plan, quantized) + (4 << 10) <=
             plan->shared_bytes;
}

// Chooses the widest segments that fit. Rows of the hidden size are one segment, if they have at most 4096
// quantized columns: each stage costs a wait.
static bool launch_fits(const mlx_model_t *model, mlx_dtype_t kv, bool quantized, mlx_decode_plan_t *plan) {
  const int64_t hidden = mlx_ceil_div(model->config.hidden, 256) * 256;
  plan->segment = quantized && has_large_stages(plan) ? min_int(4096, max_int(2048, hidden)) : 1024;
  for (; plan->segment >= 512; plan->segment = plan->segment / 2 / 256 * 256) {
    if (segment_fits(model, kv, quantized, plan)) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Launch of kernels/cuda/few.cu, which asserts the sizes. It knows Llama's network with bf16 weights.

#define FEW_WARPS 8
#define FEW_STAGES 6
#define FEW_COLUMNS 2048  // most columns of x, which the warps keep in registers

static bool is_few_width(int64_t columns) {
  return columns % (32 * FEW_WARPS) == 0 && columns <= FEW_COLUMNS;
}

static bool has_llama_form(const mlx_decode_plan_t *plan) {
  const mlx_decode_form_t *form = &plan->form;
  for (int i = MLX_DECODE_HEAD + 1; i < MLX_DECODE_WEIGHTS; ++i)
    if (form->counts[i]) return false;
  return form->counts[MLX_DECODE_ATTN_NORM] && form->act == MLX_ACT_SILU && form->residual_scale == 1.0 &&
         form->grow_beta == 0.0 && !form->experts;
}

// |room|: shared memory of a block.
static void plan_few(const mlx_model_t *model, const mlx_module_options_t *options, int64_t room,
                     mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim;
  int64_t slices = 1;
  while (slices <= 8 && (c->ffn % slices || !is_few_width(c->ffn / slices))) ++slices;
  if (slices > 8 || options->narrow || options->kernels->gpu->kernel_sm != 90 || !plan->regular ||
      plan->dtype != MLX_BF16 || plan->tiles[MLX_DECODE_ROLE_QKV][0].bits || !has_llama_form(plan) ||
      !is_few_width(c->hidden) || !is_few_width(queries) || c->head_dim % 8 || c->vocab % 8 ||
      plan->blocks < slices)
    return;
  const int64_t columns = max_int(max_int(c->hidden, queries), c->ffn / slices);
  plan->few.shared_bytes =
      FEW_STAGES * (8 * (columns * 2 + 16) + 16) + 4 * FEW_WARPS * 512 + 8 * c->hidden + FEW_WARPS * 32 + 128;
  if (plan->few.shared_bytes > room) return;
  plan->few.slices = slices;
  plan->few.words_at = mlx_ceil_div(plan->scratch_words, 64) * 64;
  plan->few.words = 2 * MLX_FEW_SEQUENCES * ((2 + slices) * c->hidden + c->ffn);
}

// ----------------------------------------------------------------------------------------------------------
// Plans

// A launch takes at most a tenth of a second, so that output keeps streaming and other work gets its turn.
// Each token reads all weights.
static int64_t steps_of_launch(const mlx_gpu_kind_t *gpu, uint64_t weight_bytes) {
  const uint64_t launch_bytes = (uint64_t)gpu->bandwidth * (1000000000 / 10);
  return min_int(MLX_BURST_TOKENS, max_int(1, (int64_t)(launch_bytes / max_int(1, (int64_t)weight_bytes))));
}

mlx_status_t mlx_decode_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, mlx_decode_plan_t *out_plan,
                                  bool *out_fits) {
  *out_plan = (mlx_decode_plan_t){.hidden = model->config.hidden, .ffn = model->config.ffn, .regular = true};
  *out_fits = false;
  if (!options->kernels || !options->kernels->gpu) return NULL;
  const bool quantized = options->layout == MLX_LAYOUT_TILES;
  uint64_t *offsets = NULL;
  matcher_t matcher = {
      .graph = graph, .model = model, .storage = mlx_module_storage(options), .plan = out_plan, .fits = true};
  mlx_status_t status = mlx_alloc(model->weight_count, sizeof *offsets, &offsets);
  if (!status) {
    const uint64_t bytes = mlx_weights_layout(model, matcher.storage, offsets);  // each step reads all
    out_plan->max_steps = steps_of_launch(options->kernels->gpu, bytes);
    matcher.offsets = offsets;
    match_network(&matcher);
    plan_launch(model, options->kernels->gpu, quantized, out_plan);
    *out_fits = matcher.fits && launch_fits(model, options->kv, quantized, out_plan);
    if (*out_fits) plan_few(model, options, options->kernels->gpu->shared_bytes, out_plan);
  }
  mlx_free(offsets);
  return status;
}

mlx_status_t mlx_network_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                   mlx_network_plan_t *out_plan) {
  *out_plan = (mlx_network_plan_t){0};
  mlx_decode_plan_t plan = {.hidden = model->config.hidden, .ffn = model->config.ffn};
  matcher_t matcher = {.graph = graph, .model = model, .plan = &plan, .fits = true};
  mlx_status_t status = mlx_alloc((size_t)model->config.layers * MLX_DECODE_WEIGHTS,
                                  sizeof *out_plan->weights, &out_plan->weights);
  matcher.indices = out_plan->weights;
  if (!status) match_network(&matcher);
  if (status) {
    mlx_network_plan_clear(out_plan);
    return status;
  }
  out_plan->fits = matcher.fits;
  return NULL;
}

void mlx_network_plan_clear(mlx_network_plan_t *plan) {
  mlx_free(plan->weights);
  *plan = (mlx_network_plan_t){0};
}
