// exp, log and pow with bit-identical results on every machine.
//
// C libraries round these functions differently, and one different bit may make the sampler choose another
// token. The functions here use only +, -, *, / and bit operations, in a fixed order. Their error is at most
// two units in the last place.
#ifndef MLXCEL_RUNTIME_EXACT_MATH_H_
#define MLXCEL_RUNTIME_EXACT_MATH_H_

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/sample.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF  // no fused multiply-add; gcc uses none under -std=c11
#endif

#define MLX_LN2_HIGH 6.93147180369123816490e-01  // the last 32 bits are zero, so k * LN2_HIGH is exact
#define MLX_LN2_LOW 1.90821492927058770002e-10

static inline double mlx_power_of_two(int64_t k) {  // k: -1022 to 1023
  uint64_t bits = (uint64_t)(k + 1023) << 52;
  double out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static inline double mlx_exp(double x) {
  if (x != x) return x;
  if (x > 709.782712893384) return INFINITY;
  if (x < -745.2) return 0;
  const double scaled = x * 1.44269504088896338700;
  const int64_t k = (int64_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double r = (x - (double)k * MLX_LN2_HIGH) - (double)k * MLX_LN2_LOW;  // |r| <= ln(2) / 2
  double sum = 0;
  for (int n = 14; n > 0; --n) sum = (sum + 1) * r / n;
  sum += 1;
  const int64_t half = k / 2;  // scale twice, because 2^k alone may be subnormal or infinite
  return sum * mlx_power_of_two(half) * mlx_power_of_two(k - half);
}

static inline double mlx_log(double x) {
  if (x != x || x < 0) return NAN;
  if (x == 0) return -INFINITY;
  if (x > DBL_MAX) return x;
  if (x < DBL_MIN) return mlx_log64(x * mlx_power_of_two(54)) - 54 * (MLX_LN2_HIGH + MLX_LN2_LOW);
  return mlx_log64(x);
}

// |base| must be greater than 0.
static inline double mlx_pow(double base, double exponent) { return mlx_exp(exponent * mlx_log(base)); }

#endif  // MLXCEL_RUNTIME_EXACT_MATH_H_
