// Values and JSON: Python's json.dumps(), and values from yyjson.
#ifndef MLXCEL_TEMPLATE_VALUE_JSON_H_
#define MLXCEL_TEMPLATE_VALUE_JSON_H_

#include <yyjson.h>

#include "template/value.h"

typedef struct mlx_json_style {
  bool ascii, sorted, pretty;  // ensure_ascii, sort_keys, whether indent was given
  mlx_span_t indent, item_separator, key_separator;
} mlx_json_style_t;

mlx_status_t mlx_var_json(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v,
                          const mlx_json_style_t *style, int level) MLX_MUST_USE;
// NULL is JSON's null. Strings are borrowed from the document, which must outlive the render.
mlx_status_t mlx_var_from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_VALUE_JSON_H_
