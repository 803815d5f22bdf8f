// `mlxcel serve` over HTTP, on the tiny model.
#include <ctype.h>
#include <math.h>
#include <poll.h>
#include <yyjson.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/command.h"
#include "tests/support/fixture_copy.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define NO_MODEL MLXCEL_SOURCE_DIR "/README.md"
#define OTHER MLXCEL_SOURCE_DIR "/tests/fixtures/qwen2"
#define THIRD MLXCEL_SOURCE_DIR "/tests/fixtures/mistral"
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"temperature\":0,\"max_tokens\":8"

static served_t shared;  // one server for most tests

// If only some cases run, no case stops it.
static void kill_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
}

static void start_shared(void) {
  if (shared.pid) return;
  CHECK(!atexit(kill_shared));
  SERVE(&shared, TINY, "--device", "cpu", "--chat-template", "chatml", "--parallel", "4", "--cors", "*");
}

static yyjson_doc *post(const char *path, const char *body, int status) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "POST", path, "", body, &reply);
  return parse_reply(path, &reply, status);
}

static double metric(int port, const char *name) {
  reply_t reply;
  client_call(port, "GET", "/metrics", "", NULL, &reply);
  CHECK_INT(reply.status, 200);
  char needle[128];
  snprintf(needle, sizeof needle, "\n%s", name);
  const char *found = strstr(reply_text(&reply), needle), *space = found;
  while (found && found[strlen(needle)] != ' ' && found[strlen(needle)] != '{')
    found = strstr(found + 1, needle);
  if (!found) CHECK_FAIL("there is no metric %s", name);
  space = strchr(found + 1, ' ');
  const double value = atof(space + 1);
  mlx_text_clear(&reply.body);
  return value;
}

static void wait_for_metric(int port, const char *name, double value) {
  for (int i = 0; i < 6000 && metric(port, name) != value; ++i) mlx_sleep_ms(10);
  CHECK_INT((int64_t)metric(port, name), (int64_t)value);
}

static void complete(int port, const char *model, int status) {
  reply_t reply;
  char body[256];
  snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"a b\",\"max_tokens\":4,\"temperature\":0}",
           model);
  client_call(port, "POST", "/v1/completions", "", body, &reply);
  if (reply.status != status) CHECK_FAIL("%s: status %d: %s", model, reply.status, reply_text(&reply));
  mlx_text_clear(&reply.body);
}

// ----------------------------------------------------------------------------------------------------------

TEST(a_completion_has_the_tokens_of_mlxcel_run) {
  command_t run;
  const char *const argv[] = {MLXCEL_BINARY, "run",    "-m", TINY, "--device", "cpu",    "-p",
                              "hello world", "--temp", "0",  "-n", "24",       "--json", NULL};
  command_start(&run, argv);
  command_wait(&run);
  CHECK_INT(run.exit_code, 0);
  yyjson_doc *expected = yyjson_read(run.out, run.out_length, 0);
  yyjson_doc *doc =
      post("/v1/completions", "{\"prompt\":\"hello world\",\"temperature\":0,\"max_tokens\":24}", 200);
  CHECK_TEXT(yyjson_get_str(at(doc, "/choices/0/text")), yyjson_get_str(at(expected, "/text")));
  CHECK_INT(yyjson_get_sint(at(doc, "/usage/completion_tokens")),
            (int64_t)yyjson_arr_size(at(expected, "/output_ids")));
  CHECK_INT(yyjson_get_sint(at(doc, "/usage/prompt_tokens")),
            (int64_t)yyjson_arr_size(at(expected, "/prompt_ids")));
  yyjson_doc_free(doc);
  yyjson_doc_free(expected);
  command_free(&run);
}

// The text of a streamed chat: the contents of all deltas.
static void join_stream(const char *body, mlx_text_t *out, bool *out_done) {
  for (const char *line = strstr(body, "data: "); line; line = strstr(line + 6, "data: ")) {
    const size_t length = strcspn(line + 6, "\n");
    if (!strncmp(line + 6, "[DONE]", 6)) *out_done = true;
    yyjson_doc *doc = yyjson_read(line + 6, length, 0);
    yyjson_val *content = yyjson_doc_ptr_get(doc, "/choices/0/delta/content");
    if (yyjson_is_str(content)) mlx_text_append(out, yyjson_get_str(content), yyjson_get_len(content));
    yyjson_doc_free(doc);
  }
}

TEST(a_stream_has_the_text_of_the_whole_answer) {
  mlx_text_t text = {0};
  bool done = false;
  reply_t reply;
  yyjson_doc *doc = post("/v1/chat/completions", CHAT "}", 200);
  client_call(shared.port, "POST", "/v1/chat/completions", "", CHAT ",\"stream\":true}", &reply);
  CHECK_INT(reply.status, 200);
  CHECK(strcasestr(reply.headers, "content-type: text/event-stream; charset=utf-8\r\n"));
  CHECK(strcasestr(reply.headers, "x-accel-buffering: no\r\n"));
  join_stream(reply_text(&reply), &text, &done);
  CHECK(done);
  CHECK_TEXT(text.data ? text.data : "", yyjson_get_str(at(doc, "/choices/0/message/content")));
  mlx_text_clear(&text);
  mlx_text_clear(&reply.body);
  yyjson_doc_free(doc);
}

TEST(a_repeated_prompt_is_cached) {
  static const char body[] =
      "{\"prompt\":\"one two three four five six seven eight nine ten eleven twelve\","
      "\"temperature\":0,\"max_tokens\":4}";
  yyjson_doc_free(post("/v1/completions", body, 200));
  yyjson_doc *doc = post("/v1/completions", body, 200);
  const int64_t prompt = yyjson_get_sint(at(doc, "/usage/prompt_tokens"));
  CHECK_INT(yyjson_get_sint(at(doc, "/usage/prompt_tokens_details/cached_tokens")), prompt - 1);
  yyjson_doc_free(doc);
}

TEST(n_answers_have_different_seeds_and_the_prompt_is_counted_once) {
  yyjson_doc *doc =
      post("/v1/completions", "{\"prompt\":\"once upon a time\",\"n\":4,\"seed\":1,\"max_tokens\":8}", 200);
  yyjson_doc *one =
      post("/v1/completions", "{\"prompt\":\"once upon a time\",\"n\":1,\"seed\":1,\"max_tokens\":8}", 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/choices")), 4);
  CHECK_TEXT(yyjson_get_str(at(doc, "/choices/0/text")), yyjson_get_str(at(one, "/choices/0/text")));
  CHECK(strcmp(yyjson_get_str(at(doc, "/choices/0/text")), yyjson_get_str(at(doc, "/choices/1/text"))));
  CHECK_INT(yyjson_get_sint(at(doc, "/usage/prompt_tokens")),
            yyjson_get_sint(at(one, "/usage/prompt_tokens")));
  CHECK_INT(yyjson_get_sint(at(doc, "/usage/completion_tokens")), 32);
  yyjson_doc_free(doc);
  yyjson_doc_free(one);
}

TEST(a_stop_string_ends_the_text_before_it) {
  char body[512], stop[3] = "";
  yyjson_doc *doc =
      post("/v1/completions", "{\"prompt\":\"hello\",\"temperature\":0,\"max_tokens\":24}", 200);
  const char *text = yyjson_get_str(at(doc, "/choices/0/text"));
  size_t from = strlen(text) / 2;
  while (from + 2 < strlen(text) &&
         (!isalnum((unsigned char)text[from]) || !isalnum((unsigned char)text[from + 1])))
    ++from;
  CHECK(from + 2 <= strlen(text));
  memcpy(stop, text + from, 2);
  snprintf(body, sizeof body, "{\"prompt\":\"hello\",\"temperature\":0,\"max_tokens\":24,\"stop\":[\"%s\"]}",
           stop);
  yyjson_doc *cut = post("/v1/completions", body, 200);
  const size_t expected = (size_t)(strstr(text, stop) - text);
  CHECK_INT((int64_t)yyjson_get_len(at(cut, "/choices/0/text")), (int64_t)expected);
  CHECK_TEXT(yyjson_get_str(at(cut, "/choices/0/finish_reason")), "stop");
  yyjson_doc_free(doc);
  yyjson_doc_free(cut);
}

TEST(anthropics_messages_name_the_stop_sequence) {
  static const char ask[] = "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"temperature\":0";
  char body[512], stop[3] = "";
  reply_t reply;
  snprintf(body, sizeof body, "{\"model\":\"m\",\"max_tokens\":24,%s}", ask);
  yyjson_doc *doc = post("/v1/messages?beta=true", body, 200);
  const char *text = yyjson_get_str(at(doc, "/content/0/text"));
  size_t from = strlen(text) / 2;
  while (from + 2 < strlen(text) &&
         (!isalnum((unsigned char)text[from]) || !isalnum((unsigned char)text[from + 1])))
    ++from;
  memcpy(stop, text + from, 2);
  snprintf(body, sizeof body, "{\"model\":\"m\",\"max_tokens\":24,\"stop_sequences\":[\"%s\"],%s}", stop,
           ask);
  yyjson_doc *cut = post("/v1/messages", body, 200);
  CHECK_TEXT(yyjson_get_str(at(cut, "/stop_reason")), "stop_sequence");
  CHECK_TEXT(yyjson_get_str(at(cut, "/stop_sequence")), stop);
  snprintf(body, sizeof body,
           "{\"model\":\"m\",\"max_tokens\":24,\"stop_sequences\":[\"%s\"],\"stream\":true,%s}", stop, ask);
  client_call(shared.port, "POST", "/v1/messages", "", body, &reply);
  CHECK_CONTAINS(reply_text(&reply), "\"stop_reason\":\"stop_sequence\"");
  CHECK_CONTAINS(reply_text(&reply), "event: message_stop");
  snprintf(body, sizeof body, "{\"model\":\"m\",%s}",
           "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]");
  yyjson_doc *count = post("/v1/messages/count_tokens", body, 200);
  CHECK_INT(yyjson_get_sint(at(count, "/input_tokens")),
            yyjson_get_sint(at(doc, "/usage/input_tokens")) +
                yyjson_get_sint(at(doc, "/usage/cache_read_input_tokens")));
  mlx_text_clear(&reply.body);
  yyjson_doc_free(doc);
  yyjson_doc_free(cut);
  yyjson_doc_free(count);
}

TEST(ollamas_endpoints_answer) {
  reply_t reply;
  yyjson_doc *doc = post("/api/chat",
                         "{\"model\":\"tiny-llama:latest\",\"stream\":false,"
                         "\"options\":{\"num_predict\":4,\"temperature\":0},"
                         "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                         200);
  CHECK(yyjson_get_bool(at(doc, "/done")));
  CHECK_INT(yyjson_get_sint(at(doc, "/eval_count")), 4);
  yyjson_doc_free(doc);
  client_call(shared.port, "POST", "/api/generate", "",
              "{\"model\":\"tiny-llama\",\"prompt\":\"x\",\"options\":{\"num_predict\":4}}", &reply);
  CHECK_INT(reply.status, 200);
  CHECK(strcasestr(reply.headers, "content-type: application/x-ndjson"));  // streams unless told otherwise
  CHECK_CONTAINS(reply_text(&reply), "\"done\":true");
  mlx_text_clear(&reply.body);
  doc = post("/api/generate", "{\"model\":\"tiny-llama\"}", 200);  // only loads the model
  CHECK_TEXT(yyjson_get_str(at(doc, "/done_reason")), "load");
  yyjson_doc_free(doc);
  client_call(
      shared.port, "POST", "/api/chat", "",
      "{\"model\":\"tiny-llama\",\"stream\":false,\"options\":{\"num_ctx\":1000000,\"num_predict\":2},"
      "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
      &reply);
  CHECK_INT(reply.status, 200);
  CHECK(strcasestr(reply.headers, "x-mlxcel-clamped: options.num_ctx to "));
  mlx_text_clear(&reply.body);
  doc = post("/api/show",
             "{\"model\":\"tiny-llama\",\"system\":\"\",\"template\":\"\",\"options\":null,\"name\":\"\"}",
             200);
  CHECK_TEXT(yyjson_get_str(at(doc, "/details/family")), "llama");
  yyjson_doc_free(doc);
  doc = post("/api/embed", "{\"model\":\"tiny-llama\",\"input\":[\"a\",\"b\"]}", 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/embeddings")), 2);
  yyjson_doc_free(doc);
}

TEST(responses_answer_whole_and_as_a_stream) {
  reply_t reply;
  yyjson_doc *doc =
      post("/v1/responses", "{\"input\":\"hello\",\"max_output_tokens\":16,\"temperature\":0}", 200);
  CHECK_TEXT(yyjson_get_str(at(doc, "/object")), "response");
  yyjson_doc_free(doc);
  client_call(shared.port, "POST", "/v1/responses", "",
              "{\"input\":\"hello\",\"max_output_tokens\":16,\"temperature\":0,\"stream\":true}", &reply);
  CHECK_INT(reply.status, 200);
  CHECK_CONTAINS(reply_text(&reply), "response.created");
  mlx_text_clear(&reply.body);
}

TEST(a_json_schema_constrains_the_answer) {
  for (int i = 0; i < 2; ++i) {  // the second one finds the compiled grammar
    yyjson_doc *doc =
        post("/v1/chat/completions",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":200,\"response_format\":"
             "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"object\","
             "\"properties\":{\"ok\":{\"type\":\"boolean\"}},\"required\":[\"ok\"],"
             "\"additionalProperties\":false}}}}",
             200);
    yyjson_val *content = at(doc, "/choices/0/message/content");
    yyjson_doc *answer = yyjson_read(yyjson_get_str(content), yyjson_get_len(content), 0);
    CHECK(answer);
    CHECK(yyjson_is_bool(at(answer, "/ok")));
    yyjson_doc_free(answer);
    yyjson_doc_free(doc);
  }
}

TEST(a_client_that_leaves_frees_its_pages) {
  start_shared();
  for (int i = 0; i < 8; ++i) {
    mlx_text_t text = {0};
    const int fd =
        client_request(shared.port, "POST", "/v1/completions", "",
                       "{\"prompt\":\"a b c\",\"max_tokens\":100000,\"ignore_eos\":true,\"stream\":true}");
    if (i % 2) client_read(fd, &text);  // leave before or after the first token
    mlx_text_clear(&text);
    close(fd);
  }
  wait_for_metric(shared.port, "mlxcel_requests_running", 0);
  wait_for_metric(shared.port, "mlxcel_requests_waiting", 0);
  wait_for_metric(shared.port, "mlxcel_kv_pages_used", 0);
}

TEST(wrong_requests_name_the_field) {
  yyjson_doc *doc =
      post("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":\"hot\"}", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "temperature");
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/type")), "invalid_request_error");
  yyjson_doc_free(doc);
  yyjson_doc_free(post("/v1/chat/completions", "{\"messages\": [", 400));
  yyjson_doc_free(post("/v1/chat/completions", "\xff\xfe", 400));
  yyjson_doc_free(post("/v1/completions", "{\"prompt\":[1,2,99999999]}", 400));
  yyjson_doc_free(post("/v1/nothing", "{}", 404));
  reply_t reply;
  client_call(shared.port, "GET", "/v1/chat/completions", "", NULL, &reply);
  CHECK_INT(reply.status, 405);
  CHECK(strcasestr(reply.headers, "allow: POST"));
  mlx_text_clear(&reply.body);
  client_call(shared.port, "GET", "/v1/models/nothing", "", NULL, &reply);
  CHECK_INT(reply.status, 404);
  mlx_text_clear(&reply.body);
}

TEST(biases_that_the_model_cannot_have_are_400) {
  mlx_text_t body = {0};
  yyjson_doc *doc = post("/v1/completions", "{\"prompt\":\"x\",\"logit_bias\":{\"99999999\":1}}", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "logit_bias");
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), "token id 99999999 is not below ");
  const char *message = yyjson_get_str(at(doc, "/error/message"));
  const int vocab = atoi(strstr(message, "below ") + 6);
  CHECK(vocab > 0);
  mlx_text_puts(&body, "{\"prompt\":\"x\",\"logit_bias\":{");
  for (int i = 0; i < vocab; ++i) mlx_text_printf(&body, "%s\"%d\":-100", i ? "," : "", i);
  mlx_text_puts(&body, "}}");
  yyjson_doc *none = post("/v1/completions", body.data, 400);  // forbids every token
  CHECK_CONTAINS(yyjson_get_str(at(none, "/error/message")), "no token");
  mlx_text_clear(&body);
  yyjson_doc_free(none);
  yyjson_doc_free(doc);
}

TEST(a_prompt_over_the_context_is_refused_with_both_numbers) {
  mlx_text_t body = {0};
  mlx_text_puts(&body, "{\"prompt\":\"");
  for (int i = 0; i < 20000; ++i) mlx_text_puts(&body, "word ");
  mlx_text_puts(&body, "\"}");
  yyjson_doc *doc = post("/v1/completions", body.data, 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/type")), "exceed_context_size_error");
  CHECK(yyjson_get_sint(at(doc, "/error/n_prompt_tokens")) > yyjson_get_sint(at(doc, "/error/n_ctx")));
  yyjson_doc_free(doc);
  mlx_text_clear(&body);
}

TEST(echoed_prompts_with_log_probabilities_are_limited) {
  mlx_text_t body = {0};
  mlx_text_puts(&body, "{\"echo\":true,\"max_tokens\":0,\"logprobs\":20,\"prompt\":[");
  for (int i = 0; i < 500; ++i) {
    mlx_text_puts(&body, i ? ",[5" : "[5");
    for (int k = 1; k < 110; ++k) mlx_text_puts(&body, ",5");
    mlx_text_puts(&body, "]");
  }
  mlx_text_puts(&body, "]}");
  yyjson_doc *doc = post("/v1/completions", body.data, 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "logprobs");
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), "more than the limit of 1048576");
  yyjson_doc_free(doc);
  mlx_text_clear(&body);
}

TEST(embeddings_are_deterministic_and_have_length_1) {
  yyjson_doc *all = post("/v1/embeddings", "{\"input\":[\"hello\",\"world\",\"hello\"]}", 200);
  yyjson_doc *one = post("/v1/embeddings", "{\"input\":\"hello\",\"encoding_format\":\"float\"}", 200);
  yyjson_val *a = at(all, "/data/0/embedding"), *b = at(all, "/data/2/embedding"),
             *c = at(one, "/data/0/embedding");
  const size_t size = yyjson_arr_size(a);
  double sum = 0;
  CHECK(size > 0 && yyjson_arr_size(b) == size && yyjson_arr_size(c) == size);
  for (size_t i = 0; i < size; ++i) {
    const double x = yyjson_get_num(yyjson_arr_get(a, i));
    CHECK(fabs(x - yyjson_get_num(yyjson_arr_get(b, i))) < 1e-5);
    CHECK(fabs(x - yyjson_get_num(yyjson_arr_get(c, i))) < 1e-5);
    sum += x * x;
  }
  CHECK(fabs(sum - 1) < 1e-4);
  yyjson_doc *packed = post("/v1/embeddings", "{\"input\":\"hello\",\"encoding_format\":\"base64\"}", 200);
  CHECK_INT((int64_t)yyjson_get_len(at(packed, "/data/0/embedding")), (int64_t)((size * 4 + 2) / 3 * 4));
  yyjson_doc *wrong = post("/v1/embeddings", "{\"input\":\"hello\",\"dimensions\":3000}", 400);
  CHECK_TEXT(yyjson_get_str(at(wrong, "/error/param")), "dimensions");
  yyjson_doc_free(all);
  yyjson_doc_free(one);
  yyjson_doc_free(packed);
  yyjson_doc_free(wrong);
}

TEST(tokens_and_text_round_trip) {
  yyjson_doc *ids = post("/tokenize", "{\"content\":\"hello w\\u00f6rld\",\"with_pieces\":false}", 200);
  char *tokens = yyjson_val_write(at(ids, "/tokens"), 0, NULL), body[1024];
  snprintf(body, sizeof body, "{\"tokens\":%s}", tokens);
  yyjson_doc *text = post("/detokenize", body, 200);
  CHECK_TEXT(yyjson_get_str(at(text, "/content")), "hello w\xc3\xb6rld");
  yyjson_doc_free(post("/tokenize", "{\"content\":\"hello\",\"with_pieces\":true}", 200));
  yyjson_doc *rendered =
      post("/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200);
  CHECK_CONTAINS(yyjson_get_str(at(rendered, "/prompt")), "<|im_start|>user\nhi<|im_end|>");
  free(tokens);
  yyjson_doc_free(rendered);
  yyjson_doc_free(ids);
  yyjson_doc_free(text);
}

static void check_continued(const char *content, const char *end) {
  char body[512];
  snprintf(body, sizeof body,
           "{\"continue_final_message\":true,\"add_generation_prompt\":false,\"messages\":["
           "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"%s\"}]}",
           content);
  yyjson_doc *doc = post("/apply-template", body, 200);
  const char *prompt = yyjson_get_str(at(doc, "/prompt"));
  CHECK(strlen(prompt) > strlen(end));
  CHECK_TEXT(prompt + strlen(prompt) - strlen(end), end);
  yyjson_doc_free(doc);
}

TEST(a_continued_message_ends_the_prompt) {
  check_continued("The sky is", "hi<|im_end|>\n<|im_start|>assistant\nThe sky is");
  check_continued("im", "hi<|im_end|>\n<|im_start|>assistant\nim");  // also part of the template's text
  check_continued("", "hi<|im_end|>\n<|im_start|>assistant\n");      // a new turn
}

static void check_get(const char *path, const char *part) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "GET", path, "", NULL, &reply);
  if (reply.status != 200) CHECK_FAIL("%s: status %d: %s", path, reply.status, reply_text(&reply));
  CHECK_CONTAINS(reply_text(&reply), part);
  mlx_text_clear(&reply.body);
}

TEST(information_endpoints_answer) {
  check_get("/health", "\"ok\"");
  check_get("/v1/health", "\"ok\"");
  check_get("/v1/models", "\"tiny-llama\"");
  check_get("/models", "\"tiny-llama\"");
  check_get("/v1/models/tiny-llama", "\"tiny-llama\"");
  check_get("/props", "\"n_ctx\"");
  check_get("/server_info", "\"loaded_models\"");
  check_get("/model_info", "\"context_length\"");
  check_get("/api/tags", "\"tiny-llama\"");
  check_get("/api/ps", "\"tiny-llama\"");
  check_get("/api/version", "\"version\"");
  check_get("/metrics", "vllm:num_requests_running{model_name=\"tiny-llama\",engine=\"0\"}");
}

// Every line of /metrics is a comment, or a name, labels and a number.
TEST(metrics_are_in_prometheus_text_format) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "GET", "/metrics", "", NULL, &reply);
  CHECK(strcasestr(reply.headers, "content-type: text/plain; version=0.0.4"));
  for (char *line = strtok(reply.body.data, "\n"); line; line = strtok(NULL, "\n")) {
    char *end;
    if (!strncmp(line, "# HELP ", 7) || !strncmp(line, "# TYPE ", 7)) continue;
    const size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:");
    const char *rest = line + name;
    if (*rest == '{') rest = strchr(rest, '}') + 1;
    CHECK(name > 0 && *rest == ' ');
    strtod(rest + 1, &end);
    if (*end) CHECK_FAIL("not a sample: %s", line);
  }
  mlx_text_clear(&reply.body);
}

// One of two layers of gemma3 has a window of 12 positions, so its window pages are few. tiny-llama has none.
TEST(metrics_count_the_pages_of_windows) {
  served_t s;
  reply_t reply;
  start_shared();
  CHECK(metric(shared.port, "mlxcel_kv_pages") > 0);
  CHECK_INT((int64_t)metric(shared.port, "mlxcel_kv_window_pages"), 0);
  strcpy(folder, "/tmp/mlxcel-serve-window-XXXXXX");
  CHECK(mkdtemp(folder));
  copy_fixture("gemma3");
  SERVE(&s, folder, "--device", "cpu");
  const int fd =
      client_request(s.port, "POST", "/v1/completions", "",
                     "{\"prompt\":[5,6,7],\"max_tokens\":400,\"ignore_eos\":true,\"n\":4,\"stream\":true}");
  for (int i = 0; i < 6000 && !metric(s.port, "mlxcel_kv_window_pages_used"); ++i) mlx_sleep_ms(1);
  client_finish(fd, &reply);
  mlx_text_clear(&reply.body);
  wait_for_metric(s.port, "mlxcel_kv_window_pages_used", 0);
  const double total = metric(s.port, "mlxcel_kv_window_pages");
  CHECK(total > 0);
  CHECK(metric(s.port, "mlxcel_kv_window_pages_cached") > 0);
  CHECK(metric(s.port, "mlxcel_kv_window_pages_cached") + metric(s.port, "mlxcel_kv_window_pages_free") ==
        total);
  client_call(s.port, "GET", "/server_info", "", NULL, &reply);
  char part[64];
  snprintf(part, sizeof part, "\"kv_window_pages_used\":0,\"kv_window_pages_total\":%.0f}", total);
  CHECK_CONTAINS(reply_text(&reply), part);
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(cors_preflight_is_answered) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "OPTIONS", "/v1/chat/completions",
              "Origin: http://a.example\r\nAccess-Control-Request-Headers: authorization\r\n", NULL, &reply);
  CHECK_INT(reply.status, 204);
  CHECK(strcasestr(reply.headers, "access-control-allow-origin: *"));
  CHECK(strcasestr(reply.headers, "access-control-allow-headers: authorization"));
  mlx_text_clear(&reply.body);
}

TEST(a_key_is_required_if_one_is_set) {
  static const char *const good[] = {"Authorization: Bearer secret\r\n", "x-api-key: other\r\n",
                                     "authorization: bearer third\r\n",
                                     "Authorization: Bearer none\r\nx-api-key: secret\r\n",
                                     "Authorization: Bearer secret\r\nx-api-key: none\r\n"};
  static const char *const bad[] = {"", "Authorization: Bearer secre\r\n",
                                    "Authorization: Bearer secrets\r\n", "x-api-key: \r\n",
                                    "Authorization: Basic secret\r\n"};
  char keys[] = "/tmp/mlxcel-serve-keys-XXXXXX";
  served_t s;
  reply_t reply;
  close(mkstemp(keys));
  CHECK_OK(mlx_write_file(keys, "other\nthird\n", 12));
  SERVE(&s, TINY, "--device", "cpu", "--api-key", "secret", "--api-key-file", keys);
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
    client_call(s.port, "GET", "/v1/models", good[i], NULL, &reply);
    CHECK_INT(reply.status, 200);
    mlx_text_clear(&reply.body);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    client_call(s.port, "POST", "/v1/completions", bad[i], "{\"prompt\":\"x\"}", &reply);
    CHECK_INT(reply.status, 401);
    CHECK_CONTAINS(reply_text(&reply), "invalid_api_key");
    mlx_text_clear(&reply.body);
  }
  client_call(s.port, "GET", "/health", "", NULL, &reply);
  CHECK_INT(reply.status, 200);
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
  unlink(keys);
}

TEST(a_full_queue_is_429) {
  served_t s;
  reply_t reply;
  int fds[8], refused = 0, served = 0;
  SERVE(&s, TINY, "--device", "cpu", "--parallel", "1", "--queue", "1");
  for (int round = 0; !refused; ++round) {  // a busy machine may send each request after the last one ended
    CHECK(round < 100);
    for (int i = 0; i < 8; ++i)
      fds[i] = client_request(s.port, "POST", "/v1/completions", "",
                              "{\"prompt\":\"a\",\"max_tokens\":1500,\"ignore_eos\":true}");
    served = 0;
    for (int i = 0; i < 8; ++i) {
      client_finish(fds[i], &reply);
      if (reply.status != 200 && reply.status != 429)
        CHECK_FAIL("status %d: %s", reply.status, reply_text(&reply));
      served += reply.status == 200;
      refused += reply.status == 429;
      if (reply.status == 429) CHECK(strcasestr(reply.headers, "retry-after: "));
      mlx_text_clear(&reply.body);
    }
    CHECK(served >= 2);  // one runs and one waits
  }
  complete(s.port, "tiny-llama", 200);
  CHECK_INT(serve_stop(&s), 0);
}

static void check_body(int port, const char *path, int status, const char *part) {
  reply_t reply;
  client_call(port, "GET", path, "", NULL, &reply);
  if (reply.status != status) CHECK_FAIL("%s: status %d: %s", path, reply.status, reply_text(&reply));
  CHECK_CONTAINS(reply_text(&reply), part);
  mlx_text_clear(&reply.body);
}

// With an empty cache, loading compiles the model, which takes much longer than the requests here.
TEST(requests_that_wait_for_a_load_are_limited_and_a_client_that_leaves_makes_room) {
  static const char body[] = "{\"model\":\"tiny-llama\",\"prompt\":\"a\",\"max_tokens\":2}";
  char cache[] = "/tmp/mlxcel-serve-cache-XXXXXX";
  served_t s;
  reply_t reply;
  struct pollfd fds[3];
  int refused = 0;
  CHECK(mkdtemp(cache));
  setenv("MLXCEL_CACHE", cache, 1);
  SERVE(&s, TINY, "-m", OTHER, "--device", "cpu", "--queue", "1");  // several: none is loaded at the start
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  for (int i = 0; i < 3; ++i)
    fds[i] = (struct pollfd){client_request(s.port, "POST", "/v1/completions", "", body), POLLIN, 0};
  CHECK_INT(poll(fds, 3, 60000), 1);  // one is refused, the others wait
  while (!fds[refused].revents) ++refused;
  client_finish(fds[refused].fd, &reply);
  CHECK_INT(reply.status, 429);
  CHECK(strcasestr(reply.headers, "retry-after: "));
  CHECK_CONTAINS(reply_text(&reply), "queue_full");
  mlx_text_clear(&reply.body);
  close(fds[(refused + 1) % 3].fd);
  for (;;) {  // until the server has noticed it, there is no room
    CHECK_INT((int64_t)metric(s.port, "mlxcel_models_loaded"), 0);
    client_call(s.port, "POST", "/v1/completions", "", body, &reply);
    const int status = reply.status;
    mlx_text_clear(&reply.body);
    if (status == 200) break;
    CHECK_INT(status, 429);
    mlx_sleep_ms(10);
  }
  client_finish(fds[(refused + 2) % 3].fd, &reply);
  CHECK_INT(reply.status, 200);
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(cache));
}

// The error is that of the port, also if the model cannot be loaded. Only a name of no file comes before.
TEST(a_port_in_use_is_found_before_a_model_is_loaded) {
  command_t run;
  char port[16];
  start_shared();
  snprintf(port, sizeof port, "%d", shared.port);
  RUN(&run, "serve", TINY, "--device", "cpu", "--port", port);
  CHECK_INT(run.exit_code, MLX_IO);
  CHECK_CONTAINS(run.err, "address already in use");
  CHECK_CONTAINS(run.err, "another program uses the port; choose another one, for example --port ");
  CHECK(!strstr(run.err, "loaded"));
  command_free(&run);
  RUN(&run, "serve", NO_MODEL, "--port", port);
  CHECK_CONTAINS(run.err, "address already in use");
  command_free(&run);
  RUN(&run, "serve", "/nowhere/model.gguf", "--port", port);
  CHECK_CONTAINS(run.err, "there is no model '/nowhere/model.gguf'");
  command_free(&run);
  RUN(&run, "serve", NO_MODEL, "--ssl-cert", "/nowhere/c.pem", "--ssl-key", "/nowhere/k.pem");
  CHECK_CONTAINS(run.err, "c.pem");
  command_free(&run);
}

TEST(lists_of_models_have_aliases) {
  served_t s;
  SERVE(&s, TINY, "-m", OTHER, "--alias", "best=qwen2", "--device", "cpu");
  check_body(s.port, "/v1/models", 200, "\"id\":\"tiny-llama\"");
  check_body(s.port, "/v1/models", 200, "\"id\":\"qwen2\"");
  check_body(s.port, "/v1/models", 200, "\"id\":\"best\"");
  check_body(s.port, "/v1/models/best", 200,
             "\"type\":\"model\",\"display_name\":\"best\"");  // Anthropic's form
  check_body(s.port, "/v1/models", 200,
             "\"has_more\":false,\"first_id\":\"tiny-llama\",\"last_id\":\"best\"");
  check_body(s.port, "/v1/models/qwen2", 200, "\"id\":\"qwen2\"");
  check_body(s.port, "/api/tags", 200, "\"name\":\"qwen2\"");
  check_body(s.port, "/api/tags", 200, "\"name\":\"best\"");
  CHECK_INT(serve_stop(&s), 0);
}

TEST(the_description_of_the_api_needs_no_page) {
  served_t s;
  SERVE(&s, TINY, "--device", "cpu", "--no-page");
  check_body(s.port, "/openapi.json", 200, "\"openapi\"");
  check_body(s.port, "/", 404, "there is no endpoint");
  CHECK_INT(serve_stop(&s), 0);
}

TEST(several_models_are_loaded_on_first_use_and_the_oldest_is_unloaded) {
  static const char *const names[] = {"a", "b", "c"};
  char path[128];
  served_t s;
  strcpy(folder, "/tmp/mlxcel-serve-models-XXXXXX");
  CHECK(mkdtemp(folder));
  for (int i = 0; i < 3; ++i) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    CHECK(!symlink(TINY, path));
  }
  snprintf(path, sizeof path, "%s/broken.gguf", folder);
  CHECK_OK(mlx_replace_file(path, "x", 1));
  SERVE(&s, "--models", folder, "--alias", "best=b", "--device", "cpu", "-c", "64", "--model-memory", "480K");
  CHECK_INT((int64_t)metric(s.port, "mlxcel_models_loaded"), 0);
  complete(s.port, "a", 200);
  complete(s.port, "best", 200);
  CHECK_INT((int64_t)metric(s.port, "mlxcel_model_unloads_total"), 0);
  complete(s.port, "c", 200);
  CHECK_INT((int64_t)metric(s.port, "mlxcel_models_loaded"), 2);
  complete(s.port, "b", 200);  // is still loaded
  CHECK_INT((int64_t)metric(s.port, "mlxcel_model_loads_total"), 3);
  complete(s.port, "a:latest", 200);  // was unloaded
  CHECK_INT((int64_t)metric(s.port, "mlxcel_model_loads_total"), 4);
  CHECK_INT((int64_t)metric(s.port, "mlxcel_model_unloads_total"), 2);
  complete(s.port, "nothing", 404);
  complete(s.port, "broken", 503);
  complete(s.port, "a", 200);
  CHECK_INT(serve_stop(&s), 0);
  // The limit counts the KV caches at full size.
  SERVE(&s, "--models", folder, "--device", "cpu", "-c", "64", "--memory", "300K", "--model-memory", "480K");
  complete(s.port, "a", 200);
  complete(s.port, "b", 200);
  wait_for_metric(s.port, "mlxcel_models_loaded", 1);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(describing_a_model_does_not_load_it) {
  static const char *const paths[] = {"/props", "/model_info"};
  static const char show[] = "{\"model\":\"qwen2\"}";
  served_t s;
  reply_t reply;
  SERVE(&s, "-m", TINY, "-m", OTHER, "--device", "cpu", "-c", "64", "--chat-template", "chatml");
  for (int loaded = 0; loaded < 2; ++loaded) {
    for (size_t i = 0; i < 2; ++i) {
      client_call(s.port, "GET", paths[i], "", NULL, &reply);
      CHECK_INT(reply.status, 200);
      CHECK_CONTAINS(reply_text(&reply), loaded ? "\"is_loaded\":true" : "\"is_loaded\":false");
      CHECK_CONTAINS(reply_text(&reply), "tiny-llama");
      mlx_text_clear(&reply.body);
    }
    client_call(s.port, "POST", "/api/show", "", show, &reply);
    CHECK_INT(reply.status, 200);
    CHECK_CONTAINS(reply_text(&reply), "<|im_start|>");
    CHECK_CONTAINS(reply_text(&reply), "\"completion\"");
    mlx_text_clear(&reply.body);
    client_call(s.port, "POST", "/api/show", "", "{\"model\":\"nothing\"}", &reply);
    CHECK_INT(reply.status, 404);
    mlx_text_clear(&reply.body);
    CHECK_INT((int64_t)metric(s.port, "mlxcel_model_loads_total"), loaded);
    if (!loaded) complete(s.port, "tiny-llama", 200);
  }
  CHECK_INT(serve_stop(&s), 0);
}

TEST(a_log_that_cannot_be_written_does_not_stop_the_server) {
  served_t s;
  if (access("/dev/full", W_OK)) SKIP("there is no /dev/full");
  SERVE(&s, TINY, "--device", "cpu", "--log", "/dev/full");
  for (int i = 0; i < 3; ++i) complete(s.port, "tiny-llama", 200);
  for (int i = 0; i < 3000 && metric(s.port, "mlxcel_log_lines_dropped_total") < 3; ++i) mlx_sleep_ms(10);
  CHECK(metric(s.port, "mlxcel_log_lines_dropped_total") >= 3);
  CHECK_INT(serve_stop(&s), 0);
}

TEST(the_access_log_has_a_json_line_for_each_request) {
  char path[] = "/tmp/mlxcel-serve-log-XXXXXX";
  char *log;
  size_t length;
  served_t s;
  close(mkstemp(path));
  SERVE(&s, TINY, "--device", "cpu", "--log", path);
  complete(s.port, "tiny-llama", 200);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_read_file(path, 1 << 20, &log, &length));
  yyjson_doc *doc = yyjson_read(log, strcspn(log, "\n"), 0);
  CHECK_INT(yyjson_get_sint(at(doc, "/status")), 200);
  CHECK_INT(yyjson_get_sint(at(doc, "/output_tokens")), 4);
  CHECK_TEXT(yyjson_get_str(at(doc, "/path")), "/v1/completions");
  yyjson_doc_free(doc);
  mlx_free(log);
  unlink(path);
}

// CPU time of the shared server in ticks of 10 ms; -1 if the system does not tell.
static long used_ticks(void) {
  char path[64], line[1024];
  long user, kernel;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)shared.pid);
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  CHECK(fgets(line, sizeof line, file));
  fclose(file);
  CHECK(sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
               &kernel) == 2);
  return user + kernel;
}

TEST(an_idle_server_uses_no_cpu_time) {
  long used = 3;
  start_shared();
  wait_for_metric(shared.port, "mlxcel_requests_running", 0);
  if (used_ticks() < 0) SKIP("this system has no /proc");
  CHECK(used_ticks() > 0);                   // loading is counted
  for (int i = 0; i < 5 && used > 2; ++i) {  // a busy machine may delay the end of earlier work
    const long before = used_ticks();
    mlx_sleep_ms(1500);
    used = used_ticks() - before;
  }
  CHECK(used <= 2);
}

TEST(the_shared_server_ends_cleanly) {
  start_shared();
  CHECK_INT(serve_stop(&shared), 0);
  shared.pid = 0;
}

TEST_MAIN(CASE(a_completion_has_the_tokens_of_mlxcel_run), CASE(a_stream_has_the_text_of_the_whole_answer),
          CASE(a_repeated_prompt_is_cached),
          CASE(n_answers_have_different_seeds_and_the_prompt_is_counted_once),
          CASE(a_stop_string_ends_the_text_before_it), CASE(a_json_schema_constrains_the_answer),
          CASE(anthropics_messages_name_the_stop_sequence), CASE(ollamas_endpoints_answer),
          CASE(responses_answer_whole_and_as_a_stream), CASE(a_client_that_leaves_frees_its_pages),
          CASE(wrong_requests_name_the_field), CASE(biases_that_the_model_cannot_have_are_400),
          CASE(a_prompt_over_the_context_is_refused_with_both_numbers),
          CASE(echoed_prompts_with_log_probabilities_are_limited),
          CASE(embeddings_are_deterministic_and_have_length_1), CASE(tokens_and_text_round_trip),
          CASE(a_continued_message_ends_the_prompt), CASE(information_endpoints_answer),
          CASE(metrics_are_in_prometheus_text_format), CASE(metrics_count_the_pages_of_windows),
          CASE(cors_preflight_is_answered), CASE(a_key_is_required_if_one_is_set), CASE(a_full_queue_is_429),
          CASE(requests_that_wait_for_a_load_are_limited_and_a_client_that_leaves_makes_room),
          CASE(a_port_in_use_is_found_before_a_model_is_loaded), CASE(lists_of_models_have_aliases),
          CASE(the_description_of_the_api_needs_no_page),
          CASE(several_models_are_loaded_on_first_use_and_the_oldest_is_unloaded),
          CASE(describing_a_model_does_not_load_it),
          CASE(a_log_that_cannot_be_written_does_not_stop_the_server),
          CASE(the_access_log_has_a_json_line_for_each_request), CASE(an_idle_server_uses_no_cpu_time),
          CASE(the_shared_server_ends_cleanly))
