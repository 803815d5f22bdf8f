// Construction and release of a graph.
#include "graph/graph.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

void mlx_graph_free(mlx_graph_t *graph) {
  if (!graph) return;
  mlx_free(graph->nodes);
  mlx_status_free(graph->status);
  mlx_free(graph);
}

void mlx_graph_fail(mlx_graph_t *graph, mlx_status_t status) {
  graph->status = mlx_status_join(graph->status, status);
}

mlx_value_t mlx_graph_append(mlx_graph_t *graph, const mlx_node_t *node) {
  if (graph->status) return MLX_NONE;
  mlx_status_t status = graph->count < INT_MAX ? mlx_reserve(graph->count + 1, sizeof *graph->nodes,
                                                             &graph->capacity, &graph->nodes)
                                               : mlx_error(MLX_INTERNAL, "the network has too many ops");
  if (status) {
    mlx_graph_fail(graph, status);
    return MLX_NONE;
  }
  mlx_node_t *added = &graph->nodes[graph->count++];
  *added = *node;
  memcpy(added->scope, graph->scope, sizeof added->scope);
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
    if (added->operands[i]) ++graph->nodes[added->operands[i] - 1].uses;
  }
  mlx_value_t value = {.id = (int)graph->count, .dtype = node->dtype, .rank = node->rank};
  memcpy(value.dims, node->dims, sizeof value.dims);
  return value;
}

mlx_status_t mlx_graph_create(const mlx_graph_weight_t *weights, size_t weight_count, int64_t context,
                              mlx_graph_t **out_graph) {
  MLX_TRY(mlx_alloc(1, sizeof **out_graph, out_graph));
  mlx_graph_t *graph = *out_graph;
  graph->context = context;
  graph->weight_count = weight_count;
  for (size_t i = 0; i < weight_count; ++i) {
    mlx_node_t node = {.kind = MLX_NODE_WEIGHT,
                       .dtype = weights[i].dtype,
                       .rank = weights[i].rank,
                       .weight_index = i,
                       .weight_name = weights[i].name,
                       .order = (int)weights[i].order};
    memcpy(node.dims, weights[i].dims, sizeof node.dims);
    mlx_graph_append(graph, &node);
  }
  return NULL;
}

mlx_value_t mlx_graph_tokens(mlx_graph_t *graph) {
  return mlx_graph_append(
      graph,
      &(mlx_node_t){
          .kind = MLX_NODE_TOKENS, .name = "tokens", .dtype = MLX_I32, .rank = 1, .dims = {MLX_DIM_TOKENS}});
}

// One row of each wanted token, from |hidden|.
static mlx_value_t append_wanted(mlx_graph_t *graph, mlx_node_kind_t kind, const char *name,
                                 mlx_value_t hidden, mlx_pooling_t pooling) {
  if (graph->status) return MLX_NONE;
  if (!hidden.id || hidden.rank != 2 || hidden.dims[0] != MLX_DIM_TOKENS) {
    mlx_graph_fail(
        graph, mlx_error(MLX_INTERNAL, "the network returns %s as its hidden states; expected f32[M, hidden]",
                         mlx_shape_text(hidden.dtype, hidden.rank, hidden.dims).chars));
    return MLX_NONE;
  }
  mlx_node_t node = {.kind = kind,
                     .dtype = hidden.dtype,
                     .rank = 2,
                     .dims = {MLX_DIM_WANTED, hidden.dims[1]},
                     .operands = {hidden.id},
                     .pooling = pooling};
  snprintf(node.name, sizeof node.name, "%s", name);
  return mlx_graph_append(graph, &node);
}

mlx_value_t mlx_graph_wanted(mlx_graph_t *graph, mlx_value_t hidden) {
  return append_wanted(graph, MLX_NODE_WANTED, "wanted", hidden, MLX_POOL_LAST);
}

mlx_value_t mlx_graph_pool(mlx_graph_t *graph, mlx_value_t hidden, mlx_pooling_t pooling) {
  return append_wanted(graph, MLX_NODE_POOL, "pooled", hidden, pooling);
}

bool mlx_graph_is_encoder(const mlx_graph_t *graph) {
  for (int id = 1; id <= (int)graph->count; ++id)
    if (mlx_graph_node(graph, id)->kind == MLX_NODE_POOL) return true;
  return false;
}

// Keys and values must be stored before a shared layer reads them: its queries depend on them.
static mlx_status_t check_shared(const mlx_graph_t *graph) {
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (node->kind != MLX_NODE_ATTENTION || !node->attention.shared) continue;
    const mlx_node_t *owner = mlx_graph_kv_owner(graph, &node->attention);
    if (!owner || owner >= node)
      return mlx_error(MLX_INTERNAL, "attention of layer %lld reads the keys of layer %lld before they exist",
                       (long long)node->attention.layer, (long long)node->attention.kv_layer);
  }
  return NULL;
}

mlx_status_t mlx_graph_finish(mlx_graph_t *graph, mlx_value_t logits) {
  if (!graph->status && (!logits.id || logits.rank != 2 || logits.dims[0] != MLX_DIM_WANTED)) {
    mlx_graph_fail(graph, mlx_error(MLX_INTERNAL, "the LM head returns %s; expected f32[W, vocab]",
                                    mlx_shape_text(logits.dtype, logits.rank, logits.dims).chars));
  }
  mlx_graph_append(graph, &(mlx_node_t){.kind = MLX_NODE_LOGITS,
                                        .name = "logits",
                                        .dtype = logits.dtype,
                                        .rank = 2,
                                        .dims = {logits.dims[0], logits.dims[1]},
                                        .operands = {logits.id}});
  mlx_status_t status = graph->status;
  graph->status = NULL;
  if (!status) status = mlx_graph_sort(graph);
  return status ? status : check_shared(graph);
}

const mlx_node_t *mlx_graph_kv_owner(const mlx_graph_t *graph, const mlx_attention_t *attention) {
  const int64_t layer = attention->shared ? attention->kv_layer : attention->layer;
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (mlx_node_stores_kv(node) && node->attention.layer == layer) return node;
  }
  return NULL;
}

int64_t mlx_attention_kv_numbers(const mlx_attention_t *a) {
  return mlx_attention_kv_parts(a) * a->kv_heads * a->head_dim;
}

int64_t mlx_graph_kv_numbers(const mlx_graph_t *graph) {
  int64_t all = 0, largest = 0;
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (!mlx_node_stores_kv(node)) continue;
    const int64_t numbers = mlx_attention_kv_numbers(&node->attention);
    all += numbers;
    if (numbers > largest) largest = numbers;
  }
  return mlx_graph_is_encoder(graph) ? largest : all;
}

static int64_t state_of(const mlx_graph_t *graph, const mlx_node_t *node) {
  const mlx_delta_t *d = &node->delta;
  const mlx_scan_t *s = &node->scan;
  if (node->kind == MLX_NODE_CONVOLVE) {
    const mlx_node_t *weight = mlx_graph_operand(graph, node, 1);
    return weight->dims[0] * (weight->dims[1] - 1);
  }
  if (node->kind == MLX_NODE_SCAN) return s->heads * s->state_size * s->head_dim;
  return node->kind == MLX_NODE_DELTA ? d->value_heads * d->key_dim * d->value_dim : 0;
}

int64_t mlx_graph_state(const mlx_graph_t *graph, int id, int64_t *out_at) {
  *out_at = 0;
  for (int before = 1; before < id; ++before) {
    const int64_t numbers = state_of(graph, mlx_graph_node(graph, before));
    *out_at += (numbers + MLX_STATE_ALIGNMENT - 1) / MLX_STATE_ALIGNMENT * MLX_STATE_ALIGNMENT;
  }
  return id <= (int)graph->count ? state_of(graph, mlx_graph_node(graph, id)) : 0;
}

int64_t mlx_graph_state_numbers(const mlx_graph_t *graph) {
  int64_t numbers;
  mlx_graph_state(graph, (int)graph->count + 1, &numbers);
  return numbers;
}

mlx_graph_windows_t mlx_graph_windows(const mlx_graph_t *graph) {
  mlx_graph_windows_t w = {0};
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (!mlx_node_stores_kv(node)) continue;
    ++w.layers;
    if (!node->attention.window) continue;
    ++w.windowed;
    w.kv_numbers += mlx_attention_kv_numbers(&node->attention);
    if (node->attention.window > w.widest) w.widest = node->attention.window;
  }
  return w;
}

bool mlx_graph_mixes_windows(const mlx_graph_t *graph) {
  const mlx_graph_windows_t w = mlx_graph_windows(graph);
  return w.windowed && w.windowed < w.layers;
}

int64_t mlx_node_layer(const mlx_node_t *node) {
  long long layer;
  return sscanf(node->scope, "layer%lld", &layer) == 1 ? layer : -1;
}

mlx_graph_routes_t mlx_graph_routes(const mlx_graph_t *graph) {
  mlx_graph_routes_t routes = {0};
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    const int64_t layer = mlx_node_layer(node);
    if (layer >= routes.layers) routes.layers = layer + 1;
    if (node->kind != MLX_NODE_EXPERTS) continue;
    if (layer < 0) return (mlx_graph_routes_t){0};
    if (node->experts.used > routes.used) routes.used = node->experts.used;
  }
  return routes;
}
