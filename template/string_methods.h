// The methods of Python's str.
#ifndef MLXCEL_TEMPLATE_STRING_METHODS_H_
#define MLXCEL_TEMPLATE_STRING_METHODS_H_

#include "template/builtin.h"

const mlx_builtin_t *mlx_string_method_find(mlx_span_t name);  // NULL: unknown

#endif  // MLXCEL_TEMPLATE_STRING_METHODS_H_
