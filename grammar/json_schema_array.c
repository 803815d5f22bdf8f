// Arrays: a tuple (prefixItems), then items. Unique items come from a list of values.
#include "grammar/json_schema_array.h"

#include <stdio.h>

#include "base/memory.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_values.h"

#define MAX_ORDERED 8     // unique values in any order: 2^8 rules
#define MAX_UNIQUE 10000  // rules of unique values in the order of the list
#define MAX_TUPLE 1000

// The schemas of the first items: prefixItems, or 'items' as a list in older drafts.
static yyjson_val *tuple_of(yyjson_val *schema) {
  yyjson_val *prefix = yyjson_obj_get(schema, "prefixItems"), *items = yyjson_obj_get(schema, "items");
  return prefix ? prefix : yyjson_is_arr(items) ? items : NULL;
}

// The schema of the items after the tuple; NULL: none.
static yyjson_val *rest_of(yyjson_val *schema) {
  yyjson_val *items = yyjson_obj_get(schema, "items");
  return yyjson_is_arr(items) ? yyjson_obj_get(schema, "additionalItems") : items;
}

// Adds the schemas of item |index| to |out|; SIZE_MAX: of an item after all tuples.
static mlx_status_t add_item(mlx_schema_builder_t *b, const mlx_conjunction_t *c, size_t index,
                             mlx_conjunction_t *out) {
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema, *tuple = tuple_of(schema);
    yyjson_val *item = index < yyjson_arr_size(tuple) ? yyjson_arr_get(tuple, index) : rest_of(schema);
    if (item) MLX_TRY(mlx_conjunction_add(b, out, item, 0));
  }
  return NULL;
}

static mlx_status_t put_item(mlx_schema_builder_t *b, const mlx_conjunction_t *c, size_t index,
                             mlx_text_t *out) {
  mlx_conjunction_t item = {0};
  mlx_status_t status = add_item(b, c, index, &item);
  if (!status) return mlx_schema_put_rule(b, out, &item);
  mlx_conjunction_free(&item);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Unique items

// Rules u<part>-<used>: the values that are not in the set |used| yet, in any order.
static mlx_status_t put_any_order(mlx_schema_builder_t *b, const mlx_schema_values_t *values, uint64_t min,
                                  uint64_t max, size_t part) {
  for (unsigned used = 0; used < 1u << values->count; ++used) {
    uint64_t count = 0;
    for (size_t i = 0; i < values->count; ++i) count += used >> i & 1;
    if (count > max) continue;
    mlx_text_printf(&b->out, "u%zu-%u ::= %s", part, used, count >= min ? "\"\"" : "never");
    for (size_t i = 0; i < values->count && count < max; ++i) {
      if (used >> i & 1) continue;
      mlx_text_puts(&b->out, used ? " | \",\" ws " : " | ");
      MLX_TRY(mlx_schema_put_value(&b->out, values->items[i]));
      mlx_text_printf(&b->out, " u%zu-%u", part, used | 1u << i);
    }
    mlx_text_puts(&b->out, "\n");
  }
  return NULL;
}

// Rules u<part>-<next>-<count>: values from |next| on, in the order of the list, after |count| values.
static mlx_status_t put_list_order(mlx_schema_builder_t *b, const mlx_schema_values_t *values, uint64_t min,
                                   uint64_t max, size_t part) {
  // More values than are counted change nothing.
  const uint64_t most = max == UINT64_MAX || max >= values->count ? (min ? min : 1) : max;
  const bool is_limited = max < values->count;
  for (size_t i = 0; i <= values->count; ++i) {
    MLX_TRY(mlx_budget_step(b->budget, most));
    for (uint64_t count = 0; count <= most; ++count) {
      mlx_text_printf(&b->out, "u%zu-%zu-%llu ::= %s", part, i, (unsigned long long)count,
                      count >= min ? "\"\"" : "never");
      if (i < values->count && !(is_limited && count == most)) {
        const uint64_t next = count < most ? count + 1 : count;
        mlx_text_printf(&b->out, " | u%zu-%zu-%llu | ", part, i + 1, (unsigned long long)count);
        mlx_text_puts(&b->out, count ? "\",\" ws " : "");
        MLX_TRY(mlx_schema_put_value(&b->out, values->items[i]));
        mlx_text_printf(&b->out, " u%zu-%zu-%llu", part, i + 1, (unsigned long long)next);
      }
      mlx_text_puts(&b->out, "\n");
    }
  }
  return NULL;
}

// The values of an item: listed, or those of a type that has few.
static mlx_status_t list_items(mlx_schema_builder_t *b, const mlx_conjunction_t *item,
                               mlx_schema_values_t *out, bool *out_listed) {
  mlx_conjunction_t with_list = {0};
  mlx_text_t text = {0};
  yyjson_val *made;
  *out = (mlx_schema_values_t){0};
  *out_listed = false;
  for (size_t i = 0; i < item->count; ++i) {
    if (item->terms[i].flags || yyjson_obj_get(item->terms[i].schema, "anyOf") ||
        yyjson_obj_get(item->terms[i].schema, "oneOf") || yyjson_obj_get(item->terms[i].schema, "if"))
      return NULL;
  }
  if (mlx_schema_types_of(item) & ~(unsigned)(MLX_SCHEMA_BOOLEAN | MLX_SCHEMA_NULL))
    return mlx_schema_list_values(b, item, out, out_listed);
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_raw(&json, "enum", "[true,false,null]", 17);
  mlx_json_end(&json);
  MLX_TRY(mlx_schema_make(b, &text, &made));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < item->count && !status; ++i)
    status = mlx_conjunction_add(b, &with_list, item->terms[i].schema, item->terms[i].flags);
  if (!status) status = mlx_conjunction_add(b, &with_list, made, 0);
  if (!status) status = mlx_schema_list_values(b, &with_list, out, out_listed);
  mlx_conjunction_free(&with_list);
  return status;
}

static mlx_status_t put_unique(mlx_schema_builder_t *b, const mlx_conjunction_t *c, yyjson_val *schema,
                               uint64_t min, uint64_t max, mlx_text_t *out) {
  mlx_conjunction_t item = {0};
  mlx_schema_values_t values = {0};
  bool listed = false;
  const size_t part = b->next_part++;
  mlx_status_t status = add_item(b, c, SIZE_MAX, &item);
  if (!status) status = list_items(b, &item, &values, &listed);
  mlx_conjunction_free(&item);
  if (!status && !listed) {
    status = mlx_schema_unsupported(b, schema, "uniqueItems",
                                    "is supported for items of listed values ('enum') only");
  }
  if (!status && min > values.count) {
    mlx_text_puts(out, "never");
  } else if (!status && values.count <= MAX_ORDERED) {
    status = put_any_order(b, &values, min, max, part);
    mlx_text_printf(out, "\"[\" ws u%zu-0 ws \"]\"", part);
  } else if (!status && values.count * ((min > max ? max : min) + 1) > MAX_UNIQUE) {
    status = mlx_schema_unsupported(b, schema, "uniqueItems", "has too many values");
  } else if (!status) {
    status = put_list_order(b, &values, min, max, part);
    mlx_text_printf(out, "\"[\" ws u%zu-0-0 ws \"]\"", part);
  }
  mlx_free(values.items);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Arrays

// The number of tuple items, and whether no item follows them.
static mlx_status_t read_tuples(const mlx_schema_builder_t *b, const mlx_conjunction_t *c, size_t *out_count,
                                bool *out_closed) {
  bool has_rest = false;
  *out_count = 0;
  *out_closed = false;
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema, *prefix = yyjson_obj_get(schema, "prefixItems"),
               *rest = rest_of(schema);
    const size_t count = yyjson_arr_size(tuple_of(schema));
    if (prefix && !yyjson_is_arr(prefix))
      return mlx_schema_invalid(b, schema, "prefixItems", "is not a list");
    if (rest && !yyjson_is_obj(rest) && !yyjson_is_bool(rest))
      return mlx_schema_invalid(b, schema, "items", "is not a schema");
    if (count > MAX_TUPLE)
      return mlx_schema_unsupported(b, schema, "prefixItems", "may have 1000 items at most");
    if (count > *out_count) *out_count = count;
    has_rest |= rest && !yyjson_is_false(rest);
    *out_closed |= yyjson_is_false(rest);
  }
  // Without 'items', no item follows a tuple unless minItems requires it.
  *out_closed |= *out_count && !has_rest;
  return NULL;
}

static mlx_status_t put_rest(mlx_schema_builder_t *b, const mlx_conjunction_t *c, bool first, uint64_t min,
                             uint64_t max, mlx_text_t *out) {
  mlx_text_puts(out, first ? "(" : " (\",\" ws ");
  MLX_TRY(put_item(b, c, SIZE_MAX, out));
  if (!first) {
    mlx_text_puts(out, ")");
    mlx_gbnf_put_repetition(out, min, max);
    return NULL;
  }
  mlx_text_puts(out, " (\",\" ws ");
  MLX_TRY(put_item(b, c, SIZE_MAX, out));
  mlx_text_puts(out, ")");
  mlx_gbnf_put_repetition(out, min ? min - 1 : 0, max == UINT64_MAX ? max : max - 1);
  mlx_text_puts(out, min ? ")" : ")?");
  return NULL;
}

mlx_status_t mlx_schema_put_array(mlx_schema_builder_t *b, const mlx_conjunction_t *c, mlx_text_t *out) {
  uint64_t min, max;
  size_t tuple, at = 0;
  bool closed;
  yyjson_val *schema;
  MLX_TRY(mlx_schema_read_count(b, c, "minItems", 0, &min));
  MLX_TRY(mlx_schema_read_count(b, c, "maxItems", UINT64_MAX, &max));
  MLX_TRY(mlx_schema_check_counts(b, c, "minItems", "maxItems"));
  MLX_TRY(read_tuples(b, c, &tuple, &closed));
  while ((schema = mlx_conjunction_next(c, "uniqueItems", &at))) {
    if (!yyjson_is_true(yyjson_obj_get(schema, "uniqueItems"))) continue;
    if (max < 2) break;  // one item is always unique
    if (tuple) return mlx_schema_unsupported(b, schema, "uniqueItems", "is not supported for tuples");
    return put_unique(b, c, schema, min, max, out);
  }
  const uint64_t fixed = tuple < max ? tuple : max;
  if (closed && min > fixed) {
    // Any item may follow a tuple without 'items'.
    closed = false;
    for (size_t i = 0; i < c->count; ++i) closed |= yyjson_is_false(rest_of(c->terms[i].schema));
  }
  if (min > max || (closed && min > fixed)) {
    mlx_text_puts(out, "never");
    return NULL;
  }
  mlx_text_puts(out, "\"[\" ws ");
  for (size_t i = 0; i < fixed; ++i) {
    mlx_text_puts(out, i ? " \",\" ws " : "");
    MLX_TRY(put_item(b, c, i, out));
  }
  const uint64_t rest_min = min > fixed ? min - fixed : 0, rest_max = max == UINT64_MAX ? max : max - fixed;
  if (!closed && rest_max) MLX_TRY(put_rest(b, c, !fixed, rest_min, rest_max, out));
  mlx_text_puts(out, " ws \"]\"");
  return NULL;
}
