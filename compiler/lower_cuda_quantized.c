// Ops on quantized weights: launches of kernels/cuda/packed.cu.
#include <string.h>

#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"
#include "kernels/step.h"

mlx_built_t mlx_cuda_weight(const mlx_function_t *g, size_t index, mlx_built_t loaded) {
  const mlx_tiles_t *tiles = g->options->kernels ? g->options->kernels->tiles : NULL;
  if (!tiles || !tiles[index].bits) return loaded;
  const mlx_tensor_t *tensor = &g->model->weights[index].tensor;
  mlx_built_t weight = {
      .id = loaded.id, .dtype = MLX_F32, .rank = tensor->rank, .quantized_weight = (int)index + 1};
  for (int i = 0; i < tensor->rank; ++i) weight.dims[i] = tensor->dims[i];
  return weight;
}

static mlx_tiles_t tiles_of(const mlx_function_t *g, mlx_built_t weight) {
  return g->options->kernels->tiles[weight.quantized_weight - 1];
}

mlx_built_t mlx_cuda_words(const mlx_function_t *g, mlx_built_t weight) {
  if (!weight.quantized_weight) return weight;
  const int64_t *matrix = &weight.dims[weight.rank - 2], count = weight.rank == 3 ? weight.dims[0] : 1;
  const int64_t words = count * (int64_t)(mlx_tiles_bytes(tiles_of(g, weight), matrix[0], matrix[1]) / 4);
  return (mlx_built_t){.id = weight.id, .dtype = MLX_I32, .rank = 1, .dims = {words}};
}

static void define_tiles(mlx_text_t *d, mlx_tiles_t tiles) {
  MLX_DEFINE(d, {"bits", tiles.bits}, {"numbers", tiles.numbers}, {"offset", tiles.offset},
             {"halves", tiles.halves}, {"center", tiles.center});
}

void mlx_cuda_define_format(const mlx_function_t *g, mlx_text_t *d, mlx_built_t weight) {
  if (weight.quantized_weight) {
    define_tiles(d, tiles_of(g, weight));
    return;
  }
  MLX_DEFINE(d, {"bits", weight.dtype == MLX_F32 ? 32 : 16});
  mlx_cuda_define_type(d, "dtype", weight.dtype);
}

void mlx_cuda_define_weight(const mlx_function_t *g, mlx_text_t *d, mlx_built_t weight) {
  const int64_t *matrix = &weight.dims[weight.rank - 2];
  MLX_DEFINE(d, {"n", matrix[0]}, {"k", matrix[1]});
  mlx_cuda_define_format(g, d, weight);
}

static mlx_built_t gemv(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  const mlx_built_t x = p->x, weight = p->weight;
  const int64_t m = x.dims[0], n = weight.dims[0];
  const mlx_quantized_gemv_t s = mlx_quantized_gemv(m, n, weight.dims[1], g->options->kernels->gpu->blocks);
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_packed_gemv\nGEMV=1\n");
  mlx_cuda_define_weight(g, &definitions, weight);
  MLX_DEFINE(&definitions, {"m", m}, {"warps", s.warps}, {"groups", s.groups});
  mlx_extern_t kernel = {.symbol = "mlx_packed_gemv",
                         .file = mlx_cuda_image(g, MLX_KERNEL_PACKED, &definitions),
                         .grid = {s.blocks, 1, 1},
                         .threads = 256,
                         .shared_bytes = s.shared_bytes,
                         .operands = {x, mlx_cuda_words(g, weight)},
                         .operand_count = 2,
                         .updated_from = 2,
                         .result = MLX_TYPE(MLX_F32, m, n)};
  return mlx_cuda_call_into(g, name, &kernel, p->into);
}

static int64_t parts_words(int64_t m, int64_t k) { return mlx_quantized_parts_bytes(m, k) / 4; }

mlx_type_t mlx_cuda_parts_type(int64_t m, int64_t k) { return MLX_TYPE(MLX_I32, parts_words(m, k)); }

mlx_built_t mlx_cuda_as_parts(mlx_built_t words, int64_t m, int64_t k) {
  return (mlx_built_t){.id = words.id, .dtype = MLX_F32, .rank = 2, .dims = {m, k}, .is_parts = true};
}

static mlx_built_t gain_of(mlx_built_t x) {
  return (mlx_built_t){.id = x.norm_gain, .dtype = MLX_F32, .rank = 1, .dims = {x.dims[1]}};
}

// Requests the image of a kernel that splits x into parts: its macros are in |d|.
static const char *split_image(mlx_function_t *g, mlx_text_t *d, bool rows16, bool normalizes, double eps) {
  if (rows16) MLX_DEFINE(d, {"bits", 16});
  if (normalizes) mlx_cuda_define_float(d, "norm_eps", eps);
  return mlx_cuda_build_image(g, MLX_KERNEL_PACKED, d, (mlx_kernel_build_t){.cost = 10});
}

// The launch that splits |x|, or its norm, into parts.
static mlx_extern_t launch_split(mlx_function_t *g, mlx_built_t x, bool rows16) {
  const int64_t m = x.dims[0], k = x.dims[1];
  const char *name = x.norm_gain ? "mlx_norm_parts" : "mlx_cut";
  mlx_text_t definitions = {0};
  mlx_text_printf(&definitions, "NAME=%s\nSPLIT_INPUT=1\n", name);
  MLX_DEFINE(&definitions, {"MIXTURE", 0}, {"GAIN", x.norm_gain != 0}, {"LAYERNORM", 0},
             {"PARTIALS", x.partial_count != 0});
  mlx_extern_t kernel = {.symbol = name,
                         .file = split_image(g, &definitions, rows16, x.norm_gain, x.norm_eps),
                         .grid = {mlx_ceil_div(m, 8) * 8, 1, 1},
                         .threads = 256,
                         .operands = {{.id = x.id, .dtype = MLX_F32, .rank = 2, .dims = {m, k}}},
                         .operand_count = 1,
                         .updated_from = 1,
                         .result = mlx_cuda_parts_type(m, k),
                         .constants = {(int32_t)m, (int32_t)k},
                         .constant_count = 2};
  if (x.norm_gain) {
    kernel.operands[1] = gain_of(x);
    kernel.operand_count = kernel.updated_from = 2;
  }
  return kernel;
}

// |x| split into parts that add up to its f32 values: f16 for quantized weights, or bf16 for 16-bit weights.
mlx_built_t mlx_cuda_split(mlx_function_t *g, mlx_built_t x, bool rows16) {
  const mlx_extern_t kernel = launch_split(g, x, rows16);
  return mlx_cuda_as_parts(mlx_cuda_call(g, "parts", &kernel), x.dims[0], x.dims[1]);
}

// The buffer of |x|, which is parts.
static mlx_built_t parts_buffer(mlx_function_t *g, mlx_built_t x) {
  if (!x.is_parts) mlx_builder_fail(g->b, mlx_error(MLX_INTERNAL, "a product reads x before its split"));
  return (mlx_built_t){.id = x.id, .dtype = MLX_I32, .rank = 1, .dims = {parts_words(x.dims[0], x.dims[1])}};
}

mlx_built_t mlx_cuda_norm_parts(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t gain,
                                double eps, bool rows16, mlx_built_t *out_x) {
  const int64_t m = x.dims[0], k = x.dims[1];
  mlx_built_t norm = {.id = x.id, .dtype = MLX_F32, .rank = 2, .dims = {m, k}, .norm_gain = gain.id};
  norm.norm_eps = eps;
  norm.partial_count = x.partial_count;
  mlx_extern_t kernel = launch_split(g, norm, rows16);
  if (!x.partials) return mlx_cuda_as_parts(mlx_cuda_call(g, name, &kernel), m, k);
  const mlx_built_t operands[] = {
      gain,
      {.id = x.partials, .dtype = MLX_F32, .rank = 2, .dims = {x.partial_count, m * k}},
      {.id = x.id, .dtype = MLX_F32, .rank = 2, .dims = {m, k}}};
  if (!kernel.file) return MLX_NO_VALUE;
  memcpy(kernel.operands, operands, sizeof operands);
  kernel.operand_count = 3;
  kernel.updated_from = 2;
  kernel.constants[kernel.constant_count++] = (int32_t)x.partial_count;
  return mlx_cuda_as_parts(mlx_build_extern(g->b, name, &kernel, out_x), m, k);
}

mlx_built_t mlx_cuda_layernorm_parts(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t gain,
                                     mlx_built_t bias, double eps, bool rows16) {
  const int64_t m = x.dims[0], k = x.dims[1];
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_layernorm_parts\nSPLIT_INPUT=1\n");
  MLX_DEFINE(&definitions, {"MIXTURE", 0}, {"GAIN", 1}, {"LAYERNORM", 1}, {"PARTIALS", 0});
  const mlx_built_t parts =
      mlx_cuda_call(g, name,
                    &(mlx_extern_t){.symbol = "mlx_layernorm_parts",
                                    .file = split_image(g, &definitions, rows16, true, eps),
                                    .grid = {mlx_ceil_div(m, 8) * 8, 1, 1},
                                    .threads = 256,
                                    .operands = {x, gain.id ? mlx_cuda_f32(g, "gain_f32", gain) : x,
                                                 bias.id ? mlx_cuda_f32(g, "bias_f32", bias) : x},
                                    .operand_count = 3,
                                    .updated_from = 3,
                                    .result = mlx_cuda_parts_type(m, k),
                                    .constants = {(int32_t)m, (int32_t)k, MLX_HAS(gain.id, bias.id)},
                                    .constant_count = 3});
  return mlx_cuda_as_parts(parts, m, k);
}

// NAME and the parameters of a product with |count| results; the format of |weight|.
static mlx_text_t define_product(const mlx_function_t *g, mlx_epilogue_t epilogue, int count,
                                 mlx_built_t weight) {
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_packed_linear\n");
  MLX_DEFINE(&d, {"EPILOGUE", epilogue}, {"MATRICES", count}, {"MIXTURE", 0}, {"BIAS", 0});
  mlx_cuda_define_format(g, &d, weight);
  MLX_DEFINE(&d, {"whole_runs", weight.dims[1] % 128 == 0});
  return d;
}

// The launch of a product y[m, n] with tiles |t|, without operands and results.
static mlx_extern_t launch_tiles(mlx_function_t *g, mlx_text_t *definitions, mlx_epilogue_t epilogue,
                                 mlx_quantized_tile_t t, bool rows16, int64_t m, int64_t n) {
  MLX_DEFINE(definitions, {"PRODUCT", 1}, {"SPLIT", t.split}, {"bm", t.m}, {"bn", t.n}, {"stages", t.stages},
             {"warps", t.warps});
  return (mlx_extern_t){
      .symbol = "mlx_packed_linear",
      .file = mlx_cuda_build_image(g, MLX_KERNEL_PACKED, definitions,
                                   mlx_cuda_tiled_build(t.m, epilogue == MLX_EPILOGUE_GATED)),
      .grid = {mlx_ceil_div(m, t.m), mlx_ceil_div(n, t.n), t.split},
      .threads = 32 * t.warps,
      .shared_bytes = mlx_quantized_tile_shared_bytes(t, rows16)};
}

// The launch of a product of few tokens with rows of 16-bit weights, without results. x, and its gain if it
// is a norm, are the first operands.
static mlx_extern_t launch_few(mlx_function_t *g, mlx_text_t *definitions, mlx_epilogue_t epilogue,
                               mlx_few_tile_t t, mlx_built_t x) {
  MLX_DEFINE(definitions, {"FEW", 1}, {"GAIN", x.norm_gain != 0}, {"SPLIT", t.split});
  if (x.norm_gain) mlx_cuda_define_float(definitions, "norm_eps", x.norm_eps);
  MLX_DEFINE(definitions, {"groups", t.groups}, {"tall", t.tall}, {"along", t.along}, {"depth", t.depth});
  return (mlx_extern_t){
      .symbol = "mlx_packed_linear",
      .file = mlx_cuda_build_image(g, MLX_KERNEL_PACKED, definitions,
                                   (mlx_kernel_build_t){.cost = epilogue == MLX_EPILOGUE_GATED ? 80 : 40}),
      .grid = {1, t.clusters, t.split},
      .threads = 32 * t.tall * t.along,
      .shared_bytes = t.shared_bytes,
      .operands = {{.id = x.id, .dtype = MLX_F32, .rank = 2, .dims = {x.dims[0], x.dims[1]}}, gain_of(x)},
      .operand_count = x.norm_gain ? 2 : 1};
}

mlx_built_t mlx_cuda_exact_gemm(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  const mlx_built_t x = p->x, weight = p->weight;
  mlx_built_t other = p->other;
  mlx_epilogue_t epilogue = p->epilogue;
  const int64_t m = x.dims[0], n = weight.dims[0], k = weight.dims[1],
                processors = g->options->kernels->gpu->blocks;
  const bool rows16 = !weight.quantized_weight, pair = epilogue == MLX_EPILOGUE_GATED;
  // The last step of a prompt wants few of the tokens that the function has room for.
  const int64_t used = m < g->size.tokens && m > 64 ? 64 : m;
  const mlx_quantized_tile_t t =
      mlx_quantized_tile(used, n, k, pair, rows16, mlx_cuda_is_hopper(g), processors);
  const mlx_few_tile_t few = p->few ? mlx_few_tile(m, n, k, pair, processors) : (mlx_few_tile_t){0};
  // A product without a residual shares the image of one with a residual, and passes any buffer in its place.
  // Only an LM head is large enough for split 1: its image is smaller without the residual.
  const bool adds = epilogue == MLX_EPILOGUE_ADD, shares = epilogue == MLX_EPILOGUE_NONE && t.split > 1;
  if (shares) epilogue = MLX_EPILOGUE_ADD;
  const mlx_built_t parts = p->few ? MLX_NO_VALUE : parts_buffer(g, x);
  mlx_text_t definitions = define_product(g, epilogue, 1, weight);
  if (pair && p->act) mlx_cuda_define_activation(&definitions, "act", p->act);
  const bool into_parts = pair && p->into_parts;
  if (into_parts) MLX_DEFINE(&definitions, {"y_parts", 1});
  mlx_extern_t kernel = p->few ? launch_few(g, &definitions, epilogue, few, x)
                               : launch_tiles(g, &definitions, epilogue, t, rows16, m, n);
  if (!p->few) kernel.operands[kernel.operand_count++] = parts;
  if (shares) other = kernel.operands[0];
  kernel.operands[kernel.operand_count++] = mlx_cuda_words(g, weight);
  kernel.operands[kernel.operand_count++] = other.id ? mlx_cuda_words(g, other) : g->batch;
  kernel.updated_from = kernel.operand_count;
  kernel.result = MLX_TYPE(MLX_F32, m, n);
  const int32_t count_at = m == g->size.tokens ? MLX_STEP_TOKEN_COUNT : MLX_STEP_WANTED_COUNT;
  const int32_t constants[] = {(int32_t)m, (int32_t)n, (int32_t)k, other.id ? adds : count_at};
  memcpy(kernel.constants, constants, sizeof constants);
  kernel.constant_count = 4;
  if (!into_parts) return mlx_cuda_call_into(g, name, &kernel, p->into);
  kernel.result = mlx_cuda_parts_type(m, n);
  return mlx_cuda_as_parts(mlx_cuda_call(g, name, &kernel), m, n);
}

mlx_built_t mlx_cuda_partial_linear(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  const mlx_built_t x = p->x, weight = p->weight;
  mlx_built_t residual = p->other;
  const int64_t m = x.dims[0], n = weight.dims[0], k = weight.dims[1],
                split = mlx_partial_split(m, n, k, g->options->kernels->gpu->blocks);
  mlx_quantized_tile_t t = {.m = m <= 64 ? 64 : 128, .n = 128, .split = 1, .stages = 4, .warps = 8};
  mlx_text_t definitions = define_product(g, MLX_EPILOGUE_PARTIAL, 1, weight);
  const mlx_built_t parts = parts_buffer(g, x);
  mlx_extern_t kernel = launch_tiles(g, &definitions, MLX_EPILOGUE_PARTIAL, t, true, m, n);
  kernel.grid[2] = split;
  kernel.operands[0] = parts;
  kernel.operands[1] = weight;
  kernel.operand_count = kernel.updated_from = 2;
  kernel.result = MLX_TYPE(MLX_F32, split, m * n);
  const int32_t constants[] = {(int32_t)m, (int32_t)n, (int32_t)k};
  memcpy(kernel.constants, constants, sizeof constants);
  kernel.constant_count = 3;
  residual.partials = mlx_cuda_call(g, name, &kernel).id;
  residual.partial_count = split;
  return residual;
}

void mlx_cuda_exact_group(mlx_function_t *g, const char *name, mlx_built_t x, const mlx_built_t *weights,
                          int count, mlx_built_t *out) {
  const int64_t m = x.dims[0], k = weights[0].dims[1], last = count > 2 ? weights[2].dims[0] : 0,
                n = weights[0].dims[0] + weights[1].dims[0] + last;
  const bool rows16 = !weights[0].quantized_weight;
  const mlx_quantized_tile_t t =
      mlx_quantized_tile(m, n, k, false, rows16, mlx_cuda_is_hopper(g), g->options->kernels->gpu->blocks);
  mlx_text_t definitions = define_product(g, MLX_EPILOGUE_GROUP, count, weights[0]);
  const mlx_built_t parts = parts_buffer(g, x);
  mlx_extern_t kernel = launch_tiles(g, &definitions, MLX_EPILOGUE_GROUP, t, rows16, m, n);
  const int32_t constants[] = {(int32_t)m, (int32_t)weights[0].dims[0], (int32_t)k,
                               (int32_t)weights[1].dims[0], (int32_t)last};
  memcpy(kernel.constants, constants, sizeof constants);
  kernel.constant_count = 5;
  kernel.operands[0] = parts;
  for (int i = 0; i < count; ++i) kernel.operands[1 + i] = mlx_cuda_words(g, weights[i]);
  mlx_cuda_call_group(g, name, &kernel, m, weights, count, out);
}

mlx_built_t mlx_cuda_quantized_linear(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  return mlx_cuda_uses_gemv(p->x.dims[0]) ? gemv(g, name, p) : mlx_cuda_exact_gemm(g, name, p);
}

mlx_built_t mlx_cuda_quantized_embed(mlx_function_t *g, const char *name, mlx_built_t table,
                                     mlx_built_t tokens, double factor) {
  const int64_t m = tokens.dims[0], k = table.dims[1];
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_embed\nEMBED=1\n");
  mlx_cuda_define_format(g, &definitions, table);
  mlx_builder_comment(g->b, "embedding rows of the tokens");
  return mlx_cuda_call(g, name,
                       &(mlx_extern_t){.symbol = "mlx_embed",
                                       .file = mlx_cuda_image(g, MLX_KERNEL_PACKED, &definitions),
                                       .grid = {mlx_ceil_div(m * mlx_ceil_div(k, 128) * 16, 256), 1, 1},
                                       .threads = 256,
                                       .operands = {tokens, mlx_cuda_words(g, table)},
                                       .operand_count = 2,
                                       .updated_from = 2,
                                       .result = MLX_TYPE(MLX_F32, m, k),
                                       .constants = {(int32_t)m, (int32_t)table.dims[0], (int32_t)k,
                                                     mlx_cuda_float_bits(factor)},
                                       .constant_count = 4});
}
