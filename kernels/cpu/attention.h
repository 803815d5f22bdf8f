// Attention of the queries of an instruction.
#ifndef MLXCEL_KERNELS_CPU_ATTENTION_H_
#define MLXCEL_KERNELS_CPU_ATTENTION_H_

#include "call.h"

// Items: all query heads of one KV head for one row, or one head of a few rows.
int mlx_attend_items(const call_t *c, const mlx_instruction_t *i);
void mlx_run_attend(const call_t *c, const mlx_instruction_t *i, int item);

// Biases of attention scores, for each distance of a key and a query.
void mlx_run_spread(const call_t *c, const mlx_instruction_t *i);

#endif  // MLXCEL_KERNELS_CPU_ATTENTION_H_
