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
  MLX_ROWS_OF_HEADS,            // rows of each head in a matrix with other rows of heads (mlx_tensor_rule_t)
  MLX_COLUMNS_OF_HEADS,         // such rows are the columns of the head's matrix
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

// The layers that have a weight.
typedef enum mlx_rule_layers {
  MLX_ALL_LAYERS = 0,
  MLX_RECURRENT_LAYERS,
  MLX_ATTENTION_LAYERS,
  MLX_MLP_LAYERS,      // those with an MLP only, which is no mixture
  MLX_DENSE_LAYERS,    // with an MLP
  MLX_EXPERT_LAYERS,   // with a mixture of experts
  MLX_MIXTURE_LAYERS,  // those that config.mixture lists
  MLX_LATER_LAYERS,    // all but the first
} mlx_rule_layers_t;

// The stored row of row |row| of a weight whose rows are some rows of a fused tensor.
typedef int64_t (*mlx_picked_row_t)(const mlx_config_t *config, int64_t row);

// One weight of an architecture and its name in each format. "%d" in a name stands for the layer; a rule
// without it describes one tensor of the whole model.
typedef struct mlx_tensor_rule {
  const char *hf_name;  // also our name for the weight
  const char *gguf_name;
  int rank;
  uint32_t dims[MLX_MAX_RANK];                  // MLX_DIM or MLX_HEADS
  bool (*present)(const mlx_config_t *config);  // NULL: always present
  mlx_rule_layers_t layers;
  // Layers that have it, if |layers| cannot say which; NULL: |layers| decides.
  bool (*in_layer)(const mlx_config_t *config, int layer);
  bool squeezed;  // Hugging Face and MLX store one more dimension, of 1, after the first
  bool flat;      // of a vector: GGUF stores its numbers as a matrix
  mlx_row_order_t gguf_order, hf_order;  // how each format stores the rows
  const char *hf_stored;                 // name of the tensor in Hugging Face files, if it is not hf_name
  mlx_fused_part_t hf_fused_part;        // the part of that tensor
  mlx_picked_row_t hf_row, gguf_row;  // of a matrix: rows of a tensor with |fused_rows| rows; NULL: all rows
  uint32_t fused_rows;                // MLX_DIM
  // Of a weight [heads, rows, columns]: a matrix with |fused_rows| rows for each head, of which those from
  // |whole_first| on are the weight's, if the file has no tensor for this weight. With |whole_transposed|
  // they are the columns of the head's matrix.
  const char *hf_whole, *gguf_whole;
  uint32_t whole_first;  // MLX_DIM; 0: the first row
  bool whole_transposed;
  bool hf_stacked;         // Hugging Face has one tensor per index of the first dimension: "%e"
  const char *mlx_name;    // name in MLX directories, if it differs; of a stacked weight as one tensor
  double hf_value_offset;  // Hugging Face stores value - hf_value_offset, as norms with (1 + weight) do
  // Hugging Face stores row |row| of a matrix without this factor; NULL: 1. GGUF stores the product.
  double (*hf_row_factor)(const mlx_config_t *config, int64_t row);
} mlx_tensor_rule_t;

// Extents for the dims of a rule: a config field, or that many heads times head_dim. Encoded as the offset of
// an int64_t field of mlx_config_t in the lower 16 bits and, for a product, of its factor in the upper 16.
#define MLX_DIM(field) ((uint32_t)offsetof(mlx_config_t, field))
#define MLX_HEADS(field) MLX_PRODUCT(field, head_dim)
#define MLX_PRODUCT(field, factor) (MLX_DIM(field) | MLX_DIM(factor) << 16)

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
  bool (*skips)(const mlx_config_t *config, const char *name);  // others, by the config; NULL: none
  mlx_status_t (*read_config)(const mlx_source_t *source, mlx_config_t *out_config);
  // One layer as calls of graph/ops.h, from hidden states [M, hidden] to hidden states.
  mlx_value_t (*layer)(mlx_graph_t *graph, const mlx_config_t *config, int layer, mlx_value_t x);
  // The network: |tokens| are the token ids [M] of a step. Returns the hidden states [M, hidden] after the
  // final norm. NULL: mlx_block_forward, the embedding, |layer| for each layer, and an RMSNorm.
  mlx_value_t (*forward)(mlx_graph_t *graph, const mlx_model_t *model, mlx_value_t tokens);
  // The LM head, from the hidden states of each sequence's last token to logits [sequences, vocab].
  // NULL: mlx_block_head. Of an encoder: its class head, from pooled rows to scores; NULL: it has none.
  mlx_value_t (*head)(mlx_graph_t *graph, const mlx_model_t *model, mlx_value_t hidden);
} mlx_arch_t;

#endif  // MLXCEL_MODELS_ARCH_H_
