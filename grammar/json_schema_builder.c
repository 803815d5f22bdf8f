// Errors with the path of a schema, schemas that are not in the file, and $ref.
#include "grammar/json_schema_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/memory.h"

#define MOST_FORMATS 64  // that are named

// ----------------------------------------------------------------------------------------------------------
// Errors

// Writes the JSON pointer that leads from |from| to |to|; false if |to| is not inside.
static bool put_path(yyjson_val *from, yyjson_val *to, mlx_text_t *out) {
  if (from == to) return true;
  const size_t length = out->length;
  size_t index, count;
  yyjson_val *key, *value;
  if (yyjson_is_obj(from)) {
    yyjson_obj_foreach(from, index, count, key, value) {
      mlx_text_puts(out, "/");
      for (const char *c = yyjson_get_str(key); *c; ++c) {
        mlx_text_append(out, *c == '~' ? "~0" : *c == '/' ? "~1" : c, *c == '~' || *c == '/' ? 2 : 1);
      }
      if (put_path(value, to, out)) return true;
      out->length = length;
    }
  } else if (yyjson_is_arr(from)) {
    yyjson_arr_foreach(from, index, count, value) {
      mlx_text_printf(out, "/%zu", index);
      if (put_path(value, to, out)) return true;
      out->length = length;
    }
  }
  return false;
}

// "#" and the JSON pointer to a schema. Returns false if it is not found.
static bool find_path(const mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  mlx_text_puts(out, "#");
  bool found = put_path(b->root, schema, out);
  // A schema that is not in the file was made for the rule that is being written.
  for (size_t i = 0; !found && b->current < b->count && i < b->entries[b->current].count; ++i)
    found = put_path(b->root, b->entries[b->current].terms[i].schema, out);
  if (out->length < out->capacity) out->data[out->length] = 0;
  return found;
}

void mlx_schema_note_format(mlx_schema_builder_t *b, yyjson_val *schema) {
  mlx_text_t path = {0}, note = {0};
  if (b->formats && b->format_count++ < MOST_FORMATS && find_path(b, schema, &path)) {
    mlx_text_printf(&note, "%s%s: format", b->name, path.data ? path.data : "#");
    if (note.data && (!b->formats->length || !strstr(b->formats->data, note.data)))
      mlx_text_printf(b->formats, "%s%s", b->formats->length ? ", " : "", note.data);
    b->formats->failed |= path.failed || note.failed;
  }
  mlx_text_clear(&note);
  mlx_text_clear(&path);
}

static mlx_status_t schema_error(const mlx_schema_builder_t *b, mlx_code_t code, yyjson_val *schema,
                                 const char *keyword, const char *what) {
  mlx_text_t path = {0};
  const bool found = find_path(b, schema, &path);
  mlx_status_t status = mlx_text_finish(&path);
  if (!status && code == MLX_UNSUPPORTED && found && b->refusal) {
    mlx_text_clear(&b->refusal->path);
    mlx_text_puts(&b->refusal->path, path.data + 1);
    snprintf(b->refusal->keyword, sizeof b->refusal->keyword, "%s", keyword);
  }
  if (!status) status = mlx_error(code, "%s: %.400s: '%.100s' %s", b->name, path.data, keyword, what);
  mlx_text_clear(&path);
  return status;
}

mlx_status_t mlx_schema_unsupported(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                    const char *what) {
  return mlx_status_hint(schema_error(b, MLX_UNSUPPORTED, schema, keyword, what),
                         "docs/sampling.md lists the supported keywords");
}

mlx_status_t mlx_schema_invalid(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                const char *what) {
  return schema_error(b, MLX_INVALID_INPUT, schema, keyword, what);
}

// ----------------------------------------------------------------------------------------------------------
// Schemas that are not in the file

mlx_status_t mlx_schema_keep_text(mlx_schema_builder_t *b, const char *text, size_t length,
                                  const char **out) {
  char *copy;
  MLX_TRY(mlx_copy_text(text, length, &copy));
  mlx_status_t status = mlx_reserve(b->text_count + 1, sizeof *b->texts, &b->text_capacity, &b->texts);
  if (status) {
    mlx_free(copy);
    return status;
  }
  b->texts[b->text_count++] = copy;
  *out = copy;
  return NULL;
}

mlx_status_t mlx_schema_make(mlx_schema_builder_t *b, mlx_text_t *text, yyjson_val **out) {
  uint32_t index;
  const char *kept;
  mlx_json_t json;
  mlx_status_t status = mlx_text_finish(text);
  if (!status && mlx_name_table_find(&b->made, text->data, text->length, &index)) {
    *out = yyjson_doc_get_root(b->docs[index]);
    mlx_text_clear(text);
    return NULL;
  }
  if (!status) status = mlx_schema_keep_text(b, text->data, text->length, &kept);
  if (!status) status = mlx_reserve(b->doc_count + 1, sizeof *b->docs, &b->doc_capacity, &b->docs);
  if (!status) status = mlx_json_parse(b->name, text->data, text->length, &json);
  if (!status) {
    b->docs[b->doc_count++] = json.doc;
    *out = json.root;
    status = mlx_name_table_add(&b->made, kept, text->length, (uint32_t)(b->doc_count - 1));
  }
  mlx_text_clear(text);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// References

// Follows one step of a JSON pointer in a URI: ~1 stands for / and ~0 for ~, and %25 for %.
static yyjson_val *follow_step(yyjson_val *value, const char *step, size_t length) {
  char name[512];
  size_t count = 0;
  for (size_t i = 0; i < length && count + 1 < sizeof name; ++i) {
    char c = step[i];
    if (c == '%' && i + 2 < length && mlx_hex_digit(step[i + 1]) >= 0 && mlx_hex_digit(step[i + 2]) >= 0) {
      c = (char)(mlx_hex_digit(step[i + 1]) * 16 + mlx_hex_digit(step[i + 2]));
      i += 2;
    }
    if (c == '~' && i + 1 < length && (step[i + 1] == '0' || step[i + 1] == '1')) c = "~/"[step[++i] - '0'];
    name[count++] = c;
  }
  name[count] = 0;
  if (yyjson_is_arr(value)) {
    return count && strspn(name, "0123456789") == count ? yyjson_arr_get(value, strtoul(name, NULL, 10))
                                                        : NULL;
  }
  return yyjson_obj_getn(value, name, count);
}

mlx_status_t mlx_schema_resolve(const mlx_schema_builder_t *b, yyjson_val *schema, yyjson_val *ref,
                                yyjson_val **out) {
  const char *text = yyjson_get_str(ref), *id = yyjson_get_str(yyjson_obj_get(b->root, "$id"));
  if (!text) return mlx_schema_invalid(b, schema, "$ref", "is not a string");
  // A reference may begin with the address of the schema itself.
  const size_t own = id ? strcspn(id, "#") : 0;
  if (own && !strncmp(text, id, own) && (text[own] == '#' || !text[own])) text += own;
  if (*text && (text[0] != '#' || (text[1] && text[1] != '/'))) {
    return mlx_schema_unsupported(b, schema, "$ref", "is outside of the schema, which is not supported");
  }
  yyjson_val *value = b->root;
  for (const char *step = *text ? text + 1 : text; value && *step == '/';) {
    const size_t length = strcspn(++step, "/");
    MLX_TRY(mlx_budget_step(b->budget, yyjson_get_len(value) + 1));  // a search in the members
    value = follow_step(value, step, length);
    step += length;
  }
  *out = value;
  if (!value || !(yyjson_is_obj(value) || yyjson_is_bool(value)))
    return mlx_schema_invalid(b, schema, "$ref", "does not lead to a schema");
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
