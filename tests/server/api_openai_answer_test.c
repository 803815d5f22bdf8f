// Answers of OpenAI's endpoints, byte for byte: whole answers, streams and errors.
#include <math.h>

#include "base/json.h"
#include "tests/server/api_answers.h"

#define CHAT_BODY "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
#define CHAT_WITH(rest) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," rest "}"
#define USAGE                                                                                              \
  "{\"prompt_tokens\":12,\"completion_tokens\":5,\"total_tokens\":17,\"prompt_tokens_details\":{\"cached_" \
  "tokens\":4},"                                                                                           \
  "\"completion_tokens_details\":{\"reasoning_tokens\":2}}"
#define TIMINGS                                                                                            \
  "{\"cache_n\":4,\"prompt_n\":8,\"prompt_ms\":500,\"prompt_per_token_ms\":62.5,\"prompt_per_second\":16," \
  "\"predicted_n\":5,\"predicted_ms\":250,\"predicted_per_token_ms\":62.5,\"predicted_per_second\":16}"
#define HEAD(prefix, object)                       \
  "{\"id\":\"" prefix "-x1\",\"object\":\"" object \
  "\",\"created\":7,\"model\":\"m\",\"system_fingerprint\":\"mlxcel\",\"choices\":["
#define CHUNK "data: " HEAD("chatcmpl", "chat.completion.chunk")
#define DELTA(index, delta) \
  CHUNK "{\"index\":" index ",\"delta\":{" delta "},\"logprobs\":null,\"finish_reason\":"
#define NEXT "null}]}\n\n"
#define ROLE "\"role\":\"assistant\",\"content\":\"\""
#define DONE "data: [DONE]\n\n"
#define TOKEN "{\"token\":\"Hi\",\"id\":1,\"logprob\":-0.5,\"bytes\":[72,105]"
#define BYTE_TOKEN "{\"token\":\"bytes:\\\\xc3\",\"id\":2,\"logprob\":-9999,\"bytes\":[195]"
#define LOGPROBS "[" TOKEN ",\"top_logprobs\":[" TOKEN "}," BYTE_TOKEN "}]}]"

static const mlx_answer_logprob_t top[] = {{.id = 1, .logprob = -0.5, .bytes = "Hi", .length = 2},
                                           {.id = 2, .logprob = -INFINITY, .bytes = "\xc3", .length = 1}};
static const mlx_answer_token_t tokens[] = {
    {.chosen = {.id = 1, .logprob = -0.5, .bytes = "Hi", .length = 2}, .top = top, .top_count = 2}};
#define TOKEN_EVENT {.kind = MLX_EVENT_TEXT, .text = "Hi", .length = 2, .tokens = tokens, .token_count = 1}

static const mlx_event_t short_events[] = {TEXT_EVENT("Hi"), TEXT_EVENT(""), TEXT_EVENT(" \"you\"\n"),
                                           FINISH_EVENT(MLX_FINISH_STOP)};
static const mlx_event_t tool_events[] = {
    REASONING_EVENT("hm"),
    TOOL_EVENT(0, "call_a", "f"),
    ARGUMENTS_EVENT(0, "{\"a\":"),
    ARGUMENTS_EVENT(0, "1}"),
    TOOL_END_EVENT(0),
    TOOL_EVENT(1, "call_b", "g"),
    ARGUMENTS_EVENT(1, "{}"),
    TOOL_END_EVENT(1),
    FINISH_EVENT(MLX_FINISH_STOP),
};
static const mlx_event_t token_events[] = {TOKEN_EVENT, FINISH_EVENT(MLX_FINISH_LENGTH)};

static void check_text(mlx_text_t text, const char *expected) {
  CHECK_TEXT(text.data, expected);
  mlx_text_clear(&text);
}

// ----------------------------------------------------------------------------------------------------------
// Chat

TEST(a_whole_chat_answer) {
  check_text(whole_answer(&mlx_api_chat, CHAT_BODY, short_events, COUNT(short_events)),
             HEAD("chatcmpl", "chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
             "\"Hi \\\"you\\\"\\n\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":" USAGE
             ",\"timings\":" TIMINGS "}");
  check_text(whole_answer(&mlx_api_chat, CHAT_BODY, tool_events, COUNT(tool_events)),
             HEAD("chatcmpl", "chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,"
             "\"refusal\":null,\"reasoning_content\":\"hm\",\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"call_a\","
             "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},{\"id\":\"call_b\","
             "\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},\"logprobs\":null,"
             "\"finish_reason\":\"tool_calls\"}],\"usage\":" USAGE ",\"timings\":" TIMINGS "}");
}

TEST(a_chat_stream_sends_the_role_once_and_ends_with_timings) {
  check_text(streamed_answer(&mlx_api_chat, CHAT_BODY, short_events, COUNT(short_events), NULL),
             DELTA("0", ROLE) NEXT DELTA("0", "\"content\":\"Hi\"")
                 NEXT DELTA("0", "\"content\":\" \\\"you\\\"\\n\"")
                     NEXT DELTA("0", "") "\"stop\"}],\"timings\":" TIMINGS "}\n\n" DONE);
}

TEST(a_chat_stream_with_tool_calls_and_reasoning) {
  check_text(
      streamed_answer(&mlx_api_chat, CHAT_BODY, tool_events, COUNT(tool_events), NULL),
      DELTA("0", ROLE) NEXT DELTA("0", "\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"") NEXT DELTA(
          "0",
          "\"tool_calls\":[{\"index\":0,\"id\":\"call_a\",\"type\":\"function\",\"function\":{\"name\":\"f\","
          "\"arguments\":\"\"}}]") NEXT DELTA("0",
                                              "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":"
                                              "\"{\\\"a\\\":\"}}]")
          NEXT DELTA("0", "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]")
              NEXT DELTA("0",
                         "\"tool_calls\":[{\"index\":1,\"id\":\"call_b\",\"type\":\"function\",\"function\":{"
                         "\"name\":\"g\","
                         "\"arguments\":\"\"}}]")
                  NEXT DELTA("0", "\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]")
                      NEXT DELTA("0", "") "\"tool_calls\"}],\"timings\":" TIMINGS "}\n\n" DONE);
}

TEST(a_chat_stream_with_usage_ends_with_a_chunk_without_choices) {
  check_text(streamed_answer(&mlx_api_chat, CHAT_WITH("\"stream_options\":{\"include_usage\":true}"),
                             short_events + 2, 2, NULL),
             DELTA("0", ROLE) "null}],\"usage\":null}\n\n" DELTA(
                 "0", "\"content\":\" \\\"you\\\"\\n\"") "null}],\"usage\":null}\n\n" DELTA("0", "") "\"stop\"}],"
             "\"usage\":null}\n\n" CHUNK "],\"usage\":" USAGE ",\"timings\":" TIMINGS "}\n\n" DONE);
}

TEST(a_chat_stream_of_two_choices) {
  static const mlx_event_t events[] = {TEXT_EVENT("a"),
                                       {.kind = MLX_EVENT_TEXT, .choice = 1, .text = "b", .length = 1},
                                       {.kind = MLX_EVENT_FINISH, .choice = 1, .finish = MLX_FINISH_LENGTH},
                                       FINISH_EVENT(MLX_FINISH_CONTEXT)};
  check_text(streamed_answer(&mlx_api_chat, CHAT_WITH("\"n\":2"), events, COUNT(events), NULL),
             DELTA("0", ROLE) NEXT DELTA("0", "\"content\":\"a\"") NEXT DELTA("1", ROLE) NEXT DELTA(
                 "1", "\"content\":\"b\"") NEXT DELTA("1", "") "\"length\"}]}\n\n" DELTA("0", "") "\"length\"}],"
             "\"timings\":" TIMINGS "}\n\n" DONE);
}

TEST(chat_logprobs_have_ids_and_bytes) {
  const char *body = CHAT_WITH("\"logprobs\":true,\"top_logprobs\":2");
  mlx_text_t whole = whole_answer(&mlx_api_chat, body, token_events, COUNT(token_events));
  CHECK_CONTAINS(whole.data,
                 ",\"logprobs\":{\"content\":" LOGPROBS ",\"refusal\":null},\"finish_reason\":\"length\"}");
  mlx_text_clear(&whole);
  mlx_text_t stream = streamed_answer(&mlx_api_chat, body, token_events, COUNT(token_events), NULL);
  CHECK_CONTAINS(stream.data,
                 CHUNK "{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"logprobs\":{\"content\":" LOGPROBS
                       ",\"refusal\":null},\"finish_reason\":null}]}\n\n");
  mlx_text_clear(&stream);
}

TEST(reasoning_is_left_out_on_request) {
  const char *body = CHAT_WITH("\"include_reasoning\":false");
  mlx_text_t whole = whole_answer(&mlx_api_chat, body, tool_events, COUNT(tool_events));
  mlx_text_t stream = streamed_answer(&mlx_api_chat, body, tool_events, COUNT(tool_events), NULL);
  CHECK(!strstr(whole.data, "hm") && !strstr(stream.data, "hm"));
  CHECK(strstr(whole.data, "call_a") && strstr(stream.data, "call_a"));
  mlx_text_clear(&whole);
  mlx_text_clear(&stream);
}

TEST(an_answer_to_functions_has_a_function_call) {
  static const mlx_event_t events[] = {TOOL_EVENT(0, "c1", "f"), ARGUMENTS_EVENT(0, "{}"), TOOL_END_EVENT(0),
                                       FINISH_EVENT(MLX_FINISH_STOP)};
  const char *body =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"functions\":[{\"name\":\"f\"}]}";
  mlx_text_t whole = whole_answer(&mlx_api_chat, body, events, COUNT(events));
  CHECK_CONTAINS(whole.data,
                 "\"content\":null,\"refusal\":null,\"function_call\":{\"name\":\"f\",\"arguments\":"
                 "\"{}\"}},\"logprobs\":null,\"finish_reason\":\"function_call\"}");
  mlx_text_clear(&whole);
  mlx_text_t stream = streamed_answer(&mlx_api_chat, body, events, COUNT(events), NULL);
  CHECK_CONTAINS(stream.data, "\"delta\":{\"function_call\":{\"name\":\"f\",\"arguments\":\"\"}}");
  CHECK_CONTAINS(stream.data, "\"delta\":{\"function_call\":{\"arguments\":\"{}\"}}");
  CHECK_CONTAINS(stream.data, "\"finish_reason\":\"function_call\"");
  CHECK(!strstr(stream.data, "tool_calls"));
  mlx_text_clear(&stream);
}

// Two prompts with three answers each; of each, the two most likely ones are written, the best first.
TEST(best_of_writes_the_choices_with_the_highest_mean_logprob) {
  static const double means[] = {-2, -0.5, -1, -3, -3, -1};
  mlx_event_t events[12];
  char texts[6][2];
  for (size_t i = 0; i < 6; ++i) {
    texts[i][0] = (char)('a' + i);
    events[2 * i] = (mlx_event_t){.kind = MLX_EVENT_TEXT, .choice = i, .text = texts[i], .length = 1};
    events[2 * i + 1] = (mlx_event_t){
        .kind = MLX_EVENT_FINISH, .choice = i, .finish = MLX_FINISH_STOP, .mean_logprob = means[i]};
  }
  mlx_text_t whole = whole_answer(&mlx_api_completion, "{\"prompt\":[\"x\",\"y\"],\"n\":2,\"best_of\":3}",
                                  events, COUNT(events));
#define CHOICE(index, text) \
  "{\"index\":" index ",\"text\":\"" text "\",\"logprobs\":null,\"finish_reason\":\"stop\"}"
  CHECK_CONTAINS(whole.data, "\"choices\":[" CHOICE("0", "b") "," CHOICE("1", "c") "," CHOICE(
                                 "2", "f") "," CHOICE("3", "d") "]");
#undef CHOICE
  mlx_text_clear(&whole);
}

// ----------------------------------------------------------------------------------------------------------
// Completions

#define TEXT_CHUNK "data: " HEAD("cmpl", "text_completion")

TEST(a_whole_completion_with_echo_and_two_prompts) {
  static const mlx_event_t events[] = {TEXT_EVENT("a"),
                                       TEXT_EVENT("1"),
                                       FINISH_EVENT(MLX_FINISH_STOP),
                                       {.kind = MLX_EVENT_TEXT, .choice = 1, .text = "b", .length = 1},
                                       {.kind = MLX_EVENT_TEXT, .choice = 1, .text = "2", .length = 1},
                                       {.kind = MLX_EVENT_FINISH, .choice = 1, .finish = MLX_FINISH_LENGTH}};
  const char *body = "{\"prompt\":[\"a\",\"b\"],\"echo\":true}";
  check_text(whole_answer(&mlx_api_completion, body, events, COUNT(events)),
             HEAD("cmpl", "text_completion") "{\"index\":0,\"text\":\"a1\",\"logprobs\":null,\"finish_reason\":\"stop\"},"
             "{\"index\":1,\"text\":\"b2\",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":" USAGE
             ",\"timings\":" TIMINGS "}");
  check_text(
      streamed_answer(&mlx_api_completion, body, events, COUNT(events), NULL), TEXT_CHUNK
      "{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_CHUNK
      "{\"index\":0,\"text\":\"1\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_CHUNK
      "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n" TEXT_CHUNK
      "{\"index\":1,\"text\":\"b\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_CHUNK
      "{\"index\":1,\"text\":\"2\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_CHUNK
      "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}],\"timings\":" TIMINGS
      "}\n\n" DONE);
}

// The first token of a prompt has no log-probability. If the tokenizer added it, it is not part of the text.
TEST(an_echoed_prompt_has_log_probabilities) {
  static const mlx_answer_logprob_t best = {.id = 5, .logprob = -0.5, .bytes = "b", .length = 1};
  static const mlx_answer_token_t echoed[] = {
      {.chosen = {.id = 1, .logprob = NAN, .bytes = "<s>", .length = 3}},
      {.chosen = {.id = 4, .logprob = -1.5, .bytes = "ab", .length = 2}, .top = &best, .top_count = 1}};
  static const mlx_event_t events[] = {
      {.kind = MLX_EVENT_TEXT, .text = "ab", .length = 2, .tokens = echoed, .token_count = 2},
      FINISH_EVENT(MLX_FINISH_LENGTH)};
#define SCORES                                                                                        \
  "\"logprobs\":{\"tokens\":[\"<s>\",\"ab\"],\"token_logprobs\":[null,-1.5],\"top_logprobs\":[null,{" \
  "\"b\":-0.5,\"ab\":-1.5}],\"text_offset\":[0,0]}"
  const char *body = "{\"prompt\":\"ab\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0}";
  check_text(whole_answer(&mlx_api_completion, body, events, COUNT(events)),
             HEAD("cmpl", "text_completion") "{\"index\":0,\"text\":\"ab\"," SCORES
                                             ",\"finish_reason\":\"length\"}],\"usage\":" USAGE
                                             ",\"timings\":" TIMINGS "}");
  check_text(streamed_answer(&mlx_api_completion, body, events, COUNT(events), NULL),
             TEXT_CHUNK "{\"index\":0,\"text\":\"ab\"," SCORES ",\"finish_reason\":null}]}\n\n" TEXT_CHUNK
                        "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}],"
                        "\"timings\":" TIMINGS "}\n\n" DONE);
}

TEST(completion_logprobs_have_the_legacy_form) {
  static const mlx_event_t events[] = {TOKEN_EVENT, TOKEN_EVENT, FINISH_EVENT(MLX_FINISH_LENGTH)};
  const char *body = "{\"prompt\":\"x\",\"logprobs\":2,\"stream_options\":{\"include_usage\":true}}";
  mlx_text_t whole = whole_answer(&mlx_api_completion, body, events, COUNT(events));
  CHECK_CONTAINS(whole.data,
                 "\"logprobs\":{\"tokens\":[\"Hi\",\"Hi\"],\"token_logprobs\":[-0.5,-0.5],\"top_logprobs\":["
                 "{\"Hi\":-0.5,\"bytes:\\\\xc3\":-9999},{\"Hi\":-0.5,\"bytes:\\\\xc3\":-9999}],"
                 "\"text_offset\":[0,2]}");
  mlx_text_clear(&whole);
  mlx_text_t stream = streamed_answer(&mlx_api_completion, body, events, COUNT(events), NULL);
  CHECK_CONTAINS(stream.data, "\"text_offset\":[0]}");
  CHECK_CONTAINS(stream.data, "\"text_offset\":[2]}");
  CHECK_CONTAINS(stream.data, TEXT_CHUNK "],\"usage\":" USAGE ",\"timings\":" TIMINGS "}\n\n" DONE);
  mlx_text_clear(&stream);
  whole = whole_answer(&mlx_api_completion, "{\"prompt\":\"x\",\"logprobs\":0}", events, COUNT(events));
  CHECK_CONTAINS(whole.data, "\"token_logprobs\":[-0.5,-0.5],\"top_logprobs\":null,\"text_offset\":[0,2]}");
  mlx_text_clear(&whole);
}

// ----------------------------------------------------------------------------------------------------------
// Responses

#define EVENT(type, number) "event: " type "\ndata: {\"type\":\"" type "\",\"sequence_number\":" number
#define REQUEST                                                                                              \
  "\"instructions\":null,\"metadata\":{},\"max_output_tokens\":null,\"parallel_tool_calls\":true,\"tools\":" \
  "[],"                                                                                                      \
  "\"tool_choice\":\"auto\",\"temperature\":0.8,\"top_p\":0.95,\"top_logprobs\":0,\"text\":{\"format\":{"    \
  "\"type\":"                                                                                                \
  "\"text\"},\"verbosity\":\"medium\"},\"reasoning\":{\"effort\":null,\"summary\":null},\"truncation\":"     \
  "\"disabled\","                                                                                            \
  "\"store\":false,\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\","         \
  "\"user\":null"
#define RESPONSE(status, error, incomplete, output, usage)                                \
  "{\"id\":\"resp_x1\",\"object\":\"response\",\"created_at\":7,\"status\":\"" status     \
  "\",\"model\":\"m\",\"error\":" error ",\"incomplete_details\":" incomplete "," REQUEST \
  ",\"output\":[" output "],\"usage\":" usage "}"
#define RESPONSE_USAGE                                                                                     \
  "{\"input_tokens\":12,\"input_tokens_details\":{\"cached_tokens\":4,\"cache_write_tokens\":0},\"output_" \
  "tokens\":5,"                                                                                            \
  "\"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":17},\"timings\":" TIMINGS
#define OPENING                                                                                 \
  EVENT("response.created", "0")                                                                \
  ",\"response\":" RESPONSE("in_progress", "null", "null", "", "null") "}\n\n" EVENT(           \
      "response.in_progress", "1") ",\"response\":" RESPONSE("in_progress", "null", "null", "", \
                                                             "null") "}\n\n"
#define PLACE(id, index) ",\"item_id\":\"" id "\",\"output_index\":" index
#define TEXT_PART(text) "{\"type\":\"output_text\",\"text\":\"" text "\",\"annotations\":[],\"logprobs\":[]}"
#define MESSAGE_ITEM(id, parts, status)                                                \
  "{\"id\":\"" id "\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[" parts \
  "],\"status\":\"" status "\"}"
#define CALL_ITEM(id, call, name, arguments, status)                                        \
  "{\"id\":\"" id "\",\"type\":\"function_call\",\"call_id\":\"" call "\",\"name\":\"" name \
  "\",\"arguments\":\"" arguments "\",\"status\":\"" status "\"}"
#define REASONING_ITEM(parts, status)                                             \
  "{\"id\":\"rs_x1_0\",\"type\":\"reasoning\",\"summary\":[],\"content\":[" parts \
  "],\"encrypted_content\":null,"                                                 \
  "\"status\":\"" status "\"}"
#define REASONING_PART(text) "{\"type\":\"reasoning_text\",\"text\":\"" text "\"}"

TEST(a_whole_response) {
  check_text(whole_answer(&mlx_api_responses, "{\"input\":\"x\"}", tool_events, COUNT(tool_events)),
             RESPONSE("completed", "null", "null",
                      REASONING_ITEM(REASONING_PART("hm"), "completed") "," CALL_ITEM(
                          "fc_x1_1", "call_a", "f", "{\\\"a\\\":1}",
                          "completed") "," CALL_ITEM("fc_x1_2", "call_b", "g", "{}", "completed"),
                      RESPONSE_USAGE));
  check_text(whole_answer(&mlx_api_responses, "{\"input\":\"x\"}", token_events, 0),
             RESPONSE("completed", "null", "null", "", RESPONSE_USAGE));
}

// Codex puts the tools of each MCP server in a namespace. The model sees NAMESPACE__NAME.
TEST(functions_of_a_namespace_are_called_by_both_names) {
#define SPACE                                                                                             \
  "\"tools\":[{\"type\":\"function\",\"name\":\"g\",\"parameters\":{}},{\"type\":\"namespace\",\"name\":" \
  "\"mcp__a\",\"tools\":"                                                                                 \
  "[{"                                                                                                    \
  "\"type\":\"custom\",\"name\":\"h\"},{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}]}]"
#define SPACED_CALL "\"call_id\":\"call_1\",\"name\":\"f\",\"namespace\":\"mcp__a\""
  static const mlx_event_t events[] = {
      TOOL_EVENT(0, "call_1", "mcp__a__f"), ARGUMENTS_EVENT(0, "{}"), TOOL_END_EVENT(0),
      TOOL_EVENT(1, "call_2", "g"),         ARGUMENTS_EVENT(1, "{}"), TOOL_END_EVENT(1),
      FINISH_EVENT(MLX_FINISH_STOP)};
  static const char body[] = "{" SPACE ",\"input\":\"x\"}";
  mlx_api_call_t call;
  parse_call(&mlx_api_responses,
             "{" SPACE ",\"input\":[{\"type\":\"function_call\"," SPACED_CALL
             ",\"arguments\":\"{}\"}],"
             "\"tool_choice\":{\"type\":\"function\",\"name\":\"mcp__a__f\"}}",
             &call);
  CHECK_TEXT(call.tools,
             "[{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{}}},{\"type\":"
             "\"function\",\"function\":{\"name\":\"mcp__a__f\",\"parameters\":{}}}]");
  CHECK_TEXT(call.tool_name, "mcp__a__f");
  CHECK_CONTAINS(call.messages, "\"name\":\"mcp__a__f\"");
  free_call(&mlx_api_responses, &call);
  mlx_text_t whole = whole_answer(&mlx_api_responses, body, events, COUNT(events));
  CHECK_CONTAINS(whole.data, SPACED_CALL);
  CHECK_CONTAINS(whole.data, "\"call_id\":\"call_2\",\"name\":\"g\",\"arguments\"");
  mlx_text_clear(&whole);
  mlx_text_t stream = streamed_answer(&mlx_api_responses, body, events, COUNT(events), NULL);
  CHECK_CONTAINS(stream.data, "\"type\":\"response.output_item.done\"");
  CHECK_CONTAINS(strstr(stream.data, "response.output_item.done"), SPACED_CALL);
  mlx_text_clear(&stream);
  check_failing_allocations(&mlx_api_responses, body, events, COUNT(events));
  static const char bad[] = "{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\",\"tools\":[]}]}";
  CHECK_CONTAINS(parse_error(&mlx_api_responses, bad, strlen(bad)), "invalid tools[0].name: ");
#undef SPACE
#undef SPACED_CALL
}

TEST(a_response_streams_text_in_order) {
  check_text(
      streamed_answer(&mlx_api_responses, "{\"input\":\"x\"}", short_events, COUNT(short_events), NULL),
      OPENING EVENT("response.output_item.added", "2") ",\"output_index\":0,\"item\":" MESSAGE_ITEM(
          "msg_x1_0", "", "in_progress") "}\n\n" EVENT("response.content_part.added",
                                                     "3") PLACE("msg_x1_0", "0") ",\"content_index\":0,\"part\":" TEXT_PART("")
      "}\n\n" EVENT("response.output_text.delta",
                    "4") PLACE("msg_x1_0", "0") ",\"content_index\":0,\"delta\":\"Hi\",\"logprobs\":[]}\n\n"
      EVENT("response.output_text.delta", "5") PLACE("msg_x1_0", "0") ",\"content_index\":0,\"delta\":\" \\\"you\\\"\\n\","
      "\"logprobs\":[]}\n\n" EVENT("response.output_text.done", "6") PLACE("msg_x1_0", "0") ",\"content_index\":0,\"text\":"
      "\"Hi \\\"you\\\"\\n\",\"logprobs\":[]}\n\n" EVENT("response.content_part.done", "7") PLACE("msg_x1_0", "0")
      ",\"content_index\":0,\"part\":" TEXT_PART("Hi \\\"you\\\"\\n") "}\n\n" EVENT("response.output_item.done", "8")
      ",\"output_index\":0,\"item\":" MESSAGE_ITEM("msg_x1_0", TEXT_PART("Hi \\\"you\\\"\\n"), "completed") "}\n\n" EVENT(
          "response.completed", "9") ",\"response\":" RESPONSE("completed", "null", "null",
                                                              MESSAGE_ITEM("msg_x1_0", TEXT_PART("Hi \\\"you\\\"\\n"),
                                                                           "completed"),
                                                              RESPONSE_USAGE) "}\n\n");
}

TEST(a_response_streams_reasoning_and_calls_as_items) {
  static const mlx_event_t events[] = {REASONING_EVENT("hm"), TOOL_EVENT(0, "call_a", "f"),
                                       ARGUMENTS_EVENT(0, "{}"), TOOL_END_EVENT(0),
                                       FINISH_EVENT(MLX_FINISH_STOP)};
  check_text(
      streamed_answer(&mlx_api_responses, "{\"input\":\"x\"}", events, COUNT(events), NULL),
      OPENING EVENT("response.output_item.added", "2") ",\"output_index\":0,\"item\":" REASONING_ITEM("", "in_progress")
      "}\n\n" EVENT("response.content_part.added", "3") PLACE("rs_x1_0", "0") ",\"content_index\":0,\"part\":" REASONING_PART("")
      "}\n\n" EVENT("response.reasoning_text.delta", "4") PLACE("rs_x1_0", "0") ",\"content_index\":0,\"delta\":\"hm\"}\n\n"
      EVENT("response.reasoning_text.done", "5") PLACE("rs_x1_0", "0") ",\"content_index\":0,\"text\":\"hm\"}\n\n"
      EVENT("response.content_part.done", "6") PLACE("rs_x1_0", "0") ",\"content_index\":0,\"part\":" REASONING_PART("hm")
      "}\n\n" EVENT("response.output_item.done", "7") ",\"output_index\":0,\"item\":" REASONING_ITEM(REASONING_PART("hm"),
                                                                                            "completed")
      "}\n\n" EVENT("response.output_item.added", "8") ",\"output_index\":1,\"item\":" CALL_ITEM("fc_x1_1", "call_a", "f", "",
                                                                                         "in_progress")
      "}\n\n" EVENT("response.function_call_arguments.delta", "9") PLACE("fc_x1_1", "1") ",\"delta\":\"{}\"}\n\n"
      EVENT("response.function_call_arguments.done", "10") PLACE("fc_x1_1", "1") ",\"name\":\"f\",\"arguments\":\"{}\"}\n\n"
      EVENT("response.output_item.done", "11") ",\"output_index\":1,\"item\":" CALL_ITEM("fc_x1_1", "call_a", "f", "{}",
                                                                                    "completed")
      "}\n\n" EVENT("response.completed", "12") ",\"response\":" RESPONSE(
          "completed", "null", "null",
          REASONING_ITEM(REASONING_PART("hm"), "completed") "," CALL_ITEM("fc_x1_1", "call_a", "f", "{}", "completed"),
          RESPONSE_USAGE) "}\n\n");
}

TEST(reasoning_is_a_summary_if_the_client_asks_for_one) {
  const char *body = "{\"input\":\"x\",\"reasoning\":{\"summary\":\"auto\"}}";
  mlx_text_t stream = streamed_answer(&mlx_api_responses, body, tool_events, COUNT(tool_events), NULL);
  static const char *const order[] = {
      "event: response.reasoning_summary_part.added\n", "event: response.reasoning_summary_text.delta\n",
      "event: response.reasoning_summary_text.done\n", "event: response.reasoning_summary_part.done\n",
      "\"summary\":[{\"type\":\"summary_text\",\"text\":\"hm\"}],\"content\":[]"};
  const char *at = stream.data;
  for (size_t i = 0; i < COUNT(order); ++i) {
    at = at ? strstr(at, order[i]) : NULL;
    if (!at) CHECK_FAIL("%s is missing or out of order in\n%s", order[i], stream.data);
  }
  mlx_text_clear(&stream);
}

TEST(a_response_that_is_cut_off_is_incomplete) {
  const char *body = "{\"input\":\"x\",\"top_logprobs\":2}";
  mlx_text_t stream = streamed_answer(&mlx_api_responses, body, token_events, COUNT(token_events), NULL);
  CHECK_CONTAINS(stream.data, "\"delta\":\"Hi\",\"logprobs\":" LOGPROBS "}\n\n");
  CHECK_CONTAINS(stream.data, "\"annotations\":[],\"logprobs\":" LOGPROBS
                              "}],\"status\":\"incomplete\"}}\n\n"
                              "event: response.incomplete\n");
  CHECK_CONTAINS(stream.data, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}");
  mlx_text_clear(&stream);
  mlx_text_t whole = whole_answer(&mlx_api_responses, body, token_events, COUNT(token_events));
  CHECK_CONTAINS(whole.data, "\"status\":\"incomplete\",\"model\"");
  CHECK_CONTAINS(whole.data, "\"annotations\":[],\"logprobs\":" LOGPROBS "}],\"status\":\"incomplete\"}]");
  mlx_text_clear(&whole);
}

// ----------------------------------------------------------------------------------------------------------
// Errors

TEST(an_error_is_openais_object) {
  static const mlx_api_t *const apis[] = {&mlx_api_chat, &mlx_api_completion, &mlx_api_responses};
  const mlx_api_error_t bad = {400, "invalid_request_error", "n: \"bad\"", "n", NULL, 0, 0};
  const mlx_api_error_t long_prompt = {400, "exceed_context_size_error", "too long", NULL, NULL, 5000, 4096};
  for (size_t i = 0; i < COUNT(apis); ++i) {
    mlx_text_t out = {0};
    apis[i]->error(&bad, &out);
    check_text(
        out,
        "{\"error\":{\"message\":\"n: \\\"bad\\\"\",\"type\":\"invalid_request_error\",\"param\":\"n\","
        "\"code\":null}}");
    out = (mlx_text_t){0};
    apis[i]->error(&long_prompt, &out);
    check_text(out,
               "{\"error\":{\"message\":\"too long\",\"type\":\"exceed_context_size_error\",\"param\":null,"
               "\"code\":\"context_length_exceeded\",\"n_prompt_tokens\":5000,\"n_ctx\":4096}}");
  }
}

TEST(an_error_in_mid_stream_is_the_last_event) {
  const mlx_api_error_t lost = {500, "server_error", "device lost", NULL, NULL, 0, 0};
  check_text(streamed_answer(&mlx_api_chat, CHAT_BODY, short_events, 1, &lost),
             DELTA("0", ROLE) NEXT DELTA("0", "\"content\":\"Hi\"") NEXT
             "data: {\"error\":{\"message\":\"device lost\","
             "\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n" DONE);
  check_text(streamed_answer(&mlx_api_completion, "{\"prompt\":\"x\"}", NULL, 0, &lost),
             "data: {\"error\":{\"message\":\"device "
             "lost\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n" DONE);
  check_text(
      streamed_answer(&mlx_api_responses, "{\"input\":\"x\"}", NULL, 0, &lost),
      OPENING EVENT("response.failed", "2") ",\"response\":" RESPONSE(
          "failed", "{\"code\":\"server_error\",\"message\":\"device lost\"}", "null", "", "null") "}\n\n");
}

// Every frame of every stream is JSON, also if the text is not UTF-8.
TEST(frames_are_json_for_any_bytes) {
  static const struct {
    const mlx_api_t *api;
    const char *body;
  } cases[] = {{&mlx_api_chat, CHAT_WITH("\"logprobs\":true")},
               {&mlx_api_completion, "{\"prompt\":\"\\u0000\\\"\",\"logprobs\":3}"},
               {&mlx_api_responses,
                "{\"input\":\"x\",\"instructions\":\"\\\"\\\\ \\n\",\"metadata\":{\"a\":\"\\\"\"}}"}};
  static const mlx_event_t events[] = {REASONING_EVENT("\xff\n\r"), TOKEN_EVENT,
                                       TEXT_EVENT("\xe2\x82\0\"\\\x1f\x7f"), FINISH_EVENT(MLX_FINISH_STOP)};
  for (size_t i = 0; i < COUNT(cases); ++i) {
    mlx_text_t out = streamed_answer(cases[i].api, cases[i].body, events, COUNT(events), NULL);
    int frames = 0;
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n")) {
      mlx_json_t json;
      if (!strncmp(line, "event: ", 7) || !strcmp(line, "data: [DONE]")) continue;
      CHECK(!strncmp(line, "data: ", 6));
      CHECK_OK(mlx_json_parse("frame", line + 6, strlen(line) - 6, &json));
      mlx_json_close(&json);
      ++frames;
    }
    CHECK(frames >= 4);
    mlx_text_clear(&out);
  }
}

TEST(every_failing_allocation_is_an_error_without_a_leak) {
  static const struct {
    const mlx_api_t *api;
    const char *body;
  } cases[] = {
      {&mlx_api_chat,
       "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}],\"name\":\"n\"},{"
       "\"role\":"
       "\"assistant\",\"reasoning\":\"r\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\","
       "\"arguments\":"
       "\"{}\"}}]}],\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\","
       "\"function\":{"
       "\"name\":\"f\"}},\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"1\":2},\"dry_sequence_breakers\":[\"x\"],"
       "\"guided_choice\":"
       "[\"a\"],\"reasoning_effort\":\"low\",\"logprobs\":true}"},
      {&mlx_api_completion, "{\"prompt\":[\"a\"],\"logprobs\":2,\"json_schema\":{}}"},
      {&mlx_api_responses,
       "{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"reasoning\","
       "\"summary\":[{"
       "\"type\":\"summary_text\",\"text\":\"s\"}]},{\"role\":\"assistant\",\"content\":\"y\"}],\"tools\":[{"
       "\"type\":"
       "\"function\",\"name\":\"f\"}],\"metadata\":{\"a\":\"b\"},\"text\":{\"format\":{\"type\":\"text\"},"
       "\"verbosity\":"
       "\"low\"},\"reasoning\":{\"effort\":\"low\"},\"top_logprobs\":1}"},
  };
  static const mlx_event_t all[] = {
      REASONING_EVENT("hm"),    TOKEN_EVENT,       TOOL_EVENT(0, "call_a", "f"),
      ARGUMENTS_EVENT(0, "{}"), TOOL_END_EVENT(0), FINISH_EVENT(MLX_FINISH_STOP)};
  static const mlx_event_t plain[] = {REASONING_EVENT("hm"), TOKEN_EVENT, FINISH_EVENT(MLX_FINISH_STOP)};
  for (size_t i = 0; i < COUNT(cases); ++i) {
    const bool has_tools = cases[i].api != &mlx_api_completion;
    check_failing_allocations(cases[i].api, cases[i].body, has_tools ? all : plain,
                              has_tools ? COUNT(all) : COUNT(plain));
  }
}

TEST_MAIN(CASE(an_answer_to_functions_has_a_function_call),
          CASE(best_of_writes_the_choices_with_the_highest_mean_logprob),
          CASE(every_failing_allocation_is_an_error_without_a_leak), CASE(a_whole_chat_answer),
          CASE(a_chat_stream_sends_the_role_once_and_ends_with_timings),
          CASE(a_chat_stream_with_tool_calls_and_reasoning),
          CASE(a_chat_stream_with_usage_ends_with_a_chunk_without_choices),
          CASE(a_chat_stream_of_two_choices), CASE(chat_logprobs_have_ids_and_bytes),
          CASE(reasoning_is_left_out_on_request), CASE(a_whole_completion_with_echo_and_two_prompts),
          CASE(an_echoed_prompt_has_log_probabilities), CASE(completion_logprobs_have_the_legacy_form),
          CASE(functions_of_a_namespace_are_called_by_both_names), CASE(a_whole_response),
          CASE(a_response_streams_text_in_order), CASE(a_response_streams_reasoning_and_calls_as_items),
          CASE(reasoning_is_a_summary_if_the_client_asks_for_one),
          CASE(a_response_that_is_cut_off_is_incomplete), CASE(an_error_is_openais_object),
          CASE(an_error_in_mid_stream_is_the_last_event), CASE(frames_are_json_for_any_bytes))
