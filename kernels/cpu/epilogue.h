// What follows a product: bias, activation, gate, factor, softcap, residual, and where the result goes.
#ifndef MLXCEL_KERNELS_CPU_EPILOGUE_H_
#define MLXCEL_KERNELS_CPU_EPILOGUE_H_

#include "products.h"

// Applies the epilogue to the sums of one row of x for the 16 rows of a panel.
void mlx_finish_product(const call_t *c, const product_t *p, int token, int panel, v16 value, v16 up);
// mlx_finish_product() for |count| rows, starting at |row|. |up|: sums of the second matrix, if there is one.
void mlx_finish_products(const call_t *c, const product_t *p, int row, int count, int panel,
                         const vectors_t *x, const panel_sums_t *one, const panel_sums_t *up);
// mlx_finish_product() for |count| rows, starting at |row|, whose sums are |step| numbers apart. |up| as
// above, else any sums.
void mlx_finish_rows(const call_t *c, const product_t *p, int row, int count, int panel, const float *sums,
                     const float *up, int64_t step);

#endif  // MLXCEL_KERNELS_CPU_EPILOGUE_H_
