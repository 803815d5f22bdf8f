// Phases: how many items each has, and computing them. Phases are numbered over all steps of a call.
#ifndef MLXCEL_KERNELS_CPU_PHASES_H_
#define MLXCEL_KERNELS_CPU_PHASES_H_

#include "products.h"

INLINE uint64_t phases_of_step(const call_t *c) { return (uint64_t)c->n->phases; }

uint32_t mlx_phase_items(const call_t *c, uint64_t number);
uint32_t mlx_phase_grain(const call_t *c, uint64_t number);  // items that take the time of one
// Computes items [from, to) of phase |number|.
void mlx_run_phase(const call_t *c, worker_t *worker, uint64_t number, int from, int to);

#endif  // MLXCEL_KERNELS_CPU_PHASES_H_
