// Plan match: compares the nodes of a graph with the network that the decode kernel computes, the first step
// of a plan (plan.h). Nodes are found by their operands (plan_network.c); the order of independent nodes does
// not matter.
#ifndef MLXCEL_COMPILER_PLAN_MATCH_H_
#define MLXCEL_COMPILER_PLAN_MATCH_H_

#include "compiler/plan.h"

// The first requirement that does not hold ends the match.
typedef struct mlx_plan_matcher {
  const mlx_graph_t *graph;
  const mlx_model_t *model;
  const uint64_t *offsets;  // of the weights in the archive; NULL: offsets need no fixed stride
  mlx_storage_t storage;    // of the weights at those offsets
  size_t *indices;          // [layers][MLX_DECODE_WEIGHTS] of the model's weights; may be NULL
  mlx_decode_plan_t *plan;
  // Of the match.
  bool *matched;            // node id - 1: the node is one that the kernel computes
  int64_t first_attention;  // the first layer with attention
  bool fused;               // matrices of a layer are parts of one tensor
  bool fits;
} mlx_plan_matcher_t;

// Sets the form, the weights and the nodes of |plan|, whose sizes are set; or plan->misfit if the network has
// another form: then *|out_fits| is false.
mlx_status_t mlx_plan_match_network(const mlx_model_t *model, const mlx_graph_t *graph,
                                    const uint64_t *offsets, mlx_storage_t storage, size_t *indices,
                                    mlx_decode_plan_t *plan, bool *out_fits) MLX_MUST_USE;

// ---- for plan_network.c ----

// If |holds| is false, the network does not fit because of |node|. |why|: static text.
void mlx_plan_require(mlx_plan_matcher_t *m, bool holds, int node, const char *why);
// Records the weight that is operand |operand| of node |id| as the weight |which| of |layer|, from row
// |first| on. The caller has checked its shape.
void mlx_plan_weight(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                     int64_t first, bool is_matrix);
// The same of |rows| rows. The weight must have the shape [total, columns]; columns 0: a vector.
void mlx_plan_rows(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                   int64_t first, int64_t rows, int64_t columns, int64_t total);
// The same of a weight with an element for each expert: matrices [experts, rows, columns], or biases
// [experts, rows] if |columns| is 0.
void mlx_plan_experts_weight(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id,
                             int operand, int64_t rows, int64_t columns);

// A combination of layers or weights in a matched network that the kernel does not have; NULL: there is none.
const char *mlx_plan_unsupported_form(const mlx_plan_matcher_t *m);

static inline bool mlx_has_post_norms(const mlx_decode_form_t *form) {
  return form->counts[MLX_DECODE_POST_ATTN_NORM] > 0;
}

static inline bool mlx_has_orders(const mlx_decode_form_t *form) {
  return form->counts[MLX_DECODE_QKV_ORDER] || form->counts[MLX_DECODE_O_ORDER] ||
         form->counts[MLX_DECODE_GATE_ORDER];
}

// Columns of the matrix that the output of a recurrent layer is multiplied with.
static inline int64_t mlx_recurrent_width(const mlx_decode_form_t *form, int64_t hidden) {
  return form->delta.value_heads ? form->delta.value_heads * form->delta.value_dim : hidden;
}

static inline bool mlx_tiles_are_rows(mlx_tiles_t tiles) { return tiles.bits == MLX_DECODE_ROWS; }

#endif  // MLXCEL_COMPILER_PLAN_MATCH_H_
