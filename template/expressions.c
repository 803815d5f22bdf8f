// Expressions from tokens. The functions mirror jinja2's parser one by one, so that precedence is the same.
#include "template/expressions.h"

#include <stdlib.h>

#include "base/encoding.h"
#include "template/error.h"

static mlx_status_t parse_unary(mlx_parser_t *p, bool with_filter, mlx_template_node_t **out) MLX_MUST_USE;

static mlx_status_t parse_primary(mlx_parser_t *p, mlx_template_node_t **out) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Literals

// Reads \xhh, \uhhhh or \Uhhhhhhhh; |at| is at the letter, and ends at the last digit.
static mlx_status_t unescape_hex(const mlx_parser_t *p, mlx_span_t text, size_t *inout_at, mlx_sink_t *sink) {
  const char letter = text.bytes[*inout_at];
  const size_t count = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
  uint32_t code = 0;
  for (size_t i = 1; i <= count; ++i) {
    int digit = *inout_at + i < text.length ? mlx_hex_digit(text.bytes[*inout_at + i]) : -1;
    if (digit < 0) return mlx_parser_error(p, "an escape in a string has too few hexadecimal digits");
    code = code << 4 | (uint32_t)digit;
  }
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
    return mlx_parser_error(p, "an escape in a string is not a Unicode character");
  mlx_sink_character(sink, code);
  *inout_at += count;
  return NULL;
}

// As Python's unicode-escape codec: an unknown escape keeps its backslash.
static mlx_status_t unescape(mlx_parser_t *p, mlx_span_t text, mlx_sink_t *sink) {
  static const char letters[] = "abfnrtv\\'\"", meanings[] = "\a\b\f\n\r\t\v\\'\"";
  for (size_t i = 0; i < text.length; ++i) {
    const char c = text.bytes[i];
    if (c != '\\' || i + 1 == text.length) {
      mlx_sink_append(sink, &c, 1);
      continue;
    }
    const char next = text.bytes[++i], *known = next ? strchr(letters, next) : NULL;
    if (known) {
      mlx_sink_append(sink, &meanings[known - letters], 1);
    } else if (next == 'x' || next == 'u' || next == 'U') {
      MLX_TRY(unescape_hex(p, text, &i, sink));
    } else if (next >= '0' && next <= '7') {
      uint32_t code = 0;
      size_t end = i + 3;
      for (; i < end && i < text.length && text.bytes[i] >= '0' && text.bytes[i] <= '7'; ++i)
        code = code * 8 + (uint32_t)(text.bytes[i] - '0');
      --i;
      mlx_sink_character(sink, code);
    } else if (next == 'N') {
      return mlx_template_error(p->template->name, p->token->line, MLX_UNSUPPORTED,
                                "named characters (\\N{...}) are not supported");
    } else if (next != '\n') {
      mlx_sink_append(sink, (const char[]){'\\', next}, 2);
    }
  }
  return NULL;
}

static mlx_status_t parse_string(mlx_parser_t *p, mlx_template_node_t *node) {
  mlx_sink_t sink = {.arena = &p->template->arena};
  for (; p->token->kind == MLX_TOKEN_STRING; ++p->token) {
    MLX_TRY(unescape(p, (mlx_span_t){p->token->text.bytes + 1, p->token->text.length - 2}, &sink));
  }
  if (sink.failed) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: string in a template");
  node->value = mlx_string(sink.data ? sink.data : "", sink.length);
  return NULL;
}

static mlx_status_t parse_number(mlx_parser_t *p, mlx_template_node_t *node) {
  char digits[128];
  size_t count = 0;
  const mlx_lexeme_t *t = p->token;
  for (size_t i = 0; i < t->text.length; ++i) {
    if (t->text.bytes[i] == '_') continue;
    if (count + 1 == sizeof digits) return mlx_parser_error(p, "a number is too long");
    digits[count++] = t->text.bytes[i];
  }
  digits[count] = 0;
  if (t->kind == MLX_TOKEN_FLOAT) {
    node->value = mlx_float(strtod(digits, NULL));
  } else {
    const char letter = count > 1 ? (char)(digits[1] | 32) : 0;
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    int64_t value = 0;
    for (const char *c = digits + (base == 10 ? 0 : 2); *c; ++c) {
      if (__builtin_mul_overflow(value, (int64_t)base, &value) ||
          __builtin_add_overflow(value, (int64_t)mlx_hex_digit(*c), &value)) {
        return mlx_template_error(p->template->name, t->line, MLX_UNSUPPORTED,
                                  "the number %s does not fit 64 bits", digits);
      }
    }
    node->value = mlx_int(value);
  }
  ++p->token;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Primary expressions

static bool tuple_ends(const mlx_parser_t *p, const char *extra_end) {
  return p->token->kind == MLX_TOKEN_PRINT_END || p->token->kind == MLX_TOKEN_TAG_END ||
         mlx_parser_at_op(p, ")") || (extra_end && mlx_parser_at_keyword(p, extra_end));
}

static mlx_status_t parse_namespace_target(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_span_t name;
  mlx_template_node_t *object, *node;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_NAME, &object));
  MLX_TRY(mlx_parser_expect_name(p, &object->text));
  MLX_TRY(mlx_parser_expect_op(p, "."));
  MLX_TRY(mlx_parser_expect_name(p, &name));
  MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_ATTRIBUTE, object, NULL, &node));
  node->text = name;
  *out = node;
  return NULL;
}

mlx_status_t mlx_parse_member(mlx_parser_t *p, mlx_tuple_style_t style, mlx_template_node_t **out) {
  if (style != MLX_TUPLE_TARGETS) return mlx_parse_expression(p, style == MLX_TUPLE_FULL, out);
  if (p->token->kind == MLX_TOKEN_NAME && p->token[1].kind == MLX_TOKEN_OPERATOR &&
      mlx_span_is(p->token[1].text, ".")) {
    return parse_namespace_target(p, out);
  }
  return parse_primary(p, out);
}

mlx_status_t mlx_parse_tuple(mlx_parser_t *p, mlx_tuple_style_t style, const char *extra_end,
                             bool in_parentheses, mlx_template_node_t **out) {
  mlx_template_node_t *tuple, **tail, *item;
  bool is_tuple = false;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_TUPLE, &tuple));
  tail = &tuple->first;
  for (size_t count = 0;; ++count) {
    if (count) {
      if (!mlx_parser_at_op(p, ",")) break;
      ++p->token;
      is_tuple = true;
    }
    if (tuple_ends(p, extra_end)) break;
    MLX_TRY(mlx_parse_member(p, style, &item));
    *tail = item;
    tail = &item->next;
  }
  if (!is_tuple && tuple->first) {
    *out = tuple->first;
    return NULL;
  }
  if (!tuple->first && !in_parentheses) return mlx_parser_unexpected(p, "an expression");
  *out = tuple;
  return NULL;
}

static mlx_status_t parse_list(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *list, **tail, *item;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_LIST, &list));
  tail = &list->first;
  for (++p->token; !mlx_parser_at_op(p, "]");) {
    if (list->first) MLX_TRY(mlx_parser_expect_op(p, ","));
    if (mlx_parser_at_op(p, "]")) break;
    MLX_TRY(mlx_parse_expression(p, true, &item));
    *tail = item;
    tail = &item->next;
  }
  ++p->token;
  *out = list;
  return NULL;
}

static mlx_status_t parse_dict(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *dict, **tail, *pair;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_DICT, &dict));
  tail = &dict->first;
  for (++p->token; !mlx_parser_at_op(p, "}");) {
    if (dict->first) MLX_TRY(mlx_parser_expect_op(p, ","));
    if (mlx_parser_at_op(p, "}")) break;
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_PAIR, &pair));
    MLX_TRY(mlx_parse_expression(p, true, &pair->a));
    MLX_TRY(mlx_parser_expect_op(p, ":"));
    MLX_TRY(mlx_parse_expression(p, true, &pair->b));
    *tail = pair;
    tail = &pair->next;
  }
  ++p->token;
  *out = dict;
  return NULL;
}

static mlx_status_t parse_name(mlx_parser_t *p, mlx_template_node_t *node) {
  const mlx_span_t text = p->token++->text;
  node->text = text;
  node->kind = MLX_NODE_CONST;
  if (mlx_span_is(text, "true") || mlx_span_is(text, "True")) {
    node->value = mlx_bool(true);
  } else if (mlx_span_is(text, "false") || mlx_span_is(text, "False")) {
    node->value = mlx_bool(false);
  } else if (mlx_span_is(text, "none") || mlx_span_is(text, "None")) {
    node->value = mlx_none();
  } else {
    node->kind = MLX_NODE_NAME;
  }
  return NULL;
}

static mlx_status_t parse_primary(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *node;
  if (mlx_parser_at_op(p, "[")) return parse_list(p, out);
  if (mlx_parser_at_op(p, "{")) return parse_dict(p, out);
  if (mlx_parser_skip_op(p, "(")) {
    MLX_TRY(mlx_parse_tuple(p, MLX_TUPLE_FULL, NULL, true, out));
    return mlx_parser_expect_op(p, ")");
  }
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_CONST, &node));
  *out = node;
  switch (p->token->kind) {
    case MLX_TOKEN_NAME: return parse_name(p, node);
    case MLX_TOKEN_STRING: return parse_string(p, node);
    case MLX_TOKEN_INT:
    case MLX_TOKEN_FLOAT: return parse_number(p, node);
    default: return mlx_parser_unexpected(p, "an expression");
  }
}

// ----------------------------------------------------------------------------------------------------------
// Calls, subscripts, filters and tests

static mlx_status_t parse_argument(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *node;
  const bool named = mlx_parser_at_op(p, "**");
  if (named || mlx_parser_at_op(p, "*")) {
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_SPREAD, &node));
    node->named = named;
    ++p->token;
  } else if (p->token->kind == MLX_TOKEN_NAME && p->token[1].kind == MLX_TOKEN_OPERATOR &&
             mlx_span_is(p->token[1].text, "=")) {
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_KEYWORD, &node));
    node->text = p->token->text;
    p->token += 2;
  } else {
    return mlx_parse_expression(p, true, out);
  }
  *out = node;
  return mlx_parse_expression(p, true, &node->a);
}

static mlx_status_t parse_arguments(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t **tail = out, *argument;
  bool named = false;
  *out = NULL;
  MLX_TRY(mlx_parser_expect_op(p, "("));
  while (!mlx_parser_at_op(p, ")")) {
    if (*out) MLX_TRY(mlx_parser_expect_op(p, ","));
    if (mlx_parser_at_op(p, ")")) break;
    MLX_TRY(parse_argument(p, &argument));
    bool is_named = argument->kind == MLX_NODE_KEYWORD || argument->kind == MLX_NODE_SPREAD;
    if (named && !is_named) return mlx_parser_error(p, "a positional argument follows a keyword argument");
    named = named || is_named;
    *tail = argument;
    tail = &argument->next;
  }
  ++p->token;
  return NULL;
}

static mlx_status_t parse_call(mlx_parser_t *p, mlx_template_node_t **inout) {
  MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_CALL, *inout, NULL, inout));
  return parse_arguments(p, &(*inout)->first);
}

static bool subscript_ends(const mlx_parser_t *p) {
  return mlx_parser_at_op(p, "]") || mlx_parser_at_op(p, ",");
}

static mlx_status_t parse_subscript(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *slice, *start = NULL;
  if (!mlx_parser_at_op(p, ":")) {
    MLX_TRY(mlx_parse_expression(p, true, &start));
    if (!mlx_parser_at_op(p, ":")) {
      *out = start;
      return NULL;
    }
  }
  MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_SLICE, start, NULL, &slice));
  ++p->token;
  if (!mlx_parser_at_op(p, ":") && !subscript_ends(p)) MLX_TRY(mlx_parse_expression(p, true, &slice->b));
  if (mlx_parser_skip_op(p, ":") && !subscript_ends(p)) MLX_TRY(mlx_parse_expression(p, true, &slice->c));
  *out = slice;
  return NULL;
}

static mlx_status_t parse_brackets(mlx_parser_t *p, mlx_template_node_t **inout) {
  mlx_template_node_t *tuple, **tail, *item;
  ++p->token;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_TUPLE, &tuple));
  tail = &tuple->first;
  bool many = false;
  while (!mlx_parser_at_op(p, "]")) {
    if (tuple->first) {
      MLX_TRY(mlx_parser_expect_op(p, ","));
      many = true;
    }
    MLX_TRY(parse_subscript(p, &item));
    *tail = item;
    tail = &item->next;
  }
  if (!tuple->first) return mlx_parser_unexpected(p, "an expression");
  ++p->token;
  return mlx_parser_add_node_of(p, MLX_NODE_ITEM, *inout, many ? tuple : tuple->first, inout);
}

static mlx_status_t parse_dot(mlx_parser_t *p, mlx_template_node_t **inout) {
  ++p->token;
  if (p->token->kind == MLX_TOKEN_INT) {
    mlx_template_node_t *index;
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_CONST, &index));
    MLX_TRY(parse_number(p, index));
    return mlx_parser_add_node_of(p, MLX_NODE_ITEM, *inout, index, inout);
  }
  mlx_span_t name;
  MLX_TRY(mlx_parser_expect_name(p, &name));
  MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_ATTRIBUTE, *inout, NULL, inout));
  (*inout)->text = name;
  return NULL;
}

static mlx_status_t parse_postfix(mlx_parser_t *p, mlx_template_node_t **inout) {
  for (;;) {
    if (mlx_parser_at_op(p, ".")) {
      MLX_TRY(parse_dot(p, inout));
    } else if (mlx_parser_at_op(p, "[")) {
      MLX_TRY(parse_brackets(p, inout));
    } else if (mlx_parser_at_op(p, "(")) {
      MLX_TRY(parse_call(p, inout));
    } else {
      return NULL;
    }
  }
}

// Reads the name of a filter or test, which may have dots.
static mlx_status_t parse_dotted(mlx_parser_t *p, mlx_span_t *out) {
  MLX_TRY(mlx_parser_expect_name(p, out));
  while (mlx_parser_skip_op(p, ".")) {
    mlx_span_t part;
    MLX_TRY(mlx_parser_expect_name(p, &part));
    out->length = (size_t)(part.bytes + part.length - out->bytes);
  }
  return NULL;
}

mlx_status_t mlx_parse_filters(mlx_parser_t *p, bool inline_start, mlx_template_node_t **inout) {
  while (inline_start || mlx_parser_at_op(p, "|")) {
    mlx_template_node_t *node;
    if (!inline_start) ++p->token;
    inline_start = false;
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_FILTER, *inout, NULL, &node));
    MLX_TRY(parse_dotted(p, &node->text));
    if (mlx_parser_at_op(p, "(")) MLX_TRY(parse_arguments(p, &node->first));
    *inout = node;
  }
  return NULL;
}

static bool starts_operand(const mlx_parser_t *p) {
  if (mlx_parser_at_keyword(p, "else") || mlx_parser_at_keyword(p, "or") || mlx_parser_at_keyword(p, "and"))
    return false;
  return (p->token->kind >= MLX_TOKEN_NAME && p->token->kind <= MLX_TOKEN_FLOAT) ||
         mlx_parser_at_op(p, "[") || mlx_parser_at_op(p, "{");
}

static mlx_status_t parse_test(mlx_parser_t *p, mlx_template_node_t **inout) {
  mlx_template_node_t *test;
  ++p->token;
  const bool negated = mlx_parser_skip_keyword(p, "not");
  MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_TEST, *inout, NULL, &test));
  MLX_TRY(parse_dotted(p, &test->text));
  if (mlx_parser_at_op(p, "(")) {
    MLX_TRY(parse_arguments(p, &test->first));
  } else if (starts_operand(p)) {
    if (mlx_parser_at_keyword(p, "is")) return mlx_parser_error(p, "tests with 'is' cannot be chained");
    MLX_TRY(parse_primary(p, &test->first));
    MLX_TRY(parse_postfix(p, &test->first));
  }
  *inout = test;
  return negated ? mlx_parser_add_node_of(p, MLX_NODE_NOT, test, NULL, inout) : NULL;
}

static mlx_status_t parse_filter_expression(mlx_parser_t *p, mlx_template_node_t **inout) {
  for (;;) {
    if (mlx_parser_at_op(p, "|")) {
      MLX_TRY(mlx_parse_filters(p, false, inout));
    } else if (mlx_parser_at_keyword(p, "is")) {
      MLX_TRY(parse_test(p, inout));
    } else if (mlx_parser_at_op(p, "(")) {
      MLX_TRY(parse_call(p, inout));
    } else {
      return NULL;
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Operators, by precedence

static mlx_status_t parse_unary(mlx_parser_t *p, bool with_filter, mlx_template_node_t **out) {
  const bool minus = mlx_parser_at_op(p, "-");
  MLX_TRY(mlx_parser_enter(p));
  if (minus || mlx_parser_at_op(p, "+")) {
    mlx_template_node_t *sign;
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_SIGN, &sign));
    sign->op = minus ? MLX_OP_SUB : MLX_OP_ADD;
    ++p->token;
    MLX_TRY(parse_unary(p, false, &sign->a));
    *out = sign;
  } else {
    MLX_TRY(parse_primary(p, out));
  }
  --p->depth;
  MLX_TRY(parse_postfix(p, out));
  return with_filter ? parse_filter_expression(p, out) : NULL;
}

typedef struct operator{
  const char *text;
  mlx_op_t op;
}
operator_t;

static mlx_op_t skip_operator(mlx_parser_t *p, const operator_t *rows) {
  for (; rows->text; ++rows) {
    if (mlx_parser_skip_op(p, rows->text)) return rows->op;
  }
  return MLX_OP_NONE;
}

static mlx_status_t parse_power(mlx_parser_t *p, mlx_template_node_t **out) {
  MLX_TRY(parse_unary(p, true, out));
  while (mlx_parser_skip_op(p, "**")) {
    mlx_template_node_t *right;
    MLX_TRY(parse_unary(p, true, &right));
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_BINARY, *out, right, out));
    (*out)->op = MLX_OP_POW;
  }
  return NULL;
}

static mlx_status_t parse_product(mlx_parser_t *p, mlx_template_node_t **out) {
  static const operator_t rows[] = {
      {"*", MLX_OP_MUL}, {"/", MLX_OP_DIV}, {"//", MLX_OP_FLOORDIV}, {"%", MLX_OP_MOD}, {0}};
  mlx_op_t op;
  MLX_TRY(parse_power(p, out));
  while ((op = skip_operator(p, rows))) {
    mlx_template_node_t *right;
    MLX_TRY(parse_power(p, &right));
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_BINARY, *out, right, out));
    (*out)->op = op;
  }
  return NULL;
}

static mlx_status_t parse_concat(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *first, *concat;
  MLX_TRY(parse_product(p, &first));
  *out = first;
  if (!mlx_parser_at_op(p, "~")) return NULL;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_CONCAT, &concat));
  concat->first = first;
  for (mlx_template_node_t **tail = &first->next; mlx_parser_skip_op(p, "~"); tail = &(*tail)->next)
    MLX_TRY(parse_product(p, tail));
  *out = concat;
  return NULL;
}

static mlx_status_t parse_sum(mlx_parser_t *p, mlx_template_node_t **out) {
  static const operator_t rows[] = {{"+", MLX_OP_ADD}, {"-", MLX_OP_SUB}, {0}};
  mlx_op_t op;
  MLX_TRY(parse_concat(p, out));
  while ((op = skip_operator(p, rows))) {
    mlx_template_node_t *right;
    MLX_TRY(parse_concat(p, &right));
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_BINARY, *out, right, out));
    (*out)->op = op;
  }
  return NULL;
}

static mlx_op_t skip_comparison(mlx_parser_t *p) {
  static const operator_t rows[] = {{"==", MLX_OP_EQ},
                                    {"!=", MLX_OP_NE},
                                    {"<=", MLX_OP_LE},
                                    {"<", MLX_OP_LT},
                                    {">=", MLX_OP_GE},
                                    {">", MLX_OP_GT},
                                    {0}};
  if (mlx_parser_skip_keyword(p, "in")) return MLX_OP_IN;
  if (mlx_parser_at_keyword(p, "not") && p->token[1].kind == MLX_TOKEN_NAME &&
      mlx_span_is(p->token[1].text, "in")) {
    p->token += 2;
    return MLX_OP_NOT_IN;
  }
  return skip_operator(p, rows);
}

static mlx_status_t parse_comparison(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *compare = NULL, **tail = NULL, *operand;
  mlx_op_t op;
  MLX_TRY(parse_sum(p, out));
  while ((op = skip_comparison(p))) {
    if (!compare) {
      MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_COMPARE, *out, NULL, &compare));
      tail = &compare->first;
      *out = compare;
    }
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_OPERAND, &operand));
    operand->op = op;
    MLX_TRY(parse_sum(p, &operand->a));
    *tail = operand;
    tail = &operand->next;
  }
  return NULL;
}

static mlx_status_t parse_not(mlx_parser_t *p, mlx_template_node_t **out) {
  if (!mlx_parser_skip_keyword(p, "not")) return parse_comparison(p, out);
  mlx_template_node_t *operand;
  MLX_TRY(mlx_parser_enter(p));
  MLX_TRY(parse_not(p, &operand));
  --p->depth;
  return mlx_parser_add_node_of(p, MLX_NODE_NOT, operand, NULL, out);
}

static mlx_status_t parse_and(mlx_parser_t *p, mlx_template_node_t **out) {
  MLX_TRY(parse_not(p, out));
  while (mlx_parser_skip_keyword(p, "and")) {
    mlx_template_node_t *right;
    MLX_TRY(parse_not(p, &right));
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_AND, *out, right, out));
  }
  return NULL;
}

static mlx_status_t parse_or(mlx_parser_t *p, mlx_template_node_t **out) {
  MLX_TRY(parse_and(p, out));
  while (mlx_parser_skip_keyword(p, "or")) {
    mlx_template_node_t *right;
    MLX_TRY(parse_and(p, &right));
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_OR, *out, right, out));
  }
  return NULL;
}

mlx_status_t mlx_parse_expression(mlx_parser_t *p, bool with_condition, mlx_template_node_t **out) {
  MLX_TRY(mlx_parser_enter(p));
  MLX_TRY(parse_or(p, out));
  while (with_condition && mlx_parser_skip_keyword(p, "if")) {
    mlx_template_node_t *node;
    MLX_TRY(mlx_parser_add_node_of(p, MLX_NODE_CONDITION, NULL, *out, &node));
    MLX_TRY(parse_or(p, &node->a));
    if (mlx_parser_skip_keyword(p, "else")) MLX_TRY(mlx_parse_expression(p, true, &node->c));
    *out = node;
  }
  --p->depth;
  return NULL;
}
