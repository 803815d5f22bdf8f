// Graph: the network of a model as typed nodes. An architecture builds it once (graph/ops.h); every back end
// reads it.
//
// How a back end walks a graph:
//
//   for (int id = 1; id <= (int)graph->count; ++id) {
//     const mlx_node_t *node = mlx_graph_node(graph, id);
//     ... node->kind, node->operands, the attributes of that kind ...
//   }
//
// Nodes are in an order in which they can be executed: every operand of a node has a smaller id. The first
// nodes are the weights, in the order of the model's list: weight i has id i + 1. MLX_NODE_TOKENS follows,
// then MLX_NODE_POSITIONS and MLX_NODE_TYPES if a node needs them. The last node is MLX_NODE_LOGITS.
// mlx_graph_finish sorts the nodes between by their operands (mlx_graph_sort), so that the order in which an
// architecture calls independent ops does not matter. Operand 0 means "none"; the enum below lists the
// operands of each kind in order. node->uses counts the operands that refer to a node: a back end may merge a
// node with its only user if uses == 1.
//
// The number of tokens of a step is not part of the graph. Dimension MLX_DIM_TOKENS stands for all tokens of
// a step (M = sequences x tokens, flattened), MLX_DIM_WANTED for the tokens whose logits are wanted. All
// other dimensions are numbers. Activations and weights have dtype f32 here, except column orders, which are
// i32: a graph says what is computed, and compiler/storage.h decides how a weight is stored.
//
// A graph owns its nodes and borrows the names of weights and the ropes: the model must outlive it. It is
// immutable after mlx_graph_finish, and then any number of threads may read it.
#ifndef MLXCEL_GRAPH_GRAPH_H_
#define MLXCEL_GRAPH_GRAPH_H_

#include <stddef.h>

#include "base/text.h"
#include "graph/ops.h"

#define MLX_DIM_TOKENS (-1)
#define MLX_DIM_WANTED (-2)
#define MLX_NODE_OPERANDS 10

typedef enum mlx_node_kind {
  MLX_NODE_TOKENS,          // () -> i32 [M]: token ids
  MLX_NODE_POSITIONS,       // () -> i32 [M]: position of each token in its sequence
  MLX_NODE_TYPES,           // () -> i32 [M]: type of each token: 0, or 1 for the second text of a pair
  MLX_NODE_WEIGHT,          // () -> the weight |weight_index|
  MLX_NODE_EMBED,           // (table [rows, width], indices i32 [M]) some -> [M, width]
  MLX_NODE_RMSNORM,         // (x, weight) eps
  MLX_NODE_LAYERNORM,       // (x, weight or none, bias or none) eps
  MLX_NODE_HEAD_RMSNORM,    // (x, weight [head_dim], [heads * head_dim] or none) eps, head_dim
  MLX_NODE_HEAD_LAYERNORM,  // (x, weight [head_dim] or [heads, head_dim]) eps, head_dim
  MLX_NODE_LINEAR,          // (x [M, in], weight [out, in]) -> [M, out]
  MLX_NODE_BIAS,            // (x [M, width], bias [width]): x + bias
  MLX_NODE_ADD,             // (a, b)
  MLX_NODE_MULTIPLY,        // (a, b)
  MLX_NODE_SCALE,           // (x) factor
  MLX_NODE_SOFTCAP,         // (x) cap
  MLX_NODE_CLIP,            // (x) limit
  MLX_NODE_GROW,            // (x, positions) beta, period
  MLX_NODE_GAIN,            // (x, weight [width]): x * weight
  MLX_NODE_MATCH,           // (x, like) number: the least mean of squares
  MLX_NODE_SPARSIFY,        // (x) number: standard deviations
  MLX_NODE_ACTIVATE,        // (x) act
  MLX_NODE_GATED,           // (gate, up) act: act(gate) * up
  MLX_NODE_EXPERTS,       // (x, scores, gate, up, down, gate bias, up bias, down bias, choice bias, factors)
                          // experts
  MLX_NODE_SIGMOID,       // (x)
  MLX_NODE_SCALE_ROWS,    // (x [M, width], factor [M, 1])
  MLX_NODE_COLUMNS,       // (x) start: columns [start, start + width of the result)
  MLX_NODE_HEAD_COLUMNS,  // (x) head_dim, start: columns [start, start + count) of each head
  MLX_NODE_JOIN,          // (a [M, n], b [M, m]) -> [M, n + m]
  MLX_NODE_HEAD_JOIN,     // (a [M, heads * n], b [M, heads * m]) head_dim: n -> [M, heads * (n + m)]
  MLX_NODE_HEAD_LINEAR,   // (x [M, heads * in], weight [heads, out, in]) -> [M, heads * out]
  MLX_NODE_PERMUTE,       // (x, order i32 [width]): column i is column order[i] of x
  MLX_NODE_ROPE,          // (x, positions) head_dim, rope
  MLX_NODE_ATTENTION,     // (q, k or none, v or none, sinks or none, relative or none) attention
  MLX_NODE_CONVOLVE,      // (x, weight [channels, taps], bias or none) silu; recurrent
  MLX_NODE_DELTA,         // (qkv, step, beta, rate, bias) delta; recurrent
  MLX_NODE_SCAN,          // (xbc, step, rate, bias, skip) scan; recurrent
  MLX_NODE_SUM_RANKS,     // (x) own_rank, ranks: x of all ranks, added (compiler/ranks.h)
  MLX_NODE_WANTED,        // (hidden [M, hidden]) -> [W, hidden]: the rows of the wanted tokens
  MLX_NODE_POOL,          // (hidden [M, hidden]) pooling -> [W, hidden]: of the texts of the wanted tokens
  MLX_NODE_LOGITS,        // (x [W, vocab]): the result of the graph, unchanged. Of an encoder: the embedding
                          // or the scores of each text
  MLX_NODE_KINDS
} mlx_node_kind_t;
const char *mlx_node_kind_name(mlx_node_kind_t kind);  // "linear"
// Whether such a node has a recurrent state.
static inline bool mlx_node_is_recurrent(mlx_node_kind_t kind) {
  return kind == MLX_NODE_CONVOLVE || kind == MLX_NODE_DELTA || kind == MLX_NODE_SCAN;
}
// Whether such a node computes nothing: tokens, positions, types, a weight.
static inline bool mlx_node_is_input(mlx_node_kind_t kind) {
  return kind == MLX_NODE_TOKENS || kind == MLX_NODE_POSITIONS || kind == MLX_NODE_TYPES ||
         kind == MLX_NODE_WEIGHT;
}

typedef struct mlx_node {
  mlx_node_kind_t kind;
  char scope[24], name[40];  // "layer3", "q"; a weight has neither
  mlx_dtype_t dtype;         // of the result
  int rank;
  int64_t dims[MLX_VALUE_RANK];
  int operands[MLX_NODE_OPERANDS];  // node ids; 0: none
  int uses;                         // operands of other nodes that refer to this node
  // Attributes. Only those that the kind lists are set.
  union {
    double number;  // eps, factor, cap, limit or beta, or that of MATCH and SPARSIFY
    double eps, factor, cap, limit, beta;
  };
  int64_t head_dim, period, start, own_rank, ranks;
  mlx_act_t act;
  float act_numbers[MLX_ACT_NUMBERS];  // 0: none
  const mlx_rope_t *rope;              // borrowed
  mlx_attention_t attention;           // |sinks| is operand 3, |relative| operand 4
  mlx_delta_t delta;
  mlx_scan_t scan;
  bool silu;
  bool some;  // indices past the table are those of its first row
  mlx_pooling_t pooling;
  mlx_experts_t experts;    // its biases are operands 5 to 8, its factors operand 9
  size_t weight_index;      // in the model's list of weights
  const char *weight_name;  // borrowed
  int order;                // of a weight: id of the order of its columns; 0: none
} mlx_node_t;

// A weight of the model: its name and shape. The index in the list identifies it everywhere.
typedef struct mlx_graph_weight {
  const char *name;
  int rank;
  int64_t dims[MLX_VALUE_RANK];
  mlx_dtype_t dtype;  // MLX_F32; of a column order MLX_I32
  size_t order;       // 1 + index of the order of its columns, which mlx_op_linear applies to x; 0: none
} mlx_graph_weight_t;

struct mlx_graph {
  mlx_node_t *nodes;  // owned; node id - 1. Use mlx_graph_node.
  size_t count, capacity;
  size_t weight_count;
  int64_t context;
  // Of the construction.
  char scope[24];
  int positions, types;  // node ids; 0: not used yet
  mlx_status_t status;   // owned: the first error
};

// Starts a graph. |context|: the context length that is compiled. Release with mlx_graph_free.
mlx_status_t mlx_graph_create(const mlx_graph_weight_t *weights, size_t weight_count, int64_t context,
                              mlx_graph_t **out_graph) MLX_MUST_USE;
void mlx_graph_free(mlx_graph_t *graph);

mlx_value_t mlx_graph_tokens(mlx_graph_t *graph);
mlx_value_t mlx_graph_wanted(mlx_graph_t *graph, mlx_value_t hidden);
// In place of it, of an encoder.
mlx_value_t mlx_graph_pool(mlx_graph_t *graph, mlx_value_t hidden, mlx_pooling_t pooling);
// Whether the graph is an encoder: it has a pool. A step computes whole texts, and samples no token.
bool mlx_graph_is_encoder(const mlx_graph_t *graph);
// Adds MLX_NODE_LOGITS and sorts the nodes. Returns the first error of the construction.
mlx_status_t mlx_graph_finish(mlx_graph_t *graph, mlx_value_t logits) MLX_MUST_USE;

// The node with this id. |id| must be from 1 to graph->count.
static inline const mlx_node_t *mlx_graph_node(const mlx_graph_t *graph, int id) {
  return &graph->nodes[id - 1];
}
// The node that operand |nth| of |node| refers to; NULL: none.
static inline const mlx_node_t *mlx_graph_operand(const mlx_graph_t *graph, const mlx_node_t *node, int nth) {
  return node->operands[nth] ? mlx_graph_node(graph, node->operands[nth]) : NULL;
}

// Renumbers the nodes of a complete graph. The order depends on kinds and operands only: two graphs that
// differ in the order of independent nodes become the same. Leaves out nodes that the logits do not need.
mlx_status_t mlx_graph_sort(mlx_graph_t *graph) MLX_MUST_USE;

// The attention node whose keys and values |attention| reads: that of its layer or, if it is shared, of its
// |kv_layer|. NULL: the graph has none.
const mlx_node_t *mlx_graph_kv_owner(const mlx_graph_t *graph, const mlx_attention_t *attention);
// Whether |node| is attention that stores keys and values.
static inline bool mlx_node_stores_kv(const mlx_node_t *node) {
  return node->kind == MLX_NODE_ATTENTION && !node->attention.shared;
}
// What the KV cache keeps of a position of a layer: keys and values (2 parts), or keys only (1).
static inline int64_t mlx_attention_kv_parts(const mlx_attention_t *attention) {
  return attention->value_dim ? 1 : 2;
}
// Numbers of a value.
static inline int64_t mlx_attention_value_dim(const mlx_attention_t *attention) {
  return attention->value_dim ? attention->value_dim : attention->head_dim;
}
int64_t mlx_attention_kv_numbers(const mlx_attention_t *attention);
// Numbers that the KV cache keeps for one position: those of all attention nodes that store them. The layers
// of an encoder share a place: no later step reads them.
int64_t mlx_graph_kv_numbers(const mlx_graph_t *graph);
// Sliding windows of the attention layers that store keys and values.
typedef struct mlx_graph_windows {
  int layers, windowed;  // such layers; those with a window
  int64_t widest;        // positions of the widest window
  int64_t kv_numbers;    // like mlx_graph_kv_numbers, of the layers with a window
} mlx_graph_windows_t;
mlx_graph_windows_t mlx_graph_windows(const mlx_graph_t *graph);
// Whether some layers have a window and others see all positions.
bool mlx_graph_mixes_windows(const mlx_graph_t *graph);

// The layer of a node, by its scope: 3 of "layer3"; -1: it belongs to none.
int64_t mlx_node_layer(const mlx_node_t *node);
// The experts that a token is routed to: |used| in each of |layers| layers, of which some may have no
// experts. |used| is 0 if no layer has any, or if experts belong to no layer.
typedef struct mlx_graph_routes {
  int64_t layers, used;
} mlx_graph_routes_t;
mlx_graph_routes_t mlx_graph_routes(const mlx_graph_t *graph);

// Numbers of the recurrent state of a sequence that node |id| keeps, and where they start in the state of all
// nodes: a multiple of MLX_STATE_ALIGNMENT. |id| may be one more than the number of nodes: then *|out_at| is
// the size of the whole state.
#define MLX_STATE_ALIGNMENT 16
int64_t mlx_graph_state(const mlx_graph_t *graph, int id, int64_t *out_at);
int64_t mlx_graph_state_numbers(const mlx_graph_t *graph);  // 0: the network has no recurrent layer

// Appends one line per node:
//   %7 layer0.attn_in = rmsnorm(%3, %6) eps=1e-05 : f32[M, 32]
// M is MLX_DIM_TOKENS, W is MLX_DIM_WANTED.
void mlx_graph_print(const mlx_graph_t *graph, mlx_text_t *out);

// ---- for graph/*.c ----

typedef struct mlx_shape_text {
  char chars[160];
} mlx_shape_text_t;
mlx_shape_text_t mlx_shape_text(mlx_dtype_t dtype, int rank, const int64_t *dims);  // "f32[M, 32]"

// Appends |node| with the scope of the graph. Returns its value; MLX_NONE after an error.
mlx_value_t mlx_graph_append(mlx_graph_t *graph, const mlx_node_t *node);
// Records |status| unless there is an earlier error; takes ownership.
void mlx_graph_fail(mlx_graph_t *graph, mlx_status_t status);

#endif  // MLXCEL_GRAPH_GRAPH_H_
