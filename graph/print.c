// The text form of a graph, for goldens, messages and people.
#include <stdio.h>

#include "graph/graph.h"

const char *mlx_node_kind_name(mlx_node_kind_t kind) {
  static const char *const names[MLX_NODE_KINDS] = {
      [MLX_NODE_TOKENS] = "tokens",
      [MLX_NODE_POSITIONS] = "positions",
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
      [MLX_NODE_ACTIVATE] = "activate",
      [MLX_NODE_GATED] = "gated",
      [MLX_NODE_EXPERTS] = "experts",
      [MLX_NODE_SIGMOID] = "sigmoid",
      [MLX_NODE_SCALE_ROWS] = "scale_rows",
      [MLX_NODE_COLUMNS] = "columns",
      [MLX_NODE_PERMUTE] = "permute",
      [MLX_NODE_ROPE] = "rope",
      [MLX_NODE_ATTENTION] = "attention",
      [MLX_NODE_WANTED] = "wanted",
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
  static const char *const names[] = {[MLX_ACT_SILU] = "silu",
                                      [MLX_ACT_GELU] = "gelu",
                                      [MLX_ACT_GELU_TANH] = "gelu_tanh",
                                      [MLX_ACT_RELU] = "relu",
                                      [MLX_ACT_RELU2] = "relu2"};
  return names[act];
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
}

static void print_experts(const mlx_experts_t *e, mlx_text_t *out) {
  mlx_text_printf(out, " used=%lld", (long long)e->used);
  if (e->sum_to_one) mlx_text_puts(out, " sum_to_one");
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
    case MLX_NODE_ACTIVATE:
    case MLX_NODE_GATED: mlx_text_printf(out, " act=%s", act_name(node->act)); break;
    case MLX_NODE_COLUMNS: mlx_text_printf(out, " start=%lld", (long long)node->start); break;
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
