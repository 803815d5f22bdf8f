// Filters: value | name(arguments).
#ifndef MLXCEL_TEMPLATE_FILTERS_H_
#define MLXCEL_TEMPLATE_FILTERS_H_

#include "template/builtin.h"

const mlx_builtin_t *mlx_filter_find(mlx_span_t name);           // every filter; NULL: unknown
const mlx_builtin_t *mlx_sequence_filter_find(mlx_span_t name);  // only the filters of sequence_filters.c

#endif  // MLXCEL_TEMPLATE_FILTERS_H_
