// Emits the functions of the contract (emit.h) on the generic path and on the CUDA kernel path. emit_cpu.c
// emits the module that links the CPU kernel, emit_cuda.c the functions that link the CUDA decode kernel.
#include "compiler/emit.h"

#include <stdio.h>

#include "compiler/emit_cpu.h"
#include "compiler/emit_cuda.h"
#include "compiler/function.h"
#include "compiler/lower.h"
#include "compiler/lower_place.h"
#include "compiler/plan.h"
#include "kernels/step.h"

static mlx_status_t emit_step(mlx_function_t *g, mlx_step_size_t size) {
  mlx_builder_t *b = g->b;
  char name[32];
  snprintf(name, sizeof name, "step_%lld", (long long)size.tokens);
  mlx_function_begin(g, name, "A forward pass over the tokens of |batch|.", size);
  if (mlx_function_is_ragged(g))
    mlx_cuda_place_tokens(g);
  else
    mlx_function_place_tokens(g);
  MLX_TRY(mlx_lower_network(g));
  if (mlx_cuda_samples(g)) mlx_cuda_sample(g);
  mlx_builder_end(b, NULL, 0);
  return NULL;
}

static void state_facts(mlx_function_t *g) {
  mlx_module_facts_t *facts = &g->facts;
  facts->ragged = mlx_function_is_ragged(g);
  facts->samples = mlx_cuda_samples(g);
  facts->fixed_rows = mlx_function_has_fixed_rows(g);
  facts->chunk_positions = facts->ragged ? 0 : MLX_CHUNK_POSITIONS;
  facts->page_bytes = mlx_function_page_bytes(g, MLX_PAGES);
  facts->window_page_bytes = mlx_function_page_bytes(g, MLX_WINDOW_PAGES);
  facts->recurrent_bytes = mlx_function_state_bytes(g);
  facts->kv_row = mlx_function_kv_row(g);
  facts->hidden = g->model->config.hidden;
}

static void add_step(mlx_function_t *g, mlx_step_size_t size) {
  g->facts.steps[g->facts.step_count++] = size;
}

// Only kernels know recurrent states, and where they are in |kv|.
static mlx_status_t check_recurrent(const mlx_function_t *g) {
  const int64_t bytes = mlx_function_state_bytes(g);
  if (!bytes) return NULL;
  if (!mlx_function_is_ragged(g)) return mlx_lower_recurrent_error();
  if (bytes / 4 > INT32_MAX)  // the kernels count words
    return mlx_error(MLX_UNSUPPORTED, "a recurrent state of %lld bytes is too large", (long long)bytes);
  return NULL;
}

mlx_status_t mlx_encoder_needs_kernel(const mlx_model_t *model) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "'%s' is an encoder (%s), and mlxcel has no encoders for GPUs and StableHLO yet",
                mlx_source_path(model->source), mlx_source_architecture(model->source)),
      "use the kernels of the CPU: --device cpu, or --target cpu");
}

static mlx_status_t emit_steps(mlx_function_t *g) {
  mlx_decode_plan_t plan;
  bool fits;  // the network fits the decode kernel
  if (mlx_graph_is_encoder(g->graph)) return mlx_encoder_needs_kernel(g->model);
  MLX_TRY(check_recurrent(g));
  MLX_TRY(mlx_decode_plan_make(g->model, g->graph, g->options, &plan, &fits));
  state_facts(g);
  MLX_TRY(mlx_function_declare(g));
  if (fits) mlx_cuda_declare_scratch(g, &plan);
  for (size_t i = 0; i < g->options->step_count; ++i) {
    const mlx_step_size_t size = g->options->steps[i];
    add_step(g, size);
    g->few = fits && plan.few.slices && size.tokens == MLX_FEW_SEQUENCES ? &plan : NULL;
    if (!fits || size.tokens > 1) MLX_TRY(emit_step(g, size));
  }
  g->few = NULL;
  if (mlx_function_has_fixed_rows(g) && !g->hides_routes) mlx_function_state_routes(g);
  if (!fits) return NULL;
  g->facts.burst = plan.max_steps;
  return mlx_cuda_emit_burst(g, &plan);
}

static mlx_status_t emit_all(mlx_function_t *g, char **out_text, size_t *out_length) {
  MLX_TRY(g->options->kernels && !g->options->kernels->gpu ? mlx_cpu_emit(g) : emit_steps(g));
  return mlx_builder_finish(g->b, out_text, out_length);
}

mlx_status_t mlx_module_emit(const mlx_model_t *model, const mlx_graph_t *graph,
                             const mlx_module_options_t *options, char **out_text, size_t *out_length) {
  mlx_module_facts_t facts;
  return mlx_module_emit_sized(model, graph, options, out_text, out_length, &facts);
}

mlx_status_t mlx_module_emit_sized(const mlx_model_t *model, const mlx_graph_t *graph,
                                   const mlx_module_options_t *options, char **out_text, size_t *out_length,
                                   mlx_module_facts_t *out_facts) {
  mlx_function_t function;
  mlx_status_t status = mlx_function_create(model, graph, options, &function);
  if (!status) status = emit_all(&function, out_text, out_length);
  function.facts.state_bytes = status ? 0 : mlx_builder_state_bytes(function.b);
  *out_facts = function.facts;
  mlx_function_release(&function);
  return status;
}
