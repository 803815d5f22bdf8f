// Launches of kernels/cuda/recurrent.cu: configuration, grid and operands.
#include "compiler/lower_cuda_recurrent.h"

#include <math.h>

#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"

#define BLOCK_THREADS 256
#define STATE_COLUMNS 32  // of a block
#define MAX_LANES 32      // blocks that divide the segments of a step

static int64_t lanes_of(const mlx_function_t *g) {
  return g->size.wanted < MAX_LANES ? g->size.wanted : MAX_LANES;
}

// Appends where the state of node |id| is (PLACE of recurrent.cu), in words of 4 bytes.
static void place_state(const mlx_function_t *g, int id, mlx_extern_t *kernel) {
  int64_t at;
  mlx_graph_state(g->graph, id, &at);
  const int64_t places[] = {mlx_function_page_bytes(g, MLX_WINDOW_PAGES) / 4,
                            mlx_function_page_bytes(g, MLX_PAGES) / 4, mlx_function_state_bytes(g) / 4, at};
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i)
    kernel->constants[kernel->constant_count++] = (int32_t)places[i];
}

// Calls a kernel that has all its operands but the batch and the KV pool.
static mlx_built_t call(mlx_function_t *g, const char *name, mlx_extern_t *kernel) {
  mlx_built_t kv = {0};
  if (!kernel->file) return MLX_NO_VALUE;
  kernel->operands[kernel->operand_count++] = g->batch;
  kernel->updated_from = kernel->operand_count;
  kernel->operands[kernel->operand_count++] = mlx_builder_load(g->b, MLX_ARG_KV);
  const mlx_built_t result = mlx_build_extern(g->b, name, kernel, &kv);
  if (result.id) mlx_builder_store(g->b, MLX_ARG_KV, kv);
  return result;
}

mlx_built_t mlx_cuda_convolve(mlx_function_t *g, int id, mlx_built_t x, mlx_built_t weight,
                              mlx_built_t bias) {
  const mlx_node_t *node = mlx_graph_node(g->graph, id);
  const int64_t channels = weight.dims[0], groups = mlx_cuda_uses_gemv(g->size.tokens) ? 1 : 8;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_convolve\nCONVOLVE=1\n");
  MLX_DEFINE(&d, {"taps", weight.dims[1]}, {"groups", groups}, {"biased", bias.id != 0},
             {"silu", node->silu});
  mlx_extern_t kernel = {
      .symbol = "mlx_convolve",
      .file = mlx_cuda_image(g, MLX_KERNEL_RECURRENT, &d),
      .grid = {mlx_ceil_div(channels, BLOCK_THREADS / groups), lanes_of(g), 1},
      .threads = BLOCK_THREADS,
      .operands = {x, mlx_cuda_f32(g, "filter_f32", weight), bias.id ? mlx_cuda_f32(g, "bias_f32", bias) : x},
      .operand_count = 3,
      .result = mlx_type_of(x),
      .constants = {(int32_t)g->size.tokens, (int32_t)channels},
      .constant_count = 2};
  place_state(g, id, &kernel);
  return call(g, node->name, &kernel);
}

// Dynamic shared memory of DELTA and SCAN: SHARED_BYTES of recurrent_state.cuh.
static int64_t state_shared_bytes(int64_t key_dim, int64_t numbers) {
  const int64_t slices = BLOCK_THREADS / STATE_COLUMNS, run = key_dim % (4 * slices) ? 1 : 4,
                padded = mlx_ceil_div(key_dim, slices * run) * slices * run, chunk = key_dim <= 128 ? 16 : 8;
  return 2 * chunk * (2 * padded + STATE_COLUMNS + numbers) * 4;
}

mlx_built_t mlx_cuda_delta(mlx_function_t *g, int id, const mlx_built_t operands[5]) {
  const mlx_node_t *node = mlx_graph_node(g->graph, id);
  const mlx_delta_t *p = &node->delta;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_delta\nDELTA=1\n");
  MLX_DEFINE(&d, {"key_dim", p->key_dim}, {"log_rate", p->log_rate}, {"tiled", p->tiled});
  mlx_cuda_define_float(&d, "scale", p->scale);
  mlx_cuda_define_float(&d, "eps", p->eps);
  if (p->beta_scale != 0.0) mlx_cuda_define_float(&d, "beta_scale", p->beta_scale);
  mlx_extern_t kernel = {
      .symbol = "mlx_delta",
      .file = mlx_cuda_image(g, MLX_KERNEL_RECURRENT, &d),
      .grid = {p->value_heads * mlx_ceil_div(p->value_dim, STATE_COLUMNS), lanes_of(g), 1},
      .threads = BLOCK_THREADS,
      .shared_bytes = state_shared_bytes(p->key_dim, 4),
      .operands = {operands[0], operands[1], operands[2], mlx_cuda_f32(g, "rate_f32", operands[3]),
                   mlx_cuda_f32(g, "bias_f32", operands[4])},
      .operand_count = 5,
      .result = MLX_TYPE(MLX_F32, g->size.tokens, p->value_heads * p->value_dim),
      .constants = {(int32_t)g->size.tokens, (int32_t)p->key_heads, (int32_t)p->value_heads,
                    (int32_t)p->value_dim},
      .constant_count = 4};
  place_state(g, id, &kernel);
  return call(g, node->name, &kernel);
}

mlx_built_t mlx_cuda_scan(mlx_function_t *g, int id, const mlx_built_t operands[5]) {
  const mlx_node_t *node = mlx_graph_node(g->graph, id);
  const mlx_scan_t *p = &node->scan;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_scan\nSCAN=1\n");
  MLX_DEFINE(&d, {"key_dim", p->state_size}, {"log_rate", p->log_rate});
  if (p->min_step > 0.0) mlx_cuda_define_float(&d, "min_step", p->min_step);
  if (isfinite(p->max_step)) mlx_cuda_define_float(&d, "max_step", p->max_step);
  if (p->state_rates) MLX_DEFINE(&d, {"state_rates", 1});
  // With rates of states, the heads are the columns of one head.
  const int64_t heads = p->state_rates ? 1 : p->heads, head_dim = p->state_rates ? p->heads : p->head_dim;
  mlx_extern_t kernel = {
      .symbol = "mlx_scan",
      .file = mlx_cuda_image(g, MLX_KERNEL_RECURRENT, &d),
      .grid = {heads * mlx_ceil_div(head_dim, STATE_COLUMNS), lanes_of(g), 1},
      .threads = BLOCK_THREADS,
      .shared_bytes = state_shared_bytes(p->state_size, p->state_rates ? STATE_COLUMNS : 4),
      .operands = {operands[0], operands[1], mlx_cuda_f32(g, "rate_f32", operands[2]),
                   mlx_cuda_f32(g, "bias_f32", operands[3]), mlx_cuda_f32(g, "skip_f32", operands[4])},
      .operand_count = 5,
      .result = MLX_TYPE(MLX_F32, g->size.tokens, p->heads * p->head_dim),
      .constants = {(int32_t)g->size.tokens, (int32_t)p->groups, (int32_t)heads, (int32_t)head_dim},
      .constant_count = 4};
  place_state(g, id, &kernel);
  return call(g, node->name, &kernel);
}
