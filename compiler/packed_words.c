// Words over weights that stay packed on a GPU: the launches of kernels/cuda/packed.cu.
#include <string.h>

#include "compiler/graph_internal.h"
#include "compiler/packed_ops.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

mlx_value_t mlx_kernel_weight(mlx_graph_t *g, const char *name, mlx_value_t loaded) {
  const mlx_tiles_t *tiles = g->options->kernels ? g->options->kernels->tiles : NULL;
  for (size_t i = 0; tiles && i < g->model->weight_count; ++i) {
    const mlx_weight_t *weight = &g->model->weights[i];
    if (!tiles[i].bits || strcmp(weight->name, name)) continue;
    return (mlx_value_t){.id = loaded.id,
                         .dtype = MLX_F32,
                         .rank = 2,
                         .dims = {weight->tensor.dims[0], weight->tensor.dims[1]},
                         .packed = (int)i + 1};
  }
  return loaded;
}

static mlx_tiles_t tiles_of(const mlx_graph_t *g, mlx_value_t weight) {
  return g->options->kernels->tiles[weight.packed - 1];
}

// As the module has it: the words of its tiles.
static mlx_value_t words_of(const mlx_graph_t *g, mlx_value_t weight) {
  const int64_t words = (int64_t)(mlx_tiles_bytes(tiles_of(g, weight), weight.dims[0], weight.dims[1]) / 4);
  return (mlx_value_t){.id = weight.id, .dtype = MLX_I32, .rank = 1, .dims = {words}};
}

static void define_weight(const mlx_graph_t *g, mlx_text_t *d, mlx_value_t weight) {
  const mlx_tiles_t tiles = tiles_of(g, weight);
  MLX_DEFINE(d, {"N", weight.dims[0]}, {"K", weight.dims[1]}, {"BITS", tiles.bits}, {"SCALE_F32", tiles.wide},
             {"OFFSET", tiles.offset}, {"HALVES", tiles.halves}, {"CENTER", tiles.center});
}

static mlx_value_t call(mlx_graph_t *g, const char *name, const mlx_extern_t *kernel) {
  return kernel->file ? mlx_build_extern(g->b, name, kernel, NULL) : (mlx_value_t){0};
}

static mlx_value_t gemv(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  const int64_t m = x.dims[0], n = weight.dims[0];
  const mlx_packed_stream_t s = mlx_packed_stream(m, n, weight.dims[1], g->options->kernels->gpu->blocks);
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_packed_gemv\n");
  define_weight(g, &definitions, weight);
  MLX_DEFINE(&definitions, {"GEMV", 1}, {"M", m}, {"GEMV_GROUPS", s.groups}, {"GEMV_WARPS", s.warps});
  return call(g, name,
              &(mlx_extern_t){.symbol = "mlx_packed_gemv",
                              .file = mlx_kernel_image(g, MLX_KERNEL_PACKED, &definitions),
                              .grid = {s.blocks, 1, 1},
                              .threads = 256,
                              .shared_bytes = s.shared_bytes,
                              .operands = {x, words_of(g, weight)},
                              .operand_count = 2,
                              .updated_from = 2,
                              .result = MLX_TYPE(MLX_F32, m, n)});
}

// |x| cut into its parts; once, where several products follow each other with the same x.
static mlx_value_t cut(mlx_graph_t *g, mlx_value_t x) {
  const int64_t m = x.dims[0], k = x.dims[1];
  if (g->cut.id == x.id) return g->parts;
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_cut\n");
  MLX_DEFINE(&definitions, {"CUT", 1}, {"M", m}, {"K", k});
  g->cut = x;
  g->parts = call(
      g, "parts",
      &(mlx_extern_t){.symbol = "mlx_cut",
                      .file = mlx_kernel_image(g, MLX_KERNEL_PACKED, &definitions),
                      .grid = {ceil_div(ceil_div(m, 8) * 8 * ceil_div(ceil_div(k, 128), 4) * 64, 256), 1, 1},
                      .threads = 256,
                      .operands = {x},
                      .operand_count = 1,
                      .updated_from = 1,
                      .result = MLX_TYPE(MLX_I32, mlx_packed_parts_bytes(m, k) / 4)});
  return g->parts;
}

static mlx_value_t gemm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                        mlx_value_t other, mlx_linear_end_t end) {
  const int64_t m = x.dims[0], n = weight.dims[0], k = weight.dims[1],
                processors = g->options->kernels->gpu->blocks;
  const mlx_packed_tile_t t =
      mlx_packed_tile(m, n, k, end == MLX_LINEAR_SWIGLU, mlx_kernel_is_hopper(g), processors);
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_packed_linear\n");
  define_weight(g, &definitions, weight);
  MLX_DEFINE(&definitions, {"M", m}, {"EPILOGUE", end}, {"BM", t.m}, {"BN", t.n}, {"SPLIT", t.split},
             {"STAGES", t.stages}, {"WARPS", t.warps});
  return call(
      g, name,
      &(mlx_extern_t){.symbol = "mlx_packed_linear",
                      .file = mlx_kernel_image(g, MLX_KERNEL_PACKED, &definitions),
                      .grid = {ceil_div(m, t.m), ceil_div(n, t.n), t.split},
                      .threads = 32 * t.warps,
                      .shared_bytes = mlx_packed_shared_bytes(t),
                      .operands = {cut(g, x), words_of(g, weight), other.packed ? words_of(g, other) : other},
                      .operand_count = end == MLX_LINEAR_PLAIN ? 2 : 3,
                      .updated_from = end == MLX_LINEAR_PLAIN ? 2 : 3,
                      .result = MLX_TYPE(MLX_F32, m, n)});
}

mlx_value_t mlx_kernel_packed_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                                     mlx_value_t other, mlx_linear_end_t end) {
  return mlx_kernel_linear_is_gemv(x) ? gemv(g, name, x, weight) : gemm(g, name, x, weight, other, end);
}

mlx_value_t mlx_kernel_embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens) {
  const int64_t m = tokens.dims[0], k = table.dims[1];
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_embed\n");
  define_weight(g, &definitions, table);
  MLX_DEFINE(&definitions, {"EMBED", 1}, {"M", m});
  mlx_builder_comment(g->b, "embedding rows of the tokens");
  return call(g, "embedded",
              &(mlx_extern_t){.symbol = "mlx_embed",
                              .file = mlx_kernel_image(g, MLX_KERNEL_PACKED, &definitions),
                              .grid = {ceil_div(m * ceil_div(k, 128) * 16, 256), 1, 1},
                              .threads = 256,
                              .operands = {tokens, words_of(g, table)},
                              .operand_count = 2,
                              .updated_from = 2,
                              .result = MLX_TYPE(MLX_F32, m, k)});
}
