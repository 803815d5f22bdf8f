// The time limit of a thread ends templates, tokenizing, schemas and grammars, which the server does for
// clients. The clock of these tests advances by a second each time it is read.
#include <stdio.h>

#include "base/budget.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "grammar/grammar.h"
#include "template/template.h"
#include "tests/check.h"
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

static mlx_status_t tokenize(void) {
  static mlx_tokenizer_t *tokenizer;
  static char text[1 << 20];
  int32_t *ids;
  size_t count;
  if (!tokenizer) {
    char *json;
    CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &count));
    CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, count, &tokenizer));
    mlx_free(json);
    for (size_t i = 0; i < sizeof text; ++i) text[i] = "the quick brown "[i % 16];
  }
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

TEST_MAIN(CASE(the_limit_of_a_thread_ends_all_work_on_untrusted_input))
