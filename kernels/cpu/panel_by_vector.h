// Panels times one activation vector.
#ifndef MLXCEL_KERNELS_CPU_PANEL_BY_VECTOR_H_
#define MLXCEL_KERNELS_CPU_PANEL_BY_VECTOR_H_

#include "panel_codes.h"
#include "vectors.h"

// One panel of a quantized format times a single vector.
v16 mlx_panel_times_vector(int32_t format, const uint8_t *panel, vectors_t *x, int columns);
// The same for Q2_K, in f32.
v16 mlx_q2_k_times_vector(const uint8_t *panel, const float *x, int columns);

#define PLAIN_PANELS 4
// Up to PLAIN_PANELS panels of plain values times |x|. Returns how many panels it multiplied: 1 or
// PLAIN_PANELS.
int mlx_plain_panels_times_vector(int32_t format, int count, const uint8_t *panel, int64_t bytes,
                                  const float *x, int columns, v16 *out);

#endif  // MLXCEL_KERNELS_CPU_PANEL_BY_VECTOR_H_
