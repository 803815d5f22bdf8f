// Instructions that compute one row (one token) at a time.
#ifndef MLXCEL_KERNELS_CPU_ROWS_H_
#define MLXCEL_KERNELS_CPU_ROWS_H_

#include "call.h"

// Row of the input for row |row| of the output.
INLINE int source_row(const call_t *c, const mlx_instruction_t *i, int row) {
  return i->rows == MLX_ROWS_SELECT ? c->wanted_of[row] : row;
}

void mlx_run_embed(const call_t *c, const mlx_instruction_t *i, int row);       // embedding.c
void mlx_run_norm(const call_t *c, const mlx_instruction_t *i, int row);        // norms.c
void mlx_run_map(const call_t *c, const mlx_instruction_t *i, int row);         // elementwise.c
void mlx_run_permute(const call_t *c, const mlx_instruction_t *i, int row);     // elementwise.c
void mlx_run_pick(const call_t *c, const mlx_instruction_t *i, int row);        // elementwise.c
void mlx_run_hidden(const call_t *c, const mlx_instruction_t *i, int row);      // elementwise.c
void mlx_run_pool(const call_t *c, const mlx_instruction_t *i, int row);        // pool.c
void mlx_run_rope_table(const call_t *c, const mlx_instruction_t *i, int row);  // rope.c
void mlx_run_rope(const call_t *c, const mlx_instruction_t *i, int row);        // rope.c
void mlx_run_sum_ranks(const call_t *c, const mlx_instruction_t *i, int row);   // ranks.c
void mlx_run_append(const call_t *c, const mlx_instruction_t *i, int row);      // kv_append.c

#endif  // MLXCEL_KERNELS_CPU_ROWS_H_
