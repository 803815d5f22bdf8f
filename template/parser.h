// Parser: a cursor over the tokens of a template, and the nodes that it makes.
#ifndef MLXCEL_TEMPLATE_PARSER_H_
#define MLXCEL_TEMPLATE_PARSER_H_

#include "template/lex.h"

typedef struct mlx_parser {
  mlx_template_t *template;
  const mlx_lexeme_t *token;  // the current token
  int depth;                  // parentheses and blocks around it
  int loops;                  // for loops around it
} mlx_parser_t;

// ---- tokens ----

mlx_status_t mlx_parser_error(const mlx_parser_t *p, const char *what) MLX_MUST_USE;
// "expected |expected|, not ..."
mlx_status_t mlx_parser_unexpected(const mlx_parser_t *p, const char *expected) MLX_MUST_USE;
bool mlx_parser_at_op(const mlx_parser_t *p, const char *op);
bool mlx_parser_at_keyword(const mlx_parser_t *p, const char *keyword);
bool mlx_parser_skip_op(mlx_parser_t *p, const char *op);  // false if the token is another one
bool mlx_parser_skip_keyword(mlx_parser_t *p, const char *keyword);
mlx_status_t mlx_parser_expect_op(mlx_parser_t *p, const char *op) MLX_MUST_USE;
mlx_status_t mlx_parser_expect_name(mlx_parser_t *p, mlx_span_t *out) MLX_MUST_USE;

// ---- nodes ----

mlx_status_t mlx_parser_add_node(mlx_parser_t *p, mlx_template_node_kind_t kind,
                                 mlx_template_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parser_add_node_of(mlx_parser_t *p, mlx_template_node_kind_t kind, mlx_template_node_t *a,
                                    mlx_template_node_t *b, mlx_template_node_t **out) MLX_MUST_USE;
// Goes one level deeper. The caller decrements p->depth when it leaves the level.
mlx_status_t mlx_parser_enter(mlx_parser_t *p) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_PARSER_H_
