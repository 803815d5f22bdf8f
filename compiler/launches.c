// Turns the decisions of fusion.c into a list of launches.
#include "compiler/launches.h"

#include <string.h>

#include "base/memory.h"
#include "compiler/cuda_launch.h"
#include "kernels/cpu/layout.h"

typedef struct lister {
  mlx_fusion_t fusion;
  const mlx_decode_plan_t *few;  // the function uses the kernel for few tokens; NULL: it does not
  mlx_launches_t *out;
  size_t capacity;
  mlx_products_t products;  // owned; CPU
  bool *computed;           // owned; node id - 1: by the launch that is being added
  int split;                // the node that the last SPLIT stored; 0: none
  bool split_rows16;        // in the column order of 16-bit weights
  bool *partial;            // owned; node id - 1: a sum whose partial sums no launch has added yet
  size_t id_count, id_capacity;
} lister_t;

static const mlx_node_t *node_at(const lister_t *l, int id) { return mlx_graph_node(l->fusion.graph, id); }

static const mlx_fused_node_t *state(const lister_t *l, int id) { return &l->fusion.nodes[id - 1]; }

static mlx_stored_t stored_weight(const lister_t *l, const mlx_node_t *node, int nth) {
  const mlx_node_t *weight = mlx_graph_operand(l->fusion.graph, node, nth);
  return mlx_weight_stored(&l->fusion.model->weights[weight->weight_index],
                           mlx_module_storage(l->fusion.options));
}

// The first node that uses node |id|.
static const mlx_node_t *first_user(const lister_t *l, int id) {
  for (int user = id + 1; user <= (int)l->fusion.graph->count; ++user) {
    const mlx_node_t *node = node_at(l, user);
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
      if (node->operands[i] == id) return node;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Nodes of a launch

static bool is_folded_norm(const lister_t *l, int id) {
  return id && node_at(l, id)->kind == MLX_NODE_RMSNORM && state(l, id)->token;
}

static bool is_hopper(const lister_t *l) { return l->fusion.options->kernels->gpu->kernel_sm == 90; }

// Whether |id| is a norm that is computed where its products are: by the kernel for 9 to 16 tokens, or by the
// split before the others.
static bool is_late_norm(const lister_t *l, int id) {
  return node_at(l, id)->kind == MLX_NODE_RMSNORM && node_at(l, id)->dims[0] == MLX_DIM_TOKENS &&
         state(l, id)->parts && is_hopper(l) && l->fusion.tokens <= MLX_FEW_TOKENS &&
         !stored_weight(l, first_user(l, id), 1).tiles.bits;
}

// Marks node |id| and the nodes before it that its launch computes too.
static void mark(const lister_t *l, int id) {
  const mlx_node_t *node = node_at(l, id);
  const int bias = node->kind == MLX_NODE_LINEAR ? mlx_fusion_bias(&l->fusion, id) : 0;
  l->computed[id - 1] = true;
  if (bias) l->computed[bias - 1] = true;
  if (is_folded_norm(l, node->operands[0])) l->computed[node->operands[0] - 1] = true;
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
    if (node->operands[i] && state(l, node->operands[i])->fused) mark(l, node->operands[i]);
}

// Marks the nodes that are computed in the launch of product |id| after it. Returns the number of products.
static int mark_led(const lister_t *l, int id) {
  int products = 1;
  for (int other = id + 1; other <= (int)l->fusion.graph->count; ++other) {
    if (state(l, other)->leader != id) continue;
    products += node_at(l, other)->kind == MLX_NODE_LINEAR;
    mark(l, other);
  }
  return products;
}

static bool takes_part(const lister_t *l, int id) {
  return l->computed[id - 1] && !mlx_node_is_input(node_at(l, id)->kind);
}

// The first marked node of that kind; 0: none.
static int marked(const lister_t *l, mlx_node_kind_t kind) {
  for (int id = 1; id <= (int)l->fusion.graph->count; ++id)
    if (l->computed[id - 1] && node_at(l, id)->kind == kind) return id;
  return 0;
}

static mlx_status_t add_id(lister_t *l, int id) {
  MLX_TRY(mlx_reserve(l->id_count + 1, sizeof *l->out->ids, &l->id_capacity, &l->out->ids));
  l->out->ids[l->id_count++] = id;
  return NULL;
}

// Says that |launch|, the next one, computes node |id|.
static mlx_status_t add_computed(lister_t *l, int id, mlx_launch_t *launch) {
  MLX_TRY(add_id(l, id));
  ++launch->nodes.count;
  if (l->out->first_of[id - 1] < 0) l->out->first_of[id - 1] = (int)l->out->count;
  return NULL;
}

static mlx_status_t append(lister_t *l, mlx_launch_t launch) {
  MLX_TRY(mlx_reserve(l->out->count + 1, sizeof *l->out->list, &l->capacity, &l->out->list));
  l->out->list[l->out->count++] = launch;
  return NULL;
}

// Adds |launch|, which computes the marked nodes. The lists get their addresses at the end.
static mlx_status_t add(lister_t *l, mlx_launch_t launch) {
  const int count = (int)l->fusion.graph->count;
  for (int id = 1; id <= count; ++id)
    if (takes_part(l, id)) MLX_TRY(add_computed(l, id, &launch));
  memset(l->computed, 0, (size_t)count * sizeof *l->computed);
  return append(l, launch);
}

// Adds a launch before the one whose nodes are marked. It computes |norm|; 0: no node.
static mlx_status_t add_before(lister_t *l, mlx_launch_t launch, int norm) {
  if (norm) MLX_TRY(add_computed(l, norm, &launch));
  return append(l, launch);
}

// ----------------------------------------------------------------------------------------------------------
// Kinds

// Long segments have a kernel of their own if attention rounds to 16 bits.
static mlx_kernel_kind_t attention_kernel(const lister_t *l, const mlx_attention_t *a) {
  const bool narrow =
      mlx_module_rounds_attention(l->fusion.options) && a->head_dim <= MLX_ATTEND_WHOLE && !a->value_dim;
  return narrow && l->fusion.tokens >= MLX_LONG_STEP ? MLX_KERNEL_ATTENTION : MLX_KERNEL_ATTENTION_F32;
}

static void describe_product(const lister_t *l, const mlx_node_t *product, mlx_launch_t *out) {
  const mlx_stored_t stored = stored_weight(l, product, 1);
  const int64_t rows = product->dims[0] == MLX_DIM_TOKENS ? l->fusion.tokens : l->fusion.wanted;
  out->kind = MLX_LAUNCH_PRODUCT;
  if (state(l, (int)(product - l->fusion.graph->nodes) + 1)->scores)
    out->kernel = MLX_KERNEL_EXPERTS;
  else if (!stored.tiles.bits && (l->fusion.options->narrow || mlx_cuda_uses_gemv(rows)))
    out->kernel = MLX_KERNEL_LINEAR;
  else
    out->kernel = MLX_KERNEL_PACKED;
}

// Whether |add| is the residual with the partial sums of |product|, which a norm adds: it must be the first
// that uses them.
static bool leaves_partials(const lister_t *l, int add, const mlx_node_t *product) {
  const mlx_node_t *user = first_user(l, add), *weight = mlx_graph_operand(l->fusion.graph, product, 1);
  const mlx_stored_t stored = stored_weight(l, product, 1);
  const mlx_gpu_kind_t *gpu = l->fusion.options->kernels->gpu;
  return user && user->kind == MLX_NODE_RMSNORM && !stored.tiles.bits && stored.dtype != MLX_F32 &&
         !l->fusion.options->narrow && gpu->kernel_sm == 90 && product->dims[0] == MLX_DIM_TOKENS &&
         mlx_partial_split(l->fusion.tokens, weight->dims[0], weight->dims[1], gpu->blocks);
}

// The product whose result the fused node |id| is; NULL: it is none.
static const mlx_node_t *fused_product(const lister_t *l, int id) {
  if (!state(l, id)->fused) return NULL;
  if (node_at(l, id)->kind == MLX_NODE_BIAS && state(l, id)->leader) id = state(l, id)->leader;
  return node_at(l, id)->kind == MLX_NODE_LINEAR ? node_at(l, id) : NULL;
}

// An addition that the kernel of its operand does. False: it is an elementwise op.
static bool describe_add(const lister_t *l, int id, mlx_launch_t *out) {
  const mlx_node_t *node = node_at(l, id);
  for (int i = 0; i < 2; ++i) {
    const int operand = node->operands[i];
    const mlx_node_t *product = fused_product(l, operand);
    const mlx_node_kind_t kind = node_at(l, operand)->kind;
    if (!state(l, operand)->fused || (!product && kind != MLX_NODE_RMSNORM && kind != MLX_NODE_EXPERTS))
      continue;
    out->kind = kind == MLX_NODE_EXPERTS ? MLX_LAUNCH_EXPERTS : MLX_LAUNCH_NORM;
    out->kernel = kind == MLX_NODE_EXPERTS ? MLX_KERNEL_EXPERTS : MLX_KERNEL_ROWS;
    out->epilogue = MLX_EPILOGUE_ADD;
    if (!product) return true;
    describe_product(l, product, out);
    if (state(l, (int)(product - l->fusion.graph->nodes) + 1)->token) {
      out->kind = MLX_LAUNCH_TOKEN_PRODUCTS;
      out->kernel = MLX_KERNEL_PACKED;
    } else if (leaves_partials(l, id, product)) {
      out->epilogue = MLX_EPILOGUE_PARTIAL;
    }
    return true;
  }
  return false;
}

static void describe_norm(const lister_t *l, int id, mlx_launch_t *out) {
  out->kind = MLX_LAUNCH_NORM;
  out->kernel = MLX_KERNEL_ROWS;
  if (!state(l, id)->parts) return;
  const mlx_node_t *user = first_user(l, id);
  out->kernel = MLX_KERNEL_PACKED;
  out->parts = true;
  out->rows16 = !stored_weight(l, user, 1).tiles.bits;
}

static mlx_launch_kind_t recurrent_kind(mlx_node_kind_t kind) {
  if (kind == MLX_NODE_SCAN) return MLX_LAUNCH_SCAN;
  return kind == MLX_NODE_DELTA ? MLX_LAUNCH_DELTA : MLX_LAUNCH_CONVOLVE;
}

static void describe_embed(const lister_t *l, const mlx_node_t *embed, mlx_launch_t *out) {
  out->kind = MLX_LAUNCH_EMBED;
  out->kernel = stored_weight(l, embed, 0).tiles.bits ? MLX_KERNEL_PACKED : MLX_KERNEL_ROWS;
}

// The launch of a node on the kernel path that is no product of a group.
static void describe(const lister_t *l, int id, mlx_launch_t *out) {
  const mlx_node_t *node = node_at(l, id);
  const int first = node->operands[0];
  out->kind = MLX_LAUNCH_ELEMENTS;
  out->kernel = MLX_KERNEL_ROWS;
  switch (node->kind) {
    case MLX_NODE_EMBED: describe_embed(l, node, out); break;
    case MLX_NODE_RMSNORM:
    case MLX_NODE_LAYERNORM:
    case MLX_NODE_HEAD_RMSNORM:
    case MLX_NODE_HEAD_LAYERNORM: describe_norm(l, id, out); break;
    case MLX_NODE_PERMUTE: out->kind = state(l, first)->fused ? MLX_LAUNCH_NORM : MLX_LAUNCH_PERMUTE; break;
    case MLX_NODE_LINEAR: describe_product(l, node, out); break;
    case MLX_NODE_SCALE:
      if (state(l, first)->fused && node_at(l, first)->kind == MLX_NODE_EMBED)
        describe_embed(l, node_at(l, first), out);
      break;
    case MLX_NODE_ADD: describe_add(l, id, out); break;
    case MLX_NODE_GATED:
      if (!fused_product(l, first)) break;
      describe_product(l, node_at(l, first), out);
      out->epilogue = MLX_EPILOGUE_GATED;
      out->parts = state(l, id)->parts;
      break;
    case MLX_NODE_EXPERTS:
      out->kind = MLX_LAUNCH_EXPERTS;
      out->kernel = MLX_KERNEL_EXPERTS;
      break;
    case MLX_NODE_HEAD_COLUMNS: out->kind = MLX_LAUNCH_HEAD_COLUMNS; break;
    case MLX_NODE_HEAD_LINEAR:
      out->kind = MLX_LAUNCH_HEAD_PRODUCT;
      out->kernel = MLX_KERNEL_EXPERTS;
      break;
    case MLX_NODE_CONVOLVE:
    case MLX_NODE_DELTA:
    case MLX_NODE_SCAN:
      out->kind = recurrent_kind(node->kind);
      out->kernel = MLX_KERNEL_RECURRENT;
      break;
    case MLX_NODE_ATTENTION:
      out->kind = MLX_LAUNCH_ATTENTION;
      out->kernel = attention_kernel(l, &node->attention);
      out->parts = state(l, id)->parts;
      break;
    default: break;
  }
}

// Whether a kernel computes node |id|, or it joins the kernel of an operand: a sum or gate in the 16-bit
// mode.
static bool has_kernel(const lister_t *l, int id) {
  const mlx_node_t *node = node_at(l, id);
  if (state(l, id)->kernel) return true;
  for (int i = 0; i < 2; ++i)
    if (node->operands[i] && state(l, node->operands[i])->fused) return true;
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Few tokens

// Whether the kernel for few tokens computes node |id|: all of the layers but RoPE and attention.
static bool is_of_few(const lister_t *l, int id) {
  const mlx_node_kind_t kind = node_at(l, id)->kind;
  return l->few && id > l->few->first_node && id <= l->few->last_node && kind != MLX_NODE_ROPE &&
         kind != MLX_NODE_ATTENTION;
}

// Whether the kernel applies RoPE to the operands of this attention and stores its keys and values, so that
// attention follows at once.
static bool appends(const lister_t *l, int attention) {
  const int q = node_at(l, attention)->operands[0];
  const mlx_node_t *node = node_at(l, q);
  return l->few && l->fusion.options->kv != MLX_Q8_0 && node->kind == MLX_NODE_ROPE && state(l, q)->fused &&
         node->rope->dims == node->head_dim && !node->rope->adjacent;
}

// The rest of layer |layer| - 1, and q, k and v of |layer|; |layer| is the number of layers: only the rest of
// the last one.
static mlx_status_t add_few(lister_t *l, int64_t layer) {
  const mlx_layer_nodes_t *nodes = l->few->nodes;
  const bool last = layer == l->fusion.model->config.layers;
  const int from = layer ? nodes[layer - 1].attention : l->few->first_node,
            to = last ? l->few->last_node + 1 : nodes[layer].attention;
  mlx_launch_t launch = {.kind = last ? MLX_LAUNCH_FEW_LAYER : MLX_LAUNCH_FEW_QKV,
                         .kernel = MLX_KERNEL_FEW,
                         .node = last ? l->few->last_node : nodes[layer].q,
                         .layer = layer,
                         .appended = !last && appends(l, nodes[layer].attention)};
  for (int id = from + 1; id < to; ++id) l->computed[id - 1] = is_of_few(l, id);
  for (int i = 0; i < 2 && launch.appended; ++i)
    l->computed[node_at(l, nodes[layer].attention)->operands[i] - 1] = true;
  return add(l, launch);
}

static mlx_status_t add_few_at(lister_t *l, int id) {
  const int64_t layers = l->fusion.model->config.layers;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (l->few->nodes[layer].q == id) return add_few(l, layer);
  return id == l->few->last_node ? add_few(l, layers) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Parts of x

// Whether the kernel for 9 to 16 tokens computes |product| (FEW of packed.cu). It reads x as f32.
static bool uses_few(const lister_t *l, const mlx_launch_t *launch, const mlx_node_t *product) {
  const mlx_node_t *weight = mlx_graph_operand(l->fusion.graph, product, 1);
  const int x = product->operands[0];
  const bool pair = launch->epilogue == MLX_EPILOGUE_GATED;
  if (!is_hopper(l) || product->dims[0] != MLX_DIM_TOKENS ||
      (!pair && launch->epilogue != MLX_EPILOGUE_ADD) || stored_weight(l, product, 1).tiles.bits ||
      (state(l, x)->parts && !is_late_norm(l, x)))
    return false;
  const int64_t blocks = l->fusion.options->kernels->gpu->blocks;
  return mlx_few_tile(l->fusion.tokens, weight->dims[0], weight->dims[1], pair, blocks).groups != 0;
}

// Adds |launch|, which computes the marked nodes, among them |product|. If it reads x as parts, and neither
// the kernel of x nor the last split stored them, a split comes first.
static mlx_status_t add_with_split(lister_t *l, mlx_launch_t launch, const mlx_node_t *product) {
  const int x = product->operands[0];
  const int64_t rows = product->dims[0] == MLX_DIM_TOKENS ? l->fusion.tokens : l->fusion.wanted;
  const bool late = is_late_norm(l, x), rows16 = !stored_weight(l, product, 1).tiles.bits,
             reads = launch.kernel == MLX_KERNEL_PACKED && launch.kind != MLX_LAUNCH_TOKEN_PRODUCTS &&
                     !mlx_cuda_uses_gemv(rows);
  launch.few = reads && uses_few(l, &launch, product);
  if (launch.epilogue == MLX_EPILOGUE_PARTIAL) l->partial[launch.node - 1] = true;
  if (launch.few && late) l->computed[x - 1] = true;
  if (!reads || launch.few || (state(l, x)->parts && !late)) return add(l, launch);
  launch.split = x;
  if (l->split != x || l->split_rows16 != rows16) {
    const mlx_launch_t split = {.kind = MLX_LAUNCH_SPLIT,
                                .kernel = MLX_KERNEL_PACKED,
                                .node = launch.node,
                                .parts = true,
                                .rows16 = rows16,
                                .split = x};
    MLX_TRY(add_before(l, split, late ? x : 0));
    l->split = x;
    l->split_rows16 = rows16;
  }
  return add(l, launch);
}

// The launch before |launch| that completes the operand of its norm. A kernel that stores parts does it
// itself.
static mlx_status_t complete_operand(lister_t *l, int norm, const mlx_launch_t *launch) {
  bool *partial = &l->partial[node_at(l, norm)->operands[0] - 1];
  if (!*partial) return NULL;
  *partial = false;
  if (launch->parts) return NULL;
  const mlx_launch_t complete = {
      .kind = MLX_LAUNCH_COMPLETE, .kernel = MLX_KERNEL_PACKED, .node = launch->node};
  return add_before(l, complete, norm);
}

// ----------------------------------------------------------------------------------------------------------
// All launches

// The launch of product |id| and of those that share it.
static mlx_status_t add_product(lister_t *l, int id) {
  const bool head = l->few && state(l, (int)l->fusion.graph->count)->leader == id;
  mlx_launch_t launch = {.kernel = MLX_KERNEL_KINDS, .node = id};
  mark(l, id);
  const int products = mark_led(l, id);
  describe_product(l, node_at(l, id), &launch);
  if (head) launch.kernel = MLX_KERNEL_FEW;
  if (head) launch.kind = MLX_LAUNCH_FEW_HEAD;
  if (products > 1) launch.kind = MLX_LAUNCH_PRODUCTS;
  if (products > 1) launch.epilogue = MLX_EPILOGUE_GROUP;
  if (state(l, id)->token) launch.kernel = MLX_KERNEL_PACKED;
  if (state(l, id)->token) launch.kind = MLX_LAUNCH_TOKEN_PRODUCTS;
  return add_with_split(l, launch, node_at(l, id));
}

static mlx_status_t add_node(lister_t *l, int id) {
  const mlx_fused_node_t *node = state(l, id);
  const mlx_kernels_t *kernels = l->fusion.options->kernels;
  mlx_launch_t launch = {
      .kind = MLX_LAUNCH_STABLEHLO, .kernel = MLX_KERNEL_KINDS, .node = id, .unsupported = node->unsupported};
  if (mlx_node_is_input(node_at(l, id)->kind) || node->leader) return NULL;
  if (is_of_few(l, id)) return add_few_at(l, id);
  if (is_folded_norm(l, id) || is_late_norm(l, id) || node->fused) return NULL;
  if (node->kernel && node_at(l, id)->kind == MLX_NODE_LINEAR) return add_product(l, id);
  mark(l, id);
  if (node_at(l, id)->kind == MLX_NODE_WANTED && kernels && kernels->gpu) {
    launch.kind = MLX_LAUNCH_WANTED;
    launch.kernel = MLX_KERNEL_PLACE;
  } else if (has_kernel(l, id)) {
    describe(l, id, &launch);
  }
  if (launch.kind == MLX_LAUNCH_ATTENTION && appends(l, id)) {
    launch.appended = true;
    for (int i = 0; i < 2; ++i) l->computed[node_at(l, id)->operands[i] - 1] = false;
  }
  const int product = marked(l, MLX_NODE_LINEAR), norm = marked(l, MLX_NODE_RMSNORM);
  if (launch.kind == MLX_LAUNCH_PRODUCT) return add_with_split(l, launch, node_at(l, product));
  if (norm) MLX_TRY(complete_operand(l, norm, &launch));
  return add(l, launch);
}

static mlx_status_t add_all(lister_t *l) {
  for (int id = 1; id <= (int)l->fusion.graph->count; ++id) MLX_TRY(add_node(l, id));
  return NULL;
}

static mlx_status_t add_network(lister_t *l) {
  const int count = (int)l->fusion.graph->count;
  for (int id = 1; id <= count; ++id) l->computed[id - 1] = true;
  return add(l, (mlx_launch_t){.kind = MLX_LAUNCH_NETWORK, .kernel = MLX_KERNEL_DECODE, .node = count});
}

// ----------------------------------------------------------------------------------------------------------
// CPU

// A norm whose only user wants some rows is computed for those rows only.
static bool is_norm_of_wanted(const lister_t *l, const mlx_node_t *wanted) {
  const mlx_node_t *x = mlx_graph_operand(l->fusion.graph, wanted, 0);
  return (x->kind == MLX_NODE_RMSNORM || x->kind == MLX_NODE_LAYERNORM) && x->uses == 1;
}

static mlx_launch_kind_t cpu_kind(const lister_t *l, int id) {
  if (l->products.of[id - 1].stage) return MLX_LAUNCH_PRODUCT;
  switch (node_at(l, id)->kind) {
    case MLX_NODE_EMBED: return MLX_LAUNCH_EMBED;
    case MLX_NODE_RMSNORM:
    case MLX_NODE_LAYERNORM:
    case MLX_NODE_HEAD_RMSNORM:
    case MLX_NODE_HEAD_LAYERNORM: return MLX_LAUNCH_NORM;
    case MLX_NODE_ROPE: return MLX_LAUNCH_ROPE;
    case MLX_NODE_COLUMNS: return MLX_LAUNCH_VIEW;
    case MLX_NODE_HEAD_COLUMNS: return MLX_LAUNCH_HEAD_COLUMNS;
    case MLX_NODE_HEAD_LINEAR: return MLX_LAUNCH_HEAD_PRODUCT;
    case MLX_NODE_CONVOLVE:
    case MLX_NODE_DELTA:
    case MLX_NODE_SCAN: return recurrent_kind(node_at(l, id)->kind);
    case MLX_NODE_PERMUTE: return MLX_LAUNCH_PERMUTE;
    case MLX_NODE_ATTENTION: return MLX_LAUNCH_ATTENTION;
    case MLX_NODE_EXPERTS: return MLX_LAUNCH_EXPERTS;
    case MLX_NODE_WANTED: return MLX_LAUNCH_WANTED;
    case MLX_NODE_POOL: return MLX_LAUNCH_POOL;
    default: return MLX_LAUNCH_ELEMENTS;
  }
}

// Marks node |id| and the nodes before it that its product computes.
static void mark_absorbed(const lister_t *l, int id) {
  const mlx_node_t *node = node_at(l, id);
  l->computed[id - 1] = true;
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
    if (node->operands[i] && l->products.absorbed[node->operands[i] - 1]) mark_absorbed(l, node->operands[i]);
}

static mlx_status_t add_cpu_node(lister_t *l, int id) {
  const int last = (int)l->fusion.graph->count;
  const mlx_node_t *node = node_at(l, id);
  if (mlx_node_is_input(node->kind) || l->products.absorbed[id - 1] || id == last) return NULL;
  const mlx_launch_t launch = {
      .kind = cpu_kind(l, id),
      .kernel = MLX_KERNEL_NETWORK,
      .node = id,
      .product = l->products.of[id - 1].stage ? &l->products.of[id - 1] : NULL,
  };
  mark_absorbed(l, id);
  if (id == node_at(l, last)->operands[0] && !mlx_graph_is_encoder(l->fusion.graph))
    l->computed[last - 1] = true;
  return add(l, launch);
}

// Norms that only the wanted rows need are computed with them.
static mlx_status_t add_cpu(lister_t *l) {
  const int count = (int)l->fusion.graph->count;
  for (int id = 1; id <= count; ++id)
    if (node_at(l, id)->kind == MLX_NODE_WANTED && is_norm_of_wanted(l, node_at(l, id)))
      l->products.absorbed[node_at(l, id)->operands[0] - 1] = true;
  for (int id = 1; id <= count; ++id) MLX_TRY(add_cpu_node(l, id));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Inputs and outputs

bool mlx_launch_computes(const mlx_launch_t *launch, int node) {
  for (int i = 0; i < launch->nodes.count; ++i)
    if (launch->nodes.ids[i] == node) return true;
  return false;
}

// Appends what the nodes of each launch read and do not compute, and sets |out_read| of these nodes.
static mlx_status_t add_inputs(lister_t *l, bool *out_read) {
  const int count = (int)l->fusion.graph->count;
  size_t at = 0;
  for (size_t i = 0; i < l->out->count; ++i) {
    mlx_launch_t *launch = &l->out->list[i];
    memset(l->computed, 0, (size_t)count * sizeof *l->computed);
    for (int k = 0; k < launch->nodes.count; ++k) {
      const mlx_node_t *node = node_at(l, l->out->ids[at + (size_t)k]);
      for (int n = 0; n < MLX_NODE_OPERANDS; ++n)
        if (node->operands[n]) l->computed[node->operands[n] - 1] = true;
    }
    for (int k = 0; k < launch->nodes.count; ++k) l->computed[l->out->ids[at++] - 1] = false;
    if (launch->kind == MLX_LAUNCH_SPLIT && !launch->nodes.count) l->computed[launch->split - 1] = true;
    for (int id = 1; id <= count; ++id) {
      if (!l->computed[id - 1]) continue;
      MLX_TRY(add_id(l, id));
      ++launch->inputs.count;
      out_read[id - 1] = true;
    }
  }
  return NULL;
}

// Appends the nodes of each launch that others read, or that are the result of the graph.
static mlx_status_t add_outputs(lister_t *l, const bool *read) {
  size_t at = 0;
  for (size_t i = 0; i < l->out->count; ++i) {
    mlx_launch_t *launch = &l->out->list[i];
    for (int k = 0; k < launch->nodes.count; ++k) {
      const int id = l->out->ids[at++];
      if (!read[id - 1] && id != (int)l->fusion.graph->count) continue;
      MLX_TRY(add_id(l, id));
      ++launch->outputs.count;
    }
  }
  return NULL;
}

// |ids| has the nodes of all launches, then their inputs, then their outputs.
static void set_lists(mlx_launches_t *out) {
  const int *at = out->ids;
  for (size_t i = 0; i < out->count; ++i) at = (out->list[i].nodes.ids = at) + out->list[i].nodes.count;
  for (size_t i = 0; i < out->count; ++i) at = (out->list[i].inputs.ids = at) + out->list[i].inputs.count;
  for (size_t i = 0; i < out->count; ++i) at = (out->list[i].outputs.ids = at) + out->list[i].outputs.count;
}

static mlx_status_t connect(lister_t *l) {
  bool *read;
  MLX_TRY(mlx_alloc(l->fusion.graph->count, sizeof *read, &read));
  mlx_status_t status = add_inputs(l, read);
  if (!status) status = add_outputs(l, read);
  if (!status) set_lists(l->out);
  mlx_free(read);
  return status;
}

static mlx_status_t start(lister_t *l, const mlx_graph_t *graph, mlx_step_size_t size) {
  *l->out = (mlx_launches_t){.graph = graph, .size = size};
  MLX_TRY(mlx_alloc(graph->count, sizeof *l->computed, &l->computed));
  MLX_TRY(mlx_alloc(graph->count, sizeof *l->partial, &l->partial));
  MLX_TRY(mlx_alloc(graph->count, sizeof *l->out->first_of, &l->out->first_of));
  for (size_t i = 0; i < graph->count; ++i) l->out->first_of[i] = -1;
  return NULL;
}

static mlx_status_t finish(lister_t *l, mlx_status_t status) {
  if (!status) status = connect(l);
  mlx_free(l->computed);
  mlx_free(l->partial);
  mlx_fusion_clear(&l->fusion);
  mlx_free(l->products.absorbed);
  l->out->products = l->products.of;
  if (status) mlx_launches_clear(l->out);
  return status;
}

mlx_status_t mlx_launches_make(const mlx_model_t *model, const mlx_graph_t *graph,
                               const mlx_module_options_t *options, mlx_step_size_t size,
                               const mlx_decode_plan_t *plan, mlx_launches_t *out) {
  if (options->kernels && !options->kernels->gpu) return mlx_cpu_launches_make(graph, out);
  lister_t l = {.out = out};
  if (plan && plan->few.slices && size.tokens == MLX_FEW_SEQUENCES) l.few = plan;
  mlx_status_t status = start(&l, graph, size);
  if (!status) status = mlx_fusion_make(model, graph, options, size, &l.fusion);
  if (!status) status = plan && size.tokens == 1 ? add_network(&l) : add_all(&l);
  return finish(&l, status);
}

mlx_status_t mlx_cpu_launches_make(const mlx_graph_t *graph, mlx_launches_t *out) {
  lister_t l = {.fusion = {.graph = graph}, .out = out};
  mlx_status_t status = start(&l, graph, (mlx_step_size_t){MLX_CPU_STEP_TOKENS, MLX_CPU_MAX_WANTED});
  if (!status) status = mlx_products_find(graph, &l.products);
  if (!status) status = add_cpu(&l);
  return finish(&l, status);
}

void mlx_launches_clear(mlx_launches_t *launches) {
  mlx_free(launches->list);
  mlx_free(launches->first_of);
  mlx_free(launches->ids);
  mlx_free(launches->products);
  *launches = (mlx_launches_t){.list = NULL};
}

// ----------------------------------------------------------------------------------------------------------
// Text

const char *mlx_launch_kernel_name(const mlx_launch_t *launch) {
  return launch->kernel == MLX_KERNEL_KINDS ? "stablehlo" : mlx_kernel_kind_name(launch->kernel);
}

// |any_layer|: "layer*" in place of the number of the layer.
static void print_ids(const mlx_graph_t *graph, mlx_node_ids_t list, const char *before, bool any_layer,
                      mlx_text_t *out) {
  for (int i = 0; i < list.count; ++i) {
    const mlx_node_t *node = mlx_graph_node(graph, list.ids[i]);
    const bool layer = any_layer && !strncmp(node->scope, "layer", 5);
    mlx_text_puts(out, i ? ", " : before);
    if (node->kind == MLX_NODE_WEIGHT)
      mlx_text_puts(out, node->weight_name);
    else
      mlx_text_printf(out, "%s%s%s", layer ? "layer*" : node->scope, node->scope[0] ? "." : "", node->name);
  }
}

static void print_head(const mlx_launch_t *launch, mlx_text_t *out) {
  static const char *const kinds[] = {[MLX_LAUNCH_STABLEHLO] = "op",
                                      [MLX_LAUNCH_EMBED] = "embed",
                                      [MLX_LAUNCH_NORM] = "norm",
                                      [MLX_LAUNCH_PERMUTE] = "permute",
                                      [MLX_LAUNCH_ELEMENTS] = "elements",
                                      [MLX_LAUNCH_PRODUCT] = "product",
                                      [MLX_LAUNCH_PRODUCTS] = "products",
                                      [MLX_LAUNCH_TOKEN_PRODUCTS] = "token_products",
                                      [MLX_LAUNCH_EXPERTS] = "experts",
                                      [MLX_LAUNCH_SPLIT] = "split",
                                      [MLX_LAUNCH_COMPLETE] = "complete",
                                      [MLX_LAUNCH_ATTENTION] = "attention",
                                      [MLX_LAUNCH_WANTED] = "wanted",
                                      [MLX_LAUNCH_ROPE] = "rope",
                                      [MLX_LAUNCH_VIEW] = "view",
                                      [MLX_LAUNCH_FEW_QKV] = "qkv",
                                      [MLX_LAUNCH_FEW_LAYER] = "layer",
                                      [MLX_LAUNCH_FEW_HEAD] = "head",
                                      [MLX_LAUNCH_NETWORK] = "network",
                                      [MLX_LAUNCH_HEAD_COLUMNS] = "head_columns",
                                      [MLX_LAUNCH_CONVOLVE] = "convolve",
                                      [MLX_LAUNCH_DELTA] = "delta",
                                      [MLX_LAUNCH_SCAN] = "scan",
                                      [MLX_LAUNCH_POOL] = "pool",
                                      [MLX_LAUNCH_HEAD_PRODUCT] = "head_product"};
  static const char *const epilogues[] = {[MLX_EPILOGUE_NONE] = "",
                                          [MLX_EPILOGUE_ADD] = " add",
                                          [MLX_EPILOGUE_GATED] = " gated",
                                          [MLX_EPILOGUE_GROUP] = " group",
                                          [MLX_EPILOGUE_PARTIAL] = " partial"};
  mlx_text_printf(out, "%s %s%s%s%s%s:", mlx_launch_kernel_name(launch), kinds[launch->kind],
                  epilogues[launch->epilogue], launch->few ? " few" : "", launch->parts ? " parts" : "",
                  launch->appended ? " appended" : "");
}

void mlx_launches_print(const mlx_launches_t *launches, mlx_text_t *out) {
  for (size_t i = 0; i < launches->count; ++i) {
    const mlx_launch_t *launch = &launches->list[i];
    print_head(launch, out);
    print_ids(launches->graph, launch->outputs, " ", false, out);
    print_ids(launches->graph, launch->nodes, " = ", false, out);
    print_ids(launches->graph, launch->inputs, " <- ", false, out);
    mlx_text_puts(out, "\n");
  }
}

// The text of launch |nth| without the number of its layer. A network has all nodes: none is named.
static mlx_status_t summarize(const mlx_launches_t *launches, size_t nth, mlx_text_t *out) {
  const mlx_launch_t *launch = &launches->list[nth];
  mlx_text_clear(out);
  print_head(launch, out);
  if (launch->kind == MLX_LAUNCH_NETWORK)
    mlx_text_puts(out, " all ops");
  else
    print_ids(launches->graph, launch->nodes.count ? launch->nodes : launch->inputs, " ", true, out);
  return mlx_text_finish(out);
}

mlx_status_t mlx_launches_summarize(const mlx_launches_t *launches,
                                    void (*line)(void *user, int count, const char *text), void *user) {
  mlx_text_t own = {0}, other = {0};
  bool *done;
  MLX_TRY(mlx_alloc(launches->count, sizeof *done, &done));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < launches->count && !status; ++i) {
    int count = 1;
    if (done[i]) continue;
    status = summarize(launches, i, &own);
    for (size_t k = i + 1; k < launches->count && !status; ++k) {
      if (done[k] || launches->list[k].kind != launches->list[i].kind) continue;
      status = summarize(launches, k, &other);
      if (status || strcmp(own.data, other.data)) continue;
      done[k] = true;
      ++count;
    }
    if (!status) line(user, count, own.data);
  }
  mlx_text_clear(&own);
  mlx_text_clear(&other);
  mlx_free(done);
  return status;
}
