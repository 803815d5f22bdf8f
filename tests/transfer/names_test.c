// Names of models that need no setting: hub names and addresses, URLs of GGUF files, short names, and names
// of stored models.
#include <sys/stat.h>

#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "transfer/hub.h"
#include "transfer/hub_settings.h"
#include "transfer/pull_gguf.h"
#include "transfer/short_names.h"

#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define SHORT_REPOSITORY "bartowski/SmolLM2-135M-Instruct-GGUF"
#define SHORT_FILE "SmolLM2-135M-Instruct-Q4_K_M.gguf"

static server_t server;
static mlx_pull_options_t options;

static void put(const char *to) {
  char *parent;
  CHECK_OK(mlx_folder_of(to, &parent));
  CHECK_OK(mlx_make_dirs(parent, 0755));
  mlx_free(parent);
  CHECK_OK(mlx_copy_file(TINY_GGUF, to));
}

static void clean_up(void) {
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

// Starts the server once, resets its faults and empties the cache.
static void begin(void) {
  if (!server.port) {
    plain_environment();
    strcpy(folder, "/tmp/mlxcel-names-XXXXXX");
    CHECK(mkdtemp(folder));
    put(in_folder("hub/acme/tiny-GGUF/tiny-F32.gguf"));
    put(in_folder("hub/acme/tiny-GGUF/tiny-Q8_0.gguf"));
    put(in_folder("hub/" SHORT_REPOSITORY "/" SHORT_FILE));
    put(in_folder("hub/files/tiny.gguf"));
    put(in_folder("hub/files/split-00001-of-00002.gguf"));
    put(in_folder("hub/files/split-00002-of-00002.gguf"));
    CHECK_OK(mlx_write_file(in_folder("hub/files/page.gguf"), "<html>not a model</html>", 24));
    server_start(&server,
                 (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py",
                                       in_folder("hub"), NULL},
                 "http");
    atexit(clean_up);
    setenv("HF_HOME", in_folder("home"), 1);
  }
  setenv("HF_ENDPOINT", server.url, 1);
  CHECK_OK(mlx_remove_tree(in_folder("cache")));
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  server_control(&server, "{}");
  mlx_pull_options_initialize(&options);
  quick_http(&options.http);
}

static const char *url_of(const char *path) {
  static char url[256];
  snprintf(url, sizeof url, "%s/plain/%s", server.url, path);
  return url;
}

// Runs `mlxcel pull NAME`. The printed path must end with |end|.
static void check_pull(const char *name, const char *end) {
  command_t run;
  RUN(&run, "pull", name);
  if (run.exit_code) CHECK_FAIL("%s: %s", name, run.err);
  CHECK(run.out_length > 0);
  run.out[run.out_length - 1] = 0;
  CHECK_CONTAINS(run.out, end);
  CHECK(mlx_is_file(run.out));
  command_free(&run);
}

TEST(the_public_hub_is_the_default) {
  char *url;
  begin();
  unsetenv("HF_ENDPOINT");
  CHECK_OK(mlx_hub_endpoint(NULL, &url));
  CHECK_TEXT(url, "https://" MLX_HUB_HOST);
  mlx_free(url);
  setenv("HF_ENDPOINT", "https://mirror.example/", 1);
  CHECK_OK(mlx_hub_endpoint(NULL, &url));
  CHECK_TEXT(url, "https://mirror.example");
  mlx_free(url);
}

TEST(token_file_that_others_may_change_is_refused) {
  char *token;
  begin();
  CHECK_OK(mlx_make_dirs(in_folder("home"), 0700));
  CHECK_OK(mlx_write_file(in_folder("home/token"), "secret\n", 7));
  CHECK_OK(mlx_hub_authorization("https://mirror.example", &token));
  CHECK_TEXT(token, "Bearer secret");
  mlx_free(token);
  CHECK(!chmod(in_folder("home/token"), 0666));
  CHECK_ERROR(mlx_hub_authorization("https://mirror.example", &token), MLX_IO, "writable by other users");
  command_t run;
  RUN(&run, "pull", "hf:acme/tiny-GGUF:F32");  // a public model
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "pulling without a token: ");
  CHECK_CONTAINS(run.err, "chmod 600");
  command_free(&run);
  CHECK(!strstr(server_log(&server), "Authorization"));
  CHECK_OK(mlx_remove_tree(in_folder("home")));
}

TEST(pasted_addresses_pull_from_the_hub) {
  begin();
  check_pull("https://huggingface.co/acme/tiny-GGUF/blob/main/tiny-Q8_0.gguf", "/tiny-Q8_0.gguf");
  check_pull("hf.co/acme/tiny-GGUF:f32", "/tiny-F32.gguf");
  check_pull("hf.co/acme/tiny-GGUF", "/tiny-F32.gguf");  // no Q4_K_M: the first one
  CHECK_CONTAINS(server_log(&server), "/api/models/acme/tiny-GGUF/revision/main");
}

TEST(missing_quantization_names_the_existing_ones) {
  command_t run;
  begin();
  RUN(&run, "pull", "hf:acme/tiny-GGUF:Q5_K_S");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "it has these quantizations: F32, Q8_0");
  command_free(&run);
}

TEST(gguf_url_resumes_and_is_pulled_once) {
  char *path, *again;
  begin();
  server_control(&server, "{\"tiny.gguf\": {\"cut\": [40000, 60000]}}");
  CHECK_OK(mlx_pull_gguf_find(url_of("files/tiny.gguf"), &path));
  CHECK(!path);
  CHECK_OK(mlx_pull_gguf(url_of("files/tiny.gguf"), &options, &path));
  CHECK_CONTAINS(server_log(&server), "bytes=40000-");
  CHECK_CONTAINS(server_log(&server), "bytes=60000-");
  char pulled[MLX_DIGEST_HEX], original[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(path, NULL, pulled));
  CHECK_OK(mlx_digest_file(TINY_GGUF, NULL, original));
  CHECK_TEXT(pulled, original);
  server_control(&server, "{}");
  CHECK_OK(mlx_pull_gguf_find(url_of("files/tiny.gguf"), &again));
  CHECK_TEXT(again, path);
  mlx_free(again);
  CHECK_OK(mlx_pull_gguf(url_of("files/tiny.gguf"), &options, &again));
  CHECK_TEXT(again, path);
  mlx_free(again);
  CHECK_INT(count_of(server_log(&server), "tiny.gguf"), 0);
  mlx_free(path);
}

TEST(killed_pull_of_a_url_is_continued) {
  char *path;
  begin();
  options.http.tries = 1;
  server_control(&server, "{\"tiny.gguf\": {\"cut\": [50000]}}");
  mlx_status_t status = mlx_pull_gguf(url_of("files/tiny.gguf"), &options, &path);
  CHECK(status);
  CHECK_CONTAINS(mlx_status_hint_text(status), "run the command again to resume");
  mlx_status_free(status);
  server_control(&server, "{}");
  CHECK_OK(mlx_pull_gguf(url_of("files/tiny.gguf"), &options, &path));
  CHECK_CONTAINS(server_log(&server), "bytes=50000-");
  mlx_free(path);
}

TEST(verbs_accept_the_url_of_a_gguf_file) {
  command_t run;
  begin();
  RUN(&run, "tokenize", "-m", url_of("files/tiny.gguf?download=true"), "-p", "the");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  RUN(&run, "list");
  CHECK_CONTAINS(run.out, "/tiny.gguf ");
  command_free(&run);
}

TEST(all_parts_of_a_split_url_are_pulled) {
  char *path;
  begin();
  CHECK_OK(mlx_pull_gguf(url_of("files/split-00002-of-00002.gguf"), &options, &path));
  CHECK_CONTAINS(path, "/split-00001-of-00002.gguf");
  char *second = strstr(path, "00001");
  memcpy(second, "00002", 5);
  CHECK(mlx_is_file(path));
  mlx_free(path);
  options.output = in_folder("out.gguf");
  CHECK_OK(mlx_pull_gguf(url_of("files/tiny.gguf"), &options, &path));
  CHECK_TEXT(path, in_folder("out.gguf"));
  CHECK(mlx_is_file(path));
  mlx_free(path);
}

TEST(urls_that_are_not_a_model_are_refused) {
  char *path;
  begin();
  CHECK_ERROR(mlx_pull_gguf(url_of("files/page.gguf"), &options, &path), MLX_INVALID_INPUT,
              "did not send a GGUF file");
  CHECK_OK(mlx_pull_gguf_find(url_of("files/page.gguf"), &path));
  CHECK(!path);
  CHECK_ERROR(mlx_pull_gguf(url_of("files/none.gguf"), &options, &path), MLX_NOT_FOUND, "not found (404)");
  CHECK_ERROR(mlx_pull_gguf("http://elsewhere.example/a.gguf", &options, &path), MLX_USAGE,
              "is not encrypted");
  command_t run;
  RUN(&run, "run", "-m", "https://elsewhere.example/m.mlxb", "-p", "x");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "mlxcel pull https://elsewhere.example/m.mlxb");
  command_free(&run);
  RUN(&run, "run", "-m", "https://user:secret@elsewhere.example/m.mlxb", "-p", "x");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK(!strstr(run.err, "secret"));
  command_free(&run);
}

TEST(short_names_are_valid_and_unique) {
  const mlx_short_name_t *row, *found;
  for (size_t i = 0; (row = mlx_short_name(i)); ++i) {
    mlx_hub_ref_t ref;
    char family[32];
    CHECK_OK(mlx_hub_ref_parse(row->ref, &ref));
    CHECK(mlx_short_name_find(row->name) == row);
    CHECK(strchr(row->name, ':') && strlen(row->name) < 20 && strlen(row->size) < 9);
    snprintf(family, sizeof family, "%.*s", (int)strcspn(row->name, ":"), row->name);
    found = mlx_short_name_find(family);  // every family has one default
    CHECK(found && found->is_default);
    if (row->is_default) CHECK(found == row);
  }
  CHECK_TEXT(mlx_short_name_find("SmolLM2:latest")->name, "smollm2:1.7b");
  CHECK_TEXT(mlx_short_name_find("qwen3:0.6B")->name, "qwen3:0.6b");
  CHECK(!mlx_short_name_find("qwen"));
  CHECK_TEXT(mlx_short_name_nearest("qwen3:99b").text,
             "qwen3:0.6b, qwen3:1.7b, qwen3:4b, qwen3:8b, qwen3:14b, qwen3:30b");
  CHECK_TEXT(mlx_short_name_nearest("llama").text, "llama3.1:8b, llama3.2:3b");
  CHECK_TEXT(mlx_short_name_nearest("Gemma:7b").text, "gemma2:9b, gemma3:4b, gemma3n:e4b");
  CHECK_TEXT(mlx_short_name_nearest("smolm2:135m").text, "smollm2:135m");
  CHECK_TEXT(mlx_short_name_nearest("olmo:32b-instruct").text, "olmo2:7b");
  CHECK_TEXT(mlx_short_name_nearest("olmo3:1b-it").text, "olmo2:1b, olmo2:7b");
  CHECK_TEXT(mlx_short_name_nearest("something-else").text, "");
}

TEST(short_name_pulls_from_the_hub) {
  begin();
  check_pull("smollm2:135m", "/" SHORT_FILE);
  command_t run;
  server_control(&server, "{}");
  RUN(&run, "show", "SmolLM2:135M");  // pulled already: no request
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  CHECK_INT(count_of(server_log(&server), "path"), 0);
}

// serve pulls at its start. A model that is given twice is an error before anything is loaded.
TEST(serve_takes_every_name_that_run_takes) {
  static const char *const names[] = {"smollm2:135m", "hf:acme/tiny-GGUF:Q8_0",
                                      "tiny-q8_0"};  // stored by the name before
  command_t run;
  begin();
  for (size_t i = 0; i < 3; ++i) {
    RUN(&run, "serve", names[i], names[i], "--port", "0");
    CHECK_INT(run.exit_code, MLX_USAGE);
    CHECK_CONTAINS(run.err, "was given twice");
    command_free(&run);
  }
  RUN(&run, "serve", "qwen4:1b", "--port", "0");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "neither a file, a pulled model nor a short name");
  command_free(&run);
}

TEST(stored_model_has_its_name_in_the_list) {
  static const char *const names[] = {"acme/tiny-GGUF/tiny-Q8_0.gguf", "acme/tiny-GGUF", "tiny-q8_0",
                                      "tiny-Q8_0.gguf"};
  command_t run;
  begin();
  check_pull("hf:acme/tiny-GGUF:Q8_0", "/tiny-Q8_0.gguf");
  for (size_t i = 0; i < 4; ++i) {
    RUN(&run, "show", names[i]);
    if (run.exit_code) CHECK_FAIL("%s: %s", names[i], run.err);
    command_free(&run);
  }
  check_pull("hf:acme/tiny-GGUF:F32", "/tiny-F32.gguf");
  RUN(&run, "show", "acme/tiny-GGUF");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "matches 2 models");
  CHECK_CONTAINS(run.err, "acme/tiny-GGUF/tiny-F32.gguf, acme/tiny-GGUF/tiny-Q8_0.gguf");
  command_free(&run);
}

TEST(unknown_name_gets_the_nearest_ones) {
  static const struct {
    const char *name, *hint;
  } cases[] = {
      {"qwen3:0.6", "did you mean qwen3:0.6b, qwen3:1.7b, qwen3:4b, "},
      {"no-such-model", "hint: `mlxcel list --available` shows all"},
      {"mlx-community/Llama-3.2-1B", "to get it from the hub, name it hf:mlx-community/Llama-3.2-1B"}};
  static const char *const verbs[] = {"show", "compile"};
  command_t run;
  begin();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      RUN(&run, verbs[j], cases[i].name);
      CHECK_INT(run.exit_code, MLX_NOT_FOUND);
      CHECK_CONTAINS(run.err, "neither a file, a pulled model nor a short name");
      CHECK_CONTAINS(run.err, cases[i].hint);
      command_free(&run);
    }
  }
  RUN(&run, "pull", "smolm2:135m");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "did you mean smollm2:135m?");
  command_free(&run);
  CHECK_INT(count_of(server_log(&server), "path"), 0);
}

TEST(errors_about_a_short_name_name_it) {
  static const char *const verbs[] = {"pull", "show"};
  command_t run;
  begin();
  for (size_t i = 0; i < 2; ++i) {
    RUN(&run, verbs[i], "qwen3:0.6b");  // not on this hub
    CHECK_INT(run.exit_code, MLX_NOT_FOUND);
    CHECK_CONTAINS(run.err, "qwen3:0.6b (hf:unsloth/Qwen3-0.6B-GGUF:Q4_K_M): ");
    command_free(&run);
  }
}

TEST(list_shows_the_available_names) {
  command_t run;
  begin();
  RUN(&run, "list", "--available");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "\nsmollm2:135m ");
  CHECK_CONTAINS(run.out, "hf:" SHORT_REPOSITORY ":Q4_K_M\n");
  CHECK_CONTAINS(run.out, "0.8 GB");
  CHECK_CONTAINS(run.out, "Llama 3.2");
  command_free(&run);
  RUN(&run, "list", "--available", "--json");
  CHECK_CONTAINS(run.out, "{\"model\": \"qwen3:0.6b\", \"hub\": \"hf:unsloth/Qwen3-0.6B-GGUF:Q4_K_M\", ");
  command_free(&run);
}

TEST_MAIN(CASE(the_public_hub_is_the_default), CASE(token_file_that_others_may_change_is_refused),
          CASE(pasted_addresses_pull_from_the_hub), CASE(missing_quantization_names_the_existing_ones),
          CASE(gguf_url_resumes_and_is_pulled_once), CASE(killed_pull_of_a_url_is_continued),
          CASE(verbs_accept_the_url_of_a_gguf_file), CASE(all_parts_of_a_split_url_are_pulled),
          CASE(urls_that_are_not_a_model_are_refused), CASE(short_names_are_valid_and_unique),
          CASE(short_name_pulls_from_the_hub), CASE(serve_takes_every_name_that_run_takes),
          CASE(stored_model_has_its_name_in_the_list), CASE(unknown_name_gets_the_nearest_ones),
          CASE(errors_about_a_short_name_name_it), CASE(list_shows_the_available_names))
