// The ways to multiply: each computes items of a product whose rows are all multiplied in this way.
#ifndef MLXCEL_KERNELS_CPU_PRODUCTS_BY_H_
#define MLXCEL_KERNELS_CPU_PRODUCTS_BY_H_

#include "products.h"

// A few rows, panel by panel. Items [from, to) of a share: panels of the first MAX_VECTORS rows, then of the
// next ones.
void mlx_multiply_by_vector(const call_t *c, const product_t *p, const share_t *share, worker_t *worker,
                            uint64_t phase, int from, int to);
// Many rows in f32. An item is a group of panels with a block of rows.
void mlx_multiply_by_block(const call_t *c, const product_t *p, int item);
#if HAS_TILES
// Up to FEW_TOKENS rows on AMX tiles. An item is a panel.
void mlx_multiply_by_few_tiles(const call_t *c, const product_t *p, int from, int to);
// Many rows on AMX tiles.
void mlx_multiply_by_tiles(const call_t *c, const product_t *p, int item);
#endif

#endif  // MLXCEL_KERNELS_CPU_PRODUCTS_BY_H_
