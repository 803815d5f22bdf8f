// ModelPack models that other tools pushed: raw and tar layers become a usable model, unsafe or unsupported
// layers are refused.
#include "transfer/modelpack.h"

#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "tests/support/store_model.h"
#include "transfer/hub.h"
#include "transfer/pull_oci.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define TYPE(rest) "application/vnd.cncf.model." rest

static server_t server;

static void shell(const char *script) { command_shell(folder, script); }

static void clean_up(void) {
  char command[512];
  snprintf(command, sizeof command,
           "rm -rf '%s/models/oci/127.0.0.1%%3A%d%%2F'* '%s/models/oci/layout%%2Fpacked'", MLXCEL_TEST_CACHE,
           server.port, MLXCEL_TEST_CACHE);
  if (system(command)) fprintf(stderr, "cannot remove the test models from the cache\n");
  server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

static void begin(void) {
  if (!server.port) {
    plain_environment();
    strcpy(folder, "/tmp/mlxcel-modelpack-XXXXXX");
    CHECK(mkdtemp(folder));
    setenv("DOCKER_CONFIG", folder, 1);
    setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
    server_start(
        &server,
        (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/registry_server.py", NULL},
        "http");
    atexit(clean_up);
  }
  server_control(&server, "{}");
}

static const char *ref_to(const char *name) {
  static char text[4][160];
  static int next;
  char *out = text[next++ % 4];
  snprintf(out, sizeof text[0], "oci://127.0.0.1:%d/%s", server.port, name);
  return out;
}

static void put_model(const char *text, const char *artifact_type, const test_layer_t *layers, size_t count) {
  mlx_registry_options_t options = {0};
  quick_http(&options.http);
  store_model(text, &options, artifact_type, in_folder("config"), layers, count);
}
#define PUT(text, ...)                                                \
  put_model(text, MLX_OCI_MODEL, (const test_layer_t[]){__VA_ARGS__}, \
            sizeof((const test_layer_t[]){__VA_ARGS__}) / sizeof(test_layer_t))

static mlx_status_t pull(const char *text, const char *output, char **out_path) {
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  quick_http(&options.store.http);
  options.output = output;
  return mlx_pull_oci(text, &options, out_path);
}

static void check_same(const char *a, const char *b) {
  char x[MLX_DIGEST_HEX], y[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(a, NULL, x));
  CHECK_OK(mlx_digest_file(b, NULL, y));
  CHECK_TEXT(x, y);
}

static void put_tiny(const char *text) {
  shell("test -f t.tar || { tar -cf t.tar -C " TINY
        " ./config.json ./tokenizer.json model.safetensors.index.json; "
        "tar --format=pax -cf w.tar -C " TINY
        " model-00002-of-00002.safetensors; printf hello > README.md; gzip -c README.md > docs.tgz; printf "
        "pickle > pytorch_model.bin; }");
  PUT(text,
      {TINY "/model-00001-of-00002.safetensors", TYPE("weight.v1.raw"), "model-00001-of-00002.safetensors"},
      {in_folder("w.tar"), TYPE("weight.v1.tar"), "w"},
      {in_folder("t.tar"), TYPE("weight.config.v1.tar"), ""},
      {in_folder("README.md"), TYPE("doc.v1.raw"), "docs/README.md"},
      {in_folder("docs.tgz"), TYPE("doc.v1.tar+gzip"), "docs.tgz"},
      {in_folder("pytorch_model.bin"), TYPE("weight.v1.raw"), "pytorch_model.bin"},
      {in_folder("docs.tgz"), TYPE("dataset.v1.tar+zstd"), "data"});
}

static void check_tiny(const char *path) {
  char name[512];
  static const char *const names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                      "config.json", "tokenizer.json"};
  for (int i = 0; i < 4; ++i) {
    char original[256];
    snprintf(name, sizeof name, "%s/%s", path, names[i]);
    snprintf(original, sizeof original, "%s/%s", TINY, names[i]);
    check_same(name, original);
  }
  snprintf(name, sizeof name, "%s/docs/README.md", path);
  CHECK(mlx_is_file(name));
  snprintf(name, sizeof name, "%s/pytorch_model.bin", path);
  CHECK(!mlx_is_file(name));
}

// ----------------------------------------------------------------------------------------------------------
// Supported models

TEST(media_types_determine_the_layer_kind) {
  static const struct {
    const char *type;
    mlx_layer_kind_t kind;
  } cases[] = {{TYPE("weight.v1.raw"), MLX_LAYER_FILE},
               {TYPE("weight.v1.gguf"), MLX_LAYER_FILE},
               {TYPE("weight.config.v1.raw"), MLX_LAYER_FILE},
               {TYPE("weight.v1.tar"), MLX_LAYER_TAR},
               {TYPE("doc.v1.tar"), MLX_LAYER_TAR},
               {TYPE("weight.v1.tar+gzip"), MLX_LAYER_COMPRESSED},
               {TYPE("weight.config.v1.tar+zstd"), MLX_LAYER_COMPRESSED},
               {TYPE("doc.v1.tar+gzip"), MLX_LAYER_SKIPPED},
               {TYPE("code.v1.raw"), MLX_LAYER_SKIPPED},
               {TYPE("dataset.v1.tar+zstd"), MLX_LAYER_SKIPPED},
               {TYPE("weight.v2.raw"), MLX_LAYER_UNKNOWN},
               {TYPE("weight.v1.tar+xz"), MLX_LAYER_UNKNOWN},
               {"application/vnd.oci.image.layer.v1.tar+gzip", MLX_LAYER_UNKNOWN},
               {"", MLX_LAYER_UNKNOWN}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    CHECK_INT(mlx_modelpack_layer_kind(cases[i].type), cases[i].kind);
}

TEST(raw_and_tar_layers_become_a_model_that_runs) {
  begin();
  command_t run, original;
  char *path, *again;
  put_tiny(ref_to("acme/tiny:v1"));
  CHECK_OK(mlx_pull_oci_find(ref_to("acme/tiny:v1"), &path));
  CHECK(!path);
  server_control(&server, "{}");
  RUN(&run, "run", "-m", ref_to("acme/tiny:v1"), "-p", "the quick brown", "-n", "6", "--temp", "0",
      "--device", "cpu");
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  CHECK_INT(count_of(server_log(&server), "/blobs/"), 4);  // without pickle, data set and compressed document
  RUN(&original, "run", "-m", TINY, "-p", "the quick brown", "-n", "6", "--temp", "0", "--device", "cpu");
  CHECK_TEXT(run.out, original.out);
  command_free(&run);
  command_free(&original);
  CHECK_OK(mlx_pull_oci_find(ref_to("acme/tiny:v1"), &path));
  check_tiny(path);
  server_control(&server, "{}");
  RUN(&run, "show", ref_to("acme/tiny:v1"));  // from the cache: no request
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  CHECK_INT(count_of(server_log(&server), "/v2/"), 0);
  CHECK_OK(pull(ref_to("acme/tiny:v1"), NULL,
                &again));  // resolves the tag, but downloads no layer
  CHECK_TEXT(again, path);
  CHECK_INT(count_of(server_log(&server), "/blobs/"), 0);
  mlx_free(path);
  mlx_free(again);
}

TEST(failed_pull_leaves_no_model_and_can_resume) {
  begin();
  char *path;
  put_tiny(ref_to("acme/broken:v1"));
  server_control(&server, "{\"corrupt\": true}");
  CHECK_ERROR(pull(ref_to("acme/broken:v1"), in_folder("whole"), &path), MLX_INVALID_INPUT, "its SHA-256 is");
  CHECK(!mlx_is_dir(in_folder("whole")));
  // The leftovers of a pull that was killed while unpacking.
  shell("p=$(ls -d whole.*.part); mkdir -p $p/files; printf half > $p/files/tokenizer.json");
  server_control(&server, "{}");
  CHECK_OK(pull(ref_to("acme/broken:v1"), in_folder("whole"), &path));
  CHECK_TEXT(path, in_folder("whole"));
  check_tiny(path);
  mlx_free(path);
  shell("! ls -d whole.*.part");
  CHECK_ERROR(pull(ref_to("acme/broken:v1"), in_folder("whole"), &path), MLX_USAGE, "already exists");
}

TEST(pull_of_a_gguf_model_returns_its_file) {
  begin();
  char *path;
  PUT(ref_to("acme/gguf:v1"), {GGUF, TYPE("weight.v1.gguf"), ""});
  CHECK_OK(pull(ref_to("acme/gguf:v1"), in_folder("gguf"), &path));
  CHECK_TEXT(path, in_folder("gguf/model.gguf"));
  check_same(path, GGUF);
  mlx_free(path);
  char layout[160];
  // From a layout, with a manifest whose type is only given by its config.
  snprintf(layout, sizeof layout, "oci-layout:%s/packed:v1", folder);
  put_model(layout, "", (const test_layer_t[]){{GGUF, TYPE("weight.v1.raw"), "deep/tiny-Q8_0.gguf"}}, 1);
  command_t run;
  RUN(&run, "show", layout);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  CHECK_OK(pull(layout, NULL, &path));
  CHECK_CONTAINS(path, "/models/oci/layout%2Fpacked/");
  CHECK_CONTAINS(path, "/deep/tiny-Q8_0.gguf");
  mlx_free(path);
}

// ----------------------------------------------------------------------------------------------------------
// Refused models

TEST(unsupported_layers_are_refused_by_name) {
  begin();
  char *path;
  shell(
      "printf x > x; ln -sf /etc/passwd link; tar -cf link.tar link; tar -cf up.tar -P --transform "
      "'s,^x,../x,' x; tar --hard-dereference -cf twice.tar x x; head -c 1000 twice.tar > cut.tar");
  char x[80];
  snprintf(x, sizeof x, "%s/x", folder);
  static const struct {
    const char *file, *type, *name;
    mlx_code_t code;
    const char *part;
  } cases[] = {
      {"x", TYPE("weight.v1.tar+gzip"), "w.tar.gz", MLX_UNSUPPORTED, "'w.tar.gz' is compressed"},
      {"x", TYPE("weight.config.v1.tar+zstd"), "", MLX_UNSUPPORTED, "is compressed"},
      {"x", "application/vnd.oci.image.layer.v1.tar+gzip", "a", MLX_UNSUPPORTED,
       "which ModelPack does not define"},
      {"x", TYPE("weight.v1.raw"), "../x", MLX_INVALID_INPUT, "points outside the model's folder"},
      {"x", TYPE("weight.v1.raw"), "/etc/x", MLX_INVALID_INPUT, "points outside the model's folder"},
      {"x", TYPE("weight.v1.raw"), "", MLX_INVALID_INPUT, "has no file name"},
      {"x", TYPE("weight.v1.raw"), "config.json", MLX_INVALID_INPUT, "'config.json' twice"},
      {"x", TYPE("weight.v1.raw"), "model.bin", MLX_UNSUPPORTED, "a pickle"},
      {"x", TYPE("doc.v1.raw"), "README", MLX_UNSUPPORTED, "neither model.safetensors"},
      {"link.tar", TYPE("weight.v1.tar"), "", MLX_INVALID_INPUT, "is a link, device or sparse file"},
      {"up.tar", TYPE("weight.v1.tar"), "", MLX_INVALID_INPUT, "points outside the folder"},
      {"twice.tar", TYPE("weight.v1.tar"), "", MLX_INVALID_INPUT, "'x' twice"},
      {"cut.tar", TYPE("weight.v1.tar"), "", MLX_INVALID_INPUT, "truncated"},
      {"x", TYPE("weight.v1.tar"), "", MLX_INVALID_INPUT, "truncated"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    PUT(ref_to("acme/bad:v1"), {x, TYPE("weight.config.v1.raw"), "config.json"},
        {in_folder(cases[i].file), cases[i].type, cases[i].name});
    CHECK_ERROR(pull(ref_to("acme/bad:v1"), in_folder("bad"), &path), cases[i].code, cases[i].part);
    CHECK(!mlx_is_dir(in_folder("bad")));
  }
  shell("! test -e ../x && ! ls -d bad*");
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  options.target = "cpu";
  CHECK_ERROR(mlx_pull_oci(ref_to("acme/bad:v1"), &options, &path), MLX_USAGE, "no compiled code");
  put_model(ref_to("acme/other:v1"), "application/vnd.example",
            (const test_layer_t[]){{x, "text/plain", "x"}}, 1);
  CHECK_ERROR(pull(ref_to("acme/other:v1"), in_folder("bad"), &path), MLX_UNSUPPORTED, "is not a model");
}

TEST_MAIN(CASE(media_types_determine_the_layer_kind), CASE(raw_and_tar_layers_become_a_model_that_runs),
          CASE(failed_pull_leaves_no_model_and_can_resume), CASE(pull_of_a_gguf_model_returns_its_file),
          CASE(unsupported_layers_are_refused_by_name))
