// `mlxcel serve` over HTTP: fields of requests that need the whole server, stored responses, and defaults.
#include <yyjson.h>

#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static served_t shared;  // of most cases

// If only some cases run, no case stops it.
static void kill_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
}

static void start_shared(void) {
  if (shared.pid) return;
  CHECK(!atexit(kill_shared));
  SERVE(&shared, TINY, "--device", "cpu", "--chat-template", "chatml", "--parallel", "4");
}

static yyjson_doc *ask(const char *method, const char *path, const char *body, int status) {
  reply_t reply;
  start_shared();
  client_call(shared.port, method, path, "", body, &reply);
  return parse_reply(path, &reply, status);
}

static yyjson_doc *post(const char *path, const char *body, int status) {
  return ask("POST", path, body, status);
}

static const char *text_at(yyjson_doc *doc, const char *pointer) {
  const char *text = yyjson_get_str(at(doc, pointer));
  if (!text) CHECK_FAIL("%s is no string", pointer);
  return text;
}

// The best of four answers is the one whose tokens have the highest mean log-probability.
TEST(best_of_returns_the_most_likely_answers) {
#define ASK \
  "{\"prompt\":\"once upon a time\",\"seed\":1,\"temperature\":2,\"max_tokens\":6,\"ignore_eos\":true"
  yyjson_doc *all = post("/v1/completions", ASK ",\"n\":4,\"logprobs\":0}", 200);
  yyjson_doc *best = post("/v1/completions", ASK ",\"n\":2,\"best_of\":4}", 200);
  yyjson_doc *scored = post("/v1/completions", ASK ",\"best_of\":4,\"logprobs\":1}", 200);
#undef ASK
  double means[4];
  size_t first = 0, index, max;
  for (size_t i = 0; i < 4; ++i) {
    char path[64];
    yyjson_val *value;
    snprintf(path, sizeof path, "/choices/%zu/logprobs/token_logprobs", i);
    means[i] = 0;
    yyjson_arr_foreach(at(all, path), index, max, value) means[i] += yyjson_get_num(value) / (double)max;
    if (means[i] > means[first]) first = i;
  }
  size_t second = !first;
  for (size_t i = 0; i < 4; ++i) second = i != first && means[i] > means[second] ? i : second;
  char path[64];
  snprintf(path, sizeof path, "/choices/%zu/text", first);
  CHECK_INT((int64_t)yyjson_arr_size(at(best, "/choices")), 2);
  CHECK_INT((int64_t)yyjson_arr_size(at(scored, "/choices")), 1);
  CHECK_TEXT(yyjson_get_str(at(best, "/choices/0/text")), yyjson_get_str(at(all, path)));
  CHECK_TEXT(yyjson_get_str(at(scored, "/choices/0/text")), yyjson_get_str(at(all, path)));
  snprintf(path, sizeof path, "/choices/%zu/text", second);
  CHECK_TEXT(yyjson_get_str(at(best, "/choices/1/text")), yyjson_get_str(at(all, path)));
  CHECK_INT(yyjson_get_sint(at(best, "/usage/completion_tokens")), 24);
  CHECK_INT((int64_t)yyjson_arr_size(at(scored, "/choices/0/logprobs/tokens")), 6);
  yyjson_doc_free(all);
  yyjson_doc_free(best);
  yyjson_doc_free(scored);
}

TEST(functions_are_called_as_tools) {
  yyjson_doc *doc =
      post("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":100,"
           "\"functions\":[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
           "\"ok\":{\"type\":\"boolean\"}},\"required\":[\"ok\"],\"additionalProperties\":false}}],"
           "\"function_call\":{\"name\":\"f\"}}",
           200);
  CHECK_TEXT(yyjson_get_str(at(doc, "/choices/0/message/function_call/name")), "f");
  CHECK_TEXT(yyjson_get_str(at(doc, "/choices/0/finish_reason")), "function_call");
  CHECK(!yyjson_doc_ptr_get(doc, "/choices/0/message/tool_calls"));
  yyjson_val *arguments = at(doc, "/choices/0/message/function_call/arguments");
  yyjson_doc *parsed = yyjson_read(yyjson_get_str(arguments), yyjson_get_len(arguments), 0);
  CHECK(parsed && yyjson_is_bool(at(parsed, "/ok")));
  yyjson_doc_free(parsed);
  yyjson_doc_free(doc);
}

// ----------------------------------------------------------------------------------------------------------
// Stored responses

#define RESPONSE(rest) "{\"temperature\":0,\"max_output_tokens\":16," rest "}"

// The id of a response to |body|. Valid until the next call.
static const char *respond(const char *body, char *out_text, size_t size) {
  static char id[64];
  yyjson_doc *doc = post("/v1/responses", body, 200);
  snprintf(id, sizeof id, "%s", text_at(doc, "/id"));
  snprintf(out_text, size, "%s", text_at(doc, "/output/0/content/0/text"));
  yyjson_doc_free(doc);
  return id;
}

TEST(a_response_continues_a_stored_one) {
  char first[256], second[256], whole[256], id[64], body[1024];
  snprintf(id, sizeof id, "%s",
           respond(RESPONSE("\"instructions\":\"a\",\"input\":\"hello\""), first, sizeof first));
  snprintf(body, sizeof body, RESPONSE("\"previous_response_id\":\"%s\",\"input\":\"and then\""), id);
  respond(body, second, sizeof second);
  // The instructions of the earlier response do not apply.
  yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
  yyjson_mut_val *text = yyjson_mut_str(doc, first);
  char *quoted = yyjson_mut_val_write(text, 0, NULL);
  snprintf(
      body, sizeof body,
      RESPONSE("\"store\":false,\"input\":[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":\"assistant\","
               "\"content\":%s},{\"role\":\"user\",\"content\":\"and then\"}]"),
      quoted);
  free(quoted);
  yyjson_mut_doc_free(doc);
  respond(body, whole, sizeof whole);
  CHECK_TEXT(second, whole);
}

TEST(a_stored_response_is_fetched_and_deleted) {
  char path[128], text[256], id[64];
  snprintf(id, sizeof id, "%s", respond(RESPONSE("\"input\":\"hello\""), text, sizeof text));
  snprintf(path, sizeof path, "/v1/responses/%s", id);
  yyjson_doc *doc = ask("GET", path, NULL, 200);
  CHECK_TEXT(text_at(doc, "/id"), id);
  CHECK_TEXT(text_at(doc, "/output/0/content/0/text"), text);
  CHECK(yyjson_get_bool(at(doc, "/store")));
  yyjson_doc_free(doc);
  doc = ask("DELETE", path, NULL, 200);
  CHECK_TEXT(text_at(doc, "/id"), id);
  CHECK(yyjson_get_bool(at(doc, "/deleted")));
  yyjson_doc_free(doc);
  yyjson_doc_free(ask("GET", path, NULL, 404));
  yyjson_doc_free(ask("DELETE", path, NULL, 404));
  yyjson_doc_free(ask("POST", path, "{}", 405));
  char body[256];
  snprintf(body, sizeof body, RESPONSE("\"previous_response_id\":\"%s\",\"input\":\"x\""), id);
  doc = post("/v1/responses", body, 400);
  CHECK_TEXT(text_at(doc, "/error/param"), "previous_response_id");
  yyjson_doc_free(doc);
}

TEST(a_response_is_not_stored_if_the_client_says_so) {
  char path[128], text[256];
  snprintf(path, sizeof path, "/v1/responses/%s",
           respond(RESPONSE("\"store\":false,\"input\":\"hello\""), text, sizeof text));
  yyjson_doc_free(ask("GET", path, NULL, 404));
}

TEST(a_streamed_response_is_stored_before_its_last_event) {
  reply_t reply;
  char id[64], path[128];
  start_shared();
  client_call(shared.port, "POST", "/v1/responses", "", RESPONSE("\"input\":\"hello\",\"stream\":true"),
              &reply);
  CHECK_INT(reply.status, 200);
  const char *found = strstr(reply_text(&reply), "\"id\":\"resp_");
  CHECK(found && sscanf(found, "\"id\":\"%63[^\"]", id) == 1);
  mlx_text_clear(&reply.body);
  snprintf(path, sizeof path, "/v1/responses/%s", id);
  yyjson_doc *doc = ask("GET", path, NULL, 200);
  CHECK(!strcmp(text_at(doc, "/status"), "completed") || !strcmp(text_at(doc, "/status"), "incomplete"));
  CHECK(at(doc, "/output/0/content/0/text"));
  yyjson_doc_free(doc);
}

TEST(the_input_items_of_a_response_are_listed_in_pages) {
  char path[256], text[256], id[64], next[160];
  snprintf(
      id, sizeof id, "%s",
      respond(
          RESPONSE(
              "\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
              "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"c\"}]}]"),
          text, sizeof text));
  snprintf(path, sizeof path, "/v1/responses/%s/input_items", id);
  yyjson_doc *doc = ask("GET", path, NULL, 200);  // the newest first
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/data")), 3);
  CHECK_TEXT(text_at(doc, "/data/0/content/0/text"), "c");
  CHECK_TEXT(text_at(doc, "/data/1/content/0/type"), "output_text");
  CHECK(!yyjson_get_bool(at(doc, "/has_more")));
  yyjson_doc_free(doc);
  snprintf(path, sizeof path, "/v1/responses/%s/input_items?limit=2&order=asc", id);
  doc = ask("GET", path, NULL, 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/data")), 2);
  CHECK_TEXT(text_at(doc, "/data/0/content/0/text"), "a");
  CHECK(yyjson_get_bool(at(doc, "/has_more")));
  snprintf(next, sizeof next, "/v1/responses/%s/input_items?order=asc&after=%s", id,
           text_at(doc, "/last_id"));
  yyjson_doc_free(doc);
  doc = ask("GET", next, NULL, 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/data")), 1);
  CHECK_TEXT(text_at(doc, "/data/0/content/0/text"), "c");
  yyjson_doc_free(doc);
  snprintf(path, sizeof path, "/v1/responses/%s/input_items?limit=0", id);
  yyjson_doc_free(ask("GET", path, NULL, 400));
}

// ----------------------------------------------------------------------------------------------------------
// Defaults

static void check_template(int port, const char *rest, const char *expected) {
  reply_t reply;
  char body[256];
  snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]%s}", rest);
  client_call(port, "POST", "/apply-template", "", body, &reply);
  yyjson_doc *doc = parse_reply(rest, &reply, 200);
  CHECK_TEXT(text_at(doc, "/prompt"), expected);
  yyjson_doc_free(doc);
}

TEST(requests_get_the_defaults_of_the_server) {
  static const char source[] = "{{ enable_thinking }} {{ reasoning_effort }}";
  served_t served;
  reply_t reply;
  strcpy(folder, "/tmp/mlxcel-fields-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_write_file(in_folder("template.jinja"), source, sizeof source - 1));
  SERVE(&served, TINY, "--device", "cpu", "--chat-template", in_folder("template.jinja"), "--temp", "0",
        "--top-k", "7", "--presence-penalty", "0.5", "--reasoning", "high");
  client_call(served.port, "GET", "/props", "", NULL, &reply);
  yyjson_doc *doc = parse_reply("/props", &reply, 200);
  CHECK(yyjson_get_num(at(doc, "/default_generation_settings/params/temperature")) == 0);
  CHECK_INT(yyjson_get_sint(at(doc, "/default_generation_settings/params/top_k")), 7);
  CHECK(yyjson_get_num(at(doc, "/default_generation_settings/params/presence_penalty")) == 0.5);
  yyjson_doc_free(doc);
  const char *bodies[] = {
      "{\"prompt\":\"once upon\",\"max_tokens\":8}",
      "{\"prompt\":\"once upon\",\"max_tokens\":8,\"temperature\":0,\"presence_penalty\":0.5}"};
  char texts[2][256];
  for (int i = 0; i < 2; ++i) {
    client_call(served.port, "POST", "/v1/completions", "", bodies[i], &reply);
    doc = parse_reply("/v1/completions", &reply, 200);
    snprintf(texts[i], sizeof texts[i], "%s", text_at(doc, "/choices/0/text"));
    yyjson_doc_free(doc);
  }
  CHECK_TEXT(texts[0], texts[1]);
  check_template(served.port, "", "True high");
  check_template(served.port, ",\"reasoning_effort\":\"none\"", "False none");
  check_template(served.port, ",\"enable_thinking\":false", "False ");
  check_template(served.port, ",\"chat_template_kwargs\":{\"other\":1}", "True high");
  CHECK_INT(serve_stop(&served), 0);
  command_shell(folder, "rm -r \"$PWD\"");
}

TEST(an_unknown_kind_of_reasoning_is_a_usage_error) {
  command_t run;
  RUN(&run, "serve", TINY, "--reasoning", "much");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "--reasoning");
  command_free(&run);
}

TEST(the_shared_server_ends_cleanly) {
  start_shared();
  CHECK_INT(serve_stop(&shared), 0);
  shared.pid = 0;
}

TEST_MAIN(CASE(best_of_returns_the_most_likely_answers), CASE(functions_are_called_as_tools),
          CASE(a_response_continues_a_stored_one), CASE(a_stored_response_is_fetched_and_deleted),
          CASE(a_response_is_not_stored_if_the_client_says_so),
          CASE(a_streamed_response_is_stored_before_its_last_event),
          CASE(the_input_items_of_a_response_are_listed_in_pages),
          CASE(requests_get_the_defaults_of_the_server), CASE(an_unknown_kind_of_reasoning_is_a_usage_error),
          CASE(the_shared_server_ends_cleanly))
