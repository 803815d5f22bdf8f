// Launches of kernels/cuda/place.cu and sample.cu: configuration, grid and operands.
#include "compiler/lower_place.h"

#include <string.h>

#include "compiler/cuda_image.h"
#include "compiler/cuda_launch.h"
#include "compiler/lower_cuda.h"
#include "kernels/step.h"

// Calls the kernel for the tiles |t|.
static mlx_built_t place(mlx_function_t *g, const mlx_cuda_tiles_t t) {
  mlx_builder_t *b = g->b;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_place\n");
  MLX_DEFINE(&d, {"PLACE", 1});
  MLX_DEFINE(&d, {"short_queries", t.short_queries}, {"short_share", t.share},
             {"long_queries", t.long_queries}, {"long_share", t.long_share});
  const mlx_extern_t kernel = {
      .symbol = "mlx_place",
      .file = mlx_cuda_image(g, MLX_KERNEL_PLACE, &d),
      .grid = {1, 1, 1},
      .threads = 512,
      .operands = {g->batch, mlx_builder_load(b, MLX_ARG_HISTORY)},
      .operand_count = 2,
      .updated_from = 1,
      .result = MLX_TYPE(MLX_I32, t.ids_at + g->size.tokens),
      .constants = {(int32_t)g->size.tokens, (int32_t)t.short_tiles, (int32_t)t.long_tiles,
                    (int32_t)t.long_from, (int32_t)g->model->config.vocab},
      .constant_count = 5};
  mlx_built_t history;
  if (!kernel.file) return MLX_NO_VALUE;
  const mlx_built_t placed = mlx_build_extern(b, "placed", &kernel, &history);
  if (placed.id) mlx_builder_store(b, MLX_ARG_HISTORY, history);
  return placed;
}

// The first kind of heads whose tiles are those of |kind|.
static int kind_with_tiles(const mlx_cuda_tiles_t *tiles, int kind) {
  int first = 0;
  while (memcmp(&tiles[first], &tiles[kind], sizeof *tiles)) ++first;
  return first;
}

void mlx_cuda_place_tokens(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  mlx_cuda_tiles_t tiles[MLX_HEAD_KINDS];
  mlx_function_read_positions(g);
  mlx_builder_comment(b, "token IDs, and the tiles of attention");
  for (int kind = 0; kind < g->attention.kinds; ++kind) {
    const int id = g->attention.kind_nodes[kind];
    tiles[kind] =
        mlx_cuda_attention_tiles(g, id ? &mlx_graph_node(g->graph, id)->attention : &g->attention.form);
    const int first = kind_with_tiles(tiles, kind);
    g->placed[kind] = first < kind ? g->placed[first] : place(g, tiles[kind]);
    if (!g->placed[kind].id) return;
  }
  g->ids = mlx_build_words(b, "token_ids", g->placed[0], tiles[0].ids_at, g->size.tokens);
}

mlx_built_t mlx_cuda_pick(mlx_function_t *g, mlx_built_t x) {
  mlx_builder_t *b = g->b;
  mlx_text_t d = {0};
  mlx_text_puts(&d, "NAME=mlx_pick\n");
  const mlx_extern_t kernel = {.symbol = "mlx_pick",
                               .file = mlx_cuda_image(g, MLX_KERNEL_PLACE, &d),
                               .grid = {g->size.wanted, 1, 1},
                               .threads = 256,
                               .operands = {x, g->batch, mlx_builder_load(b, MLX_ARG_HIDDEN)},
                               .operand_count = 3,
                               .updated_from = 2,
                               .result = MLX_TYPE(MLX_F32, g->size.wanted, x.dims[1]),
                               .constants = {(int32_t)x.dims[1]},
                               .constant_count = 1};
  mlx_built_t hidden;
  if (!kernel.file) return MLX_NO_VALUE;
  const mlx_built_t picked = mlx_build_extern(b, "wanted", &kernel, &hidden);
  if (picked.id) mlx_builder_store(b, MLX_ARG_HIDDEN, hidden);
  return picked;
}

bool mlx_cuda_samples(const mlx_function_t *g) {
  const mlx_kernels_t *kernels = g->options->kernels;
  return kernels && kernels->gpu && g->model->config.vocab <= MLX_MAX_SAMPLED_VOCAB;
}

void mlx_cuda_sample(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  mlx_text_t d = {0};  // no definitions
  mlx_builder_scope(b, "");
  mlx_builder_comment(b, "sampling");
  const mlx_extern_t kernel = {
      .symbol = "mlx_sample",
      .file = mlx_cuda_image(g, MLX_KERNEL_SAMPLE, &d),
      .grid = {g->size.wanted, 1, 1},
      .threads = 1024,
      .operands = {g->batch, mlx_builder_load(b, MLX_ARG_LOGITS), mlx_builder_load(b, MLX_ARG_HISTORY),
                   mlx_builder_load(b, MLX_ARG_RESULTS)},
      .operand_count = 4,
      .updated_from = 2,
      .constants = {(int32_t)g->model->config.vocab},
      .constant_count = 1};
  mlx_built_t updated[2];
  if (!kernel.file || !mlx_build_extern(b, "sampled", &kernel, updated).id) return;
  mlx_builder_store(b, MLX_ARG_HISTORY, updated[0]);
  mlx_builder_store(b, MLX_ARG_RESULTS, updated[1]);
}
