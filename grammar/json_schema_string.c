// Strings: lengths, patterns and formats. All of them are automata, so they work together.
#include "grammar/json_schema_string.h"

#include <string.h>

#include "base/memory.h"
#include "grammar/json_schema_excluded.h"
#include "grammar/regex.h"

#define MAX_PATTERNS 8  // of one string

// ----------------------------------------------------------------------------------------------------------
// Formats

// clang-format off
#define HOUR "([01][0-9]|2[0-3])"
#define MINUTE "[0-5][0-9]"
#define TIME HOUR ":" MINUTE ":" MINUTE "(\\.[0-9]{1,6})?(Z|[-+]" HOUR ":" MINUTE ")"
// Years from 1000 on: many libraries have no year 0. 29 February is left out.
#define DATE "[1-9][0-9]{3}-(02-(0[1-9]|1[0-9]|2[0-8])|(04|06|09|11)-(0[1-9]|[12][0-9]|30)|" \
             "(01|03|05|07|08|10|12)-(0[1-9]|[12][0-9]|3[01]))"
#define LABEL "[a-zA-Z0-9]([-a-zA-Z0-9]{0,30}[a-zA-Z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,4}\\.[a-zA-Z]{2,20}"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(\\." OCTET "){3}"
#define HEX4 "[0-9a-fA-F]{1,4}"
// Eight groups, or :: for the groups that are left out.
#define IPV6 "((" HEX4 ":){7}" HEX4 "|(" HEX4 ":){1,6}:" HEX4 "|::(" HEX4 "(:" HEX4 "){0,5})?)"
// Every other character is percent-encoded. The longest URI has fewer than 2083 characters, pydantic's limit.
#define PATH_CHARACTER "([-A-Za-z0-9._~!$&'()*+,;=:@]|%[0-9A-F]{2})"
#define URI "[a-z][a-z0-9]{1,10}(://(" HOST "|localhost|" IPV4 ")(:[1-9][0-9]{0,3})?(/" PATH_CHARACTER "{0,60}){0,8}" \
            "(\\?(" PATH_CHARACTER "|/){0,100})?(#(" PATH_CHARACTER "|/){0,40})?|:[A-Za-z0-9][-A-Za-z0-9._~@:+]{0,100})"
#define UUID "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
#define EMAIL "[a-zA-Z0-9_+-]{1,20}(\\.[a-zA-Z0-9_+-]{1,20}){0,2}@" HOST
#define DURATION_TIME "T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S)"
#define DURATION_DATE "([0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|[0-9]{1,4}D)"
#define DURATION "P(" DURATION_DATE "(" DURATION_TIME ")?|" DURATION_TIME "|[0-9]{1,4}W)"
#define BASE64 "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
// clang-format on

static const struct format {
  const char *name, *regex;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"uuid", UUID},
    {"email", EMAIL},
    {"idn-email", EMAIL},
    {"hostname", HOST},
    {"idn-hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"iri", URI},
    {"uri-reference", URI},
    {"iri-reference", URI},
    {"byte", BASE64},
    {"json-pointer", "(/([^/~]|~[01])*)*"},
};

const char *mlx_schema_format_regex(const char *format) {
  for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
    if (!strcmp(formats[i].name, format)) return formats[i].regex;
  }
  return NULL;
}

// Formats of OpenAPI that say how a text is shown or sent, not which texts are valid.
static bool fits_all_texts(const char *format) {
  return !strcmp(format, "password") || !strcmp(format, "binary") || !strcmp(format, "string");
}

// ----------------------------------------------------------------------------------------------------------
// Patterns

mlx_status_t mlx_schema_parse_regex(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                                    const char *regex, size_t length, mlx_nfa_t *out) {
  const char *problem;
  MLX_TRY(mlx_regex_parse(regex, length, !strcmp(keyword, "format"), out, &problem));
  return problem ? mlx_schema_unsupported(b, schema, keyword, problem) : NULL;
}

typedef struct patterns {
  mlx_nfa_name_t *excluded;
  size_t excluded_count;
  struct {
    yyjson_val *schema;
    const char *keyword, *regex;
    size_t length;
  } items[MAX_PATTERNS];
  size_t count;
} patterns_t;

static mlx_status_t add_pattern(const mlx_schema_builder_t *b, patterns_t *p, yyjson_val *schema,
                                const char *keyword, const char *regex, size_t length) {
  for (size_t i = 0; i < p->count; ++i) {
    if (p->items[i].length == length && !memcmp(p->items[i].regex, regex, length) &&
        !strcmp(p->items[i].keyword, keyword))
      return NULL;
  }
  if (p->count == MAX_PATTERNS)
    return mlx_schema_unsupported(b, schema, keyword, "is one of more than 8 for one string");
  p->items[p->count].schema = schema;
  p->items[p->count].keyword = keyword;
  p->items[p->count].regex = regex;
  p->items[p->count++].length = length;
  return NULL;
}

// A format that is not known is an annotation, as the standard has it. Texts of any kind fit some formats.
static mlx_status_t add_patterns_of(mlx_schema_builder_t *b, patterns_t *p, yyjson_val *schema) {
  yyjson_val *pattern = yyjson_obj_get(schema, "pattern"), *format = yyjson_obj_get(schema, "format");
  if (pattern && !yyjson_is_str(pattern)) return mlx_schema_invalid(b, schema, "pattern", "is not a string");
  if (format && !yyjson_is_str(format)) return mlx_schema_invalid(b, schema, "format", "is not a string");
  const char *regex = format ? mlx_schema_format_regex(yyjson_get_str(format)) : NULL;
  if (pattern)
    MLX_TRY(add_pattern(b, p, schema, "pattern", yyjson_get_str(pattern), yyjson_get_len(pattern)));
  if (format && !regex && !fits_all_texts(yyjson_get_str(format))) mlx_schema_note_format(b, schema);
  return regex ? add_pattern(b, p, schema, "format", regex, strlen(regex)) : NULL;
}

// Writes the rules of the product of |p| and the lengths. Fails if it is empty or too large.
static mlx_status_t put_product(mlx_schema_builder_t *b, const patterns_t *p, uint64_t min, uint64_t max,
                                size_t *out_rule) {
  mlx_nfa_t nfas[MAX_PATTERNS + 1] = {{0}};
  const mlx_nfa_t *pointers[MAX_PATTERNS + 1];
  const char *problem = NULL;
  mlx_status_t status =
      p->excluded_count ? mlx_nfa_exclude_names(p->excluded, p->excluded_count, &nfas[p->count]) : NULL;
  pointers[p->count] = &nfas[p->count];
  for (size_t i = 0; i < p->count && !status; ++i) {
    status = mlx_schema_parse_regex(b, p->items[i].schema, p->items[i].keyword, p->items[i].regex,
                                    p->items[i].length, &nfas[i]);
    pointers[i] = &nfas[i];
  }
  if (!status) {
    b->nfas.out = &b->out;
    b->nfas.budget = b->budget;
    status = mlx_nfa_write(&b->nfas, pointers, p->count + (p->excluded_count > 0), min, max,
                           MLX_NFA_IN_STRING, out_rule, &problem);
  }
  for (size_t i = 0; i <= p->count; ++i) mlx_nfa_free(&nfas[i]);
  MLX_TRY(status);
  if (problem && !strcmp(problem, MLX_NFA_NO_TEXT)) *out_rule = SIZE_MAX;
  if (!problem || *out_rule == SIZE_MAX) return NULL;
  return mlx_schema_unsupported(b, p->count ? p->items[0].schema : b->root,
                                p->count ? p->items[0].keyword : "enum", problem);
}

// A text that describes the product: equal strings share their rules.
static mlx_status_t describe(const patterns_t *p, uint64_t min, uint64_t max, mlx_text_t *out) {
  for (size_t i = 0; i < p->count; ++i) {
    mlx_text_printf(out, "%s %zu ", p->items[i].keyword, p->items[i].length);
    mlx_text_append(out, p->items[i].regex, p->items[i].length);
  }
  mlx_text_printf(out, "%llu %llu", (unsigned long long)min, (unsigned long long)max);
  for (size_t i = 0; i < p->excluded_count; ++i)
    mlx_text_json_string(out, p->excluded[i].bytes, p->excluded[i].length);
  return mlx_text_finish(out);
}

// The rule of the product: SIZE_MAX if it is empty.
static mlx_status_t find_product(mlx_schema_builder_t *b, const patterns_t *p, uint64_t min, uint64_t max,
                                 size_t *out_rule) {
  mlx_text_t key = {0};
  const char *kept;
  uint32_t known;
  mlx_status_t status = describe(p, min, max, &key);
  if (!status && mlx_name_table_find(&b->strings, key.data, key.length, &known)) {
    *out_rule = known == UINT32_MAX ? SIZE_MAX : known;
  } else {
    if (!status) status = put_product(b, p, min, max, out_rule);
    if (!status) status = mlx_schema_keep_text(b, key.data, key.length, &kept);
    if (!status)
      status = mlx_name_table_add(&b->strings, kept, key.length,
                                  *out_rule == SIZE_MAX ? UINT32_MAX : (uint32_t)*out_rule);
  }
  mlx_text_clear(&key);
  return status;
}

mlx_status_t mlx_schema_put_string(mlx_schema_builder_t *b, const mlx_conjunction_t *c, mlx_text_t *out) {
  patterns_t patterns = {.count = 0};
  uint64_t min, max;
  size_t rule = SIZE_MAX;
  MLX_TRY(mlx_schema_read_count(b, c, "minLength", 0, &min));
  MLX_TRY(mlx_schema_read_count(b, c, "maxLength", UINT64_MAX, &max));
  MLX_TRY(mlx_schema_check_counts(b, c, "minLength", "maxLength"));
  for (size_t i = 0; i < c->count; ++i) MLX_TRY(add_patterns_of(b, &patterns, c->terms[i].schema));
  mlx_status_t status = mlx_schema_excluded_strings(c, &patterns.excluded, &patterns.excluded_count);
  if (!status && !patterns.count && !patterns.excluded_count && min <= max) {
    mlx_text_puts(out, "\"\\\"\" char");
    mlx_gbnf_put_repetition(out, min, max);
    mlx_text_puts(out, " \"\\\"\"");
    return NULL;
  }
  if (!status && min <= max) status = find_product(b, &patterns, min, max, &rule);
  mlx_free(patterns.excluded);
  MLX_TRY(status);
  if (rule == SIZE_MAX) {
    mlx_text_puts(out, "never");
  } else {
    mlx_text_printf(out, "\"\\\"\" p%zu \"\\\"\"", rule);
  }
  return NULL;
}

static size_t count_characters(const char *text, size_t length) {
  size_t count = 0;
  for (size_t i = 0; i < length; ++i) count += (text[i] & 0xc0) != 0x80;
  return count;
}

mlx_status_t mlx_schema_string_fits(mlx_schema_builder_t *b, yyjson_val *schema, yyjson_val *value,
                                    bool *out) {
  patterns_t patterns = {.count = 0};
  const mlx_conjunction_t only = {.terms = &(mlx_schema_term_t){schema, 0}, .count = 1};
  uint64_t min, max;
  MLX_TRY(mlx_schema_read_count(b, &only, "minLength", 0, &min));
  MLX_TRY(mlx_schema_read_count(b, &only, "maxLength", UINT64_MAX, &max));
  MLX_TRY(add_patterns_of(b, &patterns, schema));
  const size_t length = count_characters(yyjson_get_str(value), yyjson_get_len(value));
  *out = length >= min && length <= max;
  for (size_t i = 0; i < patterns.count && *out; ++i) {
    // Listed values are their own format: only a pattern can exclude one.
    if (!strcmp(patterns.items[i].keyword, "format")) continue;
    mlx_nfa_t nfa;
    MLX_TRY(mlx_schema_parse_regex(b, schema, "pattern", patterns.items[i].regex, patterns.items[i].length,
                                   &nfa));
    mlx_status_t status = mlx_nfa_accepts(&nfa, yyjson_get_str(value), yyjson_get_len(value), out);
    mlx_nfa_free(&nfa);
    MLX_TRY(status);
  }
  return NULL;
}
