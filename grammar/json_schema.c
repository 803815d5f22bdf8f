// Writes one rule for each conjunction of schemas, then the rules that they share.
#include "grammar/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/grammar.h"
#include "grammar/json_schema_alternatives.h"
#include "grammar/json_schema_array.h"
#include "grammar/json_schema_excluded.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_number.h"
#include "grammar/json_schema_object.h"
#include "grammar/json_schema_string.h"
#include "grammar/json_schema_values.h"

#define MOST_ANNOTATIONS 64  // keywords of a schema that are not enforced; each costs a conversion

static mlx_status_t put_types(mlx_schema_builder_t *b, const mlx_conjunction_t *c, unsigned types,
                              mlx_text_t *out) {
  const unsigned excluded = mlx_schema_excluded_types(c);
  const char *separator = "";
  for (unsigned type = 1; type <= MLX_SCHEMA_OBJECT; type <<= 1) {
    if (!(types & type) || (type == MLX_SCHEMA_INTEGER && types & MLX_SCHEMA_FRACTION)) continue;
    mlx_text_puts(out, separator);
    separator = " | ";
    // Single numbers, arrays and objects cannot be left out of a grammar: all values of the type are.
    if (excluded & type & ~(unsigned)(MLX_SCHEMA_STRING | MLX_SCHEMA_BOOLEAN)) {
      mlx_text_puts(out, "never");
      continue;
    }
    switch (type) {
      case MLX_SCHEMA_NULL: mlx_text_puts(out, "\"null\""); break;
      case MLX_SCHEMA_BOOLEAN:
        mlx_text_printf(out, "%s | %s", mlx_schema_excludes_bool(c, true) ? "never" : "\"true\"",
                        mlx_schema_excludes_bool(c, false) ? "never" : "\"false\"");
        break;
      case MLX_SCHEMA_INTEGER: MLX_TRY(mlx_schema_put_number(b, c, true, out)); break;
      case MLX_SCHEMA_FRACTION: MLX_TRY(mlx_schema_put_number(b, c, false, out)); break;
      case MLX_SCHEMA_STRING: MLX_TRY(mlx_schema_put_string(b, c, out)); break;
      case MLX_SCHEMA_ARRAY: MLX_TRY(mlx_schema_put_array(b, c, out)); break;
      default: MLX_TRY(mlx_schema_put_object(b, c, out)); break;
    }
  }
  return NULL;
}

static mlx_status_t put_values(const mlx_schema_values_t *values, mlx_text_t *out) {
  for (size_t i = 0; i < values->count; ++i) {
    mlx_text_puts(out, i ? " | " : "");
    MLX_TRY(mlx_schema_put_value(out, values->items[i]));
  }
  mlx_text_puts(out, values->count ? "" : "never");
  return NULL;
}

static mlx_status_t put_body(mlx_schema_builder_t *b, const mlx_conjunction_t *c, mlx_text_t *out) {
  mlx_schema_values_t values;
  bool found;
  MLX_TRY(mlx_schema_put_alternatives(b, c, out, &found));
  if (found) return NULL;
  MLX_TRY(mlx_schema_list_values(b, c, &values, &found));
  if (found) {
    mlx_status_t status = put_values(&values, out);
    mlx_free(values.items);
    return status;
  }
  const bool has_type = mlx_conjunction_has(c, "type");
  unsigned types = has_type ? mlx_schema_types_of(c) : mlx_schema_implied_types(c);
  if (!has_type && !types && mlx_schema_excluded_types(c)) types = MLX_SCHEMA_ALL;
  if (types) return put_types(b, c, types, out);
  mlx_text_puts(out, has_type ? "never" : "value");
  return NULL;
}

// Rules that every schema may use.
// clang-format off
static const char common[] =
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt]"
      " | \"u\" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?\n"
    "never ::= \"-\" never\n"  // matches no text
    "member ::= string \":\" ws value\n"
    "value ::= \"{\" ws (member (\",\" ws member)*)? ws \"}\""
      " | \"[\" ws (value (\",\" ws value)*)? ws \"]\" | string | number | \"true\" | \"false\" | \"null\"\n";
// clang-format on

static mlx_status_t nothing_left(const char *name) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "%s: the schema leaves no JSON text that can be generated", name),
      "look for keywords that contradict each other, and for a required $ref that leads back to "
      "itself");
}

static mlx_status_t build(mlx_schema_builder_t *b) {
  mlx_conjunction_t root = {0};
  b->current = SIZE_MAX;
  mlx_status_t status = mlx_conjunction_add(b, &root, b->root, 0);
  if (!status && (root.never || !mlx_schema_types_of(&root))) status = nothing_left(b->name);
  if (status) {
    mlx_conjunction_free(&root);
    return status;
  }
  mlx_text_puts(&b->out, "root ::= ");
  MLX_TRY(mlx_schema_put_rule(b, &b->out, &root));
  mlx_text_puts(&b->out, "\n");
  for (b->current = 0; b->current < b->count; ++b->current) {
    mlx_text_t body = {0};
    const mlx_conjunction_t c = b->entries[b->current];  // the entries move when one is added
    status = put_body(b, &c, &body);
    if (!status) status = mlx_text_finish(&body);
    if (!status) mlx_text_printf(&b->out, "s%zu ::= %s\n", b->current, body.data ? body.data : "");
    mlx_text_clear(&body);
    MLX_TRY(status);
  }
  mlx_text_puts(&b->out, common);
  return mlx_text_finish(&b->out);
}

static void release(mlx_schema_builder_t *b) {
  for (size_t i = 0; i < b->count; ++i) mlx_conjunction_free(&b->entries[i]);
  for (size_t i = 0; i < b->doc_count; ++i) yyjson_doc_free(b->docs[i]);
  for (size_t i = 0; i < b->text_count; ++i) mlx_free(b->texts[i]);
  mlx_free(b->entries);
  mlx_free(b->docs);
  mlx_free(b->texts);
  mlx_pair_map_free(&b->rules);
  mlx_pair_map_free(&b->checked);
  mlx_nfa_writer_free(&b->nfas);
  mlx_name_table_free(&b->strings);
  mlx_name_table_free(&b->made);
  mlx_text_clear(&b->out);
}

// The schema inside OpenAI's {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, or inside
// a part of it. None of these keys is a keyword, except 'type' with another value.
static yyjson_val *unwrap(yyjson_val *root) {
  static const char *const keys[] = {"type", "name", "description", "strict", "schema", "json_schema", NULL};
  for (int i = 0; i < 2; ++i) {
    yyjson_val *inner = yyjson_obj_get(root, "json_schema"), *type = yyjson_obj_get(root, "type"), *key;
    if (!inner) inner = yyjson_obj_get(root, "schema");
    if (!inner || (type && !yyjson_equals_str(type, "json_schema"))) return root;
    yyjson_obj_iter iter = yyjson_obj_iter_with(root);
    while ((key = yyjson_obj_iter_next(&iter))) {
      const char *const *known = keys;
      while (*known && !yyjson_equals_str(key, *known)) ++known;
      if (!*known) return root;
    }
    root = inner;
  }
  return root;
}

// Parses a schema; a boolean is a schema too.
static mlx_status_t parse(const char *name, const char *text, size_t length, mlx_json_t *out) {
  while (length && memchr(" \t\r\n", *text, 4)) ++text, --length;
  while (length && memchr(" \t\r\n", text[length - 1], 4)) --length;
  if (length == 4 && !memcmp(text, "true", 4)) return mlx_json_parse(name, "{}", 2, out);
  if (length == 5 && !memcmp(text, "false", 5)) return mlx_json_parse(name, "{\"not\":{}}", 10, out);
  return mlx_json_parse(name, text, length, out);
}

static mlx_status_t convert(const char *name, const char *text, size_t length, mlx_schema_refusal_t *refusal,
                            mlx_text_t *formats, char **out_gbnf, size_t *out_length) {
  *out_gbnf = NULL;
  mlx_json_t json;
  MLX_TRY(parse(name, text, length, &json));
  mlx_budget_t budget;
  mlx_budget_begin_file(&budget, name, length);
  mlx_schema_builder_t b = {
      .name = name, .root = unwrap(json.root), .refusal = refusal, .formats = formats, .budget = &budget};
  mlx_status_t status = mlx_pair_map_create(MLX_MAX_SCHEMAS, (uint64_t)(uintptr_t)json.root, &b.rules);
  b.checked_capacity = 64;
  if (!status) status = mlx_pair_map_create(b.checked_capacity, b.rules.seed, &b.checked);
  if (!status) status = build(&b);
  if (!status) status = mlx_text_take(&b.out, out_gbnf, out_length);
  release(&b);
  mlx_json_close(&json);
  return status;
}

mlx_status_t mlx_json_schema_to_gbnf(const char *name, const char *text, size_t length, char **out_gbnf,
                                     size_t *out_length) {
  return convert(name, text, length, NULL, NULL, out_gbnf, out_length);
}

// ----------------------------------------------------------------------------------------------------------
// Annotations

// Removes the refused keyword. If it is not in its schema, that is the schema of a keyword, as in "/not",
// which is removed and becomes the refused one.
static bool remove_keyword(yyjson_mut_doc *doc, mlx_schema_refusal_t *refusal) {
  static const char *const keywords[] = {"not", "if", "propertyNames"};
  for (;;) {
    mlx_text_t *path = &refusal->path;
    yyjson_mut_val *schema =
        path->length ? yyjson_mut_doc_ptr_get(doc, path->data) : yyjson_mut_doc_get_root(doc);
    if (schema && yyjson_mut_obj_remove_key(schema, refusal->keyword)) return true;
    char *last = path->length ? strrchr(path->data, '/') : NULL;
    bool is_keyword = false;
    for (size_t i = 0; last && i < sizeof keywords / sizeof *keywords; ++i)
      is_keyword |= !strcmp(last + 1, keywords[i]);
    if (!is_keyword) return false;
    snprintf(refusal->keyword, sizeof refusal->keyword, "%s", last + 1);
    *last = 0;
    path->length = (size_t)(last - path->data);
  }
}

// The schema without the refused keyword, as a text of yyjson's. *out_text is NULL if it is not there: it
// belongs to a schema that was made.
static mlx_status_t drop_keyword(const char *name, const char *text, size_t length,
                                 mlx_schema_refusal_t *refusal, char **out_text, size_t *out_length) {
  mlx_json_t json;
  *out_text = NULL;
  MLX_TRY(parse(name, text, length, &json));
  yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
  yyjson_mut_val *root = yyjson_val_mut_copy(doc, unwrap(json.root));
  yyjson_mut_doc_set_root(doc, root);
  const bool removed = remove_keyword(doc, refusal);
  if (removed) *out_text = yyjson_mut_write(doc, 0, out_length);
  yyjson_mut_doc_free(doc);
  mlx_json_close(&json);
  return removed && !*out_text ? mlx_error(MLX_OUT_OF_MEMORY, "no memory for the schema") : NULL;
}

mlx_status_t mlx_json_schema_to_gbnf_relaxed(const char *name, const char *text, size_t length,
                                             mlx_text_t *notes, char **out_gbnf, size_t *out_length) {
  mlx_schema_refusal_t refusal = {0};
  mlx_text_t formats = {0};
  char *own = NULL;  // of yyjson
  mlx_status_t status;
  for (int i = 0;; ++i) {
    char *next = NULL;
    size_t next_length = 0;
    refusal.keyword[0] = 0;
    formats.length = 0;
    status = convert(name, own ? own : text, length, &refusal, &formats, out_gbnf, out_length);
    if (mlx_status_code(status) != MLX_UNSUPPORTED || !refusal.keyword[0] || i == MOST_ANNOTATIONS) break;
    mlx_status_t dropped = drop_keyword(name, own ? own : text, length, &refusal, &next, &next_length);
    if (dropped || !next) {
      status = mlx_status_join(status, dropped);
      break;
    }
    mlx_status_free(status);
    mlx_text_printf(notes, "%s%s#%s: %s", notes->length ? ", " : "", name,
                    refusal.path.data ? refusal.path.data : "", refusal.keyword);
    free(own);
    own = next;
    length = next_length;
  }
  if (!status && formats.length) mlx_text_printf(notes, "%s%s", notes->length ? ", " : "", formats.data);
  notes->failed |= formats.failed;
  free(own);
  mlx_text_clear(&formats);
  mlx_text_clear(&refusal.path);
  return status;
}

mlx_status_t mlx_grammar_create_from_schema(const char *name, const char *json_schema, size_t length,
                                            mlx_grammar_t **out_grammar) {
  char *gbnf;
  size_t gbnf_length;
  *out_grammar = NULL;
  MLX_TRY(mlx_json_schema_to_gbnf(name, json_schema, length, &gbnf, &gbnf_length));
  mlx_status_t status = mlx_grammar_create(name, gbnf, gbnf_length, out_grammar);
  mlx_free(gbnf);
  if (mlx_status_code(status) != MLX_UNSUPPORTED || !strstr(mlx_status_message(status), "has no end"))
    return status;
  mlx_status_free(status);
  return nothing_left(name);
}
