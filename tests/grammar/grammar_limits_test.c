// Large and hostile grammars and schemas are read in linear time, and those that a matcher cannot follow are
// refused when they are read, not in the middle of a text.
#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "tests/support/check.h"

static int64_t fast_clock_ns(void) {
  return (int64_t)(mlx_thread_cpu_seconds() * 1e12);
}  // 1000 times CPU time

static void put_name(mlx_text_t *out, size_t number) {  // three letters
  static const char digits[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  for (int i = 0; i < 3; ++i, number /= 62) mlx_text_append(out, &digits[number % 62], 1);
}

// Creates a grammar from |text|, which is cleared.
static mlx_status_t create(mlx_text_t *text, bool is_schema, mlx_grammar_t **out) {
  CHECK_OK(mlx_text_finish(text));
  mlx_status_t status = is_schema ? mlx_grammar_create_from_schema("g", text->data, text->length, out)
                                  : mlx_grammar_create("g", text->data, text->length, out);
  mlx_text_clear(text);
  return status;
}

// CPU seconds to read the text that |put| appends for |count| items: the shortest of three times, which is
// about the same on a busy machine.
typedef void (*put_t)(mlx_text_t *out, int count);
static double seconds_to_read(put_t put, int count, bool is_schema) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    mlx_text_t text = {0};
    mlx_grammar_t *grammar;
    put(&text, count);
    const double start = mlx_thread_cpu_seconds();
    CHECK_OK(create(&text, is_schema, &grammar));
    const double taken = mlx_thread_cpu_seconds() - start;
    best = taken < best ? taken : best;
    mlx_grammar_free(grammar);
  }
  return best;
}

// Four times the items take about four times as long on any machine; in quadratic time, 16 times.
static void check_linear(put_t put, int count, bool is_schema) {
  const double part = seconds_to_read(put, count / 4, is_schema),
               whole = seconds_to_read(put, count, is_schema);
  if (whole > 9 * part) CHECK_FAIL("%d items took %g s, a quarter of them %g s", count, whole, part);
}

static void put_rules(mlx_text_t *out, int count) {
  mlx_text_puts(out, "root ::= aaa\n");
  for (int i = 0; i < count; ++i) {
    put_name(out, (size_t)i);
    mlx_text_puts(out, " ::= \"x\" ");
    if (i + 1 < count) put_name(out, (size_t)i + 1);
    mlx_text_puts(out, "\n");
  }
}

TEST(a_hundred_thousand_rules_are_read_in_linear_time) { check_linear(put_rules, 100000, false); }

// A schema of |count| integer properties p0, p1, ...
static void put_schema(mlx_text_t *out, int count, bool required) {
  mlx_text_puts(out, "{\"type\":\"object\",\"properties\":{");
  for (int i = 0; i < count; ++i) mlx_text_printf(out, "%s\"p%d\":{\"type\":\"integer\"}", i ? "," : "", i);
  mlx_text_puts(out, required ? "},\"required\":[" : "}");
  for (int i = 0; required && i < count; ++i) mlx_text_printf(out, "%s\"p%d\"", i ? "," : "", i);
  mlx_text_puts(out, required ? "]}" : "}");
}

static void accept(mlx_matcher_t *matcher, const char *text, size_t length, bool expected) {
  bool accepted;
  CHECK_OK(mlx_matcher_accept(matcher, text, length, &accepted));
  if (accepted != expected) CHECK_FAIL("'%.*s' was %s", (int)length, text, accepted ? "accepted" : "refused");
}

static void put_optional(mlx_text_t *out, int count) { put_schema(out, count, false); }
static void put_required(mlx_text_t *out, int count) { put_schema(out, count, true); }

TEST(ten_thousand_properties_are_read_in_linear_time) {
  check_linear(put_optional, 10000, true);
  check_linear(put_required, 10000, true);
}

// Every 1000th property: 9 gaps of 999 optional ones.
TEST(ten_thousand_properties_are_followed) {
  for (int required = 0; required < 2; ++required) {
    mlx_text_t schema = {0}, text = {0};
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    put_schema(&schema, 10000, required);
    CHECK_OK(create(&schema, true, &grammar));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    mlx_text_puts(&text, "{");
    for (int i = 0; i < 10000; i += required ? 1 : 1000)
      mlx_text_printf(&text, "%s\"p%d\": %d", i ? ", " : "", i, i);
    CHECK_OK(mlx_text_finish(&text));
    accept(matcher, text.data, text.length, true);
    CHECK(!mlx_matcher_is_complete(matcher));
    accept(matcher, ", \"p1\"", 6, false);  // the order of the schema
    accept(matcher, required ? "}" : ", \"p9999\": 1}", required ? 1 : 13, true);
    CHECK(mlx_matcher_is_complete(matcher));
    mlx_text_clear(&text);
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
  }
}

// The order and the commas of optional and required properties, and of additional ones.
TEST(optional_properties_keep_their_order_and_commas) {
  static const struct {
    const char *schema, *text;
    bool valid;
  } cases[] = {
#define THREE \
  "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}}"
      {THREE "}", "{}", true},
      {THREE "}", "{\"b\":2}", true},
      {THREE "}", "{\"a\":1,\"c\":3}", true},
      {THREE "}", "{\"c\":3,\"a\":1}", false},
      {THREE "}", "{\"a\":1,}", false},
      {THREE "}", "{\"c\":3,}", false},
      {THREE "}", "{,\"a\":1}", false},
      {THREE ",\"required\":[\"b\"]}", "{}", false},
      {THREE ",\"required\":[\"b\"]}", "{\"a\":1}", false},
      {THREE ",\"required\":[\"b\"]}", "{\"a\":1,\"c\":3}", false},
      {THREE ",\"required\":[\"b\"]}", "{\"b\":2,\"c\":3}", true},
      {THREE ",\"required\":[\"b\"]}", "{\"a\":1, \"b\":2}", true},
      {THREE ",\"required\":[\"c\"]}", "{\"a\":1,\"b\":2}", false},
      {THREE ",\"additionalProperties\":{\"const\":4}}", "{\"x\":4}", true},
      {THREE ",\"additionalProperties\":{\"const\":4}}", "{\"a\":1,\"x\":4,\"y\":4}", true},
      {THREE ",\"additionalProperties\":{\"const\":4}}", "{\"x\":4,\"a\":1}", false},
      {THREE ",\"additionalProperties\":{\"const\":4},\"required\":[\"c\"]}", "{\"x\":4}", false},
      {THREE ",\"additionalProperties\":{\"const\":4},\"required\":[\"c\"]}", "{\"c\":3,\"x\":4}", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_grammar_t *grammar;
    mlx_matcher_t *matcher;
    bool accepted;
    CHECK_OK(mlx_grammar_create_from_schema("g", cases[i].schema, strlen(cases[i].schema), &grammar));
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    CHECK_OK(mlx_matcher_accept(matcher, cases[i].text, strlen(cases[i].text), &accepted));
    if ((accepted && mlx_matcher_is_complete(matcher)) != cases[i].valid)
      CHECK_FAIL("%s: %s is %s", cases[i].schema, cases[i].text, accepted ? "accepted" : "refused");
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Refused before a text begins

static void put_alternates(mlx_text_t *out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    mlx_text_puts(out, i ? " | \"" : "\"");
    put_name(out, i);
    mlx_text_puts(out, "\"");
  }
  mlx_text_puts(out, "\n");
}

TEST(a_rule_that_begins_in_too_many_ways_is_refused_by_name) {
  mlx_text_t text = {0};
  mlx_grammar_t *grammar = NULL;
  mlx_text_puts(&text, "root ::= \"(\" word \")\"\nword ::= ");
  put_alternates(&text, MLX_GRAMMAR_MAX_STACKS + 1);
  CHECK_ERROR(create(&text, false, &grammar), MLX_UNSUPPORTED,
              "g: line 1: rule 'word' can begin in more than 20000 ways");
  mlx_text_puts(&text, "root ::= first | second\nfirst ::= ");  // the sum of two rules
  put_alternates(&text, MLX_GRAMMAR_MAX_STACKS * 2 / 3);
  mlx_text_puts(&text, "second ::= ");
  put_alternates(&text, MLX_GRAMMAR_MAX_STACKS * 2 / 3);
  CHECK_ERROR(create(&text, false, &grammar), MLX_UNSUPPORTED,
              "rule 'root' can begin in more than 20000 ways");
  CHECK(!grammar);
  mlx_text_puts(&text, "root ::= \"(\" word \")\"\nword ::= ");
  put_alternates(&text, MLX_GRAMMAR_MAX_STACKS);
  mlx_text_puts(&text, "unused ::= ");
  put_alternates(&text, MLX_GRAMMAR_MAX_STACKS + 1);
  CHECK_OK(create(&text, false, &grammar));
  mlx_grammar_free(grammar);
}

// Counted along its paths, a30 begins in 2^30 ways. A matcher keeps equal stacks once: it begins in one.
TEST(equal_beginnings_are_counted_once) {
  mlx_text_t text = {0};
  mlx_grammar_t *grammar;
  mlx_matcher_t *matcher;
  mlx_text_puts(&text, "root ::= a30\na0 ::= \"x\"\n");
  for (int i = 1; i <= 30; ++i) mlx_text_printf(&text, "a%d ::= a%d | a%d\n", i, i - 1, i - 1);
  CHECK_OK(create(&text, false, &grammar));
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  accept(matcher, "x", 1, true);
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
}

// d9 lists d8 ten times, d8 lists d7 ten times, ...
TEST(schemas_that_grow_exponentially_are_refused) {
  mlx_text_t text = {0};
  mlx_grammar_t *grammar;
  mlx_text_puts(&text, "{\"type\":\"object\",\"allOf\":[{\"$ref\":\"#/$defs/d9\"}],\"$defs\":{\"d0\":{}");
  for (int i = 1; i < 10; ++i) {
    mlx_text_printf(&text, ",\"d%d\":{\"allOf\":[", i);
    for (int j = 0; j < 10; ++j) mlx_text_printf(&text, "%s{\"$ref\":\"#/$defs/d%d\"}", j ? "," : "", i - 1);
    mlx_text_puts(&text, "]}");
  }
  mlx_text_puts(&text, "}}");
  CHECK_ERROR(create(&text, true, &grammar), MLX_UNSUPPORTED, "'allOf' has too many schemas");
  // Two equal alternatives, each with 20 required properties that refer to the same schema.
  mlx_text_puts(&text,
                "{\"oneOf\":[{\"$ref\":\"#/$defs/d\"},{\"$ref\":\"#/$defs/d\"}],\"$defs\":{\"d\":{\"type\":"
                "\"object\",\"properties\":{");
  for (int i = 0; i < 20; ++i) mlx_text_printf(&text, "%s\"p%d\":{\"$ref\":\"#/$defs/d\"}", i ? "," : "", i);
  mlx_text_puts(&text, "},\"required\":[");
  for (int i = 0; i < 20; ++i) mlx_text_printf(&text, "%s\"p%d\"", i ? "," : "", i);
  mlx_text_puts(&text, "]}}}");
  mlx_budget_set_clock(fast_clock_ns);
  mlx_status_t status = create(&text, true, &grammar);
  mlx_budget_set_clock(NULL);
  CHECK_ERROR(status, MLX_TIMEOUT, "g: reading the file takes longer than the limit of 10 s");
}

// Twenty seconds pass with every look at the clock, so that the test does not depend on the machine.
static int64_t stepping_clock_ns(void) {
  static int64_t now;
  return now += 20000000000;
}

// Every letter of the text expands a rule of 500,000 empty alternates.
TEST(a_slow_matcher_stops_at_the_deadline) {
  mlx_text_t text = {0};
  mlx_grammar_t *grammar;
  mlx_matcher_t *matcher;
  bool accepted;
  mlx_text_puts(&text, "root ::= (\"a\" x)*\nx ::= \"\"");
  for (int i = 1; i < 500000; ++i) mlx_text_puts(&text, "|");
  mlx_text_puts(&text, "\n");
  CHECK_OK(create(&text, false, &grammar));
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  mlx_budget_set_clock(stepping_clock_ns);
  char letters[1000];  // far more than fit into the limit on a fast machine
  memset(letters, 'a', sizeof letters);
  mlx_status_t status = mlx_matcher_accept(matcher, letters, sizeof letters, &accepted);
  mlx_budget_set_clock(NULL);
  CHECK_ERROR(status, MLX_TIMEOUT, "g: following the grammar takes longer than the limit of 10 s");
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
}

TEST_MAIN(CASE(a_hundred_thousand_rules_are_read_in_linear_time),
          CASE(ten_thousand_properties_are_read_in_linear_time), CASE(ten_thousand_properties_are_followed),
          CASE(optional_properties_keep_their_order_and_commas),
          CASE(a_rule_that_begins_in_too_many_ways_is_refused_by_name),
          CASE(equal_beginnings_are_counted_once), CASE(schemas_that_grow_exponentially_are_refused),
          CASE(a_slow_matcher_stops_at_the_deadline))
