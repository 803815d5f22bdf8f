// Latent attention: all query heads share one key, which begins with the value.
#ifndef MLXCEL_KERNELS_CPU_LATENT_H_
#define MLXCEL_KERNELS_CPU_LATENT_H_

#include "call.h"

// Items: a few query heads of a row.
int mlx_latent_items(const call_t *c, const mlx_instruction_t *i);
void mlx_run_latent(const call_t *c, const mlx_instruction_t *i, int item);

#endif  // MLXCEL_KERNELS_CPU_LATENT_H_
