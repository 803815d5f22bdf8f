// Emits the functions of the contract (emit.h) on the generic path and on the CUDA kernel path. emit_cpu.c
// emits the module that links the CPU kernel, emit_cuda.c the decode_K that links the CUDA decode kernel.
#include "compiler/emit.h"

#include <stdio.h>

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/emit_cpu.h"
#include "compiler/emit_cuda.h"
#include "compiler/function.h"
#include "compiler/lower.h"
#include "compiler/plan.h"
#include "compiler/weights.h"

// The decode kernel reads the whole archive as one tensor and keeps a scratch buffer.
static mlx_status_t declare_for_decode(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  uint64_t *offsets;
  MLX_TRY(mlx_alloc(g->model->weight_count, sizeof *offsets, &offsets));
  const uint64_t bytes = mlx_weights_layout(g->model, mlx_module_storage(g->options), offsets);
  mlx_free(offsets);
  mlx_builder_parameter(g->b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(bytes / 4)));
  mlx_builder_state_of_ones(g->b, MLX_STATE_SCRATCH, MLX_TYPE(MLX_I32, plan->scratch_words));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Functions

// Chooses the next token of each sequence from its logits (argmax). Only active sequences get new state.
static mlx_value_t choose_token(mlx_function_t *g, mlx_value_t logits, mlx_value_t active,
                                mlx_value_t new_position) {
  mlx_builder_t *b = g->b;
  mlx_builder_comment(b, "the next token, and the state of the active sequences");
  mlx_value_t next = mlx_build_argmax_last(b, "next", logits);
  mlx_value_t old_token = mlx_builder_load(b, MLX_STATE_TOKEN);
  mlx_value_t token = mlx_build_select(b, "new_token", active, next, old_token);
  mlx_value_t old_position = mlx_builder_load(b, MLX_STATE_POSITION);
  mlx_value_t position = mlx_build_select(b, "new_position", active, new_position, old_position);
  mlx_value_t old_logits = mlx_builder_load(b, MLX_STATE_LOGITS);
  mlx_value_t active_wide = mlx_build_broadcast(b, "is_active_wide", active, (int64_t[]){0},
                                                mlx_type(MLX_I1, old_logits.rank, old_logits.dims));
  mlx_value_t kept = mlx_build_select(b, "new_logits", active_wide, logits, old_logits);
  mlx_builder_store(b, MLX_STATE_TOKEN, token);
  mlx_builder_store(b, MLX_STATE_POSITION, position);
  mlx_builder_store(b, MLX_STATE_LOGITS, kept);
  return token;
}

static void emit_prefill(mlx_function_t *g, int64_t tokens) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences;
  const mlx_type_t per_sequence = MLX_TYPE(MLX_I32, sequences), grid = MLX_TYPE(MLX_I32, sequences, tokens);
  char name[32];
  snprintf(name, sizeof name, "prefill_%lld", (long long)tokens);
  mlx_function_begin_function(g, name,
                              "Reads count[s] tokens of each sequence s, from position start[s] on. A "
                              "sequence with count 0 keeps its state.",
                              tokens);
  mlx_value_t input = mlx_builder_argument(b, "tokens", grid);
  mlx_value_t start = g->start = mlx_builder_argument(b, "start", per_sequence);
  mlx_value_t count = g->count = mlx_builder_argument(b, "count", per_sequence);
  g->pages = mlx_function_pages_argument(g);

  mlx_value_t nth = mlx_build_iota(b, "nth_token", 1, grid);
  mlx_value_t starts = mlx_build_broadcast(b, "starts", start, (int64_t[]){0}, grid);
  mlx_value_t counts = mlx_build_broadcast(b, "counts", count, (int64_t[]){0}, grid);
  mlx_value_t valid = mlx_build_compare(b, "valid", "LT", nth, counts);
  mlx_value_t positions = mlx_build_binary(b, "position", "add", starts, nth);
  mlx_function_place_tokens(g, positions, valid);
  mlx_value_t flat = mlx_build_reshape(b, "flat_tokens", input, MLX_TYPE(MLX_I32, sequences * tokens));

  mlx_builder_comment(b, "index of each sequence's last token");
  mlx_value_t one = mlx_build_int(b, "one", 1, per_sequence);
  mlx_value_t last = mlx_build_binary(b, "last", "subtract", count, one);
  mlx_value_t width = mlx_build_int(b, "tokens_per_sequence", tokens, per_sequence);
  mlx_value_t row = mlx_build_iota(b, "sequence", 0, per_sequence);
  mlx_value_t offset = mlx_build_binary(b, "sequence_start", "multiply", row, width);
  mlx_value_t last_row = mlx_build_binary(b, "last_token", "add", offset, last);
  mlx_value_t index = mlx_build_reshape(b, "last_index", last_row, MLX_TYPE(MLX_I32, sequences, 1));
  mlx_value_t logits = mlx_lower_network(g, flat, index);

  mlx_value_t zero = mlx_build_int(b, "zero", 0, per_sequence);
  mlx_value_t active = mlx_build_compare(b, "is_active", "GT", count, zero);
  mlx_value_t end = mlx_build_binary(b, "end", "add", start, count);
  mlx_value_t token = choose_token(g, logits, active, end);
  mlx_builder_end(b, &token, 1);
}

static void emit_decode(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences;
  mlx_function_begin_decode(g);
  mlx_value_t logits = mlx_lower_network(g, mlx_builder_load(b, MLX_STATE_TOKEN), MLX_NONE);

  mlx_value_t one = mlx_build_int(b, "one", 1, MLX_TYPE(MLX_I32, sequences));
  mlx_value_t after = mlx_build_binary(b, "after", "add", g->start, one);
  mlx_value_t next = choose_token(g, logits, g->active, after);
  mlx_value_t result = mlx_build_reshape(b, "next_column", next, MLX_TYPE(MLX_I32, sequences, 1));
  mlx_builder_end(b, &result, 1);
}

// The pure form needs no such function: its results include the logits.
static void emit_logits(mlx_function_t *g) {
  if (mlx_builder_form(g->b) == MLX_FORM_PURE) return;
  mlx_function_begin_function(g, "logits", "The logits that chose each sequence's current token.", 0);
  mlx_value_t logits = mlx_builder_load(g->b, MLX_STATE_LOGITS);
  mlx_builder_end(g->b, &logits, 1);
}

static mlx_status_t emit_for_cpu(mlx_function_t *g, char **out_text, size_t *out_length) {
  MLX_TRY(mlx_cpu_emit(g));
  return mlx_builder_finish(g->b, out_text, out_length);
}

static mlx_status_t emit_all(mlx_function_t *g, char **out_text, size_t *out_length) {
  if (g->options->kernels && !g->options->kernels->gpu) return emit_for_cpu(g, out_text, out_length);
  mlx_decode_plan_t plan;
  bool fits;  // the network fits the decode kernel
  MLX_TRY(mlx_decode_plan_make(g->model, g->graph, g->options, &plan, &fits));
  mlx_function_declare(g);
  if (fits) MLX_TRY(declare_for_decode(g, &plan));
  for (size_t i = 0; i < g->options->bucket_count; ++i) emit_prefill(g, g->options->buckets[i]);
  for (size_t i = 0; fits && i < g->options->step_count; ++i)
    mlx_cuda_emit_decode(g, &plan, g->options->steps[i]);
  if (!fits) emit_decode(g);
  emit_logits(g);
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
