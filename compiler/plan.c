// Matches the nodes of a graph against a network of Llama's form, and plans the launch of the CUDA decode
// kernel.
#include "compiler/plan.h"

#include "base/memory.h"
#include "compiler/weights.h"

// ----------------------------------------------------------------------------------------------------------
// Matching the nodes, one after the other, against a network of Llama's form

typedef struct matcher {
  const mlx_graph_t *graph;
  int at;  // id of the last matched node
  const mlx_model_t *model;
  const uint64_t *offsets;  // of the weights in the archive; NULL: offsets need no fixed stride
  mlx_storage_t storage;    // of the weights at those offsets
  size_t *indices;          // [layers][MLX_DECODE_WEIGHTS] of the model's weights; may be NULL
  mlx_decode_plan_t *plan;
  bool fits;
} matcher_t;

static bool is_input(mlx_node_kind_t kind) {
  return kind == MLX_NODE_TOKENS || kind == MLX_NODE_POSITIONS || kind == MLX_NODE_WEIGHT;
}

// The next node that computes something. The network fits only if it has this kind and these activations as
// its first operands. Returns its id; 0 if the network does not fit.
static int expect(matcher_t *m, mlx_node_kind_t kind, int first, int second) {
  if (!m->fits) return 0;
  do {
    ++m->at;
  } while (m->at <= (int)m->graph->count && is_input(mlx_graph_node(m->graph, m->at)->kind));
  const mlx_node_t *node = m->at <= (int)m->graph->count ? mlx_graph_node(m->graph, m->at) : NULL;
  m->fits =
      node && node->kind == kind && node->operands[0] == first && (!second || node->operands[1] == second);
  return m->fits ? m->at : 0;
}

static const mlx_node_t *node_at(const matcher_t *m, int id) { return mlx_graph_node(m->graph, id); }

// Records operand |operand| of node |id| as the weight |which| of |layer|. Its shape must be [rows, columns];
// columns 0 means a vector.
static void match_weight(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                         int64_t rows, int64_t columns) {
  mlx_decode_offset_t *offset = &m->plan->offsets[which];
  if (!m->fits) return;
  const mlx_node_t *weight = mlx_graph_operand(m->graph, node_at(m, id), operand);
  m->fits = weight && weight->kind == MLX_NODE_WEIGHT && weight->rank == (columns ? 2 : 1) &&
            weight->dims[0] == rows && (!columns || weight->dims[1] == columns);
  if (!m->fits) return;
  const size_t index = weight->weight_index;
  if (m->indices) m->indices[layer * MLX_DECODE_WEIGHTS + which] = index;
  if (!m->offsets) return;
  const uint64_t at = m->offsets[index];
  const mlx_stored_t stored = mlx_weight_stored(&m->model->weights[index], m->storage);
  const mlx_tiles_t tiles = stored.tiles;
  if (which == MLX_DECODE_EMBED) m->plan->dtype = stored.dtype;
  if (layer == 0) offset->first = at, m->plan->tiles[which] = tiles;
  if (layer == 1) offset->stride = at - offset->first;
  m->fits =
      offset->first + (uint64_t)layer * offset->stride == at &&
      mlx_tiles_equal(tiles, m->plan->tiles[which]) &&
      (tiles.bits || !columns ||
       (m->storage.layout != MLX_LAYOUT_TILES && stored.dtype == m->plan->dtype && stored.dtype != MLX_F32));
}

static void match_number(matcher_t *m, bool first, double *number, double value) {
  if (first) *number = value;
  m->fits = m->fits && *number == value;
}

static int match_norm(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x) {
  const int norm = expect(m, MLX_NODE_RMSNORM, x, 0);
  if (!norm) return 0;
  match_weight(m, which, layer, norm, 1, m->plan->hidden, 0);
  match_number(m, which == MLX_DECODE_ATTN_NORM && layer == 0, &m->plan->norm_eps, node_at(m, norm)->eps);
  return norm;
}

static int match_linear(matcher_t *m, mlx_decode_weight_t which, int64_t layer, int x, int64_t rows,
                        int64_t columns) {
  const int linear = expect(m, MLX_NODE_LINEAR, x, 0);
  match_weight(m, which, layer, linear, 1, rows, columns);
  return linear;
}

static int match_rope(matcher_t *m, bool first, int x) {
  const int id = expect(m, MLX_NODE_ROPE, x, 0);
  if (!id) return 0;
  const mlx_node_t *node = node_at(m, id);
  if (first) m->plan->rope = node->rope;
  m->fits = node->head_dim == m->model->config.head_dim && mlx_rope_equal(node->rope, m->plan->rope) &&
            node->rope->dims == node->head_dim && !node->rope->adjacent && node->rope->scale == 1.0;
  return id;
}

// Softcap, sinks and a sliding window are not supported.
static bool is_full_attention(const mlx_attention_t *a) {
  return !a->window && a->softcap == 0.0 && !a->sinks.id;
}

static int match_attention(matcher_t *m, int64_t layer, int x) {
  const mlx_config_t *c = &m->model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  int h = match_norm(m, MLX_DECODE_ATTN_NORM, layer, x);
  int q = match_linear(m, MLX_DECODE_Q, layer, h, queries, c->hidden);
  int k = match_linear(m, MLX_DECODE_K, layer, h, keys, c->hidden);
  int v = match_linear(m, MLX_DECODE_V, layer, h, keys, c->hidden);
  q = match_rope(m, layer == 0, q);
  k = match_rope(m, false, k);
  const int attention = expect(m, MLX_NODE_ATTENTION, q, k);
  if (!attention) return 0;
  const mlx_attention_t *a = &node_at(m, attention)->attention;
  if (layer == 0) m->plan->attention = *a;
  m->fits = node_at(m, attention)->operands[2] == v && a->layer == layer && a->heads == c->heads &&
            a->kv_heads == c->kv_heads && a->head_dim == c->head_dim &&
            a->scale == m->plan->attention.scale && is_full_attention(a);
  int o = match_linear(m, MLX_DECODE_O, layer, attention, c->hidden, queries);
  return expect(m, MLX_NODE_ADD, x, o);
}

static int match_mlp(matcher_t *m, int64_t layer, int x) {
  const mlx_config_t *c = &m->model->config;
  int h = match_norm(m, MLX_DECODE_MLP_NORM, layer, x);
  int gate = match_linear(m, MLX_DECODE_GATE, layer, h, c->ffn, c->hidden);
  int up = match_linear(m, MLX_DECODE_UP, layer, h, c->ffn, c->hidden);
  int act = expect(m, MLX_NODE_GATED, gate, up);
  m->fits = m->fits && node_at(m, act)->act == MLX_ACT_SILU;
  int down = match_linear(m, MLX_DECODE_DOWN, layer, act, c->hidden, c->ffn);
  return expect(m, MLX_NODE_ADD, x, down);
}

static bool embeds_tokens(const matcher_t *m, int embed) {
  return mlx_graph_operand(m->graph, node_at(m, embed), 1)->kind == MLX_NODE_TOKENS;
}

static void match_network(matcher_t *m) {
  const mlx_config_t *c = &m->model->config;
  // An embed node has its table as operand 0.
  int x = 1;
  while (x <= (int)m->graph->count && node_at(m, x)->kind != MLX_NODE_EMBED) ++x;
  m->at = x;
  m->fits = x <= (int)m->graph->count && embeds_tokens(m, x);
  match_weight(m, MLX_DECODE_EMBED, 0, x, 0, c->vocab, c->hidden);
  for (int64_t layer = 0; layer < c->layers && m->fits; ++layer)
    x = match_mlp(m, layer, match_attention(m, layer, x));
  x = match_norm(m, MLX_DECODE_FINAL_NORM, 0, x);
  x = expect(m, MLX_NODE_WANTED, x, 0);
  x = match_linear(m, MLX_DECODE_HEAD, 0, x, c->vocab, c->hidden);
  expect(m, MLX_NODE_LOGITS, x, 0);
}

// ----------------------------------------------------------------------------------------------------------
// Launch of the CUDA decode kernel. The sizes must match the structs of kernels/cuda/decode.cu, which asserts
// it.

static int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_int(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Shared memory for the activations that rows of |width| columns are multiplied with.
static int64_t staged_bytes(int64_t width) {
  const int64_t segments = ceil_div(width, 1024);
  return 8 * 768 * (segments <= 8 ? min_int(segments, 2) : segments);
}

// Shared memory of attention.
static int64_t attention_bytes(const mlx_config_t *c, mlx_dtype_t kv) {
  const int64_t group = c->heads / c->kv_heads, mixed = 4 * (8 * group * c->head_dim + 16 * group);
  if (kv == MLX_F32 || kv == MLX_Q8_0) return mixed + 4 * (2 + group) * c->head_dim + 2048 + 256;
  return mixed + (group + 3) / 4 * ((c->head_dim + 31) / 32) * 1024 + 4 * c->head_dim + 256;
}

// One stage of the ring buffer that weights stream through, with its barriers.
static int64_t stage_bytes(const mlx_decode_plan_t *plan, bool quantized) {
  if (!quantized) return 8 * (2 * 1024 + 64) + 16;
  int64_t largest = 0;
  for (int i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    if (plan->tiles[i].bits)
      largest = max_int(largest, (int64_t)mlx_tiles_bytes(plan->tiles[i], 1, plan->segment));
  }
  return largest + 16;
}

// Every block needs at least one row of every matrix, or one tile row (8 rows) of a quantized one.
static void plan_launch(const mlx_model_t *model, const mlx_gpu_kind_t *gpu, bool quantized,
                        mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim,
                together = quantized ? MLX_TILE_ROWS : 1;
  const int64_t rows = min_int(min_int(c->hidden, c->ffn), min_int(c->vocab, queries + 2 * keys));
  plan->blocks = min_int(gpu->blocks, ceil_div(rows, together));
  plan->shared_bytes = gpu->shared_bytes;
  plan->segment = !quantized || gpu->shared_bytes < 160 << 10 ? 1024 : 2048;
  const int64_t splits = max_int(1, plan->blocks / c->kv_heads);
  const int64_t choice = plan->blocks * (8 + 4 * (2 + 2 * 64)) + ceil_div(c->vocab, 4) * 4;
  plan->scratch_words = 64 + choice + 3 * c->hidden + 2 * queries + 2 * keys + 2 * c->ffn;
  plan->scratch_words += c->heads * splits * (c->head_dim + 2);
}

// The ring buffer needs one stage more than the kernel requests ahead.
static bool launch_fits(const mlx_model_t *model, mlx_dtype_t kv, bool quantized,
                        const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t staged =
      max_int(staged_bytes(c->hidden), max_int(staged_bytes(c->ffn), staged_bytes(c->heads * c->head_dim)));
  const int64_t work = max_int(attention_bytes(c, kv), staged), unit = quantized ? MLX_CODES : 8;
  return c->hidden % unit == 0 && c->ffn % unit == 0 && c->head_dim % 16 == 0 && c->head_dim <= 256 &&
         (quantized ? 6 : 4) * stage_bytes(plan, quantized) + work + (8 << 10) <= plan->shared_bytes;
}

// ----------------------------------------------------------------------------------------------------------
// Plans

// One launch of the decode kernel reads at most this many bytes: an eighth of a second on an H200.
#define MAX_LAUNCH_BYTES 600000000000u

mlx_status_t mlx_decode_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, mlx_decode_plan_t *out_plan,
                                  bool *out_fits) {
  *out_plan = (mlx_decode_plan_t){.hidden = model->config.hidden, .ffn = model->config.ffn};
  *out_fits = false;
  if (!options->kernels || !options->kernels->gpu) return NULL;
  const bool quantized = options->layout == MLX_LAYOUT_TILES;
  plan_launch(model, options->kernels->gpu, quantized, out_plan);
  uint64_t *offsets = NULL;
  matcher_t matcher = {
      .graph = graph, .model = model, .storage = mlx_module_storage(options), .plan = out_plan, .fits = true};
  mlx_status_t status = mlx_alloc(model->weight_count, sizeof *offsets, &offsets);
  if (!status) {
    const uint64_t bytes = mlx_weights_layout(model, matcher.storage, offsets);  // each step reads all
    out_plan->max_steps = (int64_t)(MAX_LAUNCH_BYTES / bytes);
    matcher.offsets = offsets;
    match_network(&matcher);
    *out_fits = matcher.fits && launch_fits(model, options->kv, quantized, out_plan);
  }
  mlx_free(offsets);
  return status;
}

mlx_status_t mlx_network_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                   mlx_network_plan_t *out_plan) {
  *out_plan = (mlx_network_plan_t){0};
  mlx_decode_plan_t plan = {.hidden = model->config.hidden, .ffn = model->config.ffn};
  matcher_t matcher = {.graph = graph, .model = model, .plan = &plan, .fits = true};
  mlx_status_t status = mlx_alloc((size_t)model->config.layers * MLX_DECODE_WEIGHTS,
                                  sizeof *out_plan->weights, &out_plan->weights);
  matcher.indices = out_plan->weights;
  if (!status) match_network(&matcher);
  if (status) {
    mlx_network_plan_clear(out_plan);
    return status;
  }
  out_plan->fits = matcher.fits;
  return NULL;
}

void mlx_network_plan_clear(mlx_network_plan_t *plan) {
  mlx_free(plan->weights);
  *plan = (mlx_network_plan_t){0};
}
