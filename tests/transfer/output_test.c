// The output of a pull. Of two parallel pulls to one output, one downloads, the other waits and then reports
// that the output exists. Also tests the check for free disk space.
#include "transfer/output.h"

#include "base/digest.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "tests/support/store_model.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"

static server_t web, registry;

static void clean_up(void) {
  server_stop(&web);
  server_stop(&registry);
  mlx_status_free(mlx_remove_tree(folder));
}

static void begin(void) {
  if (web.port) return;
  plain_environment();
  strcpy(folder, "/tmp/mlxcel-output-XXXXXX");
  CHECK(mkdtemp(folder));
  setenv("DOCKER_CONFIG", folder, 1);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  CHECK_OK(mlx_make_dirs(in_folder("web"), 0755));
  CHECK_OK(mlx_make_dirs(in_folder("here"), 0755));
  command_t run;
  RUN(&run, "compile", TINY, "-o", in_folder("web/tiny.mlxb"), "-c", "128");
  command_done(&run);
  RUN(&run, "compile", TINY, "-o", in_folder("web/one.mlxb"), "-c", "128", "--single-file");
  command_done(&run);
  server_start(&web,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py",
                                     in_folder("web"), NULL},
               "http");
  server_start(&registry,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/registry_server.py", NULL},
               "http");
  atexit(clean_up);
}

static void check_same(const char *a, const char *b) {
  char a_hex[MLX_DIGEST_HEX], b_hex[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(a, NULL, a_hex));
  CHECK_OK(mlx_digest_file(b, NULL, b_hex));
  CHECK_TEXT(a_hex, b_hex);
}

static mlx_status_t check_name(void *user, const char *name) {
  if (strcmp(name, user)) CHECK_FAIL("'%s' was left over beside '%s'", name, (const char *)user);
  return NULL;
}

// Waits until one of two pulls waits for the other.
static void wait_until_one_waits(const command_t *both) {
  for (int i = 0; i < 12000; ++i) {
    char *text;
    CHECK_OK(mlx_read_file(both[i % 2].err_path, 1 << 20, &text, NULL));
    const bool waits = strstr(text, "waiting for another mlxcel");
    mlx_free(text);
    if (waits) return;
    usleep(5000);
  }
  CHECK_FAIL("no pull waits for the other");
}

// Starts two pulls at the same time, from a server slow enough that they overlap: |stalled|, if it is not
// NULL, stalls until one pull waits. |output| is the only entry of here/.
static void pull_twice(const char *source, const char *output, const server_t *stalled) {
  command_t both[2];
  char path[256];
  snprintf(path, sizeof path, "%s/here/%s", folder, output);
  for (int i = 0; i < 2; ++i)
    command_start(&both[i], (const char *const[]){MLXCEL_BINARY, "pull", source, "-o", path, NULL});
  if (stalled) wait_until_one_waits(both);
  if (stalled) server_control(stalled, "{}");
  for (int i = 0; i < 2; ++i) command_wait(&both[i]);
  const int late = both[0].exit_code ? 0 : 1;
  if (both[1 - late].exit_code) CHECK_FAIL("%s", both[1 - late].err);
  CHECK_INT(both[late].exit_code, MLX_USAGE);
  CHECK_CONTAINS(both[late].err, "waiting for another mlxcel");
  CHECK_CONTAINS(both[late].err, "already exists");
  for (int i = 0; i < 2; ++i) command_free(&both[i]);
  CHECK_OK(mlx_list_dir(in_folder("here"), check_name, (void *)(uintptr_t)output));
}

TEST(parallel_pulls_of_a_url_download_once) {
  begin();
  char url[128];
  server_control(&web, "{\"weights.irpa\": {\"stall\": [50000], \"seconds\": 60}}");
  snprintf(url, sizeof url, "%s/plain/tiny.mlxb", web.url);
  pull_twice(url, "tiny.mlxb", &web);
  check_same(in_folder("here/tiny.mlxb/weights.irpa"), in_folder("web/tiny.mlxb/weights.irpa"));
  CHECK_OK(mlx_remove_tree(in_folder("here/tiny.mlxb")));
  server_control(&web, "{\"one.mlxb\": {\"stall\": [50000], \"seconds\": 60}}");
  snprintf(url, sizeof url, "%s/plain/one.mlxb", web.url);
  pull_twice(url, "one.mlxb", &web);
  check_same(in_folder("here/one.mlxb"), in_folder("web/one.mlxb"));
  CHECK_OK(mlx_remove_tree(in_folder("here/one.mlxb")));
}

TEST(parallel_pulls_of_a_registry_bundle_download_once) {
  begin();
  char ref[128];
  command_t run;
  server_control(&registry, "{}");
  snprintf(ref, sizeof ref, "oci://127.0.0.1:%d/acme/tiny:v1", registry.port);
  RUN(&run, "push", in_folder("web/tiny.mlxb"), ref);
  command_done(&run);
  server_control(&registry, "{\"slow\": 0.5}");
  pull_twice(ref, "tiny.mlxb", NULL);
  check_same(in_folder("here/tiny.mlxb/weights.irpa"), in_folder("web/tiny.mlxb/weights.irpa"));
  CHECK_OK(mlx_remove_tree(in_folder("here/tiny.mlxb")));
}

TEST(parallel_pulls_of_a_registry_model_download_once) {
  begin();
  char ref[128];
  mlx_registry_options_t options = {0};
  static const test_layer_t layer = {GGUF, MLX_OCI_WEIGHT, "tiny.gguf"};
  quick_http(&options.http);
  server_control(&registry, "{}");
  snprintf(ref, sizeof ref, "oci://127.0.0.1:%d/acme/gguf:v1", registry.port);
  store_model(ref, &options, MLX_OCI_MODEL, in_folder("{}"), &layer, 1);
  server_control(&registry, "{\"slow\": 0.5}");
  pull_twice(ref, "gguf", NULL);
  check_same(in_folder("here/gguf/tiny.gguf"), GGUF);
  CHECK_OK(mlx_remove_tree(in_folder("here/gguf")));
}

// ----------------------------------------------------------------------------------------------------------
// Disk space

// Runs a script in |folder| with a file system of |bytes| bytes mounted at small/. Returns false if this user
// may not mount one.
static bool with_small_disk(uint64_t bytes, const char *script, command_t *run) {
  char whole[1024];
  snprintf(whole, sizeof whole,
           "cd %s && mkdir -p small && mount -t tmpfs -o size=%llu tmpfs small || exit 99; %s", folder,
           (unsigned long long)bytes, script);
  command_start(run, (const char *const[]){"/usr/bin/env", "unshare", "-rm", "sh", "-c", whole, NULL});
  command_wait(run);
  if (run->exit_code != 99 && run->exit_code != 127 && !strstr(run->err, "unshare:")) return true;
  command_free(run);
  return false;
}

TEST(only_missing_bytes_need_disk_space) {
  begin();
  command_t run;
  char ref[128], script[512], digest[MLX_OCI_DIGEST], expected[96];
  mlx_text_t json = {0};
  mlx_oci_ref_t parsed;
  mlx_store_t *store;
  mlx_registry_options_t options = {0};
  quick_http(&options.http);
  server_control(&registry, "{}");
  command_shell(folder, "head -c 1048576 /dev/urandom > weights");
  const test_layer_t layer = {in_folder("weights"), MLX_OCI_WEIGHT, "big.gguf"};
  snprintf(ref, sizeof ref, "oci://127.0.0.1:%d/acme/big:v1", registry.port);
  store_model(ref, &options, MLX_OCI_MODEL, in_folder("{}"), &layer, 1);
  CHECK_OK(mlx_oci_ref_parse(ref, &parsed));
  CHECK_OK(mlx_store_open(&parsed, &options, &store));
  CHECK_OK(mlx_store_get_document(store, "v1", &json));
  mlx_oci_digest(json.data, json.length, digest);
  mlx_text_clear(&json);
  mlx_store_close(store);
  snprintf(
      script, sizeof script,
      "mkdir -p small/big.%.16s.part/files && head -c 800000 weights > "
      "small/big.%.16s.part/files/big.gguf.part && %s pull %s -o small/big && cmp weights small/big/big.gguf",
      digest + 7, digest + 7, MLXCEL_BINARY, ref);
  if (!with_small_disk((64 << 20) + (1200 << 10), script, &run))
    SKIP("this user may not mount a file system (unshare, tmpfs)");
  command_done(&run);
  snprintf(ref, sizeof ref, "oci://127.0.0.1:%d/acme/room:v1", registry.port);
  RUN(&run, "push", in_folder("web/tiny.mlxb"), ref);
  command_done(&run);
  snprintf(script, sizeof script, "%s pull %s -o small/tiny.mlxb", MLXCEL_BINARY, ref);
  CHECK(with_small_disk(8 << 20, script, &run));
  CHECK_INT(run.exit_code, MLX_IO);
  static const char *const names[] = {"web/tiny.mlxb/model.vmfb", "web/tiny.mlxb/weights.irpa",
                                      "web/tiny.mlxb/tokenizer.json"};
  uint64_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    mlx_file_stamp_t stamp;
    CHECK_OK(mlx_file_stamp(in_folder(names[i]), &stamp));
    sum += stamp.size;
  }
  snprintf(expected, sizeof expected, "the download needs %s and a reserve of 67.1 MB",
           mlx_bytes_show(sum).text);
  CHECK_CONTAINS(run.err, expected);
  command_free(&run);
}

TEST_MAIN(CASE(parallel_pulls_of_a_url_download_once),
          CASE(parallel_pulls_of_a_registry_bundle_download_once),
          CASE(parallel_pulls_of_a_registry_model_download_once), CASE(only_missing_bytes_need_disk_space))
