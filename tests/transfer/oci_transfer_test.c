// Blob transfers: resume, parallel downloads, progress reports, http and certificate rules, and docker
// credentials.
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "tests/support/store_model.h"
#include "transfer/credentials.h"
#include "transfer/pull_oci.h"

#define SHARD(n) MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/model-0000" #n "-of-00002.safetensors"
#define CONFIG MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/config.json"
#define INDEX MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/model.safetensors.index.json"
#define SHARD_NAME "model-00001-of-00002.safetensors"
#define TLS MLXCEL_SOURCE_DIR "/tests/fixtures/tls/"

static server_t server, secure;

static void clean_up(void) {
  server_stop(&server);
  server_stop(&secure);
  mlx_status_free(mlx_remove_tree(folder));
}

static void begin(void) {
  static const char script[] = MLXCEL_SOURCE_DIR "/tests/support/registry_server.py";
  if (!server.port) {
    plain_environment();
    strcpy(folder, "/tmp/mlxcel-oci-transfer-XXXXXX");
    CHECK(mkdtemp(folder));
    setenv("DOCKER_CONFIG", folder, 1);
    setenv("MLXCEL_CACHE", folder, 1);
    server_start(&server, (const char *const[]){"python3", script, "0.0.0.0", NULL}, "http");
    server_start(&secure,
                 (const char *const[]){"python3", script, "0.0.0.0", TLS "cert.pem", TLS "key.pem", NULL},
                 "https");
    atexit(clean_up);
  }
  unlink(in_folder("config.json"));
  server_control(&server, "{}");
}

static const char *ref_to(const char *name) {
  static char text[160];
  snprintf(text, sizeof text, "oci://127.0.0.1:%d/%s", server.port, name);
  return text;
}

// Puts a model with four files under the reference |text|.
static void put_model(const char *text, const mlx_registry_options_t *options) {
  static const test_layer_t layers[] = {{SHARD(1), MLX_OCI_WEIGHT, SHARD_NAME},
                                        {SHARD(2), MLX_OCI_WEIGHT, "model-00002-of-00002.safetensors"},
                                        {CONFIG, MLX_OCI_WEIGHT_CONFIG, "config.json"},
                                        {INDEX, MLX_OCI_WEIGHT_CONFIG, "model.safetensors.index.json"}};
  store_model(text, options, MLX_OCI_MODEL, in_folder("{}"), layers, 4);
}

static void put_plain(const char *text) {
  mlx_registry_options_t options = {.plain_http = true};
  quick_http(&options.http);
  put_model(text, &options);
}

static void check_model(const char *path) {
  char name[320], got[MLX_DIGEST_HEX], expected[MLX_DIGEST_HEX];
  snprintf(name, sizeof name, "%s/" SHARD_NAME, path);
  CHECK_OK(mlx_digest_file(name, NULL, got));
  CHECK_OK(mlx_digest_file(SHARD(1), NULL, expected));
  CHECK_TEXT(got, expected);
}

static void check_refused(command_t *run, const char *part) {
  if (!run->exit_code) CHECK_FAIL("it succeeded, expected '%s'", part);
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

// ----------------------------------------------------------------------------------------------------------

TEST(pull_killed_at_any_byte_resumes) {
  static const long stops[] = {1, 4096, 79119};
  begin();
  put_plain(ref_to("acme/killed:v1"));
  for (size_t i = 0; i < sizeof stops / sizeof *stops; ++i) {
    char control[64], wait[512], range[64], output[96];
    command_t killed, finished;
    snprintf(output, sizeof output, "%s/killed%zu", folder, i);
    snprintf(control, sizeof control, "{\"stall\": %ld}", stops[i]);
    server_control(&server, control);
    command_start(&killed,
                  (const char *const[]){MLXCEL_BINARY, "pull", ref_to("acme/killed:v1"), "-o", output, NULL});
    snprintf(wait, sizeof wait,
             "for i in $(seq 600); do for f in %s.*.part/files/" SHARD_NAME
             ".part; do [ -f $f ] && [ $(stat -c %%s $f) -ge %ld ] && exit 0; done; sleep 0.05; done; exit 1",
             output, stops[i]);
    CHECK_INT(system(wait), 0);
    kill(killed.pid, SIGKILL);
    command_wait(&killed);
    CHECK_INT(killed.exit_code, -SIGKILL);
    command_free(&killed);
    CHECK(!mlx_is_dir(output));
    server_control(&server, "{}");
    RUN(&finished, "pull", ref_to("acme/killed:v1"), "-o", output);
    command_done(&finished);
    snprintf(range, sizeof range, "\"Range\": \"bytes=%ld-\"", stops[i]);
    CHECK_CONTAINS(server_log(&server), range);
    check_model(output);
  }
}

TEST(existing_staged_files_are_checked) {
  begin();
  command_t run;
  char output[96];
  snprintf(output, sizeof output, "%s/laid", folder);
  put_plain(ref_to("acme/laid:v1"));
  server_control(&server, "{\"corrupt\": true}");
  RUN(&run, "pull", ref_to("acme/laid:v1"), "-o", output);
  check_refused(&run, "its SHA-256 is");
  server_control(&server, "{}");
  command_shell(folder, "cd laid.*.part/files; head -c $(stat -c %s " SHARD(1) ") /dev/zero > " SHARD_NAME);
  command_shell(folder, "name=$(echo laid.*.part); mv $name elsewhere; ln -s elsewhere $name");
  RUN(&run, "pull", ref_to("acme/laid:v1"), "-o", output);
  check_refused(&run, "is not a folder owned by you");
  command_shell(folder, "name=$(echo laid.*.part); rm $name; mv elsewhere $name");
  RUN(&run, "pull", ref_to("acme/laid:v1"), "-o", output);
  command_done(&run);
  check_model(output);
}

TEST(four_blobs_are_downloaded_in_parallel) {
  begin();
  char *path;
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  options.output = in_folder("side-by-side");
  put_plain(ref_to("acme/parallel:v1"));
  server_control(&server, "{\"slow\": 1}");
  CHECK_OK(mlx_pull_oci(ref_to("acme/parallel:v1"), &options, &path));
  mlx_free(path);
  CHECK_CONTAINS(server_log(&server), "\"most\": 4");
}

static void collect_progress(void *user, mlx_report_kind_t kind, const char *text) {
  if (kind == MLX_REPORT_PROGRESS) mlx_text_printf(user, "%s\n", text);
}

TEST(progress_is_reported) {
  begin();
  char *path;
  mlx_text_t lines = {0};
  const mlx_report_t report = {.emit = collect_progress, .user = &lines};
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  options.output = in_folder("reported");
  options.report = &report;
  put_plain(ref_to("acme/reported:v1"));
  server_control(&server, "{\"slow\": 0.5}");
  CHECK_OK(mlx_pull_oci(ref_to("acme/reported:v1"), &options, &path));
  mlx_free(path);
  CHECK_CONTAINS(lines.data, "pulling reported: 0 bytes of 160.6 kB");  // at the start
  CHECK_CONTAINS(lines.data, "/s");
  CHECK_CONTAINS(lines.data, "pulling reported: 160.6 kB\n");  // at the end
  mlx_text_clear(&lines);
}

// ----------------------------------------------------------------------------------------------------------
// 127.0.0.2 stands for another machine: it does not get the exceptions for localhost

TEST(plain_http_and_insecure_must_be_requested) {
  begin();
  command_t run;
  char http_ref[64], https_ref[64];
  snprintf(http_ref, sizeof http_ref, "oci://127.0.0.2:%d/acme/t:v1", server.port);
  snprintf(https_ref, sizeof https_ref, "oci://127.0.0.2:%d/acme/t:v1", secure.port);
  put_plain(http_ref);
  // --insecure accepts any certificate, but not plain http.
  for (int insecure = 0; insecure < 2; ++insecure) {
    char *path;
    mlx_pull_oci_options_t pull;
    mlx_pull_oci_options_initialize(&pull);
    quick_http(&pull.store.http);
    pull.store.http.insecure = insecure;
    pull.output = in_folder("t1");
    mlx_status_t status = mlx_pull_oci(http_ref, &pull, &path);
    CHECK(status && mlx_status_code(status) == MLX_UNAVAILABLE);
    CHECK_CONTAINS(mlx_status_message(status), "https://127.0.0.2");
    CHECK_CONTAINS(mlx_status_hint_text(status), "--plain-http");
    mlx_status_free(status);
  }
  RUN(&run, "pull", http_ref, "-o", in_folder("t1"), "--plain-http");
  command_done(&run);
  check_model(in_folder("t1"));
  mlx_registry_options_t options = {0};
  quick_http(&options.http);
  options.http.insecure = true;
  put_model(https_ref, &options);
  RUN(&run, "pull", https_ref, "-o", in_folder("t2"));
  check_refused(&run, "its certificate cannot be trusted");
  RUN(&run, "push", in_folder("t1"), https_ref, "--insecure");
  check_refused(&run, "is not a bundle");
  RUN(&run, "pull", https_ref, "-o", in_folder("t2"), "--insecure");
  command_done(&run);
  check_model(in_folder("t2"));
}

// ----------------------------------------------------------------------------------------------------------

static void write_config(const char *json) {
  CHECK_OK(mlx_write_file(in_folder("config.json"), json, strlen(json)));
}

static void check_credentials(const char *host, const char *expected) {
  char *authorization, *identity;
  CHECK_OK(mlx_registry_credentials(host, &authorization, &identity));
  if (expected)
    CHECK_TEXT(authorization, expected);
  else
    CHECK(!authorization);
  CHECK(!identity);
  mlx_free(authorization);
}

static void check_identity(const char *host, const char *expected) {
  char *authorization, *identity;
  CHECK_OK(mlx_registry_credentials(host, &authorization, &identity));
  CHECK(!authorization);
  CHECK_TEXT(identity, expected);
  mlx_free(identity);
}

TEST(docker_credentials_are_found) {
  begin();
  char *authorization, *identity, path[8192];
  check_credentials("h", NULL);  // no file
  write_config(
      "{\"auths\": {\"https://h:5000/v1/\": {\"auth\": \"dTpw\"}, \"h\": {\"username\": \"u\", \"password\": "
      "\"pw\"}, \"hh\": {\"auth\": \"eDp5\"}, \"i\": {\"auth\": \"MDo=\", \"identitytoken\": "
      "\"long-lived\"}}}");
  check_credentials("h", "Basic dTpwdw==");
  check_credentials("h:5000", "Basic dTpw");
  check_credentials("hh", "Basic eDp5");
  check_credentials("hhh", NULL);
  check_identity("i", "long-lived");
  const char *script =
      "#!/bin/sh\nread host\ncase $host in\nstored) echo '{\"Username\": \"u\", \"Secret\": \"p\"}' ;;\n"
      "token) echo '{\"Username\": \"<token>\", \"Secret\": \"p\"}' ;;\nodd) echo hello ;;\nlocked) echo "
      "'the keychain is locked'; exit 1 ;;\n*) echo 'credentials not found in native keychain'; exit 1 "
      ";;\nesac\n";
  CHECK_OK(mlx_write_file(in_folder("docker-credential-mlxstore"), script, strlen(script)));
  CHECK(!chmod(in_folder("docker-credential-mlxstore"), 0755));
  snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
  setenv("PATH", path, 1);
  write_config(
      "{\"auths\": {\"stored\": {}}, \"credsStore\": \"mlxstore\", \"credHelpers\": {\"other\": "
      "\"nosuch\"}}");
  check_credentials("stored", "Basic dTpw");
  check_credentials("unknown", NULL);  // not known to the helper
  check_identity("token", "p");
  CHECK_ERROR(mlx_registry_credentials("locked", &authorization, &identity), MLX_TOOL_FAILED,
              "docker-credential-mlxstore failed for locked: exit status 1: the keychain is locked");
  CHECK_ERROR(mlx_registry_credentials("odd", &authorization, &identity), MLX_INVALID_INPUT,
              "docker-credential-mlxstore");
  CHECK_ERROR(mlx_registry_credentials("other", &authorization, &identity), MLX_NOT_FOUND,
              "docker-credential-nosuch");
  write_config(
      "{\"auths\": {\"stored\": {\"auth\": \"b2xkOm9sZA==\"}, \"unknown\": {\"auth\": \"eDp5\"}}, "
      "\"credHelpers\": {\"stored\": \"mlxstore\", \"unknown\": \"mlxstore\"}}");
  check_credentials("stored", "Basic dTpw");   // from the helper, not the stale entry
  check_credentials("unknown", "Basic eDp5");  // not known to the helper
  write_config("{");
  CHECK_ERROR(mlx_registry_credentials("h", &authorization, &identity), MLX_INVALID_INPUT, "config.json");
}

TEST(identity_token_is_exchanged_for_a_token) {
  begin();
  command_t run;
  char json[160];
  put_plain(ref_to("acme/private:v1"));
  snprintf(json, sizeof json,
           "{\"auths\": {\"127.0.0.1:%d\": {\"auth\": \"MDo=\", \"identitytoken\": \"a/b+c=\"}}}",
           server.port);
  write_config(json);
  server_control(&server, "{\"users\": {\"me\": \"pw\"}, \"identities\": [\"another\"]}");
  RUN(&run, "pull", ref_to("acme/private:v1"), "-o", in_folder("private"));
  check_refused(&run, "are not sufficient");
  server_control(&server, "{\"users\": {\"me\": \"pw\"}, \"identities\": [\"a/b+c=\"]}");
  RUN(&run, "pull", ref_to("acme/private:v1"), "-o", in_folder("private"));
  command_done(&run);
  check_model(in_folder("private"));
}

TEST(unreachable_hosts_and_missing_bundles_are_explained) {
  begin();
  command_t run;
  char *path;
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  quick_http(&options.store.http);
  options.output = in_folder("unreached");
  mlx_status_t status = mlx_pull_oci("oci://127.0.0.1:1/acme/t:v1", &options, &path);
  CHECK_INT(mlx_status_code(status), MLX_UNAVAILABLE);
  CHECK_CONTAINS(mlx_status_hint_text(status), "check the registry's address, the network");
  mlx_status_free(status);
  status = mlx_pull_oci("oci://nosuch.invalid/acme/t:v1", &options, &path);
  CHECK_INT(mlx_status_code(status), MLX_UNAVAILABLE);
  CHECK_CONTAINS(mlx_status_hint_text(status), "check the registry's address, the network");
  mlx_status_free(status);
  RUN(&run, "push", in_folder("nosuch.mlxb"), ref_to("acme/t:v1"));
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  check_refused(&run, "nosuch.mlxb' does not exist");
}

TEST(upload_is_not_redirected_from_https_to_http) {
  begin();
  char control[96], text[64];
  mlx_registry_options_t options = {0};
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  mlx_http_t *http;
  mlx_progress_t progress = 0;
  mlx_blob_t blob = {.descriptor = {.size = 5}, .bytes = "hush!"};
  quick_http(&options.http);
  options.http.insecure = true;
  mlx_oci_digest(blob.bytes, 5, blob.descriptor.digest);
  snprintf(text, sizeof text, "oci://127.0.0.2:%d/acme/up:v1", secure.port);
  CHECK_OK(mlx_oci_ref_parse(text, &ref));
  CHECK_OK(mlx_store_open(&ref, &options, &store));
  CHECK_OK(mlx_http_open(&options.http, &http));
  snprintf(control, sizeof control, "{\"upload_to\": \"http://127.0.0.2:%d\"}", server.port);
  server_control(&secure, control);
  CHECK_ERROR(mlx_store_put_blob(store, http, &blob, &progress), MLX_INVALID_INPUT,
              "cannot follow the link to");
  CHECK(!strstr(server_log(&server), "/v2/"));
  server_control(&secure, "{}");
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  mlx_http_close(http);
  mlx_store_close(store);
}

// The server also listens on 127.0.0.2, which counts as another machine.
TEST(credentials_are_not_sent_over_http_to_another_machine) {
  begin();
  command_t run;
  char json[160], realm[192];
  put_plain(ref_to("acme/private:v1"));
  snprintf(json, sizeof json, "{\"auths\": {\"127.0.0.1:%d\": {\"auth\": \"bWU6cHc=\"}}}", server.port);
  write_config(json);
  static const char *const realms[] = {"http://localhost:80@127.0.0.2:%d/token",
                                       "127.0.0.2:%d/token?x=://localhost/",
                                       "http://127.0.0.2:%d/token?x=https://localhost/"};
  for (int i = 0; i < 3; ++i) {
    const int used = snprintf(realm, sizeof realm, "{\"users\": {\"me\": \"pw\"}, \"realm\": \"");
    snprintf(realm + used, sizeof realm - (size_t)used, realms[i], server.port);
    strcat(realm, "\"}");
    server_control(&server, realm);
    RUN(&run, "pull", ref_to("acme/private:v1"), "-o", in_folder("stolen"));
    check_refused(&run, i < 2 ? "will not send credentials to" : "(401)");
    CHECK_INT(count_of(server_log(&server), "\"authorized\": true"), 0);
  }
}

TEST_MAIN(CASE(pull_killed_at_any_byte_resumes), CASE(existing_staged_files_are_checked),
          CASE(four_blobs_are_downloaded_in_parallel), CASE(progress_is_reported),
          CASE(plain_http_and_insecure_must_be_requested), CASE(docker_credentials_are_found),
          CASE(identity_token_is_exchanged_for_a_token), CASE(upload_is_not_redirected_from_https_to_http),
          CASE(unreachable_hosts_and_missing_bundles_are_explained),
          CASE(credentials_are_not_sent_over_http_to_another_machine))
