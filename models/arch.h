// One architecture: its names, its tensors in each file format, how to read its config, and its network.
//
// An architecture is a const mlx_arch_t named mlx_arch_NAME in models/NAME.c. The build collects these files;
// there is no list to maintain.
#ifndef MLXCEL_MODELS_ARCH_H_
#define MLXCEL_MODELS_ARCH_H_

#include <stddef.h>
#include <stdint.h>

#include "graph/ops.h"
#include "models/config.h"
#include "models/import/source.h"

typedef struct mlx_model mlx_model_t;

// How a file stores the rows of a weight. The weight archive has them as [out, in], in the order of Hugging
// Face's Llama.
typedef enum mlx_row_order {
  MLX_ROWS_AS_STORED = 0,
  MLX_ROWS_INTERLEAVED_HALVES,  // q and k in GGUF: stored row 2i+s of a head is row s*head_dim/2+i
  MLX_ROWS_QKV_BY_HEAD,         // fused q, k and v stored head by head; the archive has all q, all k, all v
  MLX_ROWS_ARE_COLUMNS,         // a matrix, or one matrix per expert, stored as [in, out]
} mlx_row_order_t;

// Which rows of a fused tensor belong to a weight. A fused tensor holds two weights, for experts two per
// expert, in its second dimension (after transposing MLX_ROWS_ARE_COLUMNS).
typedef enum mlx_fused_part {
  MLX_NOT_FUSED = 0,  // the tensor is the weight
  MLX_FUSED_FIRST_HALF,
  MLX_FUSED_SECOND_HALF,
  MLX_FUSED_EVEN_ROWS,
  MLX_FUSED_ODD_ROWS,
} mlx_fused_part_t;

// One weight of an architecture and its name in each format. "%d" in a name stands for the layer; a rule
// without it describes one tensor of the whole model.
typedef struct mlx_tensor_rule {
  const char *hf_name;  // also our name for the weight
  const char *gguf_name;
  int rank;
  uint32_t dims[MLX_MAX_RANK];                  // MLX_DIM or MLX_HEADS
  bool (*present)(const mlx_config_t *config);  // NULL: always present
  mlx_row_order_t gguf_order, hf_order;         // how each format stores the rows
  const char *hf_stored;           // name of the tensor in Hugging Face files, if it is not hf_name
  mlx_fused_part_t hf_fused_part;  // the part of that tensor
  bool hf_stacked;                 // Hugging Face has one tensor per index of the first dimension: "%e"
  const char *mlx_name;            // name of the single stacked tensor in MLX directories
  double hf_value_offset;  // Hugging Face stores value - hf_value_offset, as norms with (1 + weight) do
} mlx_tensor_rule_t;

// Extents for the dims of a rule: a config field, or that many heads times head_dim. Encoded as the offset of
// an int64_t field of mlx_config_t in the lower 16 bits and, for a product, of its factor in the upper 16.
#define MLX_DIM(field) ((uint32_t)offsetof(mlx_config_t, field))
#define MLX_HEADS(field) (MLX_DIM(field) | MLX_DIM(head_dim) << 16)

// Rules. Further arguments are designated initialisers of mlx_tensor_rule_t.
#define MLX_VECTOR(hf, gguf, extent, ...) \
  {.hf_name = hf, .gguf_name = gguf, .rank = 1, .dims = {extent}, __VA_ARGS__}
#define MLX_MATRIX(hf, gguf, rows, columns, ...) \
  {.hf_name = hf, .gguf_name = gguf, .rank = 2, .dims = {rows, columns}, __VA_ARGS__}
#define MLX_EXPERTS(hf, gguf, rows, columns, ...) \
  {.hf_name = hf, .gguf_name = gguf, .rank = 3, .dims = {MLX_DIM(experts), rows, columns}, __VA_ARGS__}

typedef struct mlx_arch {
  const char *const *hf_types;    // model_type values of config.json, NULL-terminated
  const char *const *gguf_types;  // general.architecture values, NULL-terminated
  // Several architectures can share a general.architecture value. Then |matches| is true for exactly one of
  // them. NULL: the name decides.
  bool (*matches)(const mlx_source_t *source);
  const mlx_tensor_rule_t *tensors;  // their order is the order of the weights in the archive
  size_t tensor_count;
  // Tensors that are skipped, by the end or the start of their names. NULL-terminated; may be NULL.
  const char *const *ignored;  // name endings: buffers that hold no learned values
  const char *const *unused;   // name beginnings: weights that token-by-token decoding does not use
  mlx_status_t (*read_config)(const mlx_source_t *source, mlx_config_t *out_config);
  // The network as calls of graph/ops.h. |tokens| are the token ids [M] of a step. Returns the hidden states
  // [M, hidden] after the final norm.
  mlx_value_t (*forward)(mlx_graph_t *graph, const mlx_model_t *model, mlx_value_t tokens);
  // The LM head, from the hidden states of each sequence's last token to logits [sequences, vocab].
  mlx_value_t (*head)(mlx_graph_t *graph, const mlx_model_t *model, mlx_value_t hidden);
} mlx_arch_t;

#endif  // MLXCEL_MODELS_ARCH_H_
