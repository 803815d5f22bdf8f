// GGUF's types whose blocks hold more than one scale or a table of values, widened to f32: rows of the table in dtype.c.
#ifndef MLXCEL_MODELS_IMPORT_KQUANTS_H_
#define MLXCEL_MODELS_IMPORT_KQUANTS_H_

#include <stddef.h>
#include <stdint.h>

#define MLX_SUPER_BLOCK 256  // elements in a block of the types with scales inside

// Each has the contract of to_f32 in models/dtype.h.
void mlx_q2_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q3_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q4_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q5_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q6_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_iq4_nl_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_iq4_xs_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_mxfp4_to_f32(const uint8_t *source, size_t blocks, float *out);

#endif  // MLXCEL_MODELS_IMPORT_KQUANTS_H_
