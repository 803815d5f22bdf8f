// Arrays: prefixItems, then items.
#include "grammar/json_schema_array.h"

#include <stdio.h>

static mlx_status_t put_items(mlx_schema_builder_t *b, mlx_text_t *out, yyjson_val *items) {
  if (!items || yyjson_is_true(items)) {
    mlx_text_puts(out, "value");
    return NULL;
  }
  return mlx_schema_put_rule(b, out, items, "items", "");
}

mlx_status_t mlx_schema_put_array(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  yyjson_val *items = yyjson_obj_get(schema, "items"), *prefix = yyjson_obj_get(schema, "prefixItems"),
             *value;
  uint64_t min, max, placed = 0;
  MLX_TRY(mlx_schema_read_count(b, schema, "minItems", 0, &min));
  MLX_TRY(mlx_schema_read_count(b, schema, "maxItems", UINT64_MAX, &max));
  if (min > max) return mlx_schema_invalid(b, "minItems", "is more than 'maxItems'");
  if (prefix && !yyjson_is_arr(prefix)) return mlx_schema_invalid(b, "prefixItems", "is not a list");
  if (items && yyjson_is_arr(items))
    return mlx_schema_unsupported(b, "items", "as a list is not supported: use prefixItems");
  if (items && !yyjson_is_obj(items) && !yyjson_is_bool(items))
    return mlx_schema_invalid(b, "items", "is not a schema");
  const uint64_t fixed = yyjson_arr_size(prefix) < max ? yyjson_arr_size(prefix) : max;
  // All prefixItems are written. Without 'items', no item follows them unless minItems requires it.
  const bool closed = (items && yyjson_is_false(items)) || (prefix && !items && min <= fixed);
  if (closed && min > fixed)
    return mlx_schema_invalid(b, "minItems",
                              "is more than the number of prefixItems, and 'items' forbids others");
  mlx_text_puts(out, "\"[\" ws ");
  yyjson_arr_iter iter = yyjson_arr_iter_with(prefix);
  for (; placed < fixed && (value = yyjson_arr_iter_next(&iter)); ++placed) {
    char index[24];
    snprintf(index, sizeof index, "%llu", (unsigned long long)placed);
    mlx_text_puts(out, placed ? " \",\" ws " : "");
    MLX_TRY(mlx_schema_put_rule(b, out, value, "prefixItems", index));
  }
  const uint64_t rest_min = min > placed ? min - placed : 0,
                 rest_max = max == UINT64_MAX ? max : max - placed;
  if (!closed && rest_max && placed) {
    mlx_text_puts(out, " (\",\" ws ");
    MLX_TRY(put_items(b, out, items));
    mlx_text_puts(out, ")");
    mlx_gbnf_put_repetition(out, rest_min, rest_max);
  } else if (!closed && rest_max) {
    mlx_text_puts(out, "(");
    MLX_TRY(put_items(b, out, items));
    mlx_text_puts(out, " (\",\" ws ");
    MLX_TRY(put_items(b, out, items));
    mlx_text_puts(out, ")");
    mlx_gbnf_put_repetition(out, rest_min ? rest_min - 1 : 0,
                            rest_max == UINT64_MAX ? rest_max : rest_max - 1);
    mlx_text_puts(out, rest_min ? ")" : ")?");
  }
  mlx_text_puts(out, " ws \"]\"");
  return NULL;
}
