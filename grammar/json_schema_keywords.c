// Keyword tables, and the types that keywords imply.
#include "grammar/json_schema_keywords.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Keywords that only describe a schema, or that hold schemas for $ref.
static const char *const annotations[] = {"$schema",     "$id",        "$comment",    "$anchor",   "$defs",
                                          "definitions", "title",      "description", "default",   "examples",
                                          "example",     "deprecated", "readOnly",    "writeOnly", NULL};

const char *const mlx_schema_object_keywords[] = {"type",  "properties", "required", "additionalProperties",
                                                  "allOf", NULL};

static const char *const array_keywords[] = {"type", "items", "prefixItems", "minItems", "maxItems", NULL};

static const char *const string_keywords[] = {"type", "minLength", "maxLength", "pattern", "format", NULL};

static const char *const number_keywords[] = {
    "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL};

const char *const mlx_schema_enum_keywords[] = {"type", "enum", "const", NULL};

static bool is_one_of(const char *const *keywords, const char *keyword) {
  for (; *keywords; ++keywords) {
    if (!strcmp(*keywords, keyword)) return true;
  }
  return false;
}

mlx_status_t mlx_schema_check_keywords(const mlx_schema_builder_t *b, yyjson_val *schema,
                                       const char *const *keywords, const char *beside) {
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    const char *keyword = yyjson_get_str(key);
    if (strlen(keyword) != yyjson_get_len(key))
      return mlx_schema_unsupported(b, keyword, "has a NUL in its name, which is not supported");
    if (is_one_of(annotations, keyword) || is_one_of(keywords, keyword)) continue;
    const bool known = is_one_of(mlx_schema_object_keywords, keyword) || is_one_of(array_keywords, keyword) ||
                       is_one_of(string_keywords, keyword) || is_one_of(number_keywords, keyword) ||
                       is_one_of(mlx_schema_enum_keywords, keyword) || !strcmp(keyword, "anyOf") ||
                       !strcmp(keyword, "oneOf") || !strcmp(keyword, "$ref");
    if (!known || !beside) return mlx_schema_unsupported(b, keyword, "is not supported");
    char what[64];
    snprintf(what, sizeof what, "is not supported together with '%s'", beside);
    return mlx_schema_unsupported(b, keyword, what);
  }
  return NULL;
}

mlx_status_t mlx_schema_check_type_keywords(const mlx_schema_builder_t *b, yyjson_val *schema) {
  const char *const *const keywords[] = {mlx_schema_object_keywords, array_keywords, string_keywords,
                                         number_keywords};
  const char *all[40];
  size_t count = 0;
  for (size_t i = 0; i < 4; ++i) {
    for (const char *const *keyword = keywords[i]; *keyword; ++keyword) all[count++] = *keyword;
  }
  all[count] = NULL;
  return mlx_schema_check_keywords(b, schema, all, NULL);
}

// ----------------------------------------------------------------------------------------------------------
// Types

static const struct {
  const char *name;
  unsigned types;
} type_names[] = {{"null", MLX_SCHEMA_NULL},       {"boolean", MLX_SCHEMA_BOOLEAN},
                  {"integer", MLX_SCHEMA_INTEGER}, {"number", MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION},
                  {"string", MLX_SCHEMA_STRING},   {"array", MLX_SCHEMA_ARRAY},
                  {"object", MLX_SCHEMA_OBJECT}};

static unsigned named_types(yyjson_val *name) {
  for (size_t i = 0; i < sizeof type_names / sizeof *type_names; ++i) {
    if (yyjson_equals_str(name, type_names[i].name)) return type_names[i].types;
  }
  return 0;
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

// A value of any other type would be valid too, but the grammar does not allow it.
unsigned mlx_schema_implied_types(yyjson_val *schema) {
  static const struct {
    const char *const *keywords;
    unsigned types;
  } rows[] = {{mlx_schema_object_keywords, MLX_SCHEMA_OBJECT},
              {array_keywords, MLX_SCHEMA_ARRAY},
              {string_keywords, MLX_SCHEMA_STRING},
              {number_keywords, MLX_SCHEMA_INTEGER | MLX_SCHEMA_FRACTION}};
  unsigned types = 0;
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
      if (is_one_of(rows[i].keywords, yyjson_get_str(key))) types |= rows[i].types;
    }
  }
  return types;
}
