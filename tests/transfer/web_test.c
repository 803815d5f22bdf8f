// mlxcel pull https://...: bundles from plain web servers with different behaviours
// (tests/support/hub_server.py), and the error messages.
#include <sys/stat.h>

#include "base/digest.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "transfer/pull_url.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static server_t server;
static mlx_pull_options_t options;

static void clean_up(void) {
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

// Serves the same bundle as a folder, as a folder without weights, and as a single file.
static void start(void) {
  command_t run;
  plain_environment();
  strcpy(folder, "/tmp/mlxcel-web-XXXXXX");
  CHECK(mkdtemp(folder));
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  server_start(&server,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py",
                                     in_folder("site"), NULL},
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

// |status| must have |code|, and a message and a hint that contain these texts.
static void check_error(mlx_status_t status, mlx_code_t code, const char *message, const char *hint) {
  CHECK_INT(mlx_status_code(status), code);
  CHECK_CONTAINS(mlx_status_message(status), message);
  CHECK_CONTAINS(mlx_status_hint_text(status), hint);
  mlx_status_free(status);
}

static void check_same(const char *a, const char *b) {
  char a_hex[MLX_DIGEST_HEX], b_hex[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(a, NULL, a_hex));
  CHECK_OK(mlx_digest_file(b, NULL, b_hex));
  CHECK_TEXT(a_hex, b_hex);
}

TEST(every_kind_of_missing_file_response_is_handled) {
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
    if (!strstr(controls[i], "page")) {  // a server with a page for every URL seems to have the weights
      CHECK_OK(pull("thin.mlxb", "thin.mlxb"));
      CHECK(mlx_is_file(in_folder("thin.mlxb/manifest.json")) &&
            !mlx_is_file(in_folder("thin.mlxb/weights.irpa")));
    }
    command_shell(folder, "rm -rf tiny.mlxb one.mlxb thin.mlxb; [ \"$(ls)\" = site ]");
  }
  begin("{\"page\": \"<html>not found</html>\"}");
  check_error(pull("none.mlxb", "none.mlxb"), MLX_INVALID_INPUT, "/plain/none.mlxb is not a bundle",
              "use the URL of a bundle");
  command_shell(folder, "[ \"$(ls)\" = site ]");
}

TEST(interrupted_download_is_kept_and_resumed) {
  begin("{\"one.mlxb\": {\"cut\": [50000, 0, 0, 0, 0, 0]}}");
  check_error(pull("one.mlxb", "one.mlxb"), MLX_UNAVAILABLE, "one.mlxb",
              "the files downloaded so far are kept");
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

TEST(file_size_is_known_before_the_download) {
  static const char *const controls[] = {
      "{\"one.mlxb\": {\"claim\": 1000000000000000}}",
      "{\"head\": 405, \"one.mlxb\": {\"no_range\": true, \"claim\": 1000000000000000}}"};
  for (int i = 0; i < 2; ++i) {
    begin(controls[i]);
    check_error(pull("one.mlxb", "one.mlxb"), MLX_IO, "1000.0 TB", "free disk space");
    CHECK_INT(count_of(server_log(&server), "\"GET\", \"path\": \"/plain/one.mlxb\""),
              i);  // without HEAD, one request for the first byte
    command_shell(folder, "[ \"$(ls)\" = site ]");
  }
  char line[256] = "";
  const mlx_report_t report = {.emit = keep_progress, .user = line};
  begin("{\"one.mlxb\": {\"stall\": [50000], \"seconds\": 0.7}}");
  options.report = &report;
  CHECK_OK(pull("one.mlxb", "one.mlxb"));
  CHECK_CONTAINS(line, "pulling one.mlxb: 50.0 kB of ");
  command_shell(folder, "rm one.mlxb");
}

TEST(failed_pull_leaves_nothing_and_explains_why) {
  begin("{}");
  check_error(pull("none.mlxb", "none.mlxb"), MLX_NOT_FOUND, "/plain/none.mlxb: not found (404)",
              "use the URL of a bundle");
  server_control(&server, "{\"missing\": 403}");
  check_error(pull("none.mlxb", "none.mlxb"), MLX_NOT_FOUND, "not found or access denied (403)",
              "use the URL of a bundle");
  options.target = "cuda:sm_90";
  check_error(pull("one.mlxb", "one.mlxb"), MLX_NOT_FOUND, "the bundle has no code for cuda:sm_90",
              "use --target with one of: cpu:host");
  options.target = NULL;
  CHECK_OK(mlx_write_file(in_folder("file"), "x", 1));
  for (int i = 0; i < 2; ++i) {  // the output is below a file
    mlx_status_t status = pull(i ? "tiny.mlxb" : "one.mlxb", "file/one.mlxb");
    CHECK_INT(mlx_status_code(status), MLX_IO);
    CHECK_TEXT(mlx_status_hint_text(status), "");
    mlx_status_free(status);
  }
  server_control(&server, "{\"one.mlxb\": {\"status\": [503, 503, 503, 503, 503, 503, 503, 503, 503]}}");
  check_error(pull("one.mlxb", "one.mlxb"), MLX_UNAVAILABLE, "503", "");
  command_shell(folder, "rm file; [ \"$(ls)\" = site ]");
  char *path;
  check_error(mlx_pull_url("http://127.0.0.1:1/one.mlxb", &options, &path), MLX_UNAVAILABLE, "127.0.0.1:1",
              "check the URL");
}

TEST_MAIN(CASE(every_kind_of_missing_file_response_is_handled),
          CASE(interrupted_download_is_kept_and_resumed), CASE(file_size_is_known_before_the_download),
          CASE(failed_pull_leaves_nothing_and_explains_why))
