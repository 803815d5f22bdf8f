// Products of heads: each head of a row has its own columns and its own matrix.
#ifndef MLXCEL_KERNELS_CPU_HEADS_H_
#define MLXCEL_KERNELS_CPU_HEADS_H_

#include "products.h"

int mlx_head_items(const call_t *c, const mlx_instruction_t *i);
// Computes items [from, to).
void mlx_run_head_product(const call_t *c, const mlx_instruction_t *i, worker_t *worker, uint64_t phase,
                          int from, int to);

#endif  // MLXCEL_KERNELS_CPU_HEADS_H_
