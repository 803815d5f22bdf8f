// What the two halves of the template's parser share: template_parse.c (tokens, expressions) and
// template_statements.c. Nobody else includes this.
#ifndef MLXCEL_TEMPLATE_PARSE_H_
#define MLXCEL_TEMPLATE_PARSE_H_

#include "template/internal.h"

typedef struct mlx_parser {
  mlx_template_t *template;
  const mlx_lexeme_t *token;  // the current one
  int depth, loops;           // around it
} mlx_parser_t;

// ---- tokens ----

mlx_status_t mlx_parse_fail(const mlx_parser_t *p, const char *what) MLX_MUST_USE;
mlx_status_t mlx_parse_unexpected(const mlx_parser_t *p,
                                  const char *wanted) MLX_MUST_USE;  // "expected |wanted|, not ..."
bool mlx_at_op(const mlx_parser_t *p, const char *op);
bool mlx_at_word(const mlx_parser_t *p, const char *word);
bool mlx_skip_op(mlx_parser_t *p, const char *op);  // false when it is not there
bool mlx_skip_word(mlx_parser_t *p, const char *word);
mlx_status_t mlx_need_op(mlx_parser_t *p, const char *op) MLX_MUST_USE;
mlx_status_t mlx_need_name(mlx_parser_t *p, mlx_span_t *out) MLX_MUST_USE;

// ---- nodes ----

mlx_status_t mlx_parse_node(mlx_parser_t *p, mlx_node_kind_t kind, mlx_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parse_node_of(mlx_parser_t *p, mlx_node_kind_t kind, mlx_node_t *a, mlx_node_t *b,
                               mlx_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parse_enter(mlx_parser_t *p)
    MLX_MUST_USE;  // one level deeper: p->depth is to be counted down again

// ---- expressions ----

typedef enum mlx_tuple_style { MLX_TUPLE_FULL, MLX_TUPLE_NO_CONDITION, MLX_TUPLE_TARGETS } mlx_tuple_style_t;

mlx_status_t mlx_parse_expression(mlx_parser_t *p, bool with_condition, mlx_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parse_tuple(mlx_parser_t *p, mlx_tuple_style_t style, const char *extra_end,
                             bool in_parentheses, mlx_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parse_member(mlx_parser_t *p, mlx_tuple_style_t style, mlx_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parse_filters(mlx_parser_t *p, bool inline_start, mlx_node_t **inout) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_PARSE_H_
