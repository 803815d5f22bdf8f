// Trace: the list of ops of a network, recorded while it is lowered once on the generic path.
#ifndef MLXCEL_COMPILER_TRACE_H_
#define MLXCEL_COMPILER_TRACE_H_

#include "compiler/function.h"

typedef enum mlx_trace_kind {
  MLX_TRACE_EMBED,
  MLX_TRACE_RMSNORM,
  MLX_TRACE_LINEAR,
  MLX_TRACE_ADD,
  MLX_TRACE_SWIGLU,
  MLX_TRACE_ROPE,
  MLX_TRACE_ATTENTION,
  MLX_TRACE_OTHER,  // an op that no network kernel has
} mlx_trace_kind_t;

// One op: the ids of its values, and its parameters.
typedef struct mlx_trace_op {
  mlx_trace_kind_t kind;
  const char *name;  // kind OTHER: name of the op for messages ("layer norm"); a string literal
  int result, operands[3];
  int weight;     // id of its weight value
  double number;  // eps of a norm
  int64_t head_dim;
  const mlx_rope_t *rope;
  mlx_attention_t attention;
} mlx_trace_op_t;

typedef struct mlx_trace {
  mlx_trace_op_t *ops;  // owned
  size_t count, capacity;
  mlx_value_t *weights;  // owned: the value of each weight, in the model's order
} mlx_trace_t;

// Records |op|. Does nothing if the graph is not being traced.
void mlx_trace_add(mlx_graph_t *graph, const mlx_trace_op_t *op);

// Lowers decode_1 of |model| on the generic path, discards the text and keeps the ops. Release with
// mlx_trace_clear, also after an error.
mlx_status_t mlx_trace_record(const mlx_model_t *model, const mlx_module_options_t *options,
                              mlx_trace_t *out_trace) MLX_MUST_USE;
void mlx_trace_clear(mlx_trace_t *trace);

#endif  // MLXCEL_COMPILER_TRACE_H_
