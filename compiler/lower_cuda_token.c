// Products of one token: launches of kernels/cuda/packed.cu with TOKEN.
#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"

static int64_t rows_of(const mlx_token_products_t *p, int nth) {
  return nth < p->count ? p->weights[nth].dims[0] : 0;
}

static void add_operand(mlx_extern_t *kernel, mlx_built_t value) {
  if (value.id) kernel->operands[kernel->operand_count++] = value;
}

static const char *image_of(mlx_function_t *g, const mlx_token_products_t *p) {
  const mlx_built_t weight = p->weights[0];
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_token\nTOKEN=1\n");
  MLX_DEFINE(&d, {"GAIN", p->norm.gain.id != 0}, {"MATRICES", p->count}, {"BIAS", p->biases[0].id != 0},
             {"RESIDUAL", p->residual.id != 0});
  mlx_cuda_define_weight(g, &d, weight);
  if (p->count > 1) MLX_DEFINE(&d, {"n2", rows_of(p, 1)}, {"n3", rows_of(p, 2)});
  if (p->norm.gain.id) mlx_cuda_define_float(&d, "norm_eps", p->norm.eps);
  return mlx_cuda_image(g, MLX_KERNEL_PACKED, &d);
}

void mlx_cuda_token_products(mlx_function_t *g, const char *name, const mlx_token_products_t *p,
                             mlx_built_t *out) {
  const bool tiles = p->weights[0].quantized_weight;
  const int64_t rows = mlx_token_rows(tiles);
  mlx_extern_t kernel = {.symbol = "mlx_token",
                         .file = image_of(g, p),
                         .threads = 256,
                         .shared_bytes = mlx_token_shared_bytes(p->weights[0].dims[1], tiles),
                         .grid = {0, 1, 1},
                         .operands = {p->x},
                         .operand_count = 1,
                         .result = MLX_TYPE(MLX_F32, 1, rows_of(p, 0))};
  if (!kernel.file) return;
  add_operand(&kernel, mlx_cuda_f32(g, "gain_f32", p->norm.gain));
  for (int i = 0; i < p->count; ++i) {
    kernel.grid[0] += mlx_ceil_div(rows_of(p, i), rows);
    add_operand(&kernel, mlx_cuda_words(g, p->weights[i]));
    if (i) kernel.more[i - 1] = MLX_TYPE(MLX_F32, 1, rows_of(p, i));
  }
  for (int i = 0; i < p->count; ++i) add_operand(&kernel, mlx_cuda_f32(g, "bias_f32", p->biases[i]));
  add_operand(&kernel, p->residual);
  kernel.updated_from = kernel.operand_count;
  out[0] = mlx_build_extern(g->b, name, &kernel, out + 1);
}
