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
#include "kernels/activations.h"

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

#define MLX_ACT_ENUMERATOR(name, text) MLX_ACT_##name,
typedef enum mlx_act { MLX_ACTIVATION_TABLE(MLX_ACT_ENUMERATOR) MLX_ACTS } mlx_act_t;
#undef MLX_ACT_ENUMERATOR

// A value of a graph: the node that makes it, and its shape. Copy it freely; it is valid only in its graph.
typedef struct mlx_value {
  int id;  // of the node; 0: no value
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_VALUE_RANK];
} mlx_value_t;

typedef struct mlx_graph mlx_graph_t;

// How an encoder makes one vector of the hidden states of a text.
typedef enum mlx_pooling {
  MLX_POOL_MEAN,
  MLX_POOL_CLS,   // of the first token
  MLX_POOL_LAST,  // of the last token
  MLX_POOL_MAX,   // the largest value of each column
  MLX_POOLINGS
} mlx_pooling_t;
const char *mlx_pooling_name(mlx_pooling_t pooling);  // "mean"

// Scope of all later ops ("layer3" gives "layer3.q"). "" ends the scope.
void mlx_op_scope(mlx_graph_t *graph, const char *fmt, ...) MLX_PRINTF(2, 3);

// A weight by its Hugging Face name.
mlx_value_t mlx_op_weight(mlx_graph_t *graph, const char *fmt, ...) MLX_PRINTF(2, 3);

// Row tokens[i] of |table| [vocab, width] for each of |tokens| [M] -> [M, width]
mlx_value_t mlx_op_embed(mlx_graph_t *graph, mlx_value_t table, mlx_value_t tokens);
// The same of a table that has no rows for the last tokens: those have the first row
mlx_value_t mlx_op_embed_some(mlx_graph_t *graph, mlx_value_t table, mlx_value_t tokens);
// x / sqrt(mean(x^2) + eps) * weight, over the last dimension
mlx_value_t mlx_op_rmsnorm(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight,
                           double eps);
// x [M, in] times weight [out, in] transposed -> [M, out]. If the weight has an order of its columns, x is
// put in that order first.
mlx_value_t mlx_op_linear(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight);
mlx_value_t mlx_op_add(mlx_graph_t *graph, const char *name, mlx_value_t a, mlx_value_t b);
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
// Norm of each head of x [M, heads * head_dim] (QK norm). weight: [head_dim], or if each head has its own,
// [heads * head_dim] for rmsnorm and [heads, head_dim] for layernorm; for rmsnorm MLX_NONE: no weight
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
// x [M, width] times weight [width], row by row
mlx_value_t mlx_op_gain(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight);
// Each row of x times a factor, after which the mean of its squares is that of |like|. The mean of x counts
// as |least| if it is smaller
mlx_value_t mlx_op_match(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t like, double least);
// max(0, x - (mean + deviations * standard deviation)), with the mean and the deviation of each row
mlx_value_t mlx_op_sparsify(mlx_graph_t *graph, const char *name, mlx_value_t x, double deviations);
// |numbers|: MLX_ACT_NUMBERS of them, for an activation that has numbers; else NULL.
mlx_value_t mlx_op_activate(mlx_graph_t *graph, const char *name, mlx_act_t act, const float *numbers,
                            mlx_value_t x);
// act(gate) * up
mlx_value_t mlx_op_gated(mlx_graph_t *graph, const char *name, mlx_act_t act, mlx_value_t gate,
                         mlx_value_t up);
// Mixture of experts. Each token goes through the |used| experts with the largest weights, and their outputs
// are summed with these weights. The weights are the softmax of the scores or, with |sigmoid|, the sigmoid of
// each. |choice_bias| is added to them for the choice only. Those of the used experts are then divided by
// their sum plus |sum_eps|, with |sum_to_one|, and multiplied by |weight_scale| and by the factor of the
// expert in |factors|. Decode reads the weights of the used experts only.
//
// With |groups|, the experts are in so many groups of neighbours. A token uses experts of |groups_used|
// groups only: those whose two best experts have the largest sum, or with |groups_by_best| whose best expert
// is the largest.
//
// With |spread| (SparseMixer), the weight of an expert is the softmax over the scores that are near its own:
// s of the experts that are not used before it, with (best - s) / max(|s|, best) at most |spread|.
//
// An expert computes down(act(gate(x)) * up(x)), without |up| down(act(gate(x))). With a limit (gpt-oss) it
// computes
//   down(g * sigmoid(slope * g) * (u + 1))
// with g = min(gate(x), limit) and u = up(x) clamped to [-limit, limit].
typedef struct mlx_experts {
  int64_t used;
  bool sum_to_one;  // with a softmax: it is over the used experts
  bool sigmoid;
  int64_t groups, groups_used;  // 0 or 1: no groups
  bool groups_by_best;
  double sum_eps, weight_scale;  // weight_scale 0: 1
  double spread;                 // 0: none; not with |sigmoid|, |groups|, |sum_to_one| and |choice_bias|
  mlx_value_t choice_bias;       // [experts] or MLX_NONE
  mlx_value_t factors;           // [experts] or MLX_NONE
  mlx_act_t act;
  double limit;  // 0: none
  double slope;
  mlx_value_t gate_bias, up_bias;  // [experts, ffn] or MLX_NONE
  mlx_value_t down_bias;           // [experts, hidden] or MLX_NONE
} mlx_experts_t;
// Whether the weights are a plain softmax: no sigmoid, choice_bias, groups, sum_eps, weight_scale, spread or
// factors.
bool mlx_experts_are_plain(const mlx_experts_t *experts);
mlx_value_t mlx_op_experts(mlx_graph_t *graph, const char *name, const mlx_experts_t *params,
                           mlx_value_t x,       // [M, hidden]
                           mlx_value_t scores,  // [M, experts]
                           mlx_value_t gate,    // [experts, ffn, hidden]
                           mlx_value_t up,      // [experts, ffn, hidden] or MLX_NONE
                           mlx_value_t down);   // [experts, hidden, ffn] -> [M, hidden]
mlx_value_t mlx_op_sigmoid(mlx_graph_t *graph, const char *name, mlx_value_t x);
// x [M, width] times one factor per token [M, 1]
mlx_value_t mlx_op_scale_rows(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t factor);
// Columns [start, start + count) of x [M, width]: one part of a fused projection
mlx_value_t mlx_op_columns(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t start, int64_t count);
// The same of each head of x [M, heads * head_dim] -> [M, heads * count]
mlx_value_t mlx_op_head_columns(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t head_dim,
                                int64_t start, int64_t count);
// a [M, n] and b [M, m] beside each other -> [M, n + m]
mlx_value_t mlx_op_join(mlx_graph_t *graph, const char *name, mlx_value_t a, mlx_value_t b);
// The same of each head: a [M, heads * n] and b [M, heads * m] -> [M, heads * (n + m)]
mlx_value_t mlx_op_head_join(mlx_graph_t *graph, const char *name, int64_t heads, mlx_value_t a,
                             mlx_value_t b);
// Each head of x [M, heads * in] times its own matrix of weight [heads, out, in], transposed
// -> [M, heads * out]
mlx_value_t mlx_op_head_linear(mlx_graph_t *graph, const char *name, mlx_value_t x, mlx_value_t weight);
// x [M, width] of rank |own_rank| plus those of the other |ranks|, in the order of a binary tree: with 4,
// (x0 + x1) + (x2 + x3)
mlx_value_t mlx_op_sum_ranks(mlx_graph_t *graph, const char *name, mlx_value_t x, int64_t own_rank,
                             int64_t ranks);
// Position of each token: i32 [M], for mlx_op_embed of a table of learned positions
mlx_value_t mlx_op_positions(mlx_graph_t *graph);
// Type of each token: i32 [M], for mlx_op_embed of a table of token types
mlx_value_t mlx_op_types(mlx_graph_t *graph);
// The context length being compiled, for models that choose their RoPE by it
int64_t mlx_op_context(const mlx_graph_t *graph);

// Causal attention of one layer, or with |whole| of all positions. Writes k and v to the layer's paged KV
// cache, then attends to all positions of each sequence up to the query's own. Layers may have different
// numbers and sizes of heads. With |shared|, the layer has no cache: it attends to the keys and values of
// |kv_layer|, an earlier layer with the same KV heads and window, and k and v are MLX_NONE.
typedef struct mlx_attention {
  int64_t layer;
  int64_t heads, kv_heads, head_dim;
  double scale;       // multiplies the scores, usually 1 / sqrt(head_dim)
  int64_t window;     // sliding window: positions a query sees, its own included; 0: all
  double softcap;     // of the scores, as in mlx_op_softcap; 0: none
  mlx_value_t sinks;  // [heads]: a score per head that enters the softmax without a value; or MLX_NONE
  bool whole;         // of an encoder: a query sees the whole text, which is in one step
  mlx_value_t
      relative;  // with |whole|: [buckets, heads], added to the scores by the distance of key and query,
                 // as T5 and MPNet do (mlx_relative_bucket); or MLX_NONE
  int64_t span;  // with |whole|: it sees so many positions before and after its own only; 0: all
  bool shared;
  int64_t kv_layer;   // with |shared|
  int64_t value_dim;  // latent attention: there is one KV head, its value is the first |value_dim| numbers of
                      // its key, and the cache keeps only the key; 0: values are stored. Without window,
                      // softcap, sinks, |whole| and |shared|
} mlx_attention_t;
// The bucket of a distance: the first half is for keys before the query and its own, the second for keys
// after it. Small distances have one each, others share one, up to 128.
int64_t mlx_relative_bucket(int64_t key, int64_t query, int64_t buckets);
mlx_value_t mlx_op_attention(
    mlx_graph_t *graph, const mlx_attention_t *params,
    mlx_value_t q,   // [M, heads * head_dim]
    mlx_value_t k,   // [M, kv_heads * head_dim] or MLX_NONE
    mlx_value_t v);  // [M, kv_heads * head_dim] or MLX_NONE -> [M, heads * head_dim];
                     // with value_dim MLX_NONE -> [M, heads * value_dim]

// ---- ops with a recurrent state: numbers of each sequence that its tokens read and replace in their order.
// The state is zero before the first token ----

// Causal convolution of each channel over the positions of a sequence: with t taps, row p of the result is
//   bias + sum over i of weight[i] * x[p - (t - 1) + i]
// and SiLU of it if |silu|. The state is the last t - 1 rows of x.
mlx_value_t mlx_op_convolve(mlx_graph_t *graph, const char *name, bool silu,
                            mlx_value_t x,       // [M, channels]
                            mlx_value_t weight,  // [channels, taps]
                            mlx_value_t bias);   // [channels] or MLX_NONE

// Gated delta rule. The state of each value head is a matrix S [key_dim, value_dim]. A token computes
//   S = S * exp(decay);  d = beta_scale * sigmoid(beta) * (v - k S);  S = S + k^T d;  out = q S * scale
// with q and k divided by their length (sqrt(sum of squares + eps)) and
//   decay = -exp(rate) * softplus(step + bias), or rate * softplus(step + bias) unless |log_rate|
typedef struct mlx_delta {
  int64_t key_heads, value_heads, key_dim, value_dim;
  double scale, eps;
  double beta_scale;  // 0: 1
  bool log_rate;
  bool tiled;  // value head i has key head i % key_heads; else i / (value_heads / key_heads)
} mlx_delta_t;
mlx_value_t mlx_op_delta(mlx_graph_t *graph, const char *name, const mlx_delta_t *params,
                         mlx_value_t qkv,    // [M, 2 * key_heads * key_dim + value_heads * value_dim]
                         mlx_value_t step,   // [M, value_heads]
                         mlx_value_t beta,   // [M, value_heads]
                         mlx_value_t rate,   // [value_heads]
                         mlx_value_t bias);  // [value_heads] -> [M, value_heads * value_dim]

// Selective scan of Mamba 2. The state of each head is a matrix S [state_size, head_dim]. A token computes
//   dt = softplus(step + bias) clamped to [min_step, max_step]
//   S = S * exp(dt * A) + dt * B^T x;  out = C S + skip * x
// with A = -exp(rate), or rate unless |log_rate|. The heads of a group share B and C. Of Mamba 1: with
// |state_rates| each row of a state has its own A. There is one group, and head_dim is 1.
typedef struct mlx_scan {
  int64_t heads, groups, head_dim, state_size;
  double min_step, max_step;  // max_step may be infinite
  bool log_rate, state_rates;
} mlx_scan_t;
mlx_value_t mlx_op_scan(mlx_graph_t *graph, const char *name, const mlx_scan_t *params,
                        mlx_value_t xbc,    // [M, heads * head_dim + 2 * groups * state_size]
                        mlx_value_t step,   // [M, heads]
                        mlx_value_t rate,   // [heads]; with state_rates [heads, state_size]
                        mlx_value_t bias,   // [heads]
                        mlx_value_t skip);  // [heads] -> [M, heads * head_dim]

#endif  // MLXCEL_GRAPH_OPS_H_
