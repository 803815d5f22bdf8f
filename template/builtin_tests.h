// Jinja tests: value is name(arguments).
#ifndef MLXCEL_TEMPLATE_BUILTIN_TESTS_H_
#define MLXCEL_TEMPLATE_BUILTIN_TESTS_H_

#include "template/builtin.h"

const mlx_builtin_t *mlx_test_find(mlx_span_t name);  // NULL: unknown

#endif  // MLXCEL_TEMPLATE_BUILTIN_TESTS_H_
