// Launches of kernels/cuda/few.cu: configuration, grid and operands.
#include "compiler/lower_cuda_few.h"

#include "artifact/archive.h"
#include "compiler/cuda_image.h"
#include "compiler/emit_cuda.h"
#include "compiler/lower_cuda.h"
#include "compiler/lower_stablehlo.h"

// What a launch computes: constants of the kernel.
enum {
#define FEW_PART(name, bit) PART_##name = bit,
  MLX_FEW_PART_TABLE(FEW_PART)
#undef FEW_PART
};

static const char *few_image(mlx_function_t *f) {
  const mlx_config_t *c = &f->model->config;
  mlx_text_t d = {0};
  MLX_DEFINE(&d, {"hidden", c->hidden}, {"ffn", c->ffn}, {"q_width", c->heads * c->head_dim},
             {"kv_width", c->kv_heads * c->head_dim}, {"head_dim", c->head_dim}, {"vocab", c->vocab});
  MLX_DEFINE(&d, {"slices", f->few->few.slices}, {"shared_bytes", f->few->few.shared_bytes},
             {"scratch_at", f->few->few.words_at}, {"scratch_words", f->few->few.words});
  mlx_text_printf(&d, "norm_eps=%.9ef\n", f->few->norm_eps);
  mlx_cuda_define_type(&d, "kv", f->options->kv);
  mlx_cuda_define_weights(&d, f->few);
  return mlx_cuda_image(f, MLX_KERNEL_FEW, &d);
}

// Operands of every launch: archive, output of attention, x, cosines and sines, batch, scratch, KV pool; then
// three outputs, of which some launches use only the first.
typedef struct few_launch {
  const char *name;
  mlx_built_t attended, x;
  mlx_type_t results[3];
  const mlx_attention_t *qkv;     // the attention that q, k and v are for; NULL: the launch computes none
  const mlx_rope_table_t *table;  // the launch applies it and stores k and v (PART_APPEND); NULL: it does not
  int64_t layer;
  int32_t parts;     // without PART_APPEND
  mlx_built_t into;  // the first output is written there; MLX_NO_VALUE: to a new value
} few_launch_t;

// |out|: the results.
static bool launch(mlx_function_t *f, const few_launch_t *l, mlx_built_t out[3]) {
  mlx_extern_t kernel = {
      .symbol = "mlx_few",
      .file = few_image(f),
      .grid = {f->options->kernels->gpu->blocks, 1, 1},
      .threads = MLX_DECODE_THREADS,
      .shared_bytes = f->few->few.shared_bytes,
      .operands = {mlx_builder_load(f->b, MLX_WHOLE_ARCHIVE), l->attended, l->x,
                   l->table ? l->table->cos : l->x, l->table ? l->table->sin : l->x, f->batch,
                   mlx_builder_load(f->b, MLX_STATE_SCRATCH), mlx_builder_load(f->b, MLX_ARG_KV)},
      .operand_count = 8,
      .updated_from = 6,
      .result = l->results[0],
      .more = {l->results[1], l->results[2]},
      .constants = {0, 0, 0, (int32_t)l->layer, l->parts | (l->table ? PART_APPEND : 0)},
      .constant_count = 5};
  mlx_built_t updated[5] = {{0}};
  const bool into = l->into.id != 0;
  if (!kernel.file) return false;
  if (l->qkv) mlx_cuda_place_layer(f, l->qkv, &kernel);
  if (into) {
    kernel.operands[kernel.operand_count++] = l->into;
    kernel.result = l->results[1];
    kernel.more[0] = l->results[2];
    kernel.more[1] = (mlx_type_t){0};
  }
  const mlx_built_t result = mlx_build_extern(f->b, l->name, &kernel, updated);
  if (!result.id) return false;
  mlx_builder_store(f->b, MLX_STATE_SCRATCH, updated[0]);
  mlx_builder_store(f->b, MLX_ARG_KV, updated[1]);
  out[0] = into ? updated[2] : result;
  out[1] = into ? result : updated[2];
  out[2] = updated[3];
  return true;
}

static const mlx_type_t unused = {.dtype = MLX_F32, .rank = 1, .dims = {1}};

void mlx_cuda_few_qkv(mlx_function_t *f, int64_t layer, bool appends) {
  const mlx_config_t *c = &f->model->config;
  const mlx_layer_nodes_t *nodes = &f->few->nodes[layer];
  const mlx_node_t *attention = mlx_graph_node(f->graph, nodes->attention);
  const mlx_type_t queries = MLX_TYPE(MLX_F32, MLX_FEW_SEQUENCES, c->heads * c->head_dim),
                   keys = appends ? unused : MLX_TYPE(MLX_F32, MLX_FEW_SEQUENCES, c->kv_heads * c->head_dim);
  const mlx_built_t x = f->values[f->few->first_node];
  few_launch_t l = {.name = "qkv",
                    .attended = layer ? f->values[nodes[-1].attention] : x,
                    .x = x,
                    .results = {queries, keys, keys},
                    .qkv = &attention->attention,
                    .layer = layer ? layer - 1 : 0,
                    .parts = PART_QKV};
  if (layer) l.parts |= PART_LAYER;
  if (appends) l.table = mlx_rope_table(f, mlx_graph_operand(f->graph, attention, 0)->rope);
  mlx_built_t out[3];
  if (!launch(f, &l, out)) return;
  f->values[nodes->q] = out[0];
  f->values[nodes->k] = out[1];
  f->values[nodes->v] = out[2];
}

mlx_built_t mlx_cuda_few_last(mlx_function_t *f) {
  const int64_t last = f->model->config.layers - 1;
  const few_launch_t l = {
      .name = "layers",
      .attended = f->values[f->few->nodes[last].attention],
      .x = f->values[f->few->first_node],
      .results = {MLX_TYPE(MLX_F32, MLX_FEW_SEQUENCES, f->model->config.hidden), unused, unused},
      .layer = last,
      .parts = PART_LAYER};
  mlx_built_t out[3] = {{0}};
  launch(f, &l, out);
  return out[0];
}

mlx_built_t mlx_cuda_few_head(mlx_function_t *f, mlx_built_t x, mlx_built_t into) {
  const few_launch_t l = {.name = "logits",
                          .attended = x,
                          .x = x,
                          .results = {unused, unused, unused},
                          .parts = PART_HEAD,
                          .into = into};
  mlx_built_t out[3] = {{0}};
  launch(f, &l, out);
  return out[0];
}
