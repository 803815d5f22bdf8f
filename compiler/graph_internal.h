// Shared by the files that write the graph (graph.c, words.c, ops.c, kernel_ops.c, trace.c): what the words
// of graph/ops.h need to know about the function being built, and their lowerings.
#ifndef MLXCEL_COMPILER_GRAPH_INTERNAL_H_
#define MLXCEL_COMPILER_GRAPH_INTERNAL_H_

#include "compiler/graph.h"
#include "compiler/trace.h"

#define MLX_MAX_ROPES 4

#define MLX_STATE_TOKEN "state.token"        // [rows] the token to be read next
#define MLX_STATE_POSITION "state.position"  // [rows] where it goes
#define MLX_STATE_LOGITS "state.logits"      // [rows, vocab] that chose it
#define MLX_STATE_KV "state.kv"              // with kernels: all layers' pages, as kernels/cuda lays them out
#define MLX_STATE_SCRATCH "state.scratch"    // of the decode kernel

// Cosines and sines of the function's positions, for one kind of rope.
typedef struct mlx_rope_table {
  const mlx_rope_t *rope;
  mlx_value_t cos, sin;  // [M, rope->dims / 2]
} mlx_rope_table_t;

// A matrix product or a rotation that is not written yet.
typedef struct mlx_later {
  char name[32];
  mlx_value_t x, weight;  // a product's
  int64_t head_dim;       // a rotation's; 0: it is a product
  const mlx_rope_t *rope;
  mlx_value_t done;  // id 0 until it is written
} mlx_later_t;

struct mlx_graph {
  mlx_builder_t *b;
  const mlx_model_t *model;
  const mlx_graph_options_t *options;
  char **kv_names;  // owned: "kv.LAYER.k", "kv.LAYER.v" for each layer
  // the function being built
  int64_t tokens;                 // T: tokens a row
  mlx_value_t positions;          // [M] of each token
  mlx_value_t pages;              // [rows, P]
  mlx_value_t slots;              // [M, 2]: page and place in it where each token's keys and values go
  mlx_value_t hidden_from_query;  // [rows, T, context] i1: positions a query may not see
  mlx_value_t start, count;       // [rows]: where each row's tokens begin and how many there are
  mlx_value_t active;             // [rows] argument of decode
  mlx_rope_table_t ropes[MLX_MAX_ROPES];
  size_t rope_count;
  mlx_later_t *later;  // owned; what waits to be written, id -1 first
  size_t later_count, later_capacity;
  mlx_value_t cut, parts;  // what was cut last for packed products, and what became of it
  mlx_trace_t *trace;      // NULL: nobody wants to know
};

// ---- graph.c ----

mlx_status_t mlx_graph_make_names(mlx_graph_t *g) MLX_MUST_USE;
void mlx_graph_declare(mlx_graph_t *g);
void mlx_graph_begin_decode(mlx_graph_t *g);  // decode_1, up to the network
void mlx_graph_free(mlx_graph_t *g);          // the builder and the names

// ---- ops.c: the plain lowerings ----

const mlx_rope_table_t *mlx_rope_table(mlx_graph_t *g,
                                       const mlx_rope_t *rope);  // of the function's positions

mlx_value_t mlx_plain_embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens);
mlx_value_t mlx_plain_rmsnorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                              double eps);
mlx_value_t mlx_plain_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight);
mlx_value_t mlx_plain_add(mlx_graph_t *g, const char *name, mlx_value_t a, mlx_value_t b);
mlx_value_t mlx_plain_swiglu(mlx_graph_t *g, const char *name, mlx_value_t gate, mlx_value_t up);
mlx_value_t mlx_plain_rope(mlx_graph_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                           const mlx_rope_t *rope);
mlx_value_t mlx_plain_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                                mlx_value_t v);

// ---- ops_more.c: those of the words that only some architectures use ----

mlx_value_t mlx_plain_layernorm(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                                mlx_value_t bias, double eps);
mlx_value_t mlx_plain_bias(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t bias);
mlx_value_t mlx_plain_scale(mlx_graph_t *g, const char *name, mlx_value_t x, double factor);
mlx_value_t mlx_plain_softcap(mlx_graph_t *g, const char *name, mlx_value_t x, double cap);
mlx_value_t mlx_plain_clip(mlx_graph_t *g, const char *name, mlx_value_t x, double limit);
mlx_value_t mlx_plain_grow(mlx_graph_t *g, const char *name, mlx_value_t x, double beta, int64_t period);
mlx_value_t mlx_plain_activate(mlx_graph_t *g, const char *name, mlx_act_t act, mlx_value_t x);

// ---- experts.c ----

mlx_value_t mlx_plain_experts(mlx_graph_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                              mlx_value_t scores, mlx_value_t gate, mlx_value_t up, mlx_value_t down);

// ---- kernel_ops.c: the linked ones, where options->kernels is there ----

// Asks for the image of |definitions|, which it clears; NULL after an error, which sticks to the graph.
const char *mlx_kernel_image(mlx_graph_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions);
typedef struct mlx_definition {
  const char *name;
  int64_t value;
} mlx_definition_t;
void mlx_define(mlx_text_t *text, const mlx_definition_t *definitions, size_t count);
#define MLX_DEFINE(text, ...)                               \
  mlx_define(text, (const mlx_definition_t[]){__VA_ARGS__}, \
             sizeof((const mlx_definition_t[]){__VA_ARGS__}) / sizeof(mlx_definition_t))
bool mlx_kernel_is_hopper(const mlx_graph_t *g);

// EPILOGUE of linear.cu
typedef enum mlx_linear_end {
  MLX_LINEAR_PLAIN = 0,
  MLX_LINEAR_ADD = 1,
  MLX_LINEAR_SWIGLU = 2
} mlx_linear_end_t;
bool mlx_kernel_takes_linear(const mlx_graph_t *g, mlx_value_t weight);
bool mlx_kernel_takes_pair(const mlx_graph_t *g, mlx_value_t gate, mlx_value_t up);  // with SWIGLU
bool mlx_kernel_linear_is_gemv(mlx_value_t x);  // few rows: memory is all there is
// |other|: what is added (f32), or the second weight. With SWIGLU the result has the weights' dtype.
mlx_value_t mlx_kernel_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                              mlx_value_t other, mlx_linear_end_t end);
// |table|: q and k are still to be turned by it; may be NULL.
mlx_value_t mlx_kernel_attention(mlx_graph_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                                 mlx_value_t v, const mlx_rope_table_t *table);
// Emits decode_K for the network |plan| describes.
void mlx_kernel_decode(mlx_graph_t *g, const mlx_decode_plan_t *plan, int64_t steps);

// ---- packed_words.c: those over packed weights ----

mlx_value_t mlx_kernel_packed_linear(mlx_graph_t *g, const char *name, mlx_value_t x, mlx_value_t weight,
                                     mlx_value_t other, mlx_linear_end_t end);
// A loaded weight as the words know it: with its own type, and which one it is where it stays packed.
mlx_value_t mlx_kernel_weight(mlx_graph_t *g, const char *name, mlx_value_t loaded);
mlx_value_t mlx_kernel_embed(mlx_graph_t *g, mlx_value_t table, mlx_value_t tokens);  // of a packed table

// ---- cpu_network.c ----

// Emits everything but logits(): state, every prefill_T and decode_K, each one call of the CPU's kernel.
mlx_status_t mlx_cpu_network_emit(mlx_graph_t *g) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_GRAPH_INTERNAL_H_
