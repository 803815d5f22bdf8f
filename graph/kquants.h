// GGUF types with several scales per block (K types, IQ4_XS) or a table of values (IQ4_NL, MXFP4):
// dequantization to f32 for the table in dtype.c, and the positions of their integers.
#ifndef MLXCEL_GRAPH_KQUANTS_H_
#define MLXCEL_GRAPH_KQUANTS_H_

#include <stddef.h>
#include <stdint.h>

#define MLX_SUPER_BLOCK 256  // elements in a block of the K types and IQ4_XS

// Contract: mlx_dtype_info_t.to_f32.
void mlx_q2_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q3_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q4_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q5_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_q6_k_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_iq4_nl_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_iq4_xs_to_f32(const uint8_t *source, size_t blocks, float *out);
void mlx_mxfp4_to_f32(const uint8_t *source, size_t blocks, float *out);

// ---- positions of their integers ----

// Two-bit fields: Q2_K, the low bits of Q3_K and the high bits of Q6_K. Byte j of 32 holds elements j, j +
// 32, j + 64 and j + 96, the lowest first. The 16 elements of |group| are at bit mlx_pair_shift of 16 bytes
// from mlx_pair_bytes.
static inline const uint8_t *mlx_pair_bytes(const uint8_t *bytes, int group) {
  return bytes + group / 8 * 32 + group % 2 * 16;
}
static inline int mlx_pair_shift(int group) { return group % 8 / 2 * 2; }

// Q3_K: six bits for each of 16 groups. The low four are in bytes 0 to 7 (groups 8 to 15 in the high halves),
// the upper two in bytes 8 to 11.
static inline int mlx_q3_k_scale(const uint8_t *scales, int group) {
  return ((scales[group % 8] >> group / 8 * 4 & 15) | (scales[8 + group % 4] >> group / 4 * 2 & 3) << 4) - 32;
}

// Q4_K and Q5_K: six bits of scale and six of minimum for each of 8 groups, in 12 bytes. Groups 0 to 3: the
// low six bits of bytes 0 to 3 (scale) and 4 to 7 (minimum). Groups 4 to 7: the low four bits are the halves
// of bytes 8 to 11, the upper two are the top bits of bytes 0 to 7.
static inline void mlx_group_factors(const uint8_t *packed, int group, int *out_scale, int *out_minimum) {
  if (group < 4) {
    *out_scale = packed[group] & 63;
    *out_minimum = packed[group + 4] & 63;
  } else {
    *out_scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
    *out_minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
  }
}

static inline void mlx_group_scale(const uint8_t *packed, int group, const float block[2], float *out_scale,
                                   float *out_minimum) {
  int scale, minimum;
  mlx_group_factors(packed, group, &scale, &minimum);
  *out_scale = block[0] * (float)scale;
  *out_minimum = block[1] * (float)minimum;
}

// IQ4_XS: six bits for each of 8 groups of 32. The low four are in bytes 4 to 7, the upper two in bytes 2
// and 3.
static inline int mlx_iq4_xs_scale(const uint8_t *block, int group) {
  const int high = block[2] | block[3] << 8;
  return ((block[4 + group / 2] >> group % 2 * 4 & 15) | (high >> 2 * group & 3) << 4) - 32;
}

// Value tables of 4-bit indices: IQ4_NL and IQ4_XS; MXFP4, doubled so that the values are integers.
extern const int8_t mlx_iq4_values[16], mlx_mxfp4_doubled[16];
// The index of a value of these tables. MXFP4: a value that is in the table or larger; larger ones become 12.
int mlx_iq4_index(int value);
int mlx_mxfp4_index(int doubled);

// Half of 2^(exponent - 127), because the table is doubled. The two smallest results are subnormal. Exponent
// 255 is NaN in the OCP specification, but 2^127 here, as in the gguf package (halved).
float mlx_mxfp4_half_scale(uint8_t exponent);
int mlx_mxfp4_exponent(float half_scale);  // the exponent of such a number

#endif  // MLXCEL_GRAPH_KQUANTS_H_
