// Characters as Python's str classifies them.
#ifndef MLXCEL_UNICODE_PYTHON_H_
#define MLXCEL_UNICODE_PYTHON_H_

#include "unicode/tables.h"

static inline bool mlx_codepoint_is_space(uint32_t c) {  // str.isspace
  return mlx_ranges_have(&mlx_python_spaces, c);
}
static inline bool mlx_codepoint_is_printable(uint32_t c) {  // str.isprintable
  return !mlx_ranges_have(&mlx_python_unprintable, c);
}
static inline bool mlx_codepoint_is_alpha(uint32_t c) {  // str.isalpha
  return mlx_ranges_have(&mlx_python_alphas, c);
}
static inline bool mlx_codepoint_is_decimal(uint32_t c) {  // str.isdecimal
  return mlx_ranges_have(&mlx_python_decimals, c);
}
static inline bool mlx_codepoint_is_digit(uint32_t c) {  // str.isdigit
  return mlx_ranges_have(&mlx_python_digits, c);
}
static inline bool mlx_codepoint_is_numeric(uint32_t c) {  // str.isnumeric
  return mlx_ranges_have(&mlx_python_numerics, c);
}
static inline bool mlx_codepoint_is_cased(uint32_t c) {  // has lower and upper case
  return mlx_ranges_have(&mlx_python_cased, c);
}

#endif  // MLXCEL_UNICODE_PYTHON_H_
