// Requests kernel images while a module is emitted.
#include "compiler/cuda_image.h"

#include <string.h>

void mlx_cuda_define(mlx_text_t *text, const mlx_definition_t *definitions, size_t count) {
  for (size_t i = 0; i < count; ++i)
    mlx_text_printf(text, "%s=%lld\n", definitions[i].name, (long long)definitions[i].value);
}

void mlx_cuda_define_dtype(mlx_text_t *text, mlx_dtype_t dtype) {
  mlx_text_printf(text, "DTYPE_%s=1\n", mlx_dtype_info(dtype)->name);
}

void mlx_cuda_define_kv(mlx_text_t *text, mlx_dtype_t kv) {
  mlx_text_printf(text, "KV_%s=1\n", kv == MLX_Q8_0 ? "Q8" : mlx_dtype_info(kv)->name);
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
  const char *file = NULL;
  mlx_status_t status = mlx_text_finish(definitions);
  if (!status) status = mlx_kernels_image(g->options->kernels, kind, definitions->data, &file);
  mlx_text_clear(definitions);
  if (status) mlx_builder_fail(g->b, status);
  return file;
}

mlx_value_t mlx_cuda_f32(mlx_function_t *g, const char *name, mlx_value_t vector) {
  return !vector.id || vector.dtype == MLX_F32 ? vector : mlx_build_convert(g->b, name, vector, MLX_F32);
}

bool mlx_cuda_is_hopper(const mlx_function_t *g) { return g->options->kernels->gpu->kernel_sm == 90; }

mlx_value_t mlx_cuda_call(mlx_function_t *g, const char *name, mlx_extern_t *kernel) {
  mlx_value_t updated;
  if (!kernel->file) return (mlx_value_t){0};
  if (!g->into.id) return mlx_build_extern(g->b, name, kernel, NULL);
  kernel->operands[kernel->operand_count++] = g->into;
  kernel->result = (mlx_type_t){0};
  return mlx_build_extern(g->b, name, kernel, &updated);
}

void mlx_cuda_call_group(mlx_function_t *g, const char *name, mlx_extern_t *kernel, int64_t m,
                         const mlx_value_t *weights, int count, mlx_value_t *out) {
  kernel->operand_count = kernel->updated_from = 1 + (size_t)count;
  kernel->result = MLX_TYPE(MLX_F32, m, weights[0].dims[0]);
  for (int i = 1; i < count; ++i) kernel->more[i - 1] = MLX_TYPE(MLX_F32, m, weights[i].dims[0]);
  if (kernel->file) out[0] = mlx_build_extern(g->b, name, kernel, out + 1);
}
