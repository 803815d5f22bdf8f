// Plain text to JSON by the type in a schema.
#include "output/value.h"

#include <string.h>

#include "base/memory.h"

enum { TYPE_STRING = 1, TYPE_OTHER = 2 };

yyjson_val *mlx_argument_schema(yyjson_val *function, const char *key, size_t length) {
  yyjson_val *parameters = yyjson_obj_get(function, "parameters");
  return yyjson_obj_getn(yyjson_obj_get(parameters, "properties"), key, length);
}

static unsigned type_of_name(yyjson_val *name) {
  return yyjson_equals_str(name, "string") ? TYPE_STRING : yyjson_is_str(name) ? TYPE_OTHER : 0;
}

// The types that a schema names directly; 0: none.
static unsigned types_of(yyjson_val *schema, int depth) {
  static const char *const lists[] = {"anyOf", "oneOf"};
  yyjson_val *type = yyjson_obj_get(schema, "type"), *item;
  unsigned types = type_of_name(type);
  size_t index, count;
  yyjson_arr_foreach(type, index, count, item) types |= type_of_name(item);
  yyjson_arr_foreach(yyjson_obj_get(schema, "enum"), index, count, item) {
    if (!type) types |= yyjson_is_str(item) ? TYPE_STRING : TYPE_OTHER;
  }
  for (int i = 0; i < 2 && depth < 4; ++i) {
    yyjson_arr_foreach(yyjson_obj_get(schema, lists[i]), index, count, item) types |=
        types_of(item, depth + 1);
  }
  return types;
}

bool mlx_argument_is_string(yyjson_val *schema) { return types_of(schema, 0) == TYPE_STRING; }

// Words that Python prints and JSON has another name for.
static const char *python_word(const char *text, size_t length) {
  static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (int i = 0; i < 3; ++i) {
    if (strlen(words[i][0]) == length && !memcmp(words[i][0], text, length)) return words[i][1];
  }
  return NULL;
}

// True if |text| is a JSON value that is not a string, or, with |strings|, any JSON value.
static bool is_value(const char *text, size_t length, bool strings) {
  yyjson_doc *doc = yyjson_read(text, length, 0);
  const bool fine = doc && (strings || !yyjson_is_str(yyjson_doc_get_root(doc)));
  yyjson_doc_free(doc);
  return fine;
}

void mlx_argument_put(mlx_text_t *out, yyjson_val *schema, const char *text, size_t length) {
  const unsigned types = types_of(schema, 0);
  const char *whole = text;
  const size_t whole_length = length;
  while (length && strchr(" \t\r\n", *text)) ++text, --length;
  while (length && strchr(" \t\r\n", text[length - 1])) --length;
  const char *word = python_word(text, length);
  if (types == TYPE_STRING || !length)
    mlx_text_json_string(out, whole, whole_length);
  else if (is_value(text, length, !(types & TYPE_STRING) && types))
    mlx_text_append(out, text, length);
  else if (word && types && !(types & TYPE_STRING))
    mlx_text_puts(out, word);
  else
    mlx_text_json_string(out, whole, whole_length);
}

void mlx_argument_put_part(mlx_text_t *out, const char *text, size_t length) {
  mlx_text_t quoted = {0};
  mlx_text_json_string(&quoted, text, length);
  if (quoted.failed)
    out->failed = true;
  else
    mlx_text_append(out, quoted.data + 1, quoted.length - 2);
  mlx_text_clear(&quoted);
}
