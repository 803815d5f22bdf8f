// Mixture of experts. A token and one of its experts are a pair: pair token * used + i is the token's expert
// with the i-th largest score. The pairs are sorted by expert, and each expert multiplies the rows of its
// pairs like a product of its own (products.h).
#ifndef MLXCEL_KERNELS_CPU_EXPERTS_H_
#define MLXCEL_KERNELS_CPU_EXPERTS_H_

#include "products.h"

// Chooses the experts of a row, and their weights.
void mlx_run_route(const call_t *c, const mlx_instruction_t *i, int row);
// Sorts the pairs by expert.
void mlx_run_group(const call_t *c, const mlx_instruction_t *i);
// Items of the products of all experts, and computing items [from, to) of them.
int mlx_expert_items(const call_t *c, const mlx_instruction_t *i);
void mlx_run_expert_product(const call_t *c, const mlx_instruction_t *i, worker_t *worker, uint64_t phase,
                            int from, int to);
// The weighted sum of a row's expert outputs.
void mlx_run_expert_sum(const call_t *c, const mlx_instruction_t *i, int row);

#endif  // MLXCEL_KERNELS_CPU_EXPERTS_H_
