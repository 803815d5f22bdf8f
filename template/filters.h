// What filters, tests and globals share: their parameters. Nobody else includes this.
#ifndef MLXCEL_TEMPLATE_FILTERS_H_
#define MLXCEL_TEMPLATE_FILTERS_H_

#include "template/internal.h"

bool mlx_call_flag(const mlx_call_t *call, size_t index);   // given and true
bool mlx_call_given(const mlx_call_t *call, size_t index);  // given and not None
mlx_status_t mlx_call_whole(mlx_render_t *r, const mlx_call_t *call, size_t index, int64_t fallback,
                            int64_t *out) MLX_MUST_USE;
mlx_status_t mlx_call_text(mlx_render_t *r, const mlx_call_t *call,
                           mlx_span_t *out) MLX_MUST_USE;  // str() of what it works on
mlx_status_t mlx_call_items(mlx_render_t *r, const mlx_call_t *call, const mlx_var_t **out_items,
                            size_t *out_count) MLX_MUST_USE;
mlx_status_t mlx_need_number(mlx_render_t *r, const mlx_var_t *v) MLX_MUST_USE;

const mlx_builtin_t *mlx_sequence_filter_find(mlx_span_t name);

#endif  // MLXCEL_TEMPLATE_FILTERS_H_
