// Columns of characters in a terminal.
#ifndef MLXCEL_UNICODE_WIDTH_H_
#define MLXCEL_UNICODE_WIDTH_H_

#include "unicode/tables.h"

static inline int mlx_char_width(uint32_t code) {  // 0, 1 or 2
  if (code < 0x80) return code >= 0x20 && code != 0x7f;
  if (mlx_ranges_have(&mlx_zero_columns, code)) return 0;
  return mlx_ranges_have(&mlx_two_columns, code) ? 2 : 1;
}

#endif  // MLXCEL_UNICODE_WIDTH_H_
