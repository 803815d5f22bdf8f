// Quantized panels times several activation vectors. A panel is unpacked once for all vectors. Each vector
// gets exactly the bits that it gets alone (panel_by_vector.h), because every operation that rounds is the
// same, in the same order. panels_by_vectors_integer.c has the way of CPUs with integers,
// panels_by_vectors_f32.c that of others.
#ifndef MLXCEL_KERNELS_CPU_PANELS_BY_VECTORS_H_
#define MLXCEL_KERNELS_CPU_PANELS_BY_VECTORS_H_

#include "vectors.h"

#define SUM_PANELS 4  // panels that are multiplied together

// Sums of a panel with several vectors: GROUP_VECTORS per group. Without integers, |second| has the sums of
// the second halves' scaled codes, or of the offsets, and the product is total + second.
typedef struct panel_sums {
  v16 total[MAX_VECTORS];
#if !HAS_INTEGERS
  v16 second[MAX_VECTORS];
#endif
} panel_sums_t;

INLINE void clear_sums(panel_sums_t *sums, const vectors_t *x) {
  const int half = GROUP_VECTORS / 2, end = GROUP_VECTORS * group_count(x->count);
  for (int t = 0; t < (x->count <= half ? half : end); ++t) {
    sums->total[t] = v_zero();
#if !HAS_INTEGERS
    sums->second[t] = v_zero();
#endif
  }
}
// Index of the sum of vector |nth|.
INLINE int sum_index(const vectors_t *x, int nth) { return nth / x->group * GROUP_VECTORS + nth % x->group; }
// The product of vector |nth|.
INLINE v16 sum_at(const panel_sums_t *sums, const vectors_t *x, int nth) {
  const int at = sum_index(x, nth);
#if HAS_INTEGERS
  return sums->total[at];
#else
  return v_add(sums->total[at], sums->second[at]);
#endif
}

// Before products with panels of a format. |tiles|: the configuration of this thread's tiles, 0 for none.
void mlx_start_products(int32_t format, const vectors_t *x, int *tiles);
// After the last of them.
void mlx_end_products(int *tiles);

// Adds the prepared blocks of |panels| panels, at most SUM_PANELS, to |sums|. They are |stride| bytes apart.
// The caller has called mlx_start_products().
void mlx_panels_times_vectors(int32_t format, const uint8_t *panel, int64_t stride, int panels, vectors_t *x,
                              panel_sums_t *sums);
// The same for plain values and Q2_K, for one panel: the product of each vector by itself, complete.
void mlx_panel_times_each_vector(int32_t format, const uint8_t *panel, const vectors_t *x, int columns,
                                 panel_sums_t *sums);

#endif  // MLXCEL_KERNELS_CPU_PANELS_BY_VECTORS_H_
