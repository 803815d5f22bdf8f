// The rules of subschemas, errors with their path, and $ref.
#include "grammar/json_schema_builder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MAX_COUNT 10000  // of minLength and the like: the limit of a GBNF repetition

// ----------------------------------------------------------------------------------------------------------
// Errors

mlx_status_t mlx_schema_unsupported(const mlx_schema_builder_t *b, const char *keyword, const char *what) {
  const char *path = b->current < b->count ? b->entries[b->current].path : "#";
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "%s: %s: '%s' %s", b->name, path, keyword, what),
                         "docs/sampling.md lists the supported keywords");
}

mlx_status_t mlx_schema_invalid(const mlx_schema_builder_t *b, const char *keyword, const char *what) {
  const char *path = b->current < b->count ? b->entries[b->current].path : "#";
  return mlx_error(MLX_INVALID_INPUT, "%s: %s: '%s' %s", b->name, path, keyword, what);
}

// ----------------------------------------------------------------------------------------------------------
// Rules

mlx_status_t mlx_schema_find_rule(mlx_schema_builder_t *b, yyjson_val *schema, const char *step,
                                  const char *key, size_t *out) {
  uint64_t known;
  if (mlx_pair_map_get(&b->rules, (uint64_t)(uintptr_t)schema, &known)) {
    *out = (size_t)known;
    return NULL;
  }
  MLX_TRY(mlx_budget_step(b->budget, 16));
  if (b->count == MLX_MAX_SCHEMAS)
    return mlx_error(MLX_UNSUPPORTED, "%s: the schema has more than %d subschemas", b->name, MLX_MAX_SCHEMAS);
  char *path;
  const char *parent = b->current < b->count ? b->entries[b->current].path : "";
  MLX_TRY(*step == '#' ? mlx_format(&path, "%s", step)
                       : mlx_format(&path, "%.200s/%s%s%.60s", parent, step, *key ? "/" : "", key));
  mlx_status_t status = mlx_reserve(b->count + 1, sizeof *b->entries, &b->capacity, &b->entries);
  if (status) {
    mlx_free(path);
    return status;
  }
  b->entries[b->count] = (mlx_schema_entry_t){schema, path};
  mlx_pair_map_put(&b->rules, (uint64_t)(uintptr_t)schema, b->count);
  *out = b->count++;
  return NULL;
}

mlx_status_t mlx_schema_put_rule(mlx_schema_builder_t *b, mlx_text_t *out, yyjson_val *schema,
                                 const char *step, const char *key) {
  size_t rule;
  MLX_TRY(mlx_schema_find_rule(b, schema, step, key, &rule));
  mlx_text_printf(out, "s%zu", rule);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Keywords

mlx_status_t mlx_schema_read_count(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                   uint64_t fallback, uint64_t *out) {
  yyjson_val *value = yyjson_obj_get(schema, keyword);
  *out = fallback;
  if (!value) return NULL;
  const double number = yyjson_is_num(value) ? yyjson_get_num(value) : -1;
  if (!(number >= 0) || number != floor(number))
    return mlx_schema_invalid(b, keyword, "is not a whole number of at least 0");
  if (number > MAX_COUNT) return mlx_schema_unsupported(b, keyword, "may be 10000 at most");
  *out = (uint64_t)number;
  return NULL;
}

// Follows one step of a JSON pointer, in which ~1 stands for / and ~0 for ~.
static yyjson_val *follow_step(yyjson_val *value, const char *step, size_t length) {
  char name[256];
  size_t count = 0;
  for (size_t i = 0; i < length && count + 1 < sizeof name; ++i) {
    const bool escaped = step[i] == '~' && i + 1 < length && (step[i + 1] == '0' || step[i + 1] == '1');
    name[count++] = escaped ? "~/"[step[++i] - '0'] : step[i];
  }
  name[count] = 0;
  if (yyjson_is_arr(value)) {
    return count && strspn(name, "0123456789") == count ? yyjson_arr_get(value, strtoul(name, NULL, 10))
                                                        : NULL;
  }
  return yyjson_obj_getn(value, name, count);
}

mlx_status_t mlx_schema_resolve(const mlx_schema_builder_t *b, yyjson_val *ref, yyjson_val **out) {
  const char *text = yyjson_get_str(ref);
  if (!text) return mlx_schema_invalid(b, "$ref", "is not a string");
  if (text[0] != '#' || (text[1] && text[1] != '/')) {
    return mlx_schema_unsupported(b, text, "is outside of the schema, which $ref does not support");
  }
  if (strchr(text, '%')) return mlx_schema_unsupported(b, text, "contains a %, which $ref does not support");
  yyjson_val *value = b->root;
  for (const char *step = text + 1; value && *step == '/';) {
    const size_t length = strcspn(++step, "/");
    MLX_TRY(mlx_budget_step(b->budget, yyjson_get_len(value) + 1));  // a search in the members
    value = follow_step(value, step, length);
    step += length;
  }
  *out = value;
  if (!value || !(yyjson_is_obj(value) || yyjson_is_bool(value))) {
    return mlx_schema_invalid(b, text, "is the target of a $ref, but not a schema");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// GBNF

void mlx_gbnf_put_literal(mlx_text_t *out, const char *bytes, size_t length) {
  mlx_text_puts(out, "\"");
  for (size_t i = 0; i < length; ++i) {
    const unsigned char c = (unsigned char)bytes[i];
    if (c == '"' || c == '\\') mlx_text_puts(out, "\\");
    if (c < 32 || c == 127) {
      mlx_text_printf(out, "\\x%02X", c);
    } else {
      mlx_text_append(out, bytes + i, 1);
    }
  }
  mlx_text_puts(out, "\"");
}

void mlx_gbnf_put_repetition(mlx_text_t *out, uint64_t min, uint64_t max) {
  if (max == UINT64_MAX) {
    mlx_text_printf(out, "{%llu,}", (unsigned long long)min);
  } else {
    mlx_text_printf(out, "{%llu,%llu}", (unsigned long long)min, (unsigned long long)max);
  }
}
