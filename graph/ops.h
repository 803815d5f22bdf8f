// The ops that a model is written in. An architecture's forward() is a list of these calls and reads like the
// paper. Each call checks dtypes and shapes and appends a node to the graph (graph/graph.h).
//
// Shapes: M = sequences x tokens, flattened. Activations are f32 [M, width].
// The graph keeps the first error. After it every op returns a value with id 0, and mlx_graph_finish returns
// the error.
#ifndef MLXCEL_GRAPH_OPS_H_
#define MLXCEL_GRAPH_OPS_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/dtype.h"

#define MLX_VALUE_RANK 6
#define MLX_MAX_FREQUENCIES 512  // half of the widest head

// Rotary position embedding (RoPE).
typedef struct mlx_rope {
  int64_t dims;                            // leading elements of each head that are rotated
  bool adjacent;                           // element 2i pairs with 2i + 1; else i pairs with i + dims / 2
  double scale;                            // multiplies cosines and sines
  float frequencies[MLX_MAX_FREQUENCIES];  // radians per position of the dims / 2 pairs
} mlx_rope_t;

bool mlx_rope_equal(const mlx_rope_t *a, const mlx_rope_t *b);

typedef enum mlx_act { MLX_ACT_SILU, MLX_ACT_GELU, MLX_ACT_GELU_TANH, MLX_ACT_RELU, MLX_ACT_RELU2 } mlx_act_t;

// A typed value: of a graph, or of a function that the compiler emits. Copy it freely; it is valid only
// there.
typedef struct mlx_value {
  int id;  // in a graph, the id of the node that makes it; 0: no value
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_VALUE_RANK];
  bool is_parts;  // compiler only: stored as bf16 parts that add up to f32 values
  int norm_gain;  // compiler only: id of a gain. The value is the RMS norm of |id|, not yet computed
  double norm_eps;
  int partials;  // compiler only: id of |partial_count| tensors that must still be added to it; 0: none
  int64_t partial_count;
  int quantized_weight;  // compiler only: 1 + index in the model's weights, if it is stored in tiles; else 0
} mlx_value_t;

typedef struct mlx_graph mlx_graph_t;

// Scope of all later ops ("layer3" gives "layer3.q"). "" ends the scope.
void mlx_op_scope(mlx_graph_t *graph, const char *fmt, ...) MLX_PRINTF(2, 3);

// A weight by its Hugging Face name.
mlx_value_t mlx_op_weight(mlx_graph_t *graph, const char *fmt, ...) MLX_PRINTF(2, 3);

// Row tokens[i] of |table| [vocab, width] for each of |tokens| [M] -> [M, width]
mlx_value_t mlx_op_embed(mlx_graph_t *graph, mlx_value_t table, mlx_value_t tokens);
// x / sqrt(mean(x^2) + eps) * weight, over the last dimension
mlx_value_t mlx_op_rmsnorm(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                           double eps);
// x [M, in] times weight [out, in] transposed -> [M, out]. If the weight has an order of its columns, x is
// put in that order first.
mlx_value_t mlx_op_linear(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight);
mlx_value_t mlx_op_add(mlx_graph_t *graph, const char *name, mlx_value_t a, mlx_value_t b);
// silu(gate) * up
mlx_value_t mlx_op_swiglu(mlx_graph_t *graph, const char *name, mlx_value_t gate, mlx_value_t up);
// Applies RoPE to each head of x [M, heads * head_dim]. |rope| must outlive the graph; the model's config
// does.
mlx_value_t mlx_op_rope(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                        const mlx_rope_t *rope);

// ---- ops that only some architectures use; an optional weight that is missing is MLX_NONE ----

#define MLX_NONE ((mlx_value_t){0})

// (x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension; weight and bias [width] or
// MLX_NONE
mlx_value_t mlx_op_layernorm(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                             mlx_value_t bias, double eps);
// Norm of each head of x [M, heads * head_dim] (QK norm). weight: [head_dim], or [heads, head_dim] for
// layernorm if each head has its own
mlx_value_t mlx_op_head_rmsnorm(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                                mlx_value_t weight, double eps);
mlx_value_t mlx_op_head_layernorm(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                                  mlx_value_t weight, double eps);
// linear plus bias [out]; MLX_NONE adds nothing
mlx_value_t mlx_op_linear_bias(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                               mlx_value_t bias);
mlx_value_t mlx_op_multiply(mlx_graph_t *graph, const char *name, mlx_value_t a, mlx_value_t b);
// x * factor; for a factor of 1.0, x itself
mlx_value_t mlx_op_scale(mlx_graph_t *graph, const char *name, mlx_value_t x, double factor);
// cap * tanh(x / cap)
mlx_value_t mlx_op_softcap(mlx_graph_t *graph, const char *name, mlx_value_t x, double cap);
// x clamped to [-limit, limit]
mlx_value_t mlx_op_clip(mlx_graph_t *graph, const char *name, mlx_value_t x, double limit);
// x * (1 + beta * log(1 + floor(position / period)))
mlx_value_t mlx_op_grow(mlx_graph_t *graph, const char *name, mlx_value_t x, double beta, int64_t period);
mlx_value_t mlx_op_activate(mlx_graph_t *graph, const char *name, mlx_act_t act, mlx_value_t x);
// act(gate) * up
mlx_value_t mlx_op_gated(mlx_graph_t *graph, const char *name, mlx_act_t act, mlx_value_t gate,
                         mlx_value_t up);
// Mixture of experts. Each token goes through the |used| experts with the largest scores. Their outputs are
// summed with the softmax of the scores as weights, taken over all experts or over the used ones. Decode
// reads the weights of the used experts only.
//
// An expert computes down(act(gate(x)) * up(x)). With a limit (gpt-oss) it computes
//   down(g * sigmoid(slope * g) * (u + 1))
// with g = min(gate(x), limit) and u = up(x) clamped to [-limit, limit].
typedef struct mlx_experts {
  int64_t used;
  bool sum_to_one;  // the softmax is over the used experts
  mlx_act_t act;
  double limit;  // 0: none
  double slope;
  mlx_value_t gate_bias, up_bias;  // [experts, ffn] or MLX_NONE
  mlx_value_t down_bias;           // [experts, hidden] or MLX_NONE
} mlx_experts_t;
mlx_value_t mlx_op_experts(mlx_graph_t *graph, const char *name, const mlx_experts_t *params,
                           mlx_value_t x,       // [M, hidden]
                           mlx_value_t scores,  // [M, experts]
                           mlx_value_t gate,    // [experts, ffn, hidden]
                           mlx_value_t up,      // [experts, ffn, hidden]
                           mlx_value_t down);   // [experts, hidden, ffn] -> [M, hidden]
mlx_value_t mlx_op_sigmoid(mlx_graph_t *graph, const char *name, mlx_value_t x);
// x [M, width] times one factor per token [M, 1]
mlx_value_t mlx_op_scale_rows(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t factor);
// Columns [start, start + count) of x [M, width]: one part of a fused projection
mlx_value_t mlx_op_columns(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t start, int64_t count);
// Position of each token: i32 [M], for mlx_op_embed of a table of learned positions
mlx_value_t mlx_op_positions(mlx_graph_t *graph);
// The context length being compiled, for models that choose their RoPE by it
int64_t mlx_op_context(const mlx_graph_t *graph);

// Causal attention of one layer. Writes k and v to the layer's paged KV cache, then attends to all positions
// of each sequence up to the query's own.
typedef struct mlx_attention {
  int64_t layer;
  int64_t heads, kv_heads, head_dim;
  double scale;       // multiplies the scores, usually 1 / sqrt(head_dim)
  int64_t window;     // sliding window: positions a query sees, its own included; 0: all
  double softcap;     // of the scores, as in mlx_op_softcap; 0: none
  mlx_value_t sinks;  // [heads]: a score per head that enters the softmax without a value; or MLX_NONE
} mlx_attention_t;
mlx_value_t mlx_op_attention(mlx_graph_t *graph, const mlx_attention_t *params,
                             mlx_value_t q,   // [M, heads * head_dim]
                             mlx_value_t k,   // [M, kv_heads * head_dim]
                             mlx_value_t v);  // [M, kv_heads * head_dim] -> [M, heads * head_dim]

#endif  // MLXCEL_GRAPH_OPS_H_
