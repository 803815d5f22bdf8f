// Writes one rule for each subschema, then the rules that they share.
#include "grammar/json_schema.h"

#include <string.h>

#include "base/memory.h"
#include "grammar/grammar.h"
#include "grammar/json_schema_alternatives.h"
#include "grammar/json_schema_array.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_number.h"
#include "grammar/json_schema_object.h"
#include "grammar/json_schema_string.h"

static mlx_status_t put_types(mlx_schema_builder_t *b, yyjson_val *schema, unsigned types, mlx_text_t *out) {
  MLX_TRY(mlx_schema_check_type_keywords(b, schema));
  if (yyjson_obj_get(schema, "allOf") && types != MLX_SCHEMA_OBJECT)
    return mlx_schema_unsupported(b, "allOf", "is supported for objects only");
  const char *separator = "";
  for (unsigned type = 1; type <= MLX_SCHEMA_OBJECT; type <<= 1) {
    if (!(types & type) || (type == MLX_SCHEMA_INTEGER && types & MLX_SCHEMA_FRACTION)) continue;
    mlx_text_puts(out, separator);
    separator = " | ";
    switch (type) {
      case MLX_SCHEMA_NULL: mlx_text_puts(out, "\"null\""); break;
      case MLX_SCHEMA_BOOLEAN: mlx_text_puts(out, "\"true\" | \"false\""); break;
      case MLX_SCHEMA_INTEGER: MLX_TRY(mlx_schema_put_number(b, schema, true, out)); break;
      case MLX_SCHEMA_FRACTION: MLX_TRY(mlx_schema_put_number(b, schema, false, out)); break;
      case MLX_SCHEMA_STRING: MLX_TRY(mlx_schema_put_string(b, schema, out)); break;
      case MLX_SCHEMA_ARRAY: MLX_TRY(mlx_schema_put_array(b, schema, out)); break;
      default: MLX_TRY(mlx_schema_put_object(b, schema, out)); break;
    }
  }
  return NULL;
}

static mlx_status_t put_body(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  if (yyjson_is_true(schema)) {
    mlx_text_puts(out, "value");
    return NULL;
  }
  if (yyjson_is_false(schema))
    return mlx_schema_unsupported(b, "false", "is a schema that no value satisfies, which is not supported");
  if (!yyjson_is_obj(schema)) return mlx_schema_invalid(b, "schema", "is neither an object nor true");
  yyjson_val *ref = yyjson_obj_get(schema, "$ref"), *target;
  if (ref) {
    MLX_TRY(mlx_schema_check_keywords(b, schema, (const char *const[]){"$ref", NULL}, "$ref"));
    MLX_TRY(mlx_schema_resolve(b, ref, &target));
    return mlx_schema_put_rule(b, out, target, yyjson_get_str(ref), "");
  }
  if (yyjson_obj_get(schema, "enum") || yyjson_obj_get(schema, "const"))
    return mlx_schema_put_enum(b, schema, out);
  if (yyjson_obj_get(schema, "anyOf")) return mlx_schema_put_alternatives(b, schema, "anyOf", out);
  if (yyjson_obj_get(schema, "oneOf")) return mlx_schema_put_alternatives(b, schema, "oneOf", out);
  yyjson_val *type = yyjson_obj_get(schema, "type");
  const unsigned types = type ? mlx_schema_listed_types(type) : mlx_schema_implied_types(schema);
  if (type && !types) {
    return mlx_schema_invalid(
        b, "type", "is not a type: null, boolean, integer, number, string, array, object or a list of them");
  }
  if (types) return put_types(b, schema, types, out);
  MLX_TRY(mlx_schema_check_keywords(b, schema, (const char *const[]){NULL}, NULL));
  mlx_text_puts(out, "value");
  return NULL;
}

// Rules that every schema may use.
// clang-format off
static const char common[] =
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt]"
      " | \"u\" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))\n"
    "namechar ::= [^\"\\\\\\x00-\\x1F\\x7F]\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?\n"
    "member ::= string \":\" ws value\n"
    "value ::= \"{\" ws (member (\",\" ws member)*)? ws \"}\""
      " | \"[\" ws (value (\",\" ws value)*)? ws \"]\" | string | number | \"true\" | \"false\" | \"null\"\n";
// clang-format on

static mlx_status_t build(mlx_schema_builder_t *b) {
  size_t rule;
  b->current = 1;  // the root has no parent
  MLX_TRY(mlx_schema_find_rule(b, b->root, "#", "", &rule));
  mlx_text_puts(&b->out, "root ::= s0\n");
  for (b->current = 0; b->current < b->count; ++b->current) {
    mlx_text_t body = {0};
    mlx_status_t status = put_body(b, b->entries[b->current].schema, &body);
    if (!status) status = mlx_text_finish(&body);
    if (!status) mlx_text_printf(&b->out, "s%zu ::= %s\n", b->current, body.data ? body.data : "");
    mlx_text_clear(&body);
    MLX_TRY(status);
  }
  mlx_text_puts(&b->out, common);
  return mlx_text_finish(&b->out);
}

mlx_status_t mlx_json_schema_to_gbnf(const char *name, const char *text, size_t length, char **out_gbnf,
                                     size_t *out_length) {
  *out_gbnf = NULL;
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_budget_t budget;
  mlx_budget_begin_file(&budget, name, length);
  mlx_schema_builder_t b = {.name = name, .root = json.root, .budget = &budget};
  mlx_status_t status = mlx_pair_map_create(MLX_MAX_SCHEMAS, (uint64_t)(uintptr_t)json.root, &b.rules);
  if (!status) status = build(&b);
  if (!status) status = mlx_text_take(&b.out, out_gbnf, out_length);
  for (size_t i = 0; i < b.count; ++i) mlx_free(b.entries[i].path);
  mlx_free(b.entries);
  mlx_pair_map_free(&b.rules);
  mlx_text_clear(&b.out);
  mlx_json_close(&json);
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
  return mlx_status_hint(status,
                         "check for a $ref that leads back to itself: no finite JSON text can satisfy it");
}
