// JSON schemas: text sampled under a schema satisfies it, as checked by an independent validator. Unsupported
// keywords are errors that name the keyword.
#include <math.h>
#include <oniguruma.h>
#include <yyjson.h>

#include "grammar/json_schema.h"
#include "grammar/json_schema_pattern.h"
#include "tests/random_text.h"

// ----------------------------------------------------------------------------------------------------------
// The validator

static bool fits(yyjson_val *root, yyjson_val *schema, yyjson_val *value);

static bool is_of_type(const char *type, yyjson_val *v) {
  if (!strcmp(type, "null")) return yyjson_is_null(v);
  if (!strcmp(type, "boolean")) return yyjson_is_bool(v);
  if (!strcmp(type, "integer")) return yyjson_is_num(v) && yyjson_get_num(v) == floor(yyjson_get_num(v));
  if (!strcmp(type, "number")) return yyjson_is_num(v);
  if (!strcmp(type, "string")) return yyjson_is_str(v);
  if (!strcmp(type, "array")) return yyjson_is_arr(v);
  return yyjson_is_obj(v);
}

static bool fits_type(yyjson_val *type, yyjson_val *v) {
  if (!type) return true;
  if (yyjson_is_str(type)) return is_of_type(yyjson_get_str(type), v);
  for (size_t i = 0; i < yyjson_arr_size(type); ++i) {
    if (is_of_type(yyjson_get_str(yyjson_arr_get(type, i)), v)) return true;
  }
  return false;
}

static bool fits_pattern(const char *pattern, const char *text, size_t length) {
  OnigRegex regex;
  OnigErrorInfo info;
  const OnigUChar *p = (const OnigUChar *)pattern, *t = (const OnigUChar *)text;
  if (onig_new(&regex, p, p + strlen(pattern), ONIG_OPTION_SINGLELINE, ONIG_ENCODING_UTF8,
               ONIG_SYNTAX_ONIGURUMA, &info))
    return false;
  const int found = onig_search(regex, t, t + length, t, t + length, NULL, ONIG_OPTION_NONE);
  onig_free(regex);
  return found >= 0;
}

static bool is_date(const char *t) {
  static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  int year, month, day, end = 0;
  if (sscanf(t, "%4d-%2d-%2d%n", &year, &month, &day, &end) != 3 || end != 10 || month < 1 || month > 12)
    return false;
  const bool leap = (year % 4 == 0 && year % 100) || year % 400 == 0;
  return day >= 1 && day <= days[month - 1] - (month == 2 && !leap);
}

static bool is_time(const char *t) {
  return fits_pattern(
      "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])$", t,
      strlen(t));
}

static bool fits_format(const char *format, const char *text) {
  if (!strcmp(format, "date")) return strlen(text) == 10 && is_date(text);
  if (!strcmp(format, "time")) return is_time(text);
  if (!strcmp(format, "date-time"))
    return strlen(text) > 11 && text[10] == 'T' && is_date(text) && is_time(text + 11);
  return fits_pattern("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", text, strlen(text));
}

static size_t count_characters(const char *text, size_t length) {
  size_t count = 0;
  for (size_t i = 0; i < length; ++i) count += (text[i] & 0xc0) != 0x80;
  return count;
}

static double number_or(yyjson_val *schema, const char *key, double fallback) {
  yyjson_val *v = yyjson_obj_get(schema, key);
  return v ? yyjson_get_num(v) : fallback;
}

static bool fits_string(yyjson_val *s, yyjson_val *v) {
  const char *text = yyjson_get_str(v), *pattern = yyjson_get_str(yyjson_obj_get(s, "pattern")),
             *format = yyjson_get_str(yyjson_obj_get(s, "format"));
  const double count = (double)count_characters(text, yyjson_get_len(v));
  if (count < number_or(s, "minLength", 0) || count > number_or(s, "maxLength", INFINITY)) return false;
  return (!pattern || fits_pattern(pattern, text, yyjson_get_len(v))) &&
         (!format || fits_format(format, text));
}

static bool fits_number(yyjson_val *s, yyjson_val *v) {
  const double n = yyjson_get_num(v);
  return n >= number_or(s, "minimum", -INFINITY) && n <= number_or(s, "maximum", INFINITY) &&
         n > number_or(s, "exclusiveMinimum", -INFINITY) && n < number_or(s, "exclusiveMaximum", INFINITY);
}

static bool fits_array(yyjson_val *root, yyjson_val *s, yyjson_val *v) {
  yyjson_val *prefix = yyjson_obj_get(s, "prefixItems"), *items = yyjson_obj_get(s, "items");
  const size_t count = yyjson_arr_size(v);
  if ((double)count < number_or(s, "minItems", 0) || (double)count > number_or(s, "maxItems", INFINITY))
    return false;
  for (size_t i = 0; i < count; ++i) {
    yyjson_val *schema = i < yyjson_arr_size(prefix) ? yyjson_arr_get(prefix, i) : items;
    if (schema && !fits(root, schema, yyjson_arr_get(v, i))) return false;
  }
  return true;
}

static bool fits_object(yyjson_val *root, yyjson_val *s, yyjson_val *v) {
  yyjson_val *properties = yyjson_obj_get(s, "properties"), *required = yyjson_obj_get(s, "required"),
             *additional = yyjson_obj_get(s, "additionalProperties");
  for (size_t i = 0; i < yyjson_arr_size(required); ++i) {
    if (!yyjson_obj_get(v, yyjson_get_str(yyjson_arr_get(required, i)))) return false;
  }
  size_t index, count;
  yyjson_val *key, *item;
  yyjson_obj_foreach(v, index, count, key, item) {
    yyjson_val *schema = yyjson_obj_getn(properties, yyjson_get_str(key), yyjson_get_len(key));
    if (!schema) schema = additional;
    if (schema && !fits(root, schema, item)) return false;
  }
  return true;
}

static int count_fitting(yyjson_val *root, yyjson_val *list, yyjson_val *v) {
  int count = 0;
  for (size_t i = 0; i < yyjson_arr_size(list); ++i) count += fits(root, yyjson_arr_get(list, i), v);
  return count;
}

static bool fits(yyjson_val *root, yyjson_val *s, yyjson_val *v) {
  if (yyjson_is_bool(s)) return yyjson_get_bool(s);
  yyjson_val *ref = yyjson_obj_get(s, "$ref"), *only = yyjson_obj_get(s, "const"),
             *list = yyjson_obj_get(s, "enum");
  if (ref && !fits(root, yyjson_get_str(ref)[1] ? yyjson_ptr_get(root, yyjson_get_str(ref) + 1) : root, v))
    return false;
  if (only && !yyjson_equals(only, v)) return false;
  bool listed = !list;
  for (size_t i = 0; i < yyjson_arr_size(list); ++i) listed |= yyjson_equals(yyjson_arr_get(list, i), v);
  if (!listed || !fits_type(yyjson_obj_get(s, "type"), v)) return false;
  yyjson_val *any = yyjson_obj_get(s, "anyOf"), *one = yyjson_obj_get(s, "oneOf"),
             *all = yyjson_obj_get(s, "allOf");
  if (any && !count_fitting(root, any, v)) return false;
  if (one && count_fitting(root, one, v) != 1) return false;
  if (all && count_fitting(root, all, v) != (int)yyjson_arr_size(all)) return false;
  if (yyjson_is_str(v)) return fits_string(s, v);
  if (yyjson_is_num(v)) return fits_number(s, v);
  if (yyjson_is_arr(v)) return fits_array(root, s, v);
  return !yyjson_is_obj(v) || fits_object(root, s, v);
}

// ----------------------------------------------------------------------------------------------------------

static const char *const schemas[] = {
    "{}",
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":120},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
    "\"minLength\":1,\"maxLength\":8},\"maxItems\":4}},\"required\":[\"name\",\"age\"]}",
    "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"boolean\"},\"c\":{\"type\":[\"number\","
    "\"string\"]}},\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"na\":{\"const\":1},\"name\":{\"const\":2},"
    "\"naïve \\\"q\\\"\":{\"const\":3}},\"required\":[\"name\"],"
    "\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}",
    "{\"type\":\"object\",\"required\":[\"x\",\"y\"],\"additionalProperties\":{\"type\":\"number\","
    "\"minimum\":-2.5,\"exclusiveMaximum\":7}}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"string\","
    "\"format\":\"time\"},{\"type\":\"string\",\"format\":\"date-time\"},{\"type\":\"string\","
    "\"format\":\"uuid\"}],\"items\":{\"type\":\"boolean\"},\"minItems\":5,\"maxItems\":7}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"grün\",3,null,{\"a\":[1,2]},\"a\\\"b\\\\c\\n\"]},"
    "\"minItems\":2,\"maxItems\":5}",
    "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"integer\",\"exclusiveMinimum\":-1200,"
    "\"exclusiveMaximum\":99}}",
    "{\"type\":\"array\",\"minItems\":3,\"items\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1}}",
    "{\"type\":\"array\",\"minItems\":3,\"items\":{\"type\":\"number\",\"exclusiveMinimum\":-3,"
    "\"exclusiveMaximum\":0}}",
    "{\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"integer\"},"
    "\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"value\","
    "\"children\"]}},\"$ref\":\"#/$defs/tree\"}",
    "{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}},"
    "\"required\":[\"next\"],\"additionalProperties\":false}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"number\"},{\"type\":\"array\","
    "\"items\":{\"type\":\"integer\"},\"maxItems\":0}]}",
    "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"circle\"},"
    "\"r\":{\"type\":\"number\"}},\"required\":[\"kind\",\"r\"]},{\"type\":\"object\","
    "\"properties\":{\"kind\":{\"const\":\"box\"},\"w\":{\"type\":\"number\"}},\"required\":[\"kind\","
    "\"w\"]},{\"type\":\"null\"}]}",
    "{\"definitions\":{\"id\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"}},"
    "\"required\":[\"id\"]}},\"type\":\"object\",\"allOf\":[{\"$ref\":\"#/definitions/id\"},"
    "{\"properties\":{\"name\":{\"type\":\"string\"}},\"required\":[\"name\"]}],"
    "\"properties\":{\"note\":{\"type\":\"string\"}}}",
    "{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"string\","
    "\"pattern\":\"^[A-Z]{2,3}-\\\\d{4}(\\\\.[a-f0-9]+|_\\\\w*)?$\"}}",
    "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"string\","
    "\"pattern\":\"^(?:[^a-z\\\\s]|é|\\\\\\\\|\\\"|\\\\n)+$\"}}",
    "{\"type\":\"string\",\"pattern\":\"^(cat|dog)s?\"}",
    "{\"title\":\"a\",\"description\":\"b\",\"default\":1,\"type\":\"string\",\"minLength\":4,"
    "\"maxLength\":12}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},true],\"items\":false}",
    "{\"type\":\"object\",\"properties\":{\"a/b\":{\"type\":\"object\","
    "\"properties\":{\"~c\":{\"type\":\"integer\",\"minimum\":7,\"maximum\":7}},\"required\":[\"~c\"]},"
    "\"d\":{\"$ref\":\"#/properties/a~1b/properties/~0c\"}},\"required\":[\"a/b\",\"d\"]}",
};
#define SCHEMAS (sizeof schemas / sizeof *schemas)

static void check_text(size_t number, yyjson_val *root, int seed, const mlx_text_t *text) {
  yyjson_read_err error;
  yyjson_doc *doc = yyjson_read_opts(text->data, text->length, 0, NULL, &error);
  if (!doc)
    CHECK_FAIL("schema %zu, seed %d: %s: %.*s", number, seed, error.msg, (int)text->length, text->data);
  if (!fits(root, root, yyjson_doc_get_root(doc)))
    CHECK_FAIL("schema %zu, seed %d does not fit: %.*s", number, seed, (int)text->length, text->data);
  yyjson_doc_free(doc);
}

static void write_many(random_writer_t *w, const char *vocabulary, int each) {
  size_t texts = 0, bytes = 0;
  for (size_t i = 0; i < SCHEMAS; ++i) {
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    yyjson_doc *schema = yyjson_read(schemas[i], strlen(schemas[i]), 0);
    CHECK(schema);
    mlx_status_t status = mlx_grammar_create_from_schema("schema", schemas[i], strlen(schemas[i]), &grammar);
    if (status) CHECK_FAIL("schema %zu: %s", i, mlx_status_message(status));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    for (int seed = 0; seed < each; ++seed) {
      mlx_sampling_t options;
      mlx_sampling_initialize(&options);
      options.seed = (uint64_t)seed;
      options.temperature = seed % 3 ? 1.5 : 0.8;
      if (seed % 8 == 1) options.top_k = 0, options.top_p = 1, options.min_p = 0;
      mlx_text_t text = random_writer_write(w, matcher, &options);
      check_text(i, yyjson_doc_get_root(schema), seed, &text);
      ++texts;
      bytes += text.length;
      mlx_text_clear(&text);
    }
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
    yyjson_doc_free(schema);
  }
  fprintf(stderr, "  %s: %zu texts of %zu schemas, %zu bytes, all valid; %.3f ms per mask on average\n",
          vocabulary, texts, SCHEMAS, bytes, 1e3 * w->mask_seconds / (double)w->mask_count);
}

TEST(text_sampled_under_a_schema_satisfies_it) {
  random_writer_t tiny = random_writer_tiny(), smollm2 = random_writer_smollm2();
  write_many(&tiny, "tiny", MLXCEL_SANITIZED ? 30 : 250);
  write_many(&smollm2, "SmolLM2", MLXCEL_SANITIZED ? 2 : 12);
  random_writer_close(&tiny);
  random_writer_close(&smollm2);
}

static bool accepts(mlx_matcher_t *matcher, const char *text) {
  bool accepted;
  mlx_matcher_restart(matcher);
  CHECK_OK(mlx_matcher_accept(matcher, text, strlen(text), &accepted));
  return accepted && mlx_matcher_is_complete(matcher);
}

TEST(an_integer_range_accepts_exactly_its_integers) {
  uint64_t random = 3;
  for (int round = 0; round < 200; ++round) {
    int low = (int)(random_next(&random) % 2200) - 1100,
        high = low + (int)(random_next(&random) % (round % 2 ? 20 : 1500));
    char schema[128];
    snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", low, high);
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    CHECK_OK(mlx_grammar_create_from_schema("schema", schema, strlen(schema), &grammar));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    for (int n = -1300; n < 2800; ++n) {
      char text[16];
      snprintf(text, sizeof text, "%d", n);
      if (accepts(matcher, text) != (n >= low && n <= high))
        CHECK_FAIL("the grammar is wrong about %d in the range %d to %d", n, low, high);
    }
    CHECK(!accepts(matcher, "-0") && !accepts(matcher, "007"));
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
  }
}

TEST(valid_texts_are_accepted_and_invalid_texts_rejected) {
  static const struct {
    const char *schema, *good[4], *bad[6];
  } rows[] = {
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
       "\"required\":[\"b\"]}",
       {"{\"a\":1,\"b\":\"x\"}", "{\"b\": \"\\u00e9\"}", "{\n  \"a\": -5,\n  \"b\": \"é\"\n}"},
       {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"b\":\"x\",\"c\":1}", "{\"a\":1.5,\"b\":\"x\"}",
        "{\"b\":\"\\ud800\"}"}},
      {"{\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":true}",
       {"{\"ab\":null,\"a\":1}", "{\"abc\":1,\"b\":{}}", "{\"\":0}", "{}"},
       {"{\"ab\":1}", "{\"x\":1,\"ab\":1}", "{\"\\u0061b\":1}"}},
      {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":10}",
       {"-1", "0", "9.999", "10"},
       {"10.1", "-1.6", "11", "100"}},
      {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
       {"\"ab\"", "\"漢é😀\"", "\"\\n\\\"\""},
       {"\"a\"", "\"abcd\"", "\"\""}},
      {"{\"type\":\"string\",\"pattern\":\"^a.c$\"}",
       {"\"abc\"", "\"aéc\""},
       {"\"ac\"", "\"a\\nc\"", "\"abcd\""}},
      {"{\"const\":\"a\\\"\\\\\"}", {"\"a\\\"\\\\\""}, {"\"a\""}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    CHECK_OK(mlx_grammar_create_from_schema("schema", rows[i].schema, strlen(rows[i].schema), &grammar));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    for (int j = 0; j < 4 && rows[i].good[j]; ++j) {
      if (!accepts(matcher, rows[i].good[j])) CHECK_FAIL("%s rejects %s", rows[i].schema, rows[i].good[j]);
    }
    for (int j = 0; j < 6 && rows[i].bad[j]; ++j) {
      if (accepts(matcher, rows[i].bad[j])) CHECK_FAIL("%s accepts %s", rows[i].schema, rows[i].bad[j]);
    }
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
  }
}

// Random texts of a small alphabet are accepted exactly if a regular expression engine matches them as a
// whole.
TEST(a_regular_expression_accepts_the_texts_that_it_matches) {
  static const char *const regexes[] = {"a*b?c{2}",        "^(ab|c)+$",      "[^a]b.",       "a|\"|\\\\",
                                        "(a|b){2,3}c*\"?", "\\s[^\\s]|\\n+", "[\\\\\"a-b]+", "(?:a(b|)c)*?"};
  static const char *const alphabet[] = {"a", "b", "c", "\"", "\\", "\n", "é"};
  uint64_t random = 5;
  int matches = 0;
  for (size_t i = 0; i < sizeof regexes / sizeof *regexes; ++i) {
    char *gbnf, whole[64];
    size_t length;
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    CHECK_OK(mlx_regex_to_gbnf("regex", regexes[i], strlen(regexes[i]), &gbnf, &length));
    CHECK_OK(mlx_grammar_create("regex", gbnf, length, &grammar));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    snprintf(whole, sizeof whole, "\\A(?:%s)\\z", regexes[i]);
    for (int round = 0; round < 2000; ++round) {
      mlx_text_t text = {0};
      mlx_text_puts(&text, "");
      for (uint64_t n = random_next(&random) % 6; n; --n)
        mlx_text_puts(&text, alphabet[random_next(&random) % 7]);
      const char *data = text.data ? text.data : "";
      const bool expected = fits_pattern(whole, data, strlen(data));
      if (accepts(matcher, data) != expected) CHECK_FAIL("%s is wrong about '%s'", regexes[i], data);
      matches += expected;
      mlx_text_clear(&text);
    }
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
    mlx_free(gbnf);
  }
  CHECK(matches > 500);
}

TEST(errors_name_the_keyword_and_its_path) {
  static const struct {
    const char *schema;
    mlx_code_t code;
    const char *part;
  } rows[] = {
      {"[]", MLX_INVALID_INPUT, "--json-schema"},
      {"{\"type\":", MLX_INVALID_INPUT, "--json-schema"},
      {"{\"type\":\"text\"}", MLX_INVALID_INPUT, "#: 'type' is not a type"},
      {"{\"not\":{}}", MLX_UNSUPPORTED, "--json-schema: #: 'not' is not supported"},
      {"{\"type\":\"object\",\"patternProperties\":{}}", MLX_UNSUPPORTED,
       "'patternProperties' is not supported"},
      {"{\"type\":\"object\",\"minProperties\":1}", MLX_UNSUPPORTED, "'minProperties' is not supported"},
      {"{\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}", MLX_UNSUPPORTED,
       "#/properties/a: 'uniqueItems' is not supported"},
      {"{\"type\":\"array\",\"contains\":{}}", MLX_UNSUPPORTED, "'contains' is not supported"},
      {"{\"if\":{}}", MLX_UNSUPPORTED, "'if' is not supported"},
      {"{\"type\":\"string\",\"format\":\"email\"}", MLX_UNSUPPORTED,
       "'format' is supported for date, time, date-time and uuid only"},
      {"{\"type\":\"string\",\"pattern\":\"^a(?=b)\"}", MLX_UNSUPPORTED,
       "'pattern' has a lookahead or lookbehind"},
      {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", MLX_UNSUPPORTED, "'pattern' uses an escape"},
      {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}", MLX_UNSUPPORTED,
       "'pattern' has ^ or $ together with a top-level |"},
      {"{\"type\":\"string\",\"pattern\":\"(a\"}", MLX_UNSUPPORTED, "'pattern' has a ( without )"},
      {"{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":2}", MLX_UNSUPPORTED,
       "'pattern' together with another limit"},
      {"{\"type\":\"string\",\"maxLength\":1000000}", MLX_UNSUPPORTED, "'maxLength' may be 10000 at most"},
      {"{\"type\":\"string\",\"minLength\":-1}", MLX_INVALID_INPUT, "'minLength' is not a whole number"},
      {"{\"type\":\"integer\",\"multipleOf\":5}", MLX_UNSUPPORTED, "'multipleOf' is not supported"},
      {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", MLX_UNSUPPORTED, "'maximum' leaves no number"},
      {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", MLX_UNSUPPORTED,
       "'oneOf' has two alternatives that can be valid at once"},
      {"{\"anyOf\":[{}],\"type\":\"object\"}", MLX_UNSUPPORTED,
       "'type' is not supported together with 'anyOf'"},
      {"{\"allOf\":[{\"type\":\"string\"}]}", MLX_UNSUPPORTED, "'allOf' is supported for objects only"},
      {"{\"allOf\":[{\"$ref\":\"#\"}]}", MLX_UNSUPPORTED, "'allOf' is nested too deeply, or contains itself"},
      {"{\"$ref\":\"#/$defs/a\"}", MLX_INVALID_INPUT, "is the target of a $ref, but not a schema"},
      {"{\"$ref\":\"http://x/y\"}", MLX_UNSUPPORTED, "is outside of the schema"},
      {"{\"$ref\":\"#\"}", MLX_UNSUPPORTED, "has no end"},
      {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", MLX_UNSUPPORTED, "has no end"},
      {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", MLX_UNSUPPORTED,
       "'a' is required, but additionalProperties forbids it"},
      {"{\"type\":\"array\",\"items\":[{}]}", MLX_UNSUPPORTED, "use prefixItems"},
      {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", MLX_INVALID_INPUT,
       "'minItems' is more than 'maxItems'"},
      {"{\"properties\":{\"a\":false}}", MLX_UNSUPPORTED,
       "#/properties/a: 'false' is a schema that no value satisfies"},
      {"{\"enum\":[1],\"type\":\"string\"}", MLX_INVALID_INPUT, "'enum' has no value of the schema's 'type'"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    mlx_grammar_t *grammar;
    mlx_status_t status =
        mlx_grammar_create_from_schema("--json-schema", rows[i].schema, strlen(rows[i].schema), &grammar);
    if (!status) CHECK_FAIL("%s is accepted", rows[i].schema);
    CHECK_ERROR(status, rows[i].code, rows[i].part);
  }
}

TEST_MAIN(CASE(an_integer_range_accepts_exactly_its_integers),
          CASE(valid_texts_are_accepted_and_invalid_texts_rejected),
          CASE(a_regular_expression_accepts_the_texts_that_it_matches),
          CASE(errors_name_the_keyword_and_its_path), CASE(text_sampled_under_a_schema_satisfies_it))
