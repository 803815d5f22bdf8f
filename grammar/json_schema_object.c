// Objects: the properties in the order of the schema, then additional ones.
#include "grammar/json_schema_object.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/name_table.h"

#define MAX_NAME 512  // characters of a property's name, if additional properties are allowed

// ----------------------------------------------------------------------------------------------------------
// Properties of a schema

typedef struct property {
  const char *name;
  size_t length;
  yyjson_val *schema;  // NULL: any value
  bool required;
} property_t;

typedef struct object {
  property_t *items;
  size_t count, capacity;
  mlx_name_table_t names;  // name -> index of its item
  yyjson_val *additional;  // additionalProperties; NULL: not given
  size_t visits;           // of schemas, by both passes
} object_t;

static property_t *find_property(object_t *o, yyjson_val *key) {
  uint32_t index;
  const bool found = mlx_name_table_find(&o->names, yyjson_get_str(key), yyjson_get_len(key), &index);
  return found ? &o->items[index] : NULL;
}

static mlx_status_t add_property(object_t *o, yyjson_val *key, yyjson_val *schema) {
  MLX_TRY(mlx_reserve(o->count + 1, sizeof *o->items, &o->capacity, &o->items));
  MLX_TRY(mlx_name_table_add(&o->names, yyjson_get_str(key), yyjson_get_len(key), (uint32_t)o->count));
  o->items[o->count++] =
      (property_t){.name = yyjson_get_str(key), .length = yyjson_get_len(key), .schema = schema};
  return NULL;
}

static mlx_status_t collect_required(mlx_schema_builder_t *b, yyjson_val *schema, object_t *o) {
  yyjson_val *list = yyjson_obj_get(schema, "required"), *key;
  if (!list) return NULL;
  if (!yyjson_is_arr(list)) return mlx_schema_invalid(b, "required", "is not a list");
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((key = yyjson_arr_iter_next(&iter))) {
    if (!yyjson_is_str(key)) return mlx_schema_invalid(b, "required", "is not a list of names");
    property_t *property = find_property(o, key);
    if (!property) {
      MLX_TRY(add_property(o, key, NULL));
      property = &o->items[o->count - 1];
    }
    property->required = true;
  }
  return NULL;
}

// Collects the properties of |schema| and of the schemas that allOf and $ref add to it. A second call with
// |required| marks the required ones.
static mlx_status_t collect(mlx_schema_builder_t *b, yyjson_val *schema, object_t *o, bool required,
                            int depth) {
  if (depth > MLX_MAX_SCHEMA_DEPTH)
    return mlx_schema_unsupported(b, "allOf", "is nested too deeply, or contains itself");
  if (++o->visits > MLX_MAX_SCHEMAS)  // nested lists of the same schemas grow exponentially
    return mlx_schema_unsupported(b, "allOf", "has too many schemas");
  if (!yyjson_is_obj(schema)) return mlx_schema_unsupported(b, "allOf", "is supported for objects only");
  yyjson_val *ref = yyjson_obj_get(schema, "$ref"), *value, *key;
  if (ref) {
    MLX_TRY(mlx_schema_check_keywords(b, schema, (const char *const[]){"$ref", NULL}, "$ref"));
    MLX_TRY(mlx_schema_resolve(b, ref, &value));
    return collect(b, value, o, required, depth + 1);
  }
  yyjson_val *type = yyjson_obj_get(schema, "type");
  if (depth && type && !yyjson_equals_str(type, "object"))
    return mlx_schema_unsupported(b, "allOf", "is supported for objects only");
  if (depth) MLX_TRY(mlx_schema_check_keywords(b, schema, mlx_schema_object_keywords, "allOf"));
  if (required) {
    MLX_TRY(collect_required(b, schema, o));
  } else {
    yyjson_val *properties = yyjson_obj_get(schema, "properties"),
               *additional = yyjson_obj_get(schema, "additionalProperties");
    if (properties && !yyjson_is_obj(properties))
      return mlx_schema_invalid(b, "properties", "is not an object");
    if (additional && (o->additional || depth))
      return mlx_schema_unsupported(b, "additionalProperties", "is not supported inside allOf");
    if (additional && !yyjson_is_bool(additional) && !yyjson_is_obj(additional)) {
      return mlx_schema_invalid(b, "additionalProperties", "is not a schema");
    }
    o->additional = additional ? additional : o->additional;
    yyjson_obj_iter iter = yyjson_obj_iter_with(properties);
    while ((key = yyjson_obj_iter_next(&iter))) {
      if (find_property(o, key))
        return mlx_schema_unsupported(b, yyjson_get_str(key),
                                      "is defined twice, which allOf does not support");
      MLX_TRY(add_property(o, key, yyjson_obj_iter_get_val(key)));
    }
  }
  yyjson_val *all = yyjson_obj_get(schema, "allOf");
  if (all && !yyjson_is_arr(all)) return mlx_schema_invalid(b, "allOf", "is not a list");
  yyjson_arr_iter iter = yyjson_arr_iter_with(all);
  while ((value = yyjson_arr_iter_next(&iter))) MLX_TRY(collect(b, value, o, required, depth + 1));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Names of additional properties

static int compare_names(const void *a, const void *b) {
  const property_t *x = a, *y = b;
  const int order = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);
  return order ? order : (x->length > y->length) - (x->length < y->length);
}

// Additional names are written without escapes, so a name that needs one cannot collide with them.
static bool needs_no_escape(const property_t *p) {
  for (size_t i = 0; i < p->length; ++i) {
    const unsigned char c = (unsigned char)p->name[i];
    if (c < 32 || c == 127 || c == '"' || c == '\\') return false;
  }
  return true;
}

static void put_class_character(mlx_text_t *out, const char *bytes, int length) {
  if (length == 1 && strchr("]^-[", *bytes)) mlx_text_puts(out, "\\");
  mlx_text_append(out, bytes, (size_t)length);
}

// Writes the rule for names that differ from all of |names|. Names [first, last) share their first |depth|
// bytes; the rule matches the text that may follow these bytes. The rules form a trie, and a rule is written
// after the rules that it uses.
static mlx_status_t put_other_names(mlx_schema_builder_t *b, const property_t *names, size_t first,
                                    size_t last, size_t depth, size_t *out_rule) {
  mlx_text_t body = {0};
  bool is_name = false;
  if (depth > MAX_NAME)
    return mlx_schema_unsupported(b, "properties",
                                  "has a name that is too long to allow additional properties");
  if (first < last && names[first].length == depth) {
    is_name = true;
    ++first;
  }
  mlx_text_puts(&body, is_name ? "" : "| ");
  mlx_text_puts(&body, "[^\"\\\\\\x00-\\x1F\\x7F");
  for (size_t i = first, end; i < last; i = end) {
    const int size = mlx_utf8_length(names[i].name + depth, names[i].length - depth);
    for (end = i + 1; end < last && !strncmp(names[end].name + depth, names[i].name + depth, (size_t)size);)
      ++end;
    put_class_character(&body, names[i].name + depth, size);
  }
  mlx_text_puts(&body, "] namechar*");
  mlx_status_t status = NULL;
  for (size_t i = first, end; i < last && !status; i = end) {
    size_t rule;
    const int size = mlx_utf8_length(names[i].name + depth, names[i].length - depth);
    for (end = i + 1; end < last && !strncmp(names[end].name + depth, names[i].name + depth, (size_t)size);)
      ++end;
    status = put_other_names(b, names, i, end, depth + (size_t)size, &rule);
    mlx_text_puts(&body, " | ");
    mlx_gbnf_put_literal(&body, names[i].name + depth, (size_t)size);
    if (!status) mlx_text_printf(&body, " n%zu", rule);
  }
  *out_rule = b->next_part++;
  if (!status) status = mlx_text_finish(&body);
  if (!status) mlx_text_printf(&b->out, "n%zu ::= %s\n", *out_rule, body.data);
  mlx_text_clear(&body);
  return status;
}

// Writes the rule for one additional property.
static mlx_status_t put_additional(mlx_schema_builder_t *b, const object_t *o, size_t part) {
  property_t *names;
  size_t count = 0, rule = 0;
  MLX_TRY(mlx_alloc(o->count, sizeof *names, &names));
  for (size_t i = 0; i < o->count; ++i) {
    if (needs_no_escape(&o->items[i])) names[count++] = o->items[i];
  }
  qsort(names, count, sizeof *names, compare_names);
  mlx_status_t status = put_other_names(b, names, 0, count, 0, &rule);
  mlx_free(names);
  MLX_TRY(status);
  mlx_text_printf(&b->out, "o%zu-other ::= \"\\\"\" n%zu \"\\\":\" ws ", part, rule);
  if (o->additional && yyjson_is_obj(o->additional)) {
    MLX_TRY(mlx_schema_put_rule(b, &b->out, o->additional, "additionalProperties", ""));
  } else {
    mlx_text_puts(&b->out, "value");
  }
  mlx_text_puts(&b->out, "\n");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Rules of an object

static mlx_status_t put_property(mlx_schema_builder_t *b, const property_t *p, const object_t *o) {
  mlx_text_t json = {0};
  mlx_text_json_string(&json, p->name, p->length);
  mlx_text_puts(&json, ":");
  mlx_status_t status = mlx_text_finish(&json);
  if (!status) mlx_gbnf_put_literal(&b->out, json.data, json.length);
  mlx_text_clear(&json);
  MLX_TRY(status);
  mlx_text_puts(&b->out, " ws ");
  yyjson_val *schema = p->schema ? p->schema : o->additional;
  if (schema && (p->schema || yyjson_is_obj(schema))) {
    return mlx_schema_put_rule(b, &b->out, schema, p->schema ? "properties" : "additionalProperties",
                               p->schema ? p->name : "");
  }
  if (schema && yyjson_is_false(schema))
    return mlx_schema_unsupported(b, p->name, "is required, but additionalProperties forbids it");
  mlx_text_puts(&b->out, "value");
  return NULL;
}

// Writes the rules of the properties from k on. oN-k: any of them, without a comma before the first. oN-k-r:
// at least one of them. oN-k-c: a comma and at least one of them, or nothing if none is required. The comma
// and the whitespace after it are written once, not before each property: otherwise a matcher would follow a
// copy of them for every optional property.
static void put_property_rules(mlx_schema_builder_t *b, const object_t *o, size_t part, size_t k,
                               bool has_next, bool may_end) {
  const bool required = o->items[k].required;
  mlx_text_printf(&b->out, "\no%zu-%zu ::= o%zu-%zu-p o%zu-%zu-c", part, k, part, k, part, k + 1);
  if (!required) mlx_text_printf(&b->out, " | o%zu-%zu", part, k + 1);
  mlx_text_printf(&b->out, "\no%zu-%zu-r ::= o%zu-%zu-p o%zu-%zu-c", part, k, part, k, part, k + 1);
  if (!required && has_next) mlx_text_printf(&b->out, " | o%zu-%zu-r", part, k + 1);
  mlx_text_printf(&b->out, "\no%zu-%zu-c ::= \",\" ws o%zu-%zu-r%s\n", part, k, part, k,
                  may_end ? " | \"\"" : "");
}

static mlx_status_t put_properties(mlx_schema_builder_t *b, const object_t *o, size_t part, bool open) {
  size_t required_end = 0;  // the index after the last required property
  for (size_t k = 0; k < o->count; ++k) {
    if (o->items[k].required) required_end = k + 1;
  }
  for (size_t k = 0; k < o->count; ++k) {
    mlx_text_printf(&b->out, "o%zu-%zu-p ::= ", part, k);
    MLX_TRY(put_property(b, &o->items[k], o));
    put_property_rules(b, o, part, k, open || k + 1 < o->count, k >= required_end);
  }
  if (open) MLX_TRY(put_additional(b, o, part));
  mlx_text_printf(&b->out, "o%zu-%zu ::= \"\"", part, o->count);
  if (open) mlx_text_printf(&b->out, " | o%zu-%zu-r", part, o->count);
  if (open)
    mlx_text_printf(&b->out, "\no%zu-%zu-r ::= o%zu-other o%zu-%zu-c", part, o->count, part, part, o->count);
  mlx_text_printf(&b->out, "\no%zu-%zu-c ::= \"\"", part, o->count);
  if (open) mlx_text_printf(&b->out, " (\",\" ws o%zu-other)*", part);
  mlx_text_puts(&b->out, "\n");
  return NULL;
}

mlx_status_t mlx_schema_put_object(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  object_t o = {0};
  const size_t part = b->next_part++;
  mlx_status_t status = collect(b, schema, &o, false, 0);
  if (!status) status = collect(b, schema, &o, true, 0);
  const bool open = o.additional ? !yyjson_is_false(o.additional) : !o.count;
  if (!status) status = put_properties(b, &o, part, open);
  mlx_free(o.items);
  mlx_name_table_free(&o.names);
  mlx_text_printf(out, "\"{\" ws o%zu-0 ws \"}\"", part);
  return status;
}
