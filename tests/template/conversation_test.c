// Conversations: adding messages, and parsing files that may be damaged.
#include "base/memory.h"
#include "runtime/mlxcel.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

static mlx_conversation_t *parse(const char *json) {
  mlx_conversation_t *conversation;
  CHECK_OK(mlx_conversation_parse("c.json", json, strlen(json), &conversation));
  return conversation;
}

static void check_json(const mlx_conversation_t *conversation, size_t first, const char *expected) {
  char *json;
  size_t length;
  CHECK_OK(mlx_conversation_json(conversation, first, &json, &length));
  CHECK_TEXT(json, expected);
  CHECK_INT(length, strlen(expected));
  mlx_free(json);
}

TEST(messages_are_written_as_they_were_added) {
  mlx_conversation_t *c;
  CHECK_OK(mlx_conversation_create(&c));
  check_json(c, 0, "[]\n");
  CHECK(!mlx_conversation_system(c));
  CHECK_OK(mlx_conversation_add(c, "user", "a \"b\"\n\xff", 7));
  CHECK_OK(mlx_conversation_add(c, "assistant", "", 0));
  CHECK_OK(mlx_conversation_set_system(c, "one", 3));
  CHECK_OK(mlx_conversation_set_system(c, "two", 3));
  CHECK_TEXT(mlx_conversation_system(c), "two");
  CHECK_INT(mlx_conversation_count(c), 3);
  check_json(c, 0,
             "[\n  {\"role\": \"system\", \"content\": \"two\"},\n"
             "  {\"role\": \"user\", \"content\": \"a \\\"b\\\"\\n\\ufffd\"},\n"
             "  {\"role\": \"assistant\", \"content\": \"\"}\n]\n");
  CHECK_OK(mlx_conversation_set_system(c, NULL, 0));
  CHECK_INT(mlx_conversation_count(c), 2);
  mlx_conversation_cut(c, 1);
  CHECK_TEXT(mlx_conversation_role(c, 0), "user");
  mlx_conversation_free(c);
}

TEST(a_turn_begins_with_a_user_message_and_the_system_message_stays) {
  mlx_conversation_t *c = parse(
      "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
      "{\"role\":\"assistant\",\"tool_calls\":[1]},{\"role\":\"tool\",\"content\":\"r\"},"
      "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]");
  CHECK_INT(mlx_conversation_next_turn(c, 0), 1);
  CHECK_INT(mlx_conversation_next_turn(c, 1), 5);
  CHECK_INT(mlx_conversation_next_turn(c, 5), 6);
  CHECK_INT(mlx_conversation_next_turn(c, 6), 6);
  check_json(c, 5,
             "[\n  {\"role\":\"system\",\"content\":\"s\"},\n  {\"role\":\"user\",\"content\":\"c\"}\n]\n");
  mlx_conversation_free(c);
}

TEST(parsing_keeps_every_field_of_a_message) {
  mlx_conversation_t *c = parse(
      "{\"model\": \"x\", \"messages\": [{\"role\": \"assistant\", \"content\": null,"
      " \"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": 12345678901234567890, \"x\": 0.1}]},"
      " {\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}");
  CHECK_TEXT(mlx_conversation_text(c, 0), "");
  check_json(c, 0,
             "[\n  {\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\","
             "\"tool_calls\":[{\"id\":12345678901234567890,\"x\":0.1}]},\n"
             "  {\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}\n]\n");
  mlx_conversation_free(c);
}

TEST(errors_name_the_file_and_the_message) {
  static const char whole[] =
      "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
  static const char *const cases[][2] = {
      {"", "c.json: not valid JSON"},
      {"5", "c.json: the JSON value must be a list or an object"},
      {"{}", "c.json: field 'messages' must be a list of messages"},
      {"{\"messages\": {}}", "c.json: field 'messages' must be a list of messages"},
      {"[5]", "c.json: message 1 is not an object"},
      {"[{\"role\":\"user\",\"content\":\"a\"},{\"content\":\"b\"}]", "c.json: message 2 has no role"},
      {"[{\"role\":\"\"}]", "c.json: message 1 has no role"},
      {"[{\"role\":5}]", "c.json: message 1 has no role"},
      {"[{\"role\":\"a\\u0000b\"}]", "c.json: message 1 has a zero byte in its role"},
      {"[{\"role\":\"user\",\"content\":{}}]",
       "c.json: message 1 has a content that is not a string, a list or null"},
      {"[{\"role\":\"user\",\"role\":\"user\"}]", "c.json: field 'role' is given twice"},
  };
  mlx_conversation_t *c;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    CHECK_ERROR(mlx_conversation_parse("c.json", cases[i][0], strlen(cases[i][0]), &c), MLX_INVALID_INPUT,
                cases[i][1]);
    CHECK(!c);
  }
  for (size_t length = 0; length < sizeof whole - 1; ++length) {  // a file truncated at any byte
    CHECK_ERROR(mlx_conversation_parse("c.json", whole, length, &c), MLX_INVALID_INPUT,
                "c.json: not valid JSON");
  }
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t use_every_function(void) {
  static const char json[] =
      "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
  mlx_conversation_t *c;
  char *text = NULL;
  size_t length;
  MLX_TRY(mlx_conversation_parse("c.json", json, sizeof json - 1, &c));
  mlx_status_t status = mlx_conversation_set_system(c, "s", 1);
  if (!status) status = mlx_conversation_add(c, "user", "x", 1);
  if (!status) status = mlx_conversation_json(c, 0, &text, &length);
  mlx_free(text);
  mlx_conversation_free(c);
  return status;
}

TEST(a_failed_allocation_returns_an_error_and_leaks_nothing) {
  mlx_memory_set_calls(&counting_memory);
  memory.count = memory.target = memory.live = 0;
  mlx_status_t status = use_every_function();
  const long total = memory.count;
  for (long target = 1; target <= total && !status; ++target) {
    memory.count = 0;
    memory.target = target;
    mlx_status_t failure = use_every_function();
    if (mlx_status_code(failure) != MLX_OUT_OF_MEMORY || memory.live) break;
    mlx_status_free(failure);
    if (target == total) memory.target = 0;
  }
  mlx_memory_set_calls(NULL);
  CHECK_OK(status);
  CHECK(total > 10);
  if (memory.target)
    CHECK_FAIL("allocation %ld of %ld: no error, or %ld blocks leaked", memory.target, total, memory.live);
}

TEST_MAIN(CASE(messages_are_written_as_they_were_added),
          CASE(a_turn_begins_with_a_user_message_and_the_system_message_stays),
          CASE(parsing_keeps_every_field_of_a_message), CASE(errors_name_the_file_and_the_message),
          CASE(a_failed_allocation_returns_an_error_and_leaks_nothing))
