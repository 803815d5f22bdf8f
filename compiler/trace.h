// Trace: what a network does, noted word by word while it is written once; and whether that is something the
// decode kernel can do.
#ifndef MLXCEL_COMPILER_TRACE_H_
#define MLXCEL_COMPILER_TRACE_H_

#include "compiler/graph.h"

typedef enum mlx_note_kind {
  MLX_NOTE_EMBED,
  MLX_NOTE_RMSNORM,
  MLX_NOTE_LINEAR,
  MLX_NOTE_ADD,
  MLX_NOTE_SWIGLU,
  MLX_NOTE_ROPE,
  MLX_NOTE_ATTENTION,
  MLX_NOTE_OTHER,  // a word that the decode kernel does not know
} mlx_note_kind_t;

// One word: ids of its values, and what it was told.
typedef struct mlx_note {
  mlx_note_kind_t kind;
  int result, operands[3];
  int weight;     // id of the value that is its weight
  double number;  // eps
  int64_t head_dim;
  const mlx_rope_t *rope;
  mlx_attention_t attention;
} mlx_note_t;

typedef struct mlx_trace {
  mlx_note_t *notes;
  size_t count, capacity;
} mlx_trace_t;

void mlx_trace_add(mlx_graph_t *graph, const mlx_note_t *note);  // does nothing where nobody wants to know

// A network of the shape that kernels/cuda/decode.cu computes, and where its weights are in the archive.
typedef struct mlx_decode_place {
  uint64_t at, step;  // layer 0's, and from one layer's to the next
} mlx_decode_place_t;
typedef enum mlx_decode_weight {
  MLX_DECODE_EMBED,
  MLX_DECODE_ATTN_NORM,
  MLX_DECODE_Q,
  MLX_DECODE_K,
  MLX_DECODE_V,
  MLX_DECODE_O,
  MLX_DECODE_MLP_NORM,
  MLX_DECODE_GATE,
  MLX_DECODE_UP,
  MLX_DECODE_DOWN,
  MLX_DECODE_FINAL_NORM,
  MLX_DECODE_HEAD,
  MLX_DECODE_WEIGHTS,
} mlx_decode_weight_t;
typedef struct mlx_decode_plan {
  mlx_decode_place_t places[MLX_DECODE_WEIGHTS];
  mlx_tiles_t tiles[MLX_DECODE_WEIGHTS];  // of matrices that are packed
  int64_t hidden, ffn;
  mlx_attention_t attention;
  double norm_eps;
  const mlx_rope_t *rope;
  int64_t blocks, shared_bytes;  // the launch
  int64_t segment;               // columns of a stage, at most
  int64_t scratch_words;
  int64_t most_steps;  // in one launch: nobody wants to wait longer for the next words
} mlx_decode_plan_t;

// The same network for kernels/cpu/network.c, which wants no regular places.
typedef struct mlx_network_plan {
  bool fits;  // else nothing below means anything
  double norm_eps, scale;
  const mlx_rope_t *rope;
  size_t *weights;  // owned [layers][MLX_DECODE_WEIGHTS]: which of the model's weights; those of no layer are
                    // in the first
} mlx_network_plan_t;

// Not fitting: the model is not of that shape, or odd. Release with mlx_network_plan_clear.
mlx_status_t mlx_trace_network(const mlx_model_t *model, const mlx_graph_options_t *options,
                               mlx_network_plan_t *out_plan) MLX_MUST_USE;
void mlx_network_plan_clear(mlx_network_plan_t *plan);

// True when every layer's attention is what kernels/cuda/attention.cu computes: no window that the context
// would outgrow, no cap, no sinks, all heads alike.
mlx_status_t mlx_trace_attention_fits(const mlx_model_t *model, const mlx_graph_options_t *options,
                                      bool *out_fits) MLX_MUST_USE;

// False when the model is not of that shape, or too odd or too large for the GPU.
mlx_status_t mlx_trace_decode_plan(const mlx_model_t *model, const mlx_graph_options_t *options,
                                   mlx_decode_plan_t *out_plan, bool *out_fits) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_TRACE_H_
