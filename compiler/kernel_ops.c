// The words of graph/ops.h as linked kernels: definitions, launch shapes and operands of the sources in
// kernels/cuda.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/graph_internal.h"
#include "compiler/kernels.h"
#include "compiler/packed_ops.h"
#include "compiler/weights.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

const char *mlx_kernel_image(mlx_graph_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions) {
  const char *file = NULL;
  mlx_status_t status = mlx_text_finish(definitions);
  if (!status) status = mlx_kernels_image(g->options->kernels, kind, definitions->data, &file);
  mlx_text_clear(definitions);
  if (status) mlx_builder_fail(g->b, status);
  return file;
}

void mlx_define(mlx_text_t *text, const mlx_definition_t *definitions, size_t count) {
  for (size_t i = 0; i < count; ++i)
    mlx_text_printf(text, "%s=%lld\n", definitions[i].name, (long long)definitions[i].value);
}

static mlx_value_t as_16_bits(mlx_graph_t *g, mlx_value_t x) {
  return x.dtype == MLX_F32 ? mlx_build_convert(g->b, "narrow", x, g->options->dtype) : x;
}

// ----------------------------------------------------------------------------------------------------------
// Linear

#define GEMV_ROWS 8

bool mlx_kernel_takes_linear(const mlx_graph_t *g, mlx_value_t weight) {
  return weight.packed || (g->options->kernels && weight.rank == 2 && weight.dtype == g->options->dtype &&
                           weight.dims[1] % 8 == 0);
}

bool mlx_kernel_takes_pair(const mlx_graph_t *g, mlx_value_t gate, mlx_value_t up) {
  if (!gate.packed || !up.packed) return !gate.packed && !up.packed;
  return mlx_tiles_equal(g->options->kernels->tiles[gate.packed - 1],
                         g->options->kernels->tiles[up.packed - 1]);
}

bool mlx_kernel_linear_is_gemv(mlx_value_t x) { return x.dims[0] <= GEMV_ROWS; }

static mlx_value_t gemv(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight) {
  const int64_t n = weight.dims[0], rows = n >= 16384 ? 4 : n >= 8192 ? 2 : 1, warps = 8;
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_gemv\n");
  MLX_DEFINE(&definitions, {"GEMV", 1}, {"M", x.dims[0]}, {"N", n}, {"K", weight.dims[1]},
             {"GEMV_ROWS", rows}, {"GEMV_WARPS", warps});
  const mlx_extern_t kernel = {.symbol = "mlx_gemv",
                               .file = mlx_kernel_image(g, MLX_KERNEL_LINEAR, &definitions),
                               .grid = {ceil_div(n, warps * rows), 1, 1},
                               .threads = 32 * warps,
                               .operands = {x, weight},
                               .operand_count = 2,
                               .updated_from = 2,
                               .result = MLX_TYPE(MLX_F32, x.dims[0], n)};
  return kernel.file ? mlx_build_extern(g->b, name, &kernel, NULL) : (mlx_value_t){0};
}

// How a product is cut between blocks. The thresholds are measurements on an H200; what is not for Hopper (no
// wgmma, no clusters, under 99 KB of shared memory) was timed there too.
typedef struct tile {
  int64_t m, n, split, stages, warps;  // BM, BN, SPLIT, STAGES and WARPS of linear.cu
} tile_t;

bool mlx_kernel_is_hopper(const mlx_graph_t *g) { return g->options->kernels->gpu->kernel_sm == 90; }

static int64_t tile_count(int64_t m, int64_t n, int64_t bm, int64_t bn) {
  return ceil_div(m, bm) * ceil_div(n, bn);
}

static tile_t smallest_tile(int64_t m) { return (tile_t){m <= 16 ? 16 : m <= 32 ? 32 : 64, 64, 1, 4, 4}; }

static tile_t portable_tile(int64_t m, int64_t n, mlx_linear_end_t end, int64_t many) {
  if (m > 64 && tile_count(m, n, 128, 64) >= many)
    return (tile_t){128, 64, 1, end == MLX_LINEAR_SWIGLU ? 3 : 4, 4};
  return smallest_tile(m);
}

// Too few tiles to fill the GPU: clusters of blocks divide K. Of 4 and more they fit only if multiprocessors
// take two blocks each.
static tile_t divided_tile(int64_t m, int64_t n, int64_t k, mlx_linear_end_t end, int64_t processors) {
  tile_t t = smallest_tile(m);
  const int64_t tiles = tile_count(m, n, t.m, t.n);
  while (t.split < 8 && tiles * t.split * 2 <= processors && k >= t.split * 2 * 128) t.split *= 2;
  t.stages = t.m == 64 && t.split >= 4 ? 4 : end == MLX_LINEAR_SWIGLU ? (t.split >= 4 ? 4 : 6) : 8;
  return t;
}

static tile_t hopper_tile(int64_t m, int64_t n, int64_t k, mlx_linear_end_t end, int64_t processors,
                          int64_t many) {
  const bool pair = end == MLX_LINEAR_SWIGLU;
  const tile_t large = {128, 128, 1, pair ? 4 : 6, 8};
  if (m > 64 && tile_count(m, n, 128, 128) >= (pair ? many : processors)) return large;
  if (pair && m > 64 && tile_count(m, n, 128, 64) >= many) return (tile_t){128, 64, 1, 6, 8};
  if (!pair && m > 32 && tile_count(m, n, 64, 128) >= many) {
    if (tile_count(m, n, 64, 128) <= processors) return (tile_t){64, 128, 1, 8, 4};
    return m > 64 && tile_count(m, n, 128, 128) >= many ? large : (tile_t){64, 128, 1, 4, 4};
  }
  return divided_tile(m, n, k, end, processors);
}

static mlx_value_t gemm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                        mlx_value_t other, mlx_linear_end_t end) {
  const int64_t m = x.dims[0], n = weight.dims[0], k = weight.dims[1],
                processors = g->options->kernels->gpu->blocks;
  const int64_t many = processors * 7 / 10;  // so many blocks count as a full GPU
  const tile_t t =
      mlx_kernel_is_hopper(g) ? hopper_tile(m, n, k, end, processors, many) : portable_tile(m, n, end, many);
  const int64_t threads =
      32 * t.warps +
      (mlx_kernel_is_hopper(g) && t.m % 64 == 0 ? 128 : 0);  // with wgmma, four warps only copy
  mlx_text_t definitions = {0};
  mlx_text_puts(&definitions, "NAME=mlx_linear\n");
  MLX_DEFINE(&definitions, {"M", m}, {"N", n}, {"K", k}, {"EPILOGUE", end});
  MLX_DEFINE(&definitions, {"BM", t.m}, {"BN", t.n}, {"SPLIT", t.split}, {"STAGES", t.stages},
             {"WARPS", t.warps}, {"BLOCK", threads});
  const mlx_extern_t kernel = {
      .symbol = "mlx_linear",
      .file = mlx_kernel_image(g, MLX_KERNEL_LINEAR, &definitions),
      .grid = {ceil_div(m, t.m), ceil_div(n, t.n), t.split},
      .threads = threads,
      .shared_bytes = t.stages * ((t.m + t.n * (end == MLX_LINEAR_SWIGLU ? 2 : 1)) * 128 + 16),
      .operands = {as_16_bits(g, x), weight, other},
      .operand_count = end == MLX_LINEAR_PLAIN ? 2 : 3,
      .updated_from = end == MLX_LINEAR_PLAIN ? 2 : 3,
      .result = MLX_TYPE(end == MLX_LINEAR_SWIGLU ? g->options->dtype : MLX_F32, m, n)};
  return kernel.file ? mlx_build_extern(g->b, name, &kernel, NULL) : (mlx_value_t){0};
}

mlx_value_t mlx_kernel_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                              mlx_value_t other, mlx_linear_end_t end) {
  if (weight.packed) return mlx_kernel_packed_linear(g, name, x, weight, other, end);
  return mlx_kernel_linear_is_gemv(x) ? gemv(g, name, x, weight) : gemm(g, name, x, weight, other, end);
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// How attention is cut: a block has wq warps of 16 queries, times wk warps that divide the keys of a step.
typedef struct attend_tile {
  int64_t wq, wk, keys, split;  // WQ, WK, KEYS and SPLIT of attention.cu
} attend_tile_t;

static attend_tile_t choose_attend_tile(const mlx_graph_t *g, const mlx_attention_t *a) {
  const int64_t step = a->head_dim <= 80    ? 128
                       : a->head_dim <= 184 ? 64
                                            : 32;  // keys that fit twice, with their values
  const int64_t tokens = g->tokens, processors = g->options->kernels->gpu->blocks;
  attend_tile_t t = {.wq = tokens <= 16   ? 1
                           : tokens <= 32 ? 2
                                          : 4,
                     .wk = step / 16 < 4 ? step / 16 : 4,
                     .split = 1};
  if (t.wq == 2 && t.wk > step / 32) t.wk = step / 32;
  if (t.wq == 4) t.wk = a->head_dim <= 80 ? 2 : 1;
  t.keys = step / t.wk < 32 ? step / t.wk : 32;
  const int64_t blocks = a->heads * ceil_div(tokens, 16 * t.wq) * g->options->sequences;
  while (mlx_kernel_is_hopper(g) && t.split < 8 && blocks * t.split * 2 <= processors) t.split *= 2;
  return t;
}

// What attention.cu and attention_f32.cu are told both.
static mlx_text_t define_attention(const mlx_graph_t *g, const mlx_attention_t *a, bool turns) {
  const mlx_graph_options_t *o = g->options;
  mlx_text_t definitions = {0};
  mlx_text_printf(&definitions, "APPEND_NAME=mlx_append\nATTEND_NAME=mlx_attend\nSCALE=%.9ef\n", a->scale);
  MLX_DEFINE(&definitions, {"ROWS", o->sequences}, {"TOKENS", g->tokens}, {"HEADS", a->heads},
             {"KV_HEADS", a->kv_heads}, {"HEAD_DIM", a->head_dim});
  MLX_DEFINE(&definitions, {"ROW_PAGES", mlx_graph_sequence_pages(o)},
             {"POOL_PAGES", mlx_graph_pool_pages(o)}, {"TURN", turns});
  return definitions;
}

// Puts k and v into the pool, turned by |table| if there is one; gives q, turned likewise.
static mlx_value_t append(mlx_graph_t *g, const mlx_attention_t *a, const char *file, mlx_value_t q,
                          mlx_value_t k, mlx_value_t v, const mlx_rope_table_t *table) {
  const int64_t m = g->options->sequences * g->tokens;
  mlx_extern_t kernel = {.symbol = "mlx_append",
                         .file = file,
                         .grid = {ceil_div(m * (a->heads + 2 * a->kv_heads) * a->head_dim, 2048), 1, 1},
                         .threads = 256,
                         .operands = {q, k, v},
                         .operand_count = 3,
                         .result = mlx_type_of(q),
                         .constant = (int32_t)a->layer,
                         .has_constant = true};
  if (table) {
    kernel.operands[kernel.operand_count++] = table->cos;
    kernel.operands[kernel.operand_count++] = table->sin;
  }
  const mlx_value_t rest[] = {g->start, g->count, g->pages, mlx_builder_load(g->b, MLX_STATE_KV)};
  for (int i = 0; i < 4; ++i) kernel.operands[kernel.operand_count++] = rest[i];
  kernel.updated_from = kernel.operand_count - 1;
  mlx_value_t pool = {0};
  mlx_value_t turned = mlx_build_extern(g->b, "append", &kernel, &pool);
  mlx_builder_store(g->b, MLX_STATE_KV, pool);
  return turned;
}

// A launch of attend: with 16-bit keys and values, or with f32 ones.
static mlx_extern_t attend_16(mlx_graph_t *g, const mlx_attention_t *a, bool turns) {
  const attend_tile_t t = choose_attend_tile(g, a);
  const int64_t keys = t.wk * t.keys, merging = t.wq * t.wk * 8;
  mlx_text_t definitions = define_attention(g, a, turns);
  MLX_DEFINE(&definitions, {"WQ", t.wq}, {"WK", t.wk}, {"KEYS", t.keys}, {"SPLIT", t.split});
  return (mlx_extern_t){
      .file = mlx_kernel_image(g, MLX_KERNEL_ATTENTION, &definitions),
      .grid = {a->heads, ceil_div(g->tokens, 16 * t.wq), g->options->sequences * t.split},
      .threads = 32 * t.wq * t.wk,
      .shared_bytes = (keys > merging ? keys : merging) * (a->head_dim + 8) * 8 + t.wq * (t.wk + 1) * 128};
}

static mlx_extern_t attend_32(mlx_graph_t *g, const mlx_attention_t *a, bool turns) {
  const int64_t rows = g->options->sequences, processors = g->options->kernels->gpu->blocks;
  const mlx_attend_f32_tile_t t = mlx_attend_f32_tile(rows, g->tokens, a->heads, a->kv_heads, a->head_dim,
                                                      mlx_kernel_is_hopper(g), processors);
  mlx_text_t definitions = define_attention(g, a, turns);
  MLX_DEFINE(&definitions, {"QUERIES", t.queries}, {"STEP", t.step}, {"SPLIT", t.split}, {"STAGES", t.stages},
             {"THREADS", t.threads});
  return (mlx_extern_t){
      .file = mlx_kernel_image(g, MLX_KERNEL_ATTENTION_F32, &definitions),
      .grid = {a->kv_heads, ceil_div(g->tokens * (a->heads / a->kv_heads), t.queries), rows * t.split},
      .threads = t.threads,
      .shared_bytes = t.shared_bytes};
}

mlx_value_t mlx_kernel_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                                 mlx_value_t v, const mlx_rope_table_t *table) {
  mlx_extern_t attend =
      g->options->dtype == MLX_F32 ? attend_32(g, a, table != NULL) : attend_16(g, a, table != NULL);
  if (!attend.file) return (mlx_value_t){0};
  mlx_value_t turned = append(g, a, attend.file, q, k, v, table);
  const mlx_value_t operands[] = {turned, mlx_builder_load(g->b, MLX_STATE_KV), g->start, g->count, g->pages};
  memcpy(attend.operands, operands, sizeof operands);
  attend.symbol = "mlx_attend";
  attend.operand_count = attend.updated_from = 5;
  attend.result = MLX_TYPE(g->options->dtype, g->options->sequences * g->tokens, a->heads * a->head_dim);
  attend.constant = (int32_t)a->layer;
  attend.has_constant = true;
  return mlx_build_extern(g->b, "attended", &attend, NULL);
}

// ----------------------------------------------------------------------------------------------------------
// Decode

#define DECODE_THREADS 288

static void put_weights(mlx_text_t *definitions, const mlx_decode_plan_t *plan) {
  static const char *const names[] = {"EMBED",    "ATTN_NORM", "Q",  "K",    "V",          "O",
                                      "MLP_NORM", "GATE",      "UP", "DOWN", "FINAL_NORM", "HEAD"};
  for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    mlx_text_printf(definitions, "%s_AT=%lluull\n%s_STEP=%lluull\n", names[i],
                    (unsigned long long)plan->places[i].at, names[i],
                    (unsigned long long)plan->places[i].step);
  }
}

// What decode_tiles.cuh is told. All matrices of a role have the same tiles, and q, k and v have, and gate
// and up.
static void put_tiles(mlx_text_t *definitions, const mlx_decode_plan_t *plan) {
  static const struct {
    const char *name;
    mlx_decode_weight_t weight;
  } roles[] = {{"QKV", MLX_DECODE_Q},     {"O", MLX_DECODE_O},       {"GATE", MLX_DECODE_GATE},
               {"DOWN", MLX_DECODE_DOWN}, {"HEAD", MLX_DECODE_HEAD}, {"EMBED", MLX_DECODE_EMBED}};
  bool offsets = false;
  if (!plan->tiles[MLX_DECODE_Q].bits) return;
  for (size_t i = 0; i < sizeof roles / sizeof *roles; ++i) {
    const mlx_tiles_t tiles = plan->tiles[roles[i].weight];
    mlx_text_printf(definitions, "%s_TILES=" MLX_TILES_FORMAT "\n", roles[i].name,
                    MLX_TILES_ARGUMENTS(tiles));
    offsets |= tiles.offset;
  }
  MLX_DEFINE(definitions, {"PACKED", 1}, {"KV_F32", 1}, {"OFFSETS", offsets});
}

static const char *decode_image(mlx_graph_t *g, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &g->model->config;
  mlx_text_t d = {0};
  MLX_DEFINE(&d, {"HIDDEN", c->hidden}, {"FFN", c->ffn}, {"HEADS", c->heads}, {"KV_HEADS", c->kv_heads},
             {"HEAD_DIM", c->head_dim});
  MLX_DEFINE(&d, {"LAYERS", c->layers}, {"VOCAB", c->vocab}, {"PAGE", g->options->page_size},
             {"POOL_PAGES", mlx_graph_pool_pages(g->options)});
  MLX_DEFINE(&d, {"BLOCKS", plan->blocks}, {"SHARED_BYTES", plan->shared_bytes},
             {"SCRATCH_WORDS", plan->scratch_words}, {"SEGMENT", plan->segment});
  mlx_text_printf(&d, "NORM_EPS=%.9ef\nSCALE=%.9ef\n", plan->norm_eps, plan->attention.scale);
  put_weights(&d, plan);
  put_tiles(&d, plan);
  const float *frequencies = plan->rope->frequencies;
  mlx_text_puts(&d, "ROPE_FREQUENCIES=");
  for (int64_t i = 0; i < c->head_dim / 2; ++i)
    mlx_text_printf(&d, "%s%.9ef", i ? "," : "", (double)frequencies[i]);
  mlx_text_puts(&d, "\n");
  return mlx_kernel_image(g, MLX_KERNEL_DECODE, &d);
}

void mlx_kernel_decode(mlx_graph_t *g, const mlx_decode_plan_t *plan, int64_t steps) {
  mlx_builder_t *b = g->b;
  char name[32];
  snprintf(name, sizeof name, "decode_%lld", (long long)steps);
  mlx_builder_begin(
      b, name,
      "Reads the token of the row, if it is active, and goes on from there, one token after the other.");
  mlx_value_t active = mlx_builder_argument(b, "active", MLX_TYPE(MLX_I32, 1));
  mlx_value_t pages =
      mlx_builder_argument(b, "pages", MLX_TYPE(MLX_I32, 1, mlx_graph_sequence_pages(g->options)));
  static const char *const states[] = {MLX_STATE_KV, MLX_STATE_SCRATCH, MLX_STATE_TOKEN, MLX_STATE_POSITION,
                                       MLX_STATE_LOGITS};
  mlx_extern_t kernel = {.symbol = "mlx_decode",
                         .file = decode_image(g, plan),
                         .grid = {plan->blocks, 1, 1},
                         .threads = DECODE_THREADS,
                         .shared_bytes = plan->shared_bytes,
                         .operands = {mlx_builder_load(b, MLX_WHOLE_ARCHIVE), pages, active},
                         .operand_count = 8,
                         .updated_from = 3,
                         .result = MLX_TYPE(MLX_I32, 1, steps),
                         .constant = (int32_t)steps,
                         .has_constant = true};
  for (int i = 0; i < 5; ++i) kernel.operands[3 + i] = mlx_builder_load(b, states[i]);
  mlx_value_t updated[5], tokens = {0};
  if (kernel.file) tokens = mlx_build_extern(b, "chosen", &kernel, updated);
  for (int i = 0; i < 5 && tokens.id; ++i) mlx_builder_store(b, states[i], updated[i]);
  mlx_builder_end(b, &tokens, 1);
}
