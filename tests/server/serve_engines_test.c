// A model with two engines on a CPU: tokens, placement, failures, leaving, the end and sleep.
#include "tests/server/engines.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(two_engines_write_the_tokens_of_one) { engines_check_tokens(TINY, MLX_USE_CPU); }

TEST(an_engine_that_fails_ends_its_streams_only) { engines_check_failure(TINY, MLX_USE_CPU); }

// The cached tokens of the answer to |prompt|.
static int64_t cached_tokens(const engines_t *e, const char *prompt) {
  char body[1024];
  reply_t reply;
  snprintf(body, sizeof body, "{\"max_tokens\":2,\"prompt\":\"%s\"}", prompt);
  client_call(e->port, "POST", "/v1/completions", "", body, &reply);
  yyjson_doc *doc = parse_reply("/v1/completions", &reply, 200);
  const int64_t cached = yyjson_get_sint(at(doc, "/usage/prompt_tokens_details/cached_tokens"));
  yyjson_doc_free(doc);
  return cached;
}

TEST(requests_with_the_same_prefix_find_it_in_the_cache) {
  static const char *const prefixes[] = {
      "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
      "red green blue white black yellow brown orange purple violet pink grey silver gold and so on",
      "monday tuesday wednesday thursday friday saturday sunday and again monday tuesday wednesday",
      "january february march april may june july august september october november december"};
  engines_t e;
  char prompt[512];
  engines_start(&e, TINY, MLX_USE_CPU, 2);
  for (int i = 0; i < 4; ++i) CHECK_INT(cached_tokens(&e, prefixes[i]) < 16, true);
  for (int i = 0; i < 2; ++i) CHECK(engines_metric(&e, "mlxcel_output_tokens_total", i) > 0);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      snprintf(prompt, sizeof prompt, "%s %d", prefixes[i], 1000 * round + i);
      CHECK(cached_tokens(&e, prompt) >= 32);
    }
  }
  engines_stop(&e);
}

// Slots and the sequences of /props are those of both engines; /api/ps has one model.
TEST(lists_count_both_engines) {
  engines_t e;
  reply_t reply;
  engines_start(&e, TINY, MLX_USE_CPU, 2);
  client_call(e.port, "GET", "/slots", "", NULL, &reply);
  yyjson_doc *doc = parse_reply("/slots", &reply, 200);
  CHECK_INT((int64_t)yyjson_arr_size(yyjson_doc_get_root(doc)), 16);
  CHECK_INT(yyjson_get_sint(at(doc, "/7/engine")), 0);
  CHECK_INT(yyjson_get_sint(at(doc, "/8/engine")), 1);
  yyjson_doc_free(doc);
  client_call(e.port, "GET", "/props", "", NULL, &reply);
  doc = parse_reply("/props", &reply, 200);
  CHECK_INT(yyjson_get_sint(at(doc, "/total_slots")), 16);
  yyjson_doc_free(doc);
  client_call(e.port, "GET", "/api/ps", "", NULL, &reply);
  doc = parse_reply("/api/ps", &reply, 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/models")), 1);
  yyjson_doc_free(doc);
  client_call(e.port, "GET", "/server_info", "", NULL, &reply);
  doc = parse_reply("/server_info", &reply, 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/loaded_models")), 2);
  CHECK_INT(yyjson_get_sint(at(doc, "/loaded_models/1/engine")), 1);
  yyjson_doc_free(doc);
  engines_stop(&e);
}

// A grammar needs tables of the engine that runs it.
TEST(grammars_work_on_both_engines) {
  static const char body[] =
      "{\"max_tokens\":400,\"grammar\":\"root ::= (\\\"ab\\\" | \\\"cd\\\"){30}\",\"prompt\":\"x\","
      "\"temperature\":1.5}";
  engines_t e;
  int sockets[6];
  engines_start(&e, TINY, MLX_USE_CPU, 2);
  for (int i = 0; i < 6; ++i) sockets[i] = client_request(e.port, "POST", "/v1/completions", "", body);
  for (int i = 0; i < 6; ++i) {
    char *text = engines_text(sockets[i]);
    CHECK_INT((int64_t)strspn(text, "\"abcd"), 62);
    free(text);
  }
  for (int i = 0; i < 2; ++i) CHECK(engines_metric(&e, "mlxcel_output_tokens_total", i) > 0);
  engines_stop(&e);
}

TEST(clients_that_leave_free_the_sequences_of_both_engines) {
  engines_t e;
  int sockets[8];
  engines_start(&e, TINY, MLX_USE_CPU, 2);
  for (int i = 0; i < 8; ++i) sockets[i] = engines_ask(&e, i, 1500, true);
  for (int i = 0; i < 8; ++i) {
    mlx_text_t text = {0};
    client_read(sockets[i], &text);
    mlx_text_clear(&text);
  }
  for (int i = 0; i < 8; ++i) close(sockets[i]);
  for (int i = 0; i < 2; ++i) {
    engines_expect(&e, "mlxcel_requests_running", i, 0);
    engines_expect(&e, "mlxcel_requests_waiting", i, 0);
    engines_expect(&e, "mlxcel_kv_pages_used", i, 0);
  }
  engines_stop(&e);
}

TEST(a_signal_finishes_the_streams_of_both_engines) {
  engines_t e;
  int sockets[8];
  engines_start(&e, TINY, MLX_USE_CPU, 2);
  for (int i = 0; i < 8; ++i) sockets[i] = engines_ask(&e, i, 400, true);
  mlx_text_t first[8] = {0};
  for (int i = 0; i < 8; ++i) client_read(sockets[i], &first[i]);
  CHECK(!kill(getpid(), SIGTERM));
  for (int i = 0; i < 8; ++i) {
    while (client_read(sockets[i], &first[i])) continue;
    CHECK_CONTAINS(first[i].data, "data: [DONE]");
    CHECK_CONTAINS(first[i].data, "\"length\"");
    close(sockets[i]);
    mlx_text_clear(&first[i]);
  }
  engines_wait(&e);
}

static void post(const engines_t *e, const char *path) {
  reply_t reply;
  client_call(e->port, "POST", path, "", "", &reply);
  if (reply.status != 200) CHECK_FAIL("%s: %s", path, reply_text(&reply));
  mlx_text_clear(&reply.body);
}

TEST(both_engines_sleep_and_wake) {
  engines_t e;
  engines_start(&e, TINY, MLX_USE_CPU, 2);
  char *before = engines_text(engines_ask(&e, 3, 20, false));
  free(engines_text(engines_ask(&e, 4, 20, false)));
  post(&e, "/sleep?level=1");
  for (int i = 0; i < 2; ++i) engines_expect(&e, "mlxcel_kv_pages_cached", i, 0);
  post(&e, "/wake_up");
  post(&e, "/sleep?level=2");
  post(&e, "/wake_up");
  CHECK_INT(engine_opened, 4);
  char *after = engines_text(engines_ask(&e, 3, 20, false));
  CHECK_TEXT(after, before);
  free(before);
  free(after);
  engines_stop(&e);
}

TEST_MAIN(CASE(two_engines_write_the_tokens_of_one), CASE(an_engine_that_fails_ends_its_streams_only),
          CASE(requests_with_the_same_prefix_find_it_in_the_cache), CASE(lists_count_both_engines),
          CASE(grammars_work_on_both_engines), CASE(clients_that_leave_free_the_sequences_of_both_engines),
          CASE(a_signal_finishes_the_streams_of_both_engines), CASE(both_engines_sleep_and_wake))
