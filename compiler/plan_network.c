// Matches the nodes of a graph with a decoder, layer after layer. Attention, the logits and the additions to
// the residual stream are found first; all other nodes are found as their operands or only users.
#include <string.h>

#include "base/memory.h"
#include "compiler/plan_match.h"

#define OTHER_VALUE "has another value than the first layer"
#define OTHER_INPUT "reads another value than the kernel does"

// ----------------------------------------------------------------------------------------------------------
// Nodes

static const mlx_node_t *node_at(const mlx_plan_matcher_t *m, int id) { return mlx_graph_node(m->graph, id); }

static bool is_kind(const mlx_plan_matcher_t *m, int id, mlx_node_kind_t kind) {
  return id && node_at(m, id)->kind == kind;
}

static bool is_norm(const mlx_plan_matcher_t *m, int id) {
  return is_kind(m, id, MLX_NODE_RMSNORM) || is_kind(m, id, MLX_NODE_HEAD_RMSNORM) ||
         is_kind(m, id, MLX_NODE_HEAD_LAYERNORM);
}

static int operand_of(const mlx_plan_matcher_t *m, int id, int nth) {
  return id ? node_at(m, id)->operands[nth] : 0;
}

static int take(mlx_plan_matcher_t *m, int id) {
  if (id) m->matched[id - 1] = true;
  return id;
}

// Takes |*id| if it has that kind: |*id| becomes its first operand. Returns the node taken; 0: it has another
// kind.
static int peel(mlx_plan_matcher_t *m, mlx_node_kind_t kind, int *id) {
  if (!is_kind(m, *id, kind)) return 0;
  const int taken = take(m, *id);
  *id = operand_of(m, taken, 0);
  return taken;
}

static int peel_norm(mlx_plan_matcher_t *m, int *id) {
  return is_norm(m, *id) ? peel(m, node_at(m, *id)->kind, id) : 0;
}

// Takes the node of that kind whose first operand is |x| and whose second is |y|, if |y| is not 0. 0: there
// is none.
static int take_user(mlx_plan_matcher_t *m, mlx_node_kind_t kind, int x, int y) {
  for (int id = 1; x && id <= (int)m->graph->count; ++id)
    if (is_kind(m, id, kind) && operand_of(m, id, 0) == x && (!y || operand_of(m, id, 1) == y))
      return take(m, id);
  return 0;
}

// Whether |*number| is |value|, which the first layer sets.
static void match_number(mlx_plan_matcher_t *m, bool first, double *number, double value, int node) {
  if (first) *number = value;
  mlx_plan_require(m, *number == value, node, OTHER_VALUE);
}

static void match_vector(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                         int64_t width) {
  mlx_plan_rows(m, which, layer, id, operand, 0, width, 0, width);
}

// ----------------------------------------------------------------------------------------------------------
// Products

// A matrix product, or columns of one: x times |linear|, plus |bias|, of which |columns| are used. Node ids;
// 0: none.
typedef struct product {
  int linear, bias, columns, x;
} product_t;

static product_t peel_product(mlx_plan_matcher_t *m, int id) {
  const int end = id;
  product_t p = {0};
  p.columns = peel(m, MLX_NODE_COLUMNS, &id);
  p.bias = peel(m, MLX_NODE_BIAS, &id);
  p.linear = peel(m, MLX_NODE_LINEAR, &id);
  mlx_plan_require(m, p.linear, end, "is not the product that the kernel computes here");
  p.x = id;
  return p;
}

// Records the matrix [rows, width] of |p| and its bias. If |p| is columns of a product with a tensor of
// |total| rows, they are its rows from |first| on.
static void record_product(mlx_plan_matcher_t *m, mlx_decode_weight_t which, mlx_decode_weight_t bias,
                           int64_t layer, product_t p, int64_t rows, int64_t width, int64_t first,
                           int64_t total) {
  if (!m->fits) return;
  if (!p.columns) {
    first = 0;
    total = rows;
  } else {
    const mlx_node_t *columns = node_at(m, p.columns);
    mlx_plan_require(m, columns->start == first && columns->dims[1] == rows, p.columns,
                     "is not the columns that the kernel uses");
  }
  mlx_plan_rows(m, which, layer, p.linear, 1, first, rows, width, total);
  if (p.bias) mlx_plan_rows(m, bias, layer, p.bias, 1, first, rows, 0, total);
}

// Of a product with its own tensor and without bias.
static void record_plain(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, product_t p,
                         int64_t rows, int64_t width) {
  mlx_plan_require(m, !p.bias && !p.columns, p.linear, "has a bias or other columns");
  record_product(m, which, which, layer, p, rows, width, 0, rows);
}

// ----------------------------------------------------------------------------------------------------------
// Norms

// |h| is the norm of |x| that attention, the MLP or the head reads, or |x| itself. All of them are RMSNorm or
// all LayerNorm.
static void match_norm(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int h, int x) {
  mlx_decode_form_t *form = &m->plan->form;
  const bool of_attention = which == MLX_DECODE_ATTN_NORM, of_mlp = which == MLX_DECODE_MLP_NORM;
  const bool rms = is_kind(m, h, MLX_NODE_RMSNORM);
  if (!m->fits || h == x) return;
  mlx_plan_require(m, (rms || is_kind(m, h, MLX_NODE_LAYERNORM)) && operand_of(m, h, 0) == x, h, OTHER_INPUT);
  if (!m->fits) return;
  take(m, h);
  if (!form->norms[0] && !form->norms[1] && !form->norms[2]) form->layer_norms = !rms;
  mlx_plan_require(m, form->layer_norms == !rms, h, "is another kind of norm than the first one");
  ++form->norms[of_attention ? 0 : of_mlp ? 1 : 2];
  match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node_at(m, h)->eps, h);
  if (rms || operand_of(m, h, 1)) match_vector(m, which, layer, h, 1, m->plan->hidden);
  if (rms || !operand_of(m, h, 2)) return;
  match_vector(m,
               of_attention ? MLX_DECODE_ATTN_NORM_BIAS
               : of_mlp     ? MLX_DECODE_MLP_NORM_BIAS
                            : MLX_DECODE_FINAL_NORM_BIAS,
               layer, h, 2, m->plan->hidden);
}

// A norm of queries or keys, of each head or of all |width| numbers; 0: there is none here.
static void match_qk_norm(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int norm,
                          int64_t width, bool after_rope) {
  mlx_decode_form_t *form = &m->plan->form;
  const int64_t head_dim = m->model->config.head_dim;
  if (!norm || !m->fits) return;
  const mlx_node_t *node = node_at(m, norm), *weight = mlx_graph_operand(m->graph, node, 1);
  const bool of_layer = node->kind == MLX_NODE_HEAD_LAYERNORM, whole = node->kind == MLX_NODE_RMSNORM;
  if (layer == m->first_attention && which == MLX_DECODE_Q_NORM) {
    form->norm_after_rope = after_rope;
    form->whole_norms = whole;
    form->qk_layer_norms = of_layer;
  }
  mlx_plan_require(
      m,
      form->norm_after_rope == after_rope && form->whole_norms == whole && form->qk_layer_norms == of_layer,
      norm, "is another kind of norm than that of the first queries");
  mlx_plan_require(m, whole || node->head_dim == head_dim, norm, "normalizes heads of another size");
  mlx_plan_require(m, weight, norm, "has no weight");
  mlx_plan_require(m, !of_layer || !after_rope, norm, "is a LayerNorm after RoPE");
  match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node->eps, norm);
  if (!m->fits) return;
  if (!of_layer) {
    match_vector(m, which, layer, norm, 1, whole ? width : head_dim);
    return;
  }
  mlx_plan_require(
      m, weight && weight->rank == 2 && weight->dims[0] * head_dim == width && weight->dims[1] == head_dim,
      norm, "has no weight for each head");
  if (m->fits) mlx_plan_weight(m, which, layer, norm, 1, 0, false);
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// A product and the ops after it, up to attention, in this order. Node ids; 0: none.
typedef struct heads {
  product_t product;
  int clip, norm, late_clip, rope, late_norm, grow;
  int columns;  // of each head: the other ones are the gate of the head
  int first;    // the product with its bias, columns and clip
} heads_t;

static heads_t peel_heads(mlx_plan_matcher_t *m, int id) {
  heads_t h = {.grow = peel(m, MLX_NODE_GROW, &id)};
  if (is_norm(m, id) && is_kind(m, operand_of(m, id, 0), MLX_NODE_ROPE)) h.late_norm = peel_norm(m, &id);
  h.rope = peel(m, MLX_NODE_ROPE, &id);
  if (is_norm(m, operand_of(m, id, 0))) h.late_clip = peel(m, MLX_NODE_CLIP, &id);
  h.norm = peel_norm(m, &id);
  h.first = id;
  h.clip = peel(m, MLX_NODE_CLIP, &id);
  h.columns = peel(m, MLX_NODE_HEAD_COLUMNS, &id);
  h.product = peel_product(m, id);
  return h;
}

// Queries and keys of a layer have the same rope, or none.
static void match_ropes(mlx_plan_matcher_t *m, int64_t layer, int q, int k) {
  mlx_decode_form_t *form = &m->plan->form;
  const int64_t head_dim = m->model->config.head_dim;
  const mlx_rope_t *rope = q ? node_at(m, q)->rope : NULL;
  mlx_plan_require(m, !q == !k, q ? q : k, "rotates only one of queries and keys");
  if (!m->fits) return;
  mlx_plan_require(m,
                   !q || (node_at(m, q)->head_dim == head_dim && node_at(m, k)->head_dim == head_dim &&
                          mlx_rope_equal(rope, node_at(m, k)->rope) && rope->dims <= head_dim),
                   q, "rotates queries and keys in different ways");
  int nth = 0;
  while (nth < form->rope_count &&
         (rope && form->ropes[nth] ? !mlx_rope_equal(rope, form->ropes[nth]) : rope != form->ropes[nth]))
    ++nth;
  mlx_plan_require(m, nth < MLX_DECODE_ROPES, q, "is one kind of RoPE too many");
  if (!m->fits) return;
  if (nth == form->rope_count) form->ropes[form->rope_count++] = rope;
  form->rope_of[layer] = (uint8_t)nth;
}

static void match_attention_options(mlx_plan_matcher_t *m, int64_t layer, int attention) {
  const mlx_config_t *c = &m->model->config;
  const mlx_attention_t *a = &node_at(m, attention)->attention;
  mlx_decode_form_t *form = &m->plan->form;
  if (layer == m->first_attention) m->plan->attention = *a;
  if (a->window && !form->window) form->window = a->window;
  form->windowed[layer] = a->window != 0;
  mlx_plan_require(m,
                   a->heads == c->heads && a->kv_heads == c->kv_heads && a->head_dim == c->head_dim &&
                       a->scale == m->plan->attention.scale && a->softcap == m->plan->attention.softcap &&
                       (!a->window || a->window == form->window),
                   attention, "differs from the attention of other layers");
  if (operand_of(m, attention, 3)) match_vector(m, MLX_DECODE_SINKS, layer, attention, 3, c->heads);
}

// A limit, if there is one. |limit|: that of the plan, which |first| sets.
static void match_clip(mlx_plan_matcher_t *m, bool first, double *limit, int clip, int product) {
  match_number(m, first, limit, clip ? node_at(m, clip)->limit : 0.0, clip ? clip : product);
}

// The factor of the queries that grows with the position, if there is one.
static void match_grow(mlx_plan_matcher_t *m, int64_t layer, const heads_t *heads) {
  mlx_decode_form_t *form = &m->plan->form;
  const mlx_node_t *node = heads[0].grow ? node_at(m, heads[0].grow) : NULL;
  match_number(m, layer == m->first_attention, &form->grow_beta, node ? node->beta : 0.0, heads[0].first);
  if (node && layer == m->first_attention) form->grow_period = node->period;
  if (node) mlx_plan_require(m, node->period == form->grow_period, heads[0].grow, OTHER_VALUE);
  for (int i = 1; i < 3; ++i)
    mlx_plan_require(m, !heads[i].grow, heads[i].grow, "scales keys or values by the position");
}

// Whether |id| is |count| columns of each head of the product |linear|, from |start| on.
static bool is_part_of_heads(const mlx_plan_matcher_t *m, int id, int linear, int64_t start, int64_t count) {
  return is_kind(m, id, MLX_NODE_HEAD_COLUMNS) && operand_of(m, id, 0) == linear &&
         node_at(m, id)->head_dim == 2 * count && node_at(m, id)->start == start &&
         node_at(m, id)->dims[1] == m->model->config.heads * count;
}

// The output of attention, multiplied by the sigmoid of the gate that follows the queries of each head, if
// there is one.
static int match_head_gate(mlx_plan_matcher_t *m, int64_t layer, int attention, const heads_t *heads) {
  mlx_decode_form_t *form = &m->plan->form;
  const int64_t head_dim = m->model->config.head_dim;
  const int product = heads[0].product.linear, gated = take_user(m, MLX_NODE_MULTIPLY, attention, 0),
            opened = operand_of(m, gated, 1), columns = operand_of(m, opened, 0);
  if (layer == m->first_attention) form->gated_heads = gated != 0;
  mlx_plan_require(m, form->gated_heads == (gated != 0) && !heads[0].columns == !gated, attention,
                   "has a gate unlike that of other layers");
  for (int i = 1; i < 3; ++i)
    mlx_plan_require(m, !heads[i].columns, heads[i].columns, "is columns of the heads of keys or values");
  if (!gated || !m->fits) return attention;
  mlx_plan_require(m, !heads[0].product.bias && !heads[0].product.columns && !heads[0].clip, product,
                   "has a bias, columns or a limit beside a gate");
  mlx_plan_require(m,
                   is_kind(m, opened, MLX_NODE_SIGMOID) &&
                       is_part_of_heads(m, columns, product, head_dim, head_dim) &&
                       is_part_of_heads(m, heads[0].columns, product, 0, head_dim),
                   gated, "is not the gate that the kernel computes");
  take(m, opened);
  take(m, columns);
  return gated;
}

static void match_heads(mlx_plan_matcher_t *m, int64_t layer, heads_t *heads) {
  static const mlx_decode_weight_t weights[] = {MLX_DECODE_Q, MLX_DECODE_K, MLX_DECODE_V},
                                   biases[] = {MLX_DECODE_Q_BIAS, MLX_DECODE_K_BIAS, MLX_DECODE_V_BIAS},
                                   norms[] = {MLX_DECODE_Q_NORM, MLX_DECODE_K_NORM};
  const mlx_config_t *c = &m->model->config;
  const int64_t keys = c->kv_heads * c->head_dim, queries = c->heads * c->head_dim,
                widths[] = {heads[0].columns ? 2 * queries : queries, keys, keys},
                total = widths[0] + 2 * keys, firsts[] = {0, widths[0], widths[0] + keys};
  const bool first = layer == m->first_attention;
  mlx_decode_form_t *form = &m->plan->form;
  if (heads[0].late_clip && heads[2].clip) {  // values have no norm, so their limit is both
    heads[2].late_clip = heads[2].clip;
    heads[2].clip = 0;
  }
  for (int i = 0; i < 3 && m->fits; ++i) {
    const int linear = heads[i].product.linear;
    record_product(m, weights[i], biases[i], layer, heads[i].product, widths[i], c->hidden, firsts[i], total);
    match_clip(m, first && !i, &form->clip, heads[i].clip, linear);
    if (i < 2) match_qk_norm(m, norms[i], layer, heads[i].norm, i ? keys : queries, false);
    match_clip(m, first && !i, &form->late_clip, heads[i].late_clip, linear);
    if (i < 2) match_qk_norm(m, norms[i], layer, heads[i].late_norm, i ? keys : queries, true);
  }
  mlx_plan_require(m, !heads[2].norm && !heads[2].late_norm && !heads[2].rope, heads[2].first,
                   "are values with a norm or RoPE");
  match_ropes(m, layer, heads[0].rope, heads[1].rope);
  match_grow(m, layer, heads);
  m->plan->nodes[layer].q = heads[0].first;
  m->plan->nodes[layer].k = heads[1].first;
  m->plan->nodes[layer].v = heads[2].first;
}

static int find_attention(const mlx_plan_matcher_t *m, int64_t layer) {
  for (int id = 1; id <= (int)m->graph->count; ++id)
    if (is_kind(m, id, MLX_NODE_ATTENTION) && node_at(m, id)->attention.layer == layer) return id;
  return 0;
}

// Attention of a layer, whose input is |x| or a norm of it. Returns its output, which is not added to the
// residual stream yet. *|out_input|: what q, k and v read.
static int match_attention(mlx_plan_matcher_t *m, int64_t layer, int x, int *out_input) {
  const mlx_config_t *c = &m->model->config;
  const int64_t queries = c->heads * c->head_dim;
  const int attention = take(m, find_attention(m, layer));
  mlx_plan_require(m, attention, x, "is followed by no attention");
  heads_t heads[3];
  memset(heads, 0, sizeof heads);
  for (int i = 0; i < 3 && m->fits; ++i) {
    heads[i] = peel_heads(m, operand_of(m, attention, i));
    mlx_plan_require(m, heads[i].product.x == heads[0].product.x, heads[i].first, OTHER_INPUT);
  }
  if (!m->fits) return 0;
  m->plan->nodes[layer].attention = attention;
  int h = *out_input = heads[0].product.x;
  const int order = peel(m, MLX_NODE_PERMUTE, &h);
  match_norm(m, MLX_DECODE_ATTN_NORM, layer, h, x);
  if (order) match_vector(m, MLX_DECODE_QKV_ORDER, layer, order, 1, c->hidden);
  match_heads(m, layer, heads);
  match_attention_options(m, layer, attention);
  const int output = match_head_gate(m, layer, attention, heads);
  const int permuted = take_user(m, MLX_NODE_PERMUTE, output, 0);
  if (permuted) match_vector(m, MLX_DECODE_O_ORDER, layer, permuted, 1, queries);
  product_t o = {.linear = take_user(m, MLX_NODE_LINEAR, permuted ? permuted : output, 0)};
  mlx_plan_require(m, o.linear, attention, "is not followed by a product");
  o.bias = take_user(m, MLX_NODE_BIAS, o.linear, 0);
  record_product(m, MLX_DECODE_O, MLX_DECODE_O_BIAS, layer, o, c->hidden, queries, 0, c->hidden);
  return o.bias ? o.bias : o.linear;
}

// ----------------------------------------------------------------------------------------------------------
// Recurrent layers

// The convolution |id| with its weights. Returns its input.
static int match_convolution(mlx_plan_matcher_t *m, int64_t layer, int id, bool silu) {
  mlx_decode_form_t *form = &m->plan->form;
  const int convolution = take(m, id);
  mlx_plan_require(m, is_kind(m, id, MLX_NODE_CONVOLVE) && node_at(m, id)->silu == silu, id,
                   "is not the convolution that the kernel computes here");
  if (!m->fits) return 0;
  const mlx_node_t *weight = mlx_graph_operand(m->graph, node_at(m, id), 1);
  const int64_t channels = weight->dims[0], taps = weight->dims[1];
  if (!form->taps) form->taps = taps;
  mlx_plan_require(m, form->taps == taps && taps <= 8, id, "has another number of taps, or more than 8");
  mlx_plan_rows(m, MLX_DECODE_FILTER, layer, convolution, 1, 0, channels, taps, channels);
  if (operand_of(m, convolution, 2)) match_vector(m, MLX_DECODE_FILTER_BIAS, layer, convolution, 2, channels);
  form->state_nodes[layer][0] = convolution;
  return operand_of(m, convolution, 0);
}

static void match_delta_options(mlx_plan_matcher_t *m, int64_t layer, int delta) {
  mlx_decode_form_t *form = &m->plan->form;
  const mlx_delta_t *d = &node_at(m, delta)->delta, *first = &form->delta;
  if (!form->recurrent_layers) form->delta = *d;
  mlx_plan_require(m,
                   d->key_heads == first->key_heads && d->value_heads == first->value_heads &&
                       d->key_dim == first->key_dim && d->value_dim == first->value_dim &&
                       d->scale == first->scale && d->eps == first->eps && d->log_rate == first->log_rate &&
                       d->tiled == first->tiled,
                   delta, OTHER_VALUE);
  mlx_plan_require(m, d->beta_scale == 0.0, delta, "has a factor of beta");
  mlx_plan_require(m, d->key_dim <= 256, delta, "has keys of more than 256 numbers");
  mlx_plan_require(m, d->value_dim <= 128 && d->value_dim % 4 == 0, delta,
                   "has values of more than 128 numbers, or not of a multiple of 4");
  form->state_nodes[layer][1] = delta;
}

// The gated delta rule with the norm of its heads, times the activation of z. Returns the layer's input.
static int match_delta(mlx_plan_matcher_t *m, int64_t layer, int gated) {
  const int64_t hidden = m->plan->hidden;
  product_t z = peel_product(m, operand_of(m, take(m, gated), 0));
  int id = operand_of(m, gated, 1);
  const int norm = peel(m, MLX_NODE_HEAD_RMSNORM, &id), delta = take(m, id);
  mlx_plan_require(m, node_at(m, gated)->act == MLX_ACT_SILU, gated, "is another activation than SiLU");
  mlx_plan_require(m, norm && is_kind(m, delta, MLX_NODE_DELTA), gated, "is no output of the delta rule");
  if (!m->fits) return 0;
  match_delta_options(m, layer, delta);
  const mlx_delta_t *d = &node_at(m, delta)->delta;
  const int64_t values = d->value_heads * d->value_dim, channels = 2 * d->key_heads * d->key_dim + values;
  const product_t in = peel_product(m, match_convolution(m, layer, operand_of(m, delta, 0), true)),
                  step = peel_product(m, operand_of(m, delta, 1)),
                  beta = peel_product(m, operand_of(m, delta, 2));
  mlx_plan_require(m, z.x == in.x && step.x == in.x && beta.x == in.x, delta, OTHER_INPUT);
  mlx_plan_require(m, m->fits && node_at(m, norm)->head_dim == d->value_dim, norm,
                   "normalizes heads of another size");
  if (!m->fits) return 0;
  record_plain(m, MLX_DECODE_RECURRENT_IN, layer, in, channels, hidden);
  record_plain(m, MLX_DECODE_DELTA_Z, layer, z, values, hidden);
  record_plain(m, MLX_DECODE_DELTA_BETA, layer, beta, d->value_heads, hidden);
  record_plain(m, MLX_DECODE_DELTA_STEP, layer, step, d->value_heads, hidden);
  match_vector(m, MLX_DECODE_DELTA_RATE, layer, delta, 3, d->value_heads);
  match_vector(m, MLX_DECODE_DELTA_STEP_BIAS, layer, delta, 4, d->value_heads);
  match_vector(m, MLX_DECODE_DELTA_NORM, layer, norm, 1, d->value_dim);
  match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node_at(m, norm)->eps, norm);
  return in.x;
}

// c * convolution(b * x), with b, c and x in one product. Returns the layer's input.
static int match_short_convolution(mlx_plan_matcher_t *m, int64_t layer, int multiplied) {
  const int64_t hidden = m->plan->hidden;
  const product_t c = peel_product(m, operand_of(m, take(m, multiplied), 0));
  const int bx = match_convolution(m, layer, operand_of(m, multiplied, 1), false);
  mlx_plan_require(m, is_kind(m, bx, MLX_NODE_MULTIPLY), multiplied, OTHER_INPUT);
  if (!m->fits) return 0;
  const product_t b = peel_product(m, operand_of(m, take(m, bx), 0)),
                  x = peel_product(m, operand_of(m, bx, 1)), parts[] = {b, c, x};
  for (int i = 0; i < 3 && m->fits; ++i)
    mlx_plan_require(m,
                     parts[i].linear == b.linear && parts[i].bias == b.bias && parts[i].columns &&
                         node_at(m, parts[i].columns)->start == i * hidden &&
                         node_at(m, parts[i].columns)->dims[1] == hidden,
                     multiplied, "is not the gates and the input that the kernel uses");
  mlx_plan_rows(m, MLX_DECODE_RECURRENT_IN, layer, b.linear, 1, 0, 3 * hidden, hidden, 3 * hidden);
  if (b.bias) match_vector(m, MLX_DECODE_RECURRENT_IN_BIAS, layer, b.bias, 1, 3 * hidden);
  mlx_plan_require(m, !m->plan->form.delta.value_heads, multiplied, "is no delta rule, unlike other layers");
  return b.x;
}

// A recurrent layer, whose input is |x| or a norm of it. Returns its output, which is not added to the
// residual stream yet. *|out_input|: what its products read.
static int match_recurrent(mlx_plan_matcher_t *m, int64_t layer, int x, int *out_input) {
  int add = 0;
  for (int id = 1; id <= (int)m->graph->count && !add; ++id)
    if (is_kind(m, id, MLX_NODE_ADD) && operand_of(m, id, 0) == x) add = id;
  mlx_plan_require(m, add, x, "is not the input of a layer");
  if (!m->fits) return 0;
  mlx_decode_form_t *form = &m->plan->form;
  const product_t out = peel_product(m, operand_of(m, add, 1));
  const bool gated = is_kind(m, out.x, MLX_NODE_GATED);
  mlx_plan_require(m, gated || is_kind(m, out.x, MLX_NODE_MULTIPLY), out.linear,
                   "is no product of a recurrent layer");
  if (!m->fits) return 0;
  const int h = gated ? match_delta(m, layer, out.x) : match_short_convolution(m, layer, out.x);
  mlx_plan_require(m, !out.columns, out.columns, "is columns of a product");
  if (!m->fits) return 0;
  *out_input = h;
  match_norm(m, MLX_DECODE_ATTN_NORM, layer, h, x);
  record_product(m, MLX_DECODE_RECURRENT_OUT, MLX_DECODE_RECURRENT_OUT_BIAS, layer, out, m->plan->hidden,
                 mlx_recurrent_width(form, m->plan->hidden), 0, m->plan->hidden);
  form->recurrent[layer] = true;
  ++form->recurrent_layers;
  m->plan->regular = false;
  return out.bias ? out.bias : out.linear;
}

// ----------------------------------------------------------------------------------------------------------
// MLP

// The nodes of an MLP, or of a mixture of experts and an expert that every token uses; 0: none.
typedef struct mlp {
  product_t gate, up, down, score, router;  // of the shared expert, if there are experts
  int act, experts, share, shared;
  int input;
} mlp_t;

// act(gate) * up or act(up), and the product that follows.
static void peel_gated(mlx_plan_matcher_t *m, int id, mlp_t *out) {
  out->down = peel_product(m, id);
  const int act = out->act = take(m, out->down.x);
  const bool gated = is_kind(m, act, MLX_NODE_GATED);
  mlx_plan_require(m, gated || is_kind(m, act, MLX_NODE_ACTIVATE), act, "is no activation");
  if (!m->fits) return;
  if (gated) out->gate = peel_product(m, operand_of(m, act, 0));
  out->up = peel_product(m, operand_of(m, act, gated ? 1 : 0));
  mlx_plan_require(m, !gated || out->gate.x == out->up.x, out->up.linear, OTHER_INPUT);
  out->input = out->up.x;
}

// A mixture of experts.
static void peel_experts(mlx_plan_matcher_t *m, int id, mlp_t *out) {
  mlx_plan_require(m, is_kind(m, id, MLX_NODE_EXPERTS), id, "is no mixture of experts");
  if (!m->fits) return;
  out->experts = take(m, id);
  out->router = peel_product(m, operand_of(m, id, 1));
  out->input = operand_of(m, id, 0);
  mlx_plan_require(m, out->router.x == out->input, out->router.linear, OTHER_INPUT);
}

// An expert that every token uses, times its weight.
static void peel_shared(mlx_plan_matcher_t *m, int id, mlp_t *out) {
  const int share = operand_of(m, id, 1);
  mlx_plan_require(m, is_kind(m, id, MLX_NODE_SCALE_ROWS) && is_kind(m, share, MLX_NODE_SIGMOID), id,
                   "is no expert that every token uses");
  if (!m->fits) return;
  out->shared = take(m, id);
  out->share = take(m, share);
  out->score = peel_product(m, operand_of(m, share, 0));
  peel_gated(m, operand_of(m, id, 0), out);
  mlx_plan_require(m, out->score.x == out->input, out->score.linear, OTHER_INPUT);
}

// The MLP that ends with node |id|.
static mlp_t peel_mlp(mlx_plan_matcher_t *m, int id) {
  const mlx_config_t *c = &m->model->config;
  mlp_t mlp = {.input = 0};
  if (!c->experts) {
    peel_gated(m, id, &mlp);
    return mlp;
  }
  if (!c->shared_ffn) {
    peel_experts(m, id, &mlp);
    return mlp;
  }
  mlx_plan_require(m, is_kind(m, id, MLX_NODE_ADD), id, "is no sum of experts");
  if (!m->fits) return mlp;
  take(m, id);
  peel_shared(m, operand_of(m, id, 0), &mlp);
  const int input = mlp.input;
  if (m->fits) peel_experts(m, operand_of(m, id, 1), &mlp);
  mlx_plan_require(m, mlp.input == input, mlp.experts, OTHER_INPUT);
  return mlp;
}

static void match_experts_form(mlx_plan_matcher_t *m, int64_t layer, int experts) {
  mlx_decode_form_t *form = &m->plan->form;
  const mlx_experts_t *e = &node_at(m, experts)->experts;
  const mlx_node_t *gate = mlx_graph_operand(m->graph, node_at(m, experts), 2);
  mlx_plan_require(m, mlx_experts_are_plain(e), experts, "weights its experts by more than a softmax");
  mlx_plan_require(m, operand_of(m, experts, 3) != 0, experts, "has experts without a gate");
  if (layer == 0) {
    form->experts = gate->dims[0];
    m->plan->ffn = gate->dims[1];
    form->used = e->used;
    form->sum_to_one = e->sum_to_one;
    form->limit = e->limit;
    form->slope = e->slope;
    form->act = e->act;
  }
  mlx_plan_require(m,
                   form->used == e->used && form->sum_to_one == e->sum_to_one && form->limit == e->limit &&
                       form->slope == e->slope && form->act == e->act,
                   experts, "differs from the experts of other layers");
}

static void record_experts(mlx_plan_matcher_t *m, int64_t layer, const mlp_t *mlp) {
  static const mlx_decode_weight_t weights[] = {MLX_DECODE_GATE, MLX_DECODE_UP, MLX_DECODE_DOWN},
                                   biases[] = {MLX_DECODE_GATE_BIAS, MLX_DECODE_UP_BIAS,
                                               MLX_DECODE_DOWN_BIAS};
  const int64_t hidden = m->plan->hidden, count = m->model->config.experts;
  mlx_plan_require(m, !mlp->router.columns, mlp->router.columns, "is columns of a product");
  record_product(m, MLX_DECODE_ROUTER, MLX_DECODE_ROUTER_BIAS, layer, mlp->router, count, hidden, 0, count);
  match_experts_form(m, layer, mlp->experts);
  const int64_t ffn = m->plan->ffn;
  for (int i = 0; i < 3; ++i)
    mlx_plan_experts_weight(m, weights[i], layer, mlp->experts, 2 + i, i == 2 ? hidden : ffn,
                            i == 2 ? ffn : hidden);
  for (int i = 0; i < 3; ++i)
    if (operand_of(m, mlp->experts, 5 + i))
      mlx_plan_experts_weight(m, biases[i], layer, mlp->experts, 5 + i, i == 2 ? hidden : ffn, 0);
}

static void record_shared(mlx_plan_matcher_t *m, int64_t layer, const mlp_t *mlp) {
  const int64_t hidden = m->plan->hidden, ffn = m->plan->form.shared_ffn = m->model->config.shared_ffn;
  mlx_plan_require(m, mlp->gate.linear, mlp->act, "has no gate");
  record_plain(m, MLX_DECODE_SHARED_GATE, layer, mlp->gate, ffn, hidden);
  record_plain(m, MLX_DECODE_SHARED_UP, layer, mlp->up, ffn, hidden);
  record_plain(m, MLX_DECODE_SHARED_DOWN, layer, mlp->down, hidden, ffn);
  record_plain(m, MLX_DECODE_SHARED_SCORE, layer, mlp->score, 1, hidden);
}

static void record_mlp(mlx_plan_matcher_t *m, int64_t layer, const mlp_t *mlp) {
  const int64_t hidden = m->plan->hidden, ffn = m->plan->ffn;
  mlx_decode_form_t *form = &m->plan->form;
  if (m->fits && mlp->shared) record_shared(m, layer, mlp);
  if (m->fits && mlp->experts) record_experts(m, layer, mlp);
  if (mlp->shared)
    mlx_plan_require(m, form->act == node_at(m, mlp->act)->act && form->limit == 0.0, mlp->act,
                     "is another activation than that of the experts");
  if (mlp->experts || !m->fits) return;
  if (layer == 0) form->act = node_at(m, mlp->act)->act;
  form->act_numbers[layer] = node_at(m, mlp->act)->act_numbers;
  mlx_plan_require(m, node_at(m, mlp->act)->act == form->act, mlp->act, OTHER_VALUE);
  if (mlp->gate.linear)
    record_product(m, MLX_DECODE_GATE, MLX_DECODE_GATE_BIAS, layer, mlp->gate, ffn, hidden, 0, 2 * ffn);
  record_product(m, MLX_DECODE_UP, MLX_DECODE_UP_BIAS, layer, mlp->up, ffn, hidden, ffn, 2 * ffn);
  record_product(m, MLX_DECODE_DOWN, MLX_DECODE_DOWN_BIAS, layer, mlp->down, hidden, ffn, 0, hidden);
}

// ----------------------------------------------------------------------------------------------------------
// Layers

// The norm and the factor of an output before it is added to the residual stream.
static void match_post(mlx_plan_matcher_t *m, mlx_decode_weight_t post, int64_t layer, int norm, int scale,
                       int add) {
  if (!m->fits) return;
  if (norm) {
    match_vector(m, post, layer, norm, 1, m->plan->hidden);
    match_number(m, m->plan->norm_eps == 0.0, &m->plan->norm_eps, node_at(m, norm)->eps, norm);
  }
  match_number(m, post == MLX_DECODE_POST_ATTN_NORM && layer == 0, &m->plan->form.residual_scale,
               scale ? node_at(m, scale)->factor : 1.0, scale ? scale : add);
}

// The MLP's input |mlp| is a norm of the residual stream |after| attention. In a parallel layer it is the
// input of q, k and v, which is a norm of the layer's input |x|, or another norm of it.
static void match_mlp_input(mlx_plan_matcher_t *m, int64_t layer, int h, int qkv, int x, int after) {
  const int order = h != qkv ? peel(m, MLX_NODE_PERMUTE, &h) : 0;
  if (!m->fits) return;
  const bool second = h != after && operand_of(m, h, 0) == x && !m->matched[h - 1],
             parallel = h == qkv || second;
  mlx_plan_require(m, h != x, h, "is read by attention and MLP without a norm");
  if (order) match_vector(m, MLX_DECODE_GATE_ORDER, layer, order, 1, m->plan->hidden);
  if (h != qkv) match_norm(m, MLX_DECODE_MLP_NORM, layer, h, second ? x : after);
  if (layer == 0) m->plan->form.parallel = parallel;
  mlx_plan_require(m, m->plan->form.parallel == parallel, h, OTHER_INPUT);
}

// Returns the output of the layer. |x|: its input.
static int match_layer(mlx_plan_matcher_t *m, int64_t layer, int x) {
  int qkv = 0,
      y = find_attention(m, layer) ? match_attention(m, layer, x, &qkv) : match_recurrent(m, layer, x, &qkv);
  const int norm = take_user(m, MLX_NODE_RMSNORM, y, 0);
  if (norm) y = norm;
  const int scale = take_user(m, MLX_NODE_SCALE, y, 0);
  if (scale) y = scale;
  const int after = take_user(m, MLX_NODE_ADD, x, y), out = take_user(m, MLX_NODE_ADD, after, 0);
  mlx_plan_require(m, after, y, "is not added to the input of its layer");
  mlx_plan_require(m, out, after, "is followed by no addition of an MLP");
  match_post(m, MLX_DECODE_POST_ATTN_NORM, layer, norm, scale, after);
  if (!m->fits) return 0;
  int end = operand_of(m, out, 1);
  const int mlp_scale = peel(m, MLX_NODE_SCALE, &end), mlp_norm = peel(m, MLX_NODE_RMSNORM, &end);
  const mlp_t mlp = peel_mlp(m, end);
  match_mlp_input(m, layer, mlp.input, qkv, x, after);
  record_mlp(m, layer, &mlp);
  match_post(m, MLX_DECODE_POST_MLP_NORM, layer, mlp_norm, mlp_scale, out);
  return out;
}

// ----------------------------------------------------------------------------------------------------------
// The network

// The embedding, its factor, and learned positions that are added to it.
static int match_embedding(mlx_plan_matcher_t *m) {
  const mlx_config_t *c = &m->model->config;
  mlx_decode_form_t *form = &m->plan->form;
  int x = 0;
  for (int id = 1; id <= (int)m->graph->count && !x; ++id)
    if (is_kind(m, id, MLX_NODE_EMBED) && is_kind(m, operand_of(m, id, 1), MLX_NODE_TOKENS)) x = take(m, id);
  mlx_plan_require(m, x, 0, "no embedding of tokens");
  mlx_plan_rows(m, MLX_DECODE_EMBED, 0, x, 0, 0, c->vocab, c->hidden, c->vocab);
  const int scaled = take_user(m, MLX_NODE_SCALE, x, 0);
  form->embed_scale = scaled ? node_at(m, scaled)->factor : 1.0;
  if (scaled) x = scaled;
  for (int id = 1; id <= (int)m->graph->count; ++id) {
    const int table = operand_of(m, id, 1);
    if (!is_kind(m, id, MLX_NODE_ADD) || operand_of(m, id, 0) != x || !is_kind(m, table, MLX_NODE_EMBED))
      continue;
    mlx_plan_require(m, is_kind(m, operand_of(m, table, 1), MLX_NODE_POSITIONS), table, OTHER_INPUT);
    form->positions = mlx_graph_operand(m->graph, node_at(m, table), 0)->dims[0];
    mlx_plan_rows(m, MLX_DECODE_POSITIONS, 0, take(m, table), 0, 0, form->positions, c->hidden,
                  form->positions);
    return take(m, id);
  }
  return x;
}

// The final norm of |x|, and the logits.
static void match_head(mlx_plan_matcher_t *m, int x) {
  const mlx_config_t *c = &m->model->config;
  mlx_decode_form_t *form = &m->plan->form;
  int id = (int)m->graph->count;
  peel(m, MLX_NODE_LOGITS, &id);
  const int cap = peel(m, MLX_NODE_SOFTCAP, &id), scale = peel(m, MLX_NODE_SCALE, &id);
  const product_t head = peel_product(m, id);
  id = head.x;
  mlx_plan_require(m, peel(m, MLX_NODE_WANTED, &id), id, "is not the rows of the wanted tokens");
  match_norm(m, MLX_DECODE_FINAL_NORM, 0, id, x);
  mlx_plan_require(m, !head.columns, head.columns, "is columns of a product");
  record_product(m, MLX_DECODE_HEAD, MLX_DECODE_HEAD_BIAS, 0, head, c->vocab, c->hidden, 0, c->vocab);
  form->logit_scale = scale ? node_at(m, scale)->factor : 1.0;
  form->logit_softcap = cap ? node_at(m, cap)->cap : 0.0;
}

// Every node that computes something is one of those that the kernel computes.
static void check_all_matched(mlx_plan_matcher_t *m) {
  for (int id = 1; id <= (int)m->graph->count; ++id)
    if (!mlx_node_is_input(node_at(m, id)->kind))
      mlx_plan_require(m, m->matched[id - 1], id, "is an op that the kernel does not have there");
}

// The kernel multiplies the small matrices of the delta rule with the other ones if they have a format of
// those, and their rows end with a tile.
static int delta_rows_format(const mlx_decode_plan_t *plan) {
  const mlx_tiles_t *formats = plan->tiles[MLX_DECODE_ROLE_RECURRENT],
                    *own = plan->tiles[MLX_DECODE_ROLE_DELTA];
  const mlx_decode_form_t *form = &plan->form;
  if (!form->delta.value_heads) return 0;
  if (!own->bits) {
    const bool rows = !formats[0].bits || mlx_tiles_are_rows(formats[0]);
    return rows && form->delta_rows == plan->dtype;
  }
  if (form->delta.value_heads % MLX_TILE_ROWS) return 0;
  return mlx_tiles_equal(*own, formats[0]) ? 1 : mlx_tiles_equal(*own, formats[1]) ? 2 : 0;
}

mlx_status_t mlx_plan_match_network(const mlx_model_t *model, const mlx_graph_t *graph,
                                    const uint64_t *offsets, mlx_storage_t storage, size_t *indices,
                                    mlx_decode_plan_t *plan, bool *out_fits) {
  mlx_plan_matcher_t m = {.graph = graph,
                          .model = model,
                          .offsets = offsets,
                          .storage = storage,
                          .indices = indices,
                          .plan = plan,
                          .fits = true};
  MLX_TRY(mlx_alloc(graph->count, sizeof *m.matched, &m.matched));
  for (int id = 1; id <= (int)graph->count; ++id)
    mlx_plan_require(&m, !is_kind(&m, id, MLX_NODE_SCAN), id, "is a selective scan");
  for (int id = 1; id <= (int)graph->count; ++id)
    mlx_plan_require(&m, !mlx_graph_node(graph, id)->attention.shared, id,
                     "shares keys and values with another layer");
  while (m.first_attention < model->config.layers && !find_attention(&m, m.first_attention))
    ++m.first_attention;
  int x = plan->first_node = match_embedding(&m);
  for (int64_t layer = 0; layer < model->config.layers && m.fits; ++layer) x = match_layer(&m, layer, x);
  plan->last_node = x;
  if (m.fits) match_head(&m, x);
  check_all_matched(&m);
  if (m.fits) plan->form.delta_rows_format = delta_rows_format(plan);
  const char *unsupported = m.fits ? mlx_plan_unsupported_form(&m) : NULL;
  mlx_plan_require(&m, !unsupported, 0, unsupported);
  *out_fits = m.fits;
  mlx_free(m.matched);
  return NULL;
}
