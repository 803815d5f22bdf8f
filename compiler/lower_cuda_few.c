// Launches of kernels/cuda/few.cu: macro definitions, grid and operands.
#include "compiler/lower_cuda_few.h"

#include "artifact/archive.h"
#include "compiler/cuda_image.h"
#include "compiler/emit_cuda.h"

#define FEW_THREADS 288

// What a launch computes: constants of the kernel.
enum { PART_LAYER = 1, PART_QKV = 2, PART_HEAD = 4 };

static const char *few_image(mlx_function_t *f) {
  const mlx_config_t *c = &f->model->config;
  mlx_text_t d = {0};
  MLX_DEFINE(&d, {"HIDDEN", c->hidden}, {"FFN", c->ffn}, {"Q_WIDTH", c->heads * c->head_dim},
             {"KV_WIDTH", c->kv_heads * c->head_dim}, {"VOCAB", c->vocab});
  MLX_DEFINE(&d, {"SLICES", f->few->few.slices}, {"SHARED_BYTES", f->few->few.shared_bytes},
             {"SCRATCH_AT", f->few->few.words_at}, {"SCRATCH_WORDS", f->few->few.words});
  mlx_text_printf(&d, "NORM_EPS=%.9ef\n", f->few->norm_eps);
  mlx_cuda_define_offsets(&d, f->few);
  return mlx_cuda_image(f, MLX_KERNEL_FEW, &d);
}

// Operands of every launch: archive, output of attention, x, scratch; then three outputs, of which some
// launches use only the first. |out|: the results.
static bool launch(mlx_function_t *f, const char *name, mlx_value_t attended, mlx_value_t x,
                   const mlx_type_t results[3], int64_t layer, int32_t parts, mlx_value_t out[3]) {
  mlx_extern_t kernel = {.symbol = "mlx_few",
                         .file = few_image(f),
                         .grid = {f->options->kernels->gpu->blocks, 1, 1},
                         .threads = FEW_THREADS,
                         .shared_bytes = f->few->few.shared_bytes,
                         .operands = {mlx_builder_load(f->b, MLX_WHOLE_ARCHIVE), attended, x,
                                      mlx_builder_load(f->b, MLX_STATE_SCRATCH)},
                         .operand_count = 4,
                         .updated_from = 3,
                         .result = results[0],
                         .more = {results[1], results[2]},
                         .constants = {(int32_t)layer, parts},
                         .constant_count = 2};
  mlx_value_t updated[4] = {{0}};
  const bool into = f->into.id != 0;  // the first output is updated in place
  if (!kernel.file) return false;
  if (into) {
    kernel.operands[kernel.operand_count++] = f->into;
    kernel.result = results[1];
    kernel.more[0] = results[2];
    kernel.more[1] = (mlx_type_t){0};
  }
  const mlx_value_t result = mlx_build_extern(f->b, name, &kernel, updated);
  if (!result.id) return false;
  mlx_builder_store(f->b, MLX_STATE_SCRATCH, updated[0]);
  out[0] = into ? updated[1] : result;
  out[1] = into ? result : updated[1];
  out[2] = updated[2];
  return true;
}

// The rest of layer |layer| - 1, and q, k and v of |layer|. The first layer has no rest before it.
static void lower_qkv(mlx_function_t *f, int64_t layer) {
  const mlx_config_t *c = &f->model->config;
  const mlx_layer_nodes_t *nodes = &f->few->nodes[layer];
  const mlx_value_t x = f->values[f->few->first_node];
  const mlx_type_t queries = MLX_TYPE(MLX_F32, MLX_FEW_SEQUENCES, c->heads * c->head_dim),
                   keys = MLX_TYPE(MLX_F32, MLX_FEW_SEQUENCES, c->kv_heads * c->head_dim);
  const mlx_type_t results[3] = {queries, keys, keys};
  const mlx_value_t attended = layer ? f->values[nodes[-1].attention] : x;
  mlx_value_t out[3];
  if (!launch(f, "qkv", attended, x, results, layer ? layer - 1 : 0, layer ? PART_LAYER | PART_QKV : PART_QKV,
              out))
    return;
  f->values[nodes->q] = out[0];
  f->values[nodes->k] = out[1];
  f->values[nodes->v] = out[2];
}

static const mlx_type_t unused = {.dtype = MLX_F32, .rank = 1, .dims = {1}};

static mlx_value_t lower_last(mlx_function_t *f) {
  const int64_t last = f->model->config.layers - 1;
  const mlx_type_t results[3] = {MLX_TYPE(MLX_F32, MLX_FEW_SEQUENCES, f->model->config.hidden), unused,
                                 unused};
  mlx_value_t out[3] = {{0}};
  launch(f, "layers", f->values[f->few->nodes[last].attention], f->values[f->few->first_node], results, last,
         PART_LAYER, out);
  return out[0];
}

mlx_value_t mlx_cuda_few_head(mlx_function_t *f, mlx_value_t x) {
  const mlx_type_t results[3] = {unused, unused, unused};
  mlx_value_t out[3] = {{0}};
  launch(f, "logits", x, x, results, 0, PART_HEAD, out);
  return out[0];
}

bool mlx_cuda_few_lower(mlx_function_t *f, int id, const mlx_node_t *node) {
  if (id <= f->few->first_node || id > f->few->last_node || node->kind == MLX_NODE_ROPE ||
      node->kind == MLX_NODE_ATTENTION)
    return false;
  for (int64_t layer = 0; layer < f->model->config.layers; ++layer)
    if (f->few->nodes[layer].q == id) lower_qkv(f, layer);
  if (id == f->few->last_node) f->values[id] = lower_last(f);
  return true;
}
