// Chooses step sizes and weight layout for a module that links our kernels.
#include "compiler/kernel_plan.h"

#include "base/memory.h"
#include "compiler/cpu_program.h"
#include "compiler/cuda_launch.h"
#include "compiler/launches.h"

// The CPU kernel reads the number of tokens at run time, so that one function serves every step.
static mlx_status_t use_cpu_kernel(const mlx_model_t *model, const mlx_graph_t *graph, mlx_kernels_t *kernels,
                                   mlx_module_options_t *options, const char **out_missing) {
  mlx_cpu_program_t program;
  MLX_TRY(mlx_cpu_program_make(model, graph, options, kernels->cpu_level, &program));
  *out_missing = program.unsupported;
  mlx_cpu_program_clear(&program);
  if (*out_missing) return NULL;
  options->kernels = kernels;
  if (options->layout == MLX_LAYOUT_ROWS) options->layout = MLX_LAYOUT_PANELS;
  mlx_module_options_set_steps((const mlx_step_size_t[]){{512, 256}}, 1, options);
  return NULL;
}

// Matrices of which the decode kernel supports two tile formats, in all layers together.
typedef struct tile_group {
  const mlx_network_plan_t *plan;
  mlx_tiles_t *tiles;  // of each weight
  const int *roles;    // ends with -1
  int64_t layers;
} tile_group_t;

// NULL: the layer has no such matrix.
static mlx_tiles_t *tiles_at(const tile_group_t *g, int64_t layer, int role) {
  const size_t weight = g->plan->weights[layer * MLX_DECODE_WEIGHTS + role];
  return weight == MLX_WEIGHT_ABSENT ? NULL : &g->tiles[weight];
}

// The format of the first matrix. Bits 0: it is in no tiles, or there is none.
static mlx_tiles_t first_tiles(const tile_group_t *g) {
  for (int64_t layer = 0; layer < g->layers; ++layer) {
    for (const int *role = g->roles; *role >= 0; ++role)
      if (tiles_at(g, layer, *role)) return *tiles_at(g, layer, *role);
  }
  return (mlx_tiles_t){0};
}

// The narrowest format that holds the values of all matrices of the group, except those in format |except|.
// Bits 0: there is none, or there are no such matrices.
static mlx_tiles_t common_tiles(const tile_group_t *g, mlx_tiles_t except) {
  mlx_tiles_t common = {0};
  bool any = false;
  for (int64_t layer = 0; layer < g->layers; ++layer) {
    for (const int *role = g->roles; *role >= 0; ++role) {
      if (!tiles_at(g, layer, *role)) continue;
      const mlx_tiles_t tiles = *tiles_at(g, layer, *role);
      if (!tiles.bits) return (mlx_tiles_t){0};
      if (mlx_tiles_equal(tiles, except)) continue;
      common = any ? mlx_tiles_for_both(common, tiles) : tiles;
      if (!common.bits) return common;
      any = true;
    }
  }
  return common;
}

// Gives |tiles| to all matrices of the group, except those in format |except|.
static void assign_tiles(const tile_group_t *g, mlx_tiles_t tiles, mlx_tiles_t except) {
  for (int64_t layer = 0; tiles.bits && layer < g->layers; ++layer) {
    for (const int *role = g->roles; *role >= 0; ++role) {
      mlx_tiles_t *own = tiles_at(g, layer, *role);
      if (own && !mlx_tiles_equal(*own, except)) *own = tiles;
    }
  }
}

// Gate and up are multiplied together; the small matrices of the delta rule have one format.
static bool pairs_differ(const tile_group_t *g) {
  if (g->roles[0] == MLX_DECODE_DELTA_BETA) return true;
  const bool pairs = g->roles[0] == MLX_DECODE_GATE || g->roles[0] == MLX_DECODE_SHARED_GATE;
  for (int64_t layer = 0; pairs && layer < g->layers; ++layer) {
    if (!mlx_tiles_equal(*tiles_at(g, layer, g->roles[0]), *tiles_at(g, layer, g->roles[1]))) return true;
  }
  return false;
}

// Whether the kernels multiply a matrix of experts with these tiles, or as 16-bit rows if it has none.
static bool fits_experts(const mlx_model_t *model, const mlx_module_options_t *options,
                         const mlx_node_t *weight, mlx_tiles_t tiles) {
  if (tiles.bits) return true;
  const mlx_weight_t *stored = &model->weights[weight->weight_index];
  if (mlx_weight_is_quantized(stored) || weight->dims[2] % MLX_CODES) return false;
  return mlx_weight_stored(stored, mlx_module_storage(options)).dtype != MLX_F32;
}

// Gate and up of experts get one format. If a kernel cannot multiply gate, up or down, none of them is in
// tiles, because the generic path reads floats.
static void plan_experts(const mlx_model_t *model, const mlx_graph_t *graph,
                         const mlx_module_options_t *options, mlx_tiles_t *tiles) {
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id), *weights[3];
    if (node->kind != MLX_NODE_EXPERTS) continue;
    const bool gated = node->operands[3] != 0;
    mlx_tiles_t *formats[3];  // gate, up, down
    for (int i = 0; i < 3; ++i) {
      weights[i] = mlx_graph_operand(graph, node, i == 1 && !gated ? 2 : 2 + i);
      formats[i] = &tiles[weights[i]->weight_index];
    }
    if (formats[0]->bits && formats[1]->bits)
      *formats[0] = *formats[1] = mlx_tiles_for_both(*formats[0], *formats[1]);
    bool fits = gated && !formats[0]->bits == !formats[1]->bits && weights[0]->dims[0] <= MLX_EXPERTS_MOST &&
                node->experts.used <= MLX_EXPERTS_MOST_USED && node->experts.groups <= 1 &&
                !node->operands[9];  // factors of the experts
    for (int i = 0; i < 3; ++i) fits = fits && fits_experts(model, options, weights[i], *formats[i]);
    for (int i = 0; i < 3 && !fits; ++i) *formats[i] = (mlx_tiles_t){0};
  }
}

// Chooses the tile format of each weight. If a group has more than two, the first keeps its own and all
// others get the narrowest that holds them.
static mlx_status_t plan_tiles(const mlx_model_t *model, const mlx_graph_t *graph,
                               const mlx_module_options_t *options, mlx_tiles_t *tiles) {
  static const int ungated[] = {MLX_DECODE_UP, -1},
                   groups[][4] = {{MLX_DECODE_Q, MLX_DECODE_K, MLX_DECODE_V, -1},
                                  {MLX_DECODE_O, MLX_DECODE_RECURRENT_OUT, -1},
                                  {MLX_DECODE_GATE, MLX_DECODE_UP, -1},
                                  {MLX_DECODE_DOWN, -1},
                                  {MLX_DECODE_RECURRENT_IN, MLX_DECODE_DELTA_Z, -1},
                                  {MLX_DECODE_DELTA_BETA, MLX_DECODE_DELTA_STEP, -1},
                                  {MLX_DECODE_SHARED_GATE, MLX_DECODE_SHARED_UP, -1},
                                  {MLX_DECODE_SHARED_DOWN, -1}};
  const mlx_tiles_t none = {0};
  for (size_t i = 0; i < model->weight_count; ++i)
    tiles[i] = mlx_weight_stored(&model->weights[i], mlx_module_storage(options)).tiles;
  plan_experts(model, graph, options, tiles);
  mlx_network_plan_t plan;
  MLX_TRY(mlx_network_plan_make(model, graph, &plan));
  const size_t count = sizeof groups / sizeof *groups - (plan.shared ? 0 : 2);
  for (size_t i = 0; plan.fits && i < count; ++i) {
    const int *roles = groups[i][0] == MLX_DECODE_GATE && !plan.gated ? ungated : groups[i];
    const tile_group_t g = {&plan, tiles, roles, model->config.layers};
    const mlx_tiles_t first = first_tiles(&g);
    assign_tiles(&g, common_tiles(&g, first), first);
    if (pairs_differ(&g)) assign_tiles(&g, common_tiles(&g, none), none);
  }
  mlx_network_plan_clear(&plan);
  return NULL;
}

static mlx_status_t use_tiles(const mlx_model_t *model, const mlx_graph_t *graph, mlx_kernels_t *kernels,
                              const mlx_module_options_t *options) {
  mlx_tiles_t *tiles;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *tiles, &tiles));
  mlx_status_t status = plan_tiles(model, graph, options, tiles);
  if (status) {
    mlx_free(tiles);
    return status;
  }
  kernels->weights = model->weights;
  kernels->tiles = tiles;
  return NULL;
}

// *|out_any|: whether any node of the network has a kernel. If none has, linked kernels have no use.
// *|out_missing|: the feature that the first important node on the generic path needs; NULL: there is none.
static mlx_status_t check_kernels(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, bool *out_any,
                                  const char **out_missing) {
  mlx_launches_t launches;
  *out_any = false;
  *out_missing = NULL;
  MLX_TRY(mlx_launches_make(model, graph, options, options->steps[0], NULL, &launches));
  for (size_t i = 0; i < launches.count; ++i) {
    const mlx_launch_t *launch = &launches.list[i];
    *out_any |= launch->kind != MLX_LAUNCH_STABLEHLO && launch->kind != MLX_LAUNCH_WANTED;
    if (!*out_missing) *out_missing = launch->unsupported;
  }
  mlx_launches_clear(&launches);
  return NULL;
}

mlx_status_t mlx_module_use_kernels(const mlx_model_t *model, const mlx_graph_t *graph,
                                    mlx_kernels_t *kernels, mlx_module_options_t *options,
                                    const char **out_missing) {
  if (!kernels->gpu) return use_cpu_kernel(model, graph, kernels, options, out_missing);
  bool any;
  if (options->layout == MLX_LAYOUT_TILES) MLX_TRY(use_tiles(model, graph, kernels, options));
  options->kernels = kernels;
  MLX_TRY(check_kernels(model, graph, options, &any, out_missing));
  if (!any) options->kernels = NULL;
  // Without attention kernels a step has one segment: the sizes of the generic path.
  // A prompt of 512 tokens can be scored in one step (mlxcel eval). The LM head of the 16-bit mode computes
  // all rows that a function has room for.
  const mlx_step_size_t sizes[] = {{1, 1},     {MLX_FEW_SEQUENCES, MLX_FEW_SEQUENCES}, {16, 16}, {64, 64},
                                   {256, 256}, {512, options->narrow ? 64 : 256}};
  const size_t count = sizeof sizes / sizeof *sizes;
  if (!any || !mlx_network_attention(graph, options).kernel) return NULL;
  mlx_decode_plan_t plan;
  bool fits;
  MLX_TRY(mlx_decode_plan_make(model, graph, options, &plan, &fits));
  mlx_module_options_set_steps(sizes, count, options);
  if (plan.few.slices) return NULL;
  for (size_t i = 2; i < count; ++i) options->steps[i - 1] = options->steps[i];
  --options->step_count;
  return NULL;
}
