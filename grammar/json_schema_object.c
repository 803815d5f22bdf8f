// Objects: the properties in the order of the schema, then other ones.
#include "grammar/json_schema_object.h"

#include <string.h>

#include "base/memory.h"
#include "grammar/json_schema_names.h"
#include "grammar/name_table.h"

#define MAX_COUNTED 20000  // rules of an object with minProperties or maxProperties

// ----------------------------------------------------------------------------------------------------------
// Properties of a conjunction

typedef struct property {
  const char *name;
  size_t length;
  bool required;
} property_t;

typedef struct object {
  property_t *items;
  size_t count, capacity;
  size_t required_end;     // the index after the last required property
  mlx_name_table_t index;  // name -> index of its item
  mlx_schema_names_t names;
  uint64_t min, max;  // properties
  uint64_t counted;   // properties are counted up to this number
  size_t part;        // number of the rules
  bool has_other;     // rule o<part>-other exists
} object_t;

static mlx_status_t add_property(object_t *o, yyjson_val *key, bool required) {
  uint32_t index;
  if (!mlx_name_table_find(&o->index, yyjson_get_str(key), yyjson_get_len(key), &index)) {
    index = (uint32_t)o->count;
    MLX_TRY(mlx_reserve(o->count + 1, sizeof *o->items, &o->capacity, &o->items));
    MLX_TRY(mlx_name_table_add(&o->index, yyjson_get_str(key), yyjson_get_len(key), index));
    o->items[o->count++] = (property_t){.name = yyjson_get_str(key), .length = yyjson_get_len(key)};
  }
  o->items[index].required |= required;
  return NULL;
}

static mlx_status_t collect(mlx_schema_builder_t *b, const mlx_conjunction_t *c, object_t *o) {
  size_t at = 0;
  yyjson_val *schema, *key;
  while ((schema = mlx_conjunction_next(c, "properties", &at))) {
    yyjson_val *properties = yyjson_obj_get(schema, "properties");
    if (!yyjson_is_obj(properties)) return mlx_schema_invalid(b, schema, "properties", "is not an object");
    yyjson_obj_iter iter = yyjson_obj_iter_with(properties);
    while ((key = yyjson_obj_iter_next(&iter))) MLX_TRY(add_property(o, key, false));
  }
  for (at = 0; (schema = mlx_conjunction_next(c, "required", &at));) {
    yyjson_val *list = yyjson_obj_get(schema, "required");
    if (yyjson_is_bool(list)) continue;  // draft 3: a property says that itself
    if (!yyjson_is_arr(list)) return mlx_schema_invalid(b, schema, "required", "is not a list");
    yyjson_arr_iter iter = yyjson_arr_iter_with(list);
    while ((key = yyjson_arr_iter_next(&iter))) {
      if (!yyjson_is_str(key)) return mlx_schema_invalid(b, schema, "required", "is not a list of names");
      MLX_TRY(add_property(o, key, true));
    }
  }
  for (at = 0; (schema = mlx_conjunction_next(c, "additionalProperties", &at));) {
    yyjson_val *additional = yyjson_obj_get(schema, "additionalProperties");
    if (!yyjson_is_bool(additional) && !yyjson_is_obj(additional))
      return mlx_schema_invalid(b, schema, "additionalProperties", "is not a schema");
  }
  return NULL;
}

static mlx_status_t put_property(mlx_schema_builder_t *b, const mlx_conjunction_t *c, const object_t *o,
                                 const property_t *p) {
  mlx_text_t json = {0};
  mlx_conjunction_t value = {0};
  mlx_text_json_string(&json, p->name, p->length);
  mlx_text_puts(&json, ":");
  mlx_status_t status = mlx_text_finish(&json);
  if (!status) mlx_gbnf_put_literal(&b->out, json.data, json.length);
  mlx_text_clear(&json);
  mlx_text_puts(&b->out, " ws ");
  if (!status) status = mlx_schema_names_add_value(b, c, &o->names, p->name, p->length, &value);
  if (!status) return mlx_schema_put_rule(b, &b->out, &value);
  mlx_conjunction_free(&value);
  return status;
}

// Writes the rule of the other properties, which differ from all that are listed.
static mlx_status_t put_other(mlx_schema_builder_t *b, const mlx_conjunction_t *c, object_t *o) {
  mlx_nfa_name_t *known;
  MLX_TRY(mlx_alloc(o->count, sizeof *known, &known));
  for (size_t i = 0; i < o->count; ++i) known[i] = (mlx_nfa_name_t){o->items[i].name, o->items[i].length};
  mlx_status_t status = mlx_schema_names_put_other(b, c, &o->names, known, o->count, o->part, &o->has_other);
  mlx_free(known);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Rules of an object

// Writes the name of a rule: oN-K-KIND-COUNT.
static void put_name(mlx_text_t *out, const object_t *o, size_t k, char kind, uint64_t count) {
  if (count > o->counted) count = o->counted;
  mlx_text_printf(out, "o%zu-%zu-%c%llu", o->part, k, kind, (unsigned long long)count);
}

// The rules of the properties from |k| on, after |count| properties. r: at least one of them. c: a comma and
// at least one of them, or nothing if none is needed. The comma and the whitespace after it are written once,
// not before each property: otherwise a matcher would follow a copy of them for every optional property.
static void put_rules_at(mlx_schema_builder_t *b, const object_t *o, size_t k, uint64_t count) {
  mlx_text_t *out = &b->out;
  const bool may_end = k >= o->required_end && count >= o->min, may_continue = count < o->max;
  put_name(out, o, k, 'r', count);
  mlx_text_puts(out, " ::= ");
  if (!may_continue) {
    mlx_text_puts(out, "never");
  } else if (k < o->count) {
    mlx_text_printf(out, "o%zu-%zu-p ", o->part, k);
    put_name(out, o, k + 1, 'c', count + 1);
    if (!o->items[k].required) mlx_text_puts(out, " | ");
    if (!o->items[k].required) put_name(out, o, k + 1, 'r', count);
  } else if (o->has_other && count + 1 >= o->min) {  // a name may repeat, so only one of them counts
    mlx_text_printf(out, "o%zu-other (\",\" ws o%zu-other)", o->part, o->part);
    mlx_gbnf_put_repetition(out, 0, o->max == UINT64_MAX ? o->max : o->max - count - 1);
  } else {
    mlx_text_puts(out, "never");
  }
  mlx_text_puts(out, "\n");
  put_name(out, o, k, 'c', count);
  mlx_text_puts(out, " ::= \",\" ws ");
  put_name(out, o, k, 'r', count);
  mlx_text_puts(out, may_end ? " | \"\"\n" : "\n");
}

static mlx_status_t put_properties(mlx_schema_builder_t *b, const mlx_conjunction_t *c, object_t *o) {
  size_t required = 0;
  for (size_t k = 0; k < o->count; ++k) {
    if (o->items[k].required) o->required_end = k + 1;
    required += o->items[k].required;
  }
  if (required >= o->min) o->min = 0;
  o->counted = o->max != UINT64_MAX ? o->max : o->min;
  if (o->counted && (o->count + 1) * (o->counted + 1) > MAX_COUNTED) {
    const char *keyword = o->max != UINT64_MAX ? "maxProperties" : "minProperties";
    size_t at = 0;
    return mlx_schema_unsupported(b, mlx_conjunction_next(c, keyword, &at), keyword,
                                  "needs too many rules for this number of properties");
  }
  for (size_t k = 0; k < o->count; ++k) {
    mlx_text_printf(&b->out, "o%zu-%zu-p ::= ", o->part, k);
    MLX_TRY(put_property(b, c, o, &o->items[k]));
    mlx_text_puts(&b->out, "\n");
  }
  MLX_TRY(put_other(b, c, o));
  if (o->has_other && o->min > o->count + 1) {
    size_t at = 0;
    return mlx_schema_unsupported(b, mlx_conjunction_next(c, "minProperties", &at), "minProperties",
                                  "counts only one property that 'properties' does not list");
  }
  for (size_t k = 0; k <= o->count; ++k) {
    for (uint64_t count = 0; count <= o->counted; ++count) put_rules_at(b, o, k, count);
  }
  return NULL;
}

mlx_status_t mlx_schema_put_object(mlx_schema_builder_t *b, const mlx_conjunction_t *c, mlx_text_t *out) {
  object_t o = {.part = b->next_part++};
  mlx_status_t status = mlx_schema_read_count(b, c, "minProperties", 0, &o.min);
  if (!status) status = mlx_schema_read_count(b, c, "maxProperties", UINT64_MAX, &o.max);
  if (!status) status = mlx_schema_check_counts(b, c, "minProperties", "maxProperties");
  if (!status) status = collect(b, c, &o);
  if (!status) status = mlx_schema_names_read(b, c, &o.names);
  if (!status) status = put_properties(b, c, &o);
  mlx_text_printf(out, "\"{\" ws (o%zu-0-r0%s) ws \"}\"", o.part, o.required_end || o.min ? "" : " | \"\"");
  mlx_schema_names_free(&o.names);
  mlx_free(o.items);
  mlx_name_table_free(&o.index);
  return status;
}
