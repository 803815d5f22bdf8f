// Requests kernel images while a module is emitted.
#include "compiler/cuda_image.h"

#include <string.h>

#include "kernels/activations.h"

void mlx_cuda_define(mlx_text_t *text, const mlx_definition_t *definitions, size_t count) {
  for (size_t i = 0; i < count; ++i)
    mlx_text_printf(text, "%s=%lld\n", definitions[i].name, (long long)definitions[i].value);
}

void mlx_cuda_define_type(mlx_text_t *text, const char *name, mlx_dtype_t dtype) {
  mlx_text_printf(text, "%s=Dtype::%s\n", name, mlx_dtype_info(dtype)->name);
}

void mlx_cuda_define_activation(mlx_text_t *text, const char *name, mlx_act_t act) {
#define ACTIVATION_NAME(enumerator, name) [MLX_ACT_##enumerator] = #enumerator,
  static const char *const names[] = {MLX_ACTIVATION_TABLE(ACTIVATION_NAME)};
#undef ACTIVATION_NAME
  mlx_text_printf(text, "%s=Activation::%s\n", name, names[act]);
}

void mlx_cuda_define_table(mlx_text_t *text, const char *name, const char *type, const int64_t *values,
                           int64_t count) {
  mlx_text_printf(text, "%s:%s=", name, type);
  for (int64_t i = 0; i < count; ++i) mlx_text_printf(text, "%s%lld", i ? "," : "", (long long)values[i]);
  mlx_text_puts(text, "\n");
}

void mlx_cuda_define_float(mlx_text_t *text, const char *name, double value) {
  mlx_text_printf(text, "%s=%.9ef\n", name, (double)(float)value);
}

int32_t mlx_cuda_float_bits(double value) {
  const float narrow = (float)value;
  int32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  return bits;
}

const char *mlx_cuda_image(mlx_function_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions) {
  return mlx_cuda_build_image(g, kind, definitions, (mlx_kernel_build_t){0});
}

// Costs from bench/image_time: they grow with the tile, and gate and up are two products.
mlx_kernel_build_t mlx_cuda_tiled_build(int64_t bm, bool pair) {
  const int cost = 30 + (int)bm / 4;
  return (mlx_kernel_build_t){.cost = pair ? 2 * cost : cost, .wgmma = true};
}

const char *mlx_cuda_build_image(mlx_function_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions,
                                 mlx_kernel_build_t build) {
  const char *file = NULL;
  mlx_status_t status = mlx_text_finish(definitions);
  if (!status) status = mlx_kernels_image(g->options->kernels, kind, definitions->data, build, &file);
  mlx_text_clear(definitions);
  if (status) mlx_builder_fail(g->b, status);
  return file;
}

mlx_built_t mlx_cuda_f32(mlx_function_t *g, const char *name, mlx_built_t vector) {
  return !vector.id || vector.dtype == MLX_F32 ? vector : mlx_build_convert(g->b, name, vector, MLX_F32);
}

bool mlx_cuda_is_hopper(const mlx_function_t *g) { return g->options->kernels->gpu->kernel_sm == 90; }

mlx_built_t mlx_cuda_call(mlx_function_t *g, const char *name, const mlx_extern_t *kernel) {
  return kernel->file ? mlx_build_extern(g->b, name, kernel, NULL) : MLX_NO_VALUE;
}

mlx_built_t mlx_cuda_call_into(mlx_function_t *g, const char *name, mlx_extern_t *kernel, mlx_built_t into) {
  mlx_built_t updated;
  if (!kernel->file || !into.id) return mlx_cuda_call(g, name, kernel);
  kernel->operands[kernel->operand_count++] = into;
  kernel->result = (mlx_type_t){0};
  return mlx_build_extern(g->b, name, kernel, &updated);
}

void mlx_cuda_call_group(mlx_function_t *g, const char *name, mlx_extern_t *kernel, int64_t m,
                         const mlx_built_t *weights, int count, mlx_built_t *out) {
  kernel->operand_count = kernel->updated_from = 1 + (size_t)count;
  kernel->result = MLX_TYPE(MLX_F32, m, weights[0].dims[0]);
  for (int i = 1; i < count; ++i) kernel->more[i - 1] = MLX_TYPE(MLX_F32, m, weights[i].dims[0]);
  if (kernel->file) out[0] = mlx_build_extern(g->b, name, kernel, out + 1);
}
