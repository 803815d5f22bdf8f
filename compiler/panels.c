// Panel formats of matrices, and writing rows into panels.
#include "compiler/panels.h"

#include <string.h>

#include "graph/kquants.h"
#include "models/model.h"

#define ROWS MLX_PANEL_ROWS
#define BLOCK MLX_PANEL_BLOCK

// ----------------------------------------------------------------------------------------------------------
// Formats

static const mlx_panel_info_t infos[MLX_PANEL_FORMATS] = {
#define ROW(format, number, scales, offsets, bits, least, values, grouped, text) \
  [MLX_PANEL_##                                                                  \
      format] = {text, MLX_##number, scales, offsets, bits, least, MLX_PANEL_VALUES_##values, grouped},
    MLX_PANEL_TABLE(ROW)
#undef ROW
};

const mlx_panel_info_t *mlx_panel_info(mlx_panel_format_t format) { return &infos[format]; }

double mlx_panel_bits(mlx_panel_format_t format) {
  return (double)mlx_panel_block_bytes((int32_t)format) * 8 / (ROWS * BLOCK);
}

bool mlx_panel_format_of_packing(const mlx_packing_t *packing, mlx_panel_format_t *out_format) {
  if (!mlx_packing_has_codes(packing)) return false;
  const mlx_dtype_t scale = packing->parts[MLX_PART_SCALES]->dtype;
  if (packing->kind == MLX_PACKED_MXFP4) {
    *out_format = mlx_dtype_info(MLX_MXFP4)->panel;
    return true;
  }
  if (packing->kind != MLX_PACKED_MLX) {  // the formats that mlx_packing_codes fills
    *out_format = scale == MLX_F32     ? MLX_PANEL_Q8_HALVES
                  : scale == MLX_BF16  ? MLX_PANEL_Q4_WIDE
                  : packing->symmetric ? MLX_PANEL_Q4_0
                                       : MLX_PANEL_Q5_0;
    return true;
  }
  const bool alike = packing->parts[MLX_PART_OFFSETS]->dtype == scale, nibbles = packing->bits <= 4;
  if (alike && scale == MLX_F16) {
    *out_format = nibbles ? MLX_PANEL_Q4_1 : MLX_PANEL_Q8_1;
  } else if (alike && scale == MLX_BF16) {
    *out_format = nibbles ? MLX_PANEL_Q4_BF16 : MLX_PANEL_Q8_BF16;
  } else {
    *out_format = nibbles ? MLX_PANEL_Q4_WIDE : MLX_PANEL_Q8_WIDE;
  }
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

uint64_t mlx_panels_bytes(mlx_panel_format_t format, int64_t rows, int64_t columns) {
  return (uint64_t)((rows + ROWS - 1) / ROWS) * (uint64_t)mlx_panel_bytes((int32_t)format, columns);
}

void mlx_panel_pack(mlx_panel_format_t format, const uint8_t *rows, size_t row_bytes, int64_t count,
                    int64_t columns, uint8_t *out) {
  const size_t element = mlx_dtype_info(infos[format].number)->block_bytes;
  const int64_t together = format == MLX_PANEL_BF16 ? 2 : 1;  // neighbouring columns of a row
  memset(out, 0, (size_t)mlx_panel_bytes((int32_t)format, columns));
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t *row = rows + (size_t)r * row_bytes;
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t to = (k / together * ROWS + r) * together + k % together;
      memcpy(out + (size_t)to * element, row + (size_t)k * element, element);
    }
  }
}

// Writes |count| numbers of one of the 16 rows. Returns where the next numbers begin.
static uint8_t *put_numbers(const mlx_dtype_info_t *type, const float *values, int count, int64_t row,
                            uint8_t *out) {
  for (int i = 0; i < count; ++i, out += type->block_bytes * ROWS) {
    uint8_t *to = out + (size_t)row * type->block_bytes;
    if (type->from_f32)
      type->from_f32(&values[i], 1, to);
    else
      *to = (uint8_t)mlx_mxfp4_exponent(values[i]);  // U8: values[i] is a power of two
  }
  return out;
}

static void put_word(uint32_t word, int64_t nth, int64_t row, uint8_t *out) {
  for (int byte = 0; byte < 4; ++byte) out[(nth * ROWS + row) * 4 + byte] = (uint8_t)(word >> 8 * byte);
}

static uint64_t load_octet(const uint8_t *codes) {
  uint64_t octet = 0;
  for (int i = 0; i < 8; ++i) octet |= (uint64_t)codes[i] << 8 * i;
  return octet;
}

// Bytes 0, 2, 4 and 6.
static uint32_t even_bytes(uint64_t x) {
  x &= 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return (uint32_t)(x | x >> 16);
}

// Codes of 4 to 6 bits, from 0 up: the low 4 bits of all of them, then the other bits (kernels/cpu/layout.h).
// Eight codes at a time: packing all weights waits for this.
static void put_narrow(const uint8_t *codes, int bits, int64_t row, uint8_t *out) {
  const int more = bits - 4, octets = more ? 4 / more : 0;
  uint32_t high[2] = {0};
  for (int octet = 0; octet < BLOCK / 8; ++octet) {
    const uint64_t all = load_octet(codes + 8 * octet), low = all & 0x0f0f0f0f0f0f0f0f,
                   rest = all >> 4 & 0x0303030303030303;
    put_word(even_bytes(low | low >> 4), octet, row, out);
    if (more) high[octet / octets] |= even_bytes(rest | rest >> (8 - more)) << octet % octets * 2 * more;
  }
  for (int i = 0; i < more; ++i) put_word(high[i], BLOCK / 8 + i, row, out);
}

// The codes of the values of a block.
static void find_codes(const mlx_panel_info_t *info, const int16_t *values, uint8_t *out) {
  for (int i = 0; i < BLOCK; ++i) {
    if (info->values == MLX_PANEL_VALUES_IQ4)
      out[i] = (uint8_t)mlx_iq4_index(values[i]);
    else if (info->values == MLX_PANEL_VALUES_MXFP4)
      out[i] = (uint8_t)mlx_mxfp4_index(values[i]);
    else
      out[i] = (uint8_t)(values[i] - info->least_code);
  }
}

static void put_bytes(const int16_t *codes, int64_t row, uint8_t *out) {
  for (int k = 0; k < BLOCK; ++k) out[k * ROWS + row] = (uint8_t)codes[k];
}

static uint8_t *put_factors(const int16_t *values, int count, int64_t row, uint8_t *out) {
  for (int i = 0; i < count; ++i, out += ROWS) out[row] = (uint8_t)values[i];
  return out;
}

void mlx_panel_put(mlx_panel_format_t format, const mlx_codes_t *c, int64_t row, int64_t nth,
                   uint8_t *panel) {
  const mlx_panel_info_t *info = &infos[format];
  const mlx_dtype_info_t *number = mlx_dtype_info(info->number);
  uint8_t *at = panel + mlx_panel_block_at((int32_t)format, nth);
  if (info->grouped) {
    uint8_t *group = panel + mlx_panel_block_at((int32_t)format, nth / MLX_PANEL_GROUP * MLX_PANEL_GROUP) -
                     mlx_panel_group_bytes((int32_t)format);
    group = put_numbers(number, &c->block_scale, 1, row, group);
    put_numbers(number, &c->block_offset, info->offsets ? 1 : 0, row, group);
    at = put_factors(c->scale_factor, info->scales, row, at);
    at = put_factors(c->offset_factor, info->offsets, row, at);
  } else {
    at = put_numbers(number, c->scale, info->scales, row, at);
    at = put_numbers(number, c->offset, info->offsets, row, at);
  }
  if (info->code_bits == 8) {
    put_bytes(c->code, row, at);
    return;
  }
  uint8_t codes[BLOCK];
  find_codes(info, c->code, codes);
  put_narrow(codes, info->code_bits, row, at);
}
