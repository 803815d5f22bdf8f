// Defaults of the module options, and sizes that follow from them.
#include "compiler/module_options.h"

#include <string.h>

#include "kernels/step.h"

void mlx_module_options_set_steps(const mlx_step_size_t *steps, size_t count, mlx_module_options_t *options) {
  memcpy(options->steps, steps, count * sizeof *steps);
  options->step_count = count;
}

void mlx_module_options_initialize(int64_t context, mlx_module_options_t *out_options) {
  *out_options = (mlx_module_options_t){.context = context};
  mlx_module_options_set_steps((const mlx_step_size_t[]){{1, 1}, {16, 16}, {64, 64}}, 3, out_options);
}

mlx_storage_t mlx_module_storage(const mlx_module_options_t *options) {
  return (mlx_storage_t){.dtype = options->dtype,
                         .as_stored = options->as_stored,
                         .layout = options->layout,
                         .quantize = options->quantize,
                         .weights = options->kernels ? options->kernels->weights : NULL,
                         .tiles = options->kernels ? options->kernels->tiles : NULL};
}

bool mlx_module_rounds_attention(const mlx_module_options_t *options) {
  return options->narrow && options->kv == options->dtype;
}

int64_t mlx_module_kv_head_bytes(const mlx_module_options_t *options, int64_t head_dim) {
  if (options->kv == MLX_Q8_0) return head_dim + 4;
  return head_dim * (int64_t)mlx_dtype_info(options->kv)->block_bytes;
}

int64_t mlx_module_pure_pages(const mlx_module_options_t *options) {
  return (options->context + MLX_KV_PAGE - 1) / MLX_KV_PAGE;
}
