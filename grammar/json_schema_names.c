// Names that are not listed in 'properties'.
//
// A name of a pattern gets a value that satisfies the pattern's schema, and those of all patterns that can
// match the same name. A name of additionalProperties gets a value that satisfies every pattern's schema,
// because a grammar cannot write the names that do not match a pattern. So the grammar is narrower.
#include "grammar/json_schema_names.h"

#include <string.h>

#include "base/memory.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_string.h"
#include "grammar/json_schema_values.h"

#define MAX_AUTOMATA 12  // for one name

// ----------------------------------------------------------------------------------------------------------
// Reading

static mlx_status_t add_rule(mlx_schema_builder_t *b, mlx_schema_names_t *n, yyjson_val *schema,
                             const char *keyword, const char *regex) {
  if (n->rule_count + 3 > MAX_AUTOMATA)
    return mlx_schema_unsupported(b, schema, keyword, "is one of too many for a name");
  MLX_TRY(mlx_reserve(n->rule_count + 1, sizeof *n->rules, &n->rule_capacity, &n->rules));
  n->rules[n->rule_count] = (mlx_nfa_t){0};
  return mlx_schema_parse_regex(b, schema, keyword, regex, strlen(regex), &n->rules[n->rule_count++]);
}

// The names that an enum lists, as a regular expression.
static mlx_status_t add_listed(mlx_schema_builder_t *b, mlx_schema_names_t *n, const mlx_conjunction_t *c) {
  mlx_schema_values_t values;
  bool listed;
  mlx_text_t regex = {0};
  MLX_TRY(mlx_schema_list_values(b, c, &values, &listed));
  const char *separator = "^(";
  for (size_t i = 0; listed && i < values.count; ++i) {
    if (!yyjson_is_str(values.items[i])) continue;
    mlx_text_puts(&regex, separator);
    separator = "|";
    for (const char *at = yyjson_get_str(values.items[i]); *at; ++at)
      mlx_text_printf(&regex, strchr("^$\\.*+?()[]{}|/", *at) ? "\\%c" : "%c", *at);
  }
  mlx_free(values.items);
  if (!listed) return NULL;
  n->never |= *separator == '^';
  mlx_text_puts(&regex, ")$");
  mlx_status_t status = mlx_text_finish(&regex);
  if (!status && !n->never) status = add_rule(b, n, c->terms[0].schema, "enum", regex.data);
  mlx_text_clear(&regex);
  return status;
}

// A name is a string: 'propertyNames' has the keywords of strings.
static mlx_status_t read_property_names(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                        mlx_schema_names_t *n) {
  mlx_conjunction_t of_names = {0};
  mlx_status_t status = NULL;
  size_t at = 0;
  yyjson_val *schema;
  while (!status && (schema = mlx_conjunction_next(c, "propertyNames", &at)))
    status = mlx_conjunction_add(b, &of_names, yyjson_obj_get(schema, "propertyNames"), 0);
  if (!status) status = mlx_schema_read_count(b, &of_names, "minLength", 0, &n->min);
  if (!status) status = mlx_schema_read_count(b, &of_names, "maxLength", UINT64_MAX, &n->max);
  if (!status) status = add_listed(b, n, &of_names);
  n->never |= of_names.never || !(mlx_schema_types_of(&of_names) & MLX_SCHEMA_STRING);
  for (size_t i = 0; i < of_names.count && !status; ++i) {
    static const char *const branches[] = {"anyOf", "oneOf", "if"};
    schema = of_names.terms[i].schema;
    const char *pattern = yyjson_get_str(yyjson_obj_get(schema, "pattern")),
               *format = yyjson_get_str(yyjson_obj_get(schema, "format")),
               *regex = format ? mlx_schema_format_regex(format) : NULL;
    if (of_names.terms[i].flags)
      status = mlx_schema_unsupported(b, schema, "propertyNames", "has 'not' or 'nullable'");
    for (size_t j = 0; j < 3 && !status; ++j) {
      if (yyjson_obj_get(schema, branches[j]))
        status = mlx_schema_unsupported(b, schema, branches[j], "is not supported for names of properties");
    }
    if (!status && pattern) status = add_rule(b, n, schema, "pattern", pattern);
    if (!status && regex) status = add_rule(b, n, schema, "format", regex);
  }
  mlx_conjunction_free(&of_names);
  return status;
}

// yyjson_obj_get compares all names of an object, so each property would take as long as there are
// properties.
static mlx_status_t read_properties(const mlx_conjunction_t *c, mlx_schema_names_t *n) {
  size_t at = 0;
  yyjson_val *schema, *key;
  while ((schema = mlx_conjunction_next(c, "properties", &at))) {
    yyjson_obj_iter iter = yyjson_obj_iter_with(yyjson_obj_get(schema, "properties"));
    while ((key = yyjson_obj_iter_next(&iter))) {
      mlx_schema_property_t property = {.term = schema, .schema = yyjson_obj_iter_get_val(key)};
      uint32_t first;
      MLX_TRY(
          mlx_reserve(n->property_count + 1, sizeof *n->properties, &n->property_capacity, &n->properties));
      if (mlx_name_table_find(&n->index, yyjson_get_str(key), yyjson_get_len(key), &first)) {
        property.next = n->properties[first].next;
        n->properties[first].next = n->property_count;
      } else {
        MLX_TRY(mlx_name_table_add(&n->index, yyjson_get_str(key), yyjson_get_len(key),
                                   (uint32_t)n->property_count));
      }
      n->properties[n->property_count++] = property;
    }
  }
  return NULL;
}

static yyjson_val *find_property(const mlx_schema_names_t *n, yyjson_val *term, const char *name,
                                 size_t length) {
  uint32_t first;
  if (!mlx_name_table_find(&n->index, name, length, &first)) return NULL;
  for (size_t i = first;; i = n->properties[i].next) {
    if (n->properties[i].term == term) return n->properties[i].schema;
    if (!n->properties[i].next) return NULL;
  }
}

mlx_status_t mlx_schema_names_read(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                   mlx_schema_names_t *n) {
  *n = (mlx_schema_names_t){.max = UINT64_MAX};
  MLX_TRY(read_properties(c, n));
  if (mlx_conjunction_has(c, "propertyNames")) MLX_TRY(read_property_names(b, c, n));
  size_t at = 0;
  yyjson_val *schema, *key;
  while ((schema = mlx_conjunction_next(c, "patternProperties", &at))) {
    yyjson_val *list = yyjson_obj_get(schema, "patternProperties");
    if (!yyjson_is_obj(list)) return mlx_schema_invalid(b, schema, "patternProperties", "is not an object");
    yyjson_obj_iter iter = yyjson_obj_iter_with(list);
    while ((key = yyjson_obj_iter_next(&iter))) {
      mlx_schema_pattern_t pattern = {.term = schema, .schema = yyjson_obj_iter_get_val(key)};
      if (n->pattern_count == 64)
        return mlx_schema_unsupported(b, schema, "patternProperties", "may have 64 patterns at most");
      MLX_TRY(mlx_schema_parse_regex(b, schema, "patternProperties", yyjson_get_str(key), yyjson_get_len(key),
                                     &pattern.nfa));
      mlx_status_t status =
          mlx_reserve(n->pattern_count + 1, sizeof *n->patterns, &n->pattern_capacity, &n->patterns);
      if (status) {
        mlx_nfa_free(&pattern.nfa);
        return status;
      }
      n->patterns[n->pattern_count++] = pattern;
    }
  }
  return NULL;
}

void mlx_schema_names_free(mlx_schema_names_t *n) {
  for (size_t i = 0; i < n->pattern_count; ++i) mlx_nfa_free(&n->patterns[i].nfa);
  for (size_t i = 0; i < n->rule_count; ++i) mlx_nfa_free(&n->rules[i]);
  mlx_name_table_free(&n->index);
  mlx_free(n->properties);
  mlx_free(n->patterns);
  mlx_free(n->rules);
}

// ----------------------------------------------------------------------------------------------------------
// Known names

static size_t count_characters(const char *text, size_t length) {
  size_t count = 0;
  for (size_t i = 0; i < length; ++i) count += (text[i] & 0xc0) != 0x80;
  return count;
}

mlx_status_t mlx_schema_names_add_value(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                        const mlx_schema_names_t *n, const char *name, size_t length,
                                        mlx_conjunction_t *out) {
  bool matches;
  const size_t characters = n->min || n->max != UINT64_MAX ? count_characters(name, length) : 0;
  if (n->never || characters < n->min || characters > n->max) out->never = true;
  for (size_t i = 0; i < n->rule_count; ++i) {
    MLX_TRY(mlx_nfa_accepts(&n->rules[i], name, length, &matches));
    out->never |= !matches;
  }
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema, *additional = yyjson_obj_get(schema, "additionalProperties"),
               *own = find_property(n, schema, name, length);
    bool known = own != NULL;
    if (own) MLX_TRY(mlx_conjunction_add(b, out, own, 0));
    for (size_t j = 0; j < n->pattern_count; ++j) {
      if (n->patterns[j].term != schema) continue;
      MLX_TRY(mlx_nfa_accepts(&n->patterns[j].nfa, name, length, &matches));
      if (matches) MLX_TRY(mlx_conjunction_add(b, out, n->patterns[j].schema, 0));
      known |= matches;
    }
    if (!known && additional) MLX_TRY(mlx_conjunction_add(b, out, additional, 0));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Other names

// Whether a name can match both patterns. True if it is not known.
static mlx_status_t overlap(mlx_schema_builder_t *b, const mlx_nfa_t *x, const mlx_nfa_t *y, bool *out) {
  mlx_text_t ignored = {0};
  const char *problem;
  size_t rule;
  mlx_nfa_writer_t writer = {.out = &ignored, .budget = b->budget};
  mlx_status_t status =
      mlx_nfa_write(&writer, (const mlx_nfa_t *[]){x, y}, 2, 0, UINT64_MAX, MLX_NFA_IN_NAME, &rule, &problem);
  mlx_nfa_writer_free(&writer);
  mlx_text_clear(&ignored);
  *out = !problem || strcmp(problem, MLX_NFA_NO_TEXT);
  return status;
}

// Adds the schemas of a value whose name matches patterns[index], or any name for |index| SIZE_MAX.
static mlx_status_t add_other_value(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                    const mlx_schema_names_t *n, size_t index, mlx_conjunction_t *out) {
  yyjson_val *own = index == SIZE_MAX ? NULL : n->patterns[index].term;
  for (size_t i = 0; i < n->pattern_count; ++i) {
    bool applies = i == index || index == SIZE_MAX;
    if (!applies) MLX_TRY(overlap(b, &n->patterns[index].nfa, &n->patterns[i].nfa, &applies));
    if (applies) MLX_TRY(mlx_conjunction_add(b, out, n->patterns[i].schema, 0));
  }
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *schema = c->terms[i].schema, *additional = yyjson_obj_get(schema, "additionalProperties");
    if (additional && schema != own) MLX_TRY(mlx_conjunction_add(b, out, additional, 0));
  }
  return NULL;
}

// Writes the alternates for names of patterns[index], or for any name.
static mlx_status_t put_kind(mlx_schema_builder_t *b, const mlx_conjunction_t *c, const mlx_schema_names_t *n,
                             const mlx_nfa_t *excluded, size_t index, mlx_text_t *out, bool *inout_any) {
  mlx_conjunction_t value = {0};
  const mlx_nfa_t *nfas[MAX_AUTOMATA] = {excluded};
  const char *problem = NULL;
  size_t count = 1, rule = 0;
  mlx_status_t status = add_other_value(b, c, n, index, &value);
  if (index != SIZE_MAX) nfas[count++] = &n->patterns[index].nfa;
  for (size_t i = 0; i < n->rule_count; ++i) nfas[count++] = &n->rules[i];
  b->nfas.out = &b->out;
  b->nfas.budget = b->budget;
  if (!status && !value.never)
    status = mlx_nfa_write(&b->nfas, nfas, count, n->min, n->max, MLX_NFA_IN_NAME, &rule, &problem);
  if (!status && problem && strcmp(problem, MLX_NFA_NO_TEXT)) {
    status = mlx_schema_unsupported(b, index == SIZE_MAX ? c->terms[0].schema : n->patterns[index].term,
                                    index == SIZE_MAX ? "properties" : "patternProperties", problem);
  }
  if (status || problem || value.never) {
    mlx_conjunction_free(&value);
    return status;
  }
  mlx_text_printf(out, "%s\"\\\"\" p%zu \"\\\":\" ws ", *inout_any ? " | " : "", rule);
  *inout_any = true;
  return mlx_schema_put_rule(b, out, &value);
}

mlx_status_t mlx_schema_names_put_other(mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                        const mlx_schema_names_t *n, mlx_nfa_name_t *known,
                                        size_t known_count, size_t part, bool *out_any) {
  mlx_nfa_t excluded;
  mlx_text_t body = {0};
  // Names that no pattern lists appear only if a schema says so, or if nothing is said about names.
  bool opens = !known_count && !n->pattern_count;
  for (size_t i = 0; i < c->count; ++i) {
    yyjson_val *additional = yyjson_obj_get(c->terms[i].schema, "additionalProperties");
    opens |= additional && !yyjson_is_false(additional);
  }
  *out_any = false;
  if (n->never || (!opens && !n->pattern_count)) return NULL;
  MLX_TRY(mlx_nfa_exclude_names(known, known_count, &excluded));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < n->pattern_count && !status; ++i)
    status = put_kind(b, c, n, &excluded, i, &body, out_any);
  if (!status && opens) status = put_kind(b, c, n, &excluded, SIZE_MAX, &body, out_any);
  if (!status) status = mlx_text_finish(&body);
  if (!status && *out_any) mlx_text_printf(&b->out, "o%zu-other ::= %s\n", part, body.data);
  mlx_text_clear(&body);
  mlx_nfa_free(&excluded);
  return status;
}
