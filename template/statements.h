// Statements: the parser's functions for tags.
#ifndef MLXCEL_TEMPLATE_STATEMENTS_H_
#define MLXCEL_TEMPLATE_STATEMENTS_H_

#include "template/node.h"

// Parses template->source into template->body.
mlx_status_t mlx_template_parse(mlx_template_t *template) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_STATEMENTS_H_
