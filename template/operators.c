// Operators with Python's meaning. Integers have 64 bits; a result that does not fit is an error, never a
// wrong number.
#include "template/operators.h"

#include <math.h>

#include "template/format.h"
#include "template/text.h"

static mlx_status_t too_large(const mlx_render_t *r) {
  return mlx_render_error(r, MLX_UNSUPPORTED, "an integer does not fit 64 bits");
}

static const char *op_text(mlx_op_t op) {
  static const char *const texts[] = {"", "+", "-", "*", "/", "//", "%", "**"};
  return texts[op];
}

static mlx_status_t unsupported_operands(const mlx_render_t *r, mlx_op_t op, const mlx_var_t *a,
                                         const mlx_var_t *b) {
  MLX_TRY(mlx_var_expect_defined(r, a));
  MLX_TRY(mlx_var_expect_defined(r, b));
  MLX_FAIL(r, "unsupported operand types for %s: '%s' and '%s'", op_text(op), mlx_var_type(a),
           mlx_var_type(b));
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

static mlx_status_t int_power(const mlx_render_t *r, int64_t base, int64_t exponent, mlx_var_t *out) {
  int64_t result = 1;
  if (exponent < 0) {
    if (!base) MLX_FAIL(r, "0 cannot be raised to a negative power");
    *out = mlx_float(pow((double)base, (double)exponent));
    return NULL;
  }
  if (base == 0 || base == 1) {
    *out = mlx_int(exponent ? base : 1);
    return NULL;
  }
  if (base == -1) {
    *out = mlx_int(exponent % 2 ? -1 : 1);
    return NULL;
  }
  for (; exponent; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return too_large(r);
  }
  *out = mlx_int(result);
  return NULL;
}

static mlx_status_t int_binary(const mlx_render_t *r, mlx_op_t op, int64_t a, int64_t b, mlx_var_t *out) {
  int64_t result = 0;
  bool overflow = false;
  if ((op == MLX_OP_DIV || op == MLX_OP_FLOORDIV || op == MLX_OP_MOD) && !b) MLX_FAIL(r, "division by zero");
  switch (op) {
    case MLX_OP_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
    case MLX_OP_SUB: overflow = __builtin_sub_overflow(a, b, &result); break;
    case MLX_OP_MUL: overflow = __builtin_mul_overflow(a, b, &result); break;
    case MLX_OP_DIV: *out = mlx_float((double)a / (double)b); return NULL;
    case MLX_OP_FLOORDIV:
      overflow = a == INT64_MIN && b == -1;
      if (!overflow) result = floor_div(a, b);
      break;
    case MLX_OP_MOD: result = b == -1 ? 0 : a - floor_div(a, b) * b; break;
    default: return int_power(r, a, b, out);
  }
  if (overflow) return too_large(r);
  *out = mlx_int(result);
  return NULL;
}

static double float_mod(double a, double b) {
  double mod = fmod(a, b);
  if (mod) return (b < 0) != (mod < 0) ? mod + b : mod;
  return copysign(0, b);
}

static double float_floor_div(double a, double b) {
  double mod = fmod(a, b), div = (a - mod) / b;
  if (mod && (b < 0) != (mod < 0)) div -= 1;
  if (!div) return copysign(0, a / b);
  double floored = floor(div);
  return div - floored > 0.5 ? floored + 1 : floored;
}

static mlx_status_t float_binary(const mlx_render_t *r, mlx_op_t op, double a, double b, mlx_var_t *out) {
  if ((op == MLX_OP_DIV || op == MLX_OP_FLOORDIV || op == MLX_OP_MOD) && !b)
    MLX_FAIL(r, "float division by zero");
  switch (op) {
    case MLX_OP_ADD: *out = mlx_float(a + b); return NULL;
    case MLX_OP_SUB: *out = mlx_float(a - b); return NULL;
    case MLX_OP_MUL: *out = mlx_float(a * b); return NULL;
    case MLX_OP_DIV: *out = mlx_float(a / b); return NULL;
    case MLX_OP_FLOORDIV: *out = mlx_float(float_floor_div(a, b)); return NULL;
    case MLX_OP_MOD: *out = mlx_float(float_mod(a, b)); return NULL;
    default: break;
  }
  if (!a && b < 0) MLX_FAIL(r, "0.0 cannot be raised to a negative power");
  if (a < 0 && floor(b) != b)
    return mlx_render_error(r, MLX_UNSUPPORTED, "complex numbers are not supported");
  *out = mlx_float(pow(a, b));
  if (isinf(out->number) && isfinite(a) && isfinite(b)) MLX_FAIL(r, "the power is too large for a float");
  return NULL;
}

// If one of the strings is Markup, the other one is escaped.
static mlx_status_t add_texts(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, mlx_var_t *out) {
  mlx_var_t left = *a, right = *b;
  if (a->markup && !b->markup) MLX_TRY(mlx_span_escape(r, b->text, &right));
  if (b->markup && !a->markup) MLX_TRY(mlx_span_escape(r, a->text, &left));
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, left.text.bytes, left.text.length);
  mlx_sink_append(&sink, right.text.bytes, right.text.length);
  MLX_TRY(mlx_sink_to_string(r, &sink, out));
  out->markup = a->markup || b->markup;
  return NULL;
}

static mlx_status_t add_lists(mlx_render_t *r, const mlx_list_t *a, const mlx_list_t *b, mlx_var_t *out) {
  mlx_var_t sum;
  MLX_TRY(mlx_list_create(r, a->type, a->count + b->count, &sum));
  for (size_t i = 0; i < a->count; ++i) MLX_TRY(mlx_list_push(r, sum.list, a->items[i]));
  for (size_t i = 0; i < b->count; ++i) MLX_TRY(mlx_list_push(r, sum.list, b->items[i]));
  *out = sum;
  return NULL;
}

static mlx_status_t repeat(mlx_render_t *r, const mlx_var_t *sequence, int64_t times, mlx_var_t *out) {
  if (sequence->kind == MLX_VAR_STRING) {
    mlx_sink_t sink = {.arena = &r->arena};
    mlx_sink_fill(&sink, sequence->text.bytes, sequence->text.length, times);
    MLX_TRY(mlx_sink_to_string(r, &sink, out));
    out->markup = sequence->markup;
    return NULL;
  }
  mlx_var_t list;
  MLX_TRY(mlx_list_create(r, sequence->list->type, 0, &list));
  for (int64_t n = 0; n < times && sequence->list->count; ++n) {
    for (size_t i = 0; i < sequence->list->count; ++i)
      MLX_TRY(mlx_list_push(r, list.list, sequence->list->items[i]));
  }
  *out = list;
  return NULL;
}

static bool is_sequence(const mlx_var_t *v) {
  return v->kind == MLX_VAR_STRING || (v->kind == MLX_VAR_LIST && v->list->type <= MLX_PY_TUPLE);
}

mlx_status_t mlx_var_binary(mlx_render_t *r, mlx_op_t op, const mlx_var_t *a, const mlx_var_t *b,
                            mlx_var_t *out) {
  if (mlx_var_is_integer(a) && mlx_var_is_integer(b))
    return int_binary(r, op, mlx_var_integer(a), mlx_var_integer(b), out);
  if (mlx_var_is_number(a) && mlx_var_is_number(b))
    return float_binary(r, op, mlx_var_number(a), mlx_var_number(b), out);
  if (op == MLX_OP_ADD && a->kind == MLX_VAR_STRING && b->kind == MLX_VAR_STRING)
    return add_texts(r, a, b, out);
  if (op == MLX_OP_ADD && is_sequence(a) && is_sequence(b) && a->kind == b->kind &&
      a->list->type == b->list->type) {
    return add_lists(r, a->list, b->list, out);
  }
  if (op == MLX_OP_MUL && is_sequence(a) && mlx_var_is_integer(b))
    return repeat(r, a, mlx_var_integer(b), out);
  if (op == MLX_OP_MUL && is_sequence(b) && mlx_var_is_integer(a))
    return repeat(r, b, mlx_var_integer(a), out);
  if (op == MLX_OP_MOD && a->kind == MLX_VAR_STRING && a->markup) {
    return mlx_render_error(r, MLX_UNSUPPORTED, "%% of text marked safe is not supported");
  }
  if (op == MLX_OP_MOD && a->kind == MLX_VAR_STRING) return mlx_format_percent(r, a->text, b, out);
  return unsupported_operands(r, op, a, b);
}

mlx_status_t mlx_var_sign(mlx_render_t *r, bool minus, const mlx_var_t *a, mlx_var_t *out) {
  MLX_TRY(mlx_var_expect_defined(r, a));
  if (!mlx_var_is_number(a))
    MLX_FAIL(r, "bad operand type for unary %s: '%s'", minus ? "-" : "+", mlx_var_type(a));
  if (a->kind == MLX_VAR_FLOAT) {
    *out = mlx_float(minus ? -a->number : a->number);
    return NULL;
  }
  if (minus && mlx_var_integer(a) == INT64_MIN) return too_large(r);
  *out = mlx_int(minus ? -mlx_var_integer(a) : mlx_var_integer(a));
  return NULL;
}

mlx_status_t mlx_var_compare(mlx_render_t *r, mlx_op_t op, const mlx_var_t *a, const mlx_var_t *b,
                             bool *out) {
  int order;
  if (op == MLX_OP_EQ || op == MLX_OP_NE) {
    MLX_TRY(mlx_var_equal(r, a, b, out));
    *out = *out == (op == MLX_OP_EQ);
    return NULL;
  }
  if (op == MLX_OP_IN || op == MLX_OP_NOT_IN) {
    MLX_TRY(mlx_var_contains(r, b, a, out));
    *out = *out == (op == MLX_OP_IN);
    return NULL;
  }
  MLX_TRY(mlx_var_order(r, a, b, &order));
  const bool has_nan =
      (a->kind == MLX_VAR_FLOAT && isnan(a->number)) || (b->kind == MLX_VAR_FLOAT && isnan(b->number));
  *out = !has_nan && (op == MLX_OP_LT   ? order < 0
                      : op == MLX_OP_LE ? order <= 0
                      : op == MLX_OP_GT ? order > 0
                                        : order >= 0);
  return NULL;
}
