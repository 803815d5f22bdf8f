// What docs/determinism.md promises of a server on a CPU: the tokens of a request and all bits of their
// log-probabilities do not depend on other requests, preemption, the number of threads, a restart or the CPU
// level.
#include <yyjson.h>

#include "base/cpu.h"
#include "tests/support/command.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define REQUESTS 12
#define TOKENS 96

static char *expected[REQUESTS];  // the choices of each request alone
static bool tokens_only;          // log-probabilities may differ

static void write_body(int number, char *body, size_t size) {
  size_t at = (size_t)snprintf(
      body, size,
      "{\"max_tokens\":%d,\"temperature\":0.9,\"seed\":%d,\"ignore_eos\":true,\"logprobs\":2,\"prompt\":\"",
      TOKENS, number);
  for (int i = 0; i < 5 + 3 * number; ++i)
    at += (size_t)snprintf(body + at, size - at, "%d ", number * 31 + i);
  snprintf(body + at, size - at, "\"}");
}

// The JSON of the choices. Release with free.
static char *read_choices(reply_t *reply) {
  yyjson_doc *doc = parse_reply("/v1/completions", reply, 200);
  char *text = yyjson_val_write(at(doc, tokens_only ? "/choices/0/logprobs/tokens" : "/choices"), 0, NULL);
  yyjson_doc_free(doc);
  return text;
}

static int send_request(int port, int number) {
  char body[2048];
  write_body(number, body, sizeof body);
  return client_request(port, "POST", "/v1/completions", "", body);
}

static void check_answer(int number, int socket, const char *what) {
  reply_t reply;
  client_finish(socket, &reply);
  char *text = read_choices(&reply);
  if (!expected[number])
    expected[number] = text;
  else if (strcmp(text, expected[number]))
    CHECK_FAIL("%s: request %d is\n%s\nand alone it was\n%s", what, number, text, expected[number]);
  if (text != expected[number]) free(text);
}

// One after another.
static void check_alone(int port, const char *what) {
  for (int i = 0; i < REQUESTS; ++i) check_answer(i, send_request(port, i), what);
}

static void check_together(int port, const char *what) {
  int sockets[REQUESTS];
  for (int i = 0; i < REQUESTS; ++i) sockets[i] = send_request(port, i);
  for (int i = 0; i < REQUESTS; ++i) check_answer(i, sockets[i], what);
}

static int64_t preemptions(int port) {
  reply_t reply;
  client_call(port, "GET", "/metrics", "", NULL, &reply);
  const char *found = strstr(reply_text(&reply), "\nmlxcel_preemptions_total{");
  if (!found) CHECK_FAIL("there is no such metric");
  const int64_t value = atoll(strchr(found, '}') + 1);
  mlx_text_clear(&reply.body);
  return value;
}

static void expect_alone(void) {
  served_t served;
  if (expected[0]) return;
  SERVE(&served, TINY, "--device", "cpu", "-t", "1", "--parallel", "1");
  check_alone(served.port, "alone");
  CHECK_INT(serve_stop(&served), 0);
}

TEST(requests_together_after_a_restart_and_with_more_threads_have_the_same_bits) {
  served_t served;
  expect_alone();
  SERVE(&served, TINY, "--device", "cpu", "-t", "2", "--parallel", "8");
  check_together(served.port, "together");
  check_together(served.port, "with prefixes from the cache");
  CHECK_INT(serve_stop(&served), 0);
}

TEST(requests_on_two_engines_have_the_same_bits) {
  served_t served;
  expect_alone();
  SERVE(&served, TINY, "--device", "cpu", "--engines", "2", "--parallel", "4");
  check_together(served.port, "on two engines");
  check_together(served.port, "on two engines with prefixes from the cache");
  CHECK_INT(serve_stop(&served), 0);
}

TEST(preempted_requests_have_the_same_bits) {
  served_t served;
  expect_alone();
  SERVE(&served, TINY, "--device", "cpu", "--parallel", "8", "-c", "512", "--memory", "320K");
  for (int i = 0; i < 8 && !preemptions(served.port); ++i) check_together(served.port, "preempted");
  CHECK(preemptions(served.port) > 0);
  CHECK_INT(serve_stop(&served), 0);
}

static void forget(void) {
  for (int i = 0; i < REQUESTS; ++i) {
    free(expected[i]);
    expected[i] = NULL;
  }
}

static void check_quantized(void (*check)(int port, const char *what), const char *threads,
                            const char *parallel, const char *memory, const char *what) {
  served_t served;
  SERVE(&served, TINY, "--device", "cpu", "--quantize", "q4_0", "-t", threads, "--parallel", parallel, "-c",
        "512", "--memory", memory);
  for (int i = 0; i < 8; ++i) {
    check(served.port, what);
    if (strcmp(what, "preempted") || preemptions(served.port)) break;
  }
  CHECK(strcmp(what, "preempted") || preemptions(served.port) > 0);
  CHECK_INT(serve_stop(&served), 0);
}

// Products of few and of many tokens differ in the last bits, so a request has its bits only if it has its
// steps alone.
TEST(quantized_requests_have_the_same_bits_alone_and_the_same_tokens_together) {
  forget();
  check_quantized(check_alone, "1", "1", "1M", "alone");
  check_quantized(check_alone, "2", "8", "1M", "alone after a restart");
  forget();
  tokens_only = true;
  check_quantized(check_alone, "1", "1", "1M", "alone");
  check_quantized(check_together, "2", "8", "1M", "together");
  check_quantized(check_together, "2", "8", "320K", "preempted");
  tokens_only = false;
  forget();
}

TEST(cpu_levels_with_fused_multiply_add_have_the_same_bits) {
  static const char *const levels[] = {"x86-64-v3", "x86-64-v4"};
  int tried = 0;
  forget();  // the level of this machine may be another
  for (int i = 0; i < 2; ++i) {
    served_t served;
    if (!mlx_cpu_has_level(levels[i])) continue;
    SERVE(&served, TINY, "--device", "cpu", "--dtype", "f32", "--cpu-level", levels[i], "--parallel", "4");
    check_together(served.port, levels[i]);
    CHECK_INT(serve_stop(&served), 0);
    ++tried;
  }
  if (tried < 2) SKIP("this CPU has not both levels");
}

TEST_MAIN(CASE(requests_together_after_a_restart_and_with_more_threads_have_the_same_bits),
          CASE(requests_on_two_engines_have_the_same_bits), CASE(preempted_requests_have_the_same_bits),
          CASE(quantized_requests_have_the_same_bits_alone_and_the_same_tokens_together),
          CASE(cpu_levels_with_fused_multiply_add_have_the_same_bits))
