// Alternatives: one conjunction for each. A value that must not satisfy a schema has to break one of its
// keywords, so 'not' has alternatives too. Those that cannot be written as a schema are left out: the grammar
// is narrower than the schema then.
#include "grammar/json_schema_alternatives.h"

#include "base/json_writer.h"
#include "base/memory.h"
#include "grammar/json_schema_disjoint.h"
#include "grammar/json_schema_excluded.h"
#include "grammar/json_schema_keywords.h"

#define MAX_ALTERNATIVES 500
#define MAX_COPIED 16384  // bytes of a schema that is copied to negate it
#define MAX_NEGATIONS 8   // 'not' inside 'not'

typedef struct writer {
  mlx_schema_builder_t *b;
  const mlx_conjunction_t *c;
  size_t index;   // the term whose keyword has the alternatives
  uint64_t flag;  // of that keyword
  mlx_text_t *out;
  bool any;
} writer_t;

// Writes the rule of |choice| as the next alternate. Takes |choice| over.
static mlx_status_t put_alternate(writer_t *w, mlx_conjunction_t *choice) {
  mlx_text_puts(w->out, w->any ? " | " : "");
  w->any = true;
  return mlx_schema_put_rule(w->b, w->out, choice);
}

// Writes one alternative: the conjunction with up to two more schemas; NULL: none.
static mlx_status_t put_choice(writer_t *w, yyjson_val *first, uint64_t first_flags, yyjson_val *second,
                               uint64_t second_flags) {
  mlx_conjunction_t choice;
  MLX_TRY(mlx_conjunction_choose(w->b, w->c, w->index, w->flag, &choice));
  mlx_status_t status = first ? mlx_conjunction_add(w->b, &choice, first, first_flags) : NULL;
  if (!status && second) status = mlx_conjunction_add(w->b, &choice, second, second_flags);
  if (status) {
    mlx_conjunction_free(&choice);
    return status;
  }
  return put_alternate(w, &choice);
}

static mlx_status_t put_made(writer_t *w, mlx_text_t *text) {
  yyjson_val *made;
  MLX_TRY(mlx_schema_make(w->b, text, &made));
  return put_choice(w, made, 0, NULL, 0);
}

// ----------------------------------------------------------------------------------------------------------
// not

// The types of the values that break 'type' or the listed values of |schema|.
static unsigned other_types(yyjson_val *schema, const char *keyword) {
  yyjson_val *value = yyjson_obj_get(schema, keyword), *item;
  unsigned types = 0;
  if (!value) return 0;
  if (*keyword == 't') return MLX_SCHEMA_ALL & ~mlx_schema_listed_types(value);
  if (*keyword == 'c') types = mlx_schema_value_type(value);
  yyjson_arr_iter iter = yyjson_arr_iter_with(*keyword == 'e' ? value : NULL);
  while ((item = yyjson_arr_iter_next(&iter))) types |= mlx_schema_value_type(item);
  if (types & (MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION)) types |= MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION;
  return MLX_SCHEMA_ALL & ~types;
}

// A type that can be named: a number that is no integer cannot.
static bool can_name(unsigned types) { return types & ~(unsigned)MLX_SCHEMA_FRACTION; }

// Whether an alternative is left for a value that must not satisfy |schema|.
static bool can_negate(const mlx_schema_builder_t *b, yyjson_val *schema, int depth) {
  yyjson_val *list, *item, *key;
  if (yyjson_is_bool(schema)) return !yyjson_get_bool(schema);
  mlx_status_t status = mlx_budget_step(b->budget, 16 + yyjson_obj_size(schema));
  mlx_status_free(status);
  if (depth == MAX_NEGATIONS || status) return false;
  if (mlx_schema_only_lists(schema) || can_name(other_types(schema, "type")) ||
      can_name(other_types(schema, "enum")) || can_name(other_types(schema, "const")) ||
      yyjson_arr_size(yyjson_obj_get(schema, "required")) || yyjson_obj_get(schema, "not"))
    return true;
  yyjson_val *ref = yyjson_obj_get(schema, "$ref"), *target;
  if (ref) {
    status = mlx_schema_resolve(b, schema, ref, &target);
    mlx_status_free(status);
    if (!status && can_negate(b, target, depth + 1)) return true;
  }
  yyjson_arr_iter all = yyjson_arr_iter_with(yyjson_obj_get(schema, "allOf"));
  while ((item = yyjson_arr_iter_next(&all))) {
    if (can_negate(b, item, depth + 1)) return true;
  }
  bool each = (list = yyjson_obj_get(schema, "anyOf")) != NULL;
  yyjson_arr_iter any = yyjson_arr_iter_with(list);
  while (each && (item = yyjson_arr_iter_next(&any))) each = can_negate(b, item, depth + 1);
  if (each) return true;
  yyjson_obj_iter properties = yyjson_obj_iter_with(yyjson_obj_get(schema, "properties"));
  while ((key = yyjson_obj_iter_next(&properties))) {
    if (can_negate(b, yyjson_obj_iter_get_val(key), depth + 1)) return true;
  }
  return false;
}

// Objects without the property |name|, or with one that does not satisfy |schema|.
static mlx_status_t put_broken_property(writer_t *w, yyjson_val *name, yyjson_val *schema) {
  mlx_text_t text = {0};
  mlx_status_t status = NULL;
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "object");
  if (schema) {
    mlx_json_begin_list(&json, "required", MLX_JSON_COMPACT);
    mlx_json_put_bytes(&json, NULL, yyjson_get_str(name), yyjson_get_len(name));
    mlx_json_end(&json);
  }
  mlx_json_begin_object(&json, "properties", MLX_JSON_COMPACT);
  mlx_json_writer_t property = {.out =
                                    mlx_json_put_member(&json, yyjson_get_str(name), yyjson_get_len(name))};
  if (schema) {
    mlx_json_begin_object(&property, NULL, MLX_JSON_COMPACT);
    status = mlx_json_put(schema, mlx_json_put_value(&property, "not"));
    mlx_json_end(&property);
  } else {
    mlx_json_put_bool(&property, NULL, false);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
  if (!status && text.length < MAX_COPIED) return put_made(w, &text);
  mlx_text_clear(&text);
  return status;
}

static bool lists_values(const mlx_schema_builder_t *b, yyjson_val *schema) {
  yyjson_val *ref = yyjson_obj_get(schema, "$ref"), *target = schema;
  mlx_status_t status = ref ? mlx_schema_resolve(b, schema, ref, &target) : NULL;
  mlx_status_free(status);
  return !status && mlx_schema_only_lists(target);
}

// A missing property, or one that is not among its listed values, is what a writer of 'not' has in mind.
// Other broken properties are alternatives only if there are none of these: many would combine in too many
// ways.
static mlx_status_t put_broken_objects(writer_t *w, yyjson_val *schema) {
  yyjson_val *item, *key;
  bool any = false;
  yyjson_arr_iter required = yyjson_arr_iter_with(yyjson_obj_get(schema, "required"));
  while ((item = yyjson_arr_iter_next(&required))) {
    if (!yyjson_is_str(item)) continue;
    MLX_TRY(put_broken_property(w, item, NULL));
    any = true;
  }
  for (int lists = 1; lists >= 0 && (lists || !any); --lists) {
    yyjson_obj_iter properties = yyjson_obj_iter_with(yyjson_obj_get(schema, "properties"));
    while ((key = yyjson_obj_iter_next(&properties))) {
      yyjson_val *value = yyjson_obj_iter_get_val(key);
      if (lists_values(w->b, value) != lists || !can_negate(w->b, value, 1)) continue;
      MLX_TRY(put_broken_property(w, key, value));
      any = true;
    }
  }
  return NULL;
}

// Values that satisfy no schema of 'anyOf'.
static mlx_status_t put_none_of(writer_t *w, yyjson_val *list) {
  mlx_conjunction_t choice;
  yyjson_val *item;
  MLX_TRY(mlx_conjunction_choose(w->b, w->c, w->index, w->flag, &choice));
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  mlx_status_t status = NULL;
  bool can = true;
  while (!status && can && (item = yyjson_arr_iter_next(&iter))) {
    can = can_negate(w->b, item, 1);
    if (can) status = mlx_conjunction_add(w->b, &choice, item, MLX_SCHEMA_NEGATED);
  }
  if (status || !can) {
    mlx_conjunction_free(&choice);
    return status;
  }
  return put_alternate(w, &choice);
}

static mlx_status_t put_negation(writer_t *w, yyjson_val *schema) {
  static const char *const of_types[] = {"type", "enum", "const"};
  yyjson_val *item, *target;
  if (!can_negate(w->b, schema, 0)) {
    MLX_TRY(mlx_budget_check(w->b->budget));
    return mlx_schema_unsupported(
        w->b, schema, "not",
        "is supported for schemas with 'type', 'required', listed values or 'properties'");
  }
  for (size_t i = 0; i < 3; ++i) {
    mlx_text_t text = {0};
    if (!can_name(other_types(schema, of_types[i]))) continue;
    mlx_json_writer_t json = {.out = &text};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_schema_put_type_names(&json, "type", other_types(schema, of_types[i]));
    mlx_json_end(&json);
    MLX_TRY(put_made(w, &text));
  }
  MLX_TRY(put_broken_objects(w, schema));
  if ((item = yyjson_obj_get(schema, "not"))) MLX_TRY(put_choice(w, item, 0, NULL, 0));
  if ((item = yyjson_obj_get(schema, "$ref"))) {
    MLX_TRY(mlx_schema_resolve(w->b, schema, item, &target));
    if (can_negate(w->b, target, 1)) MLX_TRY(put_choice(w, target, MLX_SCHEMA_NEGATED, NULL, 0));
  }
  yyjson_arr_iter all = yyjson_arr_iter_with(yyjson_obj_get(schema, "allOf"));
  while ((item = yyjson_arr_iter_next(&all))) {
    if (can_negate(w->b, item, 1)) MLX_TRY(put_choice(w, item, MLX_SCHEMA_NEGATED, NULL, 0));
  }
  return yyjson_obj_get(schema, "anyOf") ? put_none_of(w, yyjson_obj_get(schema, "anyOf")) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// anyOf, oneOf, if

// Writes alternative |chosen| of oneOf, without the values that satisfy another one.
static mlx_status_t put_only_choice(writer_t *w, yyjson_val *schema, yyjson_val *list, size_t chosen) {
  yyjson_val *choice_schema = yyjson_arr_get(list, chosen), *other;
  mlx_conjunction_t choice;
  MLX_TRY(mlx_conjunction_choose(w->b, w->c, w->index, w->flag, &choice));
  mlx_status_t status = mlx_conjunction_add(w->b, &choice, choice_schema, 0);
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  for (size_t i = 0; !status && (other = yyjson_arr_iter_next(&iter)); ++i) {
    if (i == chosen || mlx_schema_are_disjoint(w->b, choice_schema, other)) continue;
    status = mlx_budget_check(w->b->budget);
    if (status) break;
    if (can_negate(w->b, other, 0)) {
      status = mlx_conjunction_add(w->b, &choice, other, MLX_SCHEMA_NEGATED);
    } else {
      status = mlx_status_hint(
          mlx_schema_unsupported(w->b, schema, "oneOf", "has two alternatives that can be valid at once"),
          "use anyOf if more than one alternative may be valid");
    }
  }
  if (status) {
    mlx_conjunction_free(&choice);
    return status;
  }
  return put_alternate(w, &choice);
}

static mlx_status_t put_list(writer_t *w, yyjson_val *schema, const char *keyword) {
  yyjson_val *list = yyjson_obj_get(schema, keyword), *item;
  const bool one = *keyword == 'o';
  if (!yyjson_is_arr(list) || !yyjson_arr_size(list))
    return mlx_schema_invalid(w->b, schema, keyword, "is not a list of schemas");
  if (yyjson_arr_size(list) > MAX_ALTERNATIVES)
    return mlx_schema_unsupported(w->b, schema, keyword, "may have 500 alternatives at most");
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  for (size_t i = 0; (item = yyjson_arr_iter_next(&iter)); ++i)
    MLX_TRY(one ? put_only_choice(w, schema, list, i) : put_choice(w, item, 0, NULL, 0));
  return NULL;
}

static mlx_status_t put_condition(writer_t *w, yyjson_val *schema) {
  yyjson_val *condition = yyjson_obj_get(schema, "if"), *then = yyjson_obj_get(schema, "then"),
             *otherwise = yyjson_obj_get(schema, "else");
  if (!can_negate(w->b, condition, 0) && !yyjson_is_true(condition)) {
    MLX_TRY(mlx_budget_check(w->b->budget));
    return mlx_schema_unsupported(w->b, schema, "if", "has a condition that cannot be negated");
  }
  MLX_TRY(put_choice(w, condition, 0, then, 0));
  return put_choice(w, condition, MLX_SCHEMA_NEGATED, otherwise, 0);
}

mlx_status_t mlx_schema_put_alternatives(mlx_schema_builder_t *b, const mlx_conjunction_t *c, mlx_text_t *out,
                                         bool *out_found) {
  *out_found = true;
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema;
    const uint64_t flags = c->terms[i].flags;
    writer_t w = {.b = b, .c = c, .index = i, .out = out};
    if (flags & MLX_SCHEMA_NEGATED && mlx_schema_only_lists(schema)) continue;  // its values are excluded
    if (flags & MLX_SCHEMA_NEGATED) return put_negation(&w, schema);
    if (yyjson_is_true(yyjson_obj_get(schema, "nullable")) && !(flags & MLX_SCHEMA_NULLABLE_DONE)) {
      mlx_text_t null = {0};
      w.flag = MLX_SCHEMA_NEGATED;  // leaves the term out: $ref and allOf beside 'nullable' are nullable too
      MLX_TRY(put_choice(&w, schema, flags | MLX_SCHEMA_NULLABLE_DONE, NULL, 0));
      mlx_json_writer_t json = {.out = &null};
      mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
      mlx_json_put_text(&json, "type", "null");
      mlx_json_end(&json);
      return put_made(&w, &null);
    }
    if (yyjson_obj_get(schema, "anyOf") && !(flags & MLX_SCHEMA_ANY_OF_DONE)) {
      w.flag = MLX_SCHEMA_ANY_OF_DONE;
      return put_list(&w, schema, "anyOf");
    }
    if (yyjson_obj_get(schema, "oneOf") && !(flags & MLX_SCHEMA_ONE_OF_DONE)) {
      w.flag = MLX_SCHEMA_ONE_OF_DONE;
      return put_list(&w, schema, "oneOf");
    }
    if (yyjson_obj_get(schema, "if") && !(flags & MLX_SCHEMA_IF_DONE)) {
      w.flag = MLX_SCHEMA_IF_DONE;
      return put_condition(&w, schema);
    }
  }
  *out_found = false;
  return NULL;
}
