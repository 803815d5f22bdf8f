// The ops of graph/ops.h: each checks dtypes and shapes and appends a node.
#include "graph/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/graph.h"

bool mlx_rope_equal(const mlx_rope_t *a, const mlx_rope_t *b) {
  if (a->dims != b->dims || a->adjacent != b->adjacent || a->scale != b->scale) return false;
  return !memcmp(a->frequencies, b->frequencies, (size_t)(a->dims / 2) * sizeof *a->frequencies);
}

int64_t mlx_op_context(const mlx_graph_t *g) { return g->context; }

void mlx_op_scope(mlx_graph_t *g, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(g->scope, sizeof g->scope, fmt, args);
  va_end(args);
}

// ----------------------------------------------------------------------------------------------------------
// Checks

static mlx_shape_text_t shape_of(mlx_value_t x) { return mlx_shape_text(x.dtype, x.rank, x.dims); }

// Fails because the operands |a| and |b| do not fit. The message names the op, its scope and both shapes.
static mlx_value_t refuse(mlx_graph_t *g, const mlx_node_t *node, mlx_value_t a, mlx_value_t b,
                          const char *rule) {
  const char *dot = g->scope[0] ? "." : "";
  mlx_graph_fail(g, b.id ? mlx_error(MLX_INTERNAL, "op '%s%s%s' (%s): %s and %s do not fit: %s", g->scope,
                                     dot, node->name, mlx_node_kind_name(node->kind), shape_of(a).chars,
                                     shape_of(b).chars, rule)
                         : mlx_error(MLX_INTERNAL, "op '%s%s%s' (%s): %s does not fit: %s", g->scope, dot,
                                     node->name, mlx_node_kind_name(node->kind), shape_of(a).chars, rule));
  return MLX_NONE;
}

#define REQUIRE(condition, a, b, rule)                           \
  do {                                                           \
    if (g->status) return MLX_NONE;                              \
    if (!(condition)) return refuse(g, &node, (a), (b), (rule)); \
  } while (0)

static bool is_vector(mlx_value_t x, int64_t width) {
  return x.id && x.dtype == MLX_F32 && x.rank == 1 && x.dims[0] == width;
}
static bool is_matrix(mlx_value_t x) { return x.id && x.dtype == MLX_F32 && x.rank == 2; }
static bool is_rows(mlx_value_t x) { return is_matrix(x) && x.dims[0] < 0; }  // one row per token
static bool is_rows_of(mlx_value_t x, int64_t width) { return is_rows(x) && x.dims[1] == width; }
static bool same_shape(mlx_value_t a, mlx_value_t b) {
  return is_rows(a) && is_rows(b) && a.dims[0] == b.dims[0] && a.dims[1] == b.dims[1];
}

static mlx_node_t node_of(mlx_node_kind_t kind, const char *name, mlx_value_t x, mlx_value_t y) {
  mlx_node_t node = {
      .kind = kind, .dtype = MLX_F32, .rank = 2, .dims = {x.dims[0], x.dims[1]}, .operands = {x.id, y.id}};
  snprintf(node.name, sizeof node.name, "%s", name);
  return node;
}

// ----------------------------------------------------------------------------------------------------------
// Inputs

mlx_value_t mlx_op_weight(mlx_graph_t *g, const char *fmt, ...) {
  char name[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(name, sizeof name, fmt, args);
  va_end(args);
  if (g->status) return MLX_NONE;
  for (int id = 1; id <= (int)g->weight_count; ++id) {
    const mlx_node_t *node = mlx_graph_node(g, id);
    if (strcmp(node->weight_name, name)) continue;
    mlx_value_t value = {.id = id, .dtype = node->dtype, .rank = node->rank};
    memcpy(value.dims, node->dims, sizeof value.dims);
    return value;
  }
  mlx_graph_fail(
      g, mlx_error(MLX_INTERNAL, "the network uses a weight '%s' that the model does not have", name));
  return MLX_NONE;
}

// The input node |*id| of the graph, i32 [M], which the first call appends.
static mlx_value_t input(mlx_graph_t *g, mlx_node_kind_t kind, const char *name, int *id) {
  mlx_value_t value = {.id = *id, .dtype = MLX_I32, .rank = 1, .dims = {MLX_DIM_TOKENS}};
  if (g->status) return MLX_NONE;
  if (value.id) return value;
  char scope[sizeof g->scope];
  mlx_node_t node = {.kind = kind, .dtype = MLX_I32, .rank = 1, .dims = {MLX_DIM_TOKENS}};
  snprintf(node.name, sizeof node.name, "%s", name);
  memcpy(scope, g->scope, sizeof scope);
  g->scope[0] = 0;
  value = mlx_graph_append(g, &node);
  memcpy(g->scope, scope, sizeof scope);
  *id = value.id;
  return value;
}

mlx_value_t mlx_op_positions(mlx_graph_t *g) {
  return input(g, MLX_NODE_POSITIONS, "positions", &g->positions);
}

mlx_value_t mlx_op_types(mlx_graph_t *g) { return input(g, MLX_NODE_TYPES, "types", &g->types); }

static mlx_value_t embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens, bool some) {
  mlx_node_t node = node_of(MLX_NODE_EMBED, "embedded", table, tokens);
  node.some = some;
  REQUIRE(is_matrix(table) && tokens.id && tokens.dtype == MLX_I32 && tokens.rank == 1, table, tokens,
          "expected a table [rows, width] and indices i32[M]");
  node.dims[0] = tokens.dims[0];
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens) {
  return embed(g, table, tokens, false);
}

mlx_value_t mlx_op_embed_some(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens) {
  return embed(g, table, tokens, true);
}

// ----------------------------------------------------------------------------------------------------------
// Norms

mlx_value_t mlx_op_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight, double eps) {
  mlx_node_t node = node_of(MLX_NODE_RMSNORM, name, x, weight);
  REQUIRE(is_rows(x) && is_vector(weight, x.dims[1]), x, weight, "expected x [M, width] and weight [width]");
  node.eps = eps;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                             mlx_value_t bias, double eps) {
  mlx_node_t node = node_of(MLX_NODE_LAYERNORM, name, x, weight);
  REQUIRE(is_rows(x) && (!weight.id || is_vector(weight, x.dims[1])), x, weight,
          "expected x [M, width] and weight [width]");
  REQUIRE(!bias.id || is_vector(bias, x.dims[1]), x, bias, "expected x [M, width] and bias [width]");
  node.operands[2] = bias.id;
  node.eps = eps;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_head_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                mlx_value_t weight, double eps) {
  mlx_node_t node = node_of(MLX_NODE_HEAD_RMSNORM, name, x, weight);
  REQUIRE(is_rows(x) && head_dim > 0 && x.dims[1] % head_dim == 0 &&
              (!weight.id || is_vector(weight, head_dim) || is_vector(weight, x.dims[1])),
          x, weight, "expected x [M, heads * head_dim] and weight [head_dim] or [heads * head_dim]");
  node.eps = eps;
  node.head_dim = head_dim;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_head_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                  mlx_value_t weight, double eps) {
  mlx_node_t node = node_of(MLX_NODE_HEAD_LAYERNORM, name, x, weight);
  const bool per_head =
      is_matrix(weight) && weight.dims[0] * head_dim == x.dims[1] && weight.dims[1] == head_dim;
  REQUIRE(
      is_rows(x) && head_dim > 0 && x.dims[1] % head_dim == 0 && (per_head || is_vector(weight, head_dim)), x,
      weight, "expected x [M, heads * head_dim] and weight [head_dim] or [heads, head_dim]");
  node.eps = eps;
  node.head_dim = head_dim;
  return mlx_graph_append(g, &node);
}

// ----------------------------------------------------------------------------------------------------------
// Products

// |x| in the order of the columns of |weight|. Products with the same x and the same order share the node.
static mlx_value_t in_order_of(mlx_graph_t *g, mlx_value_t x, mlx_value_t weight) {
  const int order = mlx_graph_node(g, weight.id)->order;
  if (!order) return x;
  for (int id = x.id + 1; id <= (int)g->count; ++id) {
    const mlx_node_t *other = mlx_graph_node(g, id);
    if (other->kind != MLX_NODE_PERMUTE || other->operands[0] != x.id || other->operands[1] != order)
      continue;
    x.id = id;
    return x;
  }
  const mlx_node_t *of = mlx_graph_node(g, order), *input = mlx_graph_node(g, x.id);
  mlx_node_t node = node_of(MLX_NODE_PERMUTE, "", x, (mlx_value_t){.id = order});
  snprintf(node.name, sizeof node.name, "%.28s_permuted", input->name);
  REQUIRE(of->dtype == MLX_I32 && of->rank == 1 && of->dims[0] == x.dims[1], x, weight,
          "expected an order of the columns of the weight");
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  mlx_node_t node = node_of(MLX_NODE_LINEAR, name, x, weight);
  REQUIRE(is_rows(x) && is_matrix(weight) && weight.dims[1] == x.dims[1], x, weight,
          "expected x [M, in] and weight [out, in]");
  node.dims[1] = weight.dims[0];
  node.operands[0] = in_order_of(g, x, weight).id;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_linear_bias(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                               mlx_value_t bias) {
  if (!bias.id) return mlx_op_linear(g, name, x, weight);
  char product_name[sizeof((mlx_node_t *)0)->name];
  snprintf(product_name, sizeof product_name, "%s_product", name);
  mlx_value_t product = mlx_op_linear(g, product_name, x, weight);
  mlx_node_t node = node_of(MLX_NODE_BIAS, name, product, bias);
  REQUIRE(is_vector(bias, product.dims[1]), product, bias, "expected x [M, width] and bias [width]");
  return mlx_graph_append(g, &node);
}

static bool experts_fit(const mlx_experts_t *e, mlx_value_t x, mlx_value_t gate, mlx_value_t up,
                        mlx_value_t down) {
  const int64_t experts = gate.dims[0], ffn = gate.dims[1], hidden = x.dims[1];
  const mlx_value_t biases[] = {e->gate_bias, e->up_bias, e->down_bias};
  for (int i = 0; i < 3; ++i) {
    const int64_t width = i < 2 ? ffn : hidden;
    if (biases[i].id && !(is_matrix(biases[i]) && biases[i].dims[0] == experts && biases[i].dims[1] == width))
      return false;
  }
  if (up.id ? up.rank != 3 || up.dims[0] != experts || up.dims[1] != ffn || up.dims[2] != hidden
            : e->limit != 0.0 || e->up_bias.id)
    return false;
  return gate.rank == 3 && down.rank == 3 && gate.dims[2] == hidden && down.dims[0] == experts &&
         down.dims[1] == hidden && down.dims[2] == ffn;
}

static bool groups_fit(const mlx_experts_t *e, int64_t experts) {
  if (e->groups <= 1) return true;
  return experts % e->groups == 0 && experts / e->groups >= 2 && e->groups_used >= 1 &&
         e->groups_used <= e->groups && e->used <= experts / e->groups * e->groups_used;
}

bool mlx_experts_are_plain(const mlx_experts_t *e) {
  return !e->sigmoid && !e->choice_bias.id && !e->factors.id && e->groups <= 1 && e->sum_eps == 0.0 &&
         (e->weight_scale == 0.0 || e->weight_scale == 1.0) && e->spread == 0.0;
}

mlx_value_t mlx_op_experts(mlx_graph_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                           mlx_value_t scores, mlx_value_t gate, mlx_value_t up, mlx_value_t down) {
  mlx_node_t node = node_of(MLX_NODE_EXPERTS, name, x, scores);
  REQUIRE(is_rows(x) && is_rows_of(scores, gate.dims[0]) && scores.dims[0] == x.dims[0], x, scores,
          "expected x [M, hidden] and scores [M, experts]");
  REQUIRE(
      experts_fit(e, x, gate, up, down), gate, down,
      "expected gate and up [experts, ffn, hidden] and down [experts, hidden, ffn], with biases [experts, "
      "ffn] and [experts, hidden]");
  REQUIRE(!e->factors.id || is_vector(e->factors, gate.dims[0]), scores, e->factors,
          "expected factors [experts]");
  REQUIRE(!e->choice_bias.id || is_vector(e->choice_bias, gate.dims[0]), scores, e->choice_bias,
          "expected scores [M, experts] and a bias of the choice [experts]");
  REQUIRE(e->spread == 0.0 || (!e->sigmoid && e->groups <= 1 && !e->sum_to_one && !e->choice_bias.id), scores,
          gate, "expected a spread of weights that are a plain softmax");
  REQUIRE(groups_fit(e, gate.dims[0]), scores, gate,
          "expected groups of at least two experts, and enough experts in those that are used");
  const int more[] = {gate.id,       up.id,           down.id,           e->gate_bias.id,
                      e->up_bias.id, e->down_bias.id, e->choice_bias.id, e->factors.id};
  memcpy(node.operands + 2, more, sizeof more);
  node.experts = *e;
  return mlx_graph_append(g, &node);
}

// ----------------------------------------------------------------------------------------------------------
// Elementwise ops

static mlx_value_t combine(mlx_graph_t *g, mlx_node_t node, mlx_value_t a, mlx_value_t b) {
  REQUIRE(same_shape(a, b), a, b, "expected equal shapes [M, width]");
  return mlx_graph_append(g, &node);
}

static mlx_value_t change(mlx_graph_t *g, mlx_node_t node, mlx_value_t x) {
  REQUIRE(is_rows(x), x, MLX_NONE, "expected x [M, width]");
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_add(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  return combine(g, node_of(MLX_NODE_ADD, name, a, b), a, b);
}

mlx_value_t mlx_op_multiply(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  return combine(g, node_of(MLX_NODE_MULTIPLY, name, a, b), a, b);
}

mlx_value_t mlx_op_gated(mlx_graph_t *g, const char *name, mlx_act_t act, mlx_value_t gate, mlx_value_t up) {
  mlx_node_t node = node_of(MLX_NODE_GATED, name, gate, up);
  node.act = act;
  return combine(g, node, gate, up);
}

mlx_value_t mlx_op_scale(mlx_graph_t *g, const char *name, mlx_value_t x, double factor) {
  if (factor == 1.0) return x;
  mlx_node_t node = node_of(MLX_NODE_SCALE, name, x, MLX_NONE);
  node.factor = factor;
  return change(g, node, x);
}

mlx_value_t mlx_op_softcap(mlx_graph_t *g, const char *name, mlx_value_t x, double cap) {
  mlx_node_t node = node_of(MLX_NODE_SOFTCAP, name, x, MLX_NONE);
  node.cap = cap;
  return change(g, node, x);
}

mlx_value_t mlx_op_clip(mlx_graph_t *g, const char *name, mlx_value_t x, double limit) {
  mlx_node_t node = node_of(MLX_NODE_CLIP, name, x, MLX_NONE);
  node.limit = limit;
  return change(g, node, x);
}

mlx_value_t mlx_op_grow(mlx_graph_t *g, const char *name, mlx_value_t x, double beta, int64_t period) {
  mlx_node_t node = node_of(MLX_NODE_GROW, name, x, mlx_op_positions(g));
  node.beta = beta;
  node.period = period;
  return change(g, node, x);
}

mlx_value_t mlx_op_gain(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  mlx_node_t node = node_of(MLX_NODE_GAIN, name, x, weight);
  REQUIRE(is_rows(x) && is_vector(weight, x.dims[1]), x, weight, "expected x [M, width] and weight [width]");
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_sum_ranks(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t own_rank,
                             int64_t ranks) {
  mlx_node_t node = node_of(MLX_NODE_SUM_RANKS, name, x, MLX_NONE);
  REQUIRE(is_rows(x) && own_rank >= 0 && own_rank < ranks, x, MLX_NONE, "expected x [M, width] and a rank");
  node.own_rank = own_rank;
  node.ranks = ranks;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_match(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t like, double least) {
  mlx_node_t node = node_of(MLX_NODE_MATCH, name, x, like);
  node.number = least;
  return combine(g, node, x, like);
}

mlx_value_t mlx_op_sparsify(mlx_graph_t *g, const char *name, mlx_value_t x, double deviations) {
  mlx_node_t node = node_of(MLX_NODE_SPARSIFY, name, x, MLX_NONE);
  node.number = deviations;
  return change(g, node, x);
}

mlx_value_t mlx_op_activate(mlx_graph_t *g, const char *name, mlx_act_t act, const float *numbers,
                            mlx_value_t x) {
  mlx_node_t node = node_of(MLX_NODE_ACTIVATE, name, x, MLX_NONE);
  node.act = act;
  if (numbers) memcpy(node.act_numbers, numbers, sizeof node.act_numbers);
  return change(g, node, x);
}

mlx_value_t mlx_op_sigmoid(mlx_graph_t *g, const char *name, mlx_value_t x) {
  return change(g, node_of(MLX_NODE_SIGMOID, name, x, MLX_NONE), x);
}

mlx_value_t mlx_op_scale_rows(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t factor) {
  mlx_node_t node = node_of(MLX_NODE_SCALE_ROWS, name, x, factor);
  REQUIRE(is_rows(x) && is_rows_of(factor, 1) && factor.dims[0] == x.dims[0], x, factor,
          "expected x [M, width] and factor [M, 1]");
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_columns(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t start, int64_t count) {
  mlx_node_t node = node_of(MLX_NODE_COLUMNS, name, x, MLX_NONE);
  REQUIRE(is_rows(x) && start >= 0 && count > 0 && start <= x.dims[1] - count, x, MLX_NONE,
          "the columns are outside of it");
  node.dims[1] = count;
  node.start = start;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_head_columns(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                                int64_t start, int64_t count) {
  mlx_node_t node = node_of(MLX_NODE_HEAD_COLUMNS, name, x, MLX_NONE);
  REQUIRE(is_rows(x) && head_dim > 0 && x.dims[1] % head_dim == 0 && start >= 0 && count > 0 &&
              start <= head_dim - count,
          x, MLX_NONE, "expected x [M, heads * head_dim] and columns of a head");
  node.dims[1] = x.dims[1] / head_dim * count;
  node.head_dim = head_dim;
  node.start = start;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_join(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b) {
  mlx_node_t node = node_of(MLX_NODE_JOIN, name, a, b);
  REQUIRE(is_rows(a) && is_rows(b) && a.dims[0] == b.dims[0], a, b, "expected a [M, n] and b [M, m]");
  node.dims[1] = a.dims[1] + b.dims[1];
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_head_join(mlx_graph_t *g, const char *name, int64_t heads, mlx_value_t a, mlx_value_t b) {
  mlx_node_t node = node_of(MLX_NODE_HEAD_JOIN, name, a, b);
  REQUIRE(is_rows(a) && is_rows(b) && a.dims[0] == b.dims[0] && heads > 0 && a.dims[1] % heads == 0 &&
              b.dims[1] % heads == 0,
          a, b, "expected a [M, heads * n] and b [M, heads * m]");
  node.dims[1] = a.dims[1] + b.dims[1];
  node.head_dim = a.dims[1] / heads;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_head_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  mlx_node_t node = node_of(MLX_NODE_HEAD_LINEAR, name, x, weight);
  REQUIRE(is_rows(x) && weight.id && weight.dtype == MLX_F32 && weight.rank == 3 &&
              weight.dims[0] * weight.dims[2] == x.dims[1],
          x, weight, "expected x [M, heads * in] and weight [heads, out, in]");
  node.dims[1] = weight.dims[0] * weight.dims[1];
  return mlx_graph_append(g, &node);
}

// ----------------------------------------------------------------------------------------------------------
// Recurrent ops

mlx_value_t mlx_op_convolve(mlx_graph_t *g, const char *name, bool silu, mlx_value_t x, mlx_value_t weight,
                            mlx_value_t bias) {
  mlx_node_t node = node_of(MLX_NODE_CONVOLVE, name, x, weight);
  REQUIRE(is_rows(x) && is_matrix(weight) && weight.dims[0] == x.dims[1] && weight.dims[1] > 1, x, weight,
          "expected x [M, channels] and weight [channels, taps], with more than one tap");
  REQUIRE(!bias.id || is_vector(bias, x.dims[1]), x, bias, "expected x [M, channels] and bias [channels]");
  node.operands[2] = bias.id;
  node.silu = silu;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_delta(mlx_graph_t *g, const char *name, const mlx_delta_t *d, mlx_value_t qkv,
                         mlx_value_t step, mlx_value_t beta, mlx_value_t rate, mlx_value_t bias) {
  mlx_node_t node = node_of(MLX_NODE_DELTA, name, qkv, step);
  const int64_t values = d->value_heads * d->value_dim;
  REQUIRE(d->key_heads > 0 && d->value_heads % d->key_heads == 0 &&
              is_rows_of(qkv, 2 * d->key_heads * d->key_dim + values) && is_rows_of(step, d->value_heads),
          qkv, step, "expected q, k and v of all heads, and step [M, value_heads]");
  REQUIRE(same_shape(step, beta), step, beta, "expected step and beta [M, value_heads]");
  REQUIRE(is_vector(rate, d->value_heads) && is_vector(bias, d->value_heads), rate, bias,
          "expected rate and bias [value_heads]");
  node.dims[1] = values;
  const int more[] = {beta.id, rate.id, bias.id};
  memcpy(node.operands + 2, more, sizeof more);
  node.delta = *d;
  return mlx_graph_append(g, &node);
}

mlx_value_t mlx_op_scan(mlx_graph_t *g, const char *name, const mlx_scan_t *s, mlx_value_t xbc,
                        mlx_value_t step, mlx_value_t rate, mlx_value_t bias, mlx_value_t skip) {
  mlx_node_t node = node_of(MLX_NODE_SCAN, name, xbc, step);
  const int64_t inner = s->heads * s->head_dim;
  REQUIRE(s->groups > 0 && s->heads % s->groups == 0 &&
              is_rows_of(xbc, inner + 2 * s->groups * s->state_size) && is_rows_of(step, s->heads),
          xbc, step, "expected x of all heads, B and C of all groups, and step [M, heads]");
  const bool by_state = is_matrix(rate) && rate.dims[0] == s->heads && rate.dims[1] == s->state_size &&
                        s->groups == 1 && s->head_dim == 1;
  REQUIRE((s->state_rates ? by_state : is_vector(rate, s->heads)) && is_vector(bias, s->heads), rate, bias,
          "expected rate and bias [heads], or with rates of states a rate [heads, state_size] of heads of 1");
  REQUIRE(is_vector(skip, s->heads), rate, skip, "expected skip [heads]");
  node.dims[1] = inner;
  const int more[] = {rate.id, bias.id, skip.id};
  memcpy(node.operands + 2, more, sizeof more);
  node.scan = *s;
  return mlx_graph_append(g, &node);
}

// ----------------------------------------------------------------------------------------------------------
// Attention

mlx_value_t mlx_op_rope(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                        const mlx_rope_t *rope) {
  mlx_node_t node = node_of(MLX_NODE_ROPE, name, x, mlx_op_positions(g));
  REQUIRE(is_rows(x) && head_dim > 0 && x.dims[1] % head_dim == 0 && rope->dims <= head_dim, x, MLX_NONE,
          "expected x [M, heads * head_dim] and at most head_dim rotated elements");
  node.head_dim = head_dim;
  node.rope = rope;
  return mlx_graph_append(g, &node);
}

int64_t mlx_relative_bucket(int64_t key, int64_t query, int64_t buckets) {
  const int64_t half = buckets / 2, exact = half / 2, distance = key > query ? key - query : query - key;
  const float most = logf(128 / (float)exact);
  const int64_t large =
      distance < exact
          ? distance
          : exact + (int64_t)(logf((float)distance / (float)exact) / most * (float)(half - exact));
  return (key > query ? half : 0) + (large < half ? large : half - 1);
}

// Whether |a| can attend to the keys and values of its |kv_layer|, whose attention is in the graph.
static bool can_share(const mlx_graph_t *g, const mlx_attention_t *a) {
  const mlx_node_t *node = mlx_graph_kv_owner(g, a);
  const mlx_attention_t *from = node ? &node->attention : NULL;
  return from && !a->whole && !from->whole && !from->value_dim && from->kv_heads == a->kv_heads &&
         from->head_dim == a->head_dim && from->window == a->window;
}

mlx_value_t mlx_op_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                             mlx_value_t v) {
  mlx_node_t node = node_of(MLX_NODE_ATTENTION, "attended", q, k);
  REQUIRE(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && is_rows_of(q, a->heads * a->head_dim), q, k,
          "expected q [M, heads * head_dim]");
  REQUIRE(a->shared || is_rows_of(k, a->kv_heads * a->head_dim), q, k, "expected k [M, kv_heads * head_dim]");
  if (a->value_dim) {
    REQUIRE(a->kv_heads == 1 && !v.id && a->value_dim > 0 && a->value_dim <= a->head_dim, k, v,
            "expected one KV head whose key begins with its value");
    REQUIRE(!a->window && a->softcap == 0.0 && !a->sinks.id && !a->whole && !a->shared, q, k,
            "latent attention is causal and has no window, softcap, sinks or shared keys");
    node.dims[1] = a->heads * a->value_dim;
  } else if (a->shared) {
    REQUIRE(!k.id && !v.id && can_share(g, a), q, k, "expected an earlier layer with the same KV heads");
  } else {
    REQUIRE(same_shape(k, v), k, v, "expected equal shapes of k and v");
  }
  REQUIRE(!a->sinks.id || is_vector(a->sinks, a->heads), q, a->sinks, "expected sinks [heads]");
  REQUIRE(!a->relative.id || (a->whole && is_matrix(a->relative) && a->relative.dims[1] == a->heads), q,
          a->relative, "expected biases [buckets, heads] for attention of whole texts");
  REQUIRE(!(a->whole && a->window) && (a->whole || !a->span), q, k, "a window is causal, a span is not");
  node.operands[2] = v.id;
  node.operands[3] = a->sinks.id;
  node.operands[4] = a->relative.id;
  node.attention = *a;
  return mlx_graph_append(g, &node);
}
