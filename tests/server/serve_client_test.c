// What clients of other servers expect of `mlxcel serve`: unknown fields, ids, errors in their API's form.
#include <yyjson.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static served_t shared;

static void kill_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
}

static void start_shared(void) {
  if (shared.pid) return;
  CHECK(!atexit(kill_shared));
  SERVE(&shared, TINY, "--device", "cpu", "--chat-template", "chatml", "--parallel", "4");
}

static void call(const char *method, const char *path, const char *headers, const char *body, int status,
                 reply_t *reply) {
  start_shared();
  client_call(shared.port, method, path, headers, body, reply);
  if (reply->status != status)
    CHECK_FAIL("%s: status %d, expected %d: %s", path, reply->status, status, reply_text(reply));
}

static void check_call(const char *method, const char *path, const char *headers, const char *body,
                       int status, const char *part) {
  reply_t reply;
  call(method, path, headers, body, status, &reply);
  CHECK_CONTAINS(reply_text(&reply), part);
  mlx_text_clear(&reply.body);
}

// ----------------------------------------------------------------------------------------------------------

TEST(unknown_fields_are_ignored_and_named) {
  static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":1,\"temprature\":1,\"x\\u00e4\":{}}";
  reply_t reply;
  size_t length;
  char *log;
  for (int i = 0; i < 2; ++i) {
    call("POST", "/v1/completions", "", body, 200, &reply);
    CHECK_CONTAINS(reply.headers,
                   "X-Mlxcel-Ignored: temprature (did you mean 'temperature'?), [\"x??\"]\r\n");
    mlx_text_clear(&reply.body);
  }
  call("POST", "/v1/embeddings", "", "{\"input\":\"a\",\"color\":1}", 200, &reply);
  CHECK_CONTAINS(reply.headers, "X-Mlxcel-Ignored: color\r\n");
  mlx_text_clear(&reply.body);
  CHECK_OK(mlx_read_file(shared.error_path, 1 << 20, &log, &length));
  const char *first = strstr(log, "/v1/completions: ignored unknown fields: temprature");
  CHECK(first && !strstr(first + 1, "/v1/completions: ignored"));  // once, not for each request
  mlx_free(log);
}

#define TOOL(schema)                                                                                     \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,\"tool_choice\":\"required\"," \
  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","  \
  "\"required\":"                                                                                        \
  "[\"x\"],\"properties\":{\"x\":" schema "}}}}]}"

TEST(schema_keywords_that_cannot_be_enforced_are_annotations) {
  static const struct {
    const char *schema, *keyword;  // NULL: it is enforced
  } cases[] = {
      {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"uniqueItems\":true}", "uniqueItems"},
      {"{\"type\":\"number\",\"multipleOf\":0.3}", "multipleOf"},
      {"{\"type\":\"string\",\"pattern\":\"^(?=a)b\"}", "pattern"},
      {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "pattern"},
      {"{\"type\":\"array\",\"contains\":{\"const\":1}}", "contains"},
      {"{\"type\":\"object\",\"unevaluatedProperties\":false}", "unevaluatedProperties"},
      {"{\"type\":\"string\",\"not\":{\"pattern\":\"a\"}}", "not"},
      {"{\"type\":\"string\",\"if\":{\"pattern\":\"a\"},\"then\":{\"minLength\":2}}", "if"},
      {"{\"type\":\"object\",\"propertyNames\":{\"not\":{\"const\":\"a\"}}}", "/propertyNames: not"},
      {"{\"type\":\"object\",\"patternProperties\":{\"(?!a)\":{}}}", "patternProperties"},
      {"{\"type\":\"object\",\"minProperties\":2,\"additionalProperties\":true}", "minProperties"},
      {"{\"type\":\"string\",\"format\":\"color\"}", "format"},
      {"{\"type\":\"string\",\"format\":\"password\"}", NULL},
      {"{\"type\":\"integer\",\"format\":\"int64\"}", NULL},
      {"{\"type\":\"string\",\"format\":\"email\"}", NULL},
      {"{\"type\":\"string\",\"format\":\"uri\"}", NULL},
      {"{\"type\":\"string\",\"format\":\"hostname\"}", NULL},
      {"{\"type\":\"string\",\"format\":\"ipv4\"}", NULL},
      {"{\"type\":\"string\",\"format\":\"ipv6\"}", NULL},
      {"{\"type\":\"integer\",\"multipleOf\":5}", NULL},
      {"{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"uniqueItems\":true}", NULL},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"if\":{\"required\":[\"a\"]},\"then\":{"
       "\"minProperties\":1}}",
       NULL},
      {"{\"type\":\"object\",\"minProperties\":1,\"propertyNames\":{\"pattern\":\"^a\"}}", NULL},
      {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"}}}", NULL},
      {"{\"type\":\"string\",\"not\":{\"const\":\"a\"}}", NULL},
  };
  reply_t reply;
  char body[1024], header[128];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    snprintf(body, sizeof body, TOOL("%s"), cases[i].schema);
    call("POST", "/v1/chat/completions", "", body, 200, &reply);
    snprintf(header, sizeof header, "X-Mlxcel-Unenforced: tools[0].function.parameters#/properties/x%s%s\r\n",
             cases[i].keyword && *cases[i].keyword == '/' ? "" : ": ",
             cases[i].keyword ? cases[i].keyword : "");
    if (cases[i].keyword) CHECK_CONTAINS(reply.headers, header);
    if (!cases[i].keyword) CHECK(!strstr(reply.headers, "X-Mlxcel-Unenforced"));
    mlx_text_clear(&reply.body);
  }
  // The other keywords of such a schema are enforced.
  call("POST", "/v1/completions", "",
       "{\"prompt\":\"a\",\"max_tokens\":20,\"json_schema\":{\"enum\":[\"b\"],\"pattern\":\"(?=b)b\"}}", 200,
       &reply);
  CHECK_CONTAINS(reply_text(&reply), "\"text\":\"\\\"b\\\"\"");
  mlx_text_clear(&reply.body);
}

// Schemas that are wrong, or that no JSON text satisfies.
TEST(a_tool_with_an_impossible_schema_takes_any_object) {
  static const char *const schemas[] = {
      "{\"not\":{}}",
      "{\"type\":\"text\"}",
      "{\"type\":\"string\",\"minLength\":-1}",
      "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}",
      "{\"$ref\":\"#/$defs/a\"}",
      "{\"$ref\":\"#\"}",
      "{\"enum\":[1],\"type\":\"string\"}",
      "{\"type\":\"string\",\"format\":3}",
      "{\"not\":3}",
      "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}",
      "{\"patternProperties\":[]}",
  };
  reply_t reply;
  char body[1024];
  for (size_t i = 0; i < sizeof schemas / sizeof *schemas; ++i) {
    snprintf(body, sizeof body, TOOL("%s"), schemas[i]);
    call("POST", "/v1/chat/completions", "", body, 200, &reply);
    CHECK_CONTAINS(reply.headers, "X-Mlxcel-Unenforced: tools[0].function.parameters: the whole schema\r\n");
    mlx_text_clear(&reply.body);
  }
}

TEST(a_strict_server_refuses_unknown_fields) {
  served_t s;
  reply_t reply;
  SERVE(&s, TINY, "--device", "cpu", "--strict");
  client_call(s.port, "POST", "/v1/completions", "", "{\"prompt\":\"a\",\"temprature\":1}", &reply);
  CHECK_INT(reply.status, 400);
  CHECK_CONTAINS(reply_text(&reply), "temprature: unknown field");
  mlx_text_clear(&reply.body);
  client_call(s.port, "POST", "/v1/completions", "",
              "{\"prompt\":\"a\",\"json_schema\":{\"type\":\"array\",\"contains\":{}}}", &reply);
  CHECK_INT(reply.status, 400);
  CHECK_CONTAINS(reply_text(&reply), "json_schema: #: 'contains' is not supported");
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
}

TEST(responses_have_the_id_of_the_request) {
  reply_t reply;
  call("GET", "/health", "x-request-id: abc-1\r\n", NULL, 200, &reply);
  CHECK_CONTAINS(reply.headers, "x-request-id: abc-1\r\n");
  CHECK_CONTAINS(reply.headers, "\r\nrequest-id: abc-1\r\n");
  mlx_text_clear(&reply.body);
  call("POST", "/v1/completions", "x-request-id: a b\r\n", "{}", 400, &reply);
  CHECK(!strstr(reply.headers, "a b") && strstr(reply.headers, "x-request-id: req_"));
  mlx_text_clear(&reply.body);
}

TEST(errors_have_the_form_of_the_called_api) {
  check_call("POST", "/api/nothing", "", "{}", 404, "{\"error\":\"there is no endpoint");
  check_call("POST", "/v1/messages/nothing", "", "{}", 404, "{\"type\":\"error\",\"error\":{");
  check_call("GET", "/v1/nothing", "anthropic-version: 2023-06-01\r\n", NULL, 404,
             "{\"type\":\"error\",\"error\":{");
  check_call("GET", "/v1/nothing", "", NULL, 404, "\"type\":\"not_found_error\"");
  check_call("GET", "/api/chat", "", NULL, 405, "{\"error\":\"GET is not possible for /api/chat");
  check_call("GET", "/embed", "", NULL, 405, "\",\"error_type\":\"Validation\"}");
  check_call("POST", "/rerank", "", "{\"texts\":7}", 400, "\",\"error_type\":\"Validation\"}");
  check_call("POST", "/rerank", "", "{\"documents\":7}", 400, "{\"error\":{\"message\":\"");
  check_call("POST", "/completion", "", "{\"prompt\":{}}", 400, "{\"error\":{\"code\":400,\"message\":\"");
  check_call("GET", "/infill", "", NULL, 405, "{\"error\":{\"code\":405,");
  check_call("POST", "/v1/chat/completions", "anthropic-version: 2023-06-01\r\n", "{", 400,
             "\"type\":\"invalid_request_error\",\"param\":");
}

// The HTTP layer refuses these before any API reads them.
TEST(refused_requests_have_an_id_and_the_form_of_the_called_api) {
  static const struct {
    const char *path, *headers;
    int status;
    const char *part;
  } cases[] = {
      {"/v1/chat/completions", "Content-Length: 99999999\r\n", 413, "\"code\":\"content_too_large\"}}"},
      {"/v1/messages", "Content-Length: 99999999\r\n", 413,
       "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\",\"message\":\"the body of the request "
       "is"},
      {"/api/chat", "Content-Length: 99999999\r\n", 413,
       "{\"error\":\"the body of the request is too long\"}"},
      {"/completion", "Content-Length: 99999999\r\n", 413, "{\"error\":{\"code\":413,"},
      {"/embed", "Content-Length: 99999999\r\n", 413, "\"error_type\":\"Validation\"}"},
      {"/api/chat", "Transfer-Encoding: gzip\r\n", 501, "{\"error\":\"the only supported Transfer-Encoding"},
  };
  reply_t reply;
  char headers[128];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    snprintf(headers, sizeof headers, "x-request-id: mine-%zu\r\n%s", i, cases[i].headers);
    call("POST", cases[i].path, headers, NULL, cases[i].status, &reply);
    CHECK_CONTAINS(reply_text(&reply), cases[i].part);
    snprintf(headers, sizeof headers, "x-request-id: mine-%zu\r\n", i);
    CHECK_CONTAINS(reply.headers, headers);
    CHECK_CONTAINS(reply.headers, "Connection: close\r\n");
    mlx_text_clear(&reply.body);
  }
}

TEST(monitors_and_launchers_find_their_endpoints) {
  reply_t reply;
  check_call("GET", "/version", "", NULL, 200, "{\"version\":\"");
  call("GET", "/ping", "", NULL, 200, &reply);
  CHECK_INT((int64_t)reply.body.length, 0);
  mlx_text_clear(&reply.body);
}

TEST(input_tokens_counts_what_a_response_would_read) {
  reply_t reply;
  call("POST", "/v1/responses", "", "{\"input\":\"one two three\",\"max_output_tokens\":1}", 200, &reply);
  yyjson_doc *answer = yyjson_read(reply_text(&reply), reply.body.length, 0);
  const int64_t expected = yyjson_get_sint(yyjson_doc_ptr_get(answer, "/usage/input_tokens"));
  CHECK(expected > 3);
  mlx_text_clear(&reply.body);
  call("POST", "/v1/responses/input_tokens", "", "{\"input\":\"one two three\"}", 200, &reply);
  yyjson_doc *count = yyjson_read(reply_text(&reply), reply.body.length, 0);
  CHECK_TEXT(yyjson_get_str(yyjson_doc_ptr_get(count, "/object")), "response.input_tokens");
  CHECK_INT(yyjson_get_sint(yyjson_doc_ptr_get(count, "/input_tokens")), expected);
  mlx_text_clear(&reply.body);
  yyjson_doc_free(count);
  yyjson_doc_free(answer);
}

// ----------------------------------------------------------------------------------------------------------
// Tokens

static yyjson_doc *post(const char *path, const char *body, int status) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "POST", path, "", body, &reply);
  return parse_reply(path, &reply, status);
}

#define GREEDY "{\"prompt\":\"hello world\",\"temperature\":0,\"max_tokens\":12,\"return_token_ids\":true"

// The tokens of a completion; at most |most|.
static size_t tokens_of(const char *more, int64_t *ids, size_t most, char finish[16]) {
  char body[512];
  yyjson_val *value;
  size_t index, max, count = 0;
  snprintf(body, sizeof body, GREEDY "%s}", more);
  yyjson_doc *doc = post("/v1/completions", body, 200);
  yyjson_arr_foreach(at(doc, "/choices/0/token_ids"), index, max, value) {
    if (count < most) ids[count++] = yyjson_get_sint(value);
  }
  CHECK(yyjson_arr_size(at(doc, "/choices/0/prompt_token_ids")) ==
        (size_t)yyjson_get_uint(at(doc, "/usage/prompt_tokens")));
  snprintf(finish, 16, "%s", yyjson_get_str(at(doc, "/choices/0/finish_reason")));
  yyjson_doc_free(doc);
  return count;
}

TEST(token_ids_stop_and_steer_an_answer) {
  int64_t plain[12], ids[12];
  char finish[16], more[256];
  const size_t count = tokens_of("", plain, 12, finish);
  CHECK(count == 12 && !strcmp(finish, "length"));
  size_t first = 0;  // where the third token is first
  while (plain[first] != plain[2]) ++first;

  snprintf(more, sizeof more, ",\"stop_token_ids\":[%d]", (int)plain[2]);
  CHECK_INT((int64_t)tokens_of(more, ids, 12, finish), (int64_t)first + 1);
  CHECK_TEXT(finish, "stop");
  snprintf(more, sizeof more, ",\"stop_token_ids\":[%d],\"min_tokens\":12", (int)plain[2]);
  CHECK_INT((int64_t)tokens_of(more, ids, 12, finish), 12);
  for (size_t i = 0; i < 12; ++i) CHECK(ids[i] != plain[2]);

  snprintf(more, sizeof more, ",\"allowed_token_ids\":[%d,%d]", (int)plain[0], (int)plain[1]);
  CHECK_INT((int64_t)tokens_of(more, ids, 12, finish), 12);
  for (size_t i = 0; i < 12; ++i) CHECK(ids[i] == plain[0] || ids[i] == plain[1]);

  // The same tokens with the sampler of the host, which DRY needs.
  snprintf(more, sizeof more, ",\"allowed_token_ids\":[%d],\"dry_multiplier\":0.01", (int)plain[4]);
  CHECK_INT((int64_t)tokens_of(more, ids, 12, finish), 12);
  for (size_t i = 0; i < 12; ++i) CHECK_INT(ids[i], plain[4]);
}

// A token whose text is tokenized as this token alone.
static int64_t find_whole_token(char text[32]) {
  char body[128];
  for (int64_t id = 3; id < 320; ++id) {
    snprintf(body, sizeof body, "{\"tokens\":[%d]}", (int)id);
    yyjson_doc *piece = post("/detokenize", body, 200);
    snprintf(text, 32, "%s", yyjson_get_str(at(piece, "/content")));
    yyjson_doc_free(piece);
    if (!text[0] || strspn(text, "abcdefghijklmnopqrstuvwxyz") != strlen(text)) continue;
    snprintf(body, sizeof body, "{\"content\":\"%s\"}", text);
    yyjson_doc *tokens = post("/tokenize", body, 200);
    const bool whole =
        yyjson_arr_size(at(tokens, "/tokens")) == 1 && yyjson_get_sint(at(tokens, "/tokens/0")) == id;
    yyjson_doc_free(tokens);
    if (whole) return id;
  }
  CHECK_FAIL("no token stands for itself");
  return -1;
}

TEST(biases_of_texts_and_bad_words_count_for_their_tokens) {
  int64_t ids[12];
  char finish[16], more[256], word[32];
  const int64_t id = find_whole_token(word);
  snprintf(more, sizeof more, ",\"logit_bias\":{\"%s\":100}", word);
  CHECK_INT((int64_t)tokens_of(more, ids, 12, finish), 12);
  for (size_t i = 0; i < 12; ++i) CHECK_INT(ids[i], id);
  snprintf(more, sizeof more, ",\"logit_bias\":[[\"%s\",100]],\"bad_words\":[\"%s\"]", word, word);
  const size_t count = tokens_of(more, ids, 12, finish);
  CHECK(count > 0);
  for (size_t i = 0; i < count; ++i) CHECK(ids[i] != id);
  yyjson_doc *doc = post("/v1/completions", "{\"prompt\":\"a\",\"stop_token_ids\":[99999999]}", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "stop_token_ids");
  yyjson_doc_free(doc);
}

// Those of echo are compared with Hugging Face elsewhere.
TEST(prompt_logprobs_are_those_of_echo) {
  static const char echo[] =
      "{\"prompt\":\"one two three four\",\"max_tokens\":0,\"echo\":true,\"logprobs\":2}";
  static const char body[] = "{\"prompt\":\"one two three four\",\"max_tokens\":1,\"prompt_logprobs\":2}";
  yyjson_doc *expected = post("/v1/completions", echo, 200), *doc = post("/v1/completions", body, 200);
  yyjson_val *list = at(doc, "/choices/0/prompt_logprobs"), *position;
  yyjson_val *numbers = at(expected, "/choices/0/logprobs/token_logprobs"), *key, *entry;
  size_t index, max, k, kmax;
  CHECK(yyjson_arr_size(list) > 4 && yyjson_arr_size(list) == yyjson_arr_size(numbers));
  CHECK(yyjson_is_null(yyjson_arr_get_first(list)));
  yyjson_arr_foreach(list, index, max, position) {
    bool found = index == 0;
    const double wanted = yyjson_get_num(yyjson_arr_get(numbers, index));
    if (index) CHECK(yyjson_obj_size(position) >= 2 && yyjson_obj_size(position) <= 3);
    yyjson_obj_foreach(position, k, kmax, key, entry) {
      found = found || yyjson_get_num(yyjson_obj_get(entry, "logprob")) == wanted;
    }
    CHECK(found);
  }
  yyjson_doc_free(expected);
  yyjson_doc_free(doc);
}

TEST(a_prompt_is_truncated_from_its_beginning_on_request) {
  yyjson_doc *whole =
      post("/v1/completions",
           "{\"prompt\":\"one two three four\",\"max_tokens\":1,\"return_token_ids\":true}", 200);
  yyjson_doc *doc = post("/v1/completions",
                         "{\"prompt\":\"one two three "
                         "four\",\"max_tokens\":1,\"return_token_ids\":true,\"truncate_prompt_tokens\":3}",
                         200);
  yyjson_val *all = at(whole, "/choices/0/prompt_token_ids"), *end = at(doc, "/choices/0/prompt_token_ids");
  const size_t count = yyjson_arr_size(all);
  CHECK(count > 3);
  CHECK_INT((int64_t)yyjson_arr_size(end), 3);
  for (size_t i = 0; i < 3; ++i)
    CHECK_INT(yyjson_get_sint(yyjson_arr_get(end, i)), yyjson_get_sint(yyjson_arr_get(all, count - 3 + i)));
  yyjson_doc_free(whole);
  yyjson_doc_free(doc);
}

TEST_MAIN(CASE(unknown_fields_are_ignored_and_named),
          CASE(schema_keywords_that_cannot_be_enforced_are_annotations),
          CASE(a_tool_with_an_impossible_schema_takes_any_object),
          CASE(a_strict_server_refuses_unknown_fields), CASE(responses_have_the_id_of_the_request),
          CASE(errors_have_the_form_of_the_called_api),
          CASE(refused_requests_have_an_id_and_the_form_of_the_called_api),
          CASE(monitors_and_launchers_find_their_endpoints),
          CASE(input_tokens_counts_what_a_response_would_read), CASE(token_ids_stop_and_steer_an_answer),
          CASE(biases_of_texts_and_bad_words_count_for_their_tokens), CASE(prompt_logprobs_are_those_of_echo),
          CASE(a_prompt_is_truncated_from_its_beginning_on_request))
