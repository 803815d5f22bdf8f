// Disjoint schemas. The search is bounded by its depth and by the budget. It ends as if the schemas were not
// disjoint after the deadline, and its caller fails.
#include "grammar/json_schema_disjoint.h"

#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_values.h"

#define MAX_DEPTH 8

static bool has_time(const mlx_schema_builder_t *b, size_t steps) {
  mlx_status_t status = mlx_budget_step(b->budget, steps);
  mlx_status_free(status);
  return !status;
}

static bool lists(yyjson_val *schema) {
  return yyjson_obj_get(schema, "const") || yyjson_obj_get(schema, "enum");
}

// Whether |value| is in the schema's enum or const.
static bool lists_value(yyjson_val *schema, yyjson_val *value) {
  yyjson_val *item, *only = yyjson_obj_get(schema, "const");
  if (only && mlx_schema_equals(only, value)) return true;
  yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(schema, "enum"));
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (mlx_schema_equals(item, value)) return true;
  }
  return false;
}

// Both schemas have an enum or a const.
static bool share_no_value(const mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y) {
  yyjson_val *only = yyjson_obj_get(x, "const"), *item;
  if (only) return !lists_value(y, only);
  yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(x, "enum"));
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (!has_time(b, 1 + yyjson_arr_size(yyjson_obj_get(y, "enum"))) || lists_value(y, item)) return false;
  }
  return true;
}

// The types that all terms allow, also by their listed values.
static unsigned possible_types(const mlx_conjunction_t *c) {
  unsigned types = mlx_schema_types_of(c);
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema, *only = yyjson_obj_get(schema, "const"), *item;
    if (!lists(schema) || c->terms[i].flags) continue;
    unsigned listed = only ? mlx_schema_value_type(only) : 0;
    yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(schema, "enum"));
    while (!only && (item = yyjson_arr_iter_next(&iter))) listed |= mlx_schema_value_type(item);
    types &= listed;
  }
  return types;
}

static bool requires_property(const mlx_schema_builder_t *b, const mlx_conjunction_t *c, yyjson_val *name) {
  yyjson_val *item;
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *list = c->terms[i].flags ? NULL : yyjson_obj_get(c->terms[i].schema, "required");
    if (!has_time(b, 1 + yyjson_arr_size(list))) return false;
    yyjson_arr_iter iter = yyjson_arr_iter_with(list);
    while ((item = yyjson_arr_iter_next(&iter))) {
      if (yyjson_equals(item, name)) return true;
    }
  }
  return false;
}

static bool are_disjoint(mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y, int depth);

// Two terms that both apply, of which one belongs to |cx| and the other to |cy|.
static bool terms_are_disjoint(mlx_schema_builder_t *b, const mlx_conjunction_t *cx, yyjson_val *x,
                               const mlx_conjunction_t *cy, yyjson_val *y, int depth) {
  if (lists(x) && lists(y)) return share_no_value(b, x, y);
  if ((possible_types(cx) & possible_types(cy)) != MLX_SCHEMA_OBJECT) return false;
  yyjson_val *of_x = yyjson_obj_get(x, "properties"), *of_y = yyjson_obj_get(y, "properties"), *key;
  yyjson_obj_iter iter = yyjson_obj_iter_with(of_x);
  while ((key = yyjson_obj_iter_next(&iter))) {
    if (!has_time(b, 1 + yyjson_obj_size(of_y))) return false;
    yyjson_val *other = yyjson_obj_getn(of_y, yyjson_get_str(key), yyjson_get_len(key));
    if (other && requires_property(b, cx, key) && requires_property(b, cy, key) &&
        are_disjoint(b, yyjson_obj_iter_get_val(key), other, depth + 1))
      return true;
  }
  return false;
}

// Whether |c| has a list of alternatives that are all disjoint with |other|.
static bool alternatives_are_disjoint(mlx_schema_builder_t *b, const mlx_conjunction_t *c, yyjson_val *other,
                                      int depth) {
  static const char *const keywords[] = {"anyOf", "oneOf"};
  for (size_t i = 0; i < c->count * 2; ++i) {
    yyjson_val *list = yyjson_obj_get(c->terms[i / 2].schema, keywords[i % 2]), *item;
    if (!yyjson_arr_size(list) || c->terms[i / 2].flags) continue;
    bool all = true;
    yyjson_arr_iter iter = yyjson_arr_iter_with(list);
    while (all && (item = yyjson_arr_iter_next(&iter))) all = are_disjoint(b, item, other, depth + 1);
    if (all) return true;
  }
  return false;
}

static bool conjunctions_are_disjoint(mlx_schema_builder_t *b, const mlx_conjunction_t *cx, yyjson_val *x,
                                      const mlx_conjunction_t *cy, yyjson_val *y, int depth) {
  if (cx->never || cy->never || !(possible_types(cx) & possible_types(cy))) return true;
  for (size_t i = 0; i < cx->count; ++i) {
    for (size_t j = 0; j < cy->count; ++j) {
      if (cx->terms[i].flags || cy->terms[j].flags || !has_time(b, 32)) continue;
      if (terms_are_disjoint(b, cx, cx->terms[i].schema, cy, cy->terms[j].schema, depth)) return true;
    }
  }
  return alternatives_are_disjoint(b, cx, y, depth) || alternatives_are_disjoint(b, cy, x, depth);
}

static bool are_disjoint(mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y, int depth) {
  mlx_conjunction_t cx = {0}, cy = {0};
  if (depth > MAX_DEPTH || !has_time(b, 64)) return false;
  mlx_status_t status = mlx_conjunction_add(b, &cx, x, 0);
  if (!status) status = mlx_conjunction_add(b, &cy, y, 0);
  const bool disjoint = !status && conjunctions_are_disjoint(b, &cx, x, &cy, y, depth);
  mlx_status_free(status);
  mlx_conjunction_free(&cx);
  mlx_conjunction_free(&cy);
  return disjoint;
}

bool mlx_schema_are_disjoint(mlx_schema_builder_t *b, yyjson_val *x, yyjson_val *y) {
  return are_disjoint(b, x, y, 0);
}
