// Quantizes blocks of 32 floats. No statement has both a product and a sum: a C compiler could fuse them, and
// codes must not depend on the compiler.
#include "compiler/quantize.h"

#include <math.h>
#include <string.h>

#define MAX_F16 65504.0

static const struct {
  const char *name;
  mlx_dtype_t dtype;
} kinds[] = {[MLX_QUANTIZE_NONE] = {NULL, MLX_F32},
             [MLX_QUANTIZE_Q4_0] = {"q4_0", MLX_Q4_0},
             [MLX_QUANTIZE_Q4_1] = {"q4_1", MLX_Q4_1},
             [MLX_QUANTIZE_Q8_0] = {"q8_0", MLX_Q8_0}};

mlx_status_t mlx_quantize_parse(const char *text, mlx_quantize_t *out_kind) {
  *out_kind = MLX_QUANTIZE_NONE;
  if (!text) return NULL;
  if (!strcmp(text, "q4")) *out_kind = MLX_QUANTIZE_Q4_1;
  if (!strcmp(text, "q8")) *out_kind = MLX_QUANTIZE_Q8_0;
  for (int i = MLX_QUANTIZE_Q4_0; i <= MLX_QUANTIZE_Q8_0; ++i) {
    if (!strcmp(text, kinds[i].name)) *out_kind = (mlx_quantize_t)i;
  }
  if (*out_kind != MLX_QUANTIZE_NONE) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "unknown value '%s' for --quantize", text),
                         "use q4, q8, q4_0, q4_1 or q8_0");
}

const char *mlx_quantize_name(mlx_quantize_t kind) { return kinds[kind].name; }
mlx_dtype_t mlx_quantize_dtype(mlx_quantize_t kind) { return kinds[kind].dtype; }
mlx_quantize_t mlx_quantize_of_vocabulary(mlx_quantize_t kind) {
  return kind == MLX_QUANTIZE_NONE ? kind : MLX_QUANTIZE_Q8_0;
}

// ----------------------------------------------------------------------------------------------------------
// A block

// A candidate: element i is scale * code[i] + offset.
typedef struct candidate {
  float scale, offset;
  float code[MLX_CODES];
  float error;  // sum of squares
} candidate_t;

typedef struct range {
  float min_code, max_code;
  bool offset;  // the type has an offset
} range_t;

static float as_half(double value) {
  const double bounded = value > MAX_F16 ? MAX_F16 : value < -MAX_F16 ? -MAX_F16 : value;
  const float single = (float)bounded;
  uint8_t half[2];
  float out;
  mlx_dtype_info(MLX_F16)->from_f32(&single, 1, half);
  mlx_dtype_info(MLX_F16)->to_f32(half, 1, &out);
  return out;
}

// Rounds |scale| and |offset| to f16 and chooses the nearest code for each float. Eight partial sums in a
// fixed order let the compiler vectorize the loop without changing the result.
static void choose_codes(const float x[MLX_CODES], range_t range, double scale, double offset,
                         candidate_t *out) {
  const float to_integer = 0x1.8p23f;  // floats of this size have no fraction bits, so adding it rounds
  float sums[8] = {0};
  out->scale = as_half(scale);
  out->offset = range.offset ? as_half(offset) : 0;
  const float inverse = out->scale == 0 ? 0 : 1 / out->scale, base = out->offset, step = out->scale;
  for (int i = 0; i < MLX_CODES; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const float distance = x[i + k] - base, exact = distance * inverse;
      const float above = exact < range.min_code ? range.min_code : exact,
                  within = above > range.max_code ? range.max_code : above;
      const float raised = within + to_integer, code = raised - to_integer;
      const float decoded = code * step, error = distance - decoded, square = error * error;
      out->code[i + k] = code;
      sums[k] += square;
    }
  }
  out->error = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Least-squares scale and offset for these codes. Leaves both unchanged if the codes do not determine them.
static void fit(const float x[MLX_CODES], range_t range, const float code[MLX_CODES], double *scale,
                double *offset) {
  double codes = 0, squares = 0, numbers = 0, products = 0;
  for (int i = 0; i < MLX_CODES; ++i) {
    const double c = code[i], product = c * x[i], square = c * c;
    codes += c;
    squares += square;
    numbers += x[i];
    products += product;
  }
  if (!range.offset) {
    if (squares > 0) *scale = products / squares;
    return;
  }
  const double n_squares = MLX_CODES * squares, codes_codes = codes * codes,
               determinant = n_squares - codes_codes;
  if (determinant <= 0) return;
  const double n_products = MLX_CODES * products, codes_numbers = codes * numbers;
  const double squares_numbers = squares * numbers, codes_products = codes * products;
  *scale = (n_products - codes_numbers) / determinant;
  *offset = (squares_numbers - codes_products) / determinant;
}

#define ROUNDS 4

// Alternates between choosing codes and fitting scale and offset, from a first guess, while the error
// shrinks.
static void try_from(const float x[MLX_CODES], range_t range, double scale, double offset,
                     candidate_t *best) {
  candidate_t candidate;
  float before = INFINITY;
  choose_codes(x, range, scale, offset, &candidate);
  for (int round = 0; round < ROUNDS && candidate.error < before; ++round) {
    if (candidate.error < best->error) *best = candidate;
    before = candidate.error;
    fit(x, range, candidate.code, &scale, &offset);
    choose_codes(x, range, scale, offset, &candidate);
  }
  if (candidate.error < best->error) *best = candidate;
}

// Tries scales that cover the whole range of the floats, and smaller scales, which clip the extremes and
// resolve the rest more finely.
static void search(const float x[MLX_CODES], range_t range, double low, double high, candidate_t *best) {
  static const double shrink_factors[] = {1, 0.9, 0.8, 0.7};
  const double width = range.max_code - range.min_code, full_scale = (high - low) / width,
               middle = (high + low) / 2;
  // Without an offset, the smallest code (-8, which has no positive counterpart) represents the largest
  // magnitude.
  const double largest = -low > high ? low : high;
  for (size_t i = 0; i < sizeof shrink_factors / sizeof *shrink_factors; ++i) {
    const double scale = range.offset ? full_scale * shrink_factors[i]
                                      : largest / range.min_code * shrink_factors[i],
                 half = scale * width / 2;
    try_from(x, range, scale, middle - half, best);
    if (!range.offset) try_from(x, range, -scale, 0, best);
  }
}

bool mlx_quantize_block(mlx_quantize_t kind, const float x[MLX_CODES], mlx_codes_t *out) {
  const range_t range = kind == MLX_QUANTIZE_Q4_0   ? (range_t){-8, 7, false}
                        : kind == MLX_QUANTIZE_Q4_1 ? (range_t){0, 15, true}
                                                    : (range_t){-127, 127, false};
  double low = x[0], high = x[0];
  bool finite = true;
  for (int i = 0; i < MLX_CODES; ++i) {
    finite = finite && isfinite(x[i]);
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  candidate_t best = {0};
  if (finite && kind == MLX_QUANTIZE_Q8_0) {
    choose_codes(x, range, (-low > high ? -low : high) / range.max_code, 0, &best);
  } else if (finite) {
    choose_codes(x, range, (high - low) / (range.max_code - range.min_code), low, &best);  // the baseline
    search(x, range, low, high, &best);
  }
  for (int i = 0; i < MLX_CODES; ++i) out->code[i] = (int16_t)best.code[i];
  for (int i = 0; i < 2; ++i) {
    out->scale[i] = best.scale;
    out->offset[i] = best.offset;
  }
  return finite;
}
