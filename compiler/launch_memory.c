// The memory that the values of a function take, from its launches.
#include "base/memory.h"
#include "base/numbers.h"
#include "compiler/cuda_launch.h"
#include "compiler/launches.h"

typedef struct account {
  const mlx_launches_t *launches;
  const mlx_gpu_kind_t *gpu;  // NULL: generic path
  size_t *last;               // owned; node id - 1: the last launch that reads it
  int64_t now, most;          // bytes
} account_t;

static const mlx_node_t *node_at(const account_t *a, int id) {
  return mlx_graph_node(a->launches->graph, id);
}

static int64_t rows_of(const account_t *a, const mlx_node_t *node) {
  return node->dims[0] == MLX_DIM_WANTED   ? a->launches->size.wanted
         : node->dims[0] == MLX_DIM_TOKENS ? a->launches->size.tokens
                                           : node->dims[0];
}

static int64_t value_bytes(const account_t *a, int id, bool parts) {
  const mlx_node_t *node = node_at(a, id);
  const int64_t rows = rows_of(a, node), columns = node->rank > 1 ? node->dims[1] : 1;
  return parts ? mlx_quantized_parts_bytes(rows, columns) : rows * columns * (int64_t)sizeof(float);
}

// ----------------------------------------------------------------------------------------------------------
// What a launch takes beside its outputs

// The rows of the experts of many tokens, sorted by expert: x as parts and the products with gate and up,
// then these as parts and the products with down.
static int64_t expert_bytes(const account_t *a, const mlx_node_t *node) {
  const mlx_node_t *weight = mlx_graph_operand(a->launches->graph, node, 2);  // [experts, ffn, hidden]
  const int64_t tokens = rows_of(a, node), used = node->experts.used, experts = weight->dims[0],
                ffn = weight->dims[1], hidden = node->dims[1], word = sizeof(float);
  if (mlx_cuda_uses_gemv(tokens)) return tokens * used * ffn * word;
  const mlx_quantized_tile_t tile = mlx_experts_tile(tokens, used, experts, false, a->gpu->kernel_sm == 90);
  const mlx_experts_groups_t groups = mlx_experts_groups(tokens, used, experts, tile.m);
  const int64_t rows = groups.rows, inner = rows * ffn * word,
                first = mlx_quantized_parts_bytes(rows, hidden) + inner,
                second = mlx_quantized_parts_bytes(rows, ffn) + mlx_max(inner, rows * hidden * word);
  return mlx_max(first, second) + groups.words * word;
}

// Bytes that only the launch needs.
static int64_t temporary_bytes(const account_t *a, const mlx_launch_t *launch) {
  if (launch->kind == MLX_LAUNCH_ATTENTION && a->gpu) {  // rotated queries
    const mlx_attention_t *form = &node_at(a, launch->node)->attention;
    return a->launches->size.tokens * form->heads * form->head_dim * (int64_t)sizeof(float);
  }
  for (int i = 0; launch->kind == MLX_LAUNCH_EXPERTS && a->gpu && i < launch->nodes.count; ++i)
    if (node_at(a, launch->nodes.ids[i])->kind == MLX_NODE_EXPERTS)
      return expert_bytes(a, node_at(a, launch->nodes.ids[i]));
  return 0;
}

// Bytes that the launches up to |*out_last| need: the parts of x, until the last launch that reads them, and
// the partial sums of a product, until the launch that adds them.
static int64_t buffer_bytes(const account_t *a, size_t nth, size_t *out_last) {
  const mlx_launch_t *list = a->launches->list, *launch = &list[nth];
  *out_last = nth;
  if (launch->kind == MLX_LAUNCH_SPLIT) {
    for (size_t i = nth + 1; i < a->launches->count && list[i].kind != MLX_LAUNCH_SPLIT; ++i)
      if (list[i].split == launch->split) *out_last = i;
    return value_bytes(a, launch->split, true);
  }
  if (launch->epilogue != MLX_EPILOGUE_PARTIAL) return 0;
  for (size_t i = nth + 1; i < a->launches->count && *out_last == nth; ++i)
    for (int k = 0; k < list[i].inputs.count; ++k)
      if (list[i].inputs.ids[k] == launch->node) *out_last = i;
  for (int i = 0; i < launch->nodes.count; ++i) {
    const mlx_node_t *node = node_at(a, launch->nodes.ids[i]);
    if (node->kind != MLX_NODE_LINEAR) continue;
    const mlx_node_t *weight = mlx_graph_operand(a->launches->graph, node, 1);
    return mlx_partial_split(rows_of(a, node), weight->dims[0], weight->dims[1], a->gpu->blocks) *
           value_bytes(a, launch->nodes.ids[i], false);
  }
  return 0;
}

// ----------------------------------------------------------------------------------------------------------
// All launches

// Whether output |id| of a launch is memory of its own. A norm that other kernels compute by themselves has
// no value; logits are an argument of the function.
static bool has_value(const account_t *a, const mlx_launch_t *launch, int id) {
  if (id == (int)a->launches->graph->count) return false;
  return node_at(a, id)->kind != MLX_NODE_RMSNORM || launch->kind == MLX_LAUNCH_NORM ||
         launch->kind == MLX_LAUNCH_STABLEHLO;
}

// Only the node that names a launch can be stored as parts.
static int64_t output_bytes(const account_t *a, const mlx_launch_t *launch, int id) {
  return has_value(a, launch, id) ? value_bytes(a, id, launch->parts && id == launch->node) : 0;
}

static void find_last_readers(const account_t *a) {
  for (size_t i = 0; i < a->launches->count; ++i) {
    const mlx_launch_t *launch = &a->launches->list[i];
    for (int k = 0; k < launch->outputs.count; ++k) a->last[launch->outputs.ids[k] - 1] = i;
    for (int k = 0; k < launch->inputs.count; ++k) a->last[launch->inputs.ids[k] - 1] = i;
  }
}

// |freed|: bytes to free after each launch.
static void count(account_t *a, int64_t *freed) {
  for (size_t i = 0; i < a->launches->count; ++i) {
    const mlx_launch_t *launch = &a->launches->list[i];
    size_t last;
    const int64_t buffer = buffer_bytes(a, i, &last);
    a->now += buffer;
    freed[last] += buffer;
    for (int k = 0; k < launch->outputs.count; ++k) {
      const int id = launch->outputs.ids[k];
      const int64_t bytes = output_bytes(a, launch, id);
      a->now += bytes;
      freed[a->last[id - 1]] += bytes;
    }
    a->most = mlx_max(a->most, a->now + temporary_bytes(a, launch));
    a->now -= freed[i];
  }
}

mlx_status_t mlx_launches_bytes(const mlx_launches_t *launches, const mlx_module_options_t *options,
                                int64_t *out_bytes) {
  account_t a = {.launches = launches, .gpu = options->kernels ? options->kernels->gpu : NULL};
  int64_t *freed = NULL;
  *out_bytes = 0;
  if (options->kernels && !options->kernels->gpu) return NULL;
  MLX_TRY(mlx_alloc(launches->graph->count, sizeof *a.last, &a.last));
  mlx_status_t status = mlx_alloc(launches->count, sizeof *freed, &freed);
  if (!status) {
    find_last_readers(&a);
    count(&a, freed);
    *out_bytes = a.most;
  }
  mlx_free(freed);
  mlx_free(a.last);
  return status;
}
