// The memory of `mlxcel serve` after many parallel requests: it returns to what it was.
#include <yyjson.h>

#include "tests/support/command.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define CLIENTS 24  // connections at the same time
#define ROUNDS 8
#define WORDS 200  // of a prompt

static long resident_kib(pid_t pid) {
  char path[64], line[256];
  long kib = -1;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  }
  if (file) fclose(file);
  return kib;
}

static int64_t metric(int port, const char *name) {
  reply_t reply;
  char needle[96];
  client_call(port, "GET", "/metrics", "", NULL, &reply);
  snprintf(needle, sizeof needle, "\n%s{", name);
  const char *found = strstr(reply_text(&reply), needle);
  if (!found) CHECK_FAIL("there is no metric %s", name);
  const int64_t value = atoll(strchr(found, '}') + 1);
  mlx_text_clear(&reply.body);
  return value;
}

// A prompt that no other request has.
static void write_body(int number, char *body, size_t size) {
  size_t at = (size_t)snprintf(body, size, "{\"max_tokens\":8,\"temperature\":0,\"prompt\":\"");
  for (int i = 0; i < WORDS; ++i) at += (size_t)snprintf(body + at, size - at, "%d ", number * 7919 + i * 31);
  snprintf(body + at, size - at, "\"}");
}

static void load_server(int port, int round) {
  static char body[8192];
  int sockets[CLIENTS];
  for (int i = 0; i < CLIENTS; ++i) {
    write_body(round * CLIENTS + i, body, sizeof body);
    sockets[i] = client_request(port, "POST", "/v1/completions", "", body);
  }
  for (int i = 0; i < CLIENTS; ++i) {
    reply_t reply;
    client_finish(sockets[i], &reply);
    CHECK_INT(reply.status, 200);
    mlx_text_clear(&reply.body);
  }
}

TEST(memory_returns_to_what_it_was_before_a_load) {
  served_t served;
  SERVE(&served, TINY, "--device", "cpu", "--parallel", "16", "-c", "2048", "--memory", "1G", "--cache-idle",
        "1");
  if (resident_kib(served.pid) < 0) {
    serve_stop(&served);
    SKIP("this system has no /proc");
  }
  load_server(served.port,
              1000);  // the first requests take memory that stays: buffers of connections, arenas
  for (int i = 0; i < 3000 && metric(served.port, "mlxcel_kv_pages_cached"); ++i) mlx_sleep_ms(20);
  CHECK_INT(metric(served.port, "mlxcel_kv_pages_cached"), 0);
  const long before = resident_kib(served.pid);
  long most = before, after = LONG_MAX;
  for (int round = 0; round < ROUNDS; ++round) {
    load_server(served.port, round);
    if (resident_kib(served.pid) > most) most = resident_kib(served.pid);
  }
  for (int i = 0; i < 3000 && after > before + before / 5; ++i) {
    mlx_sleep_ms(20);
    after = resident_kib(served.pid);
  }
  fprintf(stderr, "  %ld KiB, %ld under load, %ld after it\n", before, most, after);
  CHECK(most > before + before / 5);  // else the load shows nothing
  CHECK(after <= before + before / 5);
  CHECK_INT(metric(served.port, "mlxcel_kv_pages_used"), 0);
  load_server(served.port, 0);  // it still answers
  CHECK_INT(serve_stop(&served), 0);
}

// The answer is the same before the memory was given back, and after that, when the prompt is computed again.
TEST(answers_do_not_change_when_the_cache_was_freed) {
  static const char body[] =
      "{\"prompt\":\"one two three four five six seven eight nine ten eleven\","
      "\"temperature\":0,\"max_tokens\":16}";
  served_t served;
  char first[256] = "";
  SERVE(&served, TINY, "--device", "cpu", "--cache-idle", "1");
  for (int i = 0; i < 2; ++i) {
    reply_t reply;
    client_call(served.port, "POST", "/v1/completions", "", body, &reply);
    yyjson_doc *doc = parse_reply("/v1/completions", &reply, 200);
    const char *text = yyjson_get_str(at(doc, "/choices/0/text"));
    if (i) CHECK_TEXT(text, first);
    snprintf(first, sizeof first, "%s", text);
    CHECK_INT(yyjson_get_sint(at(doc, "/usage/prompt_tokens_details/cached_tokens")), 0);
    yyjson_doc_free(doc);
    for (int k = 0; k < 3000 && metric(served.port, "mlxcel_kv_pages_cached"); ++k) mlx_sleep_ms(20);
  }
  CHECK_INT(serve_stop(&served), 0);
}

TEST_MAIN(CASE(memory_returns_to_what_it_was_before_a_load),
          CASE(answers_do_not_change_when_the_cache_was_freed))
