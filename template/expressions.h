// Expressions: the parser's functions for expressions inside tags.
#ifndef MLXCEL_TEMPLATE_EXPRESSIONS_H_
#define MLXCEL_TEMPLATE_EXPRESSIONS_H_

#include "template/parser.h"

// The members that a tuple may have: any expressions, expressions without an inline if, or assignment
// targets.
typedef enum mlx_tuple_style { MLX_TUPLE_FULL, MLX_TUPLE_NO_CONDITION, MLX_TUPLE_TARGETS } mlx_tuple_style_t;

// |with_condition|: "a if b else c" is allowed.
mlx_status_t mlx_parse_expression(mlx_parser_t *p, bool with_condition,
                                  mlx_template_node_t **out) MLX_MUST_USE;
// One expression, or several separated by commas as a tuple. The tuple may be empty only |in_parentheses|. It
// also ends at the keyword |extra_end| (or NULL).
mlx_status_t mlx_parse_tuple(mlx_parser_t *p, mlx_tuple_style_t style, const char *extra_end,
                             bool in_parentheses, mlx_template_node_t **out) MLX_MUST_USE;
mlx_status_t mlx_parse_member(mlx_parser_t *p, mlx_tuple_style_t style,
                              mlx_template_node_t **out) MLX_MUST_USE;
// A chain of filters applied to *|inout|, which is NULL in a filter block. |inline_start|: the first filter
// has no bar before it.
mlx_status_t mlx_parse_filters(mlx_parser_t *p, bool inline_start, mlx_template_node_t **inout) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_EXPRESSIONS_H_
