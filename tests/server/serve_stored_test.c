// `mlxcel serve` without a model: the stored models, which are loaded when a request names them. A test hub
// has them; the server itself never asks it.
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/http_client.h"
#include "tests/support/server.h"

#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define SHORT_REPOSITORY "bartowski/SmolLM2-135M-Instruct-GGUF"
#define SHORT_FILE "SmolLM2-135M-Instruct-Q4_K_M.gguf"

static server_t hub;
static served_t served;

static void put(const char *to) {
  char *parent;
  CHECK_OK(mlx_folder_of(to, &parent));
  CHECK_OK(mlx_make_dirs(parent, 0755));
  mlx_free(parent);
  CHECK_OK(mlx_copy_file(TINY_GGUF, to));
}

static void clean_up(void) {
  if (served.pid) kill(served.pid, SIGKILL);
  server_stop(&hub);
  mlx_status_free(mlx_remove_tree(folder));
}

// The hub, and a cache without models. What one case compiled, the others find there.
static void begin(void) {
  if (!hub.port) {
    plain_environment();
    strcpy(folder, "/tmp/mlxcel-serve-stored-XXXXXX");
    CHECK(mkdtemp(folder));
    put(in_folder("hub/acme/tiny-GGUF/tiny-F32.gguf"));
    put(in_folder("hub/acme/late-GGUF/late-F32.gguf"));
    put(in_folder("hub/" SHORT_REPOSITORY "/" SHORT_FILE));
    server_start(&hub,
                 (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py",
                                       in_folder("hub"), NULL},
                 "http");
    atexit(clean_up);
    setenv("HF_HOME", in_folder("home"), 1);
    setenv("HF_ENDPOINT", hub.url, 1);
  }
  CHECK_OK(mlx_remove_tree(in_folder("cache/models")));
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
}

static void pull(const char *name) {
  command_t run;
  RUN(&run, "pull", name);
  if (run.exit_code) CHECK_FAIL("%s: %s", name, run.err);
  command_free(&run);
}

static void stop(void) {
  CHECK_INT(serve_stop(&served), 0);
  served.pid = 0;
}

static void check_get(const char *path, int status, const char *part, const char *not_part) {
  reply_t reply;
  client_call(served.port, "GET", path, "", NULL, &reply);
  if (reply.status != status) CHECK_FAIL("%s: status %d: %s", path, reply.status, reply_text(&reply));
  CHECK_CONTAINS(reply_text(&reply), part);
  if (not_part) CHECK(!strstr(reply_text(&reply), not_part));
  mlx_text_clear(&reply.body);
}

static void check_complete(const char *model, int status, const char *part) {
  reply_t reply;
  char body[256];
  snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"a b\",\"max_tokens\":2,\"temperature\":0}",
           model);
  client_call(served.port, "POST", "/v1/completions", "", body, &reply);
  if (reply.status != status) CHECK_FAIL("%s: status %d: %s", model, reply.status, reply_text(&reply));
  CHECK_CONTAINS(reply_text(&reply), part);
  mlx_text_clear(&reply.body);
}

#define TINY_NAME "acme/tiny-GGUF/tiny-F32.gguf"
#define LATE_NAME "acme/late-GGUF/late-F32.gguf"

TEST(stored_models_are_listed_and_loaded_on_demand) {
  begin();
  pull("hf:acme/tiny-GGUF");
  pull("smollm2:135m");
  put(in_folder("cache/models/acme/tiny-GGUF/mmproj-F16.gguf"));
  SERVE(&served, "--device", "cpu", "-c", "64", "--keep-alive", "600");
  CHECK_CONTAINS(served.line, " (models " TINY_NAME ", smollm2:135m)\n");
  server_control(&hub, "{}");
  check_get("/v1/models", 200, "\"id\":\"" TINY_NAME "\"", "mmproj");
  check_get("/v1/models", 200, "\"id\":\"smollm2:135m\"", SHORT_REPOSITORY);
  check_get("/api/tags", 200, "\"name\":\"smollm2:135m\"", NULL);
  check_get("/metrics", 200, "mlxcel_models_loaded 0", NULL);
  static const char *const names[] = {TINY_NAME,           "acme/tiny-GGUF",       "acme/tiny-GGUF:latest",
                                      "hf:acme/tiny-GGUF", "hf.co/acme/tiny-GGUF", "tiny-F32"};
  static const char *const short_names[] = {"smollm2:135m",
                                            "SmolLM2:135M",
                                            SHORT_REPOSITORY,
                                            "hf:" SHORT_REPOSITORY ":Q4_K_M",
                                            SHORT_REPOSITORY ":Q4_K_M",
                                            SHORT_FILE};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    check_complete(names[i], 200, "\"model\":\"" TINY_NAME "\"");
  check_get("/metrics", 200, "mlxcel_model_loads_total 1", NULL);
  for (size_t i = 0; i < sizeof short_names / sizeof *short_names; ++i)
    check_complete(short_names[i], 200, "\"model\":\"smollm2:135m\"");
  check_get("/metrics", 200, "mlxcel_model_loads_total 2", NULL);
  check_get("/api/ps", 200, "\"expires_at\":\"20", "9999");
  // A name that is not stored is neither pulled nor opened as a path.
  static const char *const unknown[] = {"smollm2:360m", "hf:acme/late-GGUF", "acme/late-GGUF:F32",
                                        TINY_GGUF,      "../../etc/passwd",  "hf:acme/tiny-GGUF@../../x"};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; ++i)
    check_complete(unknown[i], 404, "the models are: " TINY_NAME ", smollm2:135m");
  check_get("/v1/models/smollm2:135m", 200, "smollm2:135m", NULL);
  check_get("/v1/models/nothing", 404, "the models are: ", NULL);
  CHECK(!strstr(server_log(&hub), "/api/models"));
  stop();
}

TEST(models_are_pulled_and_removed_while_the_server_runs) {
  command_t run;
  begin();
  SERVE(&served, "--device", "cpu", "-c", "64");
  CHECK_CONTAINS(served.line, " (no models: `mlxcel pull NAME` stores one)\n");
  check_get("/v1/models", 200, "\"data\":[],\"has_more\":false,\"first_id\":null,\"last_id\":null", NULL);
  check_get("/api/tags", 200, "{\"models\":[]}", NULL);
  check_get("/props", 404, "`mlxcel pull NAME`", NULL);
  check_complete("acme/late-GGUF", 404, "`mlxcel pull NAME` on the server's machine stores one");
  check_complete("", 404, "the server has no model");
  pull("hf:acme/late-GGUF");
  check_complete("acme/late-GGUF", 200, "\"model\":\"" LATE_NAME "\"");
  check_complete("", 200, "\"model\":\"" LATE_NAME "\"");
  check_complete("gpt-4", 404, "the models are: " LATE_NAME);  // also if there is one model only
  pull("hf:acme/tiny-GGUF");
  check_get("/api/tags", 200, TINY_NAME, NULL);
  RUN(&run, "rm", LATE_NAME, "-y");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  check_get("/v1/models", 200, TINY_NAME, LATE_NAME);
  check_complete(LATE_NAME, 404, "the models are: " TINY_NAME);
  stop();
}

static reply_t ask(const char *path, const char *body, int status) {
  reply_t reply;
  client_call(served.port, "POST", path, "", body, &reply);
  if (reply.status != status)
    CHECK_FAIL("%s %s: status %d: %s", path, body, reply.status, reply_text(&reply));
  return reply;
}

static void check_refused(const char *path, const char *body, int status, const char *error) {
  reply_t reply = ask(path, body, status);
  CHECK_CONTAINS(reply_text(&reply), "{\"error\":\"");  // Ollama's form
  CHECK_CONTAINS(reply_text(&reply), error);
  mlx_text_clear(&reply.body);
}

TEST(clients_pull_only_what_the_server_allows) {
  begin();
  SERVE(&served, "--device", "cpu", "-c", "64", "--allow-pull", "smollm2:*,hf:acme/tiny*");
  check_refused("/api/pull", "{\"model\":\"hf:acme/late-GGUF\"}", 400, "may not be pulled");
  check_refused("/api/pull", "{\"model\":\"oci://127.0.0.1/tiny\"}", 404, "is no short name");
  check_refused("/api/pull", "{\"model\":\"http://127.0.0.1/tiny.gguf\"}", 404, "is no short name");
  check_refused("/api/pull", "{}", 400, "model: missing");
  check_refused("/api/pull", "{\"model\":\"qwen3\"}", 400, "may not be pulled");
  reply_t reply = ask("/api/pull", "{\"model\":\"acme/tiny-GGUF:latest\"}", 200);
  CHECK(!strncmp(reply_text(&reply), "{\"status\":\"pulling manifest\"}\n", 30));
  CHECK(mlx_ends_with(reply_text(&reply), "{\"status\":\"success\"}\n"));
  mlx_text_clear(&reply.body);
  reply = ask("/api/generate",
              "{\"model\":\"acme/tiny-GGUF\",\"prompt\":\"a\",\"options\":{\"num_predict\":2},\"raw\":true}",
              200);
  CHECK_CONTAINS(reply_text(&reply), "\"done\":true");
  mlx_text_clear(&reply.body);
  reply = ask("/api/pull", "{\"name\":\"smollm2:135m\",\"stream\":false}", 200);
  CHECK_TEXT(reply_text(&reply), "{\"status\":\"success\"}");
  mlx_text_clear(&reply.body);
  client_call(served.port, "POST", "/api/pull", "", "{\"model\":\"smollm2\",\"stream\":false}", &reply);
  CHECK(reply.status >= 400 &&
        !strstr(reply_text(&reply), "may not be pulled"));  // of smollm2:1.7b: not there
  mlx_text_clear(&reply.body);
  reply = ask("/api/pull", "{\"model\":\"hf:acme/tiny-none\"}", 200);  // the stream ends with an error
  CHECK_CONTAINS(reply_text(&reply), "\n{\"error\":\"");
  CHECK(!strstr(reply_text(&reply), "success"));
  mlx_text_clear(&reply.body);
  stop();
}

TEST(clients_change_nothing_unless_the_server_allows_it) {
  begin();
  pull("hf:acme/tiny-GGUF");
  SERVE(&served, "--device", "cpu", "-c", "64", "--no-page");
  check_refused("/api/pull", "{\"model\":\"hf:acme/tiny-GGUF\"}", 400, "--allow-pull");
  check_refused("/api/copy", "{\"source\":\"acme/tiny-GGUF\",\"destination\":\"b\"}", 400, "--allow-copy");
  stop();
  SERVE(&served, "--device", "cpu", "-c", "64", "--allow-copy");
  check_refused("/api/copy", "{\"source\":\"nothing\",\"destination\":\"b\"}", 404, "does not exist");
  check_refused("/api/copy", "{\"source\":\"acme/tiny-GGUF\"}", 400, "destination: expected the name");
  for (int i = 0; i < 2; ++i) {
    reply_t reply = ask("/api/copy", "{\"source\":\"acme/tiny-GGUF\",\"destination\":\"mine\"}", 200);
    mlx_text_clear(&reply.body);
  }
  reply_t reply =
      ask("/v1/completions", "{\"model\":\"Mine:latest\",\"prompt\":\"a\",\"max_tokens\":2}", 200);
  mlx_text_clear(&reply.body);
  client_call(served.port, "GET", "/api/tags", "", NULL, &reply);
  CHECK_CONTAINS(reply_text(&reply), "\"name\":\"mine\"");
  mlx_text_clear(&reply.body);
  stop();
}

// A part of a name and a further name delete nothing.
static void check_kept(const char *name, int status) {
  char body[64];
  reply_t reply;
  snprintf(body, sizeof body, "{\"model\":\"%s\"}", name);
  client_call(served.port, "DELETE", "/api/delete", "", body, &reply);
  CHECK_INT(reply.status, status);
  mlx_text_clear(&reply.body);
  check_complete("acme/tiny-GGUF", 200, TINY_NAME);
}

TEST(a_further_name_of_a_model_deletes_nothing) {
  begin();
  pull("hf:acme/tiny-GGUF");
  SERVE(&served, "--device", "cpu", "-c", "64", "--allow-copy", "--allow-delete");
  reply_t reply = ask("/api/copy", "{\"source\":\"acme/tiny-GGUF\",\"destination\":\"acme/late-GGUF\"}", 200);
  mlx_text_clear(&reply.body);
  check_kept("acme/late-GGUF", 400);
  pull("hf:acme/late-GGUF");  // a model's own name comes before the further name of another
  check_complete(LATE_NAME, 200, "\"model\":\"" LATE_NAME "\"");
  stop();
}

TEST(clients_delete_models_if_the_server_allows_it) {
  reply_t reply;
  begin();
  pull("hf:acme/tiny-GGUF");
  pull("hf:acme/late-GGUF");
  for (int allowed = 0; allowed < 2; ++allowed) {
    SERVE(&served, "--device", "cpu", "-c", "64", allowed ? "--allow-delete" : "--no-page");
    check_complete("acme/tiny-GGUF", 200, "\"model\":\"" TINY_NAME "\"");
    check_kept("acme", allowed ? 404 : 400);
    check_kept("mine", allowed ? 404 : 400);
    client_call(served.port, "DELETE", "/api/delete", "", "{\"model\":\"acme/tiny-GGUF\"}", &reply);
    CHECK_INT(reply.status, allowed ? 200 : 400);
    if (!allowed) CHECK_CONTAINS(reply_text(&reply), "--allow-delete");
    mlx_text_clear(&reply.body);
    check_complete("acme/tiny-GGUF", allowed ? 404 : 200, allowed ? "does not exist" : TINY_NAME);
    check_complete("acme/late-GGUF", 200, "\"model\":\"" LATE_NAME "\"");
    client_call(served.port, "DELETE", "/api/delete", "", "{\"model\":\"nothing\"}", &reply);
    CHECK_INT(reply.status, allowed ? 404 : 400);
    mlx_text_clear(&reply.body);
    CHECK(mlx_is_file(in_folder("hub/acme/tiny-GGUF/tiny-F32.gguf")));
    stop();
  }
}

TEST_MAIN(CASE(a_further_name_of_a_model_deletes_nothing),
          CASE(clients_delete_models_if_the_server_allows_it), CASE(clients_pull_only_what_the_server_allows),
          CASE(clients_change_nothing_unless_the_server_allows_it),
          CASE(stored_models_are_listed_and_loaded_on_demand),
          CASE(models_are_pulled_and_removed_while_the_server_runs))
