// Module options: everything that decides the shape of an emitted module, and the sizes that follow from it.
#ifndef MLXCEL_COMPILER_MODULE_OPTIONS_H_
#define MLXCEL_COMPILER_MODULE_OPTIONS_H_

#include "artifact/manifest.h"
#include "compiler/builder.h"
#include "compiler/kernels.h"
#include "compiler/storage.h"

typedef struct mlx_module_options {
  mlx_form_t form;
  mlx_dtype_t dtype;    // of weights that do not keep the dtype of their file (mlx_weight_stored)
  bool as_stored;       // 16-bit matrices keep the dtype of their file
  bool narrow;          // prefill rounds activations to |dtype|, which has 16 bits
  mlx_dtype_t kv;       // of the KV cache
  mlx_layout_t layout;  // of the weights; the generic path reads MLX_LAYOUT_ROWS only
  mlx_quantize_t quantize;
  int64_t context;                   // positions per sequence; the pages round it up
  int64_t sequences;                 // sequences decoded together
  int64_t page_size;                 // positions in a KV page
  int64_t buckets[MLX_MAX_BUCKETS];  // T of each prefill_T, ascending
  size_t bucket_count;
  int64_t steps[MLX_MAX_BUCKETS];  // K of each decode_K, ascending
  size_t step_count;
  mlx_kernels_t *kernels;  // collects the linked kernels; NULL on the generic path
} mlx_module_options_t;

// One sequence, decode_1, and the prefill sizes of the generic path.
void mlx_module_options_initialize(int64_t context, mlx_module_options_t *out_options);

// Replaces the prefill sizes by those of |sizes| (ascending) that fit the context. The first one always
// stays.
void mlx_module_options_set_buckets(const int64_t *sizes, size_t count, mlx_module_options_t *options);

mlx_storage_t mlx_module_storage(const mlx_module_options_t *options);

// Whether attention rounds queries and softmax weights to 16 bits (kernels/cuda/attention.cu).
bool mlx_module_rounds_attention(const mlx_module_options_t *options);

int64_t mlx_module_sequence_pages(const mlx_module_options_t *options);
int64_t mlx_module_sequence_positions(const mlx_module_options_t *options);
int64_t mlx_module_pool_pages(const mlx_module_options_t *options);

#endif  // MLXCEL_COMPILER_MODULE_OPTIONS_H_
