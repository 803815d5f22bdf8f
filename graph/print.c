// The text form of a graph, for goldens, messages and people.
#include <math.h>
#include <stdio.h>

#include "graph/graph.h"

const char *mlx_node_kind_name(mlx_node_kind_t kind) {
  static const char *const names[MLX_NODE_KINDS] = {
      [MLX_NODE_TOKENS] = "tokens",
      [MLX_NODE_POSITIONS] = "positions",
      [MLX_NODE_TYPES] = "types",
      [MLX_NODE_WEIGHT] = "weight",
      [MLX_NODE_EMBED] = "embed",
      [MLX_NODE_RMSNORM] = "rmsnorm",
      [MLX_NODE_LAYERNORM] = "layernorm",
      [MLX_NODE_HEAD_RMSNORM] = "head_rmsnorm",
      [MLX_NODE_HEAD_LAYERNORM] = "head_layernorm",
      [MLX_NODE_LINEAR] = "linear",
      [MLX_NODE_BIAS] = "bias",
      [MLX_NODE_ADD] = "add",
      [MLX_NODE_MULTIPLY] = "multiply",
      [MLX_NODE_SCALE] = "scale",
      [MLX_NODE_SOFTCAP] = "softcap",
      [MLX_NODE_CLIP] = "clip",
      [MLX_NODE_GROW] = "grow",
      [MLX_NODE_GAIN] = "gain",
      [MLX_NODE_MATCH] = "match",
      [MLX_NODE_SPARSIFY] = "sparsify",
      [MLX_NODE_ACTIVATE] = "activate",
      [MLX_NODE_GATED] = "gated",
      [MLX_NODE_JOIN] = "join",
      [MLX_NODE_HEAD_JOIN] = "head_join",
      [MLX_NODE_HEAD_LINEAR] = "head_linear",
      [MLX_NODE_EXPERTS] = "experts",
      [MLX_NODE_SIGMOID] = "sigmoid",
      [MLX_NODE_SCALE_ROWS] = "scale_rows",
      [MLX_NODE_COLUMNS] = "columns",
      [MLX_NODE_HEAD_COLUMNS] = "head_columns",
      [MLX_NODE_PERMUTE] = "permute",
      [MLX_NODE_ROPE] = "rope",
      [MLX_NODE_ATTENTION] = "attention",
      [MLX_NODE_CONVOLVE] = "convolve",
      [MLX_NODE_DELTA] = "delta",
      [MLX_NODE_SCAN] = "scan",
      [MLX_NODE_SUM_RANKS] = "sum_ranks",
      [MLX_NODE_WANTED] = "wanted",
      [MLX_NODE_POOL] = "pool",
      [MLX_NODE_LOGITS] = "logits",
  };
  return names[kind];
}

mlx_shape_text_t mlx_shape_text(mlx_dtype_t dtype, int rank, const int64_t *dims) {
  mlx_shape_text_t text;
  const size_t size = sizeof text.chars;
  int at = snprintf(text.chars, size, "%s[", mlx_dtype_info(dtype)->mlir);
  for (int i = 0; i < rank; ++i) {
    const char *comma = i ? ", " : "";
    at += dims[i] == MLX_DIM_TOKENS ? snprintf(text.chars + at, size - (size_t)at, "%sM", comma)
          : dims[i] == MLX_DIM_WANTED
              ? snprintf(text.chars + at, size - (size_t)at, "%sW", comma)
              : snprintf(text.chars + at, size - (size_t)at, "%s%lld", comma, (long long)dims[i]);
  }
  snprintf(text.chars + at, size - (size_t)at, "]");
  return text;
}

static const char *act_name(mlx_act_t act) {
#define NAME(name, text) text,
  static const char *const names[] = {MLX_ACTIVATION_TABLE(NAME)};
#undef NAME
  return names[act];
}

const char *mlx_pooling_name(mlx_pooling_t pooling) {
  static const char *const names[MLX_POOLINGS] = {
      [MLX_POOL_MEAN] = "mean", [MLX_POOL_CLS] = "cls", [MLX_POOL_LAST] = "last", [MLX_POOL_MAX] = "max"};
  return names[pooling];
}

// Numbers after the last one that is not 0 are left out.
static void print_act(const mlx_node_t *node, mlx_text_t *out) {
  int count = MLX_ACT_NUMBERS;
  while (count && node->act_numbers[count - 1] == 0.0f) --count;
  mlx_text_printf(out, " act=%s", act_name(node->act));
  for (int i = 0; i < count; ++i)
    mlx_text_printf(out, "%s%.6g", i ? ", " : " numbers=", (double)node->act_numbers[i]);
}

static void print_rope(const mlx_node_t *node, mlx_text_t *out) {
  const mlx_rope_t *rope = node->rope;
  mlx_text_printf(out, " head_dim=%lld dims=%lld", (long long)node->head_dim, (long long)rope->dims);
  if (rope->adjacent) mlx_text_puts(out, " adjacent");
  if (rope->scale != 1.0) mlx_text_printf(out, " scale=%.6g", rope->scale);
  mlx_text_printf(out, " last_frequency=%.6g", (double)rope->frequencies[rope->dims / 2 - 1]);
}

static void print_attention(const mlx_attention_t *a, mlx_text_t *out) {
  mlx_text_printf(out, " layer=%lld heads=%lld kv_heads=%lld head_dim=%lld scale=%.6g", (long long)a->layer,
                  (long long)a->heads, (long long)a->kv_heads, (long long)a->head_dim, a->scale);
  if (a->window) mlx_text_printf(out, " window=%lld", (long long)a->window);
  if (a->softcap != 0.0) mlx_text_printf(out, " softcap=%.6g", a->softcap);
  if (a->whole) mlx_text_puts(out, " whole");
  if (a->span) mlx_text_printf(out, " span=%lld", (long long)a->span);
  if (a->shared) mlx_text_printf(out, " kv_layer=%lld", (long long)a->kv_layer);
  if (a->value_dim) mlx_text_printf(out, " value_dim=%lld", (long long)a->value_dim);
}

static void print_delta(const mlx_delta_t *d, mlx_text_t *out) {
  mlx_text_printf(out, " key_heads=%lld value_heads=%lld key_dim=%lld value_dim=%lld scale=%.6g eps=%.6g",
                  (long long)d->key_heads, (long long)d->value_heads, (long long)d->key_dim,
                  (long long)d->value_dim, d->scale, d->eps);
  if (d->beta_scale != 0.0) mlx_text_printf(out, " beta_scale=%.6g", d->beta_scale);
  if (d->log_rate) mlx_text_puts(out, " log_rate");
  if (d->tiled) mlx_text_puts(out, " tiled");
}

static void print_scan(const mlx_scan_t *s, mlx_text_t *out) {
  mlx_text_printf(out, " heads=%lld groups=%lld head_dim=%lld state_size=%lld", (long long)s->heads,
                  (long long)s->groups, (long long)s->head_dim, (long long)s->state_size);
  if (s->min_step > 0.0) mlx_text_printf(out, " min_step=%.6g", s->min_step);
  if (isfinite(s->max_step)) mlx_text_printf(out, " max_step=%.6g", s->max_step);
  if (s->log_rate) mlx_text_puts(out, " log_rate");
  if (s->state_rates) mlx_text_puts(out, " state_rates");
}

static void print_experts(const mlx_experts_t *e, mlx_text_t *out) {
  mlx_text_printf(out, " used=%lld", (long long)e->used);
  if (e->sigmoid) mlx_text_puts(out, " sigmoid");
  if (e->groups > 1)
    mlx_text_printf(out, " groups=%lld/%lld%s", (long long)e->groups_used, (long long)e->groups,
                    e->groups_by_best ? " by_best" : "");
  if (e->sum_to_one) mlx_text_puts(out, " sum_to_one");
  if (e->sum_eps != 0.0) mlx_text_printf(out, " sum_eps=%.6g", e->sum_eps);
  if (e->weight_scale != 0.0 && e->weight_scale != 1.0)
    mlx_text_printf(out, " weight_scale=%.6g", e->weight_scale);
  if (e->spread != 0.0) mlx_text_printf(out, " spread=%.6g", e->spread);
  if (e->limit != 0.0) {
    mlx_text_printf(out, " limit=%.6g slope=%.6g", e->limit, e->slope);
  } else {
    mlx_text_printf(out, " act=%s", act_name(e->act));
  }
}

static void print_attributes(const mlx_node_t *node, mlx_text_t *out) {
  switch (node->kind) {
    case MLX_NODE_RMSNORM:
    case MLX_NODE_LAYERNORM: mlx_text_printf(out, " eps=%.6g", node->eps); break;
    case MLX_NODE_HEAD_RMSNORM:
    case MLX_NODE_HEAD_LAYERNORM:
      mlx_text_printf(out, " eps=%.6g head_dim=%lld", node->eps, (long long)node->head_dim);
      break;
    case MLX_NODE_SCALE: mlx_text_printf(out, " factor=%.6g", node->factor); break;
    case MLX_NODE_SOFTCAP: mlx_text_printf(out, " cap=%.6g", node->cap); break;
    case MLX_NODE_CLIP: mlx_text_printf(out, " limit=%.6g", node->limit); break;
    case MLX_NODE_GROW:
      mlx_text_printf(out, " beta=%.6g period=%lld", node->beta, (long long)node->period);
      break;
    case MLX_NODE_EMBED: mlx_text_puts(out, node->some ? " some" : ""); break;
    case MLX_NODE_MATCH: mlx_text_printf(out, " least=%.6g", node->number); break;
    case MLX_NODE_SPARSIFY: mlx_text_printf(out, " deviations=%.6g", node->number); break;
    case MLX_NODE_ACTIVATE:
    case MLX_NODE_GATED: print_act(node, out); break;
    case MLX_NODE_HEAD_JOIN: mlx_text_printf(out, " head_dim=%lld", (long long)node->head_dim); break;
    case MLX_NODE_COLUMNS: mlx_text_printf(out, " start=%lld", (long long)node->start); break;
    case MLX_NODE_HEAD_COLUMNS:
      mlx_text_printf(out, " head_dim=%lld start=%lld", (long long)node->head_dim, (long long)node->start);
      break;
    case MLX_NODE_CONVOLVE: mlx_text_puts(out, node->silu ? " silu" : ""); break;
    case MLX_NODE_DELTA: print_delta(&node->delta, out); break;
    case MLX_NODE_SCAN: print_scan(&node->scan, out); break;
    case MLX_NODE_SUM_RANKS:
      mlx_text_printf(out, " rank=%lld/%lld", (long long)node->own_rank, (long long)node->ranks);
      break;
    case MLX_NODE_ROPE: print_rope(node, out); break;
    case MLX_NODE_ATTENTION: print_attention(&node->attention, out); break;
    case MLX_NODE_EXPERTS: print_experts(&node->experts, out); break;
    default: break;
  }
}

static void print_node(const mlx_node_t *node, int id, mlx_text_t *out) {
  if (node->kind == MLX_NODE_WEIGHT) {
    mlx_text_printf(out, "%%%d = weight %s", id, node->weight_name);
  } else {
    mlx_text_printf(out, "%%%d %s%s%s = %s(", id, node->scope, node->scope[0] ? "." : "", node->name,
                    mlx_node_kind_name(node->kind));
    int count = MLX_NODE_OPERANDS;
    while (count && !node->operands[count - 1]) --count;
    for (int i = 0; i < count; ++i) {
      mlx_text_puts(out, i ? ", " : "");
      if (node->operands[i]) {
        mlx_text_printf(out, "%%%d", node->operands[i]);
      } else {
        mlx_text_puts(out, "none");
      }
    }
    mlx_text_puts(out, ")");
  }
  print_attributes(node, out);
  mlx_text_printf(out, " : %s\n", mlx_shape_text(node->dtype, node->rank, node->dims).chars);
}

void mlx_graph_print(const mlx_graph_t *graph, mlx_text_t *out) {
  for (int id = 1; id <= (int)graph->count; ++id) print_node(mlx_graph_node(graph, id), id, out);
}
