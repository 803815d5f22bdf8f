// Parser: moving over tokens, and making nodes.
#include "template/parser.h"

#include "template/error.h"

#define MAX_PARSE_DEPTH 150  // parentheses and blocks inside one another

mlx_status_t mlx_parser_error(const mlx_parser_t *p, const char *what) {
  return mlx_template_error(p->template->name, p->token->line, MLX_INVALID_INPUT, "%s", what);
}

mlx_status_t mlx_parser_unexpected(const mlx_parser_t *p, const char *expected) {
  static const char *const ends[] = {[MLX_TOKEN_END] = "the end of the template",
                                     [MLX_TOKEN_TEXT] = "text",
                                     [MLX_TOKEN_PRINT] = "{{",
                                     [MLX_TOKEN_PRINT_END] = "}}",
                                     [MLX_TOKEN_TAG] = "{%",
                                     [MLX_TOKEN_TAG_END] = "%}"};
  const mlx_lexeme_t *t = p->token;
  if (t->kind <= MLX_TOKEN_TAG_END) {
    return mlx_template_error(p->template->name, t->line, MLX_INVALID_INPUT, "expected %s, not %s", expected,
                              ends[t->kind]);
  }
  return mlx_template_error(p->template->name, t->line, MLX_INVALID_INPUT, "expected %s, not '%.*s'",
                            expected, (int)(t->text.length > 40 ? 40 : t->text.length), t->text.bytes);
}

bool mlx_parser_at_op(const mlx_parser_t *p, const char *op) {
  return p->token->kind == MLX_TOKEN_OPERATOR && mlx_span_is(p->token->text, op);
}

bool mlx_parser_at_keyword(const mlx_parser_t *p, const char *word) {
  return p->token->kind == MLX_TOKEN_NAME && mlx_span_is(p->token->text, word);
}

bool mlx_parser_skip_op(mlx_parser_t *p, const char *op) {
  if (!mlx_parser_at_op(p, op)) return false;
  ++p->token;
  return true;
}

bool mlx_parser_skip_keyword(mlx_parser_t *p, const char *word) {
  if (!mlx_parser_at_keyword(p, word)) return false;
  ++p->token;
  return true;
}

mlx_status_t mlx_parser_expect_op(mlx_parser_t *p, const char *op) {
  char expected[8] = {'\'', op[0], '\'', 0};
  return mlx_parser_skip_op(p, op) ? NULL : mlx_parser_unexpected(p, expected);
}

mlx_status_t mlx_parser_expect_name(mlx_parser_t *p, mlx_span_t *out) {
  if (p->token->kind != MLX_TOKEN_NAME) return mlx_parser_unexpected(p, "a name");
  *out = p->token++->text;
  return NULL;
}

mlx_status_t mlx_parser_add_node(mlx_parser_t *p, mlx_template_node_kind_t kind, mlx_template_node_t **out) {
  MLX_TRY(mlx_arena_take(&p->template->arena, 1, sizeof **out, out));
  (*out)->kind = kind;
  (*out)->line = p->token->line;
  return NULL;
}

mlx_status_t mlx_parser_add_node_of(mlx_parser_t *p, mlx_template_node_kind_t kind, mlx_template_node_t *a,
                                    mlx_template_node_t *b, mlx_template_node_t **out) {
  mlx_template_node_t *node;
  MLX_TRY(mlx_parser_add_node(p, kind, &node));
  node->a = a;
  node->b = b;
  *out = node;
  return NULL;
}

mlx_status_t mlx_parser_enter(mlx_parser_t *p) {
  return ++p->depth > MAX_PARSE_DEPTH ? mlx_parser_error(p, "the template is nested too deeply") : NULL;
}
