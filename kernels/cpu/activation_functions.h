// Activation functions of a network, and a logarithm, in f32 accuracy.
#ifndef MLXCEL_KERNELS_CPU_ACTIVATION_FUNCTIONS_H_
#define MLXCEL_KERNELS_CPU_ACTIVATION_FUNCTIONS_H_

#include "layout.h"
#include "vector.h"

INLINE v16 v_sigmoid(v16 x) { return v_div(v_all(1), v_add(v_all(1), v_exp(v_sub(v_zero(), x)))); }
INLINE v16 v_silu(v16 x) { return v_div(x, v_add(v_all(1), v_exp(v_sub(v_zero(), x)))); }

// The rational approximations of tanh and erf that Eigen and XLA use: a few ulp.
INLINE v16 v_tanh(v16 value) {
  const v16 x = v_min(v_max(value, v_all(-7.90531110763549805f)), v_all(7.90531110763549805f)),
            z = v_mul(x, x);
  v16 p = v_all(-2.76076847742355e-16f);
  p = v_fma(p, z, v_all(2.00018790482477e-13f));
  p = v_fma(p, z, v_all(-8.60467152213735e-11f));
  p = v_fma(p, z, v_all(5.12229709037114e-08f));
  p = v_fma(p, z, v_all(1.48572235717979e-05f));
  p = v_fma(p, z, v_all(6.37261928875436e-04f));
  p = v_fma(p, z, v_all(4.89352455891786e-03f));
  v16 q = v_all(1.19825839466702e-06f);
  q = v_fma(q, z, v_all(1.18534705686654e-04f));
  q = v_fma(q, z, v_all(2.26843463243900e-03f));
  q = v_fma(q, z, v_all(4.89352518554385e-03f));
  return v_div(v_mul(x, p), q);
}

INLINE v16 v_erf(v16 value) {
  const v16 x = v_min(v_max(value, v_all(-4)), v_all(4)), z = v_mul(x, x);
  v16 p = v_all(-2.72614225801306e-10f);
  p = v_fma(p, z, v_all(2.77068142495902e-08f));
  p = v_fma(p, z, v_all(-2.10102402082508e-06f));
  p = v_fma(p, z, v_all(-5.69250639462346e-05f));
  p = v_fma(p, z, v_all(-7.34990630326855e-04f));
  p = v_fma(p, z, v_all(-2.95459980854025e-03f));
  p = v_fma(p, z, v_all(-1.60960333262415e-02f));
  v16 q = v_all(-1.45660718464996e-05f);
  q = v_fma(q, z, v_all(-2.13374055278905e-04f));
  q = v_fma(q, z, v_all(-1.68282697438203e-03f));
  q = v_fma(q, z, v_all(-7.37332916720468e-03f));
  q = v_fma(q, z, v_all(-1.42647390514189e-02f));
  return v_div(v_mul(x, p), q);
}

INLINE v16 v_gelu(v16 x) {
  return v_mul(v_mul(x, v_all(0.5f)), v_add(v_all(1), v_erf(v_mul(x, v_all(0.70710678118654752f)))));
}
INLINE v16 v_gelu_tanh(v16 x) {
  const v16 cube = v_mul(v_mul(v_mul(x, x), x), v_all(0.044715f));
  return v_mul(v_mul(x, v_all(0.5f)),
               v_add(v_all(1), v_tanh(v_mul(v_add(x, cube), v_all(0.79788456080286536f)))));
}

// e^x - 1 for x <= 0. Near 0, where the difference would lose digits, its series.
INLINE v16 v_expm1(v16 x) {
  const float series_from = -0.5f;
  const v16 difference = v_sub(v_exp(x), v_all(1));
  v16 series = v_all(1);
  for (int i = 9; i >= 2; --i) series = v_fma(v_mul(series, x), v_all(1.0f / (float)i), v_all(1));
  series = v_mul(series, x);
  return v_add(v_where_above(x, series_from, series),
               v_sub(difference, v_where_above(x, series_from, difference)));
}

INLINE v16 v_xielu(const float *numbers, v16 x) {
  const v16 square = v_mul(v_mul(v_all(numbers[0]), x), x), bottom = v_min(x, v_all(numbers[3])),
            below = v_mul(v_sub(v_expm1(bottom), x), v_all(numbers[1]));
  const v16 curve = v_add(v_where_above(x, 0, square), v_sub(below, v_where_above(x, 0, below)));
  return v_add(curve, v_mul(v_all(numbers[2]), x));
}

// |numbers|: MLX_ACT_NUMBERS of them.
static inline v16 v_activate(int act, const float *numbers, v16 x) {
  switch (act) {
    case MLX_RUN_SILU: return v_silu(x);
    case MLX_RUN_GELU: return v_gelu(x);
    case MLX_RUN_GELU_TANH: return v_gelu_tanh(x);
    case MLX_RUN_RELU: return v_max(x, v_zero());
    case MLX_RUN_RELU2: return v_mul(v_max(x, v_zero()), v_max(x, v_zero()));
    case MLX_RUN_XIELU: return v_xielu(numbers, x);
    default: return x;
  }
}

INLINE v16 v_softcap(v16 x, float cap) { return v_mul(v_tanh(v_div(x, v_all(cap))), v_all(cap)); }
INLINE v16 v_clip(v16 x, float limit) { return v_min(v_max(x, v_all(-limit)), v_all(limit)); }

// Natural logarithm of a positive normal number, in double: 2 artanh((m - 1) / (m + 1)) of the significand m.
static inline double natural_log(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  int exponent = (int)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
  __builtin_memcpy(&x, &bits, sizeof x);
  if (x > 1.4142135623730951) x /= 2, ++exponent;
  const double r = (x - 1) / (x + 1), z = r * r;
  double sum = 0;
  for (int i = 21; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
  return exponent * 0.69314718055994530942 + 2 * r * sum;
}

#endif  // MLXCEL_KERNELS_CPU_ACTIVATION_FUNCTIONS_H_
