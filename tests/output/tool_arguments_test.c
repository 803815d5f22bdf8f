// Which arguments the grammar of a required call allows, by the parameters of the tool.
#include "base/memory.h"
#include "output/output_format.h"
#include "tests/support/grammar_matches.h"

static bool allows(const char *parameters, const char *arguments) {
  mlx_text_t tools = {0}, text = {0};
  char *gbnf;
  size_t length;
  mlx_text_printf(&tools, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"%s}}]", parameters);
  mlx_text_printf(&text, "{\"name\": \"f\", \"parameters\": %s}", arguments);
  CHECK_OK(mlx_text_finish(&tools));
  CHECK_OK(mlx_text_finish(&text));
  const mlx_output_options_t call = {
      .tools = tools.data, .tools_length = tools.length, .tool_choice = MLX_TOOLS_REQUIRED};
  CHECK_OK(mlx_output_format_grammar(mlx_output_format_find("<|python_tag|>"), &call, "", 0, &gbnf, &length));
  const bool result = grammar_matches(gbnf, length, text.data);
  mlx_free(gbnf);
  mlx_text_clear(&tools);
  mlx_text_clear(&text);
  return result;
}

TEST(a_tool_without_parameters_takes_no_argument) {
  static const char *const none[] = {
      "", ",\"parameters\":null", ",\"parameters\":{\"properties\":{}}",
      ",\"parameters\":{\"type\":\"object\",\"properties\":{},\"required\":[]}"};
  for (size_t i = 0; i < sizeof none / sizeof *none; ++i) {
    CHECK(allows(none[i], "{}"));
    CHECK(!allows(none[i], "{\"a\": 1}"));
  }
}

TEST(a_tool_with_open_parameters_takes_any_argument) {
  static const char *const any[] = {",\"parameters\":{}", ",\"parameters\":{\"type\":\"object\"}",
                                    ",\"parameters\":{\"properties\":{},\"additionalProperties\":true}"};
  for (size_t i = 0; i < sizeof any / sizeof *any; ++i) {
    CHECK(allows(any[i], "{}"));
    CHECK(allows(any[i], "{\"a\": 1}"));
  }
}

TEST(a_required_name_without_a_schema_may_have_any_value) {
  const char *const parameters = ",\"parameters\":{\"properties\":{},\"required\":[\"a\"]}";
  CHECK(allows(parameters, "{\"a\": 1}"));
  CHECK(!allows(parameters, "{}"));
}

TEST_MAIN(CASE(a_tool_without_parameters_takes_no_argument),
          CASE(a_tool_with_open_parameters_takes_any_argument),
          CASE(a_required_name_without_a_schema_may_have_any_value))
