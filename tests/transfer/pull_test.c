// mlxcel pull hf:... and https://..., against a server with the hub's API (tests/support/hub_server.py).
#include "transfer/pull_hub.h"

#include <sys/stat.h>

#include "base/digest.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"

#define WEIGHTS "model-00001-of-00002.safetensors"
#define FILES 6
static const char *const files[FILES] = {
    "config.json", "generation_config.json",           "tokenizer.json",
    WEIGHTS,       "model-00002-of-00002.safetensors", "model.safetensors.index.json"};

static char cache[96];
static server_t server;
static mlx_pull_options_t options;

static void put(const char *from, const char *to) {
  char *parent;
  CHECK_OK(mlx_folder_of(to, &parent));
  CHECK_OK(mlx_make_dirs(parent, 0755));
  mlx_free(parent);
  CHECK_OK(mlx_copy_file(from, to));
}

static void clean_up(void) {
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

static void start(void) {
  plain_environment();
  strcpy(folder, "/tmp/mlxcel-pull-XXXXXX");
  CHECK(mkdtemp(folder));
  for (int i = 0; i < FILES; ++i) {
    char from[256], to[256];
    snprintf(from, sizeof from, TINY "/%s", files[i]);
    snprintf(to, sizeof to, "%s/hub/acme/tiny/%s", folder, files[i]);
    put(from, to);
  }
  put(TINY "/tokenizer.json", in_folder("hub/acme/tiny/pytorch_model.bin"));
  put(TINY_GGUF, in_folder("hub/acme/tiny-GGUF/tiny-F32.gguf"));
  put(TINY "/tokenizer.json", in_folder("hub/acme/tiny-GGUF/tiny-Q8_0.gguf"));
  server_start(&server,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py",
                                     in_folder("hub"), NULL},
               "http");
  atexit(clean_up);
  setenv("HF_ENDPOINT", server.url, 1);
  setenv("HF_HOME", in_folder("home"), 1);
}

// Resets the server's faults and empties the cache.
static void begin(void) {
  if (!server.port) start();
  snprintf(cache, sizeof cache, "%s/cache", folder);
  CHECK_OK(mlx_remove_tree(cache));
  setenv("MLXCEL_CACHE", cache, 1);
  server_control(&server, "{}");
  mlx_pull_options_initialize(&options);
  quick_http(&options.http);
}

static void check_same(const char *a, const char *b) {
  char a_hex[MLX_DIGEST_HEX], b_hex[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(a, NULL, a_hex));
  CHECK_OK(mlx_digest_file(b, NULL, b_hex));
  CHECK_TEXT(a_hex, b_hex);
}

static mlx_status_t count_name(void *user, const char *name) {
  (void)name;
  ++*(int *)user;
  return NULL;
}

static int names_in(const char *path) {
  int count = 0;
  CHECK_OK(mlx_list_dir(path, count_name, &count));
  return count;
}

// Fails if the model's cache folder contains incomplete files.
static void check_no_leftovers(const char *model) {
  command_t find;
  char path[160];
  snprintf(path, sizeof path, "%s/models/%s", cache, model);
  command_start(&find, (const char *const[]){"/usr/bin/find", path, "-name", "*.part*", NULL});
  command_wait(&find);
  CHECK_TEXT(find.out, "");
  command_free(&find);
}

TEST(pull_downloads_exactly_the_needed_files) {
  begin();
  char *path, *found;
  CHECK_OK(mlx_pull_hub_find("hf:acme/tiny", &found));
  CHECK(!found);
  CHECK_OK(mlx_pull_hub("hf:acme/tiny", &options, &path));
  CHECK_INT(names_in(path), FILES);
  for (int i = 0; i < FILES; ++i) {
    char pulled[512], original[512];
    snprintf(pulled, sizeof pulled, "%s/%s", path, files[i]);
    snprintf(original, sizeof original, TINY "/%s", files[i]);
    check_same(pulled, original);
  }
  CHECK(!strstr(server_log(&server), "pytorch_model.bin"));
  check_no_leftovers("acme/tiny");
  CHECK_OK(mlx_pull_hub_find("hf:acme/tiny", &found));
  CHECK_TEXT(found, path);
  mlx_free(found);
  server_control(&server, "{}");
  mlx_free(path);
  CHECK_OK(mlx_pull_hub("hf:acme/tiny", &options, &path));  // asks for the commit, downloads nothing
  CHECK_INT(count_of(server_log(&server), "\"method\""), 1);
  mlx_free(path);
}

TEST(several_quantizations_of_a_model_coexist) {
  begin();
  char *f32, *q8, *model_folder, *first, *none;
  CHECK_OK(mlx_pull_hub("hf:acme/tiny-GGUF:F32", &options, &f32));
  check_same(f32, TINY_GGUF);
  CHECK_OK(mlx_folder_of(f32, &model_folder));
  CHECK_INT(names_in(model_folder), 1);
  CHECK_OK(mlx_pull_hub("hf:acme/tiny-GGUF:tiny-Q8_0.gguf", &options, &q8));
  CHECK_INT(names_in(model_folder), 2);
  CHECK_OK(mlx_pull_hub("hf:acme/tiny-GGUF", &options, &first));  // no Q4_K_M: the first one
  CHECK_TEXT(first, f32);
  mlx_free(first);
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny-GGUF:Q2_K", &options, &none), MLX_NOT_FOUND,
              "acme/tiny-GGUF: the model has no GGUF file named or quantized as 'Q2_K'");
  mlx_free(model_folder);
  mlx_free(f32);
  mlx_free(q8);
}

TEST(pull_killed_at_any_byte_resumes) {
  static const long stops[] = {0, 1, 4096, 39999};
  begin();
  for (size_t i = 0; i < sizeof stops / sizeof *stops; ++i) {
    CHECK_OK(mlx_remove_tree(cache));
    char control[128], pattern[512], range[64];
    snprintf(control, sizeof control, "{\"" WEIGHTS "\": {\"stall\": [%ld]}}", stops[i]);
    server_control(&server, control);
    command_t killed, finished;
    command_start(&killed, (const char *const[]){MLXCEL_BINARY, "pull", "hf:acme/tiny", NULL});
    snprintf(pattern, sizeof pattern,
             "for i in $(seq 600); do for f in %s/models/acme/tiny/*.part/" WEIGHTS
             ".part; do"
             " [ -f $f ] && [ $(stat -c %%s $f) -ge %ld ] && exit 0; done; sleep 0.05; done; exit 1",
             cache, stops[i]);
    CHECK_INT(system(pattern), 0);
    kill(killed.pid, SIGKILL);
    command_wait(&killed);
    CHECK_INT(killed.exit_code, -SIGKILL);
    command_free(&killed);
    char *found;
    CHECK_OK(mlx_pull_hub_find("hf:acme/tiny", &found));
    CHECK(!found);
    server_control(&server, "{}");
    RUN(&finished, "pull", "hf:acme/tiny");
    if (finished.exit_code) CHECK_FAIL("%s", finished.err);
    snprintf(range, sizeof range, "\"Range\": \"bytes=%ld-\"", stops[i]);
    if (stops[i]) CHECK_CONTAINS(server_log(&server), range);
    CHECK_OK(mlx_pull_hub_find("hf:acme/tiny", &found));
    CHECK(found && !strncmp(finished.out, found, strlen(found)));
    snprintf(pattern, sizeof pattern, "%s/" WEIGHTS, found);
    check_same(pattern, TINY "/" WEIGHTS);
    check_no_leftovers("acme/tiny");
    mlx_free(found);
    command_free(&finished);
  }
}

TEST(no_model_appears_before_all_files_are_checked) {
  begin();
  char *path;
  server_control(&server, "{\"" WEIGHTS "\": {\"corrupt\": true}}");
  mlx_status_t status = mlx_pull_hub("hf:acme/tiny", &options, &path);
  CHECK_INT(mlx_status_code(status), MLX_INVALID_INPUT);
  CHECK_CONTAINS(mlx_status_message(status), WEIGHTS ": its SHA-256 is");
  mlx_status_free(status);
  CHECK_OK(mlx_pull_hub_find("hf:acme/tiny", &path));
  CHECK(!path);
  CHECK_OK(mlx_remove_tree(cache));
  server_control(&server, "{\"config.json\": {\"corrupt\": true}}");
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny", &options, &path), MLX_INVALID_INPUT,
              "config.json: its git digest is");
  server_control(
      &server,
      "{\"" WEIGHTS
      "\": {\"status\": [500], \"cut\": [9000, 9001]}, \"tokenizer.json\": {\"status\": [429, 503]}}");
  CHECK_OK(mlx_pull_hub("hf:acme/tiny", &options, &path));
  CHECK_INT(names_in(path), FILES);
  mlx_free(path);
}

TEST(token_is_sent_only_to_the_hub) {
  begin();
  char *path;
  server_control(&server, "{\"token\": \"hush\"}");
  mlx_status_t status = mlx_pull_hub("hf:acme/tiny", &options, &path);
  CHECK_INT(mlx_status_code(status), MLX_UNAVAILABLE);
  CHECK_CONTAINS(mlx_status_message(status), "(401): Invalid username");
  CHECK_CONTAINS(mlx_status_hint_text(status), "set HF_TOKEN");
  mlx_status_free(status);
  CHECK_OK(mlx_make_dirs(in_folder("home"), 0700));
  CHECK_OK(mlx_write_file(in_folder("home/token"), "hush\n", 5));  // written by the hub's own client
  CHECK_OK(mlx_pull_hub("hf:acme/tiny", &options, &path));
  mlx_free(path);
  const char *log = server_log(&server);
  CHECK_CONTAINS(log, "\"host\": \"127.0.0.1\", \"Authorization\": \"Bearer hush\"");
  CHECK_CONTAINS(log, "/cdn/acme/tiny/" WEIGHTS);
  for (const char *line = log; (line = strstr(line, "\"path\": \"/cdn/")); ++line) {
    const char *stop = strchr(line, '}');
    CHECK(!memmem(line, (size_t)(stop - line), "Authorization", 13));
  }
  setenv("HF_TOKEN", "wrong", 1);
  status = mlx_pull_hub("hf:acme/tiny", &options, &path);
  CHECK_CONTAINS(mlx_status_hint_text(status), "the token has no access");
  mlx_status_free(status);
  unsetenv("HF_TOKEN");
  CHECK(!unlink(in_folder("home/token")));
}

// 127.0.0.2 stands for another machine. The user name in these addresses looks like this machine.
TEST(token_is_not_sent_in_clear_to_a_disguised_host) {
  begin();
  char *path, endpoint[96];
  static const char *const forms[] = {"http://localhost:x@127.0.0.2:%d", "http://127.0.0.1@127.0.0.2:%d",
                                      "http://localhost:80@127.0.0.2:%d/", "HTTP://[::1]:x@127.0.0.2:%d",
                                      "http://127.0.0.2:%d/localhost"};
  setenv("HF_TOKEN", "hush", 1);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i) {
    server_control(&server, "{\"token\": \"hush\"}");
    snprintf(endpoint, sizeof endpoint, forms[i], server.port);
    options.endpoint = endpoint;
    mlx_status_t status = mlx_pull_hub("hf:acme/tiny", &options, &path);
    CHECK(status);
    mlx_status_free(status);
    CHECK(!strstr(server_log(&server), "hush"));
  }
  options.endpoint = "http://localhost:99999";
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny", &options, &path), MLX_USAGE, "is not a valid URL");
  unsetenv("HF_TOKEN");
}

// A proxy on another machine would see the token.
TEST(token_for_this_machine_bypasses_the_proxy) {
  begin();
  char *path;
  server_t proxy;
  server_start(
      &proxy,
      (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py", folder, NULL},
      "http");
  setenv("HF_TOKEN", "hush", 1);
  setenv("http_proxy", proxy.url, 1);
  mlx_status_t status = mlx_pull_hub("hf:acme/tiny", &options, &path);
  unsetenv("http_proxy");
  unsetenv("HF_TOKEN");
  CHECK(!strstr(server_log(&proxy), "hush"));
  CHECK_OK(status);
  mlx_free(path);
  server_stop(&proxy);
}

TEST(invalid_references_and_missing_models_are_explained) {
  begin();
  char *path;
  command_t run;
  mlx_status_t status = mlx_pull_hub("hf:acme/none", &options, &path);
  CHECK_INT(mlx_status_code(status), MLX_NOT_FOUND);
  CHECK_CONTAINS(mlx_status_message(status), "Repository not found");
  CHECK_CONTAINS(mlx_status_hint_text(status), "acme/none at 'main'");
  mlx_status_free(status);
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny@v9", &options, &path), MLX_NOT_FOUND, "(404)");
  server_control(&server,
                 "{\"listing\": {\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": "
                 "[{\"rfilename\": \"../../../evil.gguf\", \"size\": 3, \"blobId\": "
                 "\"0123456789abcdef0123456789abcdef01234567\"}]}}");
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny", &options, &path), MLX_INVALID_INPUT,
              "points outside the model's folder");
  server_control(&server,
                 "{\"listing\": {\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": "
                 "[{\"rfilename\": \"a.gguf\", \"size\": 3}]}}");
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny", &options, &path), MLX_INVALID_INPUT, "cannot verify 'a.gguf'");
  RUN(&run, "pull", "ftp://x");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "expected a short name, hf:ORG/NAME, oci://HOST/NAME:TAG or a URL");
  command_free(&run);
  unsetenv("HF_ENDPOINT");
  char line[128];
  snprintf(line, sizeof line, "HF_ENDPOINT = %s/\n", server.url);
  CHECK_OK(mlx_write_file(in_folder("config"), line, strlen(line)));
  setenv("MLXCEL_CONFIG", in_folder("config"), 1);
  server_control(&server, "{}");
  RUN(&run, "pull", "hf:acme/tiny");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  setenv("MLXCEL_CONFIG", "/dev/null", 1);
  setenv("HF_ENDPOINT", server.url, 1);
}

// The last of 30000 files is listed twice. A quadratic search would be too slow.
TEST(duplicate_file_in_a_long_listing_is_refused) {
  static const char file[] =
      ", {\"rfilename\": \"model-%05d-of-%05d.safetensors\", \"size\": 3, \"blobId\": "
      "\"0123456789abcdef0123456789abcdef01234567\"}";
  const int count = 30000;
  mlx_text_t listing = {0};
  char *path;
  begin();
  mlx_text_puts(&listing,
                "{\"listing\": {\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": "
                "[{\"rfilename\": \"config.json\", \"size\": 3, "
                "\"blobId\": \"0123456789abcdef0123456789abcdef01234567\"}, {\"rfilename\": "
                "\"model.safetensors.index.json\", \"size\": 3, "
                "\"blobId\": \"0123456789abcdef0123456789abcdef01234567\"}");
  for (int i = 1; i <= count; ++i) mlx_text_printf(&listing, file, i, count);
  mlx_text_printf(&listing, file, count, count);
  mlx_text_puts(&listing, "]}}");
  CHECK_OK(mlx_text_finish(&listing));
  server_control(&server, listing.data);
  mlx_text_clear(&listing);
  const clock_t before = clock();
  CHECK_ERROR(mlx_pull_hub("hf:acme/tiny", &options, &path), MLX_INVALID_INPUT,
              "lists 'model-30000-of-30000.safetensors' twice");
  CHECK((clock() - before) / CLOCKS_PER_SEC < 2);
}

TEST(offline_mode_uses_the_cache_without_requests) {
  begin();
  command_t run;
  setenv("HF_HUB_OFFLINE", "1", 1);
  RUN(&run, "pull", "hf:acme/tiny");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "HF_HUB_OFFLINE");
  command_free(&run);
  unsetenv("HF_HUB_OFFLINE");
  RUN(&run, "pull", "hf:acme/tiny");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  setenv("HF_HUB_OFFLINE", "1", 1);
  server_control(&server, "{}");
  RUN(&run, "pull", "hf:acme/tiny");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "/models/acme/tiny/");
  command_free(&run);
  RUN(&run, "pull", "hf:acme/tiny", "-o", in_folder("other"));
  CHECK_INT(run.exit_code, MLX_USAGE);
  command_free(&run);
  RUN(&run, "show", "hf:acme/tiny");
  CHECK_CONTAINS(run.out, "llama");
  command_free(&run);
  CHECK_INT(count_of(server_log(&server), "\"method\""), 0);
  unsetenv("HF_HUB_OFFLINE");
}

TEST(pull_writes_to_an_output_folder) {
  begin();
  command_t run;
  char out[160];
  snprintf(out, sizeof out, "%s", in_folder("mine"));
  RUN(&run, "pull", "hf:acme/tiny", "-o", out);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  CHECK_INT(names_in(out), FILES);
  command_free(&run);
  RUN(&run, "pull", "hf:acme/tiny", "-o", out);
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "already exists");
  command_free(&run);
}

TEST(run_pulls_a_model_from_the_hub) {
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);  // may already have these weights
  command_t hub, local;
  RUN(&hub, "run", "--temp", "0", "-m", "hf:acme/tiny", "-p", "the quick brown", "-n", "24", "--device",
      "cpu");
  if (hub.exit_code) CHECK_FAIL("%s", hub.err);
  RUN(&local, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "24", "--device", "cpu");
  CHECK_INT(local.exit_code, 0);
  CHECK_TEXT(hub.out, local.out);
  command_free(&hub);
  command_free(&local);
  CHECK_OK(mlx_remove_tree(MLXCEL_TEST_CACHE "/models/acme"));  // other tests use their own names beside it
}

// ----------------------------------------------------------------------------------------------------------
// From a web server

TEST(bundle_served_as_a_folder_is_pulled_and_runs) {
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  command_t run, local;
  char bundle[256], url[256], out[256], control[256];
  snprintf(bundle, sizeof bundle, "%s", in_folder("hub/tiny.mlxb"));
  snprintf(url, sizeof url, "%s/plain/tiny.mlxb/", server.url);
  snprintf(out, sizeof out, "%s", in_folder("pulled.mlxb"));
  RUN(&run, "compile", TINY, "-o", bundle, "-c", "128");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  server_control(&server, "{\"weights.irpa\": {\"cut\": [5000, 70000], \"status\": [503]}}");
  RUN(&run, "pull", url, "-o", out);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  CHECK(!strncmp(run.out, out, strlen(out)));
  command_free(&run);
  CHECK_CONTAINS(server_log(&server), "bytes=70000-");
  RUN(&run, "run", "--temp", "0", "-m", out, "-p", "the quick brown", "-n", "24", "--device", "cpu");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  RUN(&local, "run", "--temp", "0", "-m", bundle, "-p", "the quick brown", "-n", "24", "--device", "cpu");
  CHECK_TEXT(run.out, local.out);
  command_free(&run);
  command_free(&local);
  RUN(&run, "pull", url, "-o", out);
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "already exists");
  command_free(&run);
  snprintf(out, sizeof out, "%s", in_folder("damaged.mlxb"));
  snprintf(control, sizeof control, "{\"model.vmfb\": {\"corrupt\": true}}");
  server_control(&server, control);
  RUN(&run, "pull", url, "-o", out);
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, "model.vmfb: its SHA-256 is");
  CHECK(!mlx_is_dir(out));
  command_free(&run);
  snprintf(url, sizeof url, "%s/plain/acme/tiny", server.url);
  RUN(&run, "pull", url, "-o", out);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "use the URL of a bundle");
  command_free(&run);
}

static void check_ends(const char *name, const char *control, const char *part) {
  command_t run;
  char url[160], out[160], script[512];
  server_control(&server, control);
  snprintf(url, sizeof url, "%s/plain/%s", server.url, name);
  snprintf(out, sizeof out, "%s", in_folder("endless.mlxb"));
  RUN(&run, "pull", url, "-o", out);
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
  snprintf(script, sizeof script, "test -z \"$(ls -d endless.mlxb* 2>/dev/null)\"");
  command_shell(folder, script);  // nothing is left
}

// Without a Content-Length, the sizes in the archive's headers and in the manifest limit a download.
TEST(download_without_a_length_ends_at_the_declared_sizes) {
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  command_t run;
  char url[160];
  RUN(&run, "compile", TINY, "-o", in_folder("hub/end.mlxb"), "-c", "128", "--single-file");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  command_shell(folder,
                "cd hub; echo page > junk.mlxb; mkdir long; tar xf end.mlxb -C long; truncate -s +1000000 "
                "long/weights.irpa; tar cf long.mlxb -C long manifest.json weights.irpa; rm -r long");
  check_ends("junk.mlxb", "{\"junk.mlxb\": {\"endless\": \"x\"}}", "junk.mlxb is not a bundle");
  check_ends("end.mlxb", "{\"end.mlxb\": {\"endless\": \"x\"}}",
             "end.mlxb: unexpected data after the end of the archive");
  check_ends("end.mlxb", "{\"end.mlxb\": {\"endless\": \"\\u0000\"}}",
             "end.mlxb: unexpected data after the end of the archive");
  check_ends("long.mlxb", "{\"long.mlxb\": {\"endless\": \"x\"}}", "but the manifest declares");
  server_control(&server, "{\"end.mlxb\": {\"endless\": \"\"}}");  // ends, but without a Content-Length
  snprintf(url, sizeof url, "%s/plain/end.mlxb", server.url);
  RUN(&run, "pull", url, "-o", in_folder("ended.mlxb"));
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  check_same(in_folder("ended.mlxb"), in_folder("hub/end.mlxb"));
}

// A folder is pulled without the code of other targets, a single file with all targets. Both keep the
// signature.
TEST(multi_target_bundle_is_pulled_as_folder_or_file) {
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  command_t run;
  char bundle[256], file[256], url[256], out[256];
  static const char targets[] = "cpu:x86-64,cpu:aarch64,cuda:sm_80",
                    key[] = MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/plain.key";
  snprintf(bundle, sizeof bundle, "%s", in_folder("hub/many.mlxb"));
  snprintf(file, sizeof file, "%s", in_folder("hub/one.mlxb"));
  RUN(&run, "compile", TINY, "-o", bundle, "-c", "128", "--target", targets);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  RUN(&run, "compile", TINY, "-o", file, "-c", "128", "--target", targets, "--single-file");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  RUN(&run, "sign", "-s", key, bundle, file);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  for (int i = 0; i < 3; ++i) {
    snprintf(url, sizeof url, "%s/plain/%s", server.url, i < 2 ? "many.mlxb" : "one.mlxb");
    snprintf(out, sizeof out, "%s/out%d.mlxb", in_folder("."), i);
    RUN(&run, "pull", url, "-o", out, "--target", i == 1 ? "cuda:sm_80" : i ? "all" : "cpu:x86-64");
    if (run.exit_code) CHECK_FAIL("%s", run.err);
    command_free(&run);
    RUN(&run, "verify", "-p", MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/plain.pub", out);
    if (run.exit_code) CHECK_FAIL("%s", run.err);
    command_free(&run);
  }
  CHECK(mlx_is_file(in_folder("out0.mlxb/model.cpu-x86-64.vmfb")) &&
        !mlx_is_file(in_folder("out0.mlxb/model.cuda-sm_80.vmfb")));
  CHECK(!mlx_is_file(in_folder("out1.mlxb/model.cpu-x86-64.vmfb")) &&
        mlx_is_file(in_folder("out1.mlxb/model.cuda-sm_80.vmfb")));
  CHECK(mlx_is_file(in_folder("out2.mlxb")));
  CHECK(mlx_write_file(in_folder("mine.mlxb.whole"), "precious", 8) == NULL);  // looks like a temporary file
  RUN(&run, "pull", url, "-o", in_folder("mine.mlxb"));
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  CHECK(mlx_is_file(in_folder("mine.mlxb.whole")) && mlx_is_file(in_folder("mine.mlxb")));
  CHECK(!unlink(in_folder("hub/many.mlxb/weights.irpa")));  // a bundle without weights
  snprintf(url, sizeof url, "%s/plain/many.mlxb", server.url);
  RUN(&run, "pull", url, "-o", in_folder("thin.mlxb"), "--target", "cpu:x86-64");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  CHECK_CONTAINS(run.err, "the server has no weights.irpa: it will be looked up by digest");
  command_free(&run);
  RUN(&run, "pull", url, "-o", in_folder("no.mlxb"), "--target", "cuda:sm_90");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "the bundle has no code for cuda:sm_90");
  command_free(&run);
  snprintf(url, sizeof url, "%s/plain/one.mlxb", server.url);
  server_control(&server, "{\"one.mlxb\": {\"corrupt\": true}}");
  RUN(&run, "pull", url, "-o", in_folder("bad.mlxb"));
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK(!mlx_is_file(in_folder("bad.mlxb")));
  command_free(&run);
}

// A pull chooses cpu:host only if the bundle was compiled on the same kind of CPU.
TEST(host_code_is_chosen_only_for_the_same_cpu) {
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  command_t run;
  char url[256];
  RUN(&run, "compile", TINY, "-o", in_folder("hub/here.mlxb"), "-c", "128", "--target", "cpu,cuda:sm_80");
  command_done(&run);
  snprintf(url, sizeof url, "%s/plain/here.mlxb", server.url);
  RUN(&run, "pull", url, "-o", in_folder("here.mlxb"));
  CHECK_CONTAINS(run.err, "pulling the code for cpu:host (available: ");
  command_done(&run);
  RUN(&run, "run", "-m", in_folder("here.mlxb"), "-p", "x", "-n", "1", "--device", "cpu");
  command_done(&run);
  RUN(&run, "pull", url, "-o", in_folder("there.mlxb"), "--target", "cpu");
  command_done(&run);
  CHECK_OK(mlx_remove_tree(in_folder("here.mlxb")));
  char path[256], *json, *cpu;
  snprintf(path, sizeof path, "%s", in_folder("hub/here.mlxb/manifest.json"));
  CHECK_OK(mlx_read_file(path, 1 << 20, &json, NULL));
  CHECK((cpu = strstr(json, "\"cpu\": \"")));
  memset(cpu + 8, '0', 64);  // another CPU
  CHECK_OK(mlx_write_file(path, json, strlen(json)));
  mlx_free(json);
  RUN(&run, "pull", url, "-o", in_folder("here.mlxb"));
  CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
  CHECK_CONTAINS(run.err, "this machine can run none of the bundle's targets");
  command_free(&run);
}

TEST(bundle_without_file_list_is_not_pulled) {
  begin();
  char path[256], url[256], *json, *files_at;
  command_t run;
  snprintf(path, sizeof path, "%s", in_folder("hub/tiny.mlxb/manifest.json"));
  snprintf(url, sizeof url, "%s/plain/tiny.mlxb/manifest.json", server.url);
  CHECK_OK(mlx_read_file(path, 1 << 20, &json, NULL));
  files_at = strstr(json, ",\n  \"files\"");
  CHECK(files_at);
  strcpy(files_at, "\n}\n");
  CHECK_OK(mlx_write_file(path, json, strlen(json)));
  mlx_free(json);
  RUN(&run, "pull", url, "-o", in_folder("old.mlxb"));
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, "lists no files");
  command_free(&run);
  CHECK(!mlx_is_dir(in_folder("old.mlxb")));
}

TEST_MAIN(CASE(bundle_served_as_a_folder_is_pulled_and_runs),
          CASE(download_without_a_length_ends_at_the_declared_sizes),
          CASE(multi_target_bundle_is_pulled_as_folder_or_file),
          CASE(host_code_is_chosen_only_for_the_same_cpu), CASE(bundle_without_file_list_is_not_pulled),
          CASE(pull_downloads_exactly_the_needed_files), CASE(several_quantizations_of_a_model_coexist),
          CASE(pull_killed_at_any_byte_resumes), CASE(no_model_appears_before_all_files_are_checked),
          CASE(token_is_sent_only_to_the_hub), CASE(token_is_not_sent_in_clear_to_a_disguised_host),
          CASE(token_for_this_machine_bypasses_the_proxy),
          CASE(invalid_references_and_missing_models_are_explained),
          CASE(duplicate_file_in_a_long_listing_is_refused),
          CASE(offline_mode_uses_the_cache_without_requests), CASE(pull_writes_to_an_output_folder),
          CASE(run_pulls_a_model_from_the_hub))
