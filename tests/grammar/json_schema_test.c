// JSON schemas: text sampled under a schema satisfies it, as checked by an independent validator. Unsupported
// keywords are errors that name the keyword.
#include <math.h>
#include <oniguruma.h>
#include <yyjson.h>

#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "tests/support/random_text.h"

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
    const char *schema, *good[6], *bad[8];
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
      {"{\"type\":\"string\",\"format\":\"email\"}",
       {"\"a.b+c@ex-ample.org\""},
       {"\"a\"", "\"a@b\"", "\"@example.org\"", "\"a b@example.org\"", "\"a@-x.org\""}},
      {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
       {"\"https://example.org/a/b?c=d#e\"", "\"urn:isbn:12\"", "\"http://127.0.0.1:80/%20\""},
       {"\"example.org\"", "\"http://a b/\"", "\"http://x/%2\"", "\"://x.org\""}},
      {"{\"type\":\"string\",\"format\":\"ipv4\"}",
       {"\"0.0.0.0\"", "\"255.249.99.10\""},
       {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\"", "\"1.2.3.4.\""}},
      {"{\"type\":\"string\",\"format\":\"ipv6\"}",
       {"\"::\"", "\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::1\""},
       {"\"1:2\"", "\"1:::2\"", "\":1\"", "\"12345::\""}},
      {"{\"type\":\"string\",\"format\":\"uuid\"}",
       {"\"01234567-89ab-cdef-0123-456789abcdef\""},
       {"\"01234567-89ab-cdef-0123-456789abcde\"", "\"0123456789abcdef0123456789abcdef\""}},
      {"{\"type\":\"string\",\"format\":\"date-time\"}",
       {"\"2024-12-31T23:59:59Z\"", "\"2024-02-28T00:00:00.5+02:30\""},
       {"\"2024-13-01T00:00:00Z\"", "\"2024-04-31T00:00:00Z\"", "\"2024-01-01T24:00:00Z\"",
        "\"2024-01-01T00:00:00\"", "\"2024-01-01\""}},
      {"{\"type\":\"string\",\"format\":\"duration\"}",
       {"\"P1Y2M3D\"", "\"PT5M\"", "\"P3W\""},
       {"\"P\"", "\"PT\"", "\"1D\"", "\"P1W2D\""}},
      {"{\"type\":\"string\",\"format\":\"hostname\"}",
       {"\"a-b.example.org\""},
       {"\"-a.org\"", "\"a_b.org\"", "\"a..org\""}},
      {"{\"type\":\"string\",\"format\":\"color\"}", {"\"any text\"", "\"\""}, {"1"}},
      {"{\"type\":\"string\",\"pattern\":\"^[a-z]+(-[a-z]+)*$\",\"minLength\":3,\"maxLength\":5}",
       {"\"abc\"", "\"a-b\"", "\"ab-cd\""},
       {"\"ab\"", "\"abcdef\"", "\"a-bcde\"", "\"abc-\""}},
      {"{\"type\":\"string\",\"pattern\":\"b\",\"maxLength\":2}",
       {"\"b\"", "\"ab\"", "\"ba\""},
       {"\"a\"", "\"abb\"", "\"\""}},
      {"{\"type\":\"string\",\"pattern\":\"^a$|b$|^$\"}", {"\"a\"", "\"xb\"", "\"\""}, {"\"ab \"", "\"aa\""}},
      {"{\"allOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"pattern\":\"z$\"},{\"minLength\":3}]}",
       {"\"abz\""},
       {"\"az\"", "\"abc\"", "\"bz\""}},
      {"{\"type\":\"string\",\"nullable\":true,\"maxLength\":1}", {"null", "\"a\""}, {"\"ab\"", "0"}},
      {"{\"allOf\":[{\"$ref\":\"#/$defs/a\"}],\"nullable\":true,\"$defs\":{\"a\":{\"type\":\"integer\"}}}",
       {"null", "7"},
       {"\"7\""}},
      {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",1]},\"uniqueItems\":true}",
       {"[]", "[\"b\",\"a\"]", "[1,\"b\",\"a\"]"},
       {"[\"a\",\"a\"]", "[1,1]", "[\"c\"]", "[\"a\",\"b\",1,\"a\"]"}},
      {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":1}",
       {"[true]", "[false,true]"},
       {"[]", "[true,true]"}},
      {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\"]"
       "},\"uniqueItems\":true,\"minItems\":2,\"maxItems\":3}",
       {"[\"a\",\"j\"]", "[\"b\",\"c\",\"d\"]"},
       {"[\"a\"]", "[\"a\",\"a\"]", "[\"a\",\"b\",\"c\",\"d\"]"}},
      {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2}",
       {"{\"a\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1}"},
       {"{}", "{\"b\":1}"}},
      {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,"
       "\"maxProperties\":2}",
       {"{\"x\":1}", "{\"x\":1,\"y\":2}"},
       {"{}", "{\"x\":1,\"y\":2,\"z\":3}", "{\"x\":\"1\"}"}},
      {"{\"type\":\"object\",\"properties\":{\"x-a\":{\"type\":\"string\"}},\"patternProperties\":{\"^x-\":{"
       "\"type\":\"integer\"}},\"additionalProperties\":false}",
       {"{\"x-b\":1,\"x-ab\":2}", "{}"},
       {"{\"x-a\":1}", "{\"x-b\":\"s\"}", "{\"y\":1}", "{\"x-a\":\"s\"}"}},
      {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"z$\":{\"maximum\":5}},"
       "\"additionalProperties\":false}",
       {"{\"a\":1}", "{\"az\":5}", "{\"z\":1}"},
       {"{\"az\":9}", "{\"b\":1}", "{\"a\":\"s\"}"}},
      {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[A-Z]+$\",\"maxLength\":2},"
       "\"additionalProperties\":{\"const\":0}}",
       {"{\"AB\":0}"},
       {"{\"a\":0}", "{\"ABC\":0}", "{\"A\":1}"}},
      {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":{\"const\":1}}}",
       {"{\"b\":1}", "{}"},
       {"{\"a\":1}"}},
      {"{\"type\":\"object\",\"properties\":{\"a\":true},\"required\":[\"a\"]}", {"{\"a\":[{}]}"}, {"{}"}},
      {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-20,\"maximum\":800}",
       {"0", "-14", "791"},
       {"1", "-21", "798000", "805", "-7.0"}},
      {"{\"type\":\"number\",\"multipleOf\":0.5}", {"3"}, {"x"}},
      {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
       {"0.001", "0.999", "0.500"},
       {"0", "1", "0.0", "0.000", "1.000"}},
      {"{\"type\":\"number\",\"minimum\":0,\"exclusiveMinimum\":true,\"maximum\":3}",
       {"1", "2.5", "3"},
       {"0", "3.1"}},
      {"{\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\",\"properties\":{\"a\":"
       "{\"const\":1},\"b\":{\"const\":2}}}",
       {"{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
       {"{}"}},
      {"{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\",\"properties\":{\"a\":"
       "{\"const\":1},\"b\":{\"const\":2}}}",
       {"{\"a\":1}", "{\"b\":2}"},
       {"{}", "{\"a\":1,\"b\":2}"}},
      {"{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/"
       "b\"}],\"discriminator\":{\"propertyName\":\"k\",\"mapping\":{\"a\":\"#/$defs/"
       "a\"}},\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":["
       "\"k\"]},\"b\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}}}",
       {"{\"k\":\"a\"}", "{\"k\":\"b\"}"},
       {"{\"k\":\"c\"}", "{}"}},
      {"{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"bc\"]},\"maxLength\":2}",
       {"\"b\"", "\"ab\"", "\"\""},
       {"\"a\"", "\"bc\""}},
      {"{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[\"x\",\"y\"]},\"u\":{\"const\":1}},\"if\":{"
       "\"properties\":{\"t\":{\"const\":\"x\"}},\"required\":[\"t\"]},\"then\":{\"required\":[\"u\"]}}",
       {"{\"t\":\"x\",\"u\":1}", "{\"t\":\"y\"}", "{}"},
       {"{\"t\":\"x\"}"}},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"dependentRequired\":{"
       "\"a\":[\"b\"]}}",
       {"{\"b\":2}", "{\"a\":1,\"b\":2}", "{}"},
       {"{\"a\":1}"}},
      {"{\"$ref\":\"#/$defs/n\",\"minimum\":3,\"$defs\":{\"n\":{\"type\":\"integer\",\"maximum\":5}}}",
       {"3", "5"},
       {"2", "6"}},
      {"{\"type\":\"string\",\"enum\":[\"a\",\"bb\",1],\"minLength\":2}", {"\"bb\""}, {"\"a\"", "1"}},
      {"{\"type\":\"array\",\"items\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"additionalItems\":"
       "false}",
       {"[1,\"a\"]"},
       {"[\"a\",1]", "[1,\"a\",2]"}},
      {"{\"name\":\"answer\",\"strict\":true,\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":"
       "\"#/$defs/x\"}},\"required\":[\"a\"],\"$defs\":{\"x\":{\"type\":\"integer\"}}}}",
       {"{\"a\":1}"},
       {"{}", "{\"a\":\"1\"}"}},
      {"{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"boolean\"}}}",
       {"true"},
       {"1"}},
      {"true", {"1", "{\"a\":[]}", "null"}, {"x"}},
      {"{\"type\":\"integer\",\"title\":\"t\",\"x-order\":1,\"discriminator\":{},\"xml\":{},\"externalDocs\":"
       "{},\"readOnly\":true,\"ui:widget\":\"w\"}",
       {"1"},
       {"\"1\""}},
      {"{\"const\":\"a\\\"\\\\\"}", {"\"a\\\"\\\\\""}, {"\"a\""}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    CHECK_OK(mlx_grammar_create_from_schema("schema", rows[i].schema, strlen(rows[i].schema), &grammar));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    for (int j = 0; j < 6 && rows[i].good[j]; ++j) {
      if (!accepts(matcher, rows[i].good[j])) CHECK_FAIL("%s rejects %s", rows[i].schema, rows[i].good[j]);
    }
    for (int j = 0; j < 8 && rows[i].bad[j]; ++j) {
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
      {"{\"not\":{}}", MLX_UNSUPPORTED,
       "--json-schema: the schema leaves no JSON text that can be generated"},
      {"false", MLX_UNSUPPORTED, "the schema leaves no JSON text that can be generated"},
      {"{\"not\":{\"pattern\":\"a\"}}", MLX_UNSUPPORTED, "#/not: 'not' is supported for schemas with"},
      {"{\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}", MLX_UNSUPPORTED,
       "#/properties/a: 'uniqueItems' is supported for items of listed values"},
      {"{\"properties\":{\"a/b\":{\"type\":\"array\",\"contains\":{}}}}", MLX_UNSUPPORTED,
       "#/properties/a~1b: 'contains' is not supported"},
      {"{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/"
       "a\"}],\"$defs\":{\"a\":{\"unevaluatedProperties\":false}}}",
       MLX_UNSUPPORTED, "#/$defs/a: 'unevaluatedProperties' is not supported"},
      {"{\"type\":\"string\",\"minlength\":3}", MLX_UNSUPPORTED, "#: 'minlength' is not a keyword"},
      {"{\"if\":{\"pattern\":\"a\"},\"then\":{\"minLength\":2}}", MLX_UNSUPPORTED,
       "#: 'if' has a condition that cannot be negated"},
      {"{\"type\":\"object\",\"patternProperties\":{\"(?!a)\":{}}}", MLX_UNSUPPORTED,
       "#: 'patternProperties' has a lookahead"},
      {"{\"type\":\"string\",\"pattern\":\"^(a|b|c|d)*(ab|ba)*$\",\"minLength\":9000,\"maxLength\":10000}",
       MLX_UNSUPPORTED, "#: 'pattern' needs too many states"},
      {"{\"type\":\"integer\",\"multipleOf\":99991,\"maximum\":999999999999}", MLX_UNSUPPORTED,
       "#: 'multipleOf' needs too many rules"},
      {"{\"type\":\"object\",\"minProperties\":3,\"properties\":{\"a\":{}},\"additionalProperties\":true}",
       MLX_UNSUPPORTED, "#: 'minProperties' counts only one property that 'properties' does not list"},
      {"{\"type\":\"number\",\"multipleOf\":0.01}", MLX_UNSUPPORTED,
       "#: 'multipleOf' is supported for whole numbers"},
      {"{\"type\":\"string\",\"pattern\":\"^a(?=b)\"}", MLX_UNSUPPORTED,
       "'pattern' has a lookahead or lookbehind"},
      {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", MLX_UNSUPPORTED, "'pattern' uses an escape"},
      {"{\"type\":\"string\",\"pattern\":\"(a\"}", MLX_UNSUPPORTED, "'pattern' has a ( without )"},
      {"{\"type\":\"string\",\"maxLength\":1000000}", MLX_UNSUPPORTED, "'maxLength' may be 10000 at most"},
      {"{\"type\":\"string\",\"minLength\":-1}", MLX_INVALID_INPUT, "'minLength' is not a whole number"},
      {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", MLX_INVALID_INPUT,
       "'minimum' is more than its maximum"},
      {"{\"type\":\"string\",\"oneOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", MLX_UNSUPPORTED,
       "'oneOf' has two alternatives that can be valid at once"},
      {"{\"allOf\":[{\"$ref\":\"#\"}]}", MLX_UNSUPPORTED, "'allOf' leads back to itself: it has no end"},
      {"{\"$ref\":\"#/$defs/a\"}", MLX_INVALID_INPUT, "'$ref' does not lead to a schema"},
      {"{\"$ref\":\"http://x/y\"}", MLX_UNSUPPORTED, "is outside of the schema"},
      {"{\"$ref\":\"#\"}", MLX_UNSUPPORTED, "has no end"},
      {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", MLX_UNSUPPORTED,
       "leaves no JSON text"},
      {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", MLX_UNSUPPORTED,
       "the schema leaves no JSON text that can be generated"},
      {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", MLX_INVALID_INPUT,
       "'minItems' is more than its maximum"},
      {"{\"enum\":[1],\"type\":\"string\"}", MLX_UNSUPPORTED,
       "the schema leaves no JSON text that can be generated"},
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
