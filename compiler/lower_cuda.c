// Launches of kernels/cuda/linear.cu, attention.cu and attention_f32.cu: configuration, grid and operands.
#include "compiler/lower_cuda.h"

#include <string.h>

#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"

static mlx_built_t as_16_bits(mlx_function_t *g, mlx_built_t x) {
  return x.dtype == MLX_F32 ? mlx_build_convert(g->b, "narrow", x, g->options->dtype) : x;
}

// ----------------------------------------------------------------------------------------------------------
// Linear

static mlx_built_t gemv(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  const mlx_built_t x = p->x, weight = p->weight;
  const int64_t n = weight.dims[0], rows = n >= 16384 ? 4 : n >= 8192 ? 2 : 1, warps = 8;
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_gemv\nGEMV=1\n");
  MLX_DEFINE(&definitions, {"m", x.dims[0]}, {"n", n}, {"k", weight.dims[1]}, {"gemv_rows", rows},
             {"warps", warps});
  mlx_cuda_define_type(&definitions, "dtype", weight.dtype);
  mlx_extern_t kernel = {.symbol = "mlx_gemv",
                         .file = mlx_cuda_image(g, MLX_KERNEL_LINEAR, &definitions),
                         .grid = {mlx_ceil_div(n, warps * rows), 1, 1},
                         .threads = 32 * warps,
                         .operands = {x, weight},
                         .operand_count = 2,
                         .updated_from = 2,
                         .result = MLX_TYPE(MLX_F32, x.dims[0], n)};
  return mlx_cuda_call_into(g, name, &kernel, p->into);
}

// How a product is divided among thread blocks. The thresholds were measured on an H200, also those of the
// portable variant (no wgmma, no clusters, under 99 KB of shared memory).
typedef struct tile {
  int64_t m, n, split, stages, warps;  // BM, BN, SPLIT, STAGES and WARPS of linear.cu
} tile_t;

static int64_t tile_count(int64_t m, int64_t n, int64_t bm, int64_t bn) {
  return mlx_ceil_div(m, bm) * mlx_ceil_div(n, bn);
}

static tile_t smallest_tile(int64_t m) { return (tile_t){m <= 16 ? 16 : m <= 32 ? 32 : 64, 64, 1, 4, 4}; }

static tile_t portable_tile(int64_t m, int64_t n, mlx_epilogue_t epilogue, int64_t min_blocks) {
  if (m > 64 && tile_count(m, n, 128, 64) >= min_blocks)
    return (tile_t){128, 64, 1, epilogue == MLX_EPILOGUE_GATED ? 3 : 4, 4};
  return smallest_tile(m);
}

// Too few tiles to fill the GPU: a cluster of blocks divides K (split-K). Clusters of 4 and more need
// multiprocessors that hold two blocks each.
static tile_t split_k_tile(int64_t m, int64_t n, int64_t k, mlx_epilogue_t epilogue, int64_t processors) {
  tile_t t = smallest_tile(m);
  const int64_t tiles = tile_count(m, n, t.m, t.n);
  while (t.split < 8 && tiles * t.split * 2 <= processors && k >= t.split * 2 * 128) t.split *= 2;
  t.stages = t.m == 64 && t.split >= 4 ? 4 : epilogue == MLX_EPILOGUE_GATED ? (t.split >= 4 ? 4 : 6) : 8;
  return t;
}

static tile_t hopper_tile(int64_t m, int64_t n, int64_t k, mlx_epilogue_t epilogue, int64_t processors,
                          int64_t min_blocks) {
  const bool pair = epilogue == MLX_EPILOGUE_GATED;
  const tile_t large = {128, 128, 1, pair ? 4 : 6, 8};
  if (m > 64 && tile_count(m, n, 128, 128) >= (pair ? min_blocks : processors)) return large;
  if (pair && m > 64 && tile_count(m, n, 128, 64) >= min_blocks) return (tile_t){128, 64, 1, 6, 8};
  if (!pair && m > 32 && tile_count(m, n, 64, 128) >= min_blocks) {
    if (tile_count(m, n, 64, 128) <= processors) return (tile_t){64, 128, 1, 8, 4};
    return m > 64 && tile_count(m, n, 128, 128) >= min_blocks ? large : (tile_t){64, 128, 1, 4, 4};
  }
  return split_k_tile(m, n, k, epilogue, processors);
}

// Matrices of a launch, and what it does with their products.
typedef struct matrices {
  const mlx_built_t *weights;  // with MLX_EPILOGUE_GATED only the first of two
  int count;
  mlx_epilogue_t epilogue;
  mlx_act_t act;
} matrices_t;

static int64_t rows_of(const matrices_t *w, int nth) { return nth < w->count ? w->weights[nth].dims[0] : 0; }

// The launch of the products of |x| with |w|, without operands and results.
static mlx_extern_t launch_gemm(mlx_function_t *g, mlx_built_t x, const matrices_t *w) {
  const mlx_epilogue_t epilogue = w->epilogue;
  const int64_t m = x.dims[0], n = rows_of(w, 0) + rows_of(w, 1) + rows_of(w, 2), k = w->weights[0].dims[1],
                processors = g->options->kernels->gpu->blocks;
  const int64_t min_blocks = processors * 7 / 10;  // the GPU counts as full from here on
  const tile_t t = mlx_cuda_is_hopper(g) ? hopper_tile(m, n, k, epilogue, processors, min_blocks)
                                         : portable_tile(m, n, epilogue, min_blocks);
  const int64_t threads =
      32 * t.warps +
      (mlx_cuda_is_hopper(g) && t.m % 64 == 0 ? 128 : 0);  // with wgmma, four extra warps only copy
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_linear\n");
  MLX_DEFINE(&d, {"EPILOGUE", epilogue}, {"MATRICES", w->count}, {"SPLIT", t.split});
  if (w->act) mlx_cuda_define_activation(&d, "act", w->act);
  MLX_DEFINE(&d, {"m", m}, {"n", rows_of(w, 0)}, {"k", k});
  if (w->count > 1) MLX_DEFINE(&d, {"n2", rows_of(w, 1)}, {"n3", rows_of(w, 2)});
  MLX_DEFINE(&d, {"warps", t.warps}, {"bm", t.m}, {"bn", t.n}, {"stages", t.stages}, {"threads", threads});
  mlx_cuda_define_type(&d, "dtype", w->weights[0].dtype);
  return (mlx_extern_t){
      .symbol = "mlx_linear",
      .file = mlx_cuda_build_image(g, MLX_KERNEL_LINEAR, &d,
                                   mlx_cuda_tiled_build(t.m, epilogue == MLX_EPILOGUE_GATED)),
      .grid = {mlx_ceil_div(m, t.m), mlx_ceil_div(n, t.n), t.split},
      .threads = threads,
      .shared_bytes = t.stages * ((t.m + t.n * (epilogue == MLX_EPILOGUE_GATED ? 2 : 1)) * 128 + 16)};
}

static mlx_built_t gemm(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  const mlx_built_t x = p->x, weight = p->weight;
  const mlx_epilogue_t epilogue = p->epilogue;
  const mlx_act_t act = epilogue == MLX_EPILOGUE_GATED ? p->act : MLX_ACT_SILU;
  mlx_extern_t kernel =
      launch_gemm(g, x, &(matrices_t){.weights = &weight, .count = 1, .epilogue = epilogue, .act = act});
  kernel.operands[0] = as_16_bits(g, x);
  kernel.operands[1] = weight;
  kernel.operands[2] = p->other;
  kernel.operand_count = kernel.updated_from = epilogue == MLX_EPILOGUE_NONE ? 2 : 3;
  kernel.result =
      MLX_TYPE(epilogue == MLX_EPILOGUE_GATED ? g->options->dtype : MLX_F32, x.dims[0], weight.dims[0]);
  return mlx_cuda_call_into(g, name, &kernel, p->into);
}

void mlx_cuda_group(mlx_function_t *g, const char *name, mlx_built_t x, const mlx_built_t *weights, int count,
                    mlx_built_t *out) {
  if (!g->options->narrow) {  // a narrow module has no quantized weights
    mlx_cuda_exact_group(g, name, x, weights, count, out);
    return;
  }
  mlx_extern_t kernel =
      launch_gemm(g, x, &(matrices_t){.weights = weights, .count = count, .epilogue = MLX_EPILOGUE_GROUP});
  kernel.operands[0] = as_16_bits(g, x);
  memcpy(kernel.operands + 1, weights, (size_t)count * sizeof *weights);
  mlx_cuda_call_group(g, name, &kernel, x.dims[0], weights, count, out);
}

mlx_built_t mlx_cuda_linear(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  if (p->weight.quantized_weight) return mlx_cuda_quantized_linear(g, name, p);
  if (mlx_cuda_uses_gemv(p->x.dims[0])) return gemv(g, name, p);
  return g->options->narrow ? gemm(g, name, p) : mlx_cuda_exact_gemm(g, name, p);
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// The kernel for long segments in the 16-bit mode: a block has wq warps of 16 queries, times wk warps that
// share the keys of a step.
typedef struct attend_tile {
  int64_t wq, wk, keys;  // fields of attention_config.cuh
} attend_tile_t;

static attend_tile_t choose_attend_tile(const mlx_attention_t *a) {
  const int64_t width = mlx_attend_width(a->head_dim);
  const int64_t step = width <= 80    ? 128
                       : width <= 184 ? 64
                                      : 32;  // double-buffered keys and values fit shared memory
  attend_tile_t t = {.wq = 4, .wk = width <= 80 ? 2 : 1};
  t.keys = step / t.wk < 32 ? step / t.wk : 32;
  return t;
}

// Whether the kernel for long segments rounds queries and softmax weights to 16 bits.
static bool rounds(const mlx_function_t *g, const mlx_attention_t *a) {
  return mlx_module_rounds_attention(g->options) && a->head_dim <= MLX_ATTEND_WHOLE && !a->value_dim;
}

static mlx_attend_f32_tile_t choose_f32_tile(const mlx_function_t *g, const mlx_attention_t *a,
                                             bool is_long) {
  const mlx_dtype_t kv = g->options->kv;
  const int64_t bytes = kv == MLX_Q8_0 ? 1 : (int64_t)mlx_dtype_info(kv)->block_bytes;
  return mlx_attend_f32_tile(is_long, g->size.tokens, a->heads, a->kv_heads, a->head_dim, a->value_dim, bytes,
                             mlx_cuda_is_hopper(g), g->options->kernels->gpu->blocks);
}

mlx_cuda_tiles_t mlx_cuda_attention_tiles(const mlx_function_t *g, const mlx_attention_t *a) {
  const int64_t share = a->heads / a->kv_heads, n = g->size.tokens;
  mlx_cuda_tiles_t t = {.short_queries = choose_f32_tile(g, a, false).queries, .share = share};
  // A function with more tokens than segments is for prompts: with f32 attention, whose results do not depend
  // on the tile, only single tokens are short, so that the grid of short tiles is small.
  const int64_t segments = g->size.wanted;
  t.long_from = n > segments && !rounds(g, a) ? 2 : MLX_LONG_SEGMENT;
  const int64_t most = segments * mlx_ceil_div((t.long_from - 1) * share, t.short_queries);
  t.short_tiles = mlx_attend_tiles(n, 1, share, t.short_queries);
  if (n >= MLX_LONG_STEP && most < t.short_tiles) t.short_tiles = most;
  t.long_share = rounds(g, a) ? 1 : share;
  t.long_queries = rounds(g, a) ? 16 * choose_attend_tile(a).wq : choose_f32_tile(g, a, true).queries;
  if (n >= MLX_LONG_STEP) t.long_tiles = mlx_attend_tiles(n, t.long_from, t.long_share, t.long_queries);
  const int64_t whole = n * t.long_share / t.long_queries + segments;  // each segment has one partial tile
  if (whole < t.long_tiles) t.long_tiles = whole;
  t.ids_at = MLX_PLACED_TILES_AT + (t.short_tiles + t.long_tiles) * MLX_TILE_WORDS;
  return t;
}

static const char *attend_symbol(const mlx_attention_t *a) {
  return a->value_dim ? "mlx_attend_latent" : "mlx_attend";
}

// What attention.cu and attention_f32.cu share.
static mlx_text_t define_attention(const mlx_function_t *g, const mlx_attention_t *a, bool is_long) {
  mlx_text_t definitions = {0};
  mlx_text_printf(&definitions, "NAME=%s\n", attend_symbol(a));
  MLX_DEFINE(&definitions, {"SINKS", a->sinks.id != 0}, {"head_dim", a->head_dim});
  mlx_cuda_define_type(&definitions, "kv", g->options->kv);
  if (a->value_dim) MLX_DEFINE(&definitions, {"value_dim", a->value_dim});
  mlx_text_printf(&definitions, "scale=%.9ef\n", a->scale);
  if (a->softcap != 0.0) mlx_text_printf(&definitions, "softcap=%.9ef\n", a->softcap);
  MLX_DEFINE(&definitions, {"long_tiles", is_long});
  return definitions;
}

#define POOL_LINE 64  // bytes: LINE of attention_pages.cuh

void mlx_cuda_place_layer(const mlx_function_t *g, const mlx_attention_t *a, mlx_extern_t *kernel) {
  const mlx_layer_place_t place = mlx_function_place_layer(g, a->shared ? a->kv_layer : a->layer);
  const bool in_window_pages = g->options->window_pages && place.kind == MLX_WINDOW_PAGES;
  kernel->constants[0] = (int32_t)(place.first_byte / POOL_LINE);
  kernel->constants[1] = (int32_t)(mlx_function_page_bytes(g, place.kind) / POOL_LINE);
  kernel->constants[2] = -1;
  if (!in_window_pages)
    kernel->constants[2] =
        g->options->window_pages ? (int32_t)(mlx_function_page_bytes(g, MLX_WINDOW_PAGES) / POOL_LINE) : 0;
}

// The biases that there are.
static int32_t find_biases(const mlx_cuda_qkv_t *qkv) {
  return (qkv->biases[0].id ? MLX_HAS_Q_BIAS : 0) | (qkv->biases[1].id ? MLX_HAS_K_BIAS : 0) |
         (qkv->biases[2].id ? MLX_HAS_V_BIAS : 0);
}

static const char *append_image(mlx_function_t *g, const mlx_attention_t *a, const mlx_cuda_qkv_t *qkv) {
  const mlx_rope_t *rope = qkv->table ? qkv->table->rope : NULL;
  mlx_text_t definitions = {0};
  const bool has_norms = qkv->norms[0].gain.id != 0;
  mlx_text_puts(&definitions, "NAME=mlx_append\n");
  MLX_DEFINE(&definitions, {"APPEND", 1}, {"BIAS", find_biases(qkv) != 0}, {"HEAD_NORM", has_norms},
             {"TURN", rope != NULL}, {"head_dim", a->head_dim});
  mlx_cuda_define_type(&definitions, "kv", g->options->kv);
  if (rope && rope->dims != a->head_dim) MLX_DEFINE(&definitions, {"rotary", rope->dims});
  if (rope && rope->adjacent) MLX_DEFINE(&definitions, {"adjacent", 1});
  if (has_norms) mlx_cuda_define_float(&definitions, "head_norm_eps", qkv->norms[0].eps);
  if (qkv->value_norm) MLX_DEFINE(&definitions, {"value_norm", 1});
  return mlx_cuda_image(g, MLX_KERNEL_ATTENTION_F32, &definitions);
}

// Latent attention: writes keys to the KV pool, and returns q.
static mlx_built_t append_latent(mlx_function_t *g, const mlx_attention_t *a, const mlx_cuda_latent_t *l) {
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_append_latent\n");
  MLX_DEFINE(&definitions, {"APPEND", 1}, {"LATENT_ROWS", 1}, {"head_dim", a->head_dim});
  mlx_cuda_define_type(&definitions, "kv", g->options->kv);
  MLX_DEFINE(&definitions, {"value_dim", a->value_dim});
  if (l->table->rope->adjacent) MLX_DEFINE(&definitions, {"adjacent", 1});
  mlx_cuda_define_float(&definitions, "head_norm_eps", l->norm.eps);
  if (l->grow_period) mlx_cuda_define_float(&definitions, "grow_beta", l->grow_beta);
  if (l->grow_period) MLX_DEFINE(&definitions, {"grow_period", l->grow_period});
  mlx_extern_t kernel = {
      .symbol = "mlx_append_latent",
      .file = mlx_cuda_image(g, MLX_KERNEL_ATTENTION_F32, &definitions),
      .grid = {a->heads + 1, g->size.tokens, 1},
      .threads = 128,
      .operands = {l->absorbed, l->q, l->row, mlx_cuda_f32(g, "gain_f32", l->norm.gain), l->table->cos,
                   l->table->sin, g->batch, mlx_builder_load(g->b, MLX_ARG_KV)},
      .operand_count = 8,
      .updated_from = 7,
      .result = MLX_TYPE(MLX_F32, g->size.tokens, a->heads * a->head_dim),
      .constant_count = 6};
  mlx_built_t pool = {0};
  if (!kernel.file) return MLX_NO_VALUE;
  mlx_cuda_place_layer(g, a, &kernel);
  kernel.constants[3] = (int32_t)a->heads;
  kernel.constants[4] = (int32_t)l->query_dim;
  kernel.constants[5] = (int32_t)l->start;
  const mlx_built_t queries = mlx_build_extern(g->b, "append", &kernel, &pool);
  if (queries.id) mlx_builder_store(g->b, MLX_ARG_KV, pool);
  return queries;
}

// Writes k and v to the KV pool, unless another layer has done so, and returns q, as attention reads them.
static mlx_built_t append(mlx_function_t *g, const mlx_attention_t *a, const mlx_cuda_qkv_t *qkv) {
  const int64_t kv_heads = qkv->x[1].id ? a->kv_heads : 0;
  mlx_extern_t kernel = {
      .symbol = "mlx_append",
      .file = append_image(g, a, qkv),
      .grid = {mlx_ceil_div((a->heads + 2 * kv_heads) * a->head_dim, 1024), g->size.tokens, 1},
      .threads = 128,
      .operand_count = 3,
      .result = mlx_type_of(qkv->x[0]),
      .constant_count = 5};
  if (!kernel.file) return MLX_NO_VALUE;
  mlx_cuda_place_layer(g, a, &kernel);
  for (int i = 0; i < 3; ++i)  // any buffer stands for keys, values, gains and biases that are missing
    kernel.operands[i] = qkv->x[i].id ? qkv->x[i] : qkv->x[0];
  kernel.constants[3] = (int32_t)a->heads;
  kernel.constants[4] = (int32_t)kv_heads;
  const int32_t biased = find_biases(qkv);
  if (biased) kernel.constants[kernel.constant_count++] = biased;
  for (int i = 0; i < 3 && biased; ++i)
    kernel.operands[kernel.operand_count++] =
        qkv->biases[i].id ? mlx_cuda_f32(g, "bias_f32", qkv->biases[i]) : qkv->x[0];
  for (int i = 0; i < 2 && qkv->norms[0].gain.id; ++i)
    kernel.operands[kernel.operand_count++] =
        qkv->norms[i].gain.id ? mlx_cuda_f32(g, "gain_f32", qkv->norms[i].gain) : qkv->x[0];
  if (qkv->table) {
    kernel.operands[kernel.operand_count++] = qkv->table->cos;
    kernel.operands[kernel.operand_count++] = qkv->table->sin;
  }
  kernel.operands[kernel.operand_count++] = g->batch;
  kernel.updated_from = kernel.operand_count;
  kernel.operands[kernel.operand_count++] = mlx_builder_load(g->b, MLX_ARG_KV);
  mlx_built_t pool = {0};
  mlx_built_t rotated = mlx_build_extern(g->b, "append", &kernel, &pool);
  if (rotated.id) mlx_builder_store(g->b, MLX_ARG_KV, pool);
  return rotated;
}

// The attention launch with 16-bit queries and softmax weights (attend_16) or f32 ones (attend_32).
static mlx_extern_t attend_16(mlx_function_t *g, const mlx_attention_t *a) {
  const attend_tile_t t = choose_attend_tile(a);
  const mlx_cuda_tiles_t tiles = mlx_cuda_attention_tiles(g, a);
  const int64_t keys = t.wk * t.keys, merging = t.wq * t.wk * 8;
  mlx_text_t definitions = define_attention(g, a, true);
  MLX_DEFINE(&definitions, {"wq", t.wq}, {"wk", t.wk}, {"keys", t.keys});
  return (mlx_extern_t){
      .file = mlx_cuda_image(g, MLX_KERNEL_ATTENTION, &definitions),
      .grid = {a->heads, tiles.long_tiles, 1},
      .threads = 32 * t.wq * t.wk,
      .shared_bytes =
          (keys > merging ? keys : merging) * (mlx_attend_width(a->head_dim) + 8) * 8 + t.wq * t.wk * 128};
}

static mlx_extern_t attend_32(mlx_function_t *g, const mlx_attention_t *a, bool is_long) {
  const mlx_attend_f32_tile_t t = choose_f32_tile(g, a, is_long);
  const mlx_cuda_tiles_t tiles = mlx_cuda_attention_tiles(g, a);
  mlx_text_t definitions = define_attention(g, a, is_long);
  MLX_DEFINE(&definitions, {"SPLIT", t.split}, {"step", t.step}, {"queries", t.queries}, {"stages", t.stages},
             {"threads", t.threads});
  if (t.warpgroups) MLX_DEFINE(&definitions, {"warpgroups", 1});
  MLX_DEFINE(&definitions, {"out_16", mlx_module_rounds_attention(g->options)});
  const mlx_kernel_build_t build = {.wgmma = t.warpgroups};
  return (mlx_extern_t){.file = mlx_cuda_build_image(g, MLX_KERNEL_ATTENTION_F32, &definitions, build),
                        .grid = {a->kv_heads, is_long ? tiles.long_tiles : tiles.short_tiles, t.split},
                        .threads = t.threads,
                        .shared_bytes = t.shared_bytes};
}

#define NO_WINDOW (1 << 30)  // larger than every position

// |old|: the result of an earlier launch, whose rows of other segments are kept; MLX_NO_VALUE: a new result.
static mlx_built_t attend(mlx_function_t *g, const mlx_attention_t *a, mlx_extern_t *kernel, mlx_built_t q,
                          const mlx_cuda_qkv_t *qkv, mlx_built_t sinks, mlx_built_t old) {
  const bool narrow = mlx_module_rounds_attention(g->options);
  const mlx_built_t operands[] = {q, mlx_builder_load(g->b, MLX_ARG_KV), g->batch,
                                  g->placed[mlx_attention_kind(g->graph, &g->attention, a)]};
  mlx_built_t updated;
  if (!kernel->file || !q.id) return MLX_NO_VALUE;
  memcpy(kernel->operands, operands, sizeof operands);
  kernel->symbol = attend_symbol(a);
  kernel->operand_count = 4;
  if (sinks.id) kernel->operands[kernel->operand_count++] = sinks;
  kernel->updated_from = kernel->operand_count;
  const int64_t n = g->size.tokens, columns = a->heads * mlx_attention_value_dim(a);
  if (old.id)
    kernel->operands[kernel->operand_count++] = old;
  else if (qkv->into_parts)
    kernel->result = mlx_cuda_parts_type(n, columns);
  else
    kernel->result = MLX_TYPE(narrow ? g->options->kv : MLX_F32, n, columns);
  const int64_t share = a->heads / a->kv_heads;
  mlx_cuda_place_layer(g, a, kernel);
  kernel->constants[3] = (int32_t)share;
  kernel->constants[4] = (int32_t)(uint32_t)(UINT32_MAX / share + 1);  // 2^32 / share rounded up; share 1: 0
  kernel->constants[5] = a->window && a->window < NO_WINDOW ? (int32_t)a->window : NO_WINDOW;
  kernel->constants[6] = qkv->into_parts ? (int32_t)mlx_ceil_div(n, 8) * 8 : 0;
  kernel->constant_count = 7;
  return mlx_build_extern(g->b, "attended", kernel, &updated);
}

static mlx_built_t result_of(const mlx_function_t *g, const mlx_attention_t *a, const mlx_cuda_qkv_t *qkv,
                             mlx_built_t attended) {
  return qkv->into_parts ? mlx_cuda_as_parts(attended, g->size.tokens, a->heads * mlx_attention_value_dim(a))
                         : attended;
}

mlx_built_t mlx_cuda_attention(mlx_function_t *g, const mlx_attention_t *a, const mlx_cuda_qkv_t *qkv) {
  const mlx_built_t sinks =
      qkv->sinks.id ? mlx_build_convert(g->b, "sinks_f32", qkv->sinks, MLX_F32) : MLX_NO_VALUE;
  mlx_extern_t kernel = attend_32(g, a, false);
  const bool changes = qkv->x[1].id || qkv->table || qkv->biases[0].id;
  const mlx_built_t rotated = qkv->latent ? append_latent(g, a, qkv->latent)
                              : changes   ? append(g, a, qkv)
                                          : qkv->x[0];
  mlx_built_t attended = attend(g, a, &kernel, rotated, qkv, sinks, MLX_NO_VALUE);
  if (g->size.tokens < MLX_LONG_STEP) return result_of(g, a, qkv, attended);
  mlx_extern_t long_kernel = rounds(g, a) ? attend_16(g, a) : attend_32(g, a, true);
  attended = attend(g, a, &long_kernel, rotated, qkv, sinks, attended);
  return result_of(g, a, qkv, attended);
}
