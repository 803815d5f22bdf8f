// Writes the CPU program of a graph.
#include "compiler/cpu_program.h"

#include <string.h>

#include "base/memory.h"
#include "compiler/cpu_nodes.h"
#include "compiler/weights.h"

static int32_t kv_format(mlx_dtype_t dtype) {
  switch (dtype) {
    case MLX_F16: return MLX_KV_F16;
    case MLX_BF16: return MLX_KV_BF16;
    case MLX_Q8_0: return MLX_KV_Q8;
    default: return MLX_KV_F32;
  }
}

// Most tokens of a step. An encoder does not divide a text (MLX_ENCODER_TOKENS); a decoder does.
static int32_t capacity_of(const mlx_cpu_writer_t *w) {
  const int64_t longest = mlx_graph_is_encoder(w->graph) ? w->model->config.context : 0;
  return longest > MLX_CPU_STEP_TOKENS ? (int32_t)longest : MLX_CPU_STEP_TOKENS;
}

static mlx_status_t start(mlx_cpu_writer_t *w, const char *cpu_level) {
  const mlx_module_options_t *o = w->options;
  mlx_program_t *n = &w->program->header;
  *n = (mlx_program_t){.vocab = (int32_t)w->model->config.vocab,
                       .types = (int32_t)w->model->config.types,
                       .capacity = capacity_of(w),
                       .kv_format = kv_format(o->kv),
                       .row_by_row = o->kv != MLX_F32,
                       .tiles = !strcmp(cpu_level, "sapphirerapids")};
  MLX_TRY(mlx_scratch_start(&w->scratch, MLX_CPU_CONTROL_WORDS));
  MLX_TRY(mlx_scratch_take(&w->scratch, mlx_token_words(n->capacity), &n->tokens));
  const bool samples = !mlx_graph_is_encoder(w->graph);
  const int64_t panels = (n->vocab + MLX_PANEL_ROWS - 1) / MLX_PANEL_ROWS;
  if (samples) MLX_TRY(mlx_scratch_take(&w->scratch, MLX_CPU_MAX_WANTED * panels, &n->best));
  if (samples)
    MLX_TRY(mlx_scratch_take(&w->scratch, MLX_CPU_SAMPLERS * mlx_sampling_words(n->vocab), &n->sampling));
  const mlx_instruction_t list = {.kind = MLX_RUN_LIST};
  MLX_TRY(mlx_cpu_begin(w, &list));
  return mlx_cpu_append(w, &list);
}

// One table of cosines and sines for each kind of RoPE. Tables live until the end.
static mlx_status_t write_rope_table(mlx_cpu_writer_t *w, const mlx_rope_t *rope) {
  mlx_cpu_program_t *p = w->program;
  const size_t count = (size_t)(rope->dims / 2), first = (size_t)p->header.floats;
  for (size_t i = 0; i < w->rope_count; ++i) {
    if (mlx_rope_equal(w->ropes[i], rope)) return NULL;
  }
  if (w->rope_count == MLX_CPU_MAX_ROPES) return mlx_cpu_unsupported(w, "so many kinds of RoPE");
  mlx_instruction_t table = {.kind = MLX_RUN_ROPE_TABLE,
                             .dims = (int32_t)rope->dims,
                             .numbers = {(float)rope->scale},
                             .floats = (int64_t)first,
                             .out = {.stride = (int32_t)rope->dims}};
  MLX_TRY(mlx_cpu_begin(w, &table));
  MLX_TRY(mlx_scratch_take(&w->scratch, p->header.capacity * rope->dims, &table.out.at));
  MLX_TRY(mlx_reserve(first + count, sizeof *p->floats, &w->float_capacity, &p->floats));
  memcpy(p->floats + first, rope->frequencies, count * sizeof *p->floats);
  p->header.floats += (int32_t)count;
  w->ropes[w->rope_count] = rope;
  w->rope_tables[w->rope_count++] = table.out;
  return mlx_cpu_append(w, &table);
}

static mlx_status_t write_all(mlx_cpu_writer_t *w, const char *cpu_level) {
  const mlx_graph_t *graph = w->graph;
  MLX_TRY(mlx_cpu_launches_make(graph, &w->launches));
  MLX_TRY(mlx_alloc(graph->count, sizeof *w->values, &w->values));
  MLX_TRY(mlx_alloc(w->model->weight_count, sizeof *w->offsets, &w->offsets));
  w->program->archive_bytes = mlx_weights_layout(w->model, w->storage, w->offsets);
  for (int id = 1; id <= (int)graph->count; ++id)
    *mlx_cpu_value(w, id) = (mlx_cpu_value_t){.remaining = mlx_graph_node(graph, id)->uses, .read_phase = -1};
  MLX_TRY(start(w, cpu_level));
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (node->kind == MLX_NODE_ROPE) MLX_TRY(write_rope_table(w, node->rope));
  }
  for (size_t i = 0; i < w->launches.count && !w->program->unsupported; ++i)
    MLX_TRY(mlx_cpu_write_launch(w, &w->launches.list[i]));
  if (mlx_graph_is_encoder(graph)) {
    MLX_TRY(mlx_cpu_write_result(w));
  } else {
    const mlx_instruction_t sample = {.kind = MLX_RUN_SAMPLE, .rows = MLX_ROWS_WANTED};
    MLX_TRY(mlx_cpu_begin(w, &sample));
    MLX_TRY(mlx_cpu_append(w, &sample));
  }
  mlx_program_t *header = &w->program->header;
  if (!header->page_bytes && !header->window_page_bytes)  // no attention: the pool has pages all the same
    header->page_bytes = mlx_kv_page_bytes(header->kv_format, 1, MLX_NO_HEAD_DIM);
  header->words = w->scratch.words;
  return NULL;
}

mlx_status_t mlx_cpu_program_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, const char *cpu_level,
                                  mlx_cpu_program_t *out_program) {
  *out_program = (mlx_cpu_program_t){0};
  mlx_cpu_writer_t writer = {.model = model,
                             .graph = graph,
                             .options = options,
                             .storage = mlx_module_storage(options),
                             .program = out_program};
  mlx_status_t status = write_all(&writer, cpu_level);
  mlx_launches_clear(&writer.launches);
  mlx_scratch_clear(&writer.scratch);
  mlx_free(writer.values);
  mlx_free(writer.offsets);
  if (status) mlx_cpu_program_clear(out_program);
  return status;
}

void mlx_cpu_program_clear(mlx_cpu_program_t *program) {
  mlx_free(program->phases);
  mlx_free(program->instructions);
  mlx_free(program->floats);
  *program = (mlx_cpu_program_t){0};
}

static uint8_t *put(uint8_t *at, const void *from, size_t bytes) {
  if (bytes) memcpy(at, from, bytes);
  return at + bytes;
}

mlx_status_t mlx_cpu_program_write(const mlx_cpu_program_t *program, int32_t **out_words,
                                   int64_t *out_count) {
  const mlx_program_t *n = &program->header;
  const size_t phases = (size_t)n->phases * sizeof *program->phases,
               instructions = (size_t)n->instructions * sizeof *program->instructions,
               floats = (size_t)n->floats * sizeof *program->floats,
               bytes = sizeof *n + phases + instructions + floats;
  MLX_TRY(mlx_alloc(bytes / 4, 4, out_words));
  uint8_t *at = put((uint8_t *)*out_words, n, sizeof *n);
  at = put(at, program->phases, phases);
  at = put(at, program->instructions, instructions);
  put(at, program->floats, floats);
  *out_count = (int64_t)(bytes / 4);
  return NULL;
}
