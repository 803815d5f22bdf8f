// The network of a model as a graph, and the role of each weight in it.
#include "base/memory.h"
#include "graph/roles.h"
#include "models/model.h"
#include "models/shared/blocks.h"

static mlx_value_t dense(mlx_graph_t *g, const mlx_config_t *c, size_t layer, mlx_value_t x) {
  const mlx_dense_t *dense = &c->dense[layer];
  const char *name = layer ? "dense1" : "dense0", *act = layer ? "dense1_act" : "dense0_act";
  const mlx_value_t weight = mlx_op_weight(g, "dense.%zu.linear.weight", layer);
  x = dense->bias ? mlx_op_linear_bias(g, name, x, weight, mlx_op_weight(g, "dense.%zu.linear.bias", layer))
                  : mlx_op_linear(g, name, x, weight);
  switch (dense->act) {
    case MLX_DENSE_TANH: return mlx_op_softcap(g, act, x, 1.0);
    case MLX_DENSE_GELU: return mlx_op_activate(g, act, MLX_ACT_GELU, NULL, x);
    case MLX_DENSE_RELU: return mlx_op_activate(g, act, MLX_ACT_RELU, NULL, x);
    case MLX_DENSE_SILU: return mlx_op_activate(g, act, MLX_ACT_SILU, NULL, x);
    case MLX_DENSE_NO_ACT: break;
  }
  return x;
}

static mlx_status_t build(const mlx_model_t *model, mlx_graph_t *graph) {
  mlx_value_t tokens = mlx_graph_tokens(graph);
  const mlx_arch_t *arch = model->arch;
  mlx_value_t hidden =
      (arch->forward ? arch->forward : mlx_block_forward)(graph, model, tokens);  // [M, hidden]
  if (model->config.encoder && model->config.labels && !arch->head)
    return mlx_error(MLX_UNSUPPORTED, "%s: class heads of %s models are not supported",
                     mlx_source_path(model->source), mlx_source_architecture(model->source));
  if (model->config.encoder) {
    mlx_value_t pooled = mlx_graph_pool(graph, hidden, model->config.pooling);  // [W, hidden]
    for (size_t i = 0; i < model->config.dense_count; ++i)
      pooled = dense(graph, &model->config, i, pooled);  // [W, width of the layer]
    return mlx_graph_finish(graph, model->config.labels ? arch->head(graph, model, pooled) : pooled);
  }
  mlx_value_t wanted = mlx_graph_wanted(graph, hidden);  // [W, hidden]
  return mlx_graph_finish(graph, (arch->head ? arch->head : mlx_block_head)(graph, model, wanted));
}

mlx_status_t mlx_model_build_graph(const mlx_model_t *model, int64_t context, mlx_graph_t **out_graph) {
  mlx_graph_weight_t *weights;
  *out_graph = NULL;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *weights, &weights));
  for (size_t i = 0; i < model->weight_count; ++i) {
    const mlx_tensor_t *tensor = &model->weights[i].tensor;
    weights[i] = (mlx_graph_weight_t){.name = model->weights[i].name,
                                      .dtype = model->weights[i].is_order ? MLX_I32 : MLX_F32,
                                      .rank = tensor->rank,
                                      .order = model->weights[i].column_order};
    for (int d = 0; d < tensor->rank; ++d) weights[i].dims[d] = tensor->dims[d];
  }
  mlx_graph_t *graph = NULL;
  mlx_status_t status = mlx_graph_create(weights, model->weight_count, context, &graph);
  mlx_free(weights);
  if (!status) status = build(model, graph);
  if (status) {
    mlx_graph_free(graph);
    return status;
  }
  *out_graph = graph;
  return NULL;
}

mlx_status_t mlx_model_read_network(mlx_model_t *model) {
  mlx_graph_t *graph;
  unsigned *roles;
  MLX_TRY(mlx_model_build_graph(model, model->config.context, &graph));
  mlx_status_t status = mlx_alloc(model->weight_count, sizeof *roles, &roles);
  if (!status) {
    mlx_graph_roles(graph, roles);
    model->kv_numbers = mlx_graph_kv_numbers(graph);
    model->recurrent_numbers = mlx_graph_state_numbers(graph);
    model->window_kv_numbers = mlx_graph_mixes_windows(graph) ? mlx_graph_windows(graph).kv_numbers : 0;
    for (size_t i = 0; i < model->weight_count; ++i) model->weights[i].roles = roles[i];
    mlx_free(roles);
  }
  mlx_graph_free(graph);
  return status;
}
