// Check: the checks that jinja2's compiler makes before a template runs.
#ifndef MLXCEL_TEMPLATE_CHECK_H_
#define MLXCEL_TEMPLATE_CHECK_H_

#include "template/builtin.h"
#include "template/node.h"

// Stores the builtin of every filter and test node, and which macros use caller, varargs and kwargs. Fails on
// an unknown filter or test, unless it is inside a condition.
mlx_status_t mlx_template_check(mlx_template_t *template,
                                const mlx_builtin_registry_t *registry) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_CHECK_H_
