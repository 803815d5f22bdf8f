// Evaluator: runs the nodes of a template.
#ifndef MLXCEL_TEMPLATE_EVAL_H_
#define MLXCEL_TEMPLATE_EVAL_H_

#include "template/node.h"
#include "template/scope.h"

// Runs the chain |body| in a new scope inside |globals| and writes to r->out.
mlx_status_t mlx_eval_body(mlx_render_t *r, mlx_scope_t *globals,
                           const mlx_template_node_t *body) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_EVAL_H_
