// Excluded values: a negated term whose only keywords are 'enum', 'const' and 'type'.
#include "grammar/json_schema_excluded.h"

#include <string.h>

#include "base/memory.h"
#include "grammar/json_schema_keywords.h"

bool mlx_schema_only_lists(yyjson_val *schema) {
  bool lists_values = false;
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    const char *name = yyjson_get_str(key);
    const bool is_list = !strcmp(name, "enum") || !strcmp(name, "const");
    if (!is_list && strcmp(name, "type") && mlx_schema_is_keyword(name)) return false;
    lists_values |= is_list;
  }
  return lists_values;
}

// Excluded value |index| of a negated term; NULL after the last.
static yyjson_val *excluded_value(const mlx_schema_term_t *term, size_t index) {
  if (!(term->flags & MLX_SCHEMA_NEGATED)) return NULL;
  yyjson_val *only = yyjson_obj_get(term->schema, "const"), *list = yyjson_obj_get(term->schema, "enum");
  return only ? (index ? NULL : only) : yyjson_arr_get(list, index);
}

unsigned mlx_schema_excluded_types(const mlx_conjunction_t *c) {
  unsigned types = 0;
  yyjson_val *value;
  for (size_t i = 0; i < c->count; ++i) {
    for (size_t j = 0; (value = excluded_value(&c->terms[i], j)); ++j) types |= mlx_schema_value_type(value);
  }
  // 1 is an integer and a number.
  return types & (MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION) ? types | MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION
                                                            : types;
}

bool mlx_schema_excludes_bool(const mlx_conjunction_t *c, bool wanted) {
  yyjson_val *value;
  for (size_t i = 0; i < c->count; ++i) {
    for (size_t j = 0; (value = excluded_value(&c->terms[i], j)); ++j) {
      if (yyjson_is_bool(value) && yyjson_get_bool(value) == wanted) return true;
    }
  }
  return false;
}

mlx_status_t mlx_schema_excluded_strings(const mlx_conjunction_t *c, mlx_nfa_name_t **out_names,
                                         size_t *out_count) {
  yyjson_val *value;
  size_t capacity = 0;
  *out_names = NULL;
  *out_count = 0;
  for (size_t i = 0; i < c->count; ++i) {
    for (size_t j = 0; (value = excluded_value(&c->terms[i], j)); ++j) {
      if (!yyjson_is_str(value)) continue;
      mlx_status_t status = mlx_reserve(*out_count + 1, sizeof **out_names, &capacity, out_names);
      if (status) {
        mlx_free(*out_names);
        return status;
      }
      (*out_names)[(*out_count)++] = (mlx_nfa_name_t){yyjson_get_str(value), yyjson_get_len(value)};
    }
  }
  return NULL;
}
