// The function being built: the state that every op lowering reads and writes (struct mlx_graph), and the
// prologue that each emitted function starts with. The bottom of the lowering; it calls no lowering itself.
#ifndef MLXCEL_COMPILER_FUNCTION_H_
#define MLXCEL_COMPILER_FUNCTION_H_

#include "compiler/module_options.h"

#define MLX_MAX_ROPES 4

#define MLX_STATE_TOKEN "state.token"        // [sequences] the token that the next step reads
#define MLX_STATE_POSITION "state.position"  // [sequences] position of that token
#define MLX_STATE_LOGITS "state.logits"      // [sequences, vocab] logits that chose it
#define MLX_STATE_KV "state.kv"  // kernel path: KV pages of all layers, in the layout of the kernels
#define MLX_STATE_SCRATCH "state.scratch"  // kernel path: scratch memory of the decode or CPU kernel

// Cosines and sines of the function's positions for one kind of RoPE.
typedef struct mlx_rope_table {
  const mlx_rope_t *rope;
  mlx_value_t cos, sin;  // [M, rope->dims / 2]
} mlx_rope_table_t;

// A matrix product or a rotation whose emission is deferred, because a kernel may fuse it with its consumer.
typedef struct mlx_deferred {
  char name[32];
  mlx_value_t x, weight;  // weight: of a product
  int64_t head_dim;       // of a rotation; 0 for a product
  const mlx_rope_t *rope;
  mlx_value_t emitted;  // id 0 until it is emitted by itself
} mlx_deferred_t;

struct mlx_graph {
  mlx_builder_t *b;
  const mlx_model_t *model;
  const mlx_module_options_t *options;
  char **kv_names;  // owned: "kv.LAYER.k", "kv.LAYER.v" for each layer
  // Of the function being built. M is sequences * tokens.
  int64_t tokens;                 // T: tokens per sequence
  mlx_value_t positions;          // [M] position of each token
  mlx_value_t pages;              // [sequences, P]
  mlx_value_t slots;              // [M, 2]: page, and index in the page, for each token's keys and values
  mlx_value_t hidden_from_query;  // [sequences, T, context] i1: positions after the query's own
  mlx_value_t start, count;       // [sequences]: first position and number of tokens
  mlx_value_t active;             // [sequences] argument of decode
  mlx_rope_table_t ropes[MLX_MAX_ROPES];
  size_t rope_count;
  mlx_deferred_t *deferred;  // owned; a value with id -1 refers to the first
  size_t deferred_count, deferred_capacity;
  // The last input that was split into bf16 parts for a quantized product, and its parts.
  mlx_value_t split_input, split_parts;
  bool split_for_rows16;    // in the column order of 16-bit weights
  struct mlx_trace *trace;  // NULL if tracing is off
};

mlx_status_t mlx_graph_name_kv(mlx_graph_t *g) MLX_MUST_USE;  // fills kv_names
void mlx_graph_declare(mlx_graph_t *g);                       // weights and state
void mlx_graph_begin_function(mlx_graph_t *g, const char *name, const char *comment, int64_t tokens);
mlx_value_t mlx_graph_pages_argument(mlx_graph_t *g);
// Sets positions and, on the generic path, slots and mask. |positions| and |valid| are [sequences, T]. A
// token that is not valid writes its keys and values to page 0.
void mlx_graph_place_tokens(mlx_graph_t *g, mlx_value_t positions, mlx_value_t valid);
void mlx_graph_begin_decode(mlx_graph_t *g);  // decode_1, up to the network
void mlx_graph_release(mlx_graph_t *g);       // frees the builder and what the graph owns

#endif  // MLXCEL_COMPILER_FUNCTION_H_
