// Defaults of the module options, and sizes that follow from them.
#include "compiler/module_options.h"

#include "artifact/manifest.h"

void mlx_module_options_set_buckets(const int64_t *sizes, size_t count, mlx_module_options_t *options) {
  options->bucket_count = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i == 0 || sizes[i] <= options->context) options->buckets[options->bucket_count++] = sizes[i];
  }
}

void mlx_module_options_initialize(int64_t context, mlx_module_options_t *out_options) {
  *out_options = (mlx_module_options_t){
      .context = context, .sequences = 1, .page_size = MLX_KV_PAGE, .steps = {1}, .step_count = 1};
  mlx_module_options_set_buckets((int64_t[]){16, 128}, 2, out_options);
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

int64_t mlx_module_sequence_pages(const mlx_module_options_t *options) {
  return (options->context + options->page_size - 1) / options->page_size;
}

int64_t mlx_module_sequence_positions(const mlx_module_options_t *options) {
  return mlx_module_sequence_pages(options) * options->page_size;
}

// Page 0 belongs to no sequence: it takes the writes of padding tokens and inactive sequences.
int64_t mlx_module_pool_pages(const mlx_module_options_t *options) {
  return 1 + options->sequences * mlx_module_sequence_pages(options);
}
