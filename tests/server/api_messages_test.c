// Anthropic's messages API: requests, answers and streams, as the anthropic package and Claude Code use them.
#include "server/api/anthropic.h"

#include "base/file.h"
#include "base/json.h"
#include "server/api/fields.h"
#include "tests/server/api_answers.h"

#define SHAPE (&mlx_api_messages)
#define USER "\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static void check_messages(const char *body, const char *messages) {
  mlx_api_call_t call;
  parse_call(SHAPE, body, &call);
  CHECK_TEXT(call.messages, messages);
  free_call(SHAPE, &call);
}

TEST(requests_become_chat_messages) {
  check_messages("{" USER "}", "[{\"role\":\"user\",\"content\":\"Hi\"}]");
  check_messages("{\"system\":\"Be brief.\"," USER "}",
                 "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi\"}]");
  check_messages(
      "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
      "\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"text\",\"text\":\"b\"},{\"type\":"
      "\"document\",\"source\":{\"type\":\"text\",\"media_type\":\"text/plain\",\"data\":\"c\"}}]}]}",
      "[{\"role\":\"user\",\"content\":\"a\\nb\\nc\"}]");
}

// Claude Code: the block with the billing header changes with every request.
TEST(the_rotating_billing_header_is_no_part_of_the_prompt) {
  static const char first[] =
      "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cc_version=2.1; "
      "cch=1f3a;\"},{\"type\":"
      "\"text\",\"text\":\"You are Claude Code.\",\"cache_control\":{\"type\":\"ephemeral\"}}]," USER "}";
  check_messages(
      first,
      "[{\"role\":\"system\",\"content\":\"You are Claude Code.\"},{\"role\":\"user\",\"content\":\"Hi\"}]");
  check_messages("{\"system\":\"x-anthropic-billing-header: cch=7;\\nRest\"," USER "}",
                 "[{\"role\":\"system\",\"content\":\"Rest\"},{\"role\":\"user\",\"content\":\"Hi\"}]");
  check_messages("{\"system\":\"x-anthropic-billing-header: cch=7;\"," USER "}",
                 "[{\"role\":\"user\",\"content\":\"Hi\"}]");
}

TEST(tool_use_thinking_and_results_are_read_back) {
  static const char body[] =
      "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
      "\"content\":["
      "{\"type\":\"thinking\",\"thinking\":\"Hm.\",\"signature\":\"abc\"},{\"type\":\"redacted_thinking\","
      "\"data\":"
      "\"x\"},{\"type\":\"text\",\"text\":\"Wait.\"},{\"type\":\"tool_use\",\"id\":\"call_1\",\"name\":\"f\","
      "\"input\":{\"a\":1}},{\"type\":\"tool_use\",\"id\":\"call_2\",\"name\":\"g\",\"input\":{}}]},{"
      "\"role\":\"user\","
      "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"call_1\",\"content\":\"one\"},{\"type\":"
      "\"tool_result\",\"tool_use_id\":\"call_2\",\"is_error\":true,\"content\":[{\"type\":\"text\",\"text\":"
      "\"two\"}]},"
      "{\"type\":\"text\",\"text\":\"Go on.\"}]}]}";
  mlx_api_call_t call;
  parse_call(SHAPE, body, &call);
  CHECK_CONTAINS(call.messages, "\"content\":\"Wait.\"");
  CHECK_CONTAINS(call.messages, "\"reasoning_content\":\"Hm.\"");
  CHECK_CONTAINS(call.messages, "\"id\":\"call_1\"");
  CHECK_CONTAINS(call.messages, "\"name\":\"f\",\"arguments\":{\"a\":1}");
  CHECK_CONTAINS(call.messages, "{\"role\":\"tool\",\"content\":\"one\",\"tool_call_id\":\"call_1\"}");
  CHECK_CONTAINS(call.messages,
                 "{\"role\":\"tool\",\"content\":\"Error:\\ntwo\",\"tool_call_id\":\"call_2\"}");
  const char *last = strstr(call.messages, "{\"role\":\"user\",\"content\":\"Go on.\"}");
  CHECK(last && last > strstr(call.messages, "call_2"));
  CHECK(!call.continue_final);
  free_call(SHAPE, &call);
}

// Claude Code 2.1: a search for tools gives references, and a tool with "defer_loading" is hidden until then.
TEST(a_deferred_tool_is_seen_after_a_reference_to_it) {
#define TOOLS                                                                                       \
  "\"tools\":[{\"name\":\"f\",\"input_schema\":{}},{\"name\":\"late\",\"input_schema\":{},\"defer_" \
  "loading\":"                                                                                      \
  "true}"
#define CHOICE ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"late\"}"
#define REFERENCE                                                                                        \
  "\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_" \
  "id\":\"c\","                                                                                          \
  "\"content\":[{\"type\":\"tool_reference\",\"tool_name\":\"late\"}]}]}]}"
  mlx_api_call_t call;
  parse_call(SHAPE, "{" TOOLS "]," USER "}", &call);
  CHECK_CONTAINS(call.tools, "\"name\":\"f\"");
  CHECK(!strstr(call.tools, "late"));
  free_call(SHAPE, &call);
  parse_call(SHAPE, "{" TOOLS "]" CHOICE "," REFERENCE, &call);
  CHECK_CONTAINS(call.tools, "\"name\":\"late\"");
  CHECK_TEXT(call.messages,
             "[{\"role\":\"tool\",\"content\":\"The tool late can be called now.\",\"tool_call_id\":\"c\"}]");
  free_call(SHAPE, &call);
  parse_call(SHAPE, "{" TOOLS ",{\"type\":\"tool_search_tool_bm25_20251119\",\"name\":\"s\"}]," USER "}",
             &call);
  CHECK_CONTAINS(call.tools, "\"name\":\"late\"");
  free_call(SHAPE, &call);
  static const char hidden[] = "{" TOOLS "]" CHOICE "," USER "}";
  CHECK_CONTAINS(parse_error(SHAPE, hidden, strlen(hidden)), "invalid tool_choice.name: no custom tool");
#undef TOOLS
#undef CHOICE
#undef REFERENCE
}

TEST(an_assistant_message_at_the_end_is_continued) {
  mlx_api_call_t call;
  parse_call(SHAPE,
             "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
             "\"content\":\"The answer is (\"}]}",
             &call);
  CHECK(call.continue_final);
  free_call(SHAPE, &call);
}

TEST(options_are_read) {
  static const char body[] =
      "{\"model\":\"m\",\"stream\":true,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":7,\"stop_sequences\":["
      "\"a\",\"b\"],"
      "\"metadata\":{\"user_id\":\"x\"},\"service_tier\":\"auto\",\"context_management\":{\"edits\":[]},"
      "\"betas\":[\"b\"],"
      "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"output_config\":{\"effort\":\"low\","
      "\"format\":{"
      "\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}}," USER "}";
  mlx_api_call_t call;
  CHECK_OK(mlx_api_call_initialize(&call));
  CHECK_OK(SHAPE->parse(body, strlen(body), "beta=true", &call));
  CHECK_TEXT(call.model, "m");
  CHECK(call.stream);
  CHECK_INT(call.max_tokens, 9);
  CHECK_INT(call.sampling.top_k, 7);
  CHECK(call.sampling.temperature == 0.5 && call.sampling.top_p == 0.9);
  CHECK_INT(call.stop_count, 2);
  CHECK_TEXT(call.variables, "{\"enable_thinking\":true,\"thinking\":true,\"reasoning_effort\":\"low\"}");
  CHECK_INT(call.format, MLX_FORMAT_JSON_SCHEMA);
  CHECK_TEXT(call.format_text, "{\"type\":\"object\"}");
  free_call(SHAPE, &call);
  static const char *const thinking[][2] = {
      {"{\"type\":\"disabled\"}", "{\"enable_thinking\":false,\"thinking\":false}"},
      {"{\"type\":\"adaptive\"}", "{\"enable_thinking\":true,\"thinking\":true}"},
      {"null", "{\"enable_thinking\":false,\"thinking\":false}"}};
  for (int i = 0; i < 3; ++i) {
    char other[512];
    snprintf(other, sizeof other, "{\"thinking\":%s," USER "}", thinking[i][0]);
    parse_call(SHAPE, other, &call);
    CHECK_TEXT(call.variables, thinking[i][1]);
    free_call(SHAPE, &call);
  }
}

#define TOOL "{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}"

TEST(custom_tools_are_read_and_server_tools_are_skipped) {
  mlx_api_call_t call;
  parse_call(SHAPE,
             "{\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\",\"max_uses\":5}," TOOL
             ",{\"type\":\"bash_20250124\",\"name\":\"bash\"},{\"type\":\"custom\",\"name\":\"g\","
             "\"description\":null,"
             "\"cache_control\":{\"type\":\"ephemeral\"},\"strict\":true,\"input_schema\":{}}],"
             "\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\",\"disable_parallel_tool_use\":true}," USER
             "}",
             &call);
  CHECK_TEXT(
      call.tools,
      "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":"
      "\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{}}}]");
  CHECK_INT(call.tool_choice, MLX_TOOLS_NAMED);
  CHECK_TEXT(call.tool_name, "g");
  CHECK(call.one_tool_call);
  free_call(SHAPE, &call);
  static const struct {
    const char *type;
    mlx_tool_choice_t choice;
  } choices[] = {{"auto", MLX_TOOLS_AUTO}, {"any", MLX_TOOLS_REQUIRED}, {"none", MLX_TOOLS_NONE}};
  for (int i = 0; i < 3; ++i) {
    char body[512];
    snprintf(body, sizeof body, "{\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"%s\"}," USER "}",
             choices[i].type);
    parse_call(SHAPE, body, &call);
    CHECK_INT(call.tool_choice, choices[i].choice);
    free_call(SHAPE, &call);
  }
  parse_call(SHAPE, "{\"tools\":[{\"type\":\"text_editor_20250728\",\"name\":\"e\"}]," USER "}", &call);
  CHECK(!call.tools);
  free_call(SHAPE, &call);
}

TEST(bad_requests_name_the_path) {
#define MESSAGE(content) "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":" content "}]}"
  static const char *const cases[][2] = {
      {"{}", "invalid max_tokens: "},
      {"{\"max_tokens\":0,\"messages\":[]}", "invalid max_tokens: "},
      {"{\"max_tokens\":9}", "invalid messages: "},
      {"{\"max_tokens\":9,\"messages\":[]}", "invalid messages: "},
      {"{\"max_tokens\":9,\"messages\":[7]}", "invalid messages[0]: "},
      {"{\"max_tokens\":9,\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
       "invalid messages[0].role: "},
      {MESSAGE("7"), "invalid messages[0].content: "},
      {MESSAGE("\"a\\u0000b\""), "invalid messages[0].content: "},
      {MESSAGE("[{\"type\":\"text\"}]"), "invalid messages[0].content[0].text: "},
      {MESSAGE("[{\"type\":\"image\",\"source\":{}}]"), "unsupported messages[0].content[0].type: 'image'"},
      {MESSAGE("[{\"type\":\"document\",\"source\":{\"type\":\"base64\"}}]"),
       "unsupported messages[0].content[0].type: 'document'"},
      {MESSAGE("[{\"type\":\"tool_result\",\"tool_use_id\":\"x\",\"content\":[{\"type\":\"image\"}]}]"),
       "unsupported messages[0].content[0].content[0].type: "},
      {MESSAGE("[{\"type\":\"tool_result\"}]"), "invalid messages[0].content[0].tool_use_id: "},
      {"{\"frobnicate\":1," USER "}", "frobnicate: "},
      {"{\"mcp_servers\":[{}]," USER "}", "unsupported mcp_servers: "},
      {"{\"compaction\":{\"type\":\"summarize\"}," USER "}", "unsupported compaction: "},
      {"{\"thread\":{\"type\":\"create\"}," USER "}", "unsupported thread: "},
      {"{\"output_config\":{\"task_budget\":{\"total\":9}}," USER "}",
       "unsupported output_config.task_budget: "},
      {"{\"output_config\":{\"color\":1}," USER "}", "unsupported output_config.color: unknown field"},
      {"{\"thinking\":{\"type\":\"adaptive\",\"color\":1}," USER "}",
       "unsupported thinking.color: unknown field"},
      {"{\"thinking\":{\"type\":\"maybe\"}," USER "}", "invalid thinking.type: "},
      {"{\"tool_choice\":{\"type\":\"tool\",\"name\":\"x\"},\"tools\":[" TOOL "]," USER "}",
       "invalid tool_choice.name: "},
      {"{\"tool_choice\":{\"type\":\"any\"}," USER "}", "invalid tool_choice.type: "},
      {"{\"tools\":[{\"type\":\"odd_1\",\"name\":\"x\"}]," USER "}", "unsupported tools[0].type: "},
      {"{\"tools\":[{\"input_schema\":{}}]," USER "}", "invalid tools[0].name: "},
      {"{\"tools\":[{\"name\":\"a\",\"input_schema\":[]}]," USER "}", "invalid tools[0].input_schema: "},
      {"{\"max_tokens\":9,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":"
       "\"a\","
       "\"name\":\"f\",\"input\":{}}]}]}",
       "invalid messages[0]: "},
  };
  for (size_t i = 0; i < COUNT(cases); ++i)
    CHECK_CONTAINS(parse_error(SHAPE, cases[i][0], strlen(cases[i][0])), cases[i][1]);
}

TEST(max_tokens_is_optional_for_counting) {
  static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
  mlx_api_call_t call;
  CHECK_OK(mlx_api_call_initialize(&call));
  CHECK_OK(mlx_anthropic_parse_count(body, strlen(body), "beta=true", &call));
  CHECK_INT(call.max_tokens, -1);
  free_call(SHAPE, &call);
}

static const mlx_event_t events[] = {REASONING_EVENT("Hm"),
                                     REASONING_EVENT(" \"x\""),
                                     TEXT_EVENT("Wait."),
                                     TOOL_EVENT(0, "call_1", "f"),
                                     ARGUMENTS_EVENT(0, "{\"a\":"),
                                     ARGUMENTS_EVENT(0, " 1}"),
                                     TOOL_END_EVENT(0),
                                     TOOL_EVENT(1, "call_2", "g"),
                                     ARGUMENTS_EVENT(1, "{}"),
                                     TOOL_END_EVENT(1),
                                     FINISH_EVENT(MLX_FINISH_STOP)};

TEST(answers_have_blocks) {
  mlx_text_t out =
      whole_answer(SHAPE, "{\"thinking\":{\"type\":\"enabled\"}," USER "}", events, COUNT(events));
  CHECK_TEXT(out.data,
             "{\"id\":\"msg_x1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":["
             "{\"type\":\"thinking\",\"thinking\":\"Hm \\\"x\\\"\",\"signature\":\"mlxcel\"},"
             "{\"type\":\"text\",\"text\":\"Wait.\"},"
             "{\"type\":\"tool_use\",\"id\":\"call_1\",\"name\":\"f\",\"input\":{\"a\": 1}},"
             "{\"type\":\"tool_use\",\"id\":\"call_2\",\"name\":\"g\",\"input\":{}}],"
             "\"stop_reason\":\"tool_use\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":8,"
             "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,\"output_tokens\":5,"
             "\"service_tier\":\"standard\"}}");
  mlx_text_clear(&out);
  static const mlx_event_t plain[] = {REASONING_EVENT("Hm"), TEXT_EVENT("Yes"),
                                      FINISH_EVENT(MLX_FINISH_LENGTH)};
  out = whole_answer(SHAPE, "{" USER "}", plain, COUNT(plain));
  CHECK_CONTAINS(out.data,
                 "\"content\":[{\"type\":\"text\",\"text\":\"Yes\"}],\"stop_reason\":\"max_tokens\"");
  mlx_text_clear(&out);
}

TEST(streams_have_the_events_in_order) {
  mlx_text_t out = streamed_answer(SHAPE, "{\"stream\":true,\"thinking\":{\"type\":\"adaptive\"}," USER "}",
                                   events, COUNT(events), NULL);
#define EVENT(type, rest) "event: " type "\ndata: {\"type\":\"" type "\"" rest "}\n\n"
#define DELTA(index, rest) EVENT("content_block_delta", ",\"index\":" index ",\"delta\":{" rest "}")
#define STOP(index) EVENT("content_block_stop", ",\"index\":" index)
#define START(index, rest) EVENT("content_block_start", ",\"index\":" index ",\"content_block\":{" rest "}")
  CHECK_TEXT(
      out.data,
      EVENT("message_start",
            ",\"message\":{\"id\":\"msg_x1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\","
            "\"content\":[],"
            "\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":0,"
            "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":0,"
            "\"service_tier\":\"standard\"}}") EVENT("ping", "")
          START("0", "\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"")
              DELTA("0", "\"type\":\"thinking_delta\",\"thinking\":\"Hm\"") DELTA(
                  "0", "\"type\":\"thinking_delta\",\"thinking\":\" \\\"x\\\"\"")
                  DELTA("0", "\"type\":\"signature_delta\",\"signature\":\"mlxcel\"") STOP("0") START(
                      "1", "\"type\":\"text\",\"text\":\"\"")
                      DELTA("1", "\"type\":\"text_delta\",\"text\":\"Wait.\"") STOP("1") START(
                          "2", "\"type\":\"tool_use\",\"id\":\"call_1\",\"name\":\"f\",\"input\":{}")
                          DELTA("2", "\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\"")
                              DELTA("2", "\"type\":\"input_json_delta\",\"partial_json\":\" 1}\"") STOP("2")
                                  START("3",
                                        "\"type\":\"tool_use\",\"id\":\"call_2\",\"name\":\"g\",\"input\":{}")
                                      DELTA("3", "\"type\":\"input_json_delta\",\"partial_json\":\"{}\"")
                                          STOP("3") EVENT("message_delta",
                                                          ",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_"
                                                          "sequence\":null},\"usage\":{\"input_tokens\":8,"
                                                          "\"cache_creation_input_tokens\":0,\"cache_read_"
                                                          "input_tokens\":4,\"output_tokens\":5}")
                                              EVENT("message_stop", ""));
  mlx_text_clear(&out);
}

TEST(errors_have_the_types_of_the_api) {
  static const struct {
    mlx_api_error_t error;
    const char *text;
  } cases[] = {
      {{.http_status = 400, .message = "m \"x\""},
       "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"m \\\"x\\\"\"}}"},
      {{.http_status = 400, .message = "m", .prompt_tokens = 9000, .context = 4096},
       "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: "
       "9000 tokens > "
       "4096 maximum\"}}"},
      {{.http_status = 401, .message = "m"}, "\"authentication_error\""},
      {{.http_status = 404, .message = "m"}, "\"not_found_error\""},
      {{.http_status = 413, .message = "m"}, "\"request_too_large\""},
      {{.http_status = 429, .message = "m"}, "\"rate_limit_error\""},
      {{.http_status = 500, .message = "m"}, "\"api_error\""},
      {{.http_status = 503, .message = "m"}, "\"overloaded_error\""},
  };
  for (size_t i = 0; i < COUNT(cases); ++i) {
    mlx_text_t out = {0};
    SHAPE->error(&cases[i].error, &out);
    CHECK_CONTAINS(out.data, cases[i].text);
    mlx_text_clear(&out);
  }
  static const mlx_event_t some[] = {TEXT_EVENT("a")};
  mlx_text_t out = streamed_answer(SHAPE, "{" USER "}", some, 1, &cases[6].error);
  CHECK_CONTAINS(out.data, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"");
  mlx_text_clear(&out);
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing) {
  static const char body[] =
      "{\"stream\":true,\"thinking\":{\"type\":\"enabled\"},\"stop_sequences\":[\"x\"],\"tools\":[" TOOL
      "],\"system\":\"S\"," USER "}";
  check_failing_allocations(SHAPE, body, events, COUNT(events));
}

TEST(every_field_is_documented) { check_fields_are_documented(&mlx_api_messages); }

TEST_MAIN(CASE(requests_become_chat_messages), CASE(the_rotating_billing_header_is_no_part_of_the_prompt),
          CASE(a_deferred_tool_is_seen_after_a_reference_to_it),
          CASE(tool_use_thinking_and_results_are_read_back),
          CASE(an_assistant_message_at_the_end_is_continued), CASE(options_are_read),
          CASE(custom_tools_are_read_and_server_tools_are_skipped), CASE(bad_requests_name_the_path),
          CASE(max_tokens_is_optional_for_counting), CASE(answers_have_blocks),
          CASE(streams_have_the_events_in_order), CASE(errors_have_the_types_of_the_api),
          CASE(every_field_is_documented), CASE(a_failed_allocation_is_an_error_and_leaks_nothing))
