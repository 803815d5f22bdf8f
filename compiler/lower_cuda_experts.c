// Mixtures of experts: launches of kernels/cuda/experts.cu, and of packed.cu with EXPERTS.
#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"

// One mixture of experts in the function being built.
typedef struct mixture {
  mlx_function_t *g;
  const mlx_experts_t *e;
  int64_t tokens, experts, hidden, ffn;
  mlx_value_t gate, up, down;
  mlx_value_t scores;
  mlx_cuda_norm_t norm;           // one token: of x
  mlx_value_t residual;           // added to the result; may be MLX_NONE
  mlx_value_t routing;            // many tokens: expert and weight of each pair of a token and an expert
  mlx_experts_groups_t groups;    // many tokens
  mlx_quantized_tile_t tiles[2];  // of down, and of gate and up
  mlx_value_t grouped;            // the pairs sorted by expert
} mixture_t;

// Appends NAME and the macros that all kernels share.
static mlx_text_t define(const mixture_t *m, const char *symbol) {
  mlx_text_t d = {0};
  mlx_text_printf(&d, "NAME=%s\n", symbol);
  MLX_DEFINE(&d, {"EXPERTS", m->experts}, {"USED", m->e->used});
  return d;
}

// Calls a kernel of experts.cu, whose last parameter is the number of tokens.
static mlx_value_t call(const mixture_t *m, const char *name, mlx_text_t *definitions, mlx_extern_t kernel) {
  kernel.file = mlx_cuda_image(m->g, MLX_KERNEL_EXPERTS, definitions);
  kernel.updated_from = kernel.operand_count;
  kernel.constants[0] = (int32_t)m->tokens;
  kernel.constant_count = 1;
  return mlx_cuda_call(m->g, name, &kernel);
}

// The batch, if padding can be told from tokens by it: padding then has no experts. Else padding is computed
// like a token.
static mlx_value_t batch_of(const mixture_t *m) {
  return mlx_function_has_fixed_rows(m->g) ? m->g->batch : MLX_NONE;
}

// The macros of experts_choose.cuh.
static void define_choice(const mixture_t *m, mlx_text_t *d) {
  MLX_DEFINE(d, {"SUM_TO_ONE", m->e->sum_to_one});
  if (batch_of(m).id) MLX_DEFINE(d, {"BATCH", 1});
}

static mlx_value_t route(const mixture_t *m) {
  mlx_text_t d = define(m, "mlx_route");
  MLX_DEFINE(&d, {"ROUTE", 1});
  define_choice(m, &d);
  return call(m, "routing", &d,
              (mlx_extern_t){.symbol = "mlx_route",
                             .grid = {mlx_ceil_div(m->tokens, 4), 1, 1},
                             .threads = 128,
                             .operands = {m->scores, batch_of(m)},
                             .operand_count = batch_of(m).id ? 2 : 1,
                             .result = MLX_TYPE(MLX_I32, 2 * m->tokens * m->e->used)});
}

// ----------------------------------------------------------------------------------------------------------
// Products with the matrices of experts

// Appends the macros of packed.cu that all products share. |pair|: gate and up, else down.
static void define_product(const mixture_t *m, mlx_text_t *d, bool pair) {
  MLX_DEFINE(d, {"BIAS", (pair ? m->e->gate_bias : m->e->down_bias).id != 0});
  if (!pair) return;
  MLX_DEFINE(d, {"ACT", m->e->act});
  if (m->e->limit != 0.0) mlx_text_printf(d, "LIMIT=%.9ef\nSLOPE=%.9ef\n", m->e->limit, m->e->slope);
}

// NAME and EXPERTS of the kernels of packed.cu whose sizes are parameters: all models share their images.
static mlx_text_t define_common(const char *symbol) {
  mlx_text_t d = {0};
  mlx_text_printf(&d, "NAME=%s\n", symbol);
  MLX_DEFINE(&d, {"EXPERTS", 1}, {"SIZES", 1});
  return d;
}

static void add_operand(mlx_extern_t *kernel, mlx_value_t value) {
  if (value.id) kernel->operands[kernel->operand_count++] = value;
}

// Calls a product: x, weights, biases, |more|, result.
static mlx_value_t call_product(const mixture_t *m, const char *name, bool pair, mlx_text_t *definitions,
                                mlx_extern_t kernel, mlx_value_t x, const mlx_value_t more[3]) {
  kernel.file = mlx_cuda_image(m->g, MLX_KERNEL_PACKED, definitions);
  add_operand(&kernel, x);
  if (pair) add_operand(&kernel, mlx_cuda_f32(m->g, "gain_f32", m->norm.gain));
  add_operand(&kernel, mlx_cuda_words(m->g, pair ? m->gate : m->down));
  if (pair) add_operand(&kernel, mlx_cuda_words(m->g, m->up));
  add_operand(&kernel, pair ? m->e->gate_bias : m->e->down_bias);
  if (pair) add_operand(&kernel, m->e->up_bias);
  for (int i = 0; i < 3; ++i) add_operand(&kernel, more[i]);
  kernel.updated_from = kernel.operand_count;
  return mlx_cuda_call(m->g, name, &kernel);
}

// Whether a group of 16 rows of |weight| takes few registers when it is unpacked.
static bool is_small(const mixture_t *m, mlx_value_t weight, bool pair) {
  if (!weight.quantized_weight) return false;
  const mlx_tiles_t tiles = m->g->options->kernels->tiles[weight.quantized_weight - 1];
  return tiles.bits == 4 && !tiles.offset && (!pair || tiles.center >= 0);  // center below 0: a table
}

static mlx_value_t gemv(const mixture_t *m, const char *name, mlx_value_t x, bool pair) {
  const mlx_value_t weight = pair ? m->gate : m->down;
  const int64_t n = pair ? m->ffn : m->hidden, k = pair ? m->hidden : m->ffn;
  const int64_t results = pair ? m->tokens * m->e->used : m->tokens;
  const mlx_experts_gemv_t s =
      mlx_experts_gemv(pair, results, m->e->used, n, k, !weight.quantized_weight, is_small(m, weight, pair),
                       mlx_cuda_is_hopper(m->g), m->g->options->kernels->gpu->blocks);
  mlx_text_t d = define(m, "mlx_experts_gemv");
  mlx_cuda_define_weight(m->g, &d, weight);
  define_product(m, &d, pair);
  MLX_DEFINE(&d, {"GEMV", 1}, {"M", 1}, {"PAIR", pair}, {"EACH", s.each}, {"SPLIT", s.split},
             {"RESIDENT", s.resident});
  define_choice(m, &d);
  const mlx_value_t residual = pair ? MLX_NONE : m->residual;
  if (residual.id) MLX_DEFINE(&d, {"RESIDUAL", 1});
  if (pair && m->norm.gain.id) mlx_cuda_define_float(&d, "NORM_EPS", m->norm.eps);
  return call_product(m, name, pair, &d,
                      (mlx_extern_t){.symbol = "mlx_experts_gemv",
                                     .grid = {mlx_ceil_div(n, 16 * s.each), results, s.split},
                                     .threads = 256,
                                     .shared_bytes = s.shared_bytes,
                                     .result = MLX_TYPE(MLX_F32, results, n)},
                      x, (mlx_value_t[3]){m->scores, batch_of(m), residual});
}

static mlx_value_t gemm(const mixture_t *m, const char *name, mlx_value_t parts, bool pair) {
  const mlx_quantized_tile_t t = m->tiles[pair];
  const int64_t n = pair ? m->ffn : m->hidden, k = pair ? m->hidden : m->ffn;
  mlx_text_t d = define_common("mlx_experts_gemm");
  mlx_cuda_define_format(m->g, &d, pair ? m->gate : m->down);
  define_product(m, &d, pair);
  MLX_DEFINE(&d, {"WHOLE_RUNS", k % 128 == 0}, {"EPILOGUE", pair ? MLX_EPILOGUE_GATED : MLX_EPILOGUE_NONE},
             {"BM", t.m}, {"BN", t.n}, {"SPLIT", 1}, {"STAGES", t.stages}, {"WARPS", t.warps});
  return call_product(m, name, pair, &d,
                      (mlx_extern_t){.symbol = "mlx_experts_gemm",
                                     .grid = {m->groups.tiles, mlx_ceil_div(n, t.n), 1},
                                     .threads = 32 * t.warps,
                                     .shared_bytes = mlx_quantized_tile_shared_bytes(t),
                                     .result = MLX_TYPE(MLX_F32, m->groups.rows, n),
                                     .constants = {(int32_t)m->groups.rows, (int32_t)n, (int32_t)k},
                                     .constant_count = 3},
                      parts, (mlx_value_t[3]){m->grouped});
}

// ----------------------------------------------------------------------------------------------------------
// Many tokens: sorted by expert

static mlx_value_t group(const mixture_t *m) {
  mlx_text_t d = define(m, "mlx_group");
  MLX_DEFINE(&d, {"GROUP", 1}, {"TILE", m->tiles[0].m});
  return call(m, "grouped", &d,
              (mlx_extern_t){.symbol = "mlx_group",
                             .grid = {1, 1, 1},
                             .threads = 512,
                             .operands = {m->routing},
                             .operand_count = 1,
                             .result = MLX_TYPE(MLX_I32, m->groups.words)});
}

// The bf16 parts of |x|, a row for each pair. |sorted|: x has these rows already; else it has a row per
// token.
static mlx_value_t cut(const mixture_t *m, mlx_value_t x, bool sorted) {
  const bool rows16 = !(sorted ? m->down : m->gate).quantized_weight;
  const int64_t k = x.dims[1], rows = m->groups.rows;
  mlx_text_t d = define_common("mlx_cut");
  MLX_DEFINE(&d, {"CUT", 1}, {"SORTED", sorted});
  if (rows16) MLX_DEFINE(&d, {"ROWS16", 1});
  return mlx_cuda_call(m->g, "pair_parts",
                       &(mlx_extern_t){.symbol = "mlx_cut",
                                       .file = mlx_cuda_image(m->g, MLX_KERNEL_PACKED, &d),
                                       .grid = {mlx_ceil_div(mlx_ceil_div(k, 512) * 64, 256), rows, 1},
                                       .threads = 256,
                                       .operands = {x, m->grouped},
                                       .operand_count = 2,
                                       .updated_from = 2,
                                       .result = MLX_TYPE(MLX_I32, mlx_quantized_parts_bytes(rows, k) / 4),
                                       .constants = {(int32_t)x.dims[0], (int32_t)k, (int32_t)rows,
                                                     (int32_t)m->groups.list_at, (int32_t)m->e->used},
                                       .constant_count = 5});
}

static mlx_value_t combine(const mixture_t *m, const char *name, mlx_value_t outer) {
  mlx_text_t d = define(m, "mlx_combine");
  MLX_DEFINE(&d, {"COMBINE", 1}, {"TILE", m->tiles[0].m}, {"N", m->hidden});
  if (m->residual.id) MLX_DEFINE(&d, {"RESIDUAL", 1});
  return call(m, name, &d,
              (mlx_extern_t){.symbol = "mlx_combine",
                             .grid = {mlx_ceil_div(m->hidden, 1024), m->tokens, 1},
                             .threads = 256,
                             .operands = {outer, m->routing, m->grouped, m->residual},
                             .operand_count = m->residual.id ? 4 : 3,
                             .result = MLX_TYPE(MLX_F32, m->tokens, m->hidden)});
}

static mlx_value_t compute_many(mixture_t *m, const char *name, mlx_value_t x) {
  for (int pair = 0; pair < 2; ++pair)
    m->tiles[pair] = mlx_experts_tile(m->tokens, m->e->used, m->experts, pair, mlx_cuda_is_hopper(m->g));
  m->groups = mlx_experts_groups(m->tokens, m->e->used, m->experts, m->tiles[0].m);
  m->routing = route(m);
  if (!m->routing.id) return MLX_NONE;
  m->grouped = group(m);
  if (!m->grouped.id) return MLX_NONE;
  const mlx_value_t inner = gemm(m, "inner", cut(m, x, false), true);  // [rows, ffn]
  if (!inner.id) return MLX_NONE;
  const mlx_value_t outer = gemm(m, "outer", cut(m, inner, true), false);  // [rows, hidden]
  return outer.id ? combine(m, name, outer) : MLX_NONE;
}

mlx_value_t mlx_cuda_experts(mlx_function_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                             mlx_cuda_norm_t norm, mlx_value_t scores, mlx_value_t gate, mlx_value_t up,
                             mlx_value_t down, mlx_value_t residual) {
  mixture_t m = {.g = g,
                 .e = e,
                 .tokens = x.dims[0],
                 .experts = scores.dims[1],
                 .hidden = x.dims[1],
                 .ffn = gate.dims[1],
                 .gate = gate,
                 .up = up,
                 .down = down,
                 .scores = scores,
                 .norm = norm,
                 .residual = residual};
  if (!mlx_cuda_uses_gemv(m.tokens)) return compute_many(&m, name, x);
  const mlx_value_t inner = gemv(&m, "inner", x, true);  // [tokens * used, ffn]
  return inner.id ? gemv(&m, name, inner, false) : MLX_NONE;
}

// ----------------------------------------------------------------------------------------------------------
// Routers

mlx_value_t mlx_cuda_scores(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  const int64_t m = x.dims[0], n = weight.dims[0];
  const bool vector = m <= 64;  // measured on an H200: tiles do not fill the GPU
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_scores\n");
  MLX_DEFINE(&d, {"N", n}, {"K", weight.dims[1]});
  if (vector) MLX_DEFINE(&d, {"VECTOR", 1});
  mlx_extern_t kernel = {
      .symbol = "mlx_scores",
      .file = mlx_cuda_image(g, MLX_KERNEL_EXPERTS, &d),
      .grid = {vector ? mlx_ceil_div(n, 4) : mlx_ceil_div(m, 16), vector ? m : mlx_ceil_div(n, 32), 1},
      .threads = vector ? 128 : 256,
      .operands = {x, weight},
      .operand_count = 2,
      .updated_from = 2,
      .result = MLX_TYPE(MLX_F32, m, n),
      .constants = {(int32_t)m},
      .constant_count = 1};
  return mlx_cuda_call(g, name, &kernel);
}
