// Matches the nodes of a graph against a decoder: the first step of a plan (plan.h).
#ifndef MLXCEL_COMPILER_PLAN_MATCH_H_
#define MLXCEL_COMPILER_PLAN_MATCH_H_

#include "compiler/plan.h"

typedef struct mlx_plan_match {
  const mlx_graph_t *graph;
  const mlx_model_t *model;
  const uint64_t *offsets;  // of the weights in the archive; NULL: offsets need no fixed stride
  mlx_storage_t storage;    // of the weights at those offsets
  size_t *indices;          // [layers][MLX_DECODE_WEIGHTS] of the model's weights; may be NULL
} mlx_plan_match_t;

// Sets the form, the weights and the nodes of |plan|, whose sizes are set. False: the network has another
// form.
bool mlx_plan_match_network(const mlx_plan_match_t *match, mlx_decode_plan_t *plan);

static inline bool mlx_has_post_norms(const mlx_decode_form_t *form) {
  return form->counts[MLX_DECODE_POST_ATTN_NORM] > 0;
}

static inline bool mlx_has_orders(const mlx_decode_form_t *form) {
  return form->counts[MLX_DECODE_QKV_ORDER] || form->counts[MLX_DECODE_O_ORDER] ||
         form->counts[MLX_DECODE_GATE_ORDER];
}

static inline bool mlx_tiles_are_rows(mlx_tiles_t tiles) { return tiles.bits == MLX_DECODE_ROWS; }

#endif  // MLXCEL_COMPILER_PLAN_MATCH_H_
