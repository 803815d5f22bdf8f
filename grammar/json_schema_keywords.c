// The table of keywords, and the types that keywords imply.
#include "grammar/json_schema_keywords.h"

#include <math.h>
#include <string.h>

typedef enum kind {
  ANNOTATION,  // only describes a schema, or holds schemas for $ref
  REFUSED,     // restricts values in a way that a grammar cannot
  ADDS,        // adds schemas to the conjunction
  BRANCH,      // leads to one conjunction for each alternative
  ASSERTION    // restricts the values of |types|
} kind_t;

#define NUMBER (MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION)

static const struct keyword {
  const char *name;
  kind_t kind;
  unsigned types;
  uint64_t done;  // BRANCH: the flag that says that it is done
} keywords[] = {
    {"type", ASSERTION, 0, 0},
    {"properties", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"required", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"additionalProperties", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"items", ASSERTION, MLX_SCHEMA_ARRAY, 0},
    {"enum", ASSERTION, 0, 0},
    {"const", ASSERTION, 0, 0},
    {"$ref", ADDS, 0, 0},
    {"allOf", ADDS, 0, 0},
    {"anyOf", BRANCH, 0, MLX_SCHEMA_ANY_OF_DONE},
    {"oneOf", BRANCH, 0, MLX_SCHEMA_ONE_OF_DONE},
    {"nullable", BRANCH, 0, MLX_SCHEMA_NULLABLE_DONE},
    {"if", BRANCH, 0, MLX_SCHEMA_IF_DONE},
    {"then", ANNOTATION, 0, 0},  // read with 'if'
    {"else", ANNOTATION, 0, 0},
    {"not", ADDS, 0, 0},
    {"dependentRequired", ADDS, 0, 0},
    {"dependentSchemas", ADDS, 0, 0},
    {"dependencies", ADDS, 0, 0},
    {"minProperties", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"maxProperties", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"patternProperties", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"propertyNames", ASSERTION, MLX_SCHEMA_OBJECT, 0},
    {"prefixItems", ASSERTION, MLX_SCHEMA_ARRAY, 0},
    {"additionalItems", ASSERTION, MLX_SCHEMA_ARRAY, 0},
    {"minItems", ASSERTION, MLX_SCHEMA_ARRAY, 0},
    {"maxItems", ASSERTION, MLX_SCHEMA_ARRAY, 0},
    {"uniqueItems", ASSERTION, MLX_SCHEMA_ARRAY, 0},
    {"minLength", ASSERTION, MLX_SCHEMA_STRING, 0},
    {"maxLength", ASSERTION, MLX_SCHEMA_STRING, 0},
    {"pattern", ASSERTION, MLX_SCHEMA_STRING, 0},
    {"format", ASSERTION, 0, 0},  // of strings, and int32
    {"minimum", ASSERTION, NUMBER, 0},
    {"maximum", ASSERTION, NUMBER, 0},
    {"exclusiveMinimum", ASSERTION, NUMBER, 0},
    {"exclusiveMaximum", ASSERTION, NUMBER, 0},
    {"multipleOf", ASSERTION, NUMBER, 0},
    {"contains", REFUSED, 0, 0},
    {"minContains", REFUSED, 0, 0},
    {"maxContains", REFUSED, 0, 0},
    {"unevaluatedProperties", REFUSED, 0, 0},
    {"unevaluatedItems", REFUSED, 0, 0},
    {"$dynamicRef", REFUSED, 0, 0},
    {"$recursiveRef", REFUSED, 0, 0},
    {"extends", REFUSED, 0, 0},
    {"disallow", REFUSED, 0, 0},
    {"divisibleBy", REFUSED, 0, 0},
};

// Every other keyword is an annotation: title, default, discriminator, x-..., and whatever a tool adds.
static const struct keyword *find_keyword(const char *name) {
  static const struct keyword annotation = {"", ANNOTATION, 0, 0};
  for (size_t i = 0; i < sizeof keywords / sizeof *keywords; ++i) {
    if (!strcmp(keywords[i].name, name)) return &keywords[i];
  }
  return &annotation;
}

// The keyword that an unknown one may be a misspelling of, or NULL.
static const char *find_similar(const char *name) {
  static const char *const long_names[] = {"properties",
                                           "required",
                                           "additionalProperties",
                                           "minProperties",
                                           "maxProperties",
                                           "prefixItems",
                                           "minItems",
                                           "maxItems",
                                           "uniqueItems",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "multipleOf",
                                           "patternProperties",
                                           "propertyNames",
                                           NULL};
  static const char *const others[] = {"patterns", "formats", "property", NULL};  // names that tools use
  for (size_t i = 0; others[i]; ++i) {
    if (!strcmp(name, others[i])) return NULL;
  }
  return strlen(name) < 6 ? NULL : mlx_nearest_name(name, long_names);
}

mlx_status_t mlx_schema_check_keywords(const mlx_schema_builder_t *b, yyjson_val *schema) {
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    const char *name = yyjson_get_str(key);
    const struct keyword *keyword = find_keyword(name);
    const char *similar = *keyword->name ? NULL : find_similar(name);
    if (keyword->kind == REFUSED) return mlx_schema_unsupported(b, schema, name, "is not supported");
    if (similar) {
      return mlx_status_hint(mlx_schema_unsupported(b, schema, name, "is not a keyword"),
                             "did you mean '%s'?", similar);
    }
  }
  yyjson_val *type = yyjson_obj_get(schema, "type");
  if (type && !mlx_schema_listed_types(type)) {
    return mlx_schema_invalid(
        b, schema, "type",
        "is not a type: null, boolean, integer, number, string, array, object or a list of them");
  }
  return NULL;
}

bool mlx_schema_is_keyword(const char *name) { return find_keyword(name)->kind != ANNOTATION; }

bool mlx_schema_only_describes(yyjson_val *schema) {
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    const struct keyword *keyword = find_keyword(yyjson_get_str(key));
    if (keyword->kind != ANNOTATION) return false;
  }
  return true;
}

bool mlx_schema_has_effect(yyjson_val *schema, uint64_t flags) {
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    const struct keyword *keyword = find_keyword(yyjson_get_str(key));
    if (keyword->kind == ASSERTION) return true;
    if (keyword->kind != BRANCH || flags & keyword->done) continue;
    if (strcmp(keyword->name, "nullable") || yyjson_is_true(yyjson_obj_iter_get_val(key))) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Types

static const struct {
  const char *name;
  unsigned types;
} type_names[] = {
    {"null", MLX_SCHEMA_NULL},      {"boolean", MLX_SCHEMA_BOOLEAN}, {"number", NUMBER},
    {"string", MLX_SCHEMA_STRING},  {"array", MLX_SCHEMA_ARRAY},     {"object", MLX_SCHEMA_OBJECT},
    {"integer", MLX_SCHEMA_INTEGER}};

static unsigned named_types(yyjson_val *name) {
  for (size_t i = 0; i < sizeof type_names / sizeof *type_names; ++i) {
    if (yyjson_equals_str(name, type_names[i].name)) return type_names[i].types;
  }
  return 0;
}

void mlx_schema_put_type_names(mlx_json_writer_t *json, const char *key, unsigned types) {
  mlx_json_begin_list(json, key, MLX_JSON_COMPACT);
  for (size_t i = 0; i < sizeof type_names / sizeof *type_names; ++i) {
    if ((types & type_names[i].types) != type_names[i].types) continue;
    types &= ~type_names[i].types;
    mlx_json_put_text(json, NULL, type_names[i].name);
  }
  mlx_json_end(json);
}

unsigned mlx_schema_value_type(yyjson_val *value) {
  if (yyjson_is_null(value)) return MLX_SCHEMA_NULL;
  if (yyjson_is_bool(value)) return MLX_SCHEMA_BOOLEAN;
  if (yyjson_is_num(value))
    return yyjson_get_num(value) == floor(yyjson_get_num(value)) ? MLX_SCHEMA_INTEGER : MLX_SCHEMA_FRACTION;
  return yyjson_is_str(value)   ? MLX_SCHEMA_STRING
         : yyjson_is_arr(value) ? MLX_SCHEMA_ARRAY
                                : MLX_SCHEMA_OBJECT;
}

unsigned mlx_schema_listed_types(yyjson_val *type) {
  if (!type) return MLX_SCHEMA_ALL;
  if (yyjson_is_str(type)) return named_types(type);
  unsigned types = 0;
  yyjson_arr_iter iter = yyjson_arr_iter_with(type);
  for (yyjson_val *name; (name = yyjson_arr_iter_next(&iter));) {
    if (!named_types(name)) return 0;
    types |= named_types(name);
  }
  return types;
}

unsigned mlx_schema_types_of(const mlx_conjunction_t *c) {
  unsigned types = MLX_SCHEMA_ALL;
  for (size_t i = 0; i < c->count; ++i) {
    const mlx_schema_term_t *term = &c->terms[i];
    const bool is_nullable =
        yyjson_is_true(yyjson_obj_get(term->schema, "nullable")) && !(term->flags & MLX_SCHEMA_NULLABLE_DONE);
    if (term->flags & MLX_SCHEMA_NEGATED) continue;
    types &=
        mlx_schema_listed_types(yyjson_obj_get(term->schema, "type")) | (is_nullable ? MLX_SCHEMA_NULL : 0);
  }
  return types;
}

// A value of any other type would be valid too, but the grammar does not allow it.
unsigned mlx_schema_implied_types(const mlx_conjunction_t *c) {
  unsigned types = 0;
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_obj_iter iter = yyjson_obj_iter_with(c->terms[i].schema);
    for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
      const struct keyword *keyword = find_keyword(yyjson_get_str(key));
      types |= keyword->types;
      if (!strcmp(keyword->name, "format")) types |= MLX_SCHEMA_STRING;
    }
  }
  return types;
}
