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
  bool window_pages;    // layers with a sliding window have their own pages (kernels/step.h). Only if some
                        // layers have a window and others see all positions
  mlx_layout_t layout;  // of the weights; the generic path reads MLX_LAYOUT_ROWS only
  mlx_quantize_t quantize;
  int64_t context;  // chooses the RoPE frequencies of models that have several sets. The pure form has a KV
                    // pool of this many positions. Else the runtime chooses context length and pool
  mlx_step_size_t steps[MLX_MAX_BUCKETS];  // each step_N, N ascending
  size_t step_count;
  mlx_kernels_t *kernels;  // collects the linked kernels; NULL on the generic path
} mlx_module_options_t;

// The step sizes of the generic path.
void mlx_module_options_initialize(int64_t context, mlx_module_options_t *out_options);
void mlx_module_options_set_steps(const mlx_step_size_t *steps, size_t count, mlx_module_options_t *options);

mlx_storage_t mlx_module_storage(const mlx_module_options_t *options);

// Whether attention rounds queries and softmax weights to 16 bits (kernels/cuda/attention.cu).
bool mlx_module_rounds_attention(const mlx_module_options_t *options);

// Bytes of a key or a value of one head in the KV pool. An 8-bit pool has a byte for each number and an f32
// scale.
int64_t mlx_module_kv_head_bytes(const mlx_module_options_t *options, int64_t head_dim);

int64_t mlx_module_pure_pages(const mlx_module_options_t *options);  // of the only sequence of the pure form

#endif  // MLXCEL_COMPILER_MODULE_OPTIONS_H_
