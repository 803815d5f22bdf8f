// Ollama's API: requests, answers, streams and lists of models, as the ollama package uses them.
#include "server/api/ollama.h"

#include "base/file.h"
#include "base/json.h"
#include "server/api/fields.h"
#include "tests/server/api_answers.h"

#define CHAT (&mlx_api_ollama_chat)
#define GENERATE (&mlx_api_ollama_generate)
#define USER "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

TEST(chats_are_read) {
  static const char body[] =
      "{\"model\":\"m\",\"stream\":false,\"keep_alive\":\"5m\",\"think\":\"high\",\"format\":{\"type\":"
      "\"object\"},"
      "\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Hi\","
      "\"images\":[]},"
      "{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"Hm\",\"tool_calls\":[{\"function\":{\"name\":"
      "\"f\","
      "\"arguments\":{\"a\":1}}},{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},{\"role\":\"tool\","
      "\"tool_name\":"
      "\"f\",\"content\":\"one\"},{\"role\":\"tool\",\"tool_name\":\"g\",\"content\":\"two\"}],"
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]"
      ","
      "\"options\":{\"temperature\":0,\"num_predict\":7,\"num_ctx\":2048,\"top_k\":3,\"seed\":5,\"stop\":["
      "\"x\"],"
      "\"repeat_penalty\":1.1,\"num_gpu\":1,\"mirostat\":0}}";
  mlx_api_call_t call;
  const mlx_answer_t answer = begin_answer();
  mlx_text_t out = {0};
  parse_call(CHAT, body, &call);
  CHECK(!call.stream);
  CHECK_TEXT(call.model, "m");
  CHECK_INT(call.max_tokens, 7);
  CHECK_INT(call.sampling.top_k, 3);
  CHECK_INT(call.sampling.seed, 5);
  CHECK(call.sampling.temperature == 0 && call.sampling.repeat_penalty == 1.1);
  CHECK_INT(call.stop_count, 1);
  CHECK_INT(call.format, MLX_FORMAT_JSON_SCHEMA);
  CHAT->note_context(&call, 2048, &out);
  CHECK(!out.length);
  CHAT->note_context(&call, 2047, &out);
  CHECK_TEXT(out.data, "options.num_ctx to 2047");
  mlx_text_clear(&out);
  CHECK(!CHAT->write_load(&call, &answer, &out) && !out.length);
  CHECK_TEXT(call.variables, "{\"enable_thinking\":true,\"thinking\":true,\"reasoning_effort\":\"high\"}");
  CHECK_CONTAINS(call.tools, "\"name\":\"f\"");
  CHECK_CONTAINS(call.messages, "\"reasoning_content\":\"Hm\"");
  CHECK_CONTAINS(call.messages, "\"id\":\"call00001\"");
  CHECK_CONTAINS(call.messages, "\"arguments\":{\"a\":1}");
  CHECK_CONTAINS(call.messages, "\"content\":\"one\",\"tool_call_id\":\"call00000\",\"name\":\"f\"");
  CHECK_CONTAINS(call.messages, "\"content\":\"two\",\"tool_call_id\":\"call00001\",\"name\":\"g\"");
  free_call(CHAT, &call);
  parse_call(CHAT, "{" USER ",\"format\":\"json\",\"think\":false,\"options\":{\"num_predict\":-1}}", &call);
  CHECK(call.stream);  // the default
  CHECK_INT(call.format, MLX_FORMAT_JSON);
  CHECK_INT(call.max_tokens, -1);
  CHECK_TEXT(call.variables, "{\"enable_thinking\":false,\"thinking\":false}");
  free_call(CHAT, &call);
  parse_call(CHAT, "{\"model\":\"m\",\"messages\":[]}", &call);
  CHECK(CHAT->write_load(&call, &answer, &out));
  CHECK_CONTAINS(out.data, "\"content\":\"\"},\"done\":true,\"done_reason\":\"load\"");
  mlx_text_clear(&out);
  free_call(CHAT, &call);
}

TEST(prompts_are_read) {
  mlx_api_call_t call;
  parse_call(
      GENERATE,
      "{\"model\":\"m\",\"prompt\":\"Why?\",\"system\":\"S\",\"format\":\"\",\"context\":[],\"suffix\":\"\"}",
      &call);
  CHECK_TEXT(call.messages,
             "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Why?\"}]");
  free_call(GENERATE, &call);
  parse_call(GENERATE,
             "{\"model\":\"m\",\"prompt\":\"Why?\",\"raw\":true,\"logprobs\":true,\"top_logprobs\":2}",
             &call);
  CHECK(!call.messages);
  CHECK_INT(call.prompt_count, 1);
  CHECK_TEXT(call.prompts[0].text, "Why?");
  CHECK_INT(call.logprobs, 2);
  free_call(GENERATE, &call);
  parse_call(GENERATE, "{\"model\":\"m\"}", &call);
  const mlx_answer_t answer = begin_answer();
  mlx_text_t out = {0};
  CHECK(GENERATE->write_load(&call, &answer, &out));
  CHECK_CONTAINS(out.data, "\"response\":\"\",\"done\":true,\"done_reason\":\"load\"");
  mlx_text_clear(&out);
  free_call(GENERATE, &call);
}

TEST(bad_requests_name_the_path) {
  static const struct {
    const mlx_api_t *api;
    const char *body, *error;
  } cases[] = {
      {CHAT, "[]", "invalid "},
      {CHAT, "{\"messages\":7}", "invalid messages: "},
      {CHAT, "{\"messages\":[{\"role\":\"x\"}]}", "invalid messages[0].role: "},
      {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"images\":[\"x\"]}]}",
       "unsupported messages[0].images: "},
      {CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
       "invalid messages[0].tool_calls[0].function: "},
      {CHAT, "{\"template\":\"x\"," USER "}", "unsupported template: "},
      {CHAT, "{\"format\":\"xml\"," USER "}", "invalid format: "},
      {CHAT, "{\"think\":\"much\"," USER "}", "invalid think: "},
      {CHAT, "{\"options\":{\"num_ctx\":\"x\"}," USER "}", "invalid options.num_ctx: "},
      {CHAT, "{\"options\":{\"frob\":1}," USER "}", "options.frob: "},
      {CHAT, "{\"options\":{\"temperature\":-1}," USER "}", "invalid options.temperature: "},
      {GENERATE, "{\"prompt\":\"a\",\"images\":[\"x\"]}", "unsupported images: "},
      {GENERATE, "{\"prompt\":\"a\",\"raw\":true,\"suffix\":1}", "invalid suffix: expected a string"},
      {GENERATE, "{\"prompt\":\"a\",\"context\":[1]}", "unsupported context: "},
      {GENERATE, "{\"prompt\":[]}", "invalid prompt: "},
  };
  for (size_t i = 0; i < COUNT(cases); ++i)
    CHECK_CONTAINS(parse_error(cases[i].api, cases[i].body, strlen(cases[i].body)), cases[i].error);
}

static const mlx_event_t events[] = {REASONING_EVENT("Hm"),        TEXT_EVENT("Wait."),
                                     TOOL_EVENT(0, "call_1", "f"), ARGUMENTS_EVENT(0, "{\"a\":"),
                                     ARGUMENTS_EVENT(0, " 1}"),    TOOL_END_EVENT(0),
                                     FINISH_EVENT(MLX_FINISH_STOP)};

#define HEAD "{\"model\":\"m\",\"created_at\":\"1970-01-01T00:00:07Z\""
#define DONE(reason)                                                              \
  ",\"done\":true,\"done_reason\":\"" reason                                      \
  "\",\"total_duration\":750000000,\"load_duration\":0,\"prompt_eval_count\":12," \
  "\"prompt_eval_duration\":500000000,\"eval_count\":5,\"eval_duration\":250000000}"
#define TOOLS \
  "\"tool_calls\":[{\"id\":\"call_1\",\"function\":{\"index\":0,\"name\":\"f\",\"arguments\":{\"a\": 1}}}]"

TEST(answers_have_ollamas_form) {
  mlx_text_t out = whole_answer(CHAT, "{\"stream\":false," USER "}", events, COUNT(events));
  CHECK_TEXT(out.data,
             HEAD ",\"message\":{\"role\":\"assistant\",\"content\":\"Wait.\",\"thinking\":\"Hm\"," TOOLS
                  "}" DONE("stop"));
  mlx_text_clear(&out);
  static const mlx_event_t text[] = {TEXT_EVENT("Yes"), FINISH_EVENT(MLX_FINISH_LENGTH)};
  out = whole_answer(GENERATE, "{\"prompt\":\"a\"}", text, COUNT(text));
  CHECK_TEXT(out.data, HEAD ",\"response\":\"Yes\"" DONE("length"));
  mlx_text_clear(&out);
}

TEST(streams_are_lines) {
  mlx_text_t out = streamed_answer(CHAT, "{" USER "}", events, COUNT(events), NULL);
#define MESSAGE(rest) HEAD ",\"message\":{\"role\":\"assistant\",\"content\":" rest "}"
  CHECK_TEXT(out.data,
             MESSAGE("\"\",\"thinking\":\"Hm\"") ",\"done\":false}\n" MESSAGE(
                 "\"Wait.\"") ",\"done\":false}\n" MESSAGE("\"\"," TOOLS) ",\"done\":false}\n" MESSAGE("\"\"")
                 DONE("stop") "\n");
  mlx_text_clear(&out);
  static const mlx_event_t cut[] = {TOOL_EVENT(0, "c", "f"), ARGUMENTS_EVENT(0, "{\"a\":"),
                                    TOOL_END_EVENT(0)};
  out = streamed_answer(CHAT, "{" USER "}", cut, COUNT(cut), NULL);
  CHECK_CONTAINS(out.data, MESSAGE("\"{\\\"a\\\":\"") ",\"done\":false}\n");
  mlx_text_clear(&out);
  static const mlx_api_error_t error = {.http_status = 500, .message = "no \"luck\""};
  out = streamed_answer(GENERATE, "{\"prompt\":\"a\"}", cut, 0, &error);
  CHECK_TEXT(out.data, "{\"error\":\"no \\\"luck\\\"\"}\n");
  mlx_text_clear(&out);
}

TEST(lists_of_models_have_ollamas_form) {
  static const mlx_ollama_model_t models[] = {{.name = "a",
                                               .family = "llama",
                                               .format = "gguf",
                                               .parameter_size = "1.2B",
                                               .quantization = "Q4_0",
                                               .template_source = "{{ x }}",
                                               .size = 100,
                                               .size_vram = 50,
                                               .parameter_count = 1200,
                                               .context = 4096,
                                               .modified = 1794824816,
                                               .is_loaded = true,
                                               .has_tools = true},
                                              {.name = "b"}};
  mlx_text_t out = {0};
  mlx_ollama_write_tags(models, 2, &out);
  CHECK_CONTAINS(out.data, "{\"models\":[{\"name\":\"a\",\"model\":\"a\",\"size\":100,\"digest\":\"");
  CHECK_INT((int64_t)strspn(strstr(out.data, "\"digest\":\"") + 10, "0123456789abcdef"), 64);
  CHECK_CONTAINS(out.data,
                 "\",\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":\"llama\","
                 "\"families\":[\"llama\"],"
                 "\"parameter_size\":\"1.2B\",\"quantization_level\":\"Q4_0\"},\"modified_at\":"
                 "\"2026-11-16T10:26:56Z\"},{\"name\":\"b\"");
  mlx_text_clear(&out);
  mlx_ollama_write_ps(models, 2, &out);
  CHECK_CONTAINS(out.data, "\"size_vram\":50,\"context_length\":4096}]}");
  CHECK(!strstr(out.data, "\"b\""));
  mlx_text_clear(&out);
  mlx_ollama_write_show(models, &out);
  CHECK_CONTAINS(out.data,
                 "\"model_info\":{\"general.architecture\":\"llama\",\"general.parameter_count\":1200,"
                 "\"llama.context_length\":4096},\"capabilities\":[\"completion\",\"tools\"]");
  mlx_text_clear(&out);
  mlx_ollama_write_version("0.12.0", &out);
  CHECK_TEXT(out.data, "{\"version\":\"0.12.0\"}");
  mlx_text_clear(&out);
  char *name;
  CHECK_OK(mlx_ollama_parse_show("{\"name\":\"old\",\"model\":\"new\"}", 28, NULL, &name));
  CHECK_TEXT(name, "new");
  mlx_free(name);
  static const char go[] =  // as Ollama's Go client sends it
      "{\"model\":\"m\",\"system\":\"\",\"template\":\"\",\"verbose\":false,\"options\":null,\"name\":\"\"}";
  CHECK_OK(mlx_ollama_parse_show(go, strlen(go), NULL, &name));
  CHECK_TEXT(name, "m");
  mlx_free(name);
  CHECK_OK(mlx_ollama_parse_show("{\"name\":\"old\",\"model\":\"\"}", 25, NULL, &name));
  CHECK_TEXT(name, "old");
  mlx_free(name);
  CHECK_ERROR(mlx_ollama_parse_show("{}", 2, NULL, &name), MLX_INVALID_INPUT, "model: missing");
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing) {
  static const char body[] = "{\"options\":{\"stop\":[\"x\"]},\"think\":true,\"format\":{}," USER "}";
  check_failing_allocations(CHAT, body, events, COUNT(events));
}

TEST(every_field_is_documented) {
  check_fields_are_documented(&mlx_api_ollama_chat);
  check_fields_are_documented(&mlx_api_ollama_generate);
}

TEST_MAIN(CASE(chats_are_read), CASE(prompts_are_read), CASE(bad_requests_name_the_path),
          CASE(answers_have_ollamas_form), CASE(streams_are_lines), CASE(lists_of_models_have_ollamas_form),
          CASE(every_field_is_documented), CASE(a_failed_allocation_is_an_error_and_leaks_nothing))
