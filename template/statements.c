// Statements from tokens: one function for each tag.
#include "template/statements.h"

#include "template/error.h"
#include "template/expressions.h"

static mlx_status_t parse_statements(mlx_parser_t *p, const char *const *ends,
                                     mlx_template_node_t **out) MLX_MUST_USE;

static mlx_status_t expect_tag_end(mlx_parser_t *p) {
  if (p->token->kind != MLX_TOKEN_TAG_END) return mlx_parser_unexpected(p, "the end of the tag");
  ++p->token;
  return NULL;
}

static mlx_status_t check_target(const mlx_parser_t *p, const mlx_template_node_t *target) {
  if (target->kind == MLX_NODE_NAME || target->kind == MLX_NODE_ATTRIBUTE) return NULL;
  if ((target->kind != MLX_NODE_TUPLE && target->kind != MLX_NODE_LIST) || !target->first)
    return mlx_parser_error(p, "cannot assign to this expression");
  for (const mlx_template_node_t *item = target->first; item; item = item->next)
    MLX_TRY(check_target(p, item));
  return NULL;
}

static mlx_status_t parse_target(mlx_parser_t *p, const char *extra_end, mlx_template_node_t **out) {
  MLX_TRY(mlx_parse_tuple(p, MLX_TUPLE_TARGETS, extra_end, false, out));
  return check_target(p, *out);
}

static mlx_status_t parse_if(mlx_parser_t *p, mlx_template_node_t **out) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
  mlx_template_node_t *node;
  for (mlx_template_node_t **link = out;; link = &node->otherwise) {
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_IF, &node));
    *link = node;
    MLX_TRY(mlx_parse_tuple(p, MLX_TUPLE_NO_CONDITION, NULL, false, &node->a));
    MLX_TRY(parse_statements(p, ends, &node->body));
    if (mlx_parser_skip_keyword(p, "elif")) continue;
    if (mlx_parser_skip_keyword(p, "else")) MLX_TRY(parse_statements(p, end, &node->otherwise));
    ++p->token;
    return NULL;
  }
}

static mlx_status_t parse_for(mlx_parser_t *p, mlx_template_node_t **out) {
  static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
  mlx_template_node_t *node;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_FOR, &node));
  *out = node;
  MLX_TRY(parse_target(p, "in", &node->a));
  if (!mlx_parser_skip_keyword(p, "in")) return mlx_parser_unexpected(p, "'in'");
  MLX_TRY(mlx_parse_tuple(p, MLX_TUPLE_NO_CONDITION, "recursive", false, &node->b));
  if (mlx_parser_skip_keyword(p, "if")) MLX_TRY(mlx_parse_expression(p, true, &node->c));
  node->named = mlx_parser_skip_keyword(p, "recursive");
  ++p->loops;
  MLX_TRY(parse_statements(p, ends, &node->body));
  --p->loops;
  if (mlx_parser_skip_keyword(p, "else")) MLX_TRY(parse_statements(p, end, &node->otherwise));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_set(mlx_parser_t *p, mlx_template_node_t **out) {
  static const char *const end[] = {"endset", NULL};
  mlx_template_node_t *node;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_SET, &node));
  *out = node;
  MLX_TRY(parse_target(p, NULL, &node->a));
  if (mlx_parser_skip_op(p, "=")) return mlx_parse_tuple(p, MLX_TUPLE_FULL, NULL, false, &node->b);
  node->kind = MLX_NODE_SET_BLOCK;
  MLX_TRY(mlx_parse_filters(p, false, &node->b));
  MLX_TRY(parse_statements(p, end, &node->body));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_parameters(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t **tail = out, *parameter;
  bool defaults = false;
  MLX_TRY(mlx_parser_expect_op(p, "("));
  while (!mlx_parser_at_op(p, ")")) {
    if (*out) MLX_TRY(mlx_parser_expect_op(p, ","));
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_PARAMETER, &parameter));
    MLX_TRY(mlx_parser_expect_name(p, &parameter->text));
    if (mlx_parser_skip_op(p, "=")) {
      MLX_TRY(mlx_parse_expression(p, true, &parameter->a));
      defaults = true;
    } else if (mlx_span_is(parameter->text, "caller")) {
      return mlx_parser_error(p, "the parameter 'caller' needs a default");
    } else if (defaults) {
      return mlx_parser_error(p, "a parameter without a default follows one with a default");
    }
    *tail = parameter;
    tail = &parameter->next;
  }
  ++p->token;
  return NULL;
}

// Parses a body in which break and continue do not apply to the loops around it.
static mlx_status_t parse_closed_body(mlx_parser_t *p, const char *end_keyword, mlx_template_node_t **out) {
  const char *const ends[] = {end_keyword, NULL};
  const int loops = p->loops;
  p->loops = 0;
  MLX_TRY(parse_statements(p, ends, out));
  p->loops = loops;
  ++p->token;
  return NULL;
}

static mlx_status_t parse_macro(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *node;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_MACRO, &node));
  *out = node;
  MLX_TRY(mlx_parser_expect_name(p, &node->text));
  MLX_TRY(parse_parameters(p, &node->first));
  return parse_closed_body(p, "endmacro", &node->body);
}

static mlx_status_t parse_call_block(mlx_parser_t *p, mlx_template_node_t **out) {
  mlx_template_node_t *node;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_CALL_BLOCK, &node));
  *out = node;
  node->text = (mlx_span_t){"caller", 6};
  if (mlx_parser_at_op(p, "(")) MLX_TRY(parse_parameters(p, &node->first));
  MLX_TRY(mlx_parse_expression(p, true, &node->a));
  if (node->a->kind != MLX_NODE_CALL) return mlx_parser_error(p, "expected a call in {% call %}");
  return parse_closed_body(p, "endcall", &node->body);
}

static mlx_status_t parse_filter_block(mlx_parser_t *p, mlx_template_node_t **out) {
  static const char *const end[] = {"endfilter", NULL};
  mlx_template_node_t *node;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_FILTER_BLOCK, &node));
  *out = node;
  MLX_TRY(mlx_parse_filters(p, true, &node->a));
  MLX_TRY(parse_statements(p, end, &node->body));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_with(mlx_parser_t *p, mlx_template_node_t **out) {
  static const char *const end[] = {"endwith", NULL};
  mlx_template_node_t *node, **tail, *pair;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_WITH, &node));
  *out = node;
  tail = &node->first;
  while (p->token->kind != MLX_TOKEN_TAG_END) {
    if (node->first) MLX_TRY(mlx_parser_expect_op(p, ","));
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_PAIR, &pair));
    MLX_TRY(mlx_parse_member(p, MLX_TUPLE_TARGETS, &pair->a));
    MLX_TRY(check_target(p, pair->a));
    MLX_TRY(mlx_parser_expect_op(p, "="));
    MLX_TRY(mlx_parse_expression(p, true, &pair->b));
    *tail = pair;
    tail = &pair->next;
  }
  MLX_TRY(parse_statements(p, end, &node->body));
  ++p->token;
  return NULL;
}

static mlx_status_t parse_generation(mlx_parser_t *p, mlx_template_node_t **out) {
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_SCOPE, out));
  return parse_closed_body(p, "endgeneration", &(*out)->body);
}

static mlx_status_t parse_loop_control(mlx_parser_t *p, mlx_template_node_kind_t kind,
                                       mlx_template_node_t **out) {
  return p->loops ? mlx_parser_add_node(p, kind, out)
                  : mlx_parser_error(p, "break or continue outside of a loop");
}

static mlx_status_t parse_break(mlx_parser_t *p, mlx_template_node_t **out) {
  return parse_loop_control(p, MLX_NODE_BREAK, out);
}

static mlx_status_t parse_continue(mlx_parser_t *p, mlx_template_node_t **out) {
  return parse_loop_control(p, MLX_NODE_CONTINUE, out);
}

static mlx_status_t parse_unsupported(mlx_parser_t *p, mlx_template_node_t **out) {
  (void)out;
  const mlx_span_t keyword = p->token[-1].text;
  return mlx_template_error(p->template->name, p->token->line, MLX_UNSUPPORTED,
                            "{%% %.*s %%} is not supported", (int)keyword.length, keyword.bytes);
}

static mlx_status_t parse_tag(mlx_parser_t *p, mlx_template_node_t **out) {
  static const struct {
    const char *keyword;
    mlx_status_t (*parse)(mlx_parser_t *p, mlx_template_node_t **out);
  } tags[] = {{"if", parse_if},
              {"for", parse_for},
              {"set", parse_set},
              {"macro", parse_macro},
              {"call", parse_call_block},
              {"filter", parse_filter_block},
              {"with", parse_with},
              {"generation", parse_generation},
              {"break", parse_break},
              {"continue", parse_continue},
              {"block", parse_unsupported},
              {"extends", parse_unsupported},
              {"include", parse_unsupported},
              {"import", parse_unsupported},
              {"from", parse_unsupported},
              {"autoescape", parse_unsupported},
              {"print", parse_unsupported}};
  for (size_t i = 0; i < sizeof tags / sizeof *tags; ++i) {
    if (mlx_parser_skip_keyword(p, tags[i].keyword)) return tags[i].parse(p, out);
  }
  return p->token->kind == MLX_TOKEN_NAME
             ? mlx_template_error(p->template->name, p->token->line, MLX_INVALID_INPUT, "unknown tag '%.*s'",
                                  (int)p->token->text.length, p->token->text.bytes)
             : mlx_parser_unexpected(p, "the name of a tag");
}

static mlx_status_t parse_statement(mlx_parser_t *p, mlx_template_node_t **out) {
  if (p->token->kind == MLX_TOKEN_TEXT) {
    MLX_TRY(mlx_parser_add_node(p, MLX_NODE_TEXT, out));
    (*out)->text = p->token++->text;
    return NULL;
  }
  if (p->token->kind == MLX_TOKEN_TAG) {
    ++p->token;
    MLX_TRY(mlx_parser_enter(p));
    MLX_TRY(parse_tag(p, out));
    --p->depth;
    return expect_tag_end(p);
  }
  ++p->token;
  MLX_TRY(mlx_parser_add_node(p, MLX_NODE_OUTPUT, out));
  MLX_TRY(mlx_parse_tuple(p, MLX_TUPLE_FULL, NULL, false, &(*out)->a));
  if (p->token->kind != MLX_TOKEN_PRINT_END) return mlx_parser_unexpected(p, "}}");
  ++p->token;
  return NULL;
}

static bool at_end_keyword(const mlx_parser_t *p, const char *const *ends) {
  for (; p->token->kind == MLX_TOKEN_TAG && *ends; ++ends) {
    if (p->token[1].kind == MLX_TOKEN_NAME && mlx_span_is(p->token[1].text, *ends)) return true;
  }
  return false;
}

// Expects the end of the current tag, then parses statements up to a tag that begins with one of |ends|. That
// keyword becomes the current token.
static mlx_status_t parse_statements(mlx_parser_t *p, const char *const *ends, mlx_template_node_t **out) {
  mlx_template_node_t **tail = out, *node;
  *out = NULL;
  mlx_parser_skip_op(p, ":");  // jinja2 allows a colon at the end of a tag
  MLX_TRY(expect_tag_end(p));
  while (!at_end_keyword(p, ends)) {
    if (p->token->kind == MLX_TOKEN_END) {
      return mlx_template_error(p->template->name, p->token->line, MLX_INVALID_INPUT,
                                "the template ends, but {%% %s %%} is missing", ends[0]);
    }
    MLX_TRY(parse_statement(p, &node));
    *tail = node;
    tail = &node->next;
  }
  ++p->token;
  return NULL;
}

mlx_status_t mlx_template_parse(mlx_template_t *template) {
  mlx_lexeme_t *tokens;
  MLX_TRY(mlx_template_lex(template, &tokens));
  mlx_parser_t p = {.template = template, .token = tokens};
  mlx_template_node_t **tail = &template->body, *node;
  while (p.token->kind != MLX_TOKEN_END) {
    MLX_TRY(parse_statement(&p, &node));
    *tail = node;
    tail = &node->next;
  }
  return NULL;
}
