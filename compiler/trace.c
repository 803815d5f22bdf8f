// Records the ops of a network by lowering decode_1 once.
#include "compiler/trace.h"

#include "base/memory.h"

void mlx_trace_add(mlx_graph_t *g, const mlx_trace_op_t *op) {
  mlx_trace_t *trace = g->trace;
  if (!trace) return;
  mlx_status_t status = mlx_reserve(trace->count + 1, sizeof *trace->ops, &trace->capacity, &trace->ops);
  if (status) {
    mlx_builder_fail(g->b, status);
    return;
  }
  trace->ops[trace->count++] = *op;
}

static mlx_status_t lower_once(mlx_graph_t *g) {
  const mlx_model_t *model = g->model;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *g->trace->weights, &g->trace->weights));
  MLX_TRY(mlx_graph_name_kv(g));
  mlx_graph_declare(g);
  mlx_graph_begin_decode(g);
  for (size_t i = 0; i < model->weight_count; ++i)
    g->trace->weights[i] = mlx_builder_load(g->b, model->weights[i].name);
  mlx_value_t hidden = model->arch->forward(g, model, mlx_builder_load(g->b, MLX_STATE_TOKEN));
  model->arch->head(g, model, hidden);
  char *text;
  MLX_TRY(mlx_builder_finish(g->b, &text, NULL));
  mlx_free(text);
  return NULL;
}

mlx_status_t mlx_trace_record(const mlx_model_t *model, const mlx_module_options_t *options,
                              mlx_trace_t *out_trace) {
  *out_trace = (mlx_trace_t){0};
  mlx_module_options_t generic = *options;
  generic.kernels = NULL;
  generic.layout = MLX_LAYOUT_ROWS;
  mlx_graph_t graph = {.model = model, .options = &generic, .trace = out_trace};
  MLX_TRY(mlx_builder_create(options->form, "trace", &graph.b));
  mlx_status_t status = lower_once(&graph);
  mlx_graph_release(&graph);
  return status;
}

void mlx_trace_clear(mlx_trace_t *trace) {
  mlx_free(trace->ops);
  mlx_free(trace->weights);
  *trace = (mlx_trace_t){0};
}
