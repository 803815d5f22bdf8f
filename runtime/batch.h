// Batch: the words of the argument |batch| of a step (kernels/step.h), built from segments.
//
// Ownership: the caller owns the batch and reuses it for the next step. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_BATCH_H_
#define MLXCEL_RUNTIME_BATCH_H_

#include "artifact/manifest.h"
#include "runtime/stepper.h"

// What the words depend on beside the segments.
typedef struct mlx_batch_shape {
  mlx_step_size_t size;   // of the function: N and W. A burst has 1 and 1
  int64_t pool_pages;     // of the KV pool
  int64_t slot_pages;     // entries of a row of |pages|
  int64_t history_width;  // entries of a row of the argument |history|
  int64_t vocab;
  int64_t chunk_pages;          // rows of the page table are padded to a multiple of it; at least 1
  const int32_t *pages;         // [slots][slot_pages]
  int64_t window_pages;         // of the KV pool; 0: a page has all layers
  const int32_t *window_table;  // [slots][slot_pages]; NULL without window pages
  int64_t states;               // of the KV pool; 0: there are none
  const int32_t *state_table;   // [slots][2]; NULL without states
  int64_t routes_at;            // MLX_STEP_AT_ROUTES
  int64_t exchange_at;          // MLX_STEP_AT_EXCHANGE
} mlx_batch_shape_t;

typedef struct mlx_batch {
  int32_t *words;
  size_t count, capacity;
  int64_t tokens, wanted;  // of the segments
} mlx_batch_t;

// Tokens and wanted tokens of |segments|.
void mlx_batch_count(const mlx_segment_t *segments, size_t count, int64_t *out_tokens, int64_t *out_wanted);
// Fills |batch|. The segments fit the size. |burst|: tokens to decode; 0 for a step. |eos| may be NULL.
mlx_status_t mlx_batch_build(mlx_batch_t *batch, const mlx_batch_shape_t *shape,
                             const mlx_segment_t *segments, size_t count, int32_t burst, const int32_t *eos,
                             size_t eos_count) MLX_MUST_USE;
void mlx_batch_clear(mlx_batch_t *batch);

#endif  // MLXCEL_RUNTIME_BATCH_H_
