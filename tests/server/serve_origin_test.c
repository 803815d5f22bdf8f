// Web pages against `mlxcel serve`: the headers Host, Origin, Sec-Fetch-Site and Content-Type.
#include "server/core/origin.h"
#include "server/http/exchange.h"
#include "tests/support/http_client.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define JSON "Content-Type: application/json\r\n"
#define BODY "{\"prompt\":\"a\",\"max_tokens\":1}"

typedef struct row {
  const char *headers;
  int status;
} row_t;

// Sends a completion whose only headers are |headers|, and "PORT" in them is the server's port.
static void call(int port, const char *method, const char *path, const char *headers, const char *body,
                 reply_t *out) {
  const int fd = client_connect(port);
  mlx_text_t text = {0};
  mlx_text_printf(&text, "%s %s HTTP/1.1\r\nConnection: close\r\n", method, path);
  for (const char *at = headers, *found; *at; at = found + (*found ? 4 : 0)) {
    found = strstr(at, "PORT");
    if (!found) found = at + strlen(at);
    mlx_text_append(&text, at, (size_t)(found - at));
    if (*found) mlx_text_printf(&text, "%d", port);
  }
  if (body) mlx_text_printf(&text, "Content-Length: %zu\r\n", strlen(body));
  mlx_text_printf(&text, "\r\n%s", body ? body : "");
  client_send(fd, text.data, text.length);
  mlx_text_clear(&text);
  client_finish(fd, out);
}

static void check(int port, const char *method, const char *path, const char *body, const row_t *rows,
                  size_t count) {
  for (size_t i = 0; i < count; ++i) {
    reply_t reply;
    call(port, method, path, rows[i].headers, body, &reply);
    if (reply.status != rows[i].status)
      CHECK_FAIL("%s %s with %s: status %d, expected %d: %s", method, path, rows[i].headers, reply.status,
                 rows[i].status, reply_text(&reply));
    mlx_text_clear(&reply.body);
  }
}
#define CHECK_ROWS(port, method, path, body, rows) \
  check(port, method, path, body, rows, sizeof(rows) / sizeof *(rows))

static void check_error(int port, const char *headers, int status, const char *part) {
  reply_t reply;
  call(port, "POST", "/v1/completions", headers, BODY, &reply);
  CHECK_INT(reply.status, status);
  CHECK_CONTAINS(reply_text(&reply), part);
  CHECK(!strcasestr(reply.headers, "access-control-allow-origin"));
  mlx_text_clear(&reply.body);
}

static served_t shared;  // without a key

static void kill_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
}

static int shared_port(void) {
  if (!shared.pid) {
    CHECK(!atexit(kill_shared));
    SERVE(&shared, TINY, "--device", "cpu", "--cors", "https://good.example, app://notes", "--allowed-hosts",
          "llm.example.com,.internal");
  }
  return shared.port;
}

TEST(only_names_of_the_server_are_answered) {
  static const row_t rows[] = {
      {"Host: localhost\r\n", 200},
      {"Host: LocalHost.:PORT\r\n", 200},
      {"Host: app.localhost:PORT\r\n", 200},
      {"Host: 127.0.0.1:PORT\r\n", 200},
      {"Host: 127.9.9.9\r\n", 200},
      {"Host: 192.168.1.4:PORT\r\n", 200},
      {"Host: [::1]:PORT\r\n", 200},
      {"Host: [2001:db8::1]\r\n", 200},
      {"Host: llm.example.com:443\r\n", 200},
      {"Host: box.internal\r\n", 200},
      {"Host: evil.example:PORT\r\n", 403},
      {"Host: notlocalhost\r\n", 403},
      {"Host: localhost.evil.example\r\n", 403},
      {"Host: 127.0.0.1.evil.example:PORT\r\n", 403},
      {"Host: x.llm.example.com\r\n", 403},
      {"Host: internal\r\n", 403},
      {"Host: [evil.example]\r\n", 403},
  };
  const int port = shared_port();
  CHECK_ROWS(port, "GET", "/v1/models", NULL, rows);
  CHECK_ROWS(port, "GET", "/", NULL, rows);
  check_error(port, "Host: evil.example:PORT\r\n" JSON, 403, "--allowed-hosts 'evil.example:");
}

// True if the server answers requests whose Host is |header|.
static bool answers(const mlx_site_t *site, const char *header) {
  mlx_exchange_t exchange = {.request = {.method = "GET"}};
  mlx_failure_kind_t kind;
  mlx_text_append(&exchange.request.headers, "host", 5);
  mlx_text_append(&exchange.request.headers, header, strlen(header) + 1);
  mlx_status_t status = mlx_origin_check(site, &exchange, &kind);
  mlx_text_clear(&exchange.request.headers);
  const bool ok = !status;
  mlx_status_free(status);
  return ok;
}

TEST(the_host_option_is_a_name_of_the_server) {
  const mlx_site_t named = {.host = "Box.Example"},
                   any = {.host = "0.0.0.0", .allowed_hosts = "a.example, *"};
  const mlx_site_t address = {.host = "0.0.0.0"}, unix_socket = {0};
  CHECK(answers(&named, "box.example:8080"));
  CHECK(!answers(&named, "other.example:8080"));
  CHECK(!answers(&address, "box.example"));
  CHECK(answers(&any, "box.example"));
  CHECK(answers(&unix_socket, "box.example"));
  CHECK(!answers(&named, ""));
  CHECK(!answers(&named, "[::1"));
  CHECK(!answers(&named, "localhost:1:2"));
}

TEST(pages_of_other_origins_are_refused) {
  static const row_t rows[] = {
      {"Host: localhost:PORT\r\nOrigin: http://localhost:PORT\r\n" JSON, 200},
      {"Host: llm.example.com\r\nOrigin: https://llm.example.com\r\n" JSON, 200},
      {"Host: llm.example.com:443\r\nOrigin: https://llm.example.com\r\n" JSON, 200},
      {"Host: [::1]:PORT\r\nOrigin: http://[::1]:PORT\r\n" JSON, 200},
      {"Host: localhost:PORT\r\nOrigin: https://good.example\r\n" JSON, 200},
      {"Host: localhost:PORT\r\nOrigin: app://notes\r\n" JSON, 200},
      {"Host: localhost:PORT\r\nOrigin: https://evil.example\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nOrigin: http://good.example\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nOrigin: null\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nOrigin: http://localhost:3000\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nOrigin: http://localhost\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nOrigin: http://localhost:PORT.evil.example\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nOrigin: http://localhost:PORT@evil.example\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n" JSON, 403},
      {"Host: localhost:PORT\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n" JSON, 200},
  };
  static const row_t reading[] = {
      {"Host: localhost:PORT\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n", 200},
      {"Host: localhost:PORT\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n", 200},
      {"Host: localhost:PORT\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403},
      {"Host: localhost:PORT\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n", 403},
  };
  const int port = shared_port();
  CHECK_ROWS(port, "POST", "/v1/completions", BODY, rows);
  CHECK_ROWS(port, "GET", "/", NULL, reading);
  check_error(port, "Host: localhost\r\nOrigin: https://evil.example\r\n" JSON, 403,
              "--cors 'https://evil.example'");
}

TEST(a_preflight_is_allowed_only_for_origins_of_cors) {
  static const row_t rows[] = {
      {"Host: localhost:PORT\r\nOrigin: https://good.example\r\n", 204},
      {"Host: localhost:PORT\r\nOrigin: https://evil.example\r\n", 403},
  };
  CHECK_ROWS(shared_port(), "OPTIONS", "/v1/completions", NULL, rows);
}

TEST(a_body_must_be_json) {
  static const row_t rows[] = {
      {"Host: localhost\r\nContent-Type: application/json; charset=utf-8\r\n", 200},
      {"Host: localhost\r\nContent-Type: Application/JSON\r\n", 200},
      // curl -d, and a client that sends no type
      {"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n", 200},
      {"Host: localhost\r\n", 200},
      {"Host: localhost\r\nContent-Type: text/plain\r\n", 415},
      {"Host: localhost\r\nContent-Type: application/jsonp\r\n", 415},
      {"Host: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n", 415},
      // from pages, also of an allowed origin
      {"Host: localhost\r\nOrigin: https://good.example\r\nContent-Type: text/plain\r\n", 415},
      {"Host: localhost:PORT\r\nOrigin: http://localhost:PORT\r\n"
       "Content-Type: application/x-www-form-urlencoded\r\n",
       415},
      {"Host: localhost\r\nSec-Fetch-Site: same-origin\r\n", 415},
      {"Host: localhost\r\nOrigin: https://evil.example\r\nContent-Type: text/plain\r\n", 403},
  };
  CHECK_ROWS(shared_port(), "POST", "/v1/completions", BODY, rows);
  CHECK_ROWS(shared_port(), "POST", "/api/generate",
             "{\"prompt\":\"a\",\"raw\":true,\"stream\":false,\"options\":{\"num_predict\":1}}", rows);
  check_error(shared_port(), "Host: localhost\r\nContent-Type: text/plain\r\n", 415,
              "Content-Type: application/json");
}

TEST(with_a_key_only_the_key_counts) {
  static const row_t rows[] = {
      {"Host: any.example\r\nx-api-key: k\r\n" JSON, 200},
      {"Host: localhost\r\nOrigin: https://any.example\r\nx-api-key: k\r\n" JSON, 200},
      {"Host: any.example\r\nOrigin: https://any.example\r\nContent-Type: text/plain\r\n", 401},
  };
  served_t s;
  SERVE(&s, TINY, "--device", "cpu", "--api-key", "k");
  CHECK_ROWS(s.port, "POST", "/v1/completions", BODY, rows);
  CHECK_INT(serve_stop(&s), 0);
}

TEST(the_shared_server_ends_cleanly) {
  shared_port();
  CHECK_INT(serve_stop(&shared), 0);
  shared.pid = 0;
}

TEST_MAIN(CASE(only_names_of_the_server_are_answered), CASE(the_host_option_is_a_name_of_the_server),
          CASE(pages_of_other_origins_are_refused), CASE(a_preflight_is_allowed_only_for_origins_of_cors),
          CASE(a_body_must_be_json), CASE(with_a_key_only_the_key_counts),
          CASE(the_shared_server_ends_cleanly))
