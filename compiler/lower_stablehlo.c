// Embedding, norms, products, activations and elementwise ops as plain StableHLO.
#include "compiler/lower_stablehlo.h"

mlx_built_t mlx_generic_embed(mlx_function_t *g, mlx_built_t table, mlx_built_t tokens, bool some) {
  mlx_builder_comment(g->b, "embedding rows of the tokens");
  if (some) {
    const mlx_built_t rows = mlx_build_int(g->b, "table_rows", table.dims[0], mlx_type_of(tokens));
    const mlx_built_t zero = mlx_build_int(g->b, "first_row", 0, mlx_type_of(tokens));
    const mlx_built_t inside = mlx_build_compare(g->b, "in_table", "LT", tokens, rows);
    tokens = mlx_build_select(g->b, "row_index", inside, tokens, zero);
  }
  mlx_built_t indices = mlx_build_reshape(g->b, "token_index", tokens, MLX_TYPE(MLX_I32, tokens.dims[0], 1));
  mlx_built_t rows = mlx_build_gather(g->b, "embedded", table, indices);
  return mlx_build_convert(g->b, "embedded_f32", rows, MLX_F32);
}

mlx_built_t mlx_generic_permute(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t order) {
  mlx_built_t indices = mlx_build_reshape(g->b, "column_index", order, MLX_TYPE(MLX_I32, order.dims[0], 1));
  return mlx_build_gather_columns(g->b, name, x, indices);
}

mlx_built_t mlx_generic_rmsnorm(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight,
                                double eps) {
  mlx_builder_t *b = g->b;
  const int64_t m = x.dims[0], width = x.dims[1];
  const mlx_type_t row = MLX_TYPE(MLX_F32, m), full = MLX_TYPE(MLX_F32, m, width);
  mlx_built_t square = mlx_build_binary(b, "square", "multiply", x, x);
  mlx_built_t sum = mlx_build_reduce_last(b, "square_sum", "add", square);
  mlx_built_t count = mlx_build_float(b, "width", (double)width, row);
  mlx_built_t mean = mlx_build_binary(b, "square_mean", "divide", sum, count);
  mlx_built_t small = mlx_build_float(b, "eps", eps, row);
  mlx_built_t safe = mlx_build_binary(b, "mean_plus_eps", "add", mean, small);
  mlx_built_t scale = mlx_build_unary(b, "rms_scale", "rsqrt", safe);
  mlx_built_t scales = mlx_build_broadcast(b, "rms_scales", scale, (int64_t[]){0}, full);
  mlx_built_t normed = mlx_build_binary(b, weight.id ? "normed" : name, "multiply", x, scales);
  if (!weight.id) return normed;
  const mlx_built_t gains =
      weight.rank == 2 ? weight : mlx_build_broadcast(b, "gains", weight, (int64_t[]){1}, full);
  return mlx_build_binary(b, name, "multiply", normed, gains);
}

// The weight is the left operand, because IREE transposes the right one, and x is smaller. In the other order
// IREE would make a transposed copy of every weight when the module is loaded. A weight that is not f32 is
// converted inside the product: IREE fuses both into one dispatch and makes no f32 copy (checked by
// tests/compiler/graph_test.c).
mlx_built_t mlx_generic_linear(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight) {
  const mlx_dot_t over_width = {.left_contract = 1, .right_contract = 1};
  mlx_built_t wide = mlx_build_convert(g->b, "weight_f32", weight, MLX_F32);
  mlx_built_t by_output = mlx_build_dot(g->b, "by_output", wide, x, over_width);  // [out, M]
  if (x.dims[0] == 1) return mlx_build_reshape(g->b, name, by_output, MLX_TYPE(MLX_F32, 1, weight.dims[0]));
  return mlx_build_transpose(g->b, name, by_output, (int64_t[]){1, 0});
}

mlx_built_t mlx_generic_head_linear(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight) {
  mlx_builder_t *b = g->b;
  const int64_t m = x.dims[0], heads = weight.dims[0], out = weight.dims[1], in = weight.dims[2];
  const mlx_dot_t by_head = {1, {1}, {0}, 2, 2};
  mlx_built_t wide = mlx_build_convert(b, "weight_f32", weight, MLX_F32);
  mlx_built_t of_heads = mlx_build_reshape(b, "of_heads", x, MLX_TYPE(MLX_F32, m, heads, in));
  mlx_built_t products = mlx_build_dot(b, "by_head", of_heads, wide, by_head);  // [heads, M, out]
  products = mlx_build_transpose(b, "by_token", products, (int64_t[]){1, 0, 2});
  return mlx_build_reshape(b, name, products, MLX_TYPE(MLX_F32, m, heads * out));
}

mlx_built_t mlx_generic_add(mlx_function_t *g, const char *name, mlx_built_t a, mlx_built_t b) {
  return mlx_build_binary(g->b, name, "add", a, b);
}

mlx_built_t mlx_generic_swiglu(mlx_function_t *g, const char *name, mlx_built_t gate, mlx_built_t up) {
  mlx_built_t sigmoid = mlx_build_unary(g->b, "sigmoid", "logistic", gate);
  mlx_built_t silu = mlx_build_binary(g->b, "silu", "multiply", gate, sigmoid);
  return mlx_build_binary(g->b, name, "multiply", silu, up);
}

mlx_built_t mlx_generic_bias(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t bias) {
  mlx_built_t wide = mlx_build_broadcast(g->b, "bias", bias, (int64_t[]){1}, mlx_type_of(x));
  return mlx_build_binary(g->b, name, "add", x, wide);
}

mlx_built_t mlx_generic_scale(mlx_function_t *g, const char *name, mlx_built_t x, double factor) {
  mlx_built_t factors = mlx_build_float(g->b, "factor", factor, mlx_type_of(x));
  return mlx_build_binary(g->b, name, "multiply", x, factors);
}

mlx_built_t mlx_generic_softcap(mlx_function_t *g, const char *name, mlx_built_t x, double cap) {
  mlx_built_t caps = mlx_build_float(g->b, "cap", cap, mlx_type_of(x));
  mlx_built_t ratio = mlx_build_binary(g->b, "ratio", "divide", x, caps);
  mlx_built_t tanh_value = mlx_build_unary(g->b, "tanh", "tanh", ratio);
  return mlx_build_binary(g->b, name, "multiply", tanh_value, caps);
}

mlx_built_t mlx_generic_clip(mlx_function_t *g, const char *name, mlx_built_t x, double limit) {
  mlx_built_t max = mlx_build_float(g->b, "upper", limit, mlx_type_of(x));
  mlx_built_t min = mlx_build_float(g->b, "lower", -limit, mlx_type_of(x));
  x = mlx_build_binary(g->b, "below_upper", "minimum", x, max);
  return mlx_build_binary(g->b, name, "maximum", x, min);
}

mlx_built_t mlx_generic_grow(mlx_function_t *g, const char *name, mlx_built_t x, double beta,
                             int64_t period) {
  mlx_builder_t *b = g->b;
  mlx_built_t size = mlx_build_int(b, "period", period, mlx_type_of(g->positions));
  mlx_built_t whole = mlx_build_binary(b, "whole_periods", "divide", g->positions, size);
  mlx_built_t periods = mlx_build_convert(b, "periods_f32", whole, MLX_F32);
  mlx_built_t growth = mlx_build_unary(b, "growth", "log_plus_one", periods);
  growth = mlx_generic_scale(g, "growth_scaled", growth, beta);
  mlx_built_t one = mlx_build_float(b, "one", 1.0, mlx_type_of(growth));
  growth = mlx_build_binary(b, "growth_factor", "add", growth, one);
  mlx_built_t factors = mlx_build_broadcast(b, "growth_factors", growth, (int64_t[]){0}, mlx_type_of(x));
  return mlx_build_binary(b, name, "multiply", x, factors);
}

// ----------------------------------------------------------------------------------------------------------
// Layer norm

static mlx_built_t mean(mlx_builder_t *b, const char *name, mlx_built_t x) {
  mlx_built_t sum = mlx_build_reduce_last(b, "sum", "add", x);
  mlx_built_t count = mlx_build_float(b, "width", (double)x.dims[1], mlx_type_of(sum));
  return mlx_build_binary(b, name, "divide", sum, count);
}

mlx_built_t mlx_generic_layernorm(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight,
                                  mlx_built_t bias, double eps) {
  mlx_builder_t *b = g->b;
  const mlx_type_t full = mlx_type_of(x);
  mlx_built_t average = mean(b, "mean", x);
  mlx_built_t averages = mlx_build_broadcast(b, "means", average, (int64_t[]){0}, full);
  mlx_built_t centred = mlx_build_binary(b, "centred", "subtract", x, averages);
  mlx_built_t square = mlx_build_binary(b, "square", "multiply", centred, centred);
  mlx_built_t variance = mean(b, "variance", square);
  mlx_built_t epsilon = mlx_build_float(b, "eps", eps, mlx_type_of(variance));
  mlx_built_t safe = mlx_build_binary(b, "variance_plus_eps", "add", variance, epsilon);
  mlx_built_t scale = mlx_build_unary(b, "norm_scale", "rsqrt", safe);
  mlx_built_t scales = mlx_build_broadcast(b, "norm_scales", scale, (int64_t[]){0}, full);
  mlx_built_t normed =
      mlx_build_binary(b, weight.id || bias.id ? "normed" : name, "multiply", centred, scales);
  if (weight.id) {
    mlx_built_t gains = mlx_build_broadcast(b, "gains", weight, (int64_t[]){1}, full);
    normed = mlx_build_binary(b, bias.id ? "scaled" : name, "multiply", normed, gains);
  }
  return bias.id ? mlx_generic_bias(g, name, normed, bias) : normed;
}

// ----------------------------------------------------------------------------------------------------------
// Other ops with sums over a row

mlx_built_t mlx_generic_gain(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t weight) {
  const mlx_built_t wide = mlx_build_convert(g->b, "gain_f32", weight, MLX_F32);
  const mlx_built_t gains = mlx_build_broadcast(g->b, "gains", wide, (int64_t[]){1}, mlx_type_of(x));
  return mlx_build_binary(g->b, name, "multiply", x, gains);
}

mlx_built_t mlx_generic_match(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t like,
                              double least) {
  mlx_builder_t *b = g->b;
  mlx_built_t wanted = mlx_build_binary(b, "wanted_square", "multiply", like, like);
  wanted = mean(b, "wanted_square_mean", wanted);
  wanted = mlx_build_unary(b, "wanted_size", "sqrt", wanted);
  mlx_built_t size = mlx_build_binary(b, "square", "multiply", x, x);
  size = mean(b, "square_mean", size);
  const mlx_built_t small = mlx_build_float(b, "least", least, mlx_type_of(size));
  size = mlx_build_binary(b, "square_mean_or_least", "maximum", size, small);
  size = mlx_build_unary(b, "size", "sqrt", size);
  const mlx_built_t factor = mlx_build_binary(b, "factor", "divide", wanted, size);
  const mlx_built_t factors = mlx_build_broadcast(b, "factors", factor, (int64_t[]){0}, mlx_type_of(x));
  return mlx_build_binary(b, name, "multiply", x, factors);
}

mlx_built_t mlx_generic_sparsify(mlx_function_t *g, const char *name, mlx_built_t x, double deviations) {
  mlx_builder_t *b = g->b;
  const mlx_type_t full = mlx_type_of(x);
  const mlx_built_t average = mean(b, "mean", x);
  const mlx_built_t averages = mlx_build_broadcast(b, "means", average, (int64_t[]){0}, full);
  const mlx_built_t centred = mlx_build_binary(b, "centred", "subtract", x, averages);
  mlx_built_t deviation = mlx_build_binary(b, "square", "multiply", centred, centred);
  deviation = mean(b, "variance", deviation);
  deviation = mlx_build_unary(b, "deviation", "sqrt", deviation);
  deviation = mlx_generic_scale(g, "distance", deviation, deviations);
  const mlx_built_t cutoff = mlx_build_binary(b, "cutoff", "add", average, deviation);
  const mlx_built_t cutoffs = mlx_build_broadcast(b, "cutoffs", cutoff, (int64_t[]){0}, full);
  x = mlx_build_binary(b, "above_cutoff", "subtract", x, cutoffs);
  const mlx_built_t zero = mlx_build_float(b, "zero", 0.0, full);
  return mlx_build_binary(b, name, "maximum", x, zero);
}

// ----------------------------------------------------------------------------------------------------------
// Activations

// c[0] + c[1] y + c[2] y^2 ...
static mlx_built_t polynomial(mlx_builder_t *b, mlx_built_t y, const double *c, int count) {
  mlx_built_t sum = mlx_build_float(b, "coefficient", c[count - 1], mlx_type_of(y));
  for (int i = count - 2; i >= 0; --i) {
    mlx_built_t times = mlx_build_binary(b, "term", "multiply", sum, y);
    mlx_built_t next = mlx_build_float(b, "coefficient", c[i], mlx_type_of(y));
    sum = mlx_build_binary(b, "sum", "add", times, next);
  }
  return sum;
}

// StableHLO has no error function. This is the rational approximation of XLA and Eigen for f32. It computes
// x P(x^2) / Q(x^2) on [-4, 4] and is constant outside. The error is at most 3e-7.
static mlx_built_t error_function(mlx_function_t *g, mlx_built_t x) {
  static const double p[] = {-1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04,
                             -5.69250639462346e-05, -2.10102402082508e-06, 2.77068142495902e-08,
                             -2.72614225801306e-10};
  static const double q[] = {-1.42647390514189e-02, -7.37332916720468e-03, -1.68282697438203e-03,
                             -2.13374055278905e-04, -1.45660718464996e-05};
  mlx_builder_t *b = g->b;
  x = mlx_generic_clip(g, "clipped", x, 4.0);
  mlx_built_t square = mlx_build_binary(b, "square", "multiply", x, x);
  mlx_built_t numerator = polynomial(b, square, p, 7);
  mlx_built_t denominator = polynomial(b, square, q, 5);
  numerator = mlx_build_binary(b, "numerator", "multiply", x, numerator);
  return mlx_build_binary(b, "erf", "divide", numerator, denominator);
}

// x * (1 + t) / 2
static mlx_built_t gelu_from(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t t) {
  mlx_built_t one = mlx_build_float(b, "one", 1.0, mlx_type_of(x));
  mlx_built_t half = mlx_build_float(b, "half", 0.5, mlx_type_of(x));
  mlx_built_t one_plus_t = mlx_build_binary(b, "one_plus_t", "add", t, one);
  mlx_built_t half_x = mlx_build_binary(b, "half_x", "multiply", x, half);
  return mlx_build_binary(b, name, "multiply", half_x, one_plus_t);
}

static mlx_built_t gelu(mlx_function_t *g, const char *name, mlx_built_t x) {
  mlx_built_t scaled = mlx_generic_scale(g, "over_root_two", x, 0.70710678118654752);
  return gelu_from(g->b, name, x, error_function(g, scaled));
}

// Replaces the error function by tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
static mlx_built_t gelu_tanh(mlx_function_t *g, const char *name, mlx_built_t x) {
  mlx_builder_t *b = g->b;
  mlx_built_t square = mlx_build_binary(b, "square", "multiply", x, x);
  mlx_built_t cube = mlx_build_binary(b, "cube", "multiply", square, x);
  cube = mlx_generic_scale(g, "scaled_cube", cube, 0.044715);
  mlx_built_t inner = mlx_build_binary(b, "inner", "add", x, cube);
  inner = mlx_generic_scale(g, "inner_scaled", inner, 0.79788456080286536);
  return gelu_from(b, name, x, mlx_build_unary(b, "tanh", "tanh", inner));
}

static mlx_built_t xielu(mlx_function_t *g, const char *name, const float *numbers, mlx_built_t x) {
  mlx_builder_t *b = g->b;
  mlx_built_t zero = mlx_build_float(b, "zero", 0.0, mlx_type_of(x));
  mlx_built_t eps = mlx_build_float(b, "eps", (double)numbers[3], mlx_type_of(x));
  mlx_built_t above = mlx_generic_scale(g, "scaled", x, (double)numbers[0]);
  above = mlx_build_binary(b, "above", "multiply", above, x);
  mlx_built_t below = mlx_build_binary(b, "bottom", "minimum", x, eps);
  below = mlx_build_unary(b, "expm1", "exponential_minus_one", below);
  below = mlx_build_binary(b, "less_x", "subtract", below, x);
  below = mlx_generic_scale(g, "below", below, (double)numbers[1]);
  mlx_built_t positive = mlx_build_compare(b, "is_positive", "GT", x, zero);
  mlx_built_t curve = mlx_build_select(b, "curve", positive, above, below);
  mlx_built_t line = mlx_generic_scale(g, "line", x, (double)numbers[2]);
  return mlx_build_binary(b, name, "add", curve, line);
}

mlx_built_t mlx_generic_activate(mlx_function_t *g, const char *name, mlx_act_t act, const float *numbers,
                                 mlx_built_t x) {
  mlx_builder_t *b = g->b;
  if (act == MLX_ACT_XIELU) return xielu(g, name, numbers, x);
  if (act == MLX_ACT_GELU) return gelu(g, name, x);
  if (act == MLX_ACT_GELU_TANH) return gelu_tanh(g, name, x);
  if (act == MLX_ACT_SILU) {
    mlx_built_t sigmoid = mlx_build_unary(b, "sigmoid", "logistic", x);
    return mlx_build_binary(b, name, "multiply", x, sigmoid);
  }
  mlx_built_t zero = mlx_build_float(b, "zero", 0.0, mlx_type_of(x));
  mlx_built_t positive = mlx_build_binary(b, act == MLX_ACT_RELU ? name : "positive", "maximum", x, zero);
  return act == MLX_ACT_RELU ? positive : mlx_build_binary(b, name, "multiply", positive, positive);
}
