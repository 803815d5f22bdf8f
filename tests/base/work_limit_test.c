// The time limit of a thread ends templates, tokenizing, schemas and grammars, which the server does for
// clients. The clock of these tests advances by a second each time it is read.
#include <stdio.h>

#include "base/budget.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "grammar/grammar.h"
#include "template/template.h"
#include "tests/support/check.h"
#include "tokenizer/tokenizer.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define SECOND INT64_C(1000000000)

static int64_t now;
static int64_t counting_clock(void) { return now += SECOND; }

static mlx_status_t render(void) {
  static const char source[] = "{% for i in range(300) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}";
  mlx_template_t *template;
  char *text;
  size_t length;
  CHECK_OK(mlx_template_create("chat", source, sizeof source - 1, &template));
  mlx_status_t status = mlx_template_render(template, &(mlx_template_input_t){0}, &text, &length);
  mlx_template_free(template);
  if (!status) mlx_free(text);
  return status;
}

static mlx_tokenizer_t *tokenizer;
static char text[1 << 20];

static void open_tokenizer(void) {
  char *json;
  size_t length;
  if (tokenizer) return;
  CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
  CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &tokenizer));
  mlx_free(json);
  for (size_t i = 0; i < sizeof text; ++i) text[i] = "the quick brown "[i % 16];
}

static mlx_status_t tokenize(void) {
  int32_t *ids;
  size_t count;
  open_tokenizer();
  mlx_status_t status = mlx_tokenizer_encode(tokenizer, text, sizeof text, false, &ids, &count);
  if (!status) mlx_free(ids);
  return status;
}

static mlx_status_t compile(const mlx_text_t *source, bool is_schema) {
  mlx_grammar_t *grammar;
  mlx_status_t status = (is_schema ? mlx_grammar_create_from_schema : mlx_grammar_create)(
      "grammar", source->data, source->length, &grammar);
  if (!status) mlx_grammar_free(grammar);
  return status;
}

static mlx_status_t compile_grammar(void) {
  mlx_text_t source = {0};
  mlx_text_puts(&source, "root ::= r0\n");
  for (int i = 0; i < 10000; ++i) mlx_text_printf(&source, "r%d ::= \"text\" r%d | [a-z]{1,3}\n", i, i + 1);
  mlx_text_puts(&source, "r10000 ::= \"z\"\n");
  mlx_status_t status = compile(&source, false);
  mlx_text_clear(&source);
  return status;
}

static mlx_status_t compile_schema(void) {
  mlx_text_t schema = {0};
  mlx_text_puts(&schema, "{\"type\":\"object\",\"properties\":{");
  for (int i = 0; i < 3000; ++i)
    mlx_text_printf(&schema, "%s\"p%d\":{\"type\":\"string\",\"enum\":[\"a%d\",\"b\"]}", i ? "," : "", i, i);
  mlx_text_puts(&schema, "},\"additionalProperties\":false}");
  mlx_status_t status = compile(&schema, true);
  mlx_text_clear(&schema);
  return status;
}

TEST(the_limit_of_a_thread_ends_all_work_on_untrusted_input) {
  static const struct {
    const char *name;
    mlx_status_t (*work)(void);
  } rows[] = {
      {"template", render}, {"tokens", tokenize}, {"grammar", compile_grammar}, {"schema", compile_schema}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    fprintf(stderr, "  %s\n", rows[i].name);
    CHECK_OK(rows[i].work());  // without a limit
    mlx_budget_set_clock(counting_clock);
    mlx_budget_limit_thread(3, 0);
    CHECK_ERROR(rows[i].work(), MLX_TIMEOUT, "takes longer than the limit of 3 s");
    CHECK_ERROR(rows[i].work(), MLX_TIMEOUT, "takes longer than the limit of 3 s");  // the time is over
    mlx_budget_limit_thread(0, 2);
    CHECK_ERROR(rows[i].work(), MLX_TIMEOUT, "takes longer than the limit of 2 s");
    mlx_budget_limit_thread(0, 0);
    mlx_budget_set_clock(NULL);
    CHECK_OK(rows[i].work());
  }
}

TEST(a_text_that_is_too_long_for_any_tokens_is_not_tokenized) {
  int32_t *ids;
  size_t count;
  open_tokenizer();
  mlx_budget_set_clock(counting_clock);
  const int64_t before = now;
  CHECK_OK(mlx_tokenizer_encode_within(tokenizer, text, sizeof text, true, 1000, &ids, &count));
  CHECK(!ids && count > 1000 && count < sizeof text);
  CHECK_INT(now, before);  // tokenizing reads the clock first
  CHECK_OK(mlx_tokenizer_encode_within(tokenizer, text, 1000, true, 1000, &ids, &count));
  CHECK(ids && now > before);
  mlx_free(ids);
  mlx_budget_set_clock(NULL);
}

TEST(a_limit_of_tokens_changes_no_text_within_it) {
  static const char *const texts[] = {"", "the", "the quick brown fox, 1234 \n\n\n x", "\xe2\x82\xac\xff\xf0",
                                      "<s>the</s> <s>"};
  open_tokenizer();
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    int32_t *all, *ids;
    size_t total, count;
    CHECK_OK(mlx_tokenizer_encode(tokenizer, texts[i], strlen(texts[i]), true, &all, &total));
    for (size_t limit = 0; limit <= total + 1; ++limit) {
      CHECK_OK(mlx_tokenizer_encode_within(tokenizer, texts[i], strlen(texts[i]), true, limit, &ids, &count));
      CHECK(limit < total ? !ids && count > limit && count <= total
                          : count == total && !memcmp(ids, all, total * sizeof *ids));
      mlx_free(ids);
    }
    mlx_free(all);
  }
}

TEST_MAIN(CASE(the_limit_of_a_thread_ends_all_work_on_untrusted_input),
          CASE(a_text_that_is_too_long_for_any_tokens_is_not_tokenized),
          CASE(a_limit_of_tokens_changes_no_text_within_it))
