// The function being built: the state that every op lowering reads and writes (mlx_function_t), and the
// prologue that each emitted function starts with. The bottom of the lowering; it calls no lowering itself.
#ifndef MLXCEL_COMPILER_FUNCTION_H_
#define MLXCEL_COMPILER_FUNCTION_H_

#include "compiler/module_facts.h"
#include "compiler/paths.h"

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

typedef struct mlx_function {
  mlx_builder_t *b;
  const mlx_model_t *model;
  const mlx_graph_t *graph;
  const mlx_module_options_t *options;
  mlx_module_facts_t facts;  // of the module; the emitter of its path fills it
  mlx_paths_t paths;         // owned
  mlx_value_t *values;       // owned; node id -> its value in the function being built
  const char *scope;         // of the node that was emitted last
  char **kv_names;           // owned: "kv.LAYER.k", "kv.LAYER.v" for each layer
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
  // The last input that was split into bf16 parts for a quantized product, and its parts.
  mlx_value_t split_input, split_parts;
  bool split_for_rows16;  // in the column order of 16-bit weights
} mlx_function_t;

// Chooses the path of each node and allocates what the function owns. Release with mlx_function_release, also
// after an error.
mlx_status_t mlx_function_create(const mlx_model_t *model, const mlx_graph_t *graph,
                                 const mlx_module_options_t *options, mlx_function_t *out) MLX_MUST_USE;

void mlx_function_declare(mlx_function_t *g);  // weights and state
void mlx_function_begin_function(mlx_function_t *g, const char *name, const char *comment, int64_t tokens);
mlx_value_t mlx_function_pages_argument(mlx_function_t *g);
// Sets positions and, if any attention is on the generic path, slots and mask. |positions| and |valid| are
// [sequences, T]. A token that is not valid writes its keys and values to page 0.
void mlx_function_place_tokens(mlx_function_t *g, mlx_value_t positions, mlx_value_t valid);
void mlx_function_begin_decode(mlx_function_t *g);  // decode_1, up to the network
void mlx_function_release(mlx_function_t *g);       // frees the builder and what the function owns

#endif  // MLXCEL_COMPILER_FUNCTION_H_
