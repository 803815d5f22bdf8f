// A cache of compiled modules that machines share: in a folder, on a web server and in a registry. Entries
// that must not be used, servers that fail, and a start without iree-compile.
#include "transfer/remote_cache.h"

#include <sys/stat.h>

#include "artifact/bundle.h"
#include "artifact/sign.h"
#include "base/clock.h"
#include "base/text.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define RUN_TINY "run", "-m", TINY, "--device", "cpu", "-c", "128", "--temp", "0", "-n", "4", "-p", "the"
#define CLIENTS 8

static mlx_secret_key_t own_key;

// A folder with a trusted key, own.key, and a key that is not trusted, other.key.
static void make_folder(void) {
  command_t run;
  plain_environment();
  strcpy(folder, "/tmp/mlxcel-remote-XXXXXX");
  CHECK(mkdtemp(folder));
  setenv("MLXCEL_TRUSTED", in_folder("trusted"), 1);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  unsetenv("MLXCEL_REMOTE_CACHE");
  RUN(&run, "keygen", "-o", in_folder("own"), "-W");
  command_done(&run);
  RUN(&run, "keygen", "-o", in_folder("other"), "-W");
  command_done(&run);
  RUN(&run, "trust", "add", in_folder("own.pub"));
  command_done(&run);
  CHECK_OK(mlx_secret_key_load(in_folder("own.key"), NULL, NULL, &own_key));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

// Compiles the model, or finds it in the cache of the tests, and publishes its module at |place|.
static void publish(const char *place) {
  command_t run;
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  setenv("MLXCEL_REMOTE_CACHE", place, 1);
  RUN(&run, "compile", TINY, "--emit", "vmfb", "-o", in_folder("x.vmfb"), "--publish", "--secret-key",
      in_folder("own.key"));
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  CHECK_CONTAINS(run.err, "the remote cache");
  command_free(&run);
}

// From now on, commands have a new cache and no compiler.
static void be_another_machine(const char *name) {
  CHECK_OK(mlx_make_dirs(in_folder(name), 0700));
  setenv("MLXCEL_CACHE", in_folder(name), 1);
  setenv("MLXCEL_IREE_COMPILE", in_folder("no-compiler"), 1);
}

static void check_start(const char *part) {
  command_t run;
  RUN(&run, RUN_TINY);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.err, part);
  CHECK(!strstr(run.err, "compiling"));
  command_free(&run);
}

static void check_no_start(const char *part) {
  command_t run;
  RUN(&run, RUN_TINY);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_TEXT(run.out, "");
  CHECK_CONTAINS(run.err, part);
  CHECK_CONTAINS(run.err, "no-compiler' (from MLXCEL_IREE_COMPILE) does not exist");
  command_free(&run);
}

static void start_hub(server_t *hub) {
  server_start(
      hub, (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py", folder, NULL},
      "http");
}

// ----------------------------------------------------------------------------------------------------------
// Starts

TEST(a_start_with_a_remote_cache_needs_no_compiler) {
  command_t run;
  make_folder();
  publish(in_folder("remote"));
  be_another_machine("machine");
  check_start("took tiny-llama as f32 for cpu:host, context 2048 from the remote cache");
  unsetenv("MLXCEL_REMOTE_CACHE");  // it is in the local cache now
  check_start("load ");
  be_another_machine("third");
  RUN(&run, RUN_TINY);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  command_free(&run);
  // A machine with a compiler takes the module too, and can push what it has.
  setenv("MLXCEL_REMOTE_CACHE", in_folder("remote"), 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  check_start("from the remote cache");
  RUN(&run, "cache", "push", "--secret-key", in_folder("own.key"));
  CHECK_CONTAINS(run.err, "pushed 0 modules to ");
  CHECK_CONTAINS(run.err, "; 1 was there already");
  command_done(&run);
  setenv("MLXCEL_REMOTE_CACHE", in_folder("second"), 1);
  RUN(&run, "cache", "push", "--secret-key", in_folder("own.key"));
  CHECK_CONTAINS(run.err, "pushed 1 module to ");
  command_done(&run);
  be_another_machine("fourth");
  check_start("from the remote cache");
  remove_folder();
}

TEST(run_and_serve_publish_what_they_compile) {
  command_t run;
  make_folder();
  setenv("MLXCEL_REMOTE_CACHE", in_folder("remote"), 1);
  RUN(&run, RUN_TINY, "--publish", "--secret-key", in_folder("own.key"));
  CHECK_CONTAINS(run.err, "published in the remote cache");
  command_done(&run);
  RUN(&run, RUN_TINY, "--publish", "--secret-key", in_folder("own.key"));
  CHECK(!strstr(run.err, "published in"));  // it is there
  command_done(&run);
  setenv("MLXCEL_REMOTE_CACHE", in_folder("second"), 1);
  command_start(&run, (const char *const[]){MLXCEL_BINARY, "serve", TINY, "--device", "cpu", "--port", "0",
                                            "--publish", "--secret-key", in_folder("own.key"), NULL});
  struct stat out;
  do mlx_sleep_ms(10);
  while (!stat(run.out_path, &out) && !out.st_size && command_now() < run.started + 60);
  kill((pid_t)run.pid, SIGTERM);
  command_wait(&run);
  CHECK_CONTAINS(run.err, "published in the remote cache");
  command_done(&run);
  for (int i = 0; i < 2; ++i) {
    setenv("MLXCEL_REMOTE_CACHE", in_folder(i ? "second" : "remote"), 1);
    be_another_machine(i ? "machine-2" : "machine-1");
    check_start("from the remote cache");
  }
  // A cache that cannot be written costs a note.
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  unsetenv("MLXCEL_IREE_COMPILE");
  CHECK_OK(mlx_write_file(in_folder("file"), "x", 1));
  setenv("MLXCEL_REMOTE_CACHE", in_folder("file/below"), 1);
  RUN(&run, RUN_TINY, "--publish", "--secret-key", in_folder("own.key"));
  CHECK_CONTAINS(run.err, "not published in the remote cache: ");
  command_done(&run);
  RUN(&run, "serve", TINY, "--publish", "--secret-key", in_folder("no.key"));
  CHECK(run.exit_code);
  command_free(&run);
  unsetenv("MLXCEL_REMOTE_CACHE");
  RUN(&run, RUN_TINY, "--publish", "--secret-key", in_folder("own.key"));
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "--publish needs a remote cache");
  command_free(&run);
  remove_folder();
}

TEST(a_web_server_and_a_registry_are_caches_too) {
  server_t hub, registry;
  char place[128];
  make_folder();
  start_hub(&hub);
  server_control(&hub, "{\"store\": true}");
  snprintf(place, sizeof place, "%s/plain/modules/", hub.url);
  publish(place);
  server_control(&hub, "{\"token\": \"secret\"}");
  setenv("MLXCEL_REMOTE_CACHE_TOKEN", "secret", 1);
  be_another_machine("web");
  check_start("from the remote cache");
  unsetenv("MLXCEL_REMOTE_CACHE_TOKEN");
  be_another_machine("web-2");
  check_no_start("the remote cache is not used for tiny-llama");
  server_stop(&hub);

  server_start(&registry,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/registry_server.py", NULL},
               "http");
  snprintf(place, sizeof place, "oci://127.0.0.1:%d/team/modules", registry.port);
  publish(place);
  be_another_machine("oci");
  check_start("from the remote cache");
  CHECK_INT(count_of(server_log(&registry), "\"PUT\""), 5);  // four blobs and the manifest
  server_control(&registry, "{\"corrupt\": true}");
  be_another_machine("oci-2");
  check_no_start("the remote cache is not used for tiny-llama");
  server_stop(&registry);
  remove_folder();
}

TEST(eight_clients_at_once_get_the_module) {
  server_t hub;
  char place[128];
  command_t runs[CLIENTS];
  make_folder();
  publish(in_folder("modules"));
  start_hub(&hub);
  snprintf(place, sizeof place, "%s/plain/modules", hub.url);
  setenv("MLXCEL_REMOTE_CACHE", place, 1);
  for (int i = 0; i < CLIENTS; ++i) {
    char name[16];
    snprintf(name, sizeof name, "m%d", i / 2);  // two processes on each machine: one of them waits
    be_another_machine(name);
    command_start(&runs[i], (const char *const[]){MLXCEL_BINARY, RUN_TINY, NULL});
  }
  for (int i = 0; i < CLIENTS; ++i) {
    command_wait(&runs[i]);
    if (runs[i].exit_code) CHECK_FAIL("client %d: %s", i, runs[i].err);
    if (i) CHECK_TEXT(runs[i].out, runs[0].out);
  }
  for (int i = 0; i < CLIENTS; ++i) command_free(&runs[i]);
  CHECK_INT(count_of(server_log(&hub), "model.vmfb\""), CLIENTS / 2);
  server_stop(&hub);
  remove_folder();
}

TEST(a_server_that_dies_in_the_middle_costs_only_time) {
  server_t hub;
  char place[128];
  make_folder();
  publish(in_folder("modules"));
  start_hub(&hub);
  snprintf(place, sizeof place, "%s/plain/modules", hub.url);
  setenv("MLXCEL_REMOTE_CACHE", place, 1);
  be_another_machine("a");
  server_control(&hub, "{\"model.vmfb\": {\"cut\": [100000, 100000, 100000, 100000]}}");
  check_no_start("the remote cache is not used for tiny-llama");
  CHECK(!mlx_is_file(in_folder("a/vmfb")));
  server_control(&hub, "{\"model.vmfb\": {\"cut\": [100000]}}");  // it comes back: the download goes on
  check_start("from the remote cache");
  be_another_machine("b");
  server_control(&hub, "{\"record.json\": {\"status\": [500, 500, 500, 500]}}");
  check_no_start("the remote cache is not used for tiny-llama");
  server_stop(&hub);
  check_no_start("the remote cache is not used for tiny-llama");
  unsetenv("MLXCEL_IREE_COMPILE");  // with a compiler, the start does not depend on the server
  command_t run;
  RUN(&run, RUN_TINY);
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "the remote cache is not used for tiny-llama");
  CHECK_CONTAINS(run.err, "compiled tiny-llama");
  command_free(&run);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Entries that must not be used

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER_KEY "f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
static const char module[] = "a module";

static mlx_module_record_t record_of(const char *compiler) {
  mlx_module_record_t record = {
      .key = KEY, .compiler_digest = OTHER_KEY, .title = "t", .size = strlen(module)};
  snprintf(record.compiler, sizeof record.compiler, "%s", compiler);
  mlx_digest_bytes(module, strlen(module), record.sha256);
  return record;
}

static const char *entry_file(const char *name) {
  char path[160];
  snprintf(path, sizeof path, "remote/" KEY "/%s", name);
  return in_folder(path);
}

static void put(const char *compiler) {
  mlx_remote_cache_t *remote;
  const mlx_module_record_t record = record_of(compiler);
  bool added;
  CHECK_OK(mlx_remove_tree(in_folder("remote")));
  CHECK_OK(mlx_write_file(in_folder("module"), module, strlen(module)));
  CHECK_OK(mlx_remote_cache_open(in_folder("remote"), NULL, &remote));
  CHECK_OK(mlx_remote_cache_put(remote, &record, in_folder("module"), &own_key, &added));
  CHECK(added);
  mlx_remote_cache_close(remote);
}

static mlx_status_t fetch(const char *key, const char *compiler, const char *digest) {
  mlx_remote_cache_t *remote;
  mlx_module_record_t record;
  mlx_module_wanted_t wanted = {.compiler = compiler, .compiler_digest = digest};
  memcpy(wanted.key, key, sizeof wanted.key);
  unlink(in_folder("fetched"));
  CHECK_OK(mlx_remote_cache_open(in_folder("remote"), NULL, &remote));
  mlx_status_t status = mlx_remote_cache_fetch(remote, &wanted, in_folder("fetched"), &record);
  mlx_remote_cache_close(remote);
  return status;
}

static void sign_with(const char *key_file, const char *text, const char *domain) {
  mlx_secret_key_t key;
  char *signature;
  size_t length;
  CHECK_OK(mlx_secret_key_load(in_folder(key_file), NULL, NULL, &key));
  const mlx_signed_data_t data = {.name = "record", .bytes = text, .length = strlen(text), .domain = domain};
  CHECK_OK(mlx_signature_make(&key, &data, NULL, "timestamp:1", &signature, &length));
  CHECK_OK(mlx_write_file(entry_file(MLX_MODULE_RECORD), text, strlen(text)));
  CHECK_OK(mlx_write_file(entry_file(MLX_MODULE_RECORD MLX_SIGNATURE_ENDING), signature, length));
  mlx_free(signature);
}

TEST(a_forged_entry_is_not_used) {
  make_folder();
  put("3.13.0");
  CHECK_OK(fetch(KEY, "3.13.0", ""));
  char *text;
  size_t length;
  CHECK_OK(mlx_read_file(entry_file(MLX_MODULE_RECORD), MLX_MAX_MODULE_RECORD, &text, &length));
  // Another module, with the same size and another one.
  CHECK_OK(mlx_write_file(entry_file(MLX_BUNDLE_VMFB), "A module", strlen(module)));
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "the module is not the one that was signed");
  CHECK_OK(mlx_write_file(entry_file(MLX_BUNDLE_VMFB), "module", 6));
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "the module is not the one that was signed");
  put("3.13.0");
  // A record that was changed after it was signed.
  char *changed = strstr(text, "\"title\": \"t\"");
  CHECK(changed);
  changed[10] = 'T';
  CHECK_OK(mlx_write_file(entry_file(MLX_MODULE_RECORD), text, length));
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "does not match its signature");
  // A key that is not trusted, and a trusted one that signed these bytes as a plain file or as a bundle.
  sign_with("other.key", text, MLX_DOMAIN_CACHE);
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "which is not among the trusted keys");
  sign_with("own.key", text, NULL);
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "not the signature of a cache entry");
  sign_with("own.key", text, MLX_DOMAIN_BUNDLE);
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "not the signature of a cache entry");
  CHECK(!unlink(entry_file(MLX_MODULE_RECORD MLX_SIGNATURE_ENDING)));
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_INVALID_INPUT, "record.json.minisig");
  // A good entry in the place of another one.
  put("3.13.0");
  CHECK(!rename(in_folder("remote/" KEY), in_folder("remote/" OTHER_KEY)));
  CHECK_ERROR(fetch(OTHER_KEY, "3.13.0", ""), MLX_INVALID_INPUT, "the record is that of another entry");
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_NOT_FOUND, "record.json");
  mlx_free(text);
  remove_folder();
}

TEST(an_entry_of_another_compiler_is_not_used) {
  make_folder();
  put("3.13.0rc1 @ 89ec");
  CHECK_OK(fetch(KEY, "3.13.0", ""));  // without a compiler: any of the needed version
  CHECK_OK(fetch(KEY, "3.13.0rc1 @ 89ec", OTHER_KEY));
  CHECK_ERROR(fetch(KEY, "3.13.0rc1 @ 89ec", KEY), MLX_UNSUPPORTED, "another iree-compile made the entry");
  CHECK_ERROR(fetch(KEY, "3.13.0rc2", OTHER_KEY), MLX_UNSUPPORTED,
              "(3.13.0rc1 @ 89ec); this machine uses 3.13.0rc2");
  put("3.12.0");
  CHECK_ERROR(fetch(KEY, "3.13.0", ""), MLX_UNSUPPORTED, "another iree-compile made the entry (3.12.0)");
  CHECK(!mlx_is_file(in_folder("fetched")));
  remove_folder();
}

TEST(wrong_places_are_refused) {
  command_t run;
  make_folder();
  static const char *const places[][2] = {{"ftp://host/x", "'ftp://host/x' is not a place for a cache"},
                                          {"https://", "MLXCEL_REMOTE_CACHE"},
                                          {"https://host/x?y", "must not have a query"}};
  for (size_t i = 0; i < 3; ++i) {
    setenv("MLXCEL_REMOTE_CACHE", places[i][0], 1);
    RUN(&run, RUN_TINY);
    CHECK(run.exit_code == MLX_USAGE || run.exit_code == MLX_INVALID_INPUT);
    CHECK_CONTAINS(run.err, places[i][1]);
    command_free(&run);
  }
  setenv("MLXCEL_REMOTE_CACHE", "http://example.com/x", 1);
  setenv("MLXCEL_REMOTE_CACHE_TOKEN", "secret", 1);
  RUN(&run, RUN_TINY);
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "a token cannot be sent to 'http://example.com/x'");
  command_free(&run);
  unsetenv("MLXCEL_REMOTE_CACHE_TOKEN");
  unsetenv("MLXCEL_REMOTE_CACHE");
  RUN(&run, "cache", "push");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "there is no remote cache");
  command_free(&run);
  RUN(&run, "compile", TINY, "--emit", "vmfb", "-o", in_folder("x.vmfb"), "--publish");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "--publish needs a remote cache");
  command_free(&run);
  remove_folder();
}

TEST_MAIN(CASE(a_start_with_a_remote_cache_needs_no_compiler), CASE(run_and_serve_publish_what_they_compile),
          CASE(a_web_server_and_a_registry_are_caches_too), CASE(eight_clients_at_once_get_the_module),
          CASE(a_server_that_dies_in_the_middle_costs_only_time), CASE(a_forged_entry_is_not_used),
          CASE(an_entry_of_another_compiler_is_not_used), CASE(wrong_places_are_refused))
