// The manifest: what was written is read, what older compilers wrote still is, and nothing out of bounds gets in.
#include "artifact/manifest.h"

#include "base/memory.h"
#include "tests/check.h"

static mlx_manifest_t example(void) {
  return (mlx_manifest_t){.architecture = "llama",
                          .source = "tiny",
                          .dtype = "bf16",
                          .target = "cuda:sm_90",
                          .compiler = "3.13",
                          .contract = MLX_CONTRACT_VERSION,
                          .vocab = 320,
                          .context = 64,
                          .rows = 1,
                          .page_size = 16,
                          .row_pages = 4,
                          .pool_pages = 5,
                          .prefill = {16, 128},
                          .prefill_count = 2,
                          .decode = {1, 8, 32},
                          .decode_count = 3,
                          .kernels = {"decode", "linear", "attention"},
                          .kernel_count = 3,
                          .state_bytes = 5000000000,
                          .kv_bytes = 2048,
                          .eos = {2},
                          .eos_count = 1,
                          .files = {{.name = "model.vmfb", .size = 5, .sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}},
                          .file_count = 1};
}

TEST(what_is_written_is_read) {
  mlx_manifest_t written = example(), read;
  char *json;
  size_t length;
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_OK(mlx_manifest_read("m.json", json, length, &read));
  CHECK(!memcmp(&written, &read, sizeof read));
  CHECK_TEXT(mlx_manifest_kernels_text(&read).text, "decode, linear, attention");
  mlx_free(json);
}

// The example with the line of |key| replaced by |line| ("" leaves it out).
static void read_with(const char *key, const char *line, mlx_status_t *out_status, mlx_manifest_t *out_manifest) {
  mlx_manifest_t written = example();
  char *json, search[32], changed[2048];
  CHECK_OK(mlx_manifest_write(&written, &json, NULL));
  snprintf(search, sizeof search, "  \"%s\": ", key);
  char *start = strstr(json, search), *end = start ? strchr(start, '\n') + 1 : NULL;
  CHECK(start);
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(start - json), json, line, end);
  mlx_free(json);
  *out_status = mlx_manifest_read("m.json", changed, strlen(changed), out_manifest);
}

static void check_refused(const char *key, const char *line, const char *part) {
  mlx_status_t status;
  mlx_manifest_t manifest;
  read_with(key, line, &status, &manifest);
  CHECK_ERROR(status, MLX_INVALID_INPUT, part);
}

TEST(what_an_older_compiler_did_not_write_has_a_meaning) {
  static const char *const keys[] = {"decode", "kernels", "state_bytes", "kv_bytes"};
  for (int i = 0; i < 4; ++i) {
    mlx_status_t status;
    mlx_manifest_t m;
    read_with(keys[i], "", &status, &m);
    CHECK_OK(status);
    CHECK_INT(m.decode_count, i == 0 ? 1 : 3);
    CHECK_INT(m.decode[0], 1);
    CHECK_INT(m.kernel_count, i == 1 ? 0 : 3);
    if (i == 1) CHECK_TEXT(mlx_manifest_kernels_text(&m).text, "none (plain lowering)");
    CHECK_INT(m.state_bytes, i == 2 ? 0 : 5000000000);
    CHECK_INT(m.kv_bytes, i == 3 ? 0 : 2048);
  }
}

TEST(decode_sizes_out_of_bounds_are_refused) {
  check_refused("decode", "\"decode\": [],\n", "field 'decode' is empty");
  check_refused("decode", "\"decode\": [8, 32],\n", "field 'decode' does not hold 1");
  check_refused("decode", "\"decode\": [1, 8, 8],\n", "field 'decode' must ascend");
  check_refused("decode", "\"decode\": [8, 1],\n", "field 'decode' must ascend");
  check_refused("decode", "\"decode\": [0, 1],\n", "field 'decode' holds a number out of range");
  check_refused("decode", "\"decode\": [1, 1025],\n", "field 'decode' holds a number out of range");
  check_refused("decode", "\"decode\": [1, 2, 3, 4, 5, 6, 7, 8, 9],\n", "field 'decode' must be a short list");
  check_refused("decode", "\"decode\": 1,\n", "field 'decode' must be a short list");
}

TEST(kernel_names_that_could_steer_a_terminal_are_refused) {
  check_refused("kernels", "\"kernels\": \"decode\",\n", "field 'kernels' must be a short list");
  check_refused("kernels", "\"kernels\": [\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"],\n", "must be a short list");
  check_refused("kernels", "\"kernels\": [\"\\u001b[2J\"],\n", "is not a plain name");
  check_refused("kernels", "\"kernels\": [\"\"],\n", "is not a plain name");
  check_refused("kernels", "\"kernels\": [7],\n", "is not a plain name");
  check_refused("kernels", "\"kernels\": [\"abcdefghijklmnop\"],\n", "is not a plain name");
  check_refused("state_bytes", "\"state_bytes\": -1,\n", "field 'state_bytes' must be between 0 and");
}

TEST(levels_are_of_a_portable_model_and_of_no_other) {
  mlx_manifest_t written = example(), read;
  char *json;
  size_t length;
  snprintf(written.target, sizeof written.target, "cpu:portable");
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_ERROR(mlx_manifest_read("m.json", json, length, &read), MLX_INVALID_INPUT, "field 'levels' is empty");
  mlx_free(json);
  snprintf(written.levels[0], sizeof written.levels[0], "x86-64-v3");
  snprintf(written.levels[1], sizeof written.levels[1], "aarch64");
  written.level_count = 2;
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_OK(mlx_manifest_read("m.json", json, length, &read));
  CHECK(!memcmp(&written, &read, sizeof read));
  CHECK_TEXT(mlx_manifest_levels_text(&read).text, "x86-64-v3, aarch64");
  mlx_free(json);
  check_refused("kernels", "\"levels\": [\"aarch64\"],\n", "field 'levels' is for a target of cpu:portable");
  check_refused("kernels", "\"levels\": [\"../../x\"],\n", "field 'levels' holds something that is not a plain name");
}

TEST(a_bundles_files_have_known_names) {
  static const char *const ours[] = {"manifest.json", "model.vmfb", "weights.irpa", "tokenizer.json", "chat.json", "model.x86-64-v3.vmfb"};
  static const char *const others[] = {"", "model", "model..vmfb", "model.a/b.vmfb", "model.aarch64.vmfb.old", "model.aarch64.o", "notes.txt"};
  for (size_t i = 0; i < sizeof ours / sizeof *ours; ++i) CHECK(mlx_is_bundle_file(ours[i]));
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) CHECK(!mlx_is_bundle_file(others[i]));
  CHECK_TEXT(mlx_bundle_module(NULL).text, "model.vmfb");
  CHECK_TEXT(mlx_bundle_module("aarch64").text, "model.aarch64.vmfb");
}

TEST(only_a_bundles_own_files_are_named) {
  static const struct { const char *files, *part; } cases[] = {
      {"{}", "short list"},
      {"[{\"name\": \"../x\", \"size\": 1, \"sha256\": \"\"}]", "'name'"},
      {"[{\"name\": \"model.vmfb\", \"size\": -1, \"sha256\": \"\"}]", "'size'"},
      {"[{\"name\": \"model.vmfb\", \"size\": 1, \"sha256\": \"zz\"}]", "'sha256'"},
      {"[1]", "'name'"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_manifest_t manifest = example();
    char *json, changed[2048];
    CHECK_OK(mlx_manifest_write(&manifest, &json, NULL));
    snprintf(changed, sizeof changed, "%.*s\"files\": %s}", (int)(strstr(json, "\"files\"") - json), json, cases[i].files);
    mlx_free(json);
    CHECK_ERROR(mlx_manifest_read("m.json", changed, strlen(changed), &manifest), MLX_INVALID_INPUT, cases[i].part);
  }
}

TEST_MAIN(CASE(what_is_written_is_read), CASE(levels_are_of_a_portable_model_and_of_no_other), CASE(a_bundles_files_have_known_names),
          CASE(only_a_bundles_own_files_are_named), CASE(what_an_older_compiler_did_not_write_has_a_meaning),
          CASE(decode_sizes_out_of_bounds_are_refused), CASE(kernel_names_that_could_steer_a_terminal_are_refused))
