// Requests of OpenAI's endpoints: what they become, and what is refused.
#include <math.h>

#include "base/file.h"
#include "server/api/fields.h"
#include "tests/server/api_answers.h"

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"
#define CHAT(rest) "{\"messages\":[" USER "]," rest "}"
#define MESSAGES(list) "{\"messages\":[" list "]}"
#define TOOLS \
  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]"

typedef struct bad_case {
  const char *body, *error;
} bad_case_t;

static void check_bad(const mlx_api_t *api, const bad_case_t *cases, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const char *error = parse_error(api, cases[i].body, strlen(cases[i].body));
    if (strncmp(error, cases[i].error, strlen(cases[i].error)))
      CHECK_FAIL("%s: %s\n  expected %s", cases[i].body, error, cases[i].error);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Chat

TEST(chat_messages_are_normalized) {
  static const struct {
    const char *list, *messages;
  } cases[] = {
      {USER, "[{\"role\":\"user\",\"content\":\"hi\"}]"},
      {"{\"role\":\"developer\",\"content\":\"be brief\"}," USER,
       "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"hi\"}]"},
      {"{\"role\":\"user\",\"name\":\"bob\",\"content\":[{\"type\":\"text\",\"text\":\"a\\\"\"},"
       "{\"type\":\"text\",\"text\":\"b\"},{\"text\":\"c\"}]}",
       "[{\"role\":\"user\",\"content\":\"a\\\"\\nb\\nc\",\"name\":\"bob\"}]"},
      {"{\"role\":\"user\",\"content\":[]},{\"role\":\"user\",\"content\":null}",
       "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}]"},
      {"{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\",\"audio\":null,\"function_call\":null}",
       "[{\"role\":\"assistant\",\"content\":\"no\"}]"},
      {"{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\",\"reasoning\":\"r\"}",
       "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\"}]"},
      {"{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\",\"annotations\":[]}",
       "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\"}]"},
      {"{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"
       "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1]}\"}},{\"id\":\"c2\",\"function\":{\"name\":\"g\","
       "\"arguments\":\"not json\"}},{\"id\":\"c3\",\"function\":{\"name\":\"h\",\"arguments\":\"\"}}]},"
       "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"42\"}",
       "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\","
       "\"function\":"
       "{\"name\":\"f\",\"arguments\":{\"a\": "
       "[1]}}},{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":"
       "\"g\",\"arguments\":\"not json\"}},{\"id\":\"c3\",\"type\":\"function\",\"function\":{\"name\":\"h\","
       "\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c1\"}]"},
      // arguments that are JSON but no object stay a string
      {"{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"["
       "1]\"}}]}",
       "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
       "\"function\":"
       "{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]"},
      {"{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":{"
       "\"a\":1}}}]}",
       "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
       "\"function\":"
       "{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}]"},
      // the older form has no ids: the n-th result belongs to the n-th call
      {"{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"f\",\"arguments\":\"{"
       "\\\"a\\\":1}\"}},"
       "{\"role\":\"function\",\"name\":\"f\",\"content\":\"42\"}",
       "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call00000\",\"type\":"
       "\"function\","
       "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},{\"role\":\"tool\",\"content\":\"42\","
       "\"tool_call_id\":\"call00000\",\"name\":\"f\"}]"},
      {"{\"role\":\"user\",\"content\":\"a\\u0000b\"}", "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]"},
  };
  for (size_t i = 0; i < COUNT(cases); ++i) {
    mlx_api_call_t call;
    char body[2048];
    snprintf(body, sizeof body, MESSAGES("%s"), cases[i].list);
    parse_call(&mlx_api_chat, body, &call);
    CHECK_TEXT(call.messages, cases[i].messages);
    CHECK_INT(call.messages_length, strlen(cases[i].messages));
    free_call(&mlx_api_chat, &call);
  }
}

TEST(bad_messages_are_refused_by_path) {
  static const bad_case_t cases[] = {
      {"{}", "invalid messages: expected a list, not nothing"},
      {MESSAGES(""), "invalid messages: expected at least one message"},
      {"{\"messages\":\"hi\"}", "invalid messages: expected a list, not a string"},
      {MESSAGES("1"), "invalid messages[0]: expected an object, not a number"},
      {MESSAGES(USER ",null"), "invalid messages[1]: expected an object"},
      {MESSAGES("{\"content\":\"x\"}"), "invalid messages[0].role: expected a string"},
      {MESSAGES("{\"role\":1}"), "invalid messages[0].role: expected a string, not a number"},
      {MESSAGES("{\"role\":\"robot\",\"content\":\"x\"}"),
       "invalid messages[0].role: expected system, developer"},
      {MESSAGES("{\"role\":\"user\"}"), "invalid messages[0].content: missing"},
      {MESSAGES("{\"role\":\"user\",\"content\":1}"),
       "invalid messages[0].content: expected a string or a list"},
      {MESSAGES("{\"role\":\"user\",\"content\":[1]}"), "invalid messages[0].content[0]: expected an object"},
      {MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"),
       "invalid messages[0].content[0].text: expected a string"},
      {MESSAGES(USER
                ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
                "\"image_url\":{\"url\":\"data:\"}}]}"),
       "unsupported messages[1].content[1].type: 'image_url' is not supported | this server reads text only"},
      {MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}"),
       "unsupported messages[0].content[0].type: 'input_audio' is not supported"},
      {MESSAGES("{\"role\":\"user\",\"content\":\"x\",\"images\":[\"AA\"]}"),
       "unsupported messages[0].images: not supported"},
      {MESSAGES("{\"role\":\"assistant\",\"function_call\":{\"arguments\":\"{}\"}}"),
       "invalid messages[0].function_call.name: expected a string"},
      {MESSAGES("{\"role\":\"user\",\"content\":\"x\",\"function_call\":{\"name\":\"f\"}}"),
       "invalid messages[0].function_call: only messages of the assistant"},
      {MESSAGES("{\"role\":\"function\",\"content\":\"x\"}"),
       "invalid messages[0].name: expected a string, not nothing"},
      {MESSAGES("{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[{}]}"),
       "invalid messages[0].tool_calls: only messages of the assistant"},
      {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":{}}"),
       "invalid messages[0].tool_calls: expected a list"},
      {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"x\"}]}"),
       "invalid messages[0].tool_calls[0].function: expected an object, not nothing"},
      {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}"),
       "invalid messages[0].tool_calls[0].function.name: expected a string"},
      {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":3}}]}"),
       "invalid messages[0].tool_calls[0].function.arguments: expected a string of JSON"},
      {MESSAGES(
           "{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"custom\",\"function\":{\"name\":\"f\"}}]}"),
       "unsupported messages[0].tool_calls[0].type: 'custom' is not supported"},
      {MESSAGES("{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":{}}"),
       "invalid messages[0].reasoning: expected a string, not an object"},
      {MESSAGES("{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":5}"),
       "invalid messages[0].tool_call_id: expected a string, not a number"},
  };
  check_bad(&mlx_api_chat, cases, COUNT(cases));
}

TEST(chat_fields_are_read) {
  mlx_api_call_t call;
  parse_call(
      &mlx_api_chat,
      CHAT("\"model\":\"m\",\"max_tokens\":5,\"max_completion_tokens\":5,\"temperature\":0.5,\"top_p\":0.5,"
           "\"n\":2,\"logprobs\":true,\"top_logprobs\":20,\"stop\":[\"x\"],\"stream\":true,"
           "\"stream_options\":{\"include_usage\":true},\"logit_bias\":{\"3\":-100},\"seed\":9,"
           "\"ignore_eos\":true,\"priority\":3,\"parallel_tool_calls\":false," TOOLS),
      &call);
  CHECK_TEXT(call.model, "m");
  CHECK_INT(call.max_tokens, 5);
  CHECK_INT(call.n, 2);
  CHECK_INT(call.logprobs, 20);
  CHECK_INT(call.stop_count, 1);
  CHECK(call.stream && call.ignore_eos && call.one_tool_call && call.sampling.temperature == 0.5);
  CHECK_INT(call.priority, -3);
  CHECK_INT(call.sampling.seed, 9);
  CHECK(call.sampling.biases[0].bias == -INFINITY);
  CHECK_TEXT(call.tools,
             "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]");
  CHECK_INT(call.tool_choice, MLX_TOOLS_AUTO);
  free_call(&mlx_api_chat, &call);

  parse_call(&mlx_api_chat,
             CHAT("\"model\":\"\",\"stop\":null,\"logprobs\":true,\"max_tokens\":null,\"tools\":[],"
                  "\"tool_choice\":\"none\",\"functions\":null,\"user\":\"u\",\"store\":true"),
             &call);
  CHECK(!call.model && !call.tools && !call.variables && !call.stream);
  CHECK_INT(call.max_tokens, -1);
  CHECK_INT(call.logprobs, 0);
  CHECK_INT(call.tool_choice, MLX_TOOLS_NONE);
  free_call(&mlx_api_chat, &call);
}

TEST(tools_are_read_and_null_descriptions_are_fine) {
  mlx_api_call_t call;
  parse_call(
      &mlx_api_chat,
      CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":null,"
           "\"parameters\":null,\"strict\":true}},{\"function\":{\"description\":\"d\",\"name\":\"b\"}}],"
           "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"b\"}}"),
      &call);
  CHECK_TEXT(call.tools,
             "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":true,\"parameters\":"
             "{\"type\":\"object\",\"properties\":{}}}},{\"type\":\"function\",\"function\":{\"name\":\"b\","
             "\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]");
  CHECK_INT(call.tool_choice, MLX_TOOLS_NAMED);
  CHECK_TEXT(call.tool_name, "b");
  free_call(&mlx_api_chat, &call);
  parse_call(&mlx_api_chat, CHAT(TOOLS ",\"tool_choice\":\"required\""), &call);
  CHECK_INT(call.tool_choice, MLX_TOOLS_REQUIRED);
  free_call(&mlx_api_chat, &call);
}

TEST(output_formats_are_read) {
  static const struct {
    const char *body;
    mlx_answer_format_t format;
    const char *text, *path;
  } cases[] = {
      {CHAT("\"response_format\":{\"type\":\"text\"},\"grammar\":\"\""), MLX_FORMAT_TEXT, NULL, NULL},
      {CHAT("\"response_format\":{\"type\":\"json_object\"}"), MLX_FORMAT_JSON, NULL, "response_format"},
      {CHAT("\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"null\"}}"),
       MLX_FORMAT_JSON_SCHEMA, "{\"type\":\"null\"}", "response_format.schema"},
      {CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,"
            "\"schema\":{\"type\":\"object\"}}}"),
       MLX_FORMAT_JSON_SCHEMA, "{\"type\":\"object\"}", "response_format.json_schema.schema"},
      {CHAT("\"grammar\":\"root ::= \\\"a\\\"\""), MLX_FORMAT_GBNF, "root ::= \"a\"", "grammar"},
      {CHAT("\"json_schema\":{\"type\":\"string\"}"), MLX_FORMAT_JSON_SCHEMA, "{\"type\":\"string\"}",
       "json_schema"},
      {CHAT("\"guided_json\":\"{}\""), MLX_FORMAT_JSON_SCHEMA, "{}", "guided_json"},
      {CHAT("\"guided_choice\":[\"a\\\"b\",\"c\\n\"]"), MLX_FORMAT_GBNF, "root ::= \"a\\\"b\" | \"c\\x0a\"",
       "guided_choice"},
      {CHAT("\"structured_outputs\":{\"json\":{\"type\":\"string\"}}"), MLX_FORMAT_JSON_SCHEMA,
       "{\"type\":\"string\"}", "structured_outputs.json"},
      {CHAT("\"guided_regex\":\"^a+$\""), MLX_FORMAT_GBNF,
       "c0 ::= [\\U00000061]\np0 ::= c0 p1\np1 ::= c0 p1 | \"\"\nroot ::= p0\n", "guided_regex"},
      {CHAT("\"structured_outputs\":{\"regex\":\"[ab]\"}"), MLX_FORMAT_GBNF,
       "c0 ::= [\\U00000061-\\U00000062]\np0 ::= c0 p1\np1 ::= \"\"\nroot ::= p0\n",
       "structured_outputs.regex"},
      {CHAT("\"response_format\":{\"type\":\"regex\",\"value\":\"a\"}"), MLX_FORMAT_GBNF,
       "c0 ::= [\\U00000061]\np0 ::= c0 p1\np1 ::= \"\"\nroot ::= p0\n", "response_format"},
      {CHAT("\"response_format\":{\"type\":\"grammar\",\"grammar\":\"root ::= [a]\"}"), MLX_FORMAT_GBNF,
       "root ::= [a]", "response_format"},
      {CHAT("\"structured_outputs\":{\"json_object\":true}"), MLX_FORMAT_JSON, NULL, "structured_outputs"},
  };
  for (size_t i = 0; i < COUNT(cases); ++i) {
    mlx_api_call_t call;
    parse_call(&mlx_api_chat, cases[i].body, &call);
    CHECK_INT(call.format, cases[i].format);
    CHECK_TEXT(call.format_text ? call.format_text : "none", cases[i].text ? cases[i].text : "none");
    CHECK_TEXT(call.format_path ? call.format_path : "none", cases[i].path ? cases[i].path : "none");
    if (cases[i].text) CHECK_INT(call.format_length, strlen(cases[i].text));
    free_call(&mlx_api_chat, &call);
  }
}

TEST(reasoning_fields_become_template_variables) {
  static const struct {
    const char *body, *variables;
  } cases[] = {
      {CHAT("\"reasoning_effort\":\"high\""), "{\"reasoning_effort\":\"high\",\"enable_thinking\":true}"},
      {CHAT("\"reasoning_effort\":\"none\""), "{\"reasoning_effort\":\"none\",\"enable_thinking\":false}"},
      {CHAT("\"reasoning_effort\":\"minimal\",\"verbosity\":\"low\""),
       "{\"reasoning_effort\":\"minimal\",\"verbosity\":\"low\",\"enable_thinking\":false}"},
      {CHAT("\"chat_template_kwargs\":{\"enable_thinking\":true,\"x\":[1]},\"reasoning_effort\":\"none\""),
       "{\"reasoning_effort\":\"none\",\"enable_thinking\":true,\"x\":[1]}"},
      {CHAT("\"enable_thinking\":true"), "{\"enable_thinking\":true}"},
      {CHAT("\"thinking\":{\"type\":\"disabled\"}"), "{\"enable_thinking\":false}"},
      {CHAT("\"reasoning\":{\"effort\":\"low\",\"enabled\":true,\"exclude\":true}"),
       "{\"reasoning_effort\":\"low\",\"enable_thinking\":true}"},
      {CHAT("\"chat_template_kwargs\":{}"), "none"},
      {CHAT("\"include_reasoning\":false,\"reasoning_format\":\"auto\",\"reasoning_effort\":null"), "none"},
  };
  for (size_t i = 0; i < COUNT(cases); ++i) {
    mlx_api_call_t call;
    parse_call(&mlx_api_chat, cases[i].body, &call);
    CHECK_TEXT(call.variables ? call.variables : "none", cases[i].variables);
    free_call(&mlx_api_chat, &call);
  }
}

TEST(the_last_message_is_continued_on_request) {
  mlx_api_call_t call;
  parse_call(&mlx_api_chat, CHAT("\"continue_final_message\":true,\"add_generation_prompt\":false"), &call);
  CHECK(call.continue_final);
  free_call(&mlx_api_chat, &call);
  parse_call(&mlx_api_chat, MESSAGES(USER ",{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}"),
             &call);
  CHECK(call.continue_final);
  CHECK_TEXT(call.messages,
             "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"x\"}]");
  free_call(&mlx_api_chat, &call);
}

TEST(functions_are_the_older_form_of_tools) {
#define FUNCTIONS "\"functions\":[{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]"
  mlx_api_call_t call;
  parse_call(&mlx_api_chat, CHAT(FUNCTIONS), &call);
  CHECK_TEXT(call.tools,
             "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]");
  CHECK_INT(call.tool_choice, MLX_TOOLS_AUTO);
  CHECK(call.one_tool_call);
  free_call(&mlx_api_chat, &call);
  parse_call(&mlx_api_chat, CHAT(FUNCTIONS ",\"function_call\":\"none\""), &call);
  CHECK_INT(call.tool_choice, MLX_TOOLS_NONE);
  free_call(&mlx_api_chat, &call);
  parse_call(&mlx_api_chat, CHAT(FUNCTIONS ",\"function_call\":{\"name\":\"f\"}"), &call);
  CHECK_INT(call.tool_choice, MLX_TOOLS_NAMED);
  CHECK_TEXT(call.tool_name, "f");
  free_call(&mlx_api_chat, &call);
}

TEST(bad_chat_fields_are_refused_by_path) {
  static const bad_case_t cases[] = {
      {CHAT("\"temprature\":1"), "unsupported temprature: unknown field | did you mean 'temperature'?"},
      {CHAT("\"functions\":{}"), "invalid functions: expected a list, not an object"},
      {CHAT("\"functions\":[{}]"), "invalid functions[0].name: expected a string"},
      {CHAT("\"function_call\":\"required\""), "invalid function_call: expected auto, none or an object"},
      {CHAT("\"functions\":[{\"name\":\"f\"}],\"function_call\":{\"name\":\"g\"}"),
       "invalid function_call.name: functions has no function 'g'"},
      {CHAT(TOOLS ",\"functions\":[{\"name\":\"f\"}]"),
       "invalid functions: not possible together with tools"},
      {CHAT("\"model\":1"), "invalid model: expected a string, not a number"},
      {CHAT("\"max_tokens\":0"), "invalid max_tokens: expected at least 1 token"},
      {CHAT("\"max_tokens\":-5"), "invalid max_tokens: expected an integer from -1"},
      {CHAT("\"max_tokens\":\"5\""), "invalid max_tokens: expected an integer, not a string"},
      {CHAT("\"max_tokens\":99999999999999999999"),
       "invalid max_tokens: expected an integer from -1 to 2147483647"},
      {CHAT("\"max_tokens\":5,\"max_completion_tokens\":6"),
       "invalid max_tokens: differs from max_completion_tokens"},
      {CHAT("\"n\":0"), "invalid n: expected an integer from 1 to 128, not 0"},
      {CHAT("\"n\":129"), "invalid n: expected an integer from 1 to 128, not 129"},
      {CHAT("\"logprobs\":5"), "invalid logprobs: expected true or false, not a number"},
      {CHAT("\"top_logprobs\":5"), "invalid top_logprobs: needs logprobs: true"},
      {CHAT("\"logprobs\":true,\"top_logprobs\":21"),
       "invalid top_logprobs: expected an integer from 0 to 20"},
      {CHAT("\"stream\":\"yes\""), "invalid stream: expected true or false, not a string"},
      {CHAT("\"stream_options\":true"), "invalid stream_options: expected an object, not a boolean"},
      {CHAT("\"stream_options\":{\"include_usge\":true}"),
       "unsupported stream_options.include_usge: unknown field"},
      {CHAT("\"temperature\":-0.1"), "invalid temperature: expected"},
      {CHAT("\"skip_special_tokens\":false"), "unsupported skip_special_tokens: false is not supported"},
      {CHAT("\"min_tokens\":-4"), "invalid min_tokens: expected an integer from 0"},
      {CHAT("\"response_format\":\"json\""), "invalid response_format: expected an object, not a string"},
      {CHAT("\"response_format\":{}"), "invalid response_format.type: expected a string"},
      {CHAT("\"response_format\":{\"type\":\"xml\"}"),
       "unsupported response_format.type: unknown format 'xml'"},
      {CHAT("\"response_format\":{\"type\":\"json_schema\"}"),
       "invalid response_format.json_schema: expected"},
      {CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\"}}"),
       "invalid response_format.json_schema.schema: expected a JSON schema, not nothing"},
      {CHAT("\"grammar\":\"root ::= x\",\"json_schema\":{}"),
       "invalid json_schema: the output format is given twice, also by grammar"},
      {CHAT("\"guided_choice\":[]"), "invalid guided_choice: expected a list of at least one string"},
      {CHAT("\"guided_choice\":[\"a\",1]"), "invalid guided_choice[1]: expected a string, not a number"},
      {CHAT("\"guided_regex\":\"(?=a)\""),
       "unsupported guided_regex: the regular expression has a lookahead"},
      {CHAT("\"guided_regex\":1"), "invalid guided_regex: expected a regular expression as a string"},
      {CHAT("\"structured_outputs\":{\"regex\":\"(a\"}"),
       "unsupported structured_outputs.regex: the regular expression has a ( without )"},
      {CHAT("\"response_format\":{\"type\":\"regex\"}"),
       "invalid response_format.pattern: expected a regular expression as a string"},
      {CHAT("\"tools\":{}"), "invalid tools: expected a list, not an object"},
      {CHAT("\"tools\":[1]"), "invalid tools[0]: expected an object, not a number"},
      {CHAT("\"tools\":[{\"type\":\"web_search\"}]"),
       "unsupported tools[0].type: 'web_search' is not supported"},
      {CHAT("\"tools\":[{\"type\":\"function\"}]"),
       "invalid tools[0].function: expected an object, not nothing"},
      {CHAT("\"tools\":[{\"function\":{}}]"), "invalid tools[0].function.name: expected a string"},
      {CHAT("\"tools\":[{\"function\":{\"name\":\"\"}}]"),
       "invalid tools[0].function.name: expected 1 to 256 bytes"},
      {CHAT("\"tools\":[{\"function\":{\"name\":\"a b\"}}]"),
       "invalid tools[0].function.name: contains a space"},
      {CHAT("\"tools\":[{\"function\":{\"name\":\"f\",\"description\":4}}]"),
       "invalid tools[0].function.description: expected a string, not a number"},
      {CHAT("\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]"),
       "invalid tools[0].function.parameters: expected an object, not a list"},
      {CHAT("\"tool_choice\":\"required\""), "invalid tool_choice: required needs tools"},
      {CHAT("\"tool_choice\":\"any\""), "invalid tool_choice: expected auto, none or required, not 'any'"},
      {CHAT("\"tool_choice\":1"), "invalid tool_choice: expected a string or an object, not a number"},
      {CHAT(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"),
       "invalid tool_choice.function.name: tools has no function 'g'"},
      {CHAT(TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}"),
       "unsupported tool_choice.type: 'allowed_tools' is not supported"},
      {CHAT("\"reasoning_effort\":\"huge\""), "invalid reasoning_effort: expected none, minimal, low"},
      {CHAT("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5}"),
       "unsupported thinking.budget_tokens: not"},
      {CHAT("\"reasoning_format\":\"none\""), "unsupported reasoning_format: 'none' is not supported"},
      {CHAT("\"chat_template_kwargs\":[]"), "invalid chat_template_kwargs: expected an object, not a list"},
      {CHAT("\"add_generation_prompt\":true,\"continue_final_message\":true"),
       "invalid add_generation_prompt: not possible with continue_final_message"},
      {CHAT("\"modalities\":[\"text\",\"audio\"]"), "unsupported modalities[1]: only text is supported"},
      {CHAT("\"temperature\":1,\"temperature\":2"), "invalid temperature: the key is given twice"},
  };
  check_bad(&mlx_api_chat, cases, COUNT(cases));
}

// ----------------------------------------------------------------------------------------------------------
// Completions

TEST(completion_prompts_have_four_forms) {
  mlx_api_call_t call;
  parse_call(&mlx_api_completion, "{\"prompt\":\"a\\u0000b\",\"n\":2,\"best_of\":2,\"echo\":true}", &call);
  CHECK_INT(call.prompt_count, 1);
  CHECK_INT(call.prompts[0].length, 3);
  CHECK_INT(call.max_tokens, 16);
  CHECK(!call.messages && call.echo);
  free_call(&mlx_api_completion, &call);
  parse_call(&mlx_api_completion,
             "{\"prompt\":[\"a\",\"b\"],\"logprobs\":0,\"max_tokens\":0,\"suffix\":\"\"}", &call);
  CHECK_INT(call.prompt_count, 2);
  CHECK_TEXT(call.prompts[1].text, "b");
  CHECK_INT(call.logprobs, 0);
  CHECK_INT(call.max_tokens, 0);
  free_call(&mlx_api_completion, &call);
  parse_call(&mlx_api_completion, "{\"prompt\":[1,2,3],\"max_tokens\":-1}", &call);
  CHECK_INT(call.prompt_count, 1);
  CHECK_INT(call.prompts[0].id_count, 3);
  CHECK_INT(call.prompts[0].ids[2], 3);
  CHECK_INT(call.max_tokens, -1);
  free_call(&mlx_api_completion, &call);
  parse_call(&mlx_api_completion, "{\"prompt\":[[1,2],[3]]}", &call);
  CHECK_INT(call.prompt_count, 2);
  CHECK_INT(call.prompts[1].ids[0], 3);
  free_call(&mlx_api_completion, &call);
}

TEST(bad_completion_fields_are_refused_by_path) {
  static const bad_case_t cases[] = {
      {"{}", "invalid prompt: expected a string or a list, not nothing"},
      {"{\"prompt\":5}", "invalid prompt: expected a string or a list, not a number"},
      {"{\"prompt\":[]}", "invalid prompt: expected at least one prompt"},
      {"{\"prompt\":[[]]}", "invalid prompt[0]: expected at least one token id"},
      {"{\"prompt\":[1,-2]}", "invalid prompt[1]: expected a token id"},
      {"{\"prompt\":[1,[2]]}", "invalid prompt[1]: expected a token id"},
      {"{\"prompt\":[\"a\",-1]}", "invalid prompt[1]: expected a token id or a string"},
      {"{\"prompt\":[\"a\",{}]}", "invalid prompt[1]: expected a string or a list of token ids"},
      {"{\"prompt\":[[1,2.5]]}", "invalid prompt[0][1]: expected a token id"},
      {"{\"prompt\":[[4294967296]]}", "invalid prompt[0][0]: expected a token id"},
      {"{\"prompt\":[1],\"suffix\":\"b\"}", "invalid suffix: needs one prompt"},
      {"{\"prompt\":\"a\",\"n\":3,\"best_of\":2}", "invalid best_of: expected at least n, which is 3"},
      {"{\"prompt\":\"a\",\"best_of\":3,\"stream\":true}",
       "invalid best_of: more than n is not possible with stream"},
      {"{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"],\"best_of\":128}",
       "invalid best_of: best_of times the number"},
      {"{\"prompt\":\"a\",\"logprobs\":21}", "invalid logprobs: expected an integer from 0 to 20"},
      {"{\"prompt\":\"a\",\"logprobs\":true}", "invalid logprobs: expected an integer, not a boolean"},
      {"{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"],\"n\":128}",
       "invalid n: n times the number"},
      {"{\"prompt\":\"a\",\"messages\":[]}",
       "unsupported messages: not supported | use /v1/chat/completions"},
      {"{\"prompt\":\"a\",\"top_logprobs\":1}", "unsupported top_logprobs: unknown field"},
  };
  check_bad(&mlx_api_completion, cases, COUNT(cases));
}

// ----------------------------------------------------------------------------------------------------------
// Responses

TEST(response_input_becomes_messages) {
  static const struct {
    const char *body, *messages;
  } cases[] = {
      {"{\"input\":\"hi\"}", "[{\"role\":\"user\",\"content\":\"hi\"}]"},
      {"{\"input\":[" USER "],\"instructions\":\"be brief\"}",
       "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"hi\"}]"},
      // instructions and the developer messages after them are one system message
      {"{\"instructions\":\"a\",\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":[{"
       "\"type\":"
       "\"input_text\",\"text\":\"b\"}]}," USER ",{\"role\":\"system\",\"content\":\"c\"}]}",
       "[{\"role\":\"system\",\"content\":\"a\\n\\nb\"},{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
       "\"system\","
       "\"content\":\"c\"}]"},
      // reasoning, text and calls of one turn are one message
      {"{\"input\":[" USER
       ",{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
       "\"r\"}],\"encrypted_content\":null},{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"assistant\","
       "\"status\":"
       "\"completed\",\"content\":[{\"type\":\"output_text\",\"text\":\"t\",\"annotations\":[]}]},{\"type\":"
       "\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_"
       "call\",\"call_id\":"
       "\"c2\",\"name\":\"g\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\","
       "\"output\":\"1\"},"
       "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\",\"text\":"
       "\"2\"}]}]}",
       "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"t\",\"reasoning_"
       "content\":\"r\","
       "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}},"
       "{\"id\":"
       "\"c2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},{\"role\":\"tool\","
       "\"content\":\"1\","
       "\"tool_call_id\":\"c1\"},{\"role\":\"tool\",\"content\":\"2\",\"tool_call_id\":\"c2\"}]"},
      // a second turn of the assistant is a second message
      {"{\"input\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{"
       "\"type\":"
       "\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}]},{\"role\":\"assistant\","
       "\"content\":\"c\"}]}",
       "[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":"
       "\"assistant\","
       "\"content\":\"c\",\"reasoning_content\":\"s\"}]"},
  };
  for (size_t i = 0; i < COUNT(cases); ++i) {
    mlx_api_call_t call;
    parse_call(&mlx_api_responses, cases[i].body, &call);
    CHECK_TEXT(call.messages, cases[i].messages);
    free_call(&mlx_api_responses, &call);
  }
}

TEST(response_fields_are_read_and_tools_of_coding_agents_are_skipped) {
  mlx_api_call_t call;
  parse_call(
      &mlx_api_responses,
      "{\"input\":\"x\",\"max_output_tokens\":9,\"tools\":[{\"type\":\"web_search\"},{\"type\":\"custom\","
      "\"name\":"
      "\"apply_patch\"},{\"type\":\"namespace\"},{\"type\":\"image_generation\"},{\"type\":\"local_shell\"},{"
      "\"type\":"
      "\"mcp\"},{\"type\":\"function\",\"name\":\"f\",\"description\":null,\"strict\":false,\"parameters\":{}"
      "}],"
      "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"parallel_tool_calls\":false,\"text\":{"
      "\"format\":{"
      "\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"}},\"verbosity\":\"low\"},"
      "\"reasoning\":{"
      "\"effort\":\"minimal\",\"summary\":\"auto\"},\"include\":[\"reasoning.encrypted_content\","
      "\"message.output_text.logprobs\"],\"store\":false,\"prompt_cache_key\":\"k\",\"client_metadata\":{}}",
      &call);
  CHECK_INT(call.max_tokens, 9);
  CHECK_TEXT(call.tools,
             "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":false,\"parameters\":{}}}]");
  CHECK_INT(call.tool_choice, MLX_TOOLS_NAMED);
  CHECK(call.one_tool_call);
  CHECK_INT(call.format, MLX_FORMAT_JSON_SCHEMA);
  CHECK_TEXT(call.format_path, "text.format.schema");
  CHECK_TEXT(call.variables,
             "{\"reasoning_effort\":\"minimal\",\"verbosity\":\"low\",\"enable_thinking\":false}");
  CHECK_INT(call.logprobs, 0);
  free_call(&mlx_api_responses, &call);
}

TEST(bad_response_fields_are_refused_by_path) {
  static const bad_case_t cases[] = {
      {"{}", "invalid input: expected a string or a list of items, not nothing"},
      {"{\"input\":[]}", "invalid input: expected at least one item"},
      {"{\"input\":[1]}", "invalid input[0]: expected an object, not a number"},
      {"{\"input\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
       "invalid input[0].role: expected system, developer"},
      {"{\"input\":[{\"role\":\"user\"}]}", "invalid input[0].content: expected a string or a list of parts"},
      {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
       "unsupported input[0].content[0].type: 'input_image' is not supported"},
      {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}",
       "unsupported input[0].type: 'item_reference' is not supported | items have no references"},
      {"{\"input\":[{\"type\":\"computer_call\"}]}",
       "unsupported input[0].type: 'computer_call' is not supported"},
      {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\"}]}",
       "invalid input[0].call_id: expected a string"},
      {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\"}]}",
       "invalid input[0].name: expected a string"},
      {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]}",
       "invalid input[0].output: expected"},
      {"{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}",
       "invalid previous_response_id: there is no response 'resp_1' | send the whole conversation"},
      {"{\"input\":\"x\",\"conversation\":\"c\"}", "unsupported conversation: not supported"},
      {"{\"input\":\"x\",\"background\":true}", "unsupported background: not supported"},
      {"{\"input\":\"x\",\"reasoning\":{\"mode\":\"pro\"}}", "unsupported reasoning.mode: expected standard"},
      {"{\"input\":\"x\",\"truncation\":\"auto\"}", "unsupported truncation: 'auto' is not supported"},
      {"{\"input\":\"x\",\"include\":[\"x\"]}", "unsupported include[0]: not supported"},
      {"{\"input\":\"x\",\"tools\":[{\"type\":\"computer\"}]}",
       "unsupported tools[0].type: 'computer' is not supported"},
      {"{\"input\":\"x\",\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"required\"}",
       "invalid tool_choice: required needs tools"},
      {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}",
       "invalid text.format.schema: expected"},
      {"{\"input\":\"x\",\"reasoning\":{\"effort\":\"x\"}}", "invalid reasoning.effort: expected none"},
      {"{\"input\":\"x\",\"metadata\":[]}", "invalid metadata: expected an object, not a list"},
      {"{\"input\":\"x\",\"max_tokens\":5}", "unsupported max_tokens: not supported | use max_output_tokens"},
  };
  check_bad(&mlx_api_responses, cases, COUNT(cases));
}

// ----------------------------------------------------------------------------------------------------------
// Hostile input

TEST(hostile_bodies_are_refused_without_harm) {
  static const mlx_api_t *const apis[] = {&mlx_api_chat, &mlx_api_completion, &mlx_api_responses};
  static const bad_case_t cases[] = {
      {"", "invalid the request body is not valid JSON"},
      {"null", "invalid the request body must be a JSON object"},
      {"{\"prompt\":\"\xff\"}", "invalid the request body is not valid JSON"},
      {"{\"temperature\":NaN}", "invalid the request body is not valid JSON"},
      {"{\"temperature\":1e999}", "invalid the request body is not valid JSON"},
      {"{\"messages\":[", "invalid the request body is not valid JSON"},
      {"{\"\\u0000\":1}", "unsupported [\"\"]: unknown field"},
  };
  mlx_text_t deep = {0}, many = {0};
  mlx_text_puts(&deep, "{\"messages\":");
  for (int i = 0; i < 100000; ++i) mlx_text_puts(&deep, "[");
  for (int i = 0; i < 100000; ++i) mlx_text_puts(&deep, "]");
  mlx_text_puts(&deep, "}");
  mlx_text_puts(&many, "{\"stop\":[\"a\"");
  for (int i = 0; i < 100; ++i) mlx_text_puts(&many, ",\"a\"");
  mlx_text_puts(&many, "],\"messages\":[" USER "]}");
  for (size_t i = 0; i < COUNT(apis); ++i) {
    check_bad(apis[i], cases, COUNT(cases));
    CHECK_CONTAINS(parse_error(apis[i], deep.data, deep.length), "nested deeper than 64 levels");
  }
  mlx_text_clear(&deep);
  CHECK_CONTAINS(parse_error(&mlx_api_chat, many.data, many.length), "stop: more than 64 stop strings");
  mlx_text_clear(&many);
}

TEST(a_message_of_a_megabyte_is_kept_whole) {
  mlx_text_t body = {0};
  mlx_api_call_t call;
  mlx_text_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
  for (int i = 0; i < 1 << 20; ++i) mlx_text_puts(&body, "x");
  mlx_text_puts(&body, "\"}],\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"description\":\"");
  for (int i = 0; i < 1 << 20; ++i) mlx_text_puts(&body, "y");
  mlx_text_puts(&body, "\"}}}]}");
  parse_call(&mlx_api_chat, body.data, &call);
  CHECK(call.messages_length > 1 << 20 && call.tools_length > 1 << 20);
  free_call(&mlx_api_chat, &call);
  mlx_text_clear(&body);
}

// Arguments that would nest the messages too deep, or repeat a key, stay a string.
TEST(hostile_arguments_of_a_tool_call_stay_a_string) {
  mlx_text_t body = {0};
  mlx_api_call_t call;
  mlx_text_puts(&body,
                "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                "\"arguments\":\"{\\\"a\\\":");
  for (int i = 0; i < 60; ++i) mlx_text_puts(&body, "[");
  for (int i = 0; i < 60; ++i) mlx_text_puts(&body, "]");
  mlx_text_puts(&body,
                "}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1,\\\"a\\\":2}\"}}]}]}");
  parse_call(&mlx_api_chat, body.data, &call);
  CHECK_CONTAINS(call.messages, "\"arguments\":\"{\\\"a\\\":[[");
  CHECK_CONTAINS(call.messages, "\"arguments\":\"{\\\"a\\\":1,\\\"a\\\":2}\"");
  free_call(&mlx_api_chat, &call);
  mlx_text_clear(&body);
}

// ----------------------------------------------------------------------------------------------------------
// Documentation

TEST(every_ignored_and_refused_field_is_documented) {
  check_fields_are_documented(&mlx_api_chat);
  check_fields_are_documented(&mlx_api_completion);
  check_fields_are_documented(&mlx_api_responses);
  check_fields_are_documented(&mlx_api_llama_completion);
  check_fields_are_documented(&mlx_api_llama_infill);
}

TEST_MAIN(CASE(chat_messages_are_normalized), CASE(bad_messages_are_refused_by_path),
          CASE(chat_fields_are_read), CASE(tools_are_read_and_null_descriptions_are_fine),
          CASE(output_formats_are_read), CASE(reasoning_fields_become_template_variables),
          CASE(the_last_message_is_continued_on_request), CASE(functions_are_the_older_form_of_tools),
          CASE(bad_chat_fields_are_refused_by_path), CASE(completion_prompts_have_four_forms),
          CASE(bad_completion_fields_are_refused_by_path), CASE(response_input_becomes_messages),
          CASE(response_fields_are_read_and_tools_of_coding_agents_are_skipped),
          CASE(bad_response_fields_are_refused_by_path), CASE(hostile_bodies_are_refused_without_harm),
          CASE(a_message_of_a_megabyte_is_kept_whole), CASE(hostile_arguments_of_a_tool_call_stay_a_string),
          CASE(every_ignored_and_refused_field_is_documented))
