// Nodes from tokens: jinja2's parser, function by function, so that precedence is the same. What jinja2's compiler checks before
// a template ever runs (unknown filters and tests, break outside of a loop) is checked here too.
#include <stdlib.h>

#include "runtime/template_internal.h"

typedef struct parser {
  mlx_template_t *template;
  const mlx_lexeme_t *token;
  int depth, loops;
} parser_t;

static mlx_status_t parse_expression(parser_t *p, bool with_condition, mlx_node_t **out) MLX_MUST_USE;
static mlx_status_t parse_statements(parser_t *p, const char *const *ends, mlx_node_t **out) MLX_MUST_USE;
static mlx_status_t parse_unary(parser_t *p, bool with_filter, mlx_node_t **out) MLX_MUST_USE;
static mlx_status_t parse_primary(parser_t *p, mlx_node_t **out) MLX_MUST_USE;

// ---------------------------------------------------------------------------------------------------------------------
// Tokens

static mlx_status_t fail(const parser_t *p, const char *what) {
  return mlx_template_error(p->template, p->token->line, MLX_INVALID_INPUT, "%s", what);
}

static mlx_status_t unexpected(const parser_t *p, const char *wanted) {
  static const char *const ends[] = {[MLX_TOKEN_END] = "the end of the template", [MLX_TOKEN_TEXT] = "text",
                                     [MLX_TOKEN_PRINT] = "{{", [MLX_TOKEN_PRINT_END] = "}}", [MLX_TOKEN_TAG] = "{%",
                                     [MLX_TOKEN_TAG_END] = "%}"};
  const mlx_lexeme_t *t = p->token;
  if (t->kind <= MLX_TOKEN_TAG_END) {
    return mlx_template_error(p->template, t->line, MLX_INVALID_INPUT, "expected %s, not %s", wanted, ends[t->kind]);
  }
  return mlx_template_error(p->template, t->line, MLX_INVALID_INPUT, "expected %s, not '%.*s'", wanted,
                            (int)(t->text.length > 40 ? 40 : t->text.length), t->text.bytes);
}

static bool is_op(const parser_t *p, const char *op) { return p->token->kind == MLX_TOKEN_OPERATOR && mlx_span_is(p->token->text, op); }
static bool is_word(const parser_t *p, const char *word) { return p->token->kind == MLX_TOKEN_NAME && mlx_span_is(p->token->text, word); }

static bool skip_op(parser_t *p, const char *op) {
  if (!is_op(p, op)) return false;
  ++p->token;
  return true;
}

static bool skip_word(parser_t *p, const char *word) {
  if (!is_word(p, word)) return false;
  ++p->token;
  return true;
}

static mlx_status_t need_op(parser_t *p, const char *op) {
  char wanted[8] = {'\'', op[0], '\'', 0};
  return skip_op(p, op) ? NULL : unexpected(p, wanted);
}

static mlx_status_t need_name(parser_t *p, mlx_span_t *out) {
  if (p->token->kind != MLX_TOKEN_NAME) return unexpected(p, "a name");
  *out = p->token++->text;
  return NULL;
}

static mlx_status_t need_tag_end(parser_t *p) {
  if (p->token->kind != MLX_TOKEN_TAG_END) return unexpected(p, "the end of the tag");
  ++p->token;
  return NULL;
}

static mlx_status_t new_node(parser_t *p, mlx_node_kind_t kind, mlx_node_t **out) {
  MLX_TRY(mlx_arena_take(&p->template->arena, 1, sizeof **out, out));
  (*out)->kind = kind;
  (*out)->line = p->token->line;
  return NULL;
}

static mlx_status_t new_node_of(parser_t *p, mlx_node_kind_t kind, mlx_node_t *a, mlx_node_t *b, mlx_node_t **out) {
  mlx_node_t *node;
  MLX_TRY(new_node(p, kind, &node));
  node->a = a;
  node->b = b;
  *out = node;
  return NULL;
}

static mlx_status_t enter(parser_t *p) {
  return ++p->depth > MLX_PARSE_DEPTH ? fail(p, "the template is nested too deep") : NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Literals

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// \xhh, \uhhhh, \Uhhhhhhhh, of which |at| is the letter.
static mlx_status_t unescape_hex(const parser_t *p, mlx_span_t text, size_t *inout_at, mlx_sink_t *sink) {
  const char letter = text.bytes[*inout_at];
  const size_t count = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
  uint32_t code = 0;
  for (size_t i = 1; i <= count; ++i) {
    int digit = *inout_at + i < text.length ? hex_digit(text.bytes[*inout_at + i]) : -1;
    if (digit < 0) return fail(p, "a string has an escape that is cut short");
    code = code << 4 | (uint32_t)digit;
  }
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return fail(p, "a string escapes something that is no character");
  mlx_sink_character(sink, code);
  *inout_at += count;
  return NULL;
}

// Python's unicode-escape: an unknown escape keeps its backslash.
static mlx_status_t unescape(parser_t *p, mlx_span_t text, mlx_sink_t *sink) {
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
      for (; i < end && i < text.length && text.bytes[i] >= '0' && text.bytes[i] <= '7'; ++i) code = code * 8 + (uint32_t)(text.bytes[i] - '0');
      --i;
      mlx_sink_character(sink, code);
    } else if (next == 'N') {
      return mlx_template_error(p->template, p->token->line, MLX_UNSUPPORTED, "characters by name (\\N{...}) are not supported");
    } else if (next != '\n') {
      mlx_sink_append(sink, (const char[]){'\\', next}, 2);
    }
  }
  return NULL;
}

static mlx_status_t parse_string(parser_t *p, mlx_node_t *node) {
  mlx_sink_t sink = {.arena = &p->template->arena};
  for (; p->token->kind == MLX_TOKEN_STRING; ++p->token) {
    MLX_TRY(unescape(p, (mlx_span_t){p->token->text.bytes + 1, p->token->text.length - 2}, &sink));
  }
  if (sink.failed) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: a template's string");
  node->value = mlx_string(sink.data ? sink.data : "", sink.length);
  return NULL;
}

static mlx_status_t parse_number(parser_t *p, mlx_node_t *node) {
  char digits[128];
  size_t count = 0;
  const mlx_lexeme_t *t = p->token;
  for (size_t i = 0; i < t->text.length; ++i) {
    if (t->text.bytes[i] == '_') continue;
    if (count + 1 == sizeof digits) return fail(p, "a number is too long");
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
      if (__builtin_mul_overflow(value, (int64_t)base, &value) || __builtin_add_overflow(value, (int64_t)hex_digit(*c), &value)) {
        return mlx_template_error(p->template, t->line, MLX_UNSUPPORTED, "the number %s does not fit 64 bits", digits);
      }
    }
    node->value = mlx_int(value);
  }
  ++p->token;
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Expressions

static bool tuple_ends(const parser_t *p, const char *extra_end) {
  return p->token->kind == MLX_TOKEN_PRINT_END || p->token->kind == MLX_TOKEN_TAG_END || is_op(p, ")") || (extra_end && is_word(p, extra_end));
}

typedef enum tuple_style { TUPLE_FULL, TUPLE_NO_CONDITION, TUPLE_TARGETS } tuple_style_t;

static mlx_status_t parse_namespace_target(parser_t *p, mlx_node_t **out) {
  mlx_span_t name;
  mlx_node_t *object, *node;
  MLX_TRY(new_node(p, MLX_NODE_NAME, &object));
  MLX_TRY(need_name(p, &object->text));
  MLX_TRY(need_op(p, "."));
  MLX_TRY(need_name(p, &name));
  MLX_TRY(new_node_of(p, MLX_NODE_ATTRIBUTE, object, NULL, &node));
  node->text = name;
  *out = node;
  return NULL;
}

static mlx_status_t parse_member(parser_t *p, tuple_style_t style, mlx_node_t **out) {
  if (style != TUPLE_TARGETS) return parse_expression(p, style == TUPLE_FULL, out);
  if (p->token->kind == MLX_TOKEN_NAME && p->token[1].kind == MLX_TOKEN_OPERATOR && mlx_span_is(p->token[1].text, ".")) {
    return parse_namespace_target(p, out);
  }
  return parse_primary(p, out);
}

// One expression, or several with commas between them as a tuple. Only |in_parentheses| may it be empty.
static mlx_status_t parse_tuple(parser_t *p, tuple_style_t style, const char *extra_end, bool in_parentheses, mlx_node_t **out) {
  mlx_node_t *tuple, **tail, *item;
  bool is_tuple = false;
  MLX_TRY(new_node(p, MLX_NODE_TUPLE, &tuple));
  tail = &tuple->first;
  for (size_t count = 0;; ++count) {
    if (count) {
      if (!is_op(p, ",")) break;
      ++p->token;
      is_tuple = true;
    }
    if (tuple_ends(p, extra_end)) break;
    MLX_TRY(parse_member(p, style, &item));
    *tail = item;
    tail = &item->next;
  }
  if (!is_tuple && tuple->first) {
    *out = tuple->first;
    return NULL;
  }
  if (!tuple->first && !in_parentheses) return unexpected(p, "an expression");
  *out = tuple;
  return NULL;
}

static mlx_status_t parse_list(parser_t *p, mlx_node_t **out) {
  mlx_node_t *list, **tail, *item;
  MLX_TRY(new_node(p, MLX_NODE_LIST, &list));
  tail = &list->first;
  for (++p->token; !is_op(p, "]");) {
    if (list->first) MLX_TRY(need_op(p, ","));
    if (is_op(p, "]")) break;
    MLX_TRY(parse_expression(p, true, &item));
    *tail = item;
    tail = &item->next;
  }
  ++p->token;
  *out = list;
  return NULL;
}

static mlx_status_t parse_dict(parser_t *p, mlx_node_t **out) {
  mlx_node_t *dict, **tail, *pair;
  MLX_TRY(new_node(p, MLX_NODE_DICT, &dict));
  tail = &dict->first;
  for (++p->token; !is_op(p, "}");) {
    if (dict->first) MLX_TRY(need_op(p, ","));
    if (is_op(p, "}")) break;
    MLX_TRY(new_node(p, MLX_NODE_PAIR, &pair));
    MLX_TRY(parse_expression(p, true, &pair->a));
    MLX_TRY(need_op(p, ":"));
    MLX_TRY(parse_expression(p, true, &pair->b));
    *tail = pair;
    tail = &pair->next;
  }
  ++p->token;
  *out = dict;
  return NULL;
}

static mlx_status_t parse_name(parser_t *p, mlx_node_t *node) {
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

static mlx_status_t parse_primary(parser_t *p, mlx_node_t **out) {
  mlx_node_t *node;
  if (is_op(p, "[")) return parse_list(p, out);
  if (is_op(p, "{")) return parse_dict(p, out);
  if (skip_op(p, "(")) {
    MLX_TRY(parse_tuple(p, TUPLE_FULL, NULL, true, out));
    return need_op(p, ")");
  }
  MLX_TRY(new_node(p, MLX_NODE_CONST, &node));
  *out = node;
  switch (p->token->kind) {
    case MLX_TOKEN_NAME: return parse_name(p, node);
    case MLX_TOKEN_STRING: return parse_string(p, node);
    case MLX_TOKEN_INT:
    case MLX_TOKEN_FLOAT: return parse_number(p, node);
    default: return unexpected(p, "an expression");
  }
}

static mlx_status_t parse_argument(parser_t *p, mlx_node_t **out) {
  mlx_node_t *node;
  const bool named = is_op(p, "**");
  if (named || is_op(p, "*")) {
    MLX_TRY(new_node(p, MLX_NODE_SPREAD, &node));
    node->named = named;
    ++p->token;
  } else if (p->token->kind == MLX_TOKEN_NAME && p->token[1].kind == MLX_TOKEN_OPERATOR && mlx_span_is(p->token[1].text, "=")) {
    MLX_TRY(new_node(p, MLX_NODE_KEYWORD, &node));
    node->text = p->token->text;
    p->token += 2;
  } else {
    return parse_expression(p, true, out);
  }
  *out = node;
  return parse_expression(p, true, &node->a);
}

static mlx_status_t parse_arguments(parser_t *p, mlx_node_t **out) {
  mlx_node_t **tail = out, *argument;
  bool named = false;
  *out = NULL;
  MLX_TRY(need_op(p, "("));
  while (!is_op(p, ")")) {
    if (*out) MLX_TRY(need_op(p, ","));
    if (is_op(p, ")")) break;
    MLX_TRY(parse_argument(p, &argument));
    bool is_named = argument->kind == MLX_NODE_KEYWORD || argument->kind == MLX_NODE_SPREAD;
    if (named && !is_named) return fail(p, "an argument without a name comes after one with a name");
    named = named || is_named;
    *tail = argument;
    tail = &argument->next;
  }
  ++p->token;
  return NULL;
}

static mlx_status_t parse_call(parser_t *p, mlx_node_t **inout) {
  MLX_TRY(new_node_of(p, MLX_NODE_CALL, *inout, NULL, inout));
  return parse_arguments(p, &(*inout)->first);
}

static bool subscript_ends(const parser_t *p) { return is_op(p, "]") || is_op(p, ","); }

static mlx_status_t parse_subscript(parser_t *p, mlx_node_t **out) {
  mlx_node_t *slice, *start = NULL;
  if (!is_op(p, ":")) {
    MLX_TRY(parse_expression(p, true, &start));
    if (!is_op(p, ":")) {
      *out = start;
      return NULL;
    }
  }
  MLX_TRY(new_node_of(p, MLX_NODE_SLICE, start, NULL, &slice));
  ++p->token;
  if (!is_op(p, ":") && !subscript_ends(p)) MLX_TRY(parse_expression(p, true, &slice->b));
  if (skip_op(p, ":") && !subscript_ends(p)) MLX_TRY(parse_expression(p, true, &slice->c));
  *out = slice;
  return NULL;
}

static mlx_status_t parse_brackets(parser_t *p, mlx_node_t **inout) {
  mlx_node_t *tuple, **tail, *item;
  ++p->token;
  MLX_TRY(new_node(p, MLX_NODE_TUPLE, &tuple));
  tail = &tuple->first;
  bool many = false;
  while (!is_op(p, "]")) {
    if (tuple->first) {
      MLX_TRY(need_op(p, ","));
      many = true;
    }
    MLX_TRY(parse_subscript(p, &item));
    *tail = item;
    tail = &item->next;
  }
  if (!tuple->first) return unexpected(p, "an expression");
  ++p->token;
  return new_node_of(p, MLX_NODE_ITEM, *inout, many ? tuple : tuple->first, inout);
}

static mlx_status_t parse_dot(parser_t *p, mlx_node_t **inout) {
  ++p->token;
  if (p->token->kind == MLX_TOKEN_INT) {
    mlx_node_t *index;
    MLX_TRY(new_node(p, MLX_NODE_CONST, &index));
    MLX_TRY(parse_number(p, index));
    return new_node_of(p, MLX_NODE_ITEM, *inout, index, inout);
  }
  mlx_span_t name;
  MLX_TRY(need_name(p, &name));
  MLX_TRY(new_node_of(p, MLX_NODE_ATTRIBUTE, *inout, NULL, inout));
  (*inout)->text = name;
  return NULL;
}

static mlx_status_t parse_postfix(parser_t *p, mlx_node_t **inout) {
  for (;;) {
    if (is_op(p, ".")) {
      MLX_TRY(parse_dot(p, inout));
    } else if (is_op(p, "[")) {
      MLX_TRY(parse_brackets(p, inout));
    } else if (is_op(p, "(")) {
      MLX_TRY(parse_call(p, inout));
    } else {
      return NULL;
    }
  }
}

// A name with dots, as filters and tests may have.
static mlx_status_t parse_dotted(parser_t *p, mlx_span_t *out) {
  MLX_TRY(need_name(p, out));
  while (skip_op(p, ".")) {
    mlx_span_t part;
    MLX_TRY(need_name(p, &part));
    out->length = (size_t)(part.bytes + part.length - out->bytes);
  }
  return NULL;
}

// The name of a filter and its arguments; a chain of them. |inout| is NULL at first in a filter block.
static mlx_status_t parse_filters(parser_t *p, bool inline_start, mlx_node_t **inout) {
  while (inline_start || is_op(p, "|")) {
    mlx_node_t *node;
    if (!inline_start) ++p->token;
    inline_start = false;
    MLX_TRY(new_node_of(p, MLX_NODE_FILTER, *inout, NULL, &node));
    MLX_TRY(parse_dotted(p, &node->text));
    if (is_op(p, "(")) MLX_TRY(parse_arguments(p, &node->first));
    *inout = node;
  }
  return NULL;
}

static bool starts_operand(const parser_t *p) {
  if (is_word(p, "else") || is_word(p, "or") || is_word(p, "and")) return false;
  return (p->token->kind >= MLX_TOKEN_NAME && p->token->kind <= MLX_TOKEN_FLOAT) || is_op(p, "[") || is_op(p, "{");
}

static mlx_status_t parse_test(parser_t *p, mlx_node_t **inout) {
  mlx_node_t *test;
  ++p->token;
  const bool negated = skip_word(p, "not");
  MLX_TRY(new_node_of(p, MLX_NODE_TEST, *inout, NULL, &test));
  MLX_TRY(parse_dotted(p, &test->text));
  if (is_op(p, "(")) {
    MLX_TRY(parse_arguments(p, &test->first));
  } else if (starts_operand(p)) {
    if (is_word(p, "is")) return fail(p, "tests with 'is' cannot be chained");
    MLX_TRY(parse_primary(p, &test->first));
    MLX_TRY(parse_postfix(p, &test->first));
  }
  *inout = test;
  return negated ? new_node_of(p, MLX_NODE_NOT, test, NULL, inout) : NULL;
}

static mlx_status_t parse_filter_expression(parser_t *p, mlx_node_t **inout) {
  for (;;) {
    if (is_op(p, "|")) {
      MLX_TRY(parse_filters(p, false, inout));
    } else if (is_word(p, "is")) {
      MLX_TRY(parse_test(p, inout));
    } else if (is_op(p, "(")) {
      MLX_TRY(parse_call(p, inout));
    } else {
      return NULL;
    }
  }
}

static mlx_status_t parse_unary(parser_t *p, bool with_filter, mlx_node_t **out) {
  const bool minus = is_op(p, "-");
  MLX_TRY(enter(p));
  if (minus || is_op(p, "+")) {
    mlx_node_t *sign;
    MLX_TRY(new_node(p, MLX_NODE_SIGN, &sign));
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

typedef struct operator_row {
  const char *text;
  mlx_op_t op;
} operator_row_t;

static mlx_op_t skip_operator(parser_t *p, const operator_row_t *rows) {
  for (; rows->text; ++rows) {
    if (skip_op(p, rows->text)) return rows->op;
  }
  return MLX_OP_NONE;
}

static mlx_status_t parse_power(parser_t *p, mlx_node_t **out) {
  MLX_TRY(parse_unary(p, true, out));
  while (skip_op(p, "**")) {
    mlx_node_t *right;
    MLX_TRY(parse_unary(p, true, &right));
    MLX_TRY(new_node_of(p, MLX_NODE_BINARY, *out, right, out));
    (*out)->op = MLX_OP_POW;
  }
  return NULL;
}

static mlx_status_t parse_product(parser_t *p, mlx_node_t **out) {
  static const operator_row_t rows[] = {{"*", MLX_OP_MUL}, {"/", MLX_OP_DIV}, {"//", MLX_OP_FLOORDIV}, {"%", MLX_OP_MOD}, {0}};
  mlx_op_t op;
  MLX_TRY(parse_power(p, out));
  while ((op = skip_operator(p, rows))) {
    mlx_node_t *right;
    MLX_TRY(parse_power(p, &right));
    MLX_TRY(new_node_of(p, MLX_NODE_BINARY, *out, right, out));
    (*out)->op = op;
  }
  return NULL;
}

static mlx_status_t parse_concat(parser_t *p, mlx_node_t **out) {
  mlx_node_t *first, *concat;
  MLX_TRY(parse_product(p, &first));
  *out = first;
  if (!is_op(p, "~")) return NULL;
  MLX_TRY(new_node(p, MLX_NODE_CONCAT, &concat));
  concat->first = first;
  for (mlx_node_t **tail = &first->next; skip_op(p, "~"); tail = &(*tail)->next) MLX_TRY(parse_product(p, tail));
  *out = concat;
  return NULL;
}

static mlx_status_t parse_sum(parser_t *p, mlx_node_t **out) {
  static const operator_row_t rows[] = {{"+", MLX_OP_ADD}, {"-", MLX_OP_SUB}, {0}};
  mlx_op_t op;
  MLX_TRY(parse_concat(p, out));
  while ((op = skip_operator(p, rows))) {
    mlx_node_t *right;
    MLX_TRY(parse_concat(p, &right));
    MLX_TRY(new_node_of(p, MLX_NODE_BINARY, *out, right, out));
    (*out)->op = op;
  }
  return NULL;
}

static mlx_op_t skip_comparison(parser_t *p) {
  static const operator_row_t rows[] = {{"==", MLX_OP_EQ}, {"!=", MLX_OP_NE}, {"<=", MLX_OP_LE}, {"<", MLX_OP_LT},
                                        {">=", MLX_OP_GE}, {">", MLX_OP_GT}, {0}};
  if (skip_word(p, "in")) return MLX_OP_IN;
  if (is_word(p, "not") && p->token[1].kind == MLX_TOKEN_NAME && mlx_span_is(p->token[1].text, "in")) {
    p->token += 2;
    return MLX_OP_NOT_IN;
  }
  return skip_operator(p, rows);
}

static mlx_status_t parse_comparison(parser_t *p, mlx_node_t **out) {
  mlx_node_t *compare = NULL, **tail = NULL, *operand;
  mlx_op_t op;
  MLX_TRY(parse_sum(p, out));
  while ((op = skip_comparison(p))) {
    if (!compare) {
      MLX_TRY(new_node_of(p, MLX_NODE_COMPARE, *out, NULL, &compare));
      tail = &compare->first;
      *out = compare;
    }
    MLX_TRY(new_node(p, MLX_NODE_OPERAND, &operand));
    operand->op = op;
    MLX_TRY(parse_sum(p, &operand->a));
    *tail = operand;
    tail = &operand->next;
  }
  return NULL;
}

static mlx_status_t parse_not(parser_t *p, mlx_node_t **out) {
  if (!skip_word(p, "not")) return parse_comparison(p, out);
  mlx_node_t *operand;
  MLX_TRY(enter(p));
  MLX_TRY(parse_not(p, &operand));
  --p->depth;
  return new_node_of(p, MLX_NODE_NOT, operand, NULL, out);
}

static mlx_status_t parse_and(parser_t *p, mlx_node_t **out) {
  MLX_TRY(parse_not(p, out));
  while (skip_word(p, "and")) {
    mlx_node_t *right;
    MLX_TRY(parse_not(p, &right));
    MLX_TRY(new_node_of(p, MLX_NODE_AND, *out, right, out));
  }
  return NULL;
}

static mlx_status_t parse_or(parser_t *p, mlx_node_t **out) {
  MLX_TRY(parse_and(p, out));
  while (skip_word(p, "or")) {
    mlx_node_t *right;
    MLX_TRY(parse_and(p, &right));
    MLX_TRY(new_node_of(p, MLX_NODE_OR, *out, right, out));
  }
  return NULL;
}

static mlx_status_t parse_expression(parser_t *p, bool with_condition, mlx_node_t **out) {
  MLX_TRY(enter(p));
  MLX_TRY(parse_or(p, out));
  while (with_condition && skip_word(p, "if")) {
    mlx_node_t *node;
    MLX_TRY(new_node_of(p, MLX_NODE_CONDITION, NULL, *out, &node));
    MLX_TRY(parse_or(p, &node->a));
    if (skip_word(p, "else")) MLX_TRY(parse_expression(p, true, &node->c));
    *out = node;
  }
  --p->depth;
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Statements

static mlx_status_t check_target(const parser_t *p, const mlx_node_t *target) {
  if (target->kind == MLX_NODE_NAME || target->kind == MLX_NODE_ATTRIBUTE) return NULL;
  if ((target->kind != MLX_NODE_TUPLE && target->kind != MLX_NODE_LIST) || !target->first) return fail(p, "this cannot be assigned to");
  for (const mlx_node_t *item = target->first; item; item = item->next) MLX_TRY(check_target(p, item));
  return NULL;
}

static mlx_status_t parse_target(parser_t *p, const char *extra_end, mlx_node_t **out) {
  MLX_TRY(parse_tuple(p, TUPLE_TARGETS, extra_end, false, out));
  return check_target(p, *out);
}

static mlx_status_t parse_if(parser_t *p, mlx_node_t **out) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
  mlx_node_t *node;
  for (mlx_node_t **place = out;; place = &node->otherwise) {
    MLX_TRY(new_node(p, MLX_NODE_IF, &node));
    *place = node;
    MLX_TRY(parse_tuple(p, TUPLE_NO_CONDITION, NULL, false, &node->a));
    MLX_TRY(parse_statements(p, ends, &node->body));
    if (skip_word(p, "elif")) continue;
    if (skip_word(p, "else")) MLX_TRY(parse_statements(p, end, &node->otherwise));
    ++p->token;
    return NULL;
  }
}

static mlx_status_t parse_for(parser_t *p, mlx_node_t **out) {
  static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
  mlx_node_t *node;
  MLX_TRY(new_node(p, MLX_NODE_FOR, &node));
  *out = node;
  MLX_TRY(parse_target(p, "in", &node->a));
  if (!skip_word(p, "in")) return unexpected(p, "'in'");
  MLX_TRY(parse_tuple(p, TUPLE_NO_CONDITION, "recursive", false, &node->b));
  if (skip_word(p, "if")) MLX_TRY(parse_expression(p, true, &node->c));
  node->named = skip_word(p, "recursive");
  ++p->loops;
  MLX_TRY(parse_statements(p, ends, &node->body));
  --p->loops;
  if (skip_word(p, "else")) MLX_TRY(parse_statements(p, end, &node->otherwise));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_set(parser_t *p, mlx_node_t **out) {
  static const char *const end[] = {"endset", NULL};
  mlx_node_t *node;
  MLX_TRY(new_node(p, MLX_NODE_SET, &node));
  *out = node;
  MLX_TRY(parse_target(p, NULL, &node->a));
  if (skip_op(p, "=")) return parse_tuple(p, TUPLE_FULL, NULL, false, &node->b);
  node->kind = MLX_NODE_SET_BLOCK;
  MLX_TRY(parse_filters(p, false, &node->b));
  MLX_TRY(parse_statements(p, end, &node->body));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_parameters(parser_t *p, mlx_node_t **out) {
  mlx_node_t **tail = out, *parameter;
  bool defaults = false;
  MLX_TRY(need_op(p, "("));
  while (!is_op(p, ")")) {
    if (*out) MLX_TRY(need_op(p, ","));
    MLX_TRY(new_node(p, MLX_NODE_PARAMETER, &parameter));
    MLX_TRY(need_name(p, &parameter->text));
    if (skip_op(p, "=")) {
      MLX_TRY(parse_expression(p, true, &parameter->a));
      defaults = true;
    } else if (mlx_span_is(parameter->text, "caller")) {
      return fail(p, "the parameter 'caller' wants a default");
    } else if (defaults) {
      return fail(p, "a parameter without a default comes after one with a default");
    }
    *tail = parameter;
    tail = &parameter->next;
  }
  ++p->token;
  return NULL;
}

// A body that does not see the loops around it.
static mlx_status_t parse_closed_body(parser_t *p, const char *end_word, mlx_node_t **out) {
  const char *const ends[] = {end_word, NULL};
  const int loops = p->loops;
  p->loops = 0;
  MLX_TRY(parse_statements(p, ends, out));
  p->loops = loops;
  ++p->token;
  return NULL;
}

static mlx_status_t parse_macro(parser_t *p, mlx_node_t **out) {
  mlx_node_t *node;
  MLX_TRY(new_node(p, MLX_NODE_MACRO, &node));
  *out = node;
  MLX_TRY(need_name(p, &node->text));
  MLX_TRY(parse_parameters(p, &node->first));
  return parse_closed_body(p, "endmacro", &node->body);
}

static mlx_status_t parse_call_block(parser_t *p, mlx_node_t **out) {
  mlx_node_t *node;
  MLX_TRY(new_node(p, MLX_NODE_CALL_BLOCK, &node));
  *out = node;
  node->text = (mlx_span_t){"caller", 6};
  if (is_op(p, "(")) MLX_TRY(parse_parameters(p, &node->first));
  MLX_TRY(parse_expression(p, true, &node->a));
  if (node->a->kind != MLX_NODE_CALL) return fail(p, "a call block wants a call");
  return parse_closed_body(p, "endcall", &node->body);
}

static mlx_status_t parse_filter_block(parser_t *p, mlx_node_t **out) {
  static const char *const end[] = {"endfilter", NULL};
  mlx_node_t *node;
  MLX_TRY(new_node(p, MLX_NODE_FILTER_BLOCK, &node));
  *out = node;
  MLX_TRY(parse_filters(p, true, &node->a));
  MLX_TRY(parse_statements(p, end, &node->body));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_with(parser_t *p, mlx_node_t **out) {
  static const char *const end[] = {"endwith", NULL};
  mlx_node_t *node, **tail, *pair;
  MLX_TRY(new_node(p, MLX_NODE_WITH, &node));
  *out = node;
  tail = &node->first;
  while (p->token->kind != MLX_TOKEN_TAG_END) {
    if (node->first) MLX_TRY(need_op(p, ","));
    MLX_TRY(new_node(p, MLX_NODE_PAIR, &pair));
    MLX_TRY(parse_member(p, TUPLE_TARGETS, &pair->a));
    MLX_TRY(check_target(p, pair->a));
    MLX_TRY(need_op(p, "="));
    MLX_TRY(parse_expression(p, true, &pair->b));
    *tail = pair;
    tail = &pair->next;
  }
  MLX_TRY(parse_statements(p, end, &node->body));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_generation(parser_t *p, mlx_node_t **out) {
  MLX_TRY(new_node(p, MLX_NODE_SCOPE, out));
  return parse_closed_body(p, "endgeneration", &(*out)->body);
}

static mlx_status_t parse_loop_control(parser_t *p, mlx_node_kind_t kind, mlx_node_t **out) {
  return p->loops ? new_node(p, kind, out) : fail(p, "break and continue belong into a loop");
}
static mlx_status_t parse_break(parser_t *p, mlx_node_t **out) { return parse_loop_control(p, MLX_NODE_BREAK, out); }
static mlx_status_t parse_continue(parser_t *p, mlx_node_t **out) { return parse_loop_control(p, MLX_NODE_CONTINUE, out); }

static mlx_status_t parse_unsupported(parser_t *p, mlx_node_t **out) {
  (void)out;
  const mlx_span_t word = p->token[-1].text;
  return mlx_template_error(p->template, p->token->line, MLX_UNSUPPORTED, "{%% %.*s %%} is not supported", (int)word.length, word.bytes);
}

static mlx_status_t parse_tag(parser_t *p, mlx_node_t **out) {
  static const struct {
    const char *word;
    mlx_status_t (*parse)(parser_t *p, mlx_node_t **out);
  } tags[] = {{"if", parse_if}, {"for", parse_for}, {"set", parse_set}, {"macro", parse_macro}, {"call", parse_call_block},
              {"filter", parse_filter_block}, {"with", parse_with}, {"generation", parse_generation}, {"break", parse_break},
              {"continue", parse_continue}, {"block", parse_unsupported}, {"extends", parse_unsupported},
              {"include", parse_unsupported}, {"import", parse_unsupported}, {"from", parse_unsupported},
              {"autoescape", parse_unsupported}, {"print", parse_unsupported}};
  for (size_t i = 0; i < sizeof tags / sizeof *tags; ++i) {
    if (skip_word(p, tags[i].word)) return tags[i].parse(p, out);
  }
  return p->token->kind == MLX_TOKEN_NAME ? mlx_template_error(p->template, p->token->line, MLX_INVALID_INPUT, "unknown tag '%.*s'",
                                                              (int)p->token->text.length, p->token->text.bytes)
                                          : unexpected(p, "the name of a tag");
}

static mlx_status_t parse_statement(parser_t *p, mlx_node_t **out) {
  if (p->token->kind == MLX_TOKEN_TEXT) {
    MLX_TRY(new_node(p, MLX_NODE_TEXT, out));
    (*out)->text = p->token++->text;
    return NULL;
  }
  if (p->token->kind == MLX_TOKEN_TAG) {
    ++p->token;
    MLX_TRY(enter(p));
    MLX_TRY(parse_tag(p, out));
    --p->depth;
    return need_tag_end(p);
  }
  ++p->token;
  MLX_TRY(new_node(p, MLX_NODE_OUTPUT, out));
  MLX_TRY(parse_tuple(p, TUPLE_FULL, NULL, false, &(*out)->a));
  if (p->token->kind != MLX_TOKEN_PRINT_END) return unexpected(p, "}}");
  ++p->token;
  return NULL;
}

static bool at_end_word(const parser_t *p, const char *const *ends) {
  for (; p->token->kind == MLX_TOKEN_TAG && *ends; ++ends) {
    if (p->token[1].kind == MLX_TOKEN_NAME && mlx_span_is(p->token[1].text, *ends)) return true;
  }
  return false;
}

// Statements up to a tag that begins with one of |ends|, whose word becomes the current token. Inside a tag, that tag ends first.
static mlx_status_t parse_statements(parser_t *p, const char *const *ends, mlx_node_t **out) {
  mlx_node_t **tail = out, *node;
  *out = NULL;
  skip_op(p, ":");  // jinja2 lets a colon stand there, as in Python
  MLX_TRY(need_tag_end(p));
  while (!at_end_word(p, ends)) {
    if (p->token->kind == MLX_TOKEN_END) {
      return mlx_template_error(p->template, p->token->line, MLX_INVALID_INPUT, "the template ends where {%% %s %%} is missing", ends[0]);
    }
    MLX_TRY(parse_statement(p, &node));
    *tail = node;
    tail = &node->next;
  }
  ++p->token;
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// What jinja2's compiler checks

typedef struct check {
  const mlx_template_t *template;
  int depth;
  bool caller, varargs, kwargs;  // asked for since the macro began
} check_t;

static mlx_status_t check_chain(check_t *c, mlx_node_t *node, bool soft) MLX_MUST_USE;

// An unknown filter or test is an error at once, but inside a condition only when it is reached.
static mlx_status_t check_builtin(const check_t *c, mlx_node_t *node, bool soft) {
  const bool is_filter = node->kind == MLX_NODE_FILTER;
  node->builtin = is_filter ? mlx_filter_find(node->text) : mlx_test_find(node->text);
  if (node->builtin || soft) return NULL;
  return mlx_template_error(c->template, node->line, MLX_UNSUPPORTED, "there is no %s named '%.*s'", is_filter ? "filter" : "test",
                            (int)node->text.length, node->text.bytes);
}

static mlx_status_t check_macro(check_t *c, mlx_node_t *node) {
  check_t inside = {.template = c->template, .depth = c->depth};
  MLX_TRY(check_chain(&inside, node->first, false));
  MLX_TRY(check_chain(&inside, node->body, false));
  node->uses_caller = inside.caller;
  node->uses_varargs = inside.varargs;
  node->uses_kwargs = inside.kwargs;
  c->caller |= inside.caller;
  c->varargs |= inside.varargs;
  c->kwargs |= inside.kwargs;
  return NULL;
}

static mlx_status_t check_node(check_t *c, mlx_node_t *node, bool soft) {
  switch (node->kind) {
    case MLX_NODE_NAME:
      c->caller |= mlx_span_is(node->text, "caller");
      c->varargs |= mlx_span_is(node->text, "varargs");
      c->kwargs |= mlx_span_is(node->text, "kwargs");
      return NULL;
    case MLX_NODE_FILTER:
    case MLX_NODE_TEST: MLX_TRY(check_builtin(c, node, soft)); break;
    case MLX_NODE_IF:
    case MLX_NODE_CONDITION: soft = true; break;
    case MLX_NODE_FOR:
      MLX_TRY(check_chain(c, node->b, soft));
      MLX_TRY(check_chain(c, node->c, false));
      MLX_TRY(check_chain(c, node->body, false));
      return check_chain(c, node->otherwise, false);
    case MLX_NODE_CALL_BLOCK: MLX_TRY(check_chain(c, node->a, soft)); return check_macro(c, node);
    case MLX_NODE_MACRO: return check_macro(c, node);
    case MLX_NODE_SET_BLOCK:
    case MLX_NODE_FILTER_BLOCK:
    case MLX_NODE_WITH:
    case MLX_NODE_SCOPE: soft = false; break;
    default: break;
  }
  MLX_TRY(check_chain(c, node->a, soft));
  MLX_TRY(check_chain(c, node->b, soft));
  MLX_TRY(check_chain(c, node->c, soft));
  MLX_TRY(check_chain(c, node->first, soft));
  return check_chain(c, node->body, soft);
}

static mlx_status_t check_chain(check_t *c, mlx_node_t *node, bool soft) {
  if (!node) return NULL;
  if (++c->depth > MLX_TEMPLATE_DEPTH) {
    return mlx_template_error(c->template, node->line, MLX_INVALID_INPUT, "the template is nested too deep");
  }
  for (; node; node = node->next) {
    // An elif is inside the if before it; there may be more of them than there is depth.
    for (mlx_node_t *branch = node; branch; branch = branch->kind == MLX_NODE_IF ? branch->otherwise : NULL) {
      if (branch != node && branch->kind != MLX_NODE_IF) {
        MLX_TRY(check_chain(c, branch, true));
        break;
      }
      MLX_TRY(check_node(c, branch, soft || branch != node));
      if (branch->kind == MLX_NODE_IF && branch->otherwise && branch->otherwise->next) {
        MLX_TRY(check_chain(c, branch->otherwise, true));
        break;
      }
    }
  }
  --c->depth;
  return NULL;
}

mlx_status_t mlx_template_parse(mlx_template_t *template) {
  mlx_lexeme_t *tokens;
  MLX_TRY(mlx_template_lex(template, &tokens));
  parser_t p = {.template = template, .token = tokens};
  mlx_node_t **tail = &template->body, *node;
  while (p.token->kind != MLX_TOKEN_END) {
    MLX_TRY(parse_statement(&p, &node));
    *tail = node;
    tail = &node->next;
  }
  check_t check = {.template = template};
  return check_chain(&check, template->body, false);
}
