// Reads the integers and scales of one group of 32 elements from each quantized type.
#include "graph/codes.h"

#include "graph/half.h"
#include "graph/kquants.h"

#define GROUPS (MLX_SUPER_BLOCK / MLX_CODES)

static void set_scale(mlx_codes_t *out, float scale, float offset) {
  out->scale[0] = out->scale[1] = scale;
  out->offset[0] = out->offset[1] = offset;
}

// Sets the scale and offset of one half (16 elements) from the super-block's and their integer factors.
static void set_factors(mlx_codes_t *out, int half, int scale, int offset) {
  out->scale_factor[half] = (int16_t)scale;
  out->offset_factor[half] = (int16_t)offset;
  out->scale[half] = out->block_scale * (float)scale;
  out->offset[half] = out->block_offset * (float)offset;
}

// Types with blocks of 32: byte j of the nibbles holds element j in its low half and element j + 16 in its
// high half. |high|: fifth bits, or NULL. |bias| is subtracted from each code.
static void read_nibbles(const uint8_t *nibbles, const uint8_t *high, int bias, int16_t code[MLX_CODES]) {
  for (int j = 0; j < MLX_CODES / 2; ++j) {
    code[j] = (int16_t)((nibbles[j] & 15) - bias);
    code[j + MLX_CODES / 2] = (int16_t)((nibbles[j] >> 4) - bias);
  }
  uint8_t fifth[MLX_CODES];
  for (int i = 0; high && i < MLX_CODES / 8; ++i) {
    // Byte j of |bits| is 0 or 1 << j; adding 127 moves that to its highest bit.
    const uint64_t bits = (uint64_t)high[i] * 0x0101010101010101 & 0x8040201008040201,
                   sixteens = (bits + 0x7f7f7f7f7f7f7f7f) >> 3 & 0x1010101010101010;
    for (int j = 0; j < 8; ++j) fifth[8 * i + j] = (uint8_t)(sixteens >> 8 * j);
  }
  for (int j = 0; high && j < MLX_CODES; ++j) code[j] = (int16_t)(code[j] + fifth[j]);
}

static void read_q4_k(const uint8_t *block, int group, const uint8_t *nibbles, const uint8_t *high,
                      mlx_codes_t *out) {
  int scale, minimum;
  mlx_group_factors(block + 4, group, &scale, &minimum);
  out->block_scale = mlx_load_f16(block);
  out->block_offset = -mlx_load_f16(block + 2);
  for (int half = 0; half < 2; ++half) set_factors(out, half, scale, minimum);
  nibbles += group / 2 * 32;
  const int shift = group % 2 * 4;
  for (int j = 0; j < MLX_CODES; ++j) out->code[j] = (int16_t)(nibbles[j] >> shift & 15);
  for (int j = 0; high && j < MLX_CODES; ++j)
    out->code[j] = (int16_t)(out->code[j] | (high[j] >> group & 1) << 4);
}

// Groups have 16 elements: reads groups 2 * pair and 2 * pair + 1.
static void read_q2_k(const uint8_t *block, int pair, mlx_codes_t *out) {
  out->block_scale = mlx_load_f16(block + 80);
  out->block_offset = -mlx_load_f16(block + 82);
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * pair + half;
    const uint8_t *from = mlx_pair_bytes(block + 16, group);
    set_factors(out, half, block[group] & 15, block[group] >> 4);
    for (int j = 0; j < 16; ++j) out->code[16 * half + j] = (int16_t)(from[j] >> mlx_pair_shift(group) & 3);
  }
}

static void read_q3_k(const uint8_t *block, int pair, mlx_codes_t *out) {
  out->block_scale = mlx_load_f16(block + 108);
  out->block_offset = 0;
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * pair + half;
    const uint8_t *from = mlx_pair_bytes(block + 32, group), *third = block + half * 16;
    set_factors(out, half, mlx_q3_k_scale(block + 96, group), 0);
    for (int j = 0; j < 16; ++j) {
      out->code[16 * half + j] =
          (int16_t)((from[j] >> mlx_pair_shift(group) & 3) + (third[j] >> pair & 1) * 4 - 4);
    }
  }
}

static void read_q6_k(const uint8_t *block, int pair, mlx_codes_t *out) {
  out->block_scale = mlx_load_f16(block + 208);
  out->block_offset = 0;
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * pair + half;
    const uint8_t *low = block + group / 8 * 64 + group % 4 * 16, *high = mlx_pair_bytes(block + 128, group);
    set_factors(out, half, (int8_t)block[192 + group], 0);
    for (int j = 0; j < 16; ++j) {
      out->code[16 * half + j] =
          (int16_t)(((low[j] >> group % 8 / 4 * 4 & 15) | (high[j] >> mlx_pair_shift(group) & 3) << 4) - 32);
    }
  }
}

// The nibbles are indices into |table|; the codes are its values.
static void read_table(const int8_t table[16], const uint8_t *nibbles, mlx_codes_t *out) {
  read_nibbles(nibbles, NULL, 0, out->code);
  for (int j = 0; j < MLX_CODES; ++j) out->code[j] = table[out->code[j]];
}

static void read_iq4_xs(const uint8_t *block, int group, mlx_codes_t *out) {
  out->block_scale = mlx_load_f16(block);
  out->block_offset = 0;
  for (int half = 0; half < 2; ++half) set_factors(out, half, mlx_iq4_xs_scale(block, group), 0);
  read_table(mlx_iq4_values, block + 8 + 16 * group, out);
}

bool mlx_codes_read(mlx_dtype_t dtype, const uint8_t *row, size_t nth, mlx_codes_t *out) {
  const mlx_dtype_info_t *info = mlx_dtype_info(dtype);
  const uint8_t *block = row + nth * MLX_CODES / info->block_elements * info->block_bytes;
  const int group = (int)(nth % GROUPS);
  switch (dtype) {
    case MLX_Q4_0:
      set_scale(out, mlx_load_f16(block), 0);
      read_nibbles(block + 2, NULL, 8, out->code);
      return true;
    case MLX_Q4_1:
      set_scale(out, mlx_load_f16(block), mlx_load_f16(block + 2));
      read_nibbles(block + 4, NULL, 0, out->code);
      return true;
    case MLX_Q5_0:
      set_scale(out, mlx_load_f16(block), 0);
      read_nibbles(block + 6, block + 2, 16, out->code);
      return true;
    case MLX_Q5_1:
      set_scale(out, mlx_load_f16(block), mlx_load_f16(block + 2));
      read_nibbles(block + 8, block + 4, 0, out->code);
      return true;
    case MLX_Q8_0:
      set_scale(out, mlx_load_f16(block), 0);
      for (int j = 0; j < MLX_CODES; ++j) out->code[j] = (int8_t)block[2 + j];
      return true;
    case MLX_Q2_K: read_q2_k(block, group, out); return true;
    case MLX_Q3_K: read_q3_k(block, group, out); return true;
    case MLX_Q4_K: read_q4_k(block, group, block + 16, NULL, out); return true;
    case MLX_Q5_K: read_q4_k(block, group, block + 48, block + 16, out); return true;
    case MLX_Q6_K: read_q6_k(block, group, out); return true;
    case MLX_IQ4_NL:
      set_scale(out, mlx_load_f16(block), 0);
      read_table(mlx_iq4_values, block + 2, out);
      return true;
    case MLX_IQ4_XS: read_iq4_xs(block, group, out); return true;
    case MLX_MXFP4:
      set_scale(out, mlx_mxfp4_half_scale(block[0]), 0);
      read_table(mlx_mxfp4_doubled, block + 1, out);
      return true;
    default: return false;
  }
}
