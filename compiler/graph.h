// Graph: a model as the functions of the contract between compiler and runtime (docs/architecture.md
// describes it).
//
//   prefill_T(tokens: rows x T, start: rows, count: rows, pages: rows x P) -> next token: rows
//   decode_K(active: rows, pages: rows x P) -> the next K tokens: rows x K
//   logits() -> rows x vocab
//
// All are i32 tensors but the logits. Weights and KV pages have the dtype asked for; everything computed is
// f32. State on the device: the KV pages of each layer, and each row's token, position and logits. A row is
// one sequence; pages lists the pool's pages that hold its positions, in order. Page 0 belongs to nobody:
// positions past |count| and rows that are not active write there, and such rows keep their state.
#ifndef MLXCEL_COMPILER_GRAPH_H_
#define MLXCEL_COMPILER_GRAPH_H_

#include "artifact/manifest.h"
#include "compiler/builder.h"
#include "compiler/kernels.h"
#include "compiler/weights.h"

typedef struct mlx_graph_options {
  mlx_form_t form;
  mlx_dtype_t dtype;    // of the KV cache and of the weights, as mlx_weight_stored says
  mlx_layout_t layout;  // of the weights; but rows for the CPU's kernel only
  mlx_quantize_t quantize;
  int64_t context;                   // positions a row may use; the pages hold it rounded up
  int64_t sequences;                 // sequences decoded together
  int64_t page_size;                 // positions in a page
  int64_t buckets[MLX_MAX_BUCKETS];  // prefill sizes, ascending
  size_t bucket_count;
  int64_t steps[MLX_MAX_BUCKETS];  // K of each decode_K, ascending
  size_t step_count;
  mlx_kernels_t *kernels;  // collects the linked kernels; NULL: the plain lowering only
} mlx_graph_options_t;

void mlx_graph_options_initialize(int64_t context,
                                  mlx_graph_options_t *out_options);  // one row, a few buckets

// Links kernels where there are ones for the model: chooses prefill sizes, steps and layout for them.
// |kernels| knows its GPU and dtype, or its CPU.
mlx_status_t mlx_graph_use_kernels(const mlx_model_t *model, mlx_kernels_t *kernels,
                                   mlx_graph_options_t *options) MLX_MUST_USE;

mlx_storage_t mlx_graph_storage(const mlx_graph_options_t *options);

int64_t mlx_graph_sequence_pages(const mlx_graph_options_t *options);
int64_t mlx_graph_sequence_positions(const mlx_graph_options_t *options);
int64_t mlx_graph_pool_pages(const mlx_graph_options_t *options);

// The whole module as MLIR text. Release with mlx_free.
mlx_status_t mlx_graph_emit(const mlx_model_t *model, const mlx_graph_options_t *options, char **out_text,
                            size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_GRAPH_H_
