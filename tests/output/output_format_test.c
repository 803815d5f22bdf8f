// Reasoning and tool calls of every format, however the output is cut into pieces; and the grammars for them.
#include "output/parser.h"

#include "base/file.h"
#include "base/memory.h"
#include "tests/output/transcript.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"
#include "tests/support/grammar_matches.h"
#include "tests/support/random_numbers.h"

#define TEMPLATES MLXCEL_MODELS "/../deps/llama.cpp/models/templates"

#define ARGS "{\"city\": \"Köln\", \"days\": 2}"
#define HERMES "<tool_call>"
#define QWEN3 "<tool_call></think>"
#define CODER "<tool_call><function=<parameter="
#define LLAMA "<|python_tag|>"
#define MISTRAL "[TOOL_CALLS]"
#define MISTRAL_ARGS "[TOOL_CALLS][ARGS][THINK]"
#define GPT_OSS "<|channel|><|message|><|call|>"
#define DEEPSEEK "<｜tool▁call▁begin｜>```json</think>"
#define DEEPSEEK31 "<｜tool▁call▁begin｜></think>"
#define GLM "<tool_call><arg_key></think>"
#define GEMMA4 "<|tool_call>call:<|channel>thought"
#define FUNCTIONGEMMA "<start_function_call>call:"

TEST(plain_text_passes_through) {
  check("", "", "Hello wörld \n\n", "[Hello wörld \n\n]");
  check("", "", "", "");
  check(HERMES, "", "a < b <tool b <tool_calx>", "[a < b <tool b <tool_calx>]");
  check(HERMES, "", " \n x \n", "[ \n x \n]");
  check(HERMES, "", "<tool_cal", "[<tool_cal]");
  check(GPT_OSS, "", "no header", "[no header]");
  check(HERMES, "", "caf\xC3", "[caf\xEF\xBF\xBD]");
  check(HERMES, "",
        "x\xFF\xC3y\xF0\x9F"
        "A\xE2\x82",
        "[x\xEF\xBF\xBD\xEF\xBF\xBDy\xEF\xBF\xBD\xEF\xBF\xBD"
        "A\xEF\xBF\xBD]");
}

TEST(reasoning_is_separate_from_the_answer) {
  check(QWEN3, "", "<think>\nLet me see.\n\n</think>\n\nYes.", "<Let me see.>[Yes.]");
  check(QWEN3, "", "\n<think>a\n\nb</think>c", "<a\n\nb>[c]");
  check(QWEN3, "", "<think>\n\n</think>\n\nYes.", "[Yes.]");
  check(QWEN3, "", "No <think>x</think>", "[No <think>x</think>]");
  check(QWEN3, "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nYes.", "<Hm.>[Yes.]");
  check(QWEN3, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes.", "[Yes.]");
  check(QWEN3, "user: what is <think> good for?<assistant>", "Thinking.", "[Thinking.]");
  check(QWEN3, "", "<think>cut off </thi", "<cut off </thi>");
  check(HERMES, "", "<think>x</think>y", "[<think>x</think>y]");  // the template knows no reasoning
  check(MISTRAL_ARGS, "", "[THINK]Hm.[/THINK]Yes.", "<Hm.>[Yes.]");
  check(GEMMA4, "", "<|channel>thought\nHm.\n<channel|>Yes.", "<Hm.>[Yes.]");
  check("<|START_ACTION|><|START_THINKING|>", "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "<Hm.>[Yes.]");
}

TEST(gpt_oss_channels_are_reasoning_text_and_calls) {
  check(GPT_OSS, "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm < 3.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "<Hm < 3.>[Yes.]");
  check(GPT_OSS, "",
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" ARGS
        "<|call|>",
        "<A\n\nB>get_weather(" ARGS ")");
  check(GPT_OSS, "", " to=functions.get_time<|channel|>commentary json<|message|>{}", "get_time({})");
  check(GPT_OSS, "", "<|channel|>commentary to=functions.get_time<|message|>", "get_time({})");
  check(GPT_OSS, "",
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant to=functions.get_time"
        "<|channel|>commentary <|constrain|>json<|message|>{\"a\":[1,2]}<|call|>",
        "[I look it up.]get_time({\"a\":[1,2]})");
  check(GPT_OSS, "", "<|channel|>commentary to=functions.get_time<|message|>now, please<|end|>",
        "[now, please]");
  check(GPT_OSS, "...<|channel|>final<|message|>", "es.", "[es.]");
  check(GPT_OSS, "...<|channel|>analysis<|message|>", "Hm<|end|>", "<Hm>");
}

TEST(calls_as_objects_are_found) {
  check(HERMES, "", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " ARGS "}\n</tool_call>",
        "get_weather(" ARGS ")");
  check(QWEN3, "",
        "<think>\nx\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " ARGS
        "}\n</tool_call>\n<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>",
        "<x>[One moment.]get_weather(" ARGS ")get_time({})");
  check(HERMES, "", "<tool_call>{\"arguments\": {\"a\": {\"b\": \"}\"}}, \"name\": \"other\"}",
        "other({\"a\": {\"b\": \"}\"}})");
  check(HERMES, "", "<tool_call>{\"name\": \"get_time\"}</tool_call>", "get_time({})");
  check(HERMES, "", "<tool_call>{\"name\": \"get_time\", \"arguments\": null}</tool_call> ok",
        "get_time({})[ ok]");
  check(HERMES, "", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        "f({\"a\": 1})");
  check(HERMES, "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>",
        "f({\"a\": \"x\\ny\"})");
  // The last brace is missing, or there is one too many.
  check(HERMES, "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>", "f({\"a\": 1})");
  check(HERMES, "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
        "f({\"a\": 1})");
  check(HERMES, "",
        "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}</tool_call>",
        "f({})");
  check(HERMES, "", "{\"name\": \"get_time\", \"arguments\": {}}", "get_time({})");
  check(LLAMA, "", "{\"name\": \"get_weather\", \"parameters\": " ARGS "}", "get_weather(" ARGS ")");
  check(LLAMA, "", "<|python_tag|>{\"name\": \"get_time\", \"parameters\": {}}", "get_time({})");
  check(LLAMA, "",
        "{\"type\": \"function\", \"name\": \"get_time\", \"parameters\": {}}; {\"name\": \"get_weather\", "
        "\"parameters\": " ARGS "}",
        "get_time({})get_weather(" ARGS ")");
  check(MISTRAL, "", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " ARGS "}]",
        "get_weather(" ARGS ")");
  check(MISTRAL, "",
        "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": " ARGS
        ", \"id\": \"abcdefghi\"}, {\"name\": \"get_time\", \"arguments\": {}}]",
        "get_weather(" ARGS ")get_time({})");
  check(
      "<|START_ACTION|>", "",
      "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": " ARGS
      "}\n]<|END_ACTION|>",
      "get_weather(" ARGS ")");
  check("<|tool_call|>", "", "<|tool_call|>[{\"name\": \"get_time\", \"arguments\": {}}]", "get_time({})");
  check("gemma", "", "```tool_code\n{\"name\": \"get_time\", \"parameters\": {}}\n```", "get_time({})");
  check("gemma", "", "```json\n{\"name\": \"get_weather\", \"parameters\": " ARGS "}\n```\nDone.",
        "get_weather(" ARGS ")[\nDone.]");
}

#define PYTHONIC "[func_name1(params_name1=params_value1)]"
#define LFM2 "<|tool_list_start|>"

TEST(python_calls_are_found) {
  check(PYTHONIC, "", "[get_weather(city=\"Köln\", days=2), get_time()]",
        "get_weather({\"city\": \"Köln\", \"days\": 2})get_time({})");
  check(PYTHONIC, "",
        "[get_weather( city = 'a \\'b\\'(]\\n' ,metric=True,\ntags=['x', (\"y\", -1.5)], days=None,)]\nDone.",
        "get_weather({\"city\": \"a 'b'(]\\n\", \"metric\": true, \"tags\": [\"x\", [\"y\", -1.5]], "
        "\"days\": null})[\nDone.]");
  check(LLAMA, "", "[get_weather(city=\"x\", tags={'a': {}})]",
        "get_weather({\"city\": \"x\", \"tags\": {\"a\": {}}})");
  check("gemma", "", "[get_time()]", "get_time({})");
  check(LFM2, "", "<|tool_call_start|>[get_time(), get_weather(city=\"\\u00e9\")]<|tool_call_end|>Wait.",
        "get_time({})get_weather({\"city\": \"é\"})[Wait.]");
  check(LFM2, "", "I look.\n<|tool_call_start|>[get_time()]<|tool_call_end|>", "[I look.]get_time({})");
  check(LFM2, "", "<|tool_call_start|>[{\"name\": \"get_time\", \"arguments\": {}}]<|tool_call_end|>",
        "get_time({})");
}

TEST(text_that_is_no_python_call_is_text) {
#define SAME(text) check(PYTHONIC, "", text, "[" text "]")
  SAME("[see below]"), SAME("[1, 2]"), SAME("[unknown(a=1)]"), SAME("[get_time("), SAME("[get_time(x)]");
  SAME("[get_weather(city=\"x)]"), SAME("[get_weather(1=2)]"), SAME("[get_weather(city={1: 2})]");
  SAME("[get_weather(city=1 2)]"), SAME("get_time()"), SAME("[ get_weather ( city='x' ) ]");
  check(PYTHONIC, "", "[get_time(), other()]", "get_time({})[ other()]]");
}

TEST(calls_with_a_name_before_their_arguments_are_found) {
  check(MISTRAL_ARGS, "", "[TOOL_CALLS]get_weather[ARGS]" ARGS, "get_weather(" ARGS ")");
  check(MISTRAL_ARGS, "", "Wait.[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]get_time[ARGS]{ }",
        "[Wait.]get_time({})get_time({ })");
  check(MISTRAL_ARGS, "", "[TOOL_CALLS][{\"name\": \"get_time\", \"arguments\": {}}]", "get_time({})");
  check(DEEPSEEK, "<｜Assistant｜><think>\n",
        "Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        "```json\n" ARGS
        "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<Hm.>get_weather(" ARGS ")get_time({})");
  check(DEEPSEEK31, "<think></think>",
        "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" ARGS
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "[Wait.]get_weather(" ARGS ")");
  check("<|tool_call_begin|>", "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|"
        ">" ARGS "<|tool_call_end|><|tool_calls_section_end|>",
        "get_weather(" ARGS ")");
  check("<function=", "", "<function=get_time>{}</function>", "get_time({})");
}

TEST(calls_with_tagged_arguments_get_the_types_of_the_schema) {
  check(CODER, "",
        "Sure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln \"a\"\nb\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n"
        "[\"x\"]\n</parameter>\n</function>\n</tool_call>",
        "[Sure.]get_weather({\"city\": \"Köln \\\"a\\\"\\nb\", \"days\": 2, \"metric\": true, \"tags\": "
        "[\"x\"]})");
  check(CODER, "", "<function=get_weather><parameter=city>7</parameter></function>",
        "get_weather({\"city\": \"7\"})");
  check(CODER, "", "<tool_call><function=get_time></function></tool_call>", "get_time({})");
  check(CODER, "", "<tool_call><function=get_weather><parameter=days>many</parameter></function></tool_call>",
        "get_weather({\"days\": \"many\"})");
  check(CODER, "",
        "<tool_call><function=a><parameter=x>1</parameter></function><function=b><parameter=y>z</parameter>"
        "</function></tool_call>",
        "a({\"x\": 1})b({\"y\": \"z\"})");
  check(GLM, "",
        "\n<think>x</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "<x>get_weather({\"city\": \"Köln\", \"days\": 2})");
  check(GLM, "", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value></tool_call>",
        "get_weather({\"city\": \"a\"})");
  check(GLM, "", "<tool_call>get_time\n</tool_call>\n<tool_call>get_time</tool_call>",
        "get_time({})get_time({})");
  check("<minimax:tool_call>", "",
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">a</parameter>\n"
        "<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
        "get_weather({\"city\": \"a\", \"days\": 2})");
  check("｜DSML｜invoke function_calls", "",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
        "string=\"true\">a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
        "string=\"false\">2</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "get_weather({\"city\": \"a\", \"days\": 2})");
  check(
      GEMMA4, "",
      "<|tool_call>call:get_weather{city:<|\"|>Köln, {x}<|\"|>,days:2,tags:[<|\"|>a<|\"|>,<|\"|>b<|\"|>],"
      "o:{k:true}}<tool_call|>",
      "get_weather({\"city\": \"Köln, {x}\", \"days\": 2, \"tags\": [\"a\", \"b\"], \"o\": {\"k\": true}})");
  check(FUNCTIONGEMMA, "", FUNCTIONGEMMA "get_weather{city:<escape>a<escape>,days:2}<end_function_call>",
        "get_weather({\"city\": \"a\", \"days\": 2})");
  check(GEMMA4, "", "Hm.<|tool_call>call:get_time{}<tool_call|><|tool_call>call:get_time{}",
        "[Hm.]get_time({})get_time({})");
}

TEST(malformed_calls_are_text) {
  static const char *const cases[][2] = {
      {HERMES, "<tool_call>get_time()</tool_call>"},
      {HERMES, "x <tool_call>{\"nam\": \"f\"}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
      {HERMES, "<tool_call>\n"},
      {LLAMA, "{\"name\": \"unknown\", \"parameters\": {}}"},
      {LLAMA, "{\"answer\": 42}"},
      {LLAMA, "[1, 2]"},
      {LLAMA, "{\"name\": \"get_time\"}"},
      {LLAMA, "<|python_tag|>print(1)"},
      {LLAMA, "```python\nx\n```"},
      {MISTRAL_ARGS, "[TOOL_CALLS]a b[ARGS]{}"},
      {MISTRAL_ARGS, "[TOOL_CALLS]name without arguments"},
      {DEEPSEEK31, "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"},
      {CODER, "<tool_call>\n<function=f>\ntext\n</tool_call"},
      {CODER, "<tool_call>{\"name\": \"f\"}</tool_call>"},
      {GLM, "<tool_call>two words</tool_call>"},
      {GEMMA4, "<|tool_call>call:f{x<tool_call|>"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char expected[256];
    snprintf(expected, sizeof expected, "[%s]", cases[i][1]);
    check(cases[i][0], "", cases[i][1], expected);
  }
  // Not streamed, a call that breaks off is text as a whole. Streamed, its beginning is gone.
  mlx_output_options_t call = call_with_tools(false);
  static const char broken[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,, }}</tool_call>";
  check_call(HERMES, &call, "", broken,
             "[<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,, }}</tool_call>]");
  call.stream = true;
  check_call(HERMES, &call, "", broken, "f({\"a\": 1,)[, }}</tool_call>]");
  check_call(CODER, &call, "", "<function=f><parameter=a>1</parameter><parameter=city>cut",
             "f({\"a\": 1, \"city\": )[cut]");
}

TEST(calls_are_parsed_only_if_the_request_asks_for_them) {
  static const char output[] = "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>",
                    text[] = "[<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>]";
  mlx_output_options_t call = {.stream = true};
  check_call(HERMES, &call, "", output, text);
  call = call_with_tools(true);
  call.tool_choice = MLX_TOOLS_NONE;
  check_call(HERMES, &call, "", output, text);
  call = call_with_tools(true);
  call.one_tool_call = true;
  check_call(HERMES, &call, "", "<tool_call>{\"name\": \"a\"}</tool_call>\n<tool_call>{\"name\": \"b\"}",
             "a({})");
  check_call(
      GPT_OSS, &call, "",
      "<|channel|>commentary to=functions.a<|message|>{}<|call|><|start|>assistant<|channel|>commentary "
      "to=functions.b<|message|>{}<|call|>",
      "a({})");
}

TEST(ids_are_unique_and_of_the_length_that_templates_want) {
  static const char list[] = "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {}}]",
                    tagged[] =
                        "<tool_call>{\"name\": \"a\"}</tool_call><tool_call>{\"name\": \"b\"}</tool_call>";
  const mlx_output_options_t call = call_with_tools(false);
  transcript_t t;
  parse(mlx_output_format_find(MISTRAL), &call, "", list, sizeof list - 1, 1, &t);
  CHECK_INT(strlen(t.ids[0]), 9);
  mlx_text_clear(&t.text);
  parse(mlx_output_format_find(HERMES), &call, "", tagged, sizeof tagged - 1, 1, &t);
  CHECK_INT(t.calls, 2);
  CHECK(!strncmp(t.ids[0], "call_", 5));
  CHECK_INT(strlen(t.ids[0]), 29);
  CHECK(strcmp(t.ids[0], t.ids[1]));
  mlx_text_clear(&t.text);
}

TEST(tokens_come_with_the_text_that_they_made) {
  static const char output[] = "<think>ab</think>cd <tool_call>no";
  mlx_output_parser_t *parser;
  transcript_t t = {0};
  const mlx_output_options_t call = call_with_tools(true);
  const char *prompt = "";
  CHECK_OK(
      mlx_output_parser_create(mlx_output_format_find(QWEN3), &call, prompt, 0, 3, write_event, &t, &parser));
  for (size_t i = 0; i < sizeof output - 1; ++i) {
    const mlx_answer_logprob_t top = {.id = (int32_t)i, .bytes = output + i, .length = 1};
    const mlx_answer_token_t token = {.chosen = top, .top = &top, .top_count = 1};
    CHECK_OK(mlx_output_parser_add(parser, output + i, 1, &token, 1));
  }
  CHECK_INT(mlx_output_parser_reasoning_tokens(parser), 11);  // "ab", the end tag, and the begin tag's last
  CHECK_OK(mlx_output_parser_finish(parser, MLX_FINISH_STOP));
  CHECK_INT(t.tokens, sizeof output - 1);
  mlx_output_parser_free(parser);
  mlx_text_clear(&t.text);
}

// ----------------------------------------------------------------------------------------------------------
// Detection

TEST(real_templates_have_the_format_of_their_family) {
  static const char *const pairs[][3] = {
      {"Qwen-Qwen2.5-7B-Instruct", "hermes", ""},
      {"Qwen-Qwen3-0.6B", "hermes", "reasons"},
      {"Qwen-QwQ-32B", "hermes", "reasons"},
      {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", ""},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", ""},
      {"ibm-granite-granite-4.0", "hermes", ""},
      {"ibm-granite-granite-4.1", "hermes", ""},
      {"Qwen3-Coder", "qwen3-coder", ""},
      {"Qwen3.5-4B", "qwen3-coder", "reasons"},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3-coder", "reasons"},
      {"ByteDance-Seed-OSS", "seed-oss", "reasons"},
      {"meta-llama-Llama-3.1-8B-Instruct", "llama3", ""},
      {"meta-llama-Llama-3.2-3B-Instruct", "llama3", ""},
      {"meta-llama-Llama-3.3-70B-Instruct", "llama3", ""},
      {"mistralai-Mistral-Nemo-Instruct-2407", "mistral", ""},
      {"Mistral-Small-3.2-24B-Instruct-2506", "mistral-args", ""},
      {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral-args", "reasons"},
      {"unsloth-mistral-Devstral-Small-2507", "mistral-args", ""},
      {"openai-gpt-oss-120b", "gpt-oss", "reasons"},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", "reasons"},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek", "reasons"},
      {"llama-cpp-deepseek-r1", "deepseek", "reasons"},
      {"deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1", "reasons"},
      {"deepseek-ai-DeepSeek-V3.2", "deepseek-dsml", "reasons"},
      {"deepseek-ai-DeepSeek-V4", "deepseek-v4", "reasons"},
      {"GLM-4.6", "glm", "reasons"},
      {"GLM-4.7-Flash", "glm", "reasons"},
      {"google-gemma-4-31B-it", "gemma4", "reasons"},
      {"google-gemma-2-2b-it", "plain", ""},
      {"microsoft-Phi-3.5-mini-instruct", "plain", ""},
      {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r", "reasons"},
      {"Kimi-K2-Instruct", "kimi", ""},
      {"LFM2-8B-A1B", "lfm2", ""},
      {"LFM2.5-8B-A1B", "lfm2", "reasons"},
      {"LFM2.5-Instruct", "lfm2", "reasons"},
      {"MiniMax-M2", "minimax", "reasons"},
      {"ibm-granite-granite-3.3-2B-Instruct", "granite", "reasons"},
      {"HuggingFaceTB-SmolLM3-3B", "plain", "reasons"},
      {"NVIDIA-Nemotron-Nano-v2", "nemotron", "reasons"},
      {"fireworks-ai-llama-3-firefunction-v2", "functools", ""},
      {"meetkai-functionary-medium-v3.1", "functionary", ""},
      {"unsloth-Apriel-1.5", "tool_calls", ""},
  };
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
    char path[512], *source;
    size_t length;
    snprintf(path, sizeof path, "%s/%s.jinja", TEMPLATES, pairs[i][0]);
    CHECK_OK(mlx_read_file(path, SIZE_MAX, &source, &length));
    const mlx_output_format_t *format = mlx_output_format_find(source);
    const bool right = !strcmp(mlx_output_format_name(format), pairs[i][1]) &&
                       mlx_output_format_reasons(format) == !strcmp(pairs[i][2], "reasons");
    if (!right) {
      fprintf(stderr, "  %s: %s%s\n", pairs[i][0], mlx_output_format_name(format),
              mlx_output_format_reasons(format) ? ", reasons" : "");
    }
    wrong += !right;
    mlx_free(source);
  }
  CHECK_INT(wrong, 0);
}

static mlx_status_t find_any(void *user, const char *name) {
  char path[512], *source;
  size_t length;
  const char *tokens[MLX_OUTPUT_FORMAT_TOKENS];
  snprintf(path, sizeof path, "%s/%s", TEMPLATES, name);
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &source, &length));
  const mlx_output_format_t *format = mlx_output_format_find(source);
  CHECK(format);
  CHECK(mlx_output_format_tokens(format, tokens) <= MLX_OUTPUT_FORMAT_TOKENS);
  fprintf(stderr, "  %-60s %s%s\n", name, mlx_output_format_name(format),
          mlx_output_format_reasons(format) ? ", reasons" : "");
  ++*(size_t *)user;
  mlx_free(source);
  return NULL;
}

TEST(every_template_has_a_format) {
  size_t count = 0;
  CHECK_OK(mlx_list_dir(TEMPLATES, find_any, &count));
  CHECK(count > 60);
}

// ----------------------------------------------------------------------------------------------------------
// Grammars

static void check_grammar(const char *template, const mlx_output_options_t *call, const char *prompt,
                          const char *text, const char *expected) {
  const mlx_output_format_t *format = mlx_output_format_find(template);
  char *gbnf;
  size_t length;
  CHECK_OK(mlx_output_format_grammar(format, call, prompt, strlen(prompt), &gbnf, &length));
  CHECK(gbnf);
  if (grammar_matches(gbnf, length, text) != (expected != NULL))
    CHECK_FAIL("the grammar of %s %s\n%s\n%s", mlx_output_format_name(format),
               expected ? "refuses" : "accepts", text, gbnf);
  mlx_free(gbnf);
  if (expected) check_call(template, call, prompt, text, expected);
}

#define WEATHER "{\"city\":\"Köln\",\"days\":2}"

TEST(grammars_require_calls_in_the_syntax_of_the_format) {
  static const struct {
    const char *template, *prompt, *text, *expected;
  } cases[] = {
      {HERMES, "", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " WEATHER "}\n</tool_call>",
       "get_weather(" WEATHER ")"},
      {HERMES, "",
       "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
       "\"get_weather\", \"arguments\": " WEATHER "}\n</tool_call>",
       "get_time({})get_weather(" WEATHER ")"},
      {PYTHONIC, "", "[get_weather(city=\"K\\\"\", metric=True, tags=[\"a\", \"b\"]), get_time()]",
       "get_weather({\"city\": \"K\\\"\", \"metric\": true, \"tags\": [\"a\", \"b\"]})get_time({})"},
      {PYTHONIC, "", "[get_weather(days=2)]", NULL},
      {LFM2, "", "<|tool_call_start|>[get_weather(city=\"x\", days=-2)]<|tool_call_end|>",
       "get_weather({\"city\": \"x\", \"days\": -2})"},
      {HERMES, "", "Sure! <tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", NULL},
      {HERMES, "", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\":2}}\n</tool_call>",
       NULL},
      {HERMES, "", "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>", NULL},
      {QWEN3, "",
       "<think>\na < b </thin </</think\n</think>\n\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": "
       "{}}\n"
       "</tool_call>",
       "<a < b </thin </</think>get_time({})"},
      {QWEN3, "<think>\n", "Hm</think><tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
       "<Hm>get_time({})"},
      {QWEN3, "<think>\n", "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", NULL},
      {QWEN3, "<think>\n\n</think>\n\n",
       "<think></think><tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", NULL},
      {LLAMA, "", "{\"name\": \"get_weather\", \"parameters\": " WEATHER "}", "get_weather(" WEATHER ")"},
      {"", "", "{\"name\": \"get_weather\", \"arguments\": " WEATHER "}", "get_weather(" WEATHER ")"},
      {MISTRAL, "",
       "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " WEATHER
       "}, {\"name\": \"get_time\", \"arguments\": {}}]",
       "get_weather(" WEATHER ")get_time({})"},
      {MISTRAL_ARGS, "", "[TOOL_CALLS]get_weather[ARGS]" WEATHER "[TOOL_CALLS]get_time[ARGS]{}",
       "get_weather(" WEATHER ")get_time({})"},
      {MISTRAL_ARGS, "", "[THINK]a[b[/THINK][TOOL_CALLS]get_time[ARGS]{}", "<a[b>get_time({})"},
      {GPT_OSS, "",
       "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.get_weather "
       "<|constrain|>json<|message|>" WEATHER,
       "<x>get_weather(" WEATHER ")"},
      {GPT_OSS, "", "<|channel|>final<|message|>No.", NULL},
      {DEEPSEEK, "<think>\n",
       "x</"
       "think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```"
       "json\n" WEATHER "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "<x>get_weather(" WEATHER ")"},
      {DEEPSEEK31, "</think>",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" WEATHER
       "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
       "｜tool▁calls▁end｜>",
       "get_weather(" WEATHER ")get_time({})"},
      {CODER, "",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln </a>\n</parameter>\n<parameter=days>\n2\n"
       "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
       "get_weather({\"city\": \"Köln </a>\", \"days\": 2})get_time({})"},
      {CODER, "", "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>", NULL},  // no city
      {CODER, "",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\nx\n</"
       "parameter>\n"
       "</function>\n</tool_call>",
       NULL},
      {GLM, "</think>",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n</tool_call>",
       "get_weather({\"city\": \"Köln\"})"},
      {GEMMA4, "<|channel>thought\n<channel|>",
       "<|tool_call>call:get_weather{city:<|\"|>Köln<|\"|>,tags:[<|\"|>a<|\"|>]}<tool_call|>",
       "get_weather({\"city\": \"Köln\", \"tags\": [\"a\"]})"},
      {GEMMA4, "", "<|tool_call>call:get_weather{days:2}<tool_call|>", NULL},
      {FUNCTIONGEMMA, "", FUNCTIONGEMMA "get_weather{city:<escape>x<escape>,days:2}<end_function_call>",
       "get_weather({\"city\": \"x\", \"days\": 2})"},
      {"｜DSML｜invoke function_calls", "",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
       "string=\"true\">a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
       "string=\"false\">2</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "get_weather({\"city\": \"a\", \"days\": 2})"},
      {"<|START_ACTION|>", "",
       "<|START_ACTION|>[{\"tool_name\": \"get_time\", \"parameters\": {}}]<|END_ACTION|>", "get_time({})"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_output_options_t call = call_with_tools(i % 2);
    call.tool_choice = MLX_TOOLS_REQUIRED;
    check_grammar(cases[i].template, &call, cases[i].prompt, cases[i].text, cases[i].expected);
  }
}

TEST(grammars_of_a_named_tool_allow_one_call_of_it) {
  mlx_output_options_t call = call_with_tools(false);
  call.tool_choice = MLX_TOOLS_NAMED;
  call.tool_name = (char *)(uintptr_t)"get_time";
  check_grammar(LLAMA, &call, "", "{\"name\": \"get_time\", \"parameters\": {}}", "get_time({})");
  check_grammar(LLAMA, &call, "", "{\"name\": \"get_weather\", \"parameters\": " WEATHER "}", NULL);
  check_grammar(LLAMA, &call, "", "{\"name\": \"get_time\", \"parameters\": {\"a\": 1}}", NULL);
  char *gbnf;
  size_t length;
  call.tool_name = (char *)(uintptr_t)"nope";
  CHECK_ERROR(mlx_output_format_grammar(mlx_output_format_find(LLAMA), &call, "", 0, &gbnf, &length),
              MLX_INVALID_INPUT, "tool_choice: no tool has the name 'nope'");
  static const char odd[] =
      "[{\"function\":{\"name\":\"a\"}},{\"function\":{\"name\":\"f\",\"parameters\":{\"not\":{}}}}]";
  call = (mlx_output_options_t){.tools = (char *)(uintptr_t)odd, .tools_length = sizeof odd - 1};
  call.tool_choice = MLX_TOOLS_REQUIRED;
  CHECK_ERROR(mlx_output_format_grammar(mlx_output_format_find(LLAMA), &call, "", 0, &gbnf, &length),
              MLX_UNSUPPORTED, "tools[1].function.parameters: ");
}

TEST(grammars_of_a_format_allow_reasoning_before_it) {
  static const char schema[] =
      "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"}},"
      "\"required\":[\"a\"],\"additionalProperties\":false,"
      "\"$defs\":{\"n\":{\"type\":\"integer\"}}}",
                    gbnf[] = "root ::= word{2} # \"[\n word ::= [a-c]+ \"]\\\"\"";
  mlx_output_options_t call = {.format = MLX_FORMAT_JSON_SCHEMA,
                               .format_text = (char *)(uintptr_t)schema,
                               .format_length = sizeof schema - 1};
  char *none;
  size_t length;
  check_grammar(QWEN3, &call, "", "<think>\nx\n</think>\n\n{\"a\":1}", "<x>[{\"a\":1}]");
  check_grammar(QWEN3, &call, "", "{\"a\":1}", "[{\"a\":1}]");
  check_grammar(QWEN3, &call, "", "{\"a\":\"x\"}", NULL);
  check_grammar(HERMES, &call, "", "<think>\nx\n</think>\n\n{\"a\":1}", NULL);
  check_grammar(GPT_OSS, &call, "", "<|channel|>final<|message|>{\"a\":1}", "[{\"a\":1}]");
  call.format = MLX_FORMAT_GBNF;
  call.format_text = (char *)(uintptr_t)gbnf;
  call.format_length = sizeof gbnf - 1;
  check_grammar(QWEN3, &call, "<think>", "x</think>ab]\"c]\"", "<x>[ab]\"c]\"]");
  call.format = MLX_FORMAT_JSON;
  check_grammar(HERMES, &call, "", "{\"x\":[1]}", "[{\"x\":[1]}]");
  check_grammar(HERMES, &call, "", "[1]", NULL);
  // With tools, the model may also call one.
  mlx_output_options_t both = call_with_tools(true);
  both.format = MLX_FORMAT_JSON;
  check_grammar(HERMES, &both, "", "{\"x\":[1]}", "[{\"x\":[1]}]");
  check_grammar(HERMES, &both, "", "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
                "get_time({})");
  both.format = MLX_FORMAT_TEXT;
  CHECK_OK(mlx_output_format_grammar(mlx_output_format_find(HERMES), &both, "", 0, &none, &length));
  CHECK(!none);
}

TEST(long_reasoning_fits_the_grammar) {
  mlx_output_options_t call = {.format = MLX_FORMAT_JSON};
  mlx_text_t text = {0};
  char *gbnf;
  size_t length;
  mlx_text_puts(&text, "<think>");
  for (int i = 0; i < 20000; ++i) mlx_text_puts(&text, i % 7 ? "word " : "</t <");
  mlx_text_puts(&text, "</think>{}");
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(mlx_output_format_grammar(mlx_output_format_find(QWEN3), &call, "", 0, &gbnf, &length));
  CHECK(grammar_matches(gbnf, length, text.data));
  mlx_free(gbnf);
  mlx_text_clear(&text);
}

// Every real template's grammar for a required call is a valid grammar.
static mlx_status_t build_grammar(void *user, const char *name) {
  char path[512], *source, *gbnf;
  size_t length;
  mlx_grammar_t *grammar;
  mlx_output_options_t call = call_with_tools(true);
  call.tool_choice = MLX_TOOLS_REQUIRED;
  snprintf(path, sizeof path, "%s/%s", TEMPLATES, name);
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &source, &length));
  const mlx_output_format_t *format = mlx_output_format_find(source);
  CHECK_OK(mlx_output_format_grammar(format, &call, "", 0, &gbnf, &length));
  CHECK_OK(mlx_grammar_create(name, gbnf, length, &grammar));
  mlx_grammar_free(grammar);
  mlx_free(gbnf);
  mlx_free(source);
  ++*(size_t *)user;
  return NULL;
}

TEST(every_template_has_a_grammar_for_calls) {
  size_t count = 0;
  CHECK_OK(mlx_list_dir(TEMPLATES, build_grammar, &count));
  CHECK(count > 60);
}

// ----------------------------------------------------------------------------------------------------------
// Faults

static mlx_status_t ignore_event(void *user, const mlx_event_t *event) {
  (void)user;
  (void)event;
  return NULL;
}

static mlx_status_t parse_once(const char *template, const char *output, bool stream) {
  const mlx_output_format_t *format = mlx_output_format_find(template);
  mlx_output_options_t call = call_with_tools(stream);
  call.tool_choice = MLX_TOOLS_REQUIRED;
  const mlx_answer_logprob_t top = {.bytes = "x", .length = 1};
  const mlx_answer_token_t token = {.chosen = top, .top = &top, .top_count = 1};
  mlx_output_parser_t *parser;
  char *gbnf;
  size_t length;
  MLX_TRY(mlx_output_format_grammar(format, &call, "", 0, &gbnf, &length));
  mlx_free(gbnf);
  MLX_TRY(mlx_output_parser_create(format, &call, "", 0, 0, ignore_event, NULL, &parser));
  mlx_status_t status = NULL;
  for (size_t at = 0; output[at] && !status; ++at)
    status = mlx_output_parser_add(parser, output + at, 1, &token, 1);
  if (!status) status = mlx_output_parser_finish(parser, MLX_FINISH_STOP);
  mlx_output_parser_free(parser);
  return status;
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing) {
  static const char *const cases[][2] = {
      {QWEN3,
       "<think>a</think>b <tool_call>{\"name\": \"get_time\", \"arguments\": {\"a\": \"x\"}}</tool_call> "
       "<too"},
      {CODER, "<function=get_weather><parameter=city>a</parameter><parameter=days>2</parameter></function>"},
      {GEMMA4, "<|tool_call>call:get_weather{city:<|\"|>a<|\"|>}<tool_call|>"},
      {GPT_OSS, "<|channel|>commentary to=functions.get_time<|message|>{}<|call|>"}};
  for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; ++i) {
    mlx_memory_set_calls(&counting_memory);
    for (long target = 1;; ++target) {
      memory.count = memory.live = 0;
      memory.target = target;
      mlx_status_t status = parse_once(cases[i / 2][0], cases[i / 2][1], i % 2);
      CHECK_INT(memory.live, 0);
      const bool fails = memory.count >= target;
      if ((status != NULL) != fails)
        CHECK_FAIL("case %zu, allocation %ld: %s", i, target, mlx_status_message(status));
      mlx_status_free(status);
      if (!fails) break;
    }
    mlx_memory_set_calls(NULL);
  }
}

TEST_MAIN(CASE(plain_text_passes_through), CASE(reasoning_is_separate_from_the_answer),
          CASE(gpt_oss_channels_are_reasoning_text_and_calls), CASE(calls_as_objects_are_found),
          CASE(python_calls_are_found), CASE(text_that_is_no_python_call_is_text),
          CASE(calls_with_a_name_before_their_arguments_are_found),
          CASE(calls_with_tagged_arguments_get_the_types_of_the_schema), CASE(malformed_calls_are_text),
          CASE(calls_are_parsed_only_if_the_request_asks_for_them),
          CASE(ids_are_unique_and_of_the_length_that_templates_want),
          CASE(tokens_come_with_the_text_that_they_made),
          CASE(real_templates_have_the_format_of_their_family), CASE(every_template_has_a_format),
          CASE(grammars_require_calls_in_the_syntax_of_the_format),
          CASE(grammars_of_a_named_tool_allow_one_call_of_it),
          CASE(grammars_of_a_format_allow_reasoning_before_it), CASE(long_reasoning_fits_the_grammar),
          CASE(every_template_has_a_grammar_for_calls),
          CASE(a_failed_allocation_is_an_error_and_leaks_nothing))
