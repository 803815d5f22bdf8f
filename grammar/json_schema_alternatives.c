// Alternatives. oneOf is supported only if its alternatives are provably disjoint.
#include "grammar/json_schema_alternatives.h"

#include <stdio.h>
#include <stdlib.h>

#include "grammar/json_schema_keywords.h"

// ----------------------------------------------------------------------------------------------------------
// enum and const

// Writes the JSON text of |value| as a literal.
static mlx_status_t put_json_value(mlx_text_t *out, yyjson_val *value) {
  size_t length;
  char *json = yyjson_val_write(value, 0, &length);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  mlx_gbnf_put_literal(out, json, length);
  free(json);
  return NULL;
}

mlx_status_t mlx_schema_put_enum(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  yyjson_val *list = yyjson_obj_get(schema, "enum"), *only = yyjson_obj_get(schema, "const"), *value;
  MLX_TRY(mlx_schema_check_keywords(b, schema, mlx_schema_enum_keywords, list ? "enum" : "const"));
  const unsigned types = mlx_schema_listed_types(yyjson_obj_get(schema, "type"));
  if (!types) return mlx_schema_invalid(b, "type", "is not a type");
  if (list && only) return mlx_schema_unsupported(b, "const", "is not supported together with 'enum'");
  if (only) {
    if (!(mlx_schema_value_type(only) & types))
      return mlx_schema_invalid(b, "const", "is not of the schema's 'type'");
    return put_json_value(out, only);
  }
  if (!yyjson_is_arr(list)) return mlx_schema_invalid(b, "enum", "is not a list");
  bool any = false;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((value = yyjson_arr_iter_next(&iter))) {
    if (!(mlx_schema_value_type(value) & types)) continue;
    mlx_text_puts(out, any ? " | " : "");
    MLX_TRY(put_json_value(out, value));
    any = true;
  }
  return any ? NULL : mlx_schema_invalid(b, "enum", "has no value of the schema's 'type'");
}

// ----------------------------------------------------------------------------------------------------------
// anyOf and oneOf

static yyjson_val *without_refs(const mlx_schema_builder_t *b, yyjson_val *schema) {
  for (int i = 0; i < MLX_MAX_SCHEMA_DEPTH && yyjson_obj_get(schema, "$ref"); ++i) {
    mlx_status_t status = mlx_schema_resolve(b, yyjson_obj_get(schema, "$ref"), &schema);
    mlx_status_free(status);
    if (status) return NULL;
  }
  return schema;
}

// Whether |value| is in the schema's enum or const.
static bool lists_value(yyjson_val *schema, yyjson_val *value) {
  yyjson_val *list = yyjson_obj_get(schema, "enum"), *item;
  if (yyjson_equals(yyjson_obj_get(schema, "const"), value)) return true;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (yyjson_equals(item, value)) return true;
  }
  return false;
}

static bool is_required(yyjson_val *schema, yyjson_val *name) {
  yyjson_val *item;
  yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(schema, "required"));
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (yyjson_equals(item, name)) return true;
  }
  return false;
}

// False after the deadline. The search then ends as if the schemas were not disjoint, and its caller fails.
static bool has_time(const mlx_schema_builder_t *b, size_t steps) {
  mlx_status_t status = mlx_budget_step(b->budget, steps);
  mlx_status_free(status);
  return !status;
}

// Both schemas have an enum or a const.
static bool share_no_value(const mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y) {
  yyjson_val *only = yyjson_obj_get(x, "const"), *item;
  if (only && lists_value(y, only)) return false;
  yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(x, "enum"));
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (!has_time(b, 1 + yyjson_arr_size(yyjson_obj_get(y, "enum"))) || lists_value(y, item)) return false;
  }
  return true;
}

static unsigned possible_types(yyjson_val *schema) {
  yyjson_val *only = yyjson_obj_get(schema, "const"), *list = yyjson_obj_get(schema, "enum"), *item;
  if (only) return mlx_schema_value_type(only);
  if (!list) return mlx_schema_listed_types(yyjson_obj_get(schema, "type"));
  unsigned types = 0;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((item = yyjson_arr_iter_next(&iter))) types |= mlx_schema_value_type(item);
  return types;
}

// True if no value is valid for both schemas: by type, by listed values, or by a property that both require
// and whose schemas are disjoint.
static bool are_disjoint(const mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y, int depth) {
  x = without_refs(b, x);
  y = without_refs(b, y);
  if (depth > 8 || !yyjson_is_obj(x) || !yyjson_is_obj(y) || !has_time(b, 16)) return false;
  if (!(possible_types(x) & possible_types(y))) return true;
  const bool listed_x = yyjson_obj_get(x, "const") || yyjson_obj_get(x, "enum");
  const bool listed_y = yyjson_obj_get(y, "const") || yyjson_obj_get(y, "enum");
  if (listed_x && listed_y) return share_no_value(b, x, y);
  if ((possible_types(x) & possible_types(y)) != MLX_SCHEMA_OBJECT) return false;
  yyjson_val *of_x = yyjson_obj_get(x, "properties"), *of_y = yyjson_obj_get(y, "properties"), *key;
  yyjson_obj_iter iter = yyjson_obj_iter_with(of_x);
  while ((key = yyjson_obj_iter_next(&iter))) {
    yyjson_val *other = yyjson_obj_getn(of_y, yyjson_get_str(key), yyjson_get_len(key));
    if (!has_time(b, yyjson_obj_size(of_y) + yyjson_arr_size(yyjson_obj_get(x, "required")) +
                         yyjson_arr_size(yyjson_obj_get(y, "required"))))
      return false;
    if (other && is_required(x, key) && is_required(y, key) &&
        are_disjoint(b, yyjson_obj_iter_get_val(key), other, depth + 1)) {
      return true;
    }
  }
  return false;
}

mlx_status_t mlx_schema_put_alternatives(mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                         mlx_text_t *out) {
  yyjson_val *list = yyjson_obj_get(schema, keyword), *item;
  MLX_TRY(mlx_schema_check_keywords(b, schema, (const char *const[]){keyword, NULL}, keyword));
  if (!yyjson_is_arr(list) || !yyjson_arr_size(list))
    return mlx_schema_invalid(b, keyword, "is not a list of schemas");
  if (yyjson_arr_size(list) > 200)
    return mlx_schema_unsupported(b, keyword, "may have 200 alternatives at most");
  for (size_t i = 0; i < yyjson_arr_size(list); ++i) {
    char index[24];
    snprintf(index, sizeof index, "%zu", i);
    item = yyjson_arr_get(list, i);
    mlx_text_puts(out, i ? " | " : "");
    MLX_TRY(mlx_schema_put_rule(b, out, item, keyword, index));
    for (size_t j = 0; j < i && *keyword == 'o'; ++j) {
      if (are_disjoint(b, yyjson_arr_get(list, j), item, 0)) continue;
      MLX_TRY(mlx_budget_check(b->budget));
      return mlx_status_hint(
          mlx_schema_unsupported(b, keyword, "has two alternatives that can be valid at once"),
          "use anyOf if more than one alternative may be valid");
    }
  }
  return NULL;
}
