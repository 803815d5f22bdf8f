// A block of a K type or of IQ4_XS has 256 elements in groups of 16 or 32. It has one f16 scale (some types
// also one f16 minimum), and each group has a small integer that multiplies it.
//
// The C compiler cannot change a result by fusing or reordering steps. An f16 has 11 significant bits, a
// group's integer at most 7 and a quant at most 7, and no type exceeds 24 bits in total. So scale * integer *
// quant is exact in f32, and subtracting a minimum rounds once with or without an FMA. Only the signs of
// zeros depend on the order of the factors; it is that of the gguf package: (scale * integer) * quant.
#include "graph/kquants.h"

#include <string.h>

#include "graph/half.h"
#include "kernels/cpu/panel_format.h"

void mlx_q2_k_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 84, out += MLX_SUPER_BLOCK) {
    const uint8_t *scales = source, *quants = source + 16;  // [16], [64]
    const float block_scale = mlx_load_f16(source + 80), block_minimum = mlx_load_f16(source + 82);
    for (int group = 0; group < 16; ++group) {
      const float scale = block_scale * (float)(scales[group] & 15),
                  minimum = block_minimum * (float)(scales[group] >> 4);
      const uint8_t *from = mlx_pair_bytes(quants, group);
      const int shift = mlx_pair_shift(group);
      for (int j = 0; j < 16; ++j) out[16 * group + j] = scale * (float)(from[j] >> shift & 3) - minimum;
    }
  }
}

void mlx_q3_k_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 110, out += MLX_SUPER_BLOCK) {
    const uint8_t *high = source, *quants = source + 32, *scales = source + 96;  // [32], [64], [12]
    const float block_scale = mlx_load_f16(source + 108);
    for (int group = 0; group < 16; ++group) {
      const float scale = block_scale * (float)mlx_q3_k_scale(scales, group);
      const uint8_t *from = mlx_pair_bytes(quants, group), *third_bits = high + group % 2 * 16;
      const int shift = mlx_pair_shift(group), bit = group / 2;
      for (int j = 0; j < 16; ++j) {  // the third bit, if clear, subtracts 4
        out[16 * group + j] = scale * (float)((from[j] >> shift & 3) + (third_bits[j] >> bit & 1) * 4 - 4);
      }
    }
  }
}

void mlx_q4_k_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 144, out += MLX_SUPER_BLOCK) {
    const uint8_t *packed = source + 4, *nibbles = source + 16;  // [12], [128]
    const float block[2] = {mlx_load_f16(source), mlx_load_f16(source + 2)};
    for (int group = 0; group < 8; ++group) {
      float scale, minimum;
      mlx_group_scale(packed, group, block, &scale, &minimum);
      const uint8_t *from = nibbles + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int j = 0; j < 32; ++j) out[32 * group + j] = scale * (float)(from[j] >> shift & 15) - minimum;
    }
  }
}

void mlx_q5_k_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 176, out += MLX_SUPER_BLOCK) {
    const uint8_t *packed = source + 4, *high = source + 16, *nibbles = source + 48;  // [12], [32], [128]
    const float block[2] = {mlx_load_f16(source), mlx_load_f16(source + 2)};
    for (int group = 0; group < 8; ++group) {
      float scale, minimum;
      mlx_group_scale(packed, group, block, &scale, &minimum);
      const uint8_t *from = nibbles + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int j = 0; j < 32; ++j) {
        out[32 * group + j] =
            scale * (float)((from[j] >> shift & 15) | (high[j] >> group & 1) << 4) - minimum;
      }
    }
  }
}

void mlx_q6_k_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 210, out += MLX_SUPER_BLOCK) {
    const uint8_t *nibbles = source, *high = source + 128,
                  *scales = source + 192;  // [128], [64], [16] signed
    const float block_scale = mlx_load_f16(source + 208);
    for (int group = 0; group < 16; ++group) {
      const float scale = block_scale * (float)(int8_t)scales[group];
      // Byte j of 64 holds elements j and j + 64.
      const uint8_t *low_bits = nibbles + group / 8 * 64 + group % 4 * 16,
                    *high_bits = mlx_pair_bytes(high, group);
      const int low_shift = group % 8 / 4 * 4, high_shift = mlx_pair_shift(group);
      for (int j = 0; j < 16; ++j) {
        const int quant = (low_bits[j] >> low_shift & 15) | (high_bits[j] >> high_shift & 3) << 4;
        out[16 * group + j] = scale * (float)(quant - 32);
      }
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Types whose 4-bit values are indices into a table. Byte j holds element j in its low half and element j +
// 16 in its high half.

static void look_up(const int8_t table[16], float scale, const uint8_t nibbles[16], float out[32]) {
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * (float)table[nibbles[j] & 15];
    out[j + 16] = scale * (float)table[nibbles[j] >> 4];
  }
}

const int8_t mlx_iq4_values[16] = {MLX_PANEL_IQ4};

void mlx_iq4_nl_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 18, out += 32)
    look_up(mlx_iq4_values, mlx_load_f16(source), source + 2, out);
}

void mlx_iq4_xs_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 136, out += MLX_SUPER_BLOCK) {
    const float block_scale = mlx_load_f16(source);
    for (int group = 0; group < 8; ++group) {
      look_up(mlx_iq4_values, block_scale * (float)mlx_iq4_xs_scale(source, group), source + 8 + 16 * group,
              out + 32 * group);
    }
  }
}

const int8_t mlx_mxfp4_doubled[16] = {MLX_PANEL_MXFP4_DOUBLED};  // index 8 is 0, not -0

int mlx_iq4_index(int value) {
  int i = 0;
  while (i < 15 && mlx_iq4_values[i] != value) ++i;
  return i;
}

int mlx_mxfp4_index(int doubled) {
  static const uint8_t indices[13] = {0, 1, 2, 3, 4, 7, 5, 7, 6, 7, 7, 7, 7};
  const int size = doubled < 0 ? -doubled : doubled;
  return indices[size < 12 ? size : 12] | (doubled < 0) << 3;
}

float mlx_mxfp4_half_scale(uint8_t exponent) {
  return mlx_float_of_bits(exponent < 2 ? UINT32_C(0x00200000) << exponent : (uint32_t)(exponent - 1) << 23);
}

int mlx_mxfp4_exponent(float half_scale) {
  uint32_t bits;
  memcpy(&bits, &half_scale, sizeof bits);
  return bits >> 23 ? (int)(bits >> 23) + 1 : bits > UINT32_C(0x00200000);  // 0 and 1 are subnormal
}

void mlx_mxfp4_to_f32(const uint8_t *source, size_t blocks, float *out) {
  for (; blocks; --blocks, source += 17, out += 32)
    look_up(mlx_mxfp4_doubled, mlx_mxfp4_half_scale(source[0]), source + 1, out);
}
