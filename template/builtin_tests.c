// Jinja tests (x is odd), with jinja2's names.
#include "template/builtin_tests.h"

#include "template/operators.h"
#include "template/string_methods.h"

// Defines a test whose result is |expression| of |v|, the tested value.
#define TEST(name, expression)                                                                 \
  static mlx_status_t name(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) { \
    const mlx_var_t *v = &call->self;                                                          \
    (void)r;                                                                                   \
    *out = mlx_bool(expression);                                                               \
    return NULL;                                                                               \
  }

TEST(test_defined, v->kind != MLX_VAR_UNDEFINED)
TEST(test_undefined, v->kind == MLX_VAR_UNDEFINED)
TEST(test_none, v->kind == MLX_VAR_NONE)
TEST(test_boolean, v->kind == MLX_VAR_BOOL)
TEST(test_true, v->kind == MLX_VAR_BOOL && v->truth)
TEST(test_false, v->kind == MLX_VAR_BOOL && !v->truth)
TEST(test_integer, v->kind == MLX_VAR_INT)
TEST(test_float, v->kind == MLX_VAR_FLOAT)
TEST(test_number, mlx_var_is_number(v))
TEST(test_string, v->kind == MLX_VAR_STRING)
TEST(test_mapping, v->kind == MLX_VAR_DICT)
TEST(test_iterable, mlx_var_is_iterable(v) || v->kind == MLX_VAR_LOOP)
TEST(test_callable, v->kind == MLX_VAR_FUNCTION || v->kind == MLX_VAR_LOOP || v->kind == MLX_VAR_UNDEFINED)
TEST(test_escaped, v->kind == MLX_VAR_STRING && v->markup)
TEST(test_sequence, v->kind == MLX_VAR_UNDEFINED || v->kind == MLX_VAR_STRING || v->kind == MLX_VAR_DICT ||
                        (v->kind == MLX_VAR_LIST && v->list->type <= MLX_PY_RANGE))
TEST(test_filter, v->kind == MLX_VAR_STRING && r->registry->find_filter(v->text))
TEST(test_test, v->kind == MLX_VAR_STRING && r->registry->find_test(v->text))

static mlx_status_t has_remainder(mlx_render_t *r, const mlx_var_t *v, int64_t by, int64_t expected,
                                  mlx_var_t *out) {
  const mlx_var_t divisor = mlx_int(by);
  mlx_var_t remainder;
  MLX_TRY(mlx_var_expect_number(r, v));
  MLX_TRY(mlx_var_binary(r, MLX_OP_MOD, v, &divisor, &remainder));
  *out = mlx_bool(mlx_var_number(&remainder) == (double)expected);
  return NULL;
}

static mlx_status_t test_odd(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return has_remainder(r, &call->self, 2, 1, out);
}

static mlx_status_t test_even(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return has_remainder(r, &call->self, 2, 0, out);
}

static mlx_status_t test_divisibleby(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t by;
  MLX_TRY(mlx_call_integer(r, call, 0, 1, &by));
  return has_remainder(r, &call->self, by, 0, out);
}

static mlx_status_t test_compare(mlx_render_t *r, const mlx_template_call_t *call, mlx_op_t op,
                                 mlx_var_t *out) {
  bool holds;
  MLX_TRY(mlx_var_compare(r, op, &call->self, &call->parameters[0], &holds));
  *out = mlx_bool(holds);
  return NULL;
}

static mlx_status_t test_eq(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_EQ, out);
}

static mlx_status_t test_ne(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_NE, out);
}

static mlx_status_t test_lt(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_LT, out);
}

static mlx_status_t test_le(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_LE, out);
}

static mlx_status_t test_gt(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_GT, out);
}

static mlx_status_t test_ge(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_GE, out);
}

static mlx_status_t test_in(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return test_compare(r, call, MLX_OP_IN, out);
}

static mlx_status_t test_sameas(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *a = &call->self, *b = &call->parameters[0];
  bool same = a->kind == b->kind;
  if (same && (a->kind == MLX_VAR_LIST || a->kind == MLX_VAR_DICT)) {
    same = a->list == b->list;
  } else if (same) {
    MLX_TRY(mlx_var_equal(r, a, b, &same));
  }
  *out = mlx_bool(same);
  return NULL;
}

static mlx_status_t text_test(mlx_render_t *r, const mlx_template_call_t *call, const char *method,
                              mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(mlx_call_text(r, call, &text));
  const mlx_var_t self = mlx_string(text.bytes, text.length);
  return mlx_builtin_call(r, mlx_string_method_find((mlx_span_t){method, strlen(method)}), &self,
                          &(mlx_args_t){0}, out);
}

static mlx_status_t test_lower(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return text_test(r, call, "islower", out);
}

static mlx_status_t test_upper(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return text_test(r, call, "isupper", out);
}

const mlx_builtin_t *mlx_test_find(mlx_span_t name) {
  static const mlx_builtin_t tests[] = {
      {"boolean", test_boolean, ""},     {"callable", test_callable, ""},
      {"defined", test_defined, ""},     {"divisibleby", test_divisibleby, "num"},
      {"eq", test_eq, "other"},          {"==", test_eq, "other"},
      {"equalto", test_eq, "other"},     {"escaped", test_escaped, ""},
      {"even", test_even, ""},           {"false", test_false, ""},
      {"filter", test_filter, ""},       {"float", test_float, ""},
      {"ge", test_ge, "other"},          {">=", test_ge, "other"},
      {"gt", test_gt, "other"},          {">", test_gt, "other"},
      {"greaterthan", test_gt, "other"}, {"in", test_in, "seq"},
      {"integer", test_integer, ""},     {"iterable", test_iterable, ""},
      {"le", test_le, "other"},          {"<=", test_le, "other"},
      {"lower", test_lower, ""},         {"lt", test_lt, "other"},
      {"<", test_lt, "other"},           {"lessthan", test_lt, "other"},
      {"mapping", test_mapping, ""},     {"ne", test_ne, "other"},
      {"!=", test_ne, "other"},          {"none", test_none, ""},
      {"number", test_number, ""},       {"odd", test_odd, ""},
      {"sameas", test_sameas, "other"},  {"sequence", test_sequence, ""},
      {"string", test_string, ""},       {"test", test_test, ""},
      {"true", test_true, ""},           {"undefined", test_undefined, ""},
      {"upper", test_upper, ""},         {0}};
  return mlx_builtin_find(tests, name);
}
