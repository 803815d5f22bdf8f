// Listed values, and whether the other keywords of a conjunction allow them.
#include "grammar/json_schema_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_string.h"

mlx_status_t mlx_schema_put_value(mlx_text_t *out, yyjson_val *value) {
  size_t length;
  char *json = yyjson_val_write(value, 0, &length);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  mlx_gbnf_put_literal(out, json, length);
  free(json);
  return NULL;
}

bool mlx_schema_equals(yyjson_val *x, yyjson_val *y) {
  if (yyjson_is_num(x) && yyjson_is_num(y)) return yyjson_get_num(x) == yyjson_get_num(y);
  return yyjson_equals(x, y);
}

static bool lists(yyjson_val *schema, yyjson_val *value) {
  yyjson_val *only = yyjson_obj_get(schema, "const"), *list = yyjson_obj_get(schema, "enum"), *item;
  if (only && !mlx_schema_equals(only, value)) return false;
  if (!list) return true;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (mlx_schema_equals(item, value)) return true;
  }
  return false;
}

static double bound(yyjson_val *schema, const char *keyword, double fallback) {
  yyjson_val *value = yyjson_obj_get(schema, keyword);
  return yyjson_is_num(value) ? yyjson_get_num(value) : fallback;
}

static bool number_fits(yyjson_val *s, double n) {
  const double step = bound(s, "multipleOf", 0);
  const bool above_only = yyjson_is_true(yyjson_obj_get(s, "exclusiveMinimum")),
             below_only = yyjson_is_true(yyjson_obj_get(s, "exclusiveMaximum"));
  const double min = bound(s, "minimum", -INFINITY), max = bound(s, "maximum", INFINITY);
  return n >= min && n <= max && !(above_only && n == min) && !(below_only && n == max) &&
         n > bound(s, "exclusiveMinimum", -INFINITY) && n < bound(s, "exclusiveMaximum", INFINITY) &&
         (step <= 0 || fmod(n, step) == 0);
}

// Whether |schema| allows |value|, as far as the keywords of numbers and strings go. Keywords of arrays and
// objects are errors.
static mlx_status_t allows(mlx_schema_builder_t *b, yyjson_val *schema, yyjson_val *value, bool *out) {
  static const char *const of_arrays[] = {"items",    "prefixItems", "minItems",
                                          "maxItems", "uniqueItems", NULL};
  static const char *const of_objects[] = {
      "properties",    "additionalProperties", "required",      "minProperties",
      "maxProperties", "patternProperties",    "propertyNames", NULL};
  const unsigned type = mlx_schema_value_type(value);
  *out = (type & mlx_schema_listed_types(yyjson_obj_get(schema, "type"))) && lists(schema, value);
  if (!*out) return NULL;
  if (yyjson_is_num(value)) *out = number_fits(schema, yyjson_get_num(value));
  if (yyjson_is_str(value)) return mlx_schema_string_fits(b, schema, value, out);
  const char *const *keywords = yyjson_is_arr(value) ? of_arrays : yyjson_is_obj(value) ? of_objects : NULL;
  for (; keywords && *keywords; ++keywords) {
    if (yyjson_obj_get(schema, *keywords))
      return mlx_schema_unsupported(b, schema, *keywords, "is not supported together with listed values");
  }
  return NULL;
}

static mlx_status_t add_value(mlx_schema_builder_t *b, const mlx_conjunction_t *c, yyjson_val *value,
                              mlx_schema_values_t *out) {
  bool allowed = true;
  MLX_TRY(mlx_budget_step(b->budget, 8 + 8 * c->count + out->count));
  for (size_t i = 0; i < c->count && allowed; ++i) {
    if (c->terms[i].flags & MLX_SCHEMA_NEGATED) {
      allowed = !lists(c->terms[i].schema, value);
    } else {
      MLX_TRY(allows(b, c->terms[i].schema, value, &allowed));
    }
  }
  // Numbers and short lists may repeat a value; long lists of strings are compared by the grammar's reader.
  for (size_t i = 0; i < out->count && out->count < 1000 && allowed; ++i)
    allowed = !mlx_schema_equals(out->items[i], value);
  if (!allowed) return NULL;
  MLX_TRY(mlx_reserve(out->count + 1, sizeof *out->items, &out->capacity, &out->items));
  out->items[out->count++] = value;
  return NULL;
}

mlx_status_t mlx_schema_list_values(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                    mlx_schema_values_t *out, bool *out_listed) {
  yyjson_val *shortest = NULL, *value;
  *out = (mlx_schema_values_t){0};
  *out_listed = false;
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema, *list = yyjson_obj_get(schema, "enum");
    if (list && !yyjson_is_arr(list)) return mlx_schema_invalid(b, schema, "enum", "is not a list");
    if ((!list && !yyjson_obj_get(schema, "const")) || c->terms[i].flags & MLX_SCHEMA_NEGATED) continue;
    if (!shortest || yyjson_arr_size(list) < yyjson_arr_size(yyjson_obj_get(shortest, "enum")))
      shortest = schema;
  }
  if (!shortest) return NULL;
  *out_listed = true;
  mlx_status_t status = NULL;
  yyjson_val *list = yyjson_obj_get(shortest, "enum");
  if (!list) status = add_value(b, c, yyjson_obj_get(shortest, "const"), out);
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while (!status && (value = yyjson_arr_iter_next(&iter))) status = add_value(b, c, value, out);
  if (status) mlx_free(out->items);
  return status;
}
