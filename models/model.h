// A model: a source read through its architecture, as one config and one list of weights.
//
// This header includes the other public headers of models/:
//   models/tensor.h         a tensor of a model file
//   models/import/source.h  the files on disk: fields and tensors under the names of their format
//   models/config.h         sizes and options of a model
//   models/arch.h           an architecture: its tensors, its config reader, its network
//
// Weights borrow their bytes from the mapped files of the source. Nothing is copied or converted here.
#ifndef MLXCEL_MODELS_MODEL_H_
#define MLXCEL_MODELS_MODEL_H_

#include "base/status.h"
#include "graph/graph.h"
#include "models/arch.h"
#include "models/config.h"
#include "models/import/packing.h"
#include "models/import/source.h"
#include "models/tensor.h"

typedef struct mlx_weight {
  char *name;             // owned; Hugging Face's name, also the parameter's name in the compiled module
  mlx_tensor_t tensor;    // the stored bytes; for a quantized matrix its codes, with the dims of the matrix
  mlx_packing_t packing;  // how Hugging Face directories quantize it; the kind is usually MLX_NOT_PACKED
  mlx_row_order_t order;
  int64_t order_head_dim;       // rows per head, for orders that depend on heads
  mlx_fused_part_t fused_part;  // if set, tensor.size is the size of this part
  // If set, the rows are rows of a larger tensor: row i is its row picked_row(config, i), and tensor.size is
  // the size of these rows.
  mlx_picked_row_t picked_row;
  // MLX_ROWS_OF_HEADS and MLX_COLUMNS_OF_HEADS: rows of a head in the file, and the first one of the weight.
  int64_t head_rows, head_first;
  // A part of the weight in the file, for a rank (compiler/ranks.h): its rows from |first_row| on; of each
  // stored row, or of a vector, which has |stored_columns| numbers, those from |first_column| on. 0: all.
  int64_t first_row, first_column, stored_columns;
  const mlx_config_t *config;    // of the model
  double value_offset;           // added to every stored value
  float *row_factors;            // owned: factor of each row of a matrix; NULL: all are 1
  const mlx_tensor_t **parts;    // owned: the dims[0] tensors that are stacked; NULL: one tensor
  mlx_packing_t *part_packings;  // owned: how each part is quantized; NULL: not quantized
  unsigned roles;                // what the network uses it for (graph/roles.h); 0: unknown
  // Act order of GPTQ (models/import/order.c). Indices are borrowed from the model.
  const int32_t *row_order;  // row i of each |order_rows| rows is their row row_order[i] of the file; NULL:
                             // rows are not sorted
  int64_t order_rows;
  size_t column_order;  // 1 + index of the weight that has packing.order; 0: products need no order
  bool is_order;        // it is such a weight: i32 [columns], computed and not in the file
} mlx_weight_t;

struct mlx_model {
  const mlx_arch_t *arch;
  mlx_config_t config;
  mlx_source_t *source;   // owned
  mlx_weight_t *weights;  // owned, in the order of the arch's rules, layer by layer; then column orders
  size_t weight_count;
  int32_t **orders;  // owned: the column orders of GPTQ matrices, each once
  size_t order_count;
  int64_t kv_numbers;         // that the KV cache keeps for one position, all layers
  int64_t recurrent_numbers;  // f32 numbers of the recurrent state of a sequence; 0: there is none
  int64_t window_kv_numbers;  // those of the layers with window pages (kernels/step.h); 0: there are none
};

// Opens |path| and reads it through its architecture; checks every field and every shape. Release with
// mlx_model_close.
mlx_status_t mlx_model_open(const char *path, mlx_model_t **out_model) MLX_MUST_USE;
void mlx_model_close(mlx_model_t *model);

// ---- models/import/order.c ----

// Sorts the columns of GPTQ matrices in act order by group, so that their codes can be kept, and adds a
// weight for each order that products must apply to their input. mlx_model_open calls it, after
// mlx_model_read_network. Graphs that were built before must not be used any more.
mlx_status_t mlx_model_sort_columns(mlx_model_t *model) MLX_MUST_USE;
// Undoes it. For a module that stores all weights as floats the order of the file is as good.
void mlx_model_unsort_columns(mlx_model_t *model);

// ---- models/shared/network.c ----

// Builds the network of |model| for this context length. Some models choose their RoPE by it; the rest of the
// graph does not depend on it. Release with mlx_graph_free, before mlx_model_close.
mlx_status_t mlx_model_build_graph(const mlx_model_t *model, int64_t context,
                                   mlx_graph_t **out_graph) MLX_MUST_USE;
// Sets the roles of all weights, and kv_numbers. mlx_model_open calls it; a network with wrong shapes fails
// there.
mlx_status_t mlx_model_read_network(mlx_model_t *model) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_MODEL_H_
