#include "grammar/json_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/grammar.h"
#include "grammar/json_schema_internal.h"

#define MAX_SCHEMAS 20000
#define MAX_DEPTH 64     // of allOf and $ref in one another
#define MAX_NAME 512     // characters of a property's name where others are allowed beside it
#define MAX_COUNT 10000  // of minLength and its like: what a GBNF repetition may be

typedef struct entry {
  yyjson_val *schema;
  char *path;  // owned: "#/properties/a"
} entry_t;

typedef struct builder {
  const char *name;  // of the file, for messages
  yyjson_val *root;
  mlx_text_t out;
  entry_t *entries;  // the n-th is rule s<n>
  size_t count, capacity;
  size_t at;         // the one being written
  size_t next_part;  // a number for rules inside a schema's own
} builder_t;

// ----------------------------------------------------------------------------------------------------------
// Words and errors

// What only describes, or is looked up by others.
static const char *const silent[] = {"$schema",     "$id",        "$comment",    "$anchor",   "$defs",
                                     "definitions", "title",      "description", "default",   "examples",
                                     "example",     "deprecated", "readOnly",    "writeOnly", NULL};
static const char *const object_words[] = {"type",  "properties", "required", "additionalProperties",
                                           "allOf", NULL};
static const char *const array_words[] = {"type", "items", "prefixItems", "minItems", "maxItems", NULL};
static const char *const string_words[] = {"type", "minLength", "maxLength", "pattern", "format", NULL};
static const char *const number_words[] = {
    "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL};
static const char *const enum_words[] = {"type", "enum", "const", NULL};

static bool is_one_of(const char *const *words, const char *word) {
  for (; *words; ++words) {
    if (!strcmp(*words, word)) return true;
  }
  return false;
}

static mlx_status_t refuse(const builder_t *b, const char *keyword, const char *what) {
  const char *path = b->at < b->count ? b->entries[b->at].path : "#";
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "%s: %s: '%s' %s", b->name, path, keyword, what),
                         "docs/sampling.md lists what a schema may have");
}

static mlx_status_t malformed(const builder_t *b, const char *keyword, const char *what) {
  const char *path = b->at < b->count ? b->entries[b->at].path : "#";
  return mlx_error(MLX_INVALID_INPUT, "%s: %s: '%s' %s", b->name, path, keyword, what);
}

// Every word of |schema| is in |words|, or silent.
static mlx_status_t check_words(const builder_t *b, yyjson_val *schema, const char *const *words,
                                const char *beside) {
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    const char *word = yyjson_get_str(key);
    if (strlen(word) != yyjson_get_len(key))
      return refuse(b, word, "has a NUL in its name, which is not supported");
    if (is_one_of(silent, word) || is_one_of(words, word)) continue;
    const bool known = is_one_of(object_words, word) || is_one_of(array_words, word) ||
                       is_one_of(string_words, word) || is_one_of(number_words, word) ||
                       is_one_of(enum_words, word) || !strcmp(word, "anyOf") || !strcmp(word, "oneOf") ||
                       !strcmp(word, "$ref");
    if (!known || !beside) return refuse(b, word, "is not supported");
    char what[64];
    snprintf(what, sizeof what, "is not supported beside '%s'", beside);
    return refuse(b, word, what);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Text

void mlx_gbnf_literal(mlx_text_t *out, const char *bytes, size_t length) {
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

// The JSON text of |value| as a literal.
static mlx_status_t put_value(mlx_text_t *out, yyjson_val *value) {
  size_t length;
  char *json = yyjson_val_write(value, 0, &length);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  mlx_gbnf_literal(out, json, length);
  free(json);
  return NULL;
}

// The number of the rule for |schema|, which is written later.
static mlx_status_t rule_of(builder_t *b, yyjson_val *schema, const char *step, const char *key,
                            size_t *out) {
  for (size_t i = 0; i < b->count; ++i) {
    if (b->entries[i].schema != schema) continue;
    *out = i;
    return NULL;
  }
  if (b->count == MAX_SCHEMAS)
    return mlx_error(MLX_UNSUPPORTED, "%s: the schema has more than %d parts", b->name, MAX_SCHEMAS);
  char *path;
  const char *parent = b->at < b->count ? b->entries[b->at].path : "";
  MLX_TRY(*step == '#' ? mlx_format(&path, "%s", step)
                       : mlx_format(&path, "%.200s/%s%s%.60s", parent, step, *key ? "/" : "", key));
  mlx_status_t status = mlx_reserve(b->count + 1, sizeof *b->entries, &b->capacity, &b->entries);
  if (status) {
    mlx_free(path);
    return status;
  }
  b->entries[b->count] = (entry_t){schema, path};
  *out = b->count++;
  return NULL;
}

static mlx_status_t put_rule(builder_t *b, mlx_text_t *out, yyjson_val *schema, const char *step,
                             const char *key) {
  size_t rule;
  MLX_TRY(rule_of(b, schema, step, key, &rule));
  mlx_text_printf(out, "s%zu", rule);
  return NULL;
}

static mlx_status_t read_count(const builder_t *b, yyjson_val *schema, const char *word, uint64_t fallback,
                               uint64_t *out) {
  yyjson_val *value = yyjson_obj_get(schema, word);
  *out = fallback;
  if (!value) return NULL;
  const double number = yyjson_is_num(value) ? yyjson_get_num(value) : -1;
  if (!(number >= 0) || number != floor(number)) return malformed(b, word, "is no whole number from 0 on");
  if (number > MAX_COUNT) return refuse(b, word, "may be 10000 at most");
  *out = (uint64_t)number;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// $ref

// One step of a JSON pointer: ~1 is /, ~0 is ~.
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

static mlx_status_t resolve(const builder_t *b, yyjson_val *ref, yyjson_val **out) {
  const char *text = yyjson_get_str(ref);
  if (!text) return malformed(b, "$ref", "is no text");
  if (text[0] != '#' || (text[1] && text[1] != '/')) {
    return refuse(b, text, "lies outside of the schema, which $ref does not support");
  }
  if (strchr(text, '%')) return refuse(b, text, "has a %, which $ref does not support");
  yyjson_val *value = b->root;
  for (const char *step = text + 1; value && *step == '/';) {
    const size_t length = strcspn(++step, "/");
    value = follow_step(value, step, length);
    step += length;
  }
  *out = value;
  if (!value || !(yyjson_is_obj(value) || yyjson_is_bool(value))) {
    return malformed(b, text, "is what a $ref leads to, and there is no schema there");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Objects

typedef struct property {
  const char *name;
  size_t length;
  yyjson_val *schema;  // NULL: any value
  bool required;
} property_t;

typedef struct object {
  property_t *items;
  size_t count, capacity;
  yyjson_val *additional;  // NULL: not said
} object_t;

static property_t *find_property(object_t *o, yyjson_val *key) {
  for (size_t i = 0; i < o->count; ++i) {
    if (yyjson_equals_strn(key, o->items[i].name, o->items[i].length)) return &o->items[i];
  }
  return NULL;
}

static mlx_status_t add_property(object_t *o, yyjson_val *key, yyjson_val *schema) {
  MLX_TRY(mlx_reserve(o->count + 1, sizeof *o->items, &o->capacity, &o->items));
  o->items[o->count++] =
      (property_t){.name = yyjson_get_str(key), .length = yyjson_get_len(key), .schema = schema};
  return NULL;
}

static mlx_status_t collect_required(builder_t *b, yyjson_val *schema, object_t *o) {
  yyjson_val *list = yyjson_obj_get(schema, "required"), *key;
  if (!list) return NULL;
  if (!yyjson_is_arr(list)) return malformed(b, "required", "is no list");
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((key = yyjson_arr_iter_next(&iter))) {
    if (!yyjson_is_str(key)) return malformed(b, "required", "is no list of names");
    property_t *property = find_property(o, key);
    if (!property) {
      MLX_TRY(add_property(o, key, NULL));
      property = &o->items[o->count - 1];
    }
    property->required = true;
  }
  return NULL;
}

// The properties of |schema| and of all it is joined with by allOf and $ref. What is required is looked at
// last.
static mlx_status_t collect(builder_t *b, yyjson_val *schema, object_t *o, bool required, int depth) {
  if (depth > MAX_DEPTH) return refuse(b, "allOf", "is nested too deeply, or in itself");
  if (!yyjson_is_obj(schema)) return refuse(b, "allOf", "is supported for objects only");
  yyjson_val *ref = yyjson_obj_get(schema, "$ref"), *value, *key;
  if (ref) {
    MLX_TRY(check_words(b, schema, (const char *const[]){"$ref", NULL}, "$ref"));
    MLX_TRY(resolve(b, ref, &value));
    return collect(b, value, o, required, depth + 1);
  }
  yyjson_val *type = yyjson_obj_get(schema, "type");
  if (depth && type && !yyjson_equals_str(type, "object"))
    return refuse(b, "allOf", "is supported for objects only");
  if (depth) MLX_TRY(check_words(b, schema, object_words, "allOf"));
  if (required) {
    MLX_TRY(collect_required(b, schema, o));
  } else {
    yyjson_val *properties = yyjson_obj_get(schema, "properties"),
               *additional = yyjson_obj_get(schema, "additionalProperties");
    if (properties && !yyjson_is_obj(properties)) return malformed(b, "properties", "is no object");
    if (additional && (o->additional || depth))
      return refuse(b, "additionalProperties", "is not supported in an allOf");
    if (additional && !yyjson_is_bool(additional) && !yyjson_is_obj(additional)) {
      return malformed(b, "additionalProperties", "is no schema");
    }
    o->additional = additional ? additional : o->additional;
    yyjson_obj_iter iter = yyjson_obj_iter_with(properties);
    while ((key = yyjson_obj_iter_next(&iter))) {
      if (find_property(o, key))
        return refuse(b, yyjson_get_str(key), "is there twice, which allOf does not support");
      MLX_TRY(add_property(o, key, yyjson_obj_iter_get_val(key)));
    }
  }
  yyjson_val *all = yyjson_obj_get(schema, "allOf");
  if (all && !yyjson_is_arr(all)) return malformed(b, "allOf", "is no list");
  yyjson_arr_iter iter = yyjson_arr_iter_with(all);
  while ((value = yyjson_arr_iter_next(&iter))) MLX_TRY(collect(b, value, o, required, depth + 1));
  return NULL;
}

// ---- names that are none of the properties': a trie, a rule for each beginning that some of them have

static int compare_names(const void *a, const void *b) {
  const property_t *x = a, *y = b;
  const int order = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);
  return order ? order : (x->length > y->length) - (x->length < y->length);
}

static bool can_be_spelled(const property_t *p) {  // without a backslash, as other names are
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

// What may follow the first |depth| bytes that names [first, last) share. Writes the rule, and those it uses
// before it.
static mlx_status_t put_other_names(builder_t *b, const property_t *names, size_t first, size_t last,
                                    size_t depth, size_t *out_rule) {
  mlx_text_t body = {0};
  bool is_name = false;
  if (depth > MAX_NAME) return refuse(b, "properties", "has a name too long to allow others beside it");
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
    mlx_gbnf_literal(&body, names[i].name + depth, (size_t)size);
    if (!status) mlx_text_printf(&body, " n%zu", rule);
  }
  *out_rule = b->next_part++;
  if (!status) status = mlx_text_finish(&body);
  if (!status) mlx_text_printf(&b->out, "n%zu ::= %s\n", *out_rule, body.data);
  mlx_text_clear(&body);
  return status;
}

// A rule for one property that is not named.
static mlx_status_t put_additional(builder_t *b, const object_t *o, size_t part) {
  property_t *names;
  size_t count = 0, rule = 0;
  MLX_TRY(mlx_alloc(o->count, sizeof *names, &names));
  for (size_t i = 0; i < o->count; ++i) {
    if (can_be_spelled(&o->items[i])) names[count++] = o->items[i];
  }
  qsort(names, count, sizeof *names, compare_names);
  mlx_status_t status = put_other_names(b, names, 0, count, 0, &rule);
  mlx_free(names);
  MLX_TRY(status);
  mlx_text_printf(&b->out, "o%zu-other ::= \"\\\"\" n%zu \"\\\":\" ws ", part, rule);
  if (o->additional && yyjson_is_obj(o->additional)) {
    MLX_TRY(put_rule(b, &b->out, o->additional, "additionalProperties", ""));
  } else {
    mlx_text_puts(&b->out, "value");
  }
  mlx_text_puts(&b->out, "\n");
  return NULL;
}

static mlx_status_t put_property(builder_t *b, const property_t *p, const object_t *o) {
  mlx_text_t json = {0};
  mlx_text_json_string(&json, p->name, p->length);
  mlx_text_puts(&json, ":");
  mlx_status_t status = mlx_text_finish(&json);
  if (!status) mlx_gbnf_literal(&b->out, json.data, json.length);
  mlx_text_clear(&json);
  MLX_TRY(status);
  mlx_text_puts(&b->out, " ws ");
  yyjson_val *schema = p->schema ? p->schema : o->additional;
  if (schema && (p->schema || yyjson_is_obj(schema))) {
    return put_rule(b, &b->out, schema, p->schema ? "properties" : "additionalProperties",
                    p->schema ? p->name : "");
  }
  if (schema && yyjson_is_false(schema))
    return refuse(b, p->name, "is required, but additionalProperties forbids it");
  mlx_text_puts(&b->out, "value");
  return NULL;
}

// Rules oN-k: what may come from the k-th property on; oN-k-c: the same after another one, with a comma.
static mlx_status_t put_properties(builder_t *b, const object_t *o, size_t part, bool open) {
  for (size_t k = 0; k < o->count; ++k) {
    mlx_text_printf(&b->out, "o%zu-%zu-p ::= ", part, k);
    MLX_TRY(put_property(b, &o->items[k], o));
    mlx_text_printf(&b->out, "\no%zu-%zu ::= o%zu-%zu-p o%zu-%zu-c", part, k, part, k, part, k + 1);
    if (!o->items[k].required) mlx_text_printf(&b->out, " | o%zu-%zu", part, k + 1);
    mlx_text_printf(&b->out, "\no%zu-%zu-c ::= \",\" ws o%zu-%zu-p o%zu-%zu-c", part, k, part, k, part,
                    k + 1);
    if (!o->items[k].required) mlx_text_printf(&b->out, " | o%zu-%zu-c", part, k + 1);
    mlx_text_puts(&b->out, "\n");
  }
  if (open) MLX_TRY(put_additional(b, o, part));
  mlx_text_printf(&b->out, "o%zu-%zu ::= \"\"", part, o->count);
  if (open) mlx_text_printf(&b->out, " (o%zu-other o%zu-%zu-c)?", part, part, o->count);
  mlx_text_printf(&b->out, "\no%zu-%zu-c ::= \"\"", part, o->count);
  if (open) mlx_text_printf(&b->out, " (\",\" ws o%zu-other)*", part);
  mlx_text_puts(&b->out, "\n");
  return NULL;
}

static mlx_status_t put_object(builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  object_t o = {0};
  const size_t part = b->next_part++;
  mlx_status_t status = collect(b, schema, &o, false, 0);
  if (!status) status = collect(b, schema, &o, true, 0);
  const bool open = o.additional ? !yyjson_is_false(o.additional) : !o.count;
  if (!status) status = put_properties(b, &o, part, open);
  mlx_free(o.items);
  mlx_text_printf(out, "\"{\" ws o%zu-0 ws \"}\"", part);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Arrays

static void put_times(mlx_text_t *out, uint64_t min, uint64_t max) {
  if (max == UINT64_MAX) {
    mlx_text_printf(out, "{%llu,}", (unsigned long long)min);
  } else {
    mlx_text_printf(out, "{%llu,%llu}", (unsigned long long)min, (unsigned long long)max);
  }
}

static mlx_status_t put_items(builder_t *b, mlx_text_t *out, yyjson_val *items) {
  if (!items || yyjson_is_true(items)) {
    mlx_text_puts(out, "value");
    return NULL;
  }
  return put_rule(b, out, items, "items", "");
}

static mlx_status_t put_array(builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  yyjson_val *items = yyjson_obj_get(schema, "items"), *prefix = yyjson_obj_get(schema, "prefixItems"),
             *value;
  uint64_t min, max, placed = 0;
  MLX_TRY(read_count(b, schema, "minItems", 0, &min));
  MLX_TRY(read_count(b, schema, "maxItems", UINT64_MAX, &max));
  if (min > max) return malformed(b, "minItems", "is more than 'maxItems'");
  if (prefix && !yyjson_is_arr(prefix)) return malformed(b, "prefixItems", "is no list");
  if (items && yyjson_is_arr(items))
    return refuse(b, "items", "as a list is not supported: it is called prefixItems now");
  if (items && !yyjson_is_obj(items) && !yyjson_is_bool(items)) return malformed(b, "items", "is no schema");
  const uint64_t fixed = yyjson_arr_size(prefix) < max ? yyjson_arr_size(prefix) : max;
  // A tuple is written whole; without a word about what follows it nothing does, unless minItems asks for it.
  const bool closed = (items && yyjson_is_false(items)) || (prefix && !items && min <= fixed);
  if (closed && min > fixed)
    return malformed(b, "minItems", "is more than there are prefixItems, and 'items' forbids others");
  mlx_text_puts(out, "\"[\" ws ");
  yyjson_arr_iter iter = yyjson_arr_iter_with(prefix);
  for (; placed < fixed && (value = yyjson_arr_iter_next(&iter)); ++placed) {
    char index[24];
    snprintf(index, sizeof index, "%llu", (unsigned long long)placed);
    mlx_text_puts(out, placed ? " \",\" ws " : "");
    MLX_TRY(put_rule(b, out, value, "prefixItems", index));
  }
  const uint64_t least = min > placed ? min - placed : 0, most = max == UINT64_MAX ? max : max - placed;
  if (!closed && most && placed) {
    mlx_text_puts(out, " (\",\" ws ");
    MLX_TRY(put_items(b, out, items));
    mlx_text_puts(out, ")");
    put_times(out, least, most);
  } else if (!closed && most) {
    mlx_text_puts(out, "(");
    MLX_TRY(put_items(b, out, items));
    mlx_text_puts(out, " (\",\" ws ");
    MLX_TRY(put_items(b, out, items));
    mlx_text_puts(out, ")");
    put_times(out, least ? least - 1 : 0, most == UINT64_MAX ? most : most - 1);
    mlx_text_puts(out, least ? ")" : ")?");
  }
  mlx_text_puts(out, " ws \"]\"");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Strings and numbers

#define TWO_HOURS "([01] [0-9] | \"2\" [0-3])"
#define TIME                                                                                    \
  TWO_HOURS " \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,6})? (\"Z\" | [-+] " TWO_HOURS \
            " \":\" [0-5] [0-9])"
#define DATE                                                                                                 \
  "[0-9]{4} \"-\" (\"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]) | (\"04\" | \"06\" | \"09\" | \"11\") " \
  "\"-\" "                                                                                                   \
  "(\"0\" [1-9] | [12] [0-9] | \"30\") | (\"01\" | \"03\" | \"05\" | \"07\" | \"08\" | \"10\" | \"12\") "    \
  "\"-\" "                                                                                                   \
  "(\"0\" [1-9] | [12] [0-9] | \"3\" [01]))"
#define UUID "[0-9a-f]{8} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{12}"

static mlx_status_t put_format(builder_t *b, yyjson_val *format, mlx_text_t *out) {
  static const struct {
    const char *name, *gbnf;
  } rows[] = {{"date", DATE}, {"time", TIME}, {"date-time", DATE " \"T\" " TIME}, {"uuid", UUID}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (!yyjson_equals_str(format, rows[i].name)) continue;
    mlx_text_printf(out, "\"\\\"\" %s \"\\\"\"", rows[i].gbnf);
    return NULL;
  }
  return refuse(b, "format", "is supported for date, time, date-time and uuid only");
}

static mlx_status_t put_string(builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  yyjson_val *pattern = yyjson_obj_get(schema, "pattern"), *format = yyjson_obj_get(schema, "format");
  uint64_t min, max;
  MLX_TRY(read_count(b, schema, "minLength", 0, &min));
  MLX_TRY(read_count(b, schema, "maxLength", UINT64_MAX, &max));
  if (min > max) return malformed(b, "minLength", "is more than 'maxLength'");
  const bool has_length = min || max != UINT64_MAX;
  if (!!pattern + !!format + has_length > 1) {
    return refuse(b, pattern ? "pattern" : "format",
                  "beside another limit of the same text is not supported");
  }
  if (format) return put_format(b, format, out);
  if (!pattern) {
    mlx_text_puts(out, "\"\\\"\" char");
    put_times(out, min, max);
    mlx_text_puts(out, " \"\\\"\"");
    return NULL;
  }
  if (!yyjson_is_str(pattern)) return malformed(b, "pattern", "is no text");
  const char *problem;
  mlx_text_puts(out, "\"\\\"\" ");
  mlx_gbnf_pattern(out, yyjson_get_str(pattern), yyjson_get_len(pattern), &problem);
  mlx_text_puts(out, " \"\\\"\"");
  return problem ? refuse(b, "pattern", problem) : NULL;
}

static mlx_status_t read_bound(const builder_t *b, yyjson_val *schema, const char *word, double fallback,
                               double *out) {
  yyjson_val *value = yyjson_obj_get(schema, word);
  *out = value ? yyjson_get_num(value) : fallback;
  return value && !yyjson_is_num(value) ? malformed(b, word, "is no number") : NULL;
}

static mlx_status_t put_number(builder_t *b, yyjson_val *schema, bool whole, mlx_text_t *out) {
  mlx_bounds_t bounds;
  double above, below, step;
  MLX_TRY(read_bound(b, schema, "minimum", -INFINITY, &bounds.min));
  MLX_TRY(read_bound(b, schema, "maximum", INFINITY, &bounds.max));
  MLX_TRY(read_bound(b, schema, "exclusiveMinimum", -INFINITY, &above));
  MLX_TRY(read_bound(b, schema, "exclusiveMaximum", INFINITY, &below));
  MLX_TRY(read_bound(b, schema, "multipleOf", 1, &step));
  if (yyjson_obj_get(schema, "multipleOf") && (step != 1 || !whole))
    return refuse(b, "multipleOf", "is not supported");
  bounds.min_excluded = above >= bounds.min && above != -INFINITY;
  bounds.max_excluded = below <= bounds.max && below != INFINITY;
  if (bounds.min_excluded) bounds.min = above;
  if (bounds.max_excluded) bounds.max = below;
  mlx_text_puts(out, "(");
  const bool any = mlx_gbnf_number(out, &bounds, whole);
  mlx_text_puts(out, ")");
  if (any) return NULL;
  const char *word = "minimum";
  if (yyjson_obj_get(schema, "exclusiveMaximum")) word = "exclusiveMaximum";
  if (yyjson_obj_get(schema, "maximum")) word = "maximum";
  return refuse(b, word, "leaves no number of at most 15 digits");
}

// ----------------------------------------------------------------------------------------------------------
// Types

typedef enum kind {
  NULL_KIND = 1,
  BOOLEAN = 2,
  INTEGER = 4,
  FRACTION = 8,
  STRING = 16,
  ARRAY = 32,
  OBJECT = 64,
  ALL = 127
} kind_t;

static const struct {
  const char *name;
  unsigned kinds;
} types[] = {{"null", NULL_KIND}, {"boolean", BOOLEAN}, {"integer", INTEGER}, {"number", INTEGER | FRACTION},
             {"string", STRING},  {"array", ARRAY},     {"object", OBJECT}};

static unsigned kinds_of_name(yyjson_val *name) {
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    if (yyjson_equals_str(name, types[i].name)) return types[i].kinds;
  }
  return 0;
}

static unsigned kind_of_value(yyjson_val *value) {
  if (yyjson_is_null(value)) return NULL_KIND;
  if (yyjson_is_bool(value)) return BOOLEAN;
  if (yyjson_is_num(value)) return yyjson_get_num(value) == floor(yyjson_get_num(value)) ? INTEGER : FRACTION;
  return yyjson_is_str(value) ? STRING : yyjson_is_arr(value) ? ARRAY : OBJECT;
}

// 0: the word 'type' is malformed.
static unsigned kinds_of_type(yyjson_val *type) {
  if (!type) return ALL;
  if (yyjson_is_str(type)) return kinds_of_name(type);
  unsigned kinds = 0;
  yyjson_arr_iter iter = yyjson_arr_iter_with(type);
  for (yyjson_val *name; (name = yyjson_arr_iter_next(&iter));) {
    if (!kinds_of_name(name)) return 0;
    kinds |= kinds_of_name(name);
  }
  return kinds;
}

// Without a type, the words tell which one is meant; a value of another type would be right too, and is not
// written.
static unsigned kinds_of_words(yyjson_val *schema) {
  static const struct {
    const char *const *words;
    unsigned kinds;
  } rows[] = {{object_words, OBJECT},
              {array_words, ARRAY},
              {string_words, STRING},
              {number_words, INTEGER | FRACTION}};
  unsigned kinds = 0;
  yyjson_obj_iter iter = yyjson_obj_iter_with(schema);
  for (yyjson_val *key; (key = yyjson_obj_iter_next(&iter));) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
      if (is_one_of(rows[i].words, yyjson_get_str(key))) kinds |= rows[i].kinds;
    }
  }
  return kinds;
}

static mlx_status_t put_kinds(builder_t *b, yyjson_val *schema, unsigned kinds, mlx_text_t *out) {
  const char *const *const words[] = {object_words, array_words, string_words, number_words};
  const char *all[40];
  size_t count = 0;
  for (size_t i = 0; i < 4; ++i) {
    for (const char *const *word = words[i]; *word; ++word) all[count++] = *word;
  }
  all[count] = NULL;
  MLX_TRY(check_words(b, schema, all, NULL));
  if (yyjson_obj_get(schema, "allOf") && kinds != OBJECT)
    return refuse(b, "allOf", "is supported for objects only");
  const char *separator = "";
  for (unsigned kind = 1; kind <= OBJECT; kind <<= 1) {
    if (!(kinds & kind) || (kind == INTEGER && kinds & FRACTION)) continue;
    mlx_text_puts(out, separator);
    separator = " | ";
    switch (kind) {
      case NULL_KIND: mlx_text_puts(out, "\"null\""); break;
      case BOOLEAN: mlx_text_puts(out, "\"true\" | \"false\""); break;
      case INTEGER: MLX_TRY(put_number(b, schema, true, out)); break;
      case FRACTION: MLX_TRY(put_number(b, schema, false, out)); break;
      case STRING: MLX_TRY(put_string(b, schema, out)); break;
      case ARRAY: MLX_TRY(put_array(b, schema, out)); break;
      default: MLX_TRY(put_object(b, schema, out)); break;
    }
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Alternatives

static mlx_status_t put_enum(builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  yyjson_val *list = yyjson_obj_get(schema, "enum"), *only = yyjson_obj_get(schema, "const"), *value;
  MLX_TRY(check_words(b, schema, enum_words, list ? "enum" : "const"));
  const unsigned kinds = kinds_of_type(yyjson_obj_get(schema, "type"));
  if (!kinds) return malformed(b, "type", "is no type");
  if (list && only) return refuse(b, "const", "is not supported beside 'enum'");
  if (only) {
    if (!(kind_of_value(only) & kinds)) return malformed(b, "const", "is not of its 'type'");
    return put_value(out, only);
  }
  if (!yyjson_is_arr(list)) return malformed(b, "enum", "is no list");
  bool any = false;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((value = yyjson_arr_iter_next(&iter))) {
    if (!(kind_of_value(value) & kinds)) continue;
    mlx_text_puts(out, any ? " | " : "");
    MLX_TRY(put_value(out, value));
    any = true;
  }
  return any ? NULL : malformed(b, "enum", "has no value of its 'type'");
}

static bool are_disjoint(const builder_t *b, yyjson_val *x, yyjson_val *y, int depth);

static yyjson_val *without_refs(const builder_t *b, yyjson_val *schema) {
  for (int i = 0; i < MAX_DEPTH && yyjson_obj_get(schema, "$ref"); ++i) {
    mlx_status_t status = resolve(b, yyjson_obj_get(schema, "$ref"), &schema);
    mlx_status_free(status);
    if (status) return NULL;
  }
  return schema;
}

static bool has_value(yyjson_val *schema, yyjson_val *value) {  // of its enum or const
  yyjson_val *list = yyjson_obj_get(schema, "enum"), *item;
  if (yyjson_equals(yyjson_obj_get(schema, "const"), value)) return true;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (yyjson_equals(item, value)) return true;
  }
  return false;
}

static bool
  requires(yyjson_val *schema, yyjson_val *name)
{
  yyjson_val *item;
  yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(schema, "required"));
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (yyjson_equals(item, name)) return true;
  }
  return false;
}

static bool share_no_value(yyjson_val *x, yyjson_val *y) {  // both have an enum or a const
  yyjson_val *only = yyjson_obj_get(x, "const"), *item;
  if (only && has_value(y, only)) return false;
  yyjson_arr_iter iter = yyjson_arr_iter_with(yyjson_obj_get(x, "enum"));
  while ((item = yyjson_arr_iter_next(&iter))) {
    if (has_value(y, item)) return false;
  }
  return true;
}

static unsigned kinds_of(yyjson_val *schema) {
  yyjson_val *only = yyjson_obj_get(schema, "const"), *list = yyjson_obj_get(schema, "enum"), *item;
  if (only) return kind_of_value(only);
  if (!list) return kinds_of_type(yyjson_obj_get(schema, "type"));
  unsigned kinds = 0;
  yyjson_arr_iter iter = yyjson_arr_iter_with(list);
  while ((item = yyjson_arr_iter_next(&iter))) kinds |= kind_of_value(item);
  return kinds;
}

// True when no value can be right for both: by type, by listed values, or by a property that both require and
// that tells them apart.
static bool are_disjoint(const builder_t *b, yyjson_val *x, yyjson_val *y, int depth) {
  x = without_refs(b, x);
  y = without_refs(b, y);
  if (depth > 8 || !yyjson_is_obj(x) || !yyjson_is_obj(y)) return false;
  if (!(kinds_of(x) & kinds_of(y))) return true;
  const bool listed_x = yyjson_obj_get(x, "const") || yyjson_obj_get(x, "enum");
  const bool listed_y = yyjson_obj_get(y, "const") || yyjson_obj_get(y, "enum");
  if (listed_x && listed_y) return share_no_value(x, y);
  if ((kinds_of(x) & kinds_of(y)) != OBJECT) return false;
  yyjson_val *of_x = yyjson_obj_get(x, "properties"), *of_y = yyjson_obj_get(y, "properties"), *key;
  yyjson_obj_iter iter = yyjson_obj_iter_with(of_x);
  while ((key = yyjson_obj_iter_next(&iter))) {
    yyjson_val *other = yyjson_obj_getn(of_y, yyjson_get_str(key), yyjson_get_len(key));
    if (other && requires(x, key) && requires(y, key) &&
        are_disjoint(b, yyjson_obj_iter_get_val(key), other, depth + 1)) {
      return true;
    }
  }
  return false;
}

static mlx_status_t put_alternatives(builder_t *b, yyjson_val *schema, const char *word, mlx_text_t *out) {
  yyjson_val *list = yyjson_obj_get(schema, word), *item;
  MLX_TRY(check_words(b, schema, (const char *const[]){word, NULL}, word));
  if (!yyjson_is_arr(list) || !yyjson_arr_size(list)) return malformed(b, word, "is no list of schemas");
  if (yyjson_arr_size(list) > 200) return refuse(b, word, "may have 200 alternatives at most");
  for (size_t i = 0; i < yyjson_arr_size(list); ++i) {
    char index[24];
    snprintf(index, sizeof index, "%zu", i);
    item = yyjson_arr_get(list, i);
    mlx_text_puts(out, i ? " | " : "");
    MLX_TRY(put_rule(b, out, item, word, index));
    for (size_t j = 0; j < i && *word == 'o'; ++j) {
      if (are_disjoint(b, yyjson_arr_get(list, j), item, 0)) continue;
      return mlx_status_hint(refuse(b, word, "has alternatives of which two may hold at once"),
                             "if that is meant to be fine, write anyOf");
    }
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Schemas

static mlx_status_t put_body(builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  if (yyjson_is_true(schema)) {
    mlx_text_puts(out, "value");
    return NULL;
  }
  if (yyjson_is_false(schema))
    return refuse(b, "false", "is a schema that nothing fits, which is not supported");
  if (!yyjson_is_obj(schema)) return malformed(b, "schema", "is neither an object nor true");
  yyjson_val *ref = yyjson_obj_get(schema, "$ref"), *target;
  if (ref) {
    MLX_TRY(check_words(b, schema, (const char *const[]){"$ref", NULL}, "$ref"));
    MLX_TRY(resolve(b, ref, &target));
    return put_rule(b, out, target, yyjson_get_str(ref), "");
  }
  if (yyjson_obj_get(schema, "enum") || yyjson_obj_get(schema, "const")) return put_enum(b, schema, out);
  if (yyjson_obj_get(schema, "anyOf")) return put_alternatives(b, schema, "anyOf", out);
  if (yyjson_obj_get(schema, "oneOf")) return put_alternatives(b, schema, "oneOf", out);
  yyjson_val *type = yyjson_obj_get(schema, "type");
  const unsigned kinds = type ? kinds_of_type(type) : kinds_of_words(schema);
  if (type && !kinds) {
    return malformed(b, "type",
                     "is no type: null, boolean, integer, number, string, array, object or a list of them");
  }
  if (kinds) return put_kinds(b, schema, kinds, out);
  MLX_TRY(check_words(b, schema, (const char *const[]){NULL}, NULL));
  mlx_text_puts(out, "value");
  return NULL;
}

static const char common[] =
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} "
    "| [dD] [0-7] [0-9a-fA-F]{2}))\n"
    "namechar ::= [^\"\\\\\\x00-\\x1F\\x7F]\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?\n"
    "member ::= string \":\" ws value\n"
    "value ::= \"{\" ws (member (\",\" ws member)*)? ws \"}\" | \"[\" ws (value (\",\" ws value)*)? ws \"]\" "
    "| string | number | "
    "\"true\" | \"false\" | \"null\"\n";

static mlx_status_t build(builder_t *b) {
  size_t rule;
  b->at = 1;  // no parent
  MLX_TRY(rule_of(b, b->root, "#", "", &rule));
  mlx_text_puts(&b->out, "root ::= s0\n");
  for (b->at = 0; b->at < b->count; ++b->at) {
    mlx_text_t body = {0};
    mlx_status_t status = put_body(b, b->entries[b->at].schema, &body);
    if (!status) status = mlx_text_finish(&body);
    if (!status) mlx_text_printf(&b->out, "s%zu ::= %s\n", b->at, body.data ? body.data : "");
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
  builder_t b = {.name = name, .root = json.root};
  mlx_status_t status = build(&b);
  if (!status) status = mlx_text_take(&b.out, out_gbnf, out_length);
  for (size_t i = 0; i < b.count; ++i) mlx_free(b.entries[i].path);
  mlx_free(b.entries);
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
  return mlx_status_hint(status, "the schema refers to itself in a way that no JSON text can follow");
}
