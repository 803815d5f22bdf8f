// mlxcel pull https://...: bundles from plain web servers of several kinds (tests/hub_server.py), and what a
// person is told when it fails.
#include <sys/stat.h>

#include "base/digest.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/server.h"
#include "transfer/pull.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static server_t server;
static mlx_pull_options_t options;

static void clean_up(void) {
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

// The same model as a folder, a folder without its weights, and a file.
static void start(void) {
  command_t run;
  plain_environment();
  strcpy(folder, "/tmp/mlxcel-web-XXXXXX");
  CHECK(mkdtemp(folder));
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  server_start(
      &server,
      (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/hub_server.py", in_folder("site"), NULL},
      "http");
  atexit(clean_up);
  RUN(&run, "compile", TINY, "-o", in_folder("site/tiny.mlxb"), "-c", "128");
  command_done(&run);
  RUN(&run, "compile", TINY, "-o", in_folder("site/one.mlxb"), "-c", "128", "--single-file");
  command_done(&run);
  command_shell(folder, "cp -r site/tiny.mlxb site/thin.mlxb && rm site/thin.mlxb/weights.irpa");
}

static void begin(const char *control) {
  if (!server.port) start();
  server_control(&server, control);
  mlx_pull_options_initialize(&options);
  quick_http(&options.http);
}

static mlx_status_t pull(const char *name, const char *to) {
  char url[160], *path;
  snprintf(url, sizeof url, "%s/plain/%s", server.url, name);
  options.output = in_folder(to);
  mlx_status_t status = mlx_pull_url(url, &options, &path);
  mlx_free(path);
  return status;
}

// The pull fails with this; both are parts of what is said.
static void check_told(mlx_status_t status, mlx_code_t code, const char *message, const char *hint) {
  CHECK_INT(mlx_status_code(status), code);
  CHECK_CONTAINS(mlx_status_message(status), message);
  CHECK_CONTAINS(mlx_status_hint_text(status), hint);
  mlx_status_free(status);
}

static void check_same(const char *a, const char *b) {
  char a_hex[MLX_DIGEST_HEX], b_hex[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(a, a_hex));
  CHECK_OK(mlx_digest_file(b, b_hex));
  CHECK_TEXT(a_hex, b_hex);
}

TEST(servers_have_their_own_words_for_what_they_do_not_have) {
  static const char *const controls[] = {"{}",
                                         "{\"missing\": 403}",
                                         "{\"missing\": 410}",
                                         "{\"head\": 405}",
                                         "{\"head\": 403}",
                                         "{\"head\": 501, \"missing\": 403}",
                                         "{\"page\": \"<html>not found</html>\"}"};
  for (size_t i = 0; i < sizeof controls / sizeof *controls; ++i) {
    begin(controls[i]);
    CHECK_OK(pull("tiny.mlxb", "tiny.mlxb"));
    check_same(in_folder("tiny.mlxb/weights.irpa"), in_folder("site/tiny.mlxb/weights.irpa"));
    CHECK(!mlx_is_file(in_folder("tiny.mlxb/manifest.json.minisig")));
    CHECK_OK(pull("one.mlxb", "one.mlxb"));
    check_same(in_folder("one.mlxb"), in_folder("site/one.mlxb"));
    if (!strstr(controls[i], "page")) {  // one that has a page for everything seems to have the weights too
      CHECK_OK(pull("thin.mlxb", "thin.mlxb"));
      CHECK(mlx_is_file(in_folder("thin.mlxb/manifest.json")) &&
            !mlx_is_file(in_folder("thin.mlxb/weights.irpa")));
    }
    command_shell(folder, "rm -rf tiny.mlxb one.mlxb thin.mlxb; [ \"$(ls)\" = site ]");
  }
  begin("{\"page\": \"<html>not found</html>\"}");
  check_told(pull("none.mlxb", "none.mlxb"), MLX_INVALID_INPUT, "/plain/none.mlxb gave is no compiled model",
             "give the address of a folder or a file");
  command_shell(folder, "[ \"$(ls)\" = site ]");
}

TEST(a_file_that_was_cut_off_is_kept_and_goes_on) {
  begin("{\"one.mlxb\": {\"cut\": [50000, 0, 0, 0, 0, 0]}}");
  check_told(pull("one.mlxb", "one.mlxb"), MLX_UNAVAILABLE, "one.mlxb", "what came so far is kept");
  CHECK(!mlx_is_file(in_folder("one.mlxb")));
  begin("{}");
  CHECK_OK(pull("one.mlxb", "one.mlxb"));
  CHECK_CONTAINS(server_log(&server), "bytes=50000-");
  check_same(in_folder("one.mlxb"), in_folder("site/one.mlxb"));
  command_shell(folder, "rm one.mlxb; [ \"$(ls)\" = site ]");
}

static void keep_progress(void *user, mlx_report_kind_t kind, const char *text) {
  if (kind == MLX_REPORT_PROGRESS && strstr(text, " of ")) snprintf(user, 256, "%s", text);
}

TEST(the_size_of_a_file_is_known_before_it_comes) {
  static const char *const controls[] = {
      "{\"one.mlxb\": {\"claim\": 1000000000000000}}",
      "{\"head\": 405, \"one.mlxb\": {\"no_range\": true, \"claim\": 1000000000000000}}"};
  for (int i = 0; i < 2; ++i) {
    begin(controls[i]);
    check_told(pull("one.mlxb", "one.mlxb"), MLX_IO, "1000.0 TB", "free some space");
    CHECK_INT(count_of(server_log(&server), "\"GET\", \"path\": \"/plain/one.mlxb\""),
              i);  // but for a look at its first byte
    command_shell(folder, "[ \"$(ls)\" = site ]");
  }
  char said[256] = "";
  const mlx_report_t report = {.emit = keep_progress, .user = said};
  begin("{\"one.mlxb\": {\"stall\": [50000], \"seconds\": 0.7}}");
  options.report = &report;
  CHECK_OK(pull("one.mlxb", "one.mlxb"));
  CHECK_CONTAINS(said, "pulling one.mlxb: 50.0 kB of ");
  command_shell(folder, "rm one.mlxb");
}

TEST(what_cannot_be_pulled_leaves_nothing_and_says_why) {
  begin("{}");
  check_told(pull("none.mlxb", "none.mlxb"), MLX_NOT_FOUND,
             "/plain/none.mlxb: the server has no such thing (404)",
             "give the address of a folder or a file");
  server_control(&server, "{\"missing\": 403}");
  check_told(pull("none.mlxb", "none.mlxb"), MLX_NOT_FOUND,
             "the server has no such thing, or forbids it (403)", "give the address of a folder or a file");
  options.target = "cuda:sm_90";
  check_told(pull("one.mlxb", "one.mlxb"), MLX_NOT_FOUND, "the model was not compiled for cuda:sm_90",
             "it was for: cpu:host");
  options.target = NULL;
  CHECK_OK(mlx_write_file(in_folder("file"), "x", 1));
  for (int i = 0; i < 2; ++i) {  // below a file there is no place
    mlx_status_t status = pull(i ? "tiny.mlxb" : "one.mlxb", "file/one.mlxb");
    CHECK_INT(mlx_status_code(status), MLX_IO);
    CHECK_TEXT(mlx_status_hint_text(status), "");
    mlx_status_free(status);
  }
  server_control(&server, "{\"one.mlxb\": {\"status\": [503, 503, 503, 503, 503, 503, 503, 503, 503]}}");
  check_told(pull("one.mlxb", "one.mlxb"), MLX_UNAVAILABLE, "503", "");
  command_shell(folder, "rm file; [ \"$(ls)\" = site ]");
  char *path;
  check_told(mlx_pull_url("http://127.0.0.1:1/one.mlxb", &options, &path), MLX_UNAVAILABLE, "127.0.0.1:1",
             "check the address");
}

TEST_MAIN(CASE(servers_have_their_own_words_for_what_they_do_not_have),
          CASE(a_file_that_was_cut_off_is_kept_and_goes_on),
          CASE(the_size_of_a_file_is_known_before_it_comes),
          CASE(what_cannot_be_pulled_leaves_nothing_and_says_why))
