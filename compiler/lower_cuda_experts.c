// Mixtures of experts: launches of kernels/cuda/experts.cu, and of the kernels of packed.cu for experts.
#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"

// One mixture of experts in the function being built.
typedef struct mixture {
  mlx_function_t *g;
  const mlx_experts_t *e;
  int64_t layer;
  int64_t tokens, experts, hidden, ffn;
  const mlx_expert_weights_t *w;
  mlx_built_t scores;
  mlx_cuda_norm_t norm;           // one token: of x
  mlx_built_t residual;           // added to the result; may be MLX_NO_VALUE
  mlx_built_t routing;            // many tokens: expert and weight of each pair of a token and an expert
  mlx_experts_groups_t groups;    // many tokens
  mlx_quantized_tile_t tiles[2];  // of down, and of gate and up
  mlx_built_t grouped;            // the pairs sorted by expert
} mixture_t;

// NAME, the macro of a kernel, and the fields that all kernels share whose image is for one number of
// experts.
static mlx_text_t define(const mixture_t *m, const char *symbol, const char *kernel) {
  mlx_text_t d = {0};
  mlx_text_printf(&d, "NAME=%s\n%s=1\n", symbol, kernel);
  MLX_DEFINE(&d, {"experts", m->experts}, {"used", m->e->used});
  return d;
}

// Calls a kernel of experts.cu, whose last parameter is the number of tokens.
static mlx_built_t call(const mixture_t *m, const char *name, mlx_text_t *definitions, mlx_extern_t kernel) {
  kernel.file = mlx_cuda_image(m->g, MLX_KERNEL_EXPERTS, definitions);
  kernel.updated_from = kernel.operand_count;
  kernel.constants[0] = (int32_t)m->tokens;
  kernel.constant_count = 1;
  return mlx_cuda_call(m->g, name, &kernel);
}

// The batch, if padding can be told from tokens by it: padding then has no experts. Else padding is computed
// like a token.
static mlx_built_t batch_of(const mixture_t *m) {
  return mlx_function_has_fixed_rows(m->g) ? m->g->batch : MLX_NO_VALUE;
}

// For experts_choose.cuh and experts_weigh.cuh.
static void define_choice(const mixture_t *m, mlx_text_t *d) {
  const mlx_experts_t *e = m->e;
  MLX_DEFINE(d, {"BATCH", batch_of(m).id != 0});
  if (m->w->choice_bias.id) MLX_DEFINE(d, {"CORRECTION", 1});
  if (m->w->factors.id) MLX_DEFINE(d, {"FACTORS", 1});
  MLX_DEFINE(d, {"sum_to_one", e->sum_to_one});
  if (e->sigmoid) MLX_DEFINE(d, {"sigmoid", 1});
  if (e->sum_eps != 0.0) mlx_cuda_define_float(d, "sum_eps", e->sum_eps);
  if (e->weight_scale != 0.0) mlx_cuda_define_float(d, "weight_scale", e->weight_scale);
  if (e->spread != 0.0) mlx_cuda_define_float(d, "spread", e->spread);
  if (e->groups > 1) MLX_DEFINE(d, {"expert_groups", e->groups}, {"groups_used", e->groups_used});
  if (e->groups > 1 && e->groups_by_best) MLX_DEFINE(d, {"groups_by_best", 1});
}

static void add_operand(mlx_extern_t *kernel, mlx_built_t value) {
  if (value.id) kernel->operands[kernel->operand_count++] = value;
}

// Calls a kernel that also reports the experts of the tokens of the batch: it updates |results|, and its
// first constants say where the routes of the layer are among those of a token.
static mlx_built_t call_and_report(const mixture_t *m, const char *name, mlx_extern_t *kernel) {
  const mlx_graph_routes_t routes = mlx_graph_routes(m->g->graph);
  mlx_built_t results;
  kernel->updated_from = kernel->operand_count;
  if (!batch_of(m).id || !kernel->file) return mlx_cuda_call(m->g, name, kernel);
  add_operand(kernel, mlx_builder_load(m->g->b, MLX_ARG_RESULTS));
  for (size_t i = kernel->constant_count; i-- > 0;) kernel->constants[i + 2] = kernel->constants[i];
  kernel->constants[0] = (int32_t)(routes.layers * routes.used);
  kernel->constants[1] = (int32_t)(m->layer * routes.used);
  kernel->constant_count += 2;
  const mlx_built_t result = mlx_build_extern(m->g->b, name, kernel, &results);
  if (result.id) mlx_builder_store(m->g->b, MLX_ARG_RESULTS, results);
  return result;
}

static mlx_built_t route(const mixture_t *m) {
  mlx_text_t d = define(m, "mlx_route", "ROUTE");
  define_choice(m, &d);
  mlx_extern_t kernel = {.symbol = "mlx_route",
                         .grid = {mlx_ceil_div(m->tokens, 4), 1, 1},
                         .threads = 128,
                         .operands = {m->scores},
                         .operand_count = 1,
                         .result = MLX_TYPE(MLX_I32, 2 * m->tokens * m->e->used)};
  add_operand(&kernel, batch_of(m));
  add_operand(&kernel, m->w->choice_bias);
  add_operand(&kernel, mlx_cuda_f32(m->g, "factors_f32", m->w->factors));
  kernel.file = mlx_cuda_image(m->g, MLX_KERNEL_EXPERTS, &d);
  kernel.constants[0] = (int32_t)m->tokens;
  kernel.constant_count = 1;
  return call_and_report(m, "routing", &kernel);
}

// ----------------------------------------------------------------------------------------------------------
// Products with the matrices of experts

// The macros and fields of packed.cu that all products share. |pair|: gate and up, else down.
static void define_product(const mixture_t *m, mlx_text_t *d, bool pair) {
  MLX_DEFINE(d, {"BIAS", (pair ? m->w->gate_bias : m->w->down_bias).id != 0});
  if (!pair) return;
  mlx_cuda_define_activation(d, "act", m->e->act);
  if (m->e->limit != 0.0) mlx_text_printf(d, "limit=%.9ef\nslope=%.9ef\n", m->e->limit, m->e->slope);
}

// Calls a product: x, weights, biases, |more|, result. |reports|: the experts of tokens.
static mlx_built_t call_product(const mixture_t *m, const char *name, bool pair, bool reports,
                                mlx_extern_t kernel, mlx_built_t x, const mlx_built_t more[5]) {
  add_operand(&kernel, x);
  if (pair) add_operand(&kernel, mlx_cuda_f32(m->g, "gain_f32", m->norm.gain));
  add_operand(&kernel, mlx_cuda_words(m->g, pair ? m->w->gate : m->w->down));
  if (pair) add_operand(&kernel, mlx_cuda_words(m->g, m->w->up));
  add_operand(&kernel, pair ? m->w->gate_bias : m->w->down_bias);
  if (pair) add_operand(&kernel, m->w->up_bias);
  for (int i = 0; i < 5; ++i) add_operand(&kernel, more[i]);
  kernel.updated_from = kernel.operand_count;
  return reports ? call_and_report(m, name, &kernel) : mlx_cuda_call(m->g, name, &kernel);
}

// Whether a group of 16 rows of |weight| takes few registers when it is unpacked.
static bool is_small(const mixture_t *m, mlx_built_t weight, bool pair) {
  if (!weight.quantized_weight) return false;
  const mlx_tiles_t tiles = m->g->options->kernels->tiles[weight.quantized_weight - 1];
  return tiles.bits == 4 && !tiles.offset && (!pair || tiles.center >= 0);  // center below 0: a table
}

static mlx_built_t gemv(const mixture_t *m, const char *name, mlx_built_t x, bool pair) {
  const mlx_built_t weight = pair ? m->w->gate : m->w->down;
  const int64_t n = pair ? m->ffn : m->hidden, k = pair ? m->hidden : m->ffn;
  const int64_t results = pair ? m->tokens * m->e->used : m->tokens;
  const mlx_experts_gemv_t s =
      mlx_experts_gemv(pair, results, m->e->used, n, k, !weight.quantized_weight, is_small(m, weight, pair),
                       mlx_cuda_is_hopper(m->g), m->g->options->kernels->gpu->blocks);
  const mlx_built_t residual = pair ? MLX_NO_VALUE : m->residual;
  const bool normalizes = pair && m->norm.gain.id;
  mlx_text_t d = define(m, "mlx_experts_gemv", "EXPERTS_GEMV");
  MLX_DEFINE(&d, {"PAIR", pair}, {"GAIN", normalizes}, {"RESIDUAL", residual.id != 0}, {"SPLIT", s.split});
  define_choice(m, &d);
  mlx_cuda_define_weight(m->g, &d, weight);
  define_product(m, &d, pair);
  if (normalizes) mlx_cuda_define_float(&d, "norm_eps", m->norm.eps);
  MLX_DEFINE(&d, {"each", s.each}, {"resident", s.resident});
  return call_product(m, name, pair, pair,
                      (mlx_extern_t){.symbol = "mlx_experts_gemv",
                                     .file = mlx_cuda_image(m->g, MLX_KERNEL_PACKED, &d),
                                     .grid = {mlx_ceil_div(n, 16 * s.each), results, s.split},
                                     .threads = 256,
                                     .shared_bytes = s.shared_bytes,
                                     .result = MLX_TYPE(MLX_F32, results, n)},
                      x,
                      (mlx_built_t[5]){m->scores, batch_of(m), m->w->choice_bias,
                                       mlx_cuda_f32(m->g, "factors_f32", m->w->factors), residual});
}

static mlx_built_t gemm(const mixture_t *m, const char *name, mlx_built_t parts, bool pair) {
  const mlx_quantized_tile_t t = m->tiles[pair];
  const int64_t n = pair ? m->ffn : m->hidden, k = pair ? m->hidden : m->ffn;
  const mlx_epilogue_t epilogue = pair ? MLX_EPILOGUE_GATED : MLX_EPILOGUE_NONE;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_experts_gemm\nPRODUCT=1\n");
  MLX_DEFINE(&d, {"EPILOGUE", epilogue}, {"MATRICES", 1}, {"MIXTURE", 1}, {"SPLIT", 1});
  mlx_cuda_define_format(m->g, &d, pair ? m->w->gate : m->w->down);
  MLX_DEFINE(&d, {"whole_runs", k % 128 == 0});
  define_product(m, &d, pair);
  MLX_DEFINE(&d, {"bm", t.m}, {"bn", t.n}, {"stages", t.stages}, {"warps", t.warps});
  return call_product(m, name, pair, false,
                      (mlx_extern_t){.symbol = "mlx_experts_gemm",
                                     .file = mlx_cuda_build_image(m->g, MLX_KERNEL_PACKED, &d,
                                                                  mlx_cuda_tiled_build(t.m, pair)),
                                     .grid = {m->groups.tiles, mlx_ceil_div(n, t.n), 1},
                                     .threads = 32 * t.warps,
                                     .shared_bytes = mlx_quantized_tile_shared_bytes(
                                         t, !(pair ? m->w->gate : m->w->down).quantized_weight),
                                     .result = MLX_TYPE(MLX_F32, m->groups.rows, n),
                                     .constants = {(int32_t)m->groups.rows, (int32_t)n, (int32_t)k},
                                     .constant_count = 3},
                      parts, (mlx_built_t[5]){m->grouped});
}

// ----------------------------------------------------------------------------------------------------------
// Many tokens: sorted by expert

static mlx_built_t group(const mixture_t *m) {
  mlx_text_t d = define(m, "mlx_group", "GROUP");
  MLX_DEFINE(&d, {"tile", m->tiles[0].m});
  return call(m, "grouped", &d,
              (mlx_extern_t){.symbol = "mlx_group",
                             .grid = {1, 1, 1},
                             .threads = 512,
                             .operands = {m->routing},
                             .operand_count = 1,
                             .result = MLX_TYPE(MLX_I32, m->groups.words)});
}

// The parts of |x|, a row for each pair. |sorted|: x has these rows already; else it has a row per
// token.
static mlx_built_t cut(const mixture_t *m, mlx_built_t x, bool sorted) {
  const bool rows16 = !(sorted ? m->w->down : m->w->gate).quantized_weight;
  const int64_t k = x.dims[1], rows = m->groups.rows;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_cut\nSPLIT_INPUT=1\n");
  MLX_DEFINE(&d, {"MIXTURE", 1}, {"GAIN", 0}, {"LAYERNORM", 0}, {"PARTIALS", 0});
  if (rows16) MLX_DEFINE(&d, {"bits", 16});
  MLX_DEFINE(&d, {"sorted", sorted});
  return mlx_cuda_call(m->g, "pair_parts",
                       &(mlx_extern_t){.symbol = "mlx_cut",
                                       .file = mlx_cuda_build_image(m->g, MLX_KERNEL_PACKED, &d,
                                                                    (mlx_kernel_build_t){.cost = 10}),
                                       .grid = {rows, 1, 1},
                                       .threads = 256,
                                       .operands = {x, m->grouped},
                                       .operand_count = 2,
                                       .updated_from = 2,
                                       .result = MLX_TYPE(MLX_I32, mlx_quantized_parts_bytes(rows, k) / 4),
                                       .constants = {(int32_t)x.dims[0], (int32_t)k, (int32_t)rows,
                                                     (int32_t)m->groups.list_at, (int32_t)m->e->used},
                                       .constant_count = 5});
}

static mlx_built_t combine(const mixture_t *m, const char *name, mlx_built_t outer) {
  mlx_text_t d = define(m, "mlx_combine", "COMBINE");
  MLX_DEFINE(&d, {"RESIDUAL", m->residual.id != 0}, {"tile", m->tiles[0].m}, {"n", m->hidden});
  return call(m, name, &d,
              (mlx_extern_t){.symbol = "mlx_combine",
                             .grid = {mlx_ceil_div(m->hidden, 1024), m->tokens, 1},
                             .threads = 256,
                             .operands = {outer, m->routing, m->grouped, m->residual},
                             .operand_count = m->residual.id ? 4 : 3,
                             .result = MLX_TYPE(MLX_F32, m->tokens, m->hidden)});
}

static mlx_built_t compute_many(mixture_t *m, const char *name, mlx_built_t x) {
  for (int pair = 0; pair < 2; ++pair)
    m->tiles[pair] = mlx_experts_tile(m->tokens, m->e->used, m->experts, pair, mlx_cuda_is_hopper(m->g));
  m->groups = mlx_experts_groups(m->tokens, m->e->used, m->experts, m->tiles[0].m);
  m->routing = route(m);
  if (!m->routing.id) return MLX_NO_VALUE;
  m->grouped = group(m);
  if (!m->grouped.id) return MLX_NO_VALUE;
  const mlx_built_t inner = gemm(m, "inner", cut(m, x, false), true);  // [rows, ffn]
  if (!inner.id) return MLX_NO_VALUE;
  const mlx_built_t outer = gemm(m, "outer", cut(m, inner, true), false);  // [rows, hidden]
  return outer.id ? combine(m, name, outer) : MLX_NO_VALUE;
}

mlx_built_t mlx_cuda_experts(mlx_function_t *g, const mlx_node_t *node, const char *name,
                             const mlx_expert_weights_t *weights, mlx_built_t x, mlx_cuda_norm_t norm,
                             mlx_built_t scores, mlx_built_t residual) {
  mixture_t m = {.g = g,
                 .e = &node->experts,
                 .layer = mlx_node_layer(node),
                 .tokens = x.dims[0],
                 .experts = scores.dims[1],
                 .hidden = x.dims[1],
                 .ffn = weights->gate.dims[1],
                 .w = weights,
                 .scores = scores,
                 .norm = norm,
                 .residual = residual};
  if (!mlx_cuda_uses_gemv(m.tokens)) return compute_many(&m, name, x);
  const mlx_built_t inner = gemv(&m, "inner", x, true);  // [tokens * used, ffn]
  return inner.id ? gemv(&m, name, inner, false) : MLX_NO_VALUE;
}

// ----------------------------------------------------------------------------------------------------------
// Routers, other small matrices, and products of heads

mlx_built_t mlx_cuda_scores(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p) {
  const mlx_built_t x = p->x, weight = p->weight;
  const bool of_heads = weight.rank == 3;
  const int64_t m = x.dims[0], heads = of_heads ? weight.dims[0] : 1, n = weight.dims[of_heads];
  const int64_t k = weight.dims[of_heads + 1], x_dim = x.dims[1] / heads,
                tiles = mlx_ceil_div(m, 16) * mlx_ceil_div(n, 32) * heads;
  // Measured on an H200: tiles of one matrix do not fill the GPU. Those of all heads may.
  const bool fills = m > MLX_GEMV_TOKENS && k >= 64 && tiles >= g->options->kernels->gpu->blocks;
  const bool vector = m <= 64 && !(of_heads && fills);
  mlx_text_t d = {0};
  mlx_text_printf(&d, "NAME=mlx_scores\n%s=1\n", vector ? "SCORES_VECTOR" : "SCORES");
  MLX_DEFINE(&d, {"n", n}, {"k", k});
  if (weight.dtype != MLX_F32) mlx_cuda_define_type(&d, "matrix", weight.dtype);
  if (of_heads) MLX_DEFINE(&d, {"heads", heads});
  if (x_dim != k) MLX_DEFINE(&d, {"x_dim", x_dim}, {"x_start", p->first});
  mlx_extern_t kernel = {.symbol = "mlx_scores",
                         .file = mlx_cuda_image(g, MLX_KERNEL_EXPERTS, &d),
                         .grid = {vector ? mlx_ceil_div(n, 4) : mlx_ceil_div(m, 16),
                                  vector ? m : mlx_ceil_div(n, 32) * heads, vector ? heads : 1},
                         .threads = vector ? 128 : 256,
                         .operands = {x, weight},
                         .operand_count = 2,
                         .updated_from = 2,
                         .result = MLX_TYPE(MLX_F32, m, heads * n),
                         .constants = {(int32_t)m},
                         .constant_count = 1};
  return mlx_cuda_call_into(g, name, &kernel, p->into);
}
