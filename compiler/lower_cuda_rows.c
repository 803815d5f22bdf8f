// Launches of kernels/cuda/rows.cu: configuration, grid and operands.
#include "compiler/lower_cuda_rows.h"

#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"

#define BLOCK_WARPS 8
#define WARP_WIDTH 512  // up to this width, one warp normalizes a row

mlx_built_t mlx_cuda_embed(mlx_function_t *g, const char *name, mlx_built_t table, mlx_built_t tokens,
                           double factor) {
  const int64_t m = tokens.dims[0], width = table.dims[1];
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_embed_rows\n");
  MLX_DEFINE(&d, {"EMBED", 1});
  mlx_cuda_define_type(&d, "dtype", table.dtype);
  mlx_builder_comment(g->b, "embedding rows of the tokens");
  return mlx_cuda_call(
      g, name,
      &(mlx_extern_t){.symbol = "mlx_embed_rows",
                      .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
                      .grid = {m, 1, 1},
                      .threads = 32 * BLOCK_WARPS,
                      .operands = {tokens, table},
                      .operand_count = 2,
                      .updated_from = 2,
                      .result = MLX_TYPE(MLX_F32, m, width),
                      .constants = {(int32_t)table.dims[0], (int32_t)width, mlx_cuda_float_bits(factor)},
                      .constant_count = 3});
}

mlx_built_t mlx_cuda_permute(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t order) {
  const int64_t m = x.dims[0], width = x.dims[1];
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_permute\n");
  MLX_DEFINE(&d, {"PERMUTE", 1});
  return mlx_cuda_call(g, name,
                       &(mlx_extern_t){.symbol = "mlx_permute",
                                       .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
                                       .grid = {mlx_ceil_div(width, 1024), m, 1},
                                       .threads = 256,
                                       .operands = {x, order},
                                       .operand_count = 2,
                                       .updated_from = 2,
                                       .result = mlx_type_of(x),
                                       .constants = {(int32_t)width},
                                       .constant_count = 1});
}

mlx_built_t mlx_cuda_head_columns(mlx_function_t *g, const char *name, mlx_built_t x, int64_t head_dim,
                                  int64_t start, int64_t count) {
  const int64_t m = x.dims[0], width = x.dims[1] / head_dim * count;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_head_columns\nHEAD_COLUMNS=1\n");
  return mlx_cuda_call(
      g, name,
      &(mlx_extern_t){.symbol = "mlx_head_columns",
                      .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
                      .grid = {mlx_ceil_div(width, 256), m, 1},
                      .threads = 256,
                      .operands = {x},
                      .operand_count = 1,
                      .updated_from = 1,
                      .result = MLX_TYPE(MLX_F32, m, width),
                      .constants = {(int32_t)width, (int32_t)head_dim, (int32_t)start, (int32_t)count},
                      .constant_count = 4});
}

// |third|: the addend or the order; MLX_NO_VALUE: none.
static mlx_built_t rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, int64_t width,
                           mlx_built_t gain, double eps, mlx_built_t third, bool ordered) {
  const int64_t rows = x.dims[0] * (x.dims[1] / width), warps = width <= WARP_WIDTH ? 1 : BLOCK_WARPS;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_rmsnorm\nNORM=1\n");
  mlx_cuda_define_float(&d, "norm_eps", eps);
  MLX_DEFINE(&d, {"warps", warps});
  if (ordered) MLX_DEFINE(&d, {"ordered", 1});
  if (!gain.id) MLX_DEFINE(&d, {"gains", 0});
  if (gain.id && gain.dims[0] > width) MLX_DEFINE(&d, {"gains", gain.dims[0] / width});
  return mlx_cuda_call(
      g, name,
      &(mlx_extern_t){.symbol = "mlx_rmsnorm",
                      .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
                      .grid = {mlx_ceil_div(rows * warps, BLOCK_WARPS), 1, 1},
                      .threads = 32 * BLOCK_WARPS,
                      .operands = {x, gain.id ? mlx_cuda_f32(g, "gain_f32", gain) : x, third.id ? third : x},
                      .operand_count = 3,
                      .updated_from = 3,
                      .result = mlx_type_of(x),
                      .constants = {(int32_t)rows, (int32_t)width, third.id && !ordered},
                      .constant_count = 3});
}

mlx_built_t mlx_cuda_rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, int64_t width,
                             mlx_built_t gain, double eps, mlx_built_t addend) {
  return rmsnorm(g, name, x, width, gain, eps, addend, false);
}

mlx_built_t mlx_cuda_ordered_rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t gain,
                                     double eps, mlx_built_t order) {
  return rmsnorm(g, name, x, x.dims[1], gain, eps, order, true);
}

mlx_built_t mlx_cuda_layernorm(mlx_function_t *g, const char *name, mlx_built_t x, int64_t width,
                               mlx_built_t gain, mlx_built_t bias, double eps) {
  const int64_t rows = x.dims[0] * (x.dims[1] / width), warps = width <= WARP_WIDTH ? 1 : BLOCK_WARPS,
                gains = gain.id && gain.rank == 2 ? gain.dims[0] : 1;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_layernorm\nNORM=1\nLAYERNORM=1\n");
  mlx_cuda_define_float(&d, "norm_eps", eps);
  MLX_DEFINE(&d, {"warps", warps});
  return mlx_cuda_call(
      g, name,
      &(mlx_extern_t){.symbol = "mlx_layernorm",
                      .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
                      .grid = {mlx_ceil_div(rows * warps, BLOCK_WARPS), 1, 1},
                      .threads = 32 * BLOCK_WARPS,
                      .operands = {x, gain.id ? mlx_cuda_f32(g, "gain_f32", gain) : x,
                                   bias.id ? mlx_cuda_f32(g, "bias_f32", bias) : x},
                      .operand_count = 3,
                      .updated_from = 3,
                      .result = mlx_type_of(x),
                      .constants = {(int32_t)rows, (int32_t)width, (int32_t)gains, MLX_HAS(gain.id, bias.id)},
                      .constant_count = 4});
}

mlx_built_t mlx_cuda_elements(mlx_function_t *g, const char *name, const mlx_elements_t *e) {
  const mlx_elements_operand_t *a = &e->from[0], *b = &e->from[1];
  const mlx_built_t other = b->x.id ? b->x : a->x;  // any buffer stands for one that is not read
  const int how = MLX_ELEMENTS_HOW(e->function, (int)e->combination) | (a->bias.id ? MLX_ELEMENTS_BIAS : 0) |
                  (b->bias.id ? MLX_ELEMENTS_OTHER_BIAS : 0);
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_elements\nELEMENTS=1\n");
  return mlx_cuda_call(
      g, name,
      &(mlx_extern_t){
          .symbol = "mlx_elements",
          .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
          .grid = {mlx_ceil_div(e->width, 1024), a->x.dims[0], 1},
          .threads = 256,
          .operands = {a->x, a->bias.id ? mlx_cuda_f32(g, "bias_f32", a->bias) : a->x, other,
                       b->bias.id ? mlx_cuda_f32(g, "bias_f32", b->bias) : a->x},
          .operand_count = 4,
          .updated_from = 4,
          .result = MLX_TYPE(MLX_F32, a->x.dims[0], e->width),
          .constants = {(int32_t)e->width, (int32_t)a->x.dims[1], (int32_t)a->start, (int32_t)other.dims[1],
                        (int32_t)b->start, how, mlx_cuda_float_bits((double)e->numbers[0]),
                        mlx_cuda_float_bits((double)e->numbers[1]),
                        mlx_cuda_float_bits((double)e->numbers[2]),
                        mlx_cuda_float_bits((double)e->numbers[3])},
          .constant_count = 6 + MLX_ACT_NUMBERS});
}

mlx_rope_table_t mlx_cuda_rope_table(mlx_function_t *g, const mlx_rope_t *rope) {
  const int64_t half = rope->dims / 2, n = g->size.tokens;
  mlx_rope_table_t table = {.rope = rope};
  for (int sine = 0; sine < 2; ++sine) {
    mlx_text_t d = {0};
    mlx_text_puts(&d, "NAME=mlx_rope\n");
    MLX_DEFINE(&d, {"ROPE", 1}, {"half", half});
    mlx_text_printf(&d, "scale=%.9ef\nfrequencies:float=", rope->scale);
    for (int64_t i = 0; i < half; ++i)
      mlx_text_printf(&d, "%s%.9ef", i ? "," : "", (double)rope->frequencies[i]);
    mlx_text_puts(&d, "\n");
    const mlx_built_t values = mlx_cuda_call(g, sine ? "rope_sin" : "rope_cos",
                                             &(mlx_extern_t){.symbol = "mlx_rope",
                                                             .file = mlx_cuda_image(g, MLX_KERNEL_ROWS, &d),
                                                             .grid = {mlx_ceil_div(n * half, 256), 1, 1},
                                                             .threads = 256,
                                                             .operands = {g->batch},
                                                             .operand_count = 1,
                                                             .updated_from = 1,
                                                             .result = MLX_TYPE(MLX_F32, n, half),
                                                             .constants = {(int32_t)n, sine},
                                                             .constant_count = 2});
    *(sine ? &table.sin : &table.cos) = values;
  }
  return table;
}
