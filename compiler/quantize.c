// No statement has both a product and a sum, which a compiler might fuse: the codes are the same whoever
// compiled this.
#include "compiler/quantize.h"

#include <math.h>
#include <string.h>

#define MOST_F16 65504.0

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
  return mlx_status_hint(mlx_error(MLX_USAGE, "--quantize wants q4 or q8, not '%s'", text),
                         "or one of q4_0, q4_1 and q8_0");
}

const char *mlx_quantize_name(mlx_quantize_t kind) { return kinds[kind].name; }
mlx_dtype_t mlx_quantize_dtype(mlx_quantize_t kind) { return kinds[kind].dtype; }
mlx_quantize_t mlx_quantize_of_vocabulary(mlx_quantize_t kind) {
  return kind == MLX_QUANTIZE_NONE ? kind : MLX_QUANTIZE_Q8_0;
}

// ----------------------------------------------------------------------------------------------------------
// A block

// One way to say 32 numbers: scale * code + offset.
typedef struct attempt {
  float scale, offset;
  float code[MLX_CODES];
  float error;  // sum of squares
} attempt_t;

typedef struct range {
  float least, most;  // of the codes
  bool offset;        // there is one
} range_t;

static float as_half(double value) {
  const double bounded = value > MOST_F16 ? MOST_F16 : value < -MOST_F16 ? -MOST_F16 : value;
  const float narrow = (float)bounded;
  uint8_t half[2];
  float out;
  mlx_dtype_info(MLX_F16)->from_f32(&narrow, 1, half);
  mlx_dtype_info(MLX_F16)->to_f32(half, 1, &out);
  return out;
}

// The nearest codes under a scale and an offset, which are rounded first. Eight sums side by side, in one
// order: so that the loop can become vector code.
static void choose_codes(const float x[MLX_CODES], range_t range, double scale, double offset,
                         attempt_t *out) {
  const float to_whole = 0x1.8p23f;  // a float of that size has no fraction: adding it rounds
  float sums[8] = {0};
  out->scale = as_half(scale);
  out->offset = range.offset ? as_half(offset) : 0;
  const float inverse = out->scale == 0 ? 0 : 1 / out->scale, away = out->offset, step = out->scale;
  for (int i = 0; i < MLX_CODES; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const float distance = x[i + k] - away, exact = distance * inverse;
      const float above = exact < range.least ? range.least : exact,
                  within = above > range.most ? range.most : above;
      const float raised = within + to_whole, code = raised - to_whole;
      const float said = code * step, wrong = distance - said, square = wrong * wrong;
      out->code[i + k] = code;
      sums[k] += square;
    }
  }
  out->error = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The scale and the offset that say |x| best by these codes; as they were where the codes do not tell.
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

#define TURNS 4

// From a first guess: its codes, then what fits those best, then the codes of that, as long as it helps.
static void try_from(const float x[MLX_CODES], range_t range, double scale, double offset, attempt_t *best) {
  attempt_t attempt;
  float before = INFINITY;
  choose_codes(x, range, scale, offset, &attempt);
  for (int turn = 0; turn < TURNS && attempt.error < before; ++turn) {
    if (attempt.error < best->error) *best = attempt;
    before = attempt.error;
    fit(x, range, attempt.code, &scale, &offset);
    choose_codes(x, range, scale, offset, &attempt);
  }
  if (attempt.error < best->error) *best = attempt;
}

// Scales that reach from one end of the numbers to the other, and shorter ones, which cut the ends off and
// say the rest finer.
static void search(const float x[MLX_CODES], range_t range, double low, double high, attempt_t *best) {
  static const double stretches[] = {1, 0.9, 0.8, 0.7};
  const double width = range.most - range.least, whole = (high - low) / width, middle = (high + low) / 2;
  const double furthest =
      -low > high ? low : high;  // without offset the least code, which has no opposite, stands for this one
  for (size_t i = 0; i < sizeof stretches / sizeof *stretches; ++i) {
    const double scale = range.offset ? whole * stretches[i] : furthest / range.least * stretches[i],
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
  attempt_t best = {0};
  if (finite && kind == MLX_QUANTIZE_Q8_0) {
    choose_codes(x, range, (-low > high ? -low : high) / range.most, 0, &best);
  } else if (finite) {
    choose_codes(x, range, (high - low) / (range.most - range.least), low, &best);  // one to be bettered
    search(x, range, low, high, &best);
  }
  for (int i = 0; i < MLX_CODES; ++i) out->code[i] = (int16_t)best.code[i];
  for (int i = 0; i < 2; ++i) {
    out->scale[i] = best.scale;
    out->offset[i] = best.offset;
  }
  return finite;
}
