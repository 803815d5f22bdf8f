// Push and pull through registries and OCI layouts. The registries are tests/support/registry_server.py,
// which can inject faults, and Debian's docker-registry if it is installed.
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/cpu.h"
#include "base/digest.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "transfer/credentials.h"
#include "transfer/pull_oci.h"
#include "transfer/push.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define DIGEST "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
#define REAL_REGISTRY "docker-registry"

static server_t server;

static void clean_up(void) {
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

static void compile(const char *target, const char *out) {
  command_t run;
  RUN(&run, "compile", TINY, "-o", out, "-c", "128", "--target", target);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
}

static void begin(void) {
  if (!server.port) {
    plain_environment();
    strcpy(folder, "/tmp/mlxcel-oci-XXXXXX");
    CHECK(mkdtemp(folder));
    setenv("DOCKER_CONFIG", folder, 1);
    setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
    server_start(
        &server,
        (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/registry_server.py", NULL},
        "http");
    atexit(clean_up);
    compile("cpu", in_folder("host.mlxb"));
    compile("cpu:x86-64-v3", in_folder("v3.mlxb"));
  }
  unlink(in_folder("config.json"));
  server_control(&server, "{}");
}

// Returns "oci://127.0.0.1:PORT/NAME"; valid until the next call.
static const char *ref_to(const char *name) {
  static char text[160];
  snprintf(text, sizeof text, "oci://127.0.0.1:%d/%s", server.port, name);
  return text;
}

static void check_same_file(const char *a_folder, const char *b_folder, const char *name) {
  char path[320], a[MLX_DIGEST_HEX], b[MLX_DIGEST_HEX];
  snprintf(path, sizeof path, "%s/%s", a_folder, name);
  CHECK_OK(mlx_digest_file(path, NULL, a));
  snprintf(path, sizeof path, "%s/%s", b_folder, name);
  CHECK_OK(mlx_digest_file(path, NULL, b));
  CHECK_TEXT(a, b);
}

static void check_same_bundle(const char *a, const char *b) {
  static const char *const names[] = {"manifest.json", "model.vmfb", "weights.irpa", "tokenizer.json"};
  for (int i = 0; i < 4; ++i) check_same_file(a, b, names[i]);
}

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

// ----------------------------------------------------------------------------------------------------------
// Parsing

TEST(references_are_parsed) {
  mlx_oci_ref_t ref;
  CHECK_OK(mlx_oci_ref_parse("oci://localhost:5000/acme/tiny:v1.0", &ref));
  CHECK_TEXT(ref.host, "localhost:5000");
  CHECK_TEXT(ref.name, "acme/tiny");
  CHECK_TEXT(ref.reference, "v1.0");
  CHECK_OK(mlx_oci_ref_parse("oci://h/tiny", &ref));
  CHECK_TEXT(ref.reference, "latest");
  CHECK_OK(mlx_oci_ref_parse("oci://h/tiny@" DIGEST, &ref));
  CHECK_TEXT(ref.reference, DIGEST);
  CHECK_OK(mlx_oci_ref_parse("oci-layout:/a/b:c", &ref));
  CHECK(ref.layout);
  CHECK_TEXT(ref.name, "/a/b");
  CHECK_TEXT(ref.reference, "c");
  CHECK_OK(mlx_oci_ref_parse("oci-layout:/a@b/c@" DIGEST, &ref));
  CHECK_TEXT(ref.name, "/a@b/c");
  CHECK_TEXT(ref.reference, DIGEST);
  static const char *const bad[] = {"oci://",       "oci://h",       "oci://h/",
                                    "oci://h/Tiny", "oci://h/a//b",  "oci://h/../b",
                                    "oci://h/a:",   "oci://h/a:b/c", "oci://h/a@sha256:12",
                                    "oci://h@x/a",  "oci-layout:",   "h/a"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
    CHECK_ERROR(mlx_oci_ref_parse(bad[i], &ref), MLX_USAGE, "is not a valid OCI reference");
}

TEST(invalid_documents_are_refused) {
  static const struct {
    const char *json, *part;
  } cases[] = {{"{}", "'schemaVersion'"},
               {"{\"schemaVersion\": 1}", "'schemaVersion'"},
               {"{\"schemaVersion\": 2}", "'config'"},
               {"{\"schemaVersion\": 2, \"manifests\": 3}", "'manifests'"},
               {"{\"schemaVersion\": 2, \"manifests\": [3]}", "not a descriptor"},
               {"{\"schemaVersion\": 2, \"manifests\": [{\"digest\": \"md5:1\", \"size\": 1}]}",
                "not a SHA-256 digest"},
               {"{\"schemaVersion\": 2, \"manifests\": [{\"digest\": \"" DIGEST "\"}]}", "'size'"},
               {"{\"schemaVersion\": 2, \"config\": {\"digest\": \"" DIGEST "\", \"size\": 1}}", "'layers'"}};
  mlx_oci_document_t document;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    CHECK_ERROR(mlx_oci_document_read("m", cases[i].json, strlen(cases[i].json), &document),
                MLX_INVALID_INPUT, cases[i].part);
  }
}

TEST(challenges_and_credentials_are_parsed) {
  mlx_oci_challenge_t challenge;
  mlx_oci_challenge_read(
      "Bearer realm=\"https://a/token?x=1\",service=\"s, realm=x\", scope=\"repository:a/b:pull,push\"",
      &challenge);
  CHECK(challenge.bearer);
  CHECK_TEXT(challenge.realm, "https://a/token?x=1");
  CHECK_TEXT(challenge.service, "s, realm=x");
  CHECK_TEXT(challenge.scope, "repository:a/b:pull,push");
  mlx_oci_challenge_read("Basic realm=\"x\"", &challenge);
  CHECK(challenge.basic && !challenge.bearer);
  mlx_oci_challenge_read("Bearer error=\"x\"", &challenge);
  CHECK(!challenge.bearer);
  char *auth, *identity, *helper;
  const char *json =
      "{\"auths\": {\"a\": {\"auth\": \"dTpw\"}, \"b\": {\"username\": \"u\", \"password\": \"pw\"}, \"c\": "
      "{}}, \"credHelpers\": {\"c\": \"pass\"}}";
  CHECK_OK(mlx_docker_config_read("c", json, strlen(json), "a", &auth, &identity, &helper));
  CHECK_TEXT(auth, "dTpw");
  CHECK(!helper);
  mlx_free(auth);
  CHECK_OK(mlx_docker_config_read("c", json, strlen(json), "b", &auth, &identity, &helper));
  CHECK_TEXT(auth, "dTpwdw==");
  mlx_free(auth);
  CHECK_OK(mlx_docker_config_read("c", json, strlen(json), "c", &auth, &identity, &helper));
  CHECK(!auth);
  CHECK_TEXT(helper, "pass");
  mlx_free(helper);
  const char *bad = "{\"credsStore\": \"../evil\"}";
  CHECK_ERROR(mlx_docker_config_read("c", bad, strlen(bad), "c", &auth, &identity, &helper),
              MLX_INVALID_INPUT, "is not a valid credential helper name");
}

// ----------------------------------------------------------------------------------------------------------
// A registry with the referrers API

TEST(two_targets_share_one_copy_of_the_weights) {
  begin();
  command_t run;
  char ref[160];
  snprintf(ref, sizeof ref, "%s", ref_to("acme/tiny:v1"));
  RUN(&run, "push", in_folder("host.mlxb"), ref);
  CHECK(mlx_oci_is_digest(strtok(run.out, "\n")));
  command_done(&run);
  CHECK_INT(count_of(server_log(&server), "\"POST\""),
            6);  // weights, tokenizer, two configs, bundle manifest, module
  server_control(&server, "{}");
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  command_done(&run);
  CHECK_INT(count_of(server_log(&server), "\"POST\""),
            2);  // only bundle manifest and module of the other target
  server_control(&server, "{}");
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  command_done(&run);
  CHECK_INT(count_of(server_log(&server), "\"POST\""), 0);
  RUN(&run, "pull", ref, "-o", in_folder("best"));
  CHECK_CONTAINS(run.err,
                 "pulling the code for cpu:host (available: ");  // its CPU identity matches this machine
  command_done(&run);
  check_same_bundle(in_folder("best"), in_folder("host.mlxb"));
  RUN(&run, "pull", ref, "-o", in_folder("p0"), "--target", "cuda:sm_90");
  check_refused(&run, MLX_NOT_FOUND, "cpu:x86-64-v3");
  RUN(&run, "pull", ref, "-o", in_folder("every"), "--target", "all");
  CHECK_CONTAINS(run.err, "skipped code of other bundles: cpu:host\n");
  command_done(&run);
  check_same_bundle(in_folder("every"), in_folder("v3.mlxb"));
  RUN(&run, "pull", ref, "-o", in_folder("p1"), "--target", "cpu:x86-64-v3");
  command_done(&run);
  check_same_bundle(in_folder("p1"), in_folder("v3.mlxb"));
  RUN(&run, "pull", ref, "-o", in_folder("p2"), "--target", "cpu");  // the same alias as in compile
  command_done(&run);
  check_same_bundle(in_folder("p2"), in_folder("host.mlxb"));
  RUN(&run, "run", "--temp", "0", "-m", in_folder("p2"), "-p", "the quick brown", "-n", "4", "--device",
      "cpu");
  command_done(&run);
}

// Reads the digest of the cpu:host module from the notes that push printed.
static void read_note(const char *text, char out_digest[MLX_OCI_DIGEST]) {
  const char *note = strstr(text, "module for cpu:host: sha256:");
  CHECK(note);
  snprintf(out_digest, MLX_OCI_DIGEST, "%s", strstr(note, "sha256:"));
  CHECK(mlx_oci_is_digest(out_digest));
}

static void check_pulled(const char *ref, const char *original) {
  command_t run;
  RUN(&run, "pull", ref, "-o", in_folder("pinned"));
  CHECK(!strstr(run.err, "pulling the code"));  // no note if there is only one target
  command_done(&run);
  check_same_bundle(in_folder("pinned"), original);
  CHECK_OK(mlx_remove_tree(in_folder("pinned")));
}

// Both bundles have the same weights, and so the same model manifest. |base| has no tags yet.
static void check_tags_pin(const char *base) {
  command_t run;
  char ref[3][320], first[MLX_OCI_DIGEST];
  snprintf(ref[0], sizeof ref[0], "%s:v1", base);
  snprintf(ref[1], sizeof ref[1], "%s:v2", base);
  RUN(&run, "push", in_folder("host.mlxb"), ref[0]);
  read_note(run.err, first);
  command_done(&run);
  RUN(&run, "push", in_folder("short.mlxb"), ref[1]);
  command_done(&run);
  check_pulled(ref[0], in_folder("host.mlxb"));
  check_pulled(ref[1], in_folder("short.mlxb"));
  RUN(&run, "push", in_folder("short.mlxb"), ref[0]);  // moves the tag
  command_done(&run);
  check_pulled(ref[0], in_folder("short.mlxb"));
  RUN(&run, "push", in_folder("host.mlxb"), ref[0]);  // moves it back
  command_done(&run);
  check_pulled(ref[0], in_folder("host.mlxb"));
  snprintf(ref[2], sizeof ref[2], "%s@%s", base, first);
  check_pulled(ref[2], in_folder("host.mlxb"));
  RUN(&run, "pull", ref[2], "-o", in_folder("pinned"), "--target", "cuda:sm_90");
  check_refused(&run, MLX_NOT_FOUND, "was compiled for cpu:host, not for cuda:sm_90");
}

TEST(tag_names_the_code_that_was_pushed_under_it) {
  begin();
  command_t run;
  char base[160];
  RUN(&run, "compile", TINY, "-o", in_folder("short.mlxb"), "-c", "64", "--target", "cpu");
  command_done(&run);
  check_tags_pin(ref_to("acme/pinned"));
  server_control(&server, "{\"no_referrers\": true}");
  check_tags_pin(ref_to("acme/pinned-old"));
  snprintf(base, sizeof base, "oci-layout:%s/pinned-layout", folder);
  check_tags_pin(base);
}

// Pushes a signed single-file bundle. A pull gives a folder with the code for this machine, and the signature
// is still valid.
TEST(pull_chooses_the_target_for_this_machine) {
  begin();
  command_t run;
  char ref[192], one[128], pulled[128];
  snprintf(ref, sizeof ref, "%s", ref_to("acme/many:v1"));
  snprintf(one, sizeof one, "%s", in_folder("many.mlxb"));
  snprintf(pulled, sizeof pulled, "%s", in_folder("for-here.mlxb"));
  RUN(&run, "compile", TINY, "-o", one, "-c", "128", "--target",
      "cpu:x86-64-v3,cpu:x86-64,cpu:aarch64,cuda:sm_80", "--single-file");
  command_done(&run);
  RUN(&run, "sign", "-s", MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/plain.key", one);
  command_done(&run);
  RUN(&run, "push", one, ref);
  command_done(&run);
  RUN(&run, "pull", ref, "-o", pulled);
  const bool arm = mlx_cpu_has_level("aarch64");
  CHECK_CONTAINS(run.err,
                 arm ? "pulling the code for cpu:aarch64 (" : "pulling the code for cpu:x86-64-v3 (");
  command_done(&run);
  CHECK(mlx_is_file(in_folder(arm ? "for-here.mlxb/model.cpu-aarch64.vmfb"
                                  : "for-here.mlxb/model.cpu-x86-64-v3.vmfb")) &&
        !mlx_is_file(in_folder("for-here.mlxb/model.cuda-sm_80.vmfb")));
  RUN(&run, "verify", "-p", MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/plain.pub", pulled);
  command_done(&run);
  RUN(&run, "run", "-m", pulled, "-p", "x", "-n", "1", "--device", "cpu");
  command_done(&run);
  RUN(&run, "pull", ref, "-o", in_folder("for-there.mlxb"), "--target", "cuda:sm_80");
  command_done(&run);
  CHECK(mlx_is_file(in_folder("for-there.mlxb/model.cuda-sm_80.vmfb")) &&
        !mlx_is_file(in_folder("for-there.mlxb/model.cpu-x86-64.vmfb")));
  RUN(&run, "run", "-m", in_folder("for-there.mlxb"), "-p", "x", "-n", "1", "--device", "cpu");
  check_refused(&run, MLX_UNAVAILABLE, "this copy has no code that runs here");
  RUN(&run, "pull", ref, "-o", in_folder("whole.mlxb"), "--target", "all");
  CHECK(!strstr(run.err, "skipped"));
  command_done(&run);
  RUN(&run, "push", in_folder("whole.mlxb"), ref_to("acme/again:v1"));
  command_done(&run);
  RUN(&run, "pull", ref_to("acme/again:v1"), "-o", in_folder("whole2.mlxb"), "--target", "all");
  command_done(&run);
  char script[512];
  snprintf(script, sizeof script, "diff -r %s %s", in_folder("whole.mlxb"), in_folder("whole2.mlxb"));
  command_start(&run, (const char *const[]){"/bin/sh", "-c", script, NULL});
  command_wait(&run);
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
}

// Returns |json| with the first |from| replaced by |to|. Release with mlx_free.
static char *replaced(const mlx_text_t *json, const char *from, const char *to) {
  char *out;
  const char *at = strstr(json->data, from);
  CHECK(at);
  CHECK_OK(mlx_format(&out, "%.*s%s%s", (int)(at - json->data), json->data, to, at + strlen(from)));
  return out;
}

static void put_changed(mlx_store_t *store, const char *tag, const char *json, const char *subject,
                        mlx_oci_descriptor_t *descriptor) {
  *descriptor = (mlx_oci_descriptor_t){.media_type = MLX_OCI_MANIFEST, .size = strlen(json)};
  mlx_oci_digest(json, strlen(json), descriptor->digest);
  CHECK_OK(mlx_store_put_document(store, tag, descriptor, json, strlen(json), subject));
}

// Other tools may push combinations that mlxcel push never makes.
TEST(pull_keeps_only_files_that_the_manifest_lists) {
  begin();
  static const char stray[] =
      "\"layers\": [{\"mediaType\": \"x\", \"digest\": "
      "\"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\", \"size\": 2, "
      "\"annotations\": {\"org.cncf.model.filepath\": \"LICENSE-\\u001b[31m\"}},";
  command_t run;
  char ref[256], digest[MLX_OCI_DIGEST], old[128], *changed;
  mlx_text_t model = {0}, module = {0};
  mlx_oci_ref_t parsed;
  mlx_store_t *store;
  mlx_oci_descriptor_t descriptor, other;
  mlx_registry_options_t options = {0};
  quick_http(&options.http);
  RUN(&run, "push", in_folder("host.mlxb"), ref_to("acme/stray:v1"));
  read_note(run.err, digest);
  command_done(&run);
  CHECK_OK(mlx_oci_ref_parse(ref_to("acme/stray:v1"), &parsed));
  CHECK_OK(mlx_store_open(&parsed, &options, &store));
  CHECK_OK(mlx_store_get_document(store, digest, &module));
  CHECK_OK(mlx_store_get_document(store, "v1", &model));
  mlx_oci_digest(model.data, model.length, digest);
  changed = replaced(&module, "cpu:host", "cpu:x86-64");
  put_changed(store, NULL, changed, digest, &descriptor);
  mlx_free(changed);
  snprintf(ref, sizeof ref, "%s@%s", ref_to("acme/stray"), descriptor.digest);
  RUN(&run, "pull", ref, "-o", in_folder("lacking"));
  check_refused(&run, MLX_INVALID_INPUT,
                "annotated with the target 'cpu:x86-64', but its bundle manifest has cpu:host");
  changed = replaced(&model, "\"layers\": [", stray);
  put_changed(store, "v2", changed, NULL, &other);
  mlx_free(changed);
  snprintf(old, sizeof old, "%s\", \"size\": %zu", digest, model.length);
  snprintf(ref, sizeof ref, "%s\", \"size\": %llu", other.digest, (unsigned long long)other.size);
  changed = replaced(&module, old, ref);
  put_changed(store, NULL, changed, other.digest, &descriptor);
  mlx_free(changed);
  RUN(&run, "pull", ref_to("acme/stray:v2"), "-o", in_folder("strayed"));
  CHECK_CONTAINS(run.err, "does not list: LICENSE-?[31m\n");  // the escape character is not printed
  command_done(&run);
  CHECK(!mlx_is_file(in_folder("strayed/LICENSE-\033[31m")));
  check_same_bundle(in_folder("strayed"), in_folder("host.mlxb"));
  char *manifest, *files;
  CHECK_OK(mlx_read_file(in_folder("host.mlxb/manifest.json"), 1 << 20, &manifest, NULL));
  mlx_blob_t blob = {.bytes = manifest};
  mlx_oci_digest(manifest, strlen(manifest), digest);
  snprintf(old, sizeof old, "%s\", \"size\": %zu", digest, strlen(manifest));
  CHECK((files = strstr(manifest, ",\n  \"files\"")));
  strcpy(files, "\n}\n");
  blob.descriptor.size = strlen(manifest);
  mlx_oci_digest(manifest, strlen(manifest), blob.descriptor.digest);
  mlx_http_t *http;
  mlx_progress_t progress = 0;
  CHECK_OK(mlx_http_open(&options.http, &http));
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  mlx_http_close(http);
  mlx_free(manifest);
  snprintf(ref, sizeof ref, "%s\", \"size\": %llu", blob.descriptor.digest,
           (unsigned long long)blob.descriptor.size);
  changed = replaced(&module, old, ref);
  mlx_oci_digest(model.data, model.length, digest);
  put_changed(store, NULL, changed, digest, &descriptor);
  mlx_free(changed);
  snprintf(ref, sizeof ref, "%s@%s", ref_to("acme/stray"), descriptor.digest);
  RUN(&run, "pull", ref, "-o", in_folder("unlisted"));
  check_refused(&run, MLX_INVALID_INPUT, "lists no files");
  mlx_text_clear(&model);
  mlx_text_clear(&module);
  mlx_store_close(store);
}

// The first run stores the bundle in the cache. A pull to an output makes the next run query the registry.
TEST(run_uses_a_bundle_from_the_registry) {
  begin();
  command_t run;
  char *found;
  char ref[192];
  snprintf(ref, sizeof ref, "%s", ref_to("acme/direct:v1"));
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);  // empty: no leftovers of tests on the same port
  RUN(&run, "push", in_folder("host.mlxb"), ref);
  command_done(&run);
  RUN(&run, "run", "-m", ref, "-p", "the quick brown", "-n", "4", "--device", "cpu", "-v",
      "--allow-unsigned");
  CHECK_CONTAINS(run.err, "target: cpu:host\n");
  command_done(&run);
  CHECK_OK(mlx_pull_oci_find(ref, &found));
  check_same_bundle(found, in_folder("host.mlxb"));
  mlx_free(found);
  server_control(&server, "{}");
  RUN(&run, "show", ref);
  command_done(&run);
  CHECK(!strstr(server_log(&server), "/v2/"));
  RUN(&run, "pull", ref, "-o", in_folder("direct.mlxb"));
  command_done(&run);
  CHECK_OK(mlx_pull_oci_find(ref, &found));
  CHECK(!found);
  server_control(&server, "{}");
  RUN(&run, "show", ref);
  command_done(&run);
  CHECK_CONTAINS(server_log(&server), "/manifests/v1");
  CHECK(!strstr(server_log(&server), "/blobs/"));  // still in the cache
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
}

TEST(damaged_bundles_and_blobs_are_refused) {
  begin();
  char digest[MLX_OCI_DIGEST], *path;
  mlx_push_options_t push;
  mlx_pull_oci_options_t options;
  mlx_push_options_initialize(&push);
  mlx_pull_oci_options_initialize(&options);
  quick_http(&push.store.http);
  quick_http(&options.store.http);
  char damage[512];
  command_t copy;
  snprintf(damage, sizeof damage, "cp -r %s %s && printf ' ' >> %s/weights.irpa", in_folder("host.mlxb"),
           in_folder("bad.mlxb"), in_folder("bad.mlxb"));
  CHECK_OK(mlx_push_bundle(in_folder("v3.mlxb"), ref_to("acme/broken:v1"), &push, digest));
  command_start(&copy, (const char *const[]){"/bin/sh", "-c", damage, NULL});
  command_wait(&copy);
  command_free(&copy);
  CHECK_ERROR(mlx_push_bundle(in_folder("bad.mlxb"), ref_to("acme/broken:v2"), &push, digest),
              MLX_INVALID_INPUT, "does not match the bundle's manifest");
  server_control(&server, "{\"corrupt\": true}");
  options.output = in_folder("p3");
  CHECK_ERROR(mlx_pull_oci(ref_to("acme/broken:v1"), &options, &path), MLX_INVALID_INPUT, "its SHA-256 is");
  CHECK(!mlx_is_dir(in_folder("p3")));
  server_control(&server, "{}");
  CHECK_OK(mlx_pull_oci(ref_to("acme/broken:v1"), &options, &path));
  mlx_free(path);
  check_same_bundle(in_folder("p3"), in_folder("v3.mlxb"));
  CHECK_ERROR(mlx_pull_oci(ref_to("acme/broken:v1"), &options, &path), MLX_USAGE, "already exists");
  options.output = in_folder("p4");
  CHECK_ERROR(mlx_pull_oci(ref_to("acme/broken:v9"), &options, &path), MLX_NOT_FOUND, "(404)");
}

// Uses a unique blob, so that the registry does not have it yet.
TEST(interrupted_upload_resumes_at_its_offset) {
  begin();
  static char bytes[100000];
  mlx_registry_options_t options = {.chunk_bytes = 20000};
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  mlx_http_t *http;
  mlx_progress_t progress = 0;
  quick_http(&options.http);
  for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = (char)(i * 7 + i / 253);
  mlx_blob_t blob = {.descriptor = {.size = sizeof bytes}, .bytes = bytes};
  mlx_oci_digest(bytes, sizeof bytes, blob.descriptor.digest);
  CHECK_OK(mlx_oci_ref_parse(ref_to("acme/pieces:v1"), &ref));
  CHECK_OK(mlx_store_open(&ref, &options, &store));
  CHECK_OK(mlx_http_open(&options.http, &http));
  server_control(&server, "{\"fail_patch\": 3}");
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  CHECK_INT(progress, sizeof bytes);
  const char *log = server_log(&server);
  CHECK_INT(count_of(log, "\"POST\""), 1);   // one upload, never restarted
  CHECK_INT(count_of(log, "\"PATCH\""), 6);  // two, the broken one, and the rest from 50000 on
  CHECK_INT(count_of(log, "\"GET\""), 1);    // asks for the offset
  char path[256];
  snprintf(path, sizeof path, "%s", in_folder("blob"));
  CHECK_OK(mlx_store_get_blob(store, http, &blob.descriptor, path, &progress));
  char *got;
  CHECK_OK(mlx_read_file(path, sizeof bytes, &got, NULL));
  CHECK(!memcmp(got, bytes, sizeof bytes));
  mlx_free(got);
  mlx_http_close(http);
  mlx_store_close(store);
}

// Every piece breaks, more often than the number of tries, but each try makes progress.
TEST(upload_with_progress_is_not_given_up) {
  begin();
  static char bytes[40000];
  mlx_registry_options_t options = {.chunk_bytes = 5000};
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  mlx_http_t *http;
  mlx_progress_t progress = 0;
  quick_http(&options.http);
  memset(bytes, 'y', sizeof bytes);
  mlx_blob_t blob = {.descriptor = {.size = sizeof bytes}, .bytes = bytes};
  mlx_oci_digest(bytes, sizeof bytes, blob.descriptor.digest);
  CHECK_OK(mlx_oci_ref_parse(ref_to("acme/breaking:v1"), &ref));
  CHECK_OK(mlx_store_open(&ref, &options, &store));
  CHECK_OK(mlx_http_open(&options.http, &http));
  server_control(&server, "{\"break_pieces\": true}");
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  CHECK_INT(progress, sizeof bytes);
  CHECK(count_of(server_log(&server), "\"PATCH\"") > options.http.tries);
  mlx_http_close(http);
  mlx_store_close(store);
}

TEST(interrupted_short_blob_is_sent_again) {
  begin();
  char bytes[5000];
  mlx_registry_options_t options = {0};
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  mlx_http_t *http;
  mlx_progress_t progress = 0;
  quick_http(&options.http);
  memset(bytes, 'x', sizeof bytes);
  mlx_blob_t blob = {.descriptor = {.size = sizeof bytes}, .bytes = bytes};
  mlx_oci_digest(bytes, sizeof bytes, blob.descriptor.digest);
  CHECK_OK(mlx_oci_ref_parse(ref_to("acme/pieces:v1"), &ref));
  CHECK_OK(mlx_store_open(&ref, &options, &store));
  CHECK_OK(mlx_http_open(&options.http, &http));
  server_control(&server, "{\"fail_put\": 1}");
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  CHECK_INT(progress, sizeof bytes);
  CHECK_INT(count_of(server_log(&server), "\"POST\""), 2);
  mlx_http_close(http);
  mlx_store_close(store);
}

TEST(tokens_are_requested_with_docker_credentials) {
  begin();
  command_t run;
  char ref[160], json[256], script[512];
  snprintf(ref, sizeof ref, "%s", ref_to("acme/secret:v1"));
  server_control(&server, "{\"users\": {\"me\": \"pw\"}}");
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  check_refused(&run, MLX_UNAVAILABLE, "docker login 127.0.0.1:");
  snprintf(json, sizeof json, "{\"auths\": {\"127.0.0.1:%d\": {\"auth\": \"bWU6cHc=\"}}}", server.port);
  CHECK_OK(mlx_write_file(in_folder("config.json"), json, strlen(json)));
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  command_done(&run);
  snprintf(json, sizeof json, "{\"credHelpers\": {\"127.0.0.1:%d\": \"mlxceltest\"}}",
           server.port);  // from a credential helper
  CHECK_OK(mlx_write_file(in_folder("config.json"), json, strlen(json)));
  RUN(&run, "pull", ref, "-o", in_folder("p5"));
  check_refused(&run, MLX_NOT_FOUND, "docker-credential-mlxceltest");
  snprintf(script, sizeof script,
           "#!/bin/sh\nread host\n[ \"$host\" = 127.0.0.1:%d ] && [ $1 = get ] && echo '{\"Username\": "
           "\"me\", \"Secret\": \"pw\"}'\n",
           server.port);
  CHECK_OK(mlx_write_file(in_folder("docker-credential-mlxceltest"), script, strlen(script)));
  CHECK(!chmod(in_folder("docker-credential-mlxceltest"), 0755));
  snprintf(script, sizeof script, "%s:%s", folder, getenv("PATH"));
  setenv("PATH", script, 1);
  server_control(&server, "{\"users\": {\"me\": \"pw\"}, \"expire\": 2}");
  RUN(&run, "pull", ref, "-o", in_folder("p5"));
  command_done(&run);
  check_same_bundle(in_folder("p5"), in_folder("v3.mlxb"));
  CHECK(count_of(server_log(&server), "/token") >= 2);
}

TEST(push_and_pull_work_with_an_oci_layout) {
  begin();
  command_t run;
  char ref[160];
  snprintf(ref, sizeof ref, "oci-layout:%s/layout:v1", folder);
  RUN(&run, "push", in_folder("host.mlxb"), ref);
  command_done(&run);
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  command_done(&run);
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  command_done(&run);
  char *index;
  CHECK_OK(mlx_read_file(in_folder("layout/index.json"), 1 << 20, &index, NULL));
  CHECK_INT(count_of(index, "\"digest\""), 3);
  mlx_free(index);
  RUN(&run, "pull", ref, "-o", in_folder("p6"), "--target", "cpu:x86-64-v3");
  command_done(&run);
  check_same_bundle(in_folder("p6"), in_folder("v3.mlxb"));
  snprintf(ref, sizeof ref, "oci-layout:%s/layout:v2", folder);
  RUN(&run, "pull", ref, "-o", in_folder("p7"));
  check_refused(&run, MLX_NOT_FOUND, "has no tag 'v2'");
  char damage[256];
  command_t shell;
  snprintf(damage, sizeof damage, "for f in %s/layout/blobs/sha256/*; do printf x >> $f; done", folder);
  command_start(&shell, (const char *const[]){"/bin/sh", "-c", damage, NULL});
  command_wait(&shell);
  command_free(&shell);
  snprintf(ref, sizeof ref, "oci-layout:%s/layout:v1", folder);
  RUN(&run, "pull", ref, "-o", in_folder("p7"), "--target", "cpu:x86-64-v3");
  CHECK(run.exit_code == MLX_INVALID_INPUT);
  command_free(&run);
  CHECK(!mlx_is_dir(in_folder("p7")));
}

// ----------------------------------------------------------------------------------------------------------
// docker-registry has no referrers API, so the list of referrers is stored under a tag

static int free_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(!bind(fd, (struct sockaddr *)&address, length) &&
        !getsockname(fd, (struct sockaddr *)&address, &length));
  close(fd);
  return ntohs(address.sin_port);
}

static void wait_for_registry(int port) {
  mlx_http_options_t options;
  mlx_http_t *http;
  mlx_http_response_t response;
  char url[64];
  quick_http(&options);
  options.tries = 12;
  snprintf(url, sizeof url, "http://127.0.0.1:%d/v2/", port);
  const mlx_http_request_t request = {.url = url, .max_bytes = 1 << 16};
  CHECK_OK(mlx_http_open(&options, &http));
  CHECK_OK(mlx_http_send(http, &request, &response));
  mlx_http_response_clear(&response);
  mlx_http_close(http);
}

TEST(push_and_pull_work_with_docker_registry) {
  begin();
  if (system("command -v " REAL_REGISTRY " >/dev/null")) SKIP(REAL_REGISTRY " is not installed");
  const int port = free_port();
  char config[1024], ref[160];
  // me:pw, in the format of htpasswd -B
  const char *users = "me:$2b$05$2X1nBinIokJJjlKbYBAa1Ocy0G8gT6v7CTtbH6rCcXeVwrjpPmzQy\n";
  CHECK_OK(mlx_write_file(in_folder("users"), users, strlen(users)));
  snprintf(config, sizeof config,
           "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: "
           "{rootdirectory: %s/registry}}\n"
           "http: {addr: 127.0.0.1:%d}\nauth: {htpasswd: {realm: tests, path: %s/users}}\n",
           folder, port, folder);
  CHECK_OK(mlx_write_file(in_folder("registry.yml"), config, strlen(config)));
  command_t registry, run;
  command_start(&registry, (const char *const[]){REAL_REGISTRY, "serve", in_folder("registry.yml"), NULL});
  wait_for_registry(port);
  snprintf(ref, sizeof ref, "oci://127.0.0.1:%d/acme/tiny:v1", port);
  RUN(&run, "push", in_folder("host.mlxb"), ref);
  check_refused(&run, MLX_UNAVAILABLE, "docker login");
  snprintf(config, sizeof config,
           "{\"auths\": {\"127.0.0.1:%d\": {\"username\": \"me\", \"password\": \"pw\"}}}", port);
  CHECK_OK(mlx_write_file(in_folder("config.json"), config, strlen(config)));
  RUN(&run, "push", in_folder("host.mlxb"), ref);
  command_done(&run);
  RUN(&run, "push", in_folder("v3.mlxb"), ref);
  command_done(&run);
  RUN(&run, "pull", ref, "-o", in_folder("p8"), "--target", "cpu:x86-64-v3");
  command_done(&run);
  check_same_bundle(in_folder("p8"), in_folder("v3.mlxb"));
  RUN(&run, "pull", ref, "-o", in_folder("p9"), "--target", "cpu:host");
  command_done(&run);
  check_same_bundle(in_folder("p9"), in_folder("host.mlxb"));
  kill(registry.pid, SIGKILL);
  command_wait(&registry);
  command_free(&registry);
}

TEST_MAIN(CASE(references_are_parsed), CASE(invalid_documents_are_refused),
          CASE(challenges_and_credentials_are_parsed), CASE(two_targets_share_one_copy_of_the_weights),
          CASE(tag_names_the_code_that_was_pushed_under_it), CASE(pull_chooses_the_target_for_this_machine),
          CASE(pull_keeps_only_files_that_the_manifest_lists), CASE(run_uses_a_bundle_from_the_registry),
          CASE(damaged_bundles_and_blobs_are_refused), CASE(interrupted_upload_resumes_at_its_offset),
          CASE(upload_with_progress_is_not_given_up), CASE(interrupted_short_blob_is_sent_again),
          CASE(tokens_are_requested_with_docker_credentials), CASE(push_and_pull_work_with_an_oci_layout),
          CASE(push_and_pull_work_with_docker_registry))
