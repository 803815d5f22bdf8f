// The words a model is written in. An architecture's forward() is a list of these calls and reads like the
// paper; the compiler lowers each word (compiler/ops.c holds the plain StableHLO lowering, which is the
// truth).
//
// Shapes: M = rows x tokens, flattened. Activations are f32 [M, width].
// Errors stick to the graph: after the first one every word returns a value without effect, and the compiler
// reports it.
#ifndef MLXCEL_GRAPH_OPS_H_
#define MLXCEL_GRAPH_OPS_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/dtype.h"

#define MLX_VALUE_RANK 6
#define MLX_MAX_FREQUENCIES 512  // half of the widest head

// How positions turn a head.
typedef struct mlx_rope {
  int64_t dims;                            // of each head are turned, from its first on; the rest stays
  bool adjacent;                           // element 2i pairs with 2i + 1; otherwise i with i + dims / 2
  double scale;                            // of cosines and sines
  float frequencies[MLX_MAX_FREQUENCIES];  // radians a position, of the dims / 2 pairs
} mlx_rope_t;

bool mlx_rope_equal(const mlx_rope_t *a, const mlx_rope_t *b);

typedef enum mlx_act { MLX_ACT_SILU, MLX_ACT_GELU, MLX_ACT_GELU_TANH, MLX_ACT_RELU, MLX_ACT_RELU2 } mlx_act_t;

// A typed SSA value; copied freely. Meaningful only inside the graph that made it.
typedef struct mlx_value {
  int id;  // 0: no value (after an error)
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_VALUE_RANK];
  int quantized_weight;  // 1 + index in the model's weights, if this is a weight that stays quantized; else 0
} mlx_value_t;

typedef struct mlx_graph mlx_graph_t;

// Names that follow begin with this scope ("layer3.q"), and the emitted text gets a comment line. "" ends the
// scope.
void mlx_op_scope(mlx_graph_t *graph, const char *fmt, ...) MLX_PRINTF(2, 3);

// A weight by its Hugging Face name.
mlx_value_t mlx_op_weight(mlx_graph_t *graph, const char *fmt, ...) MLX_PRINTF(2, 3);

// Rows of |table| [vocab, width] for |tokens| [M] -> [M, width]
mlx_value_t mlx_op_embed(mlx_graph_t *graph, mlx_value_t table, mlx_value_t tokens);
// x / sqrt(mean(x^2) + eps) * weight, over the last dimension
mlx_value_t mlx_op_rmsnorm(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                           double eps);
// x [M, in] times weight [out, in] transposed -> [M, out]
mlx_value_t mlx_op_linear(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight);
mlx_value_t mlx_op_add(mlx_graph_t *graph, const char *name, mlx_value_t a, mlx_value_t b);
// silu(gate) * up
mlx_value_t mlx_op_swiglu(mlx_graph_t *graph, const char *name, mlx_value_t gate, mlx_value_t up);
// Rotates each head of x [M, heads * head_dim] by its position. |rope| must outlive the graph, as the model's
// config does.
mlx_value_t mlx_op_rope(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                        const mlx_rope_t *rope);

// ---- words that only some architectures use; where a weight may be missing, it is MLX_NONE ----

#define MLX_NONE ((mlx_value_t){0})

// (x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension; weight and bias [width] or
// MLX_NONE
mlx_value_t mlx_op_layernorm(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                             mlx_value_t bias, double eps);
// The norms over each head of x [M, heads * head_dim]; weight [head_dim], or [heads, head_dim] where every
// head has its own
mlx_value_t mlx_op_head_rmsnorm(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                                mlx_value_t weight, double eps);
mlx_value_t mlx_op_head_layernorm(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                                  mlx_value_t weight, double eps);
// linear, and then + bias [out]; MLX_NONE adds nothing
mlx_value_t mlx_op_linear_bias(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                               mlx_value_t bias);
mlx_value_t mlx_op_multiply(mlx_graph_t *graph, const char *name, mlx_value_t a, mlx_value_t b);
mlx_value_t mlx_op_scale(mlx_graph_t *graph, const char *name, mlx_value_t x,
                         double factor);  // 1.0 writes nothing
mlx_value_t mlx_op_softcap(mlx_graph_t *graph, const char *name, mlx_value_t x,
                           double cap);  // cap * tanh(x / cap)
mlx_value_t mlx_op_clip(mlx_graph_t *graph, const char *name, mlx_value_t x,
                        double limit);  // into [-limit, limit]
// x * (1 + beta * log(1 + floor(position / period)))
mlx_value_t mlx_op_grow(mlx_graph_t *graph, const char *name, mlx_value_t x, double beta, int64_t period);
mlx_value_t mlx_op_activate(mlx_graph_t *graph, const char *name, mlx_act_t act, mlx_value_t x);
// act(gate) * up
mlx_value_t mlx_op_gated(mlx_graph_t *graph, const char *name, mlx_act_t act, mlx_value_t gate,
                         mlx_value_t up);
// A mixture of experts: each token goes through the |used| experts with the largest scores, and what they
// give is added up by the softmax of the scores, over all experts or over those used. In decode only the
// weights of those are read.
typedef struct mlx_experts {
  int64_t used;
  bool sum_to_one;  // the softmax is over those used
  mlx_act_t act;    // an expert is down(act(gate(x)) * up(x)); with a limit, which takes its place,
  double limit;  //   down(g * sigmoid(slope * g) * (u + 1)) of a gate g up to the limit and a u within it; 0:
                 //   none
  double slope;
  mlx_value_t gate_bias, up_bias,
      down_bias;  // [experts, ffn], [experts, ffn], [experts, hidden]; MLX_NONE: there are none
} mlx_experts_t;
mlx_value_t mlx_op_experts(mlx_graph_t *graph, const char *name, const mlx_experts_t *params,
                           mlx_value_t x,       // [M, hidden]
                           mlx_value_t scores,  // [M, experts]
                           mlx_value_t gate,    // [experts, ffn, hidden]
                           mlx_value_t up,      // [experts, ffn, hidden]
                           mlx_value_t down);   // [experts, hidden, ffn] -> [M, hidden]
mlx_value_t mlx_op_sigmoid(mlx_graph_t *graph, const char *name, mlx_value_t x);
// x [M, width] times a number for each token: factor [M, 1]
mlx_value_t mlx_op_scale_rows(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t factor);
// Columns [start, start + count) of x [M, width]: one part of a fused product
mlx_value_t mlx_op_columns(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t start, int64_t count);
// Where each token stands: i32 [M], for mlx_op_embed of a table of positions
mlx_value_t mlx_op_positions(mlx_graph_t *graph);
// How many positions a sequence may have in what is being compiled: for ropes that are chosen by it
int64_t mlx_op_context(const mlx_graph_t *graph);

// Causal attention of one layer. Writes k and v into this layer's place in the paged KV cache, then attends
// over every position of each row up to the query's own.
typedef struct mlx_attention {
  int64_t layer;
  int64_t heads, kv_heads, head_dim;
  double scale;       // of the scores, usually 1 / sqrt(head_dim)
  int64_t window;     // a query sees so many positions, its own included; 0: all
  double softcap;     // scores are capped as by mlx_op_softcap; 0: they are not
  mlx_value_t sinks;  // [heads]: a score that takes weight and gives nothing; MLX_NONE: there is none
} mlx_attention_t;
mlx_value_t mlx_op_attention(mlx_graph_t *graph, const mlx_attention_t *params,
                             mlx_value_t q,   // [M, heads * head_dim]
                             mlx_value_t k,   // [M, kv_heads * head_dim]
                             mlx_value_t v);  // [M, kv_heads * head_dim] -> [M, heads * head_dim]

#endif  // MLXCEL_GRAPH_OPS_H_
