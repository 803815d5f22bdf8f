// Methods of strings, lists, dicts and loops.
#ifndef MLXCEL_TEMPLATE_METHODS_H_
#define MLXCEL_TEMPLATE_METHODS_H_

#include "template/builtin.h"

// The method |name| of the object's type, or NULL.
const mlx_builtin_t *mlx_method_find(const mlx_var_t *object, mlx_span_t name);

#endif  // MLXCEL_TEMPLATE_METHODS_H_
