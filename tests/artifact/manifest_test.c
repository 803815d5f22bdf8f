// Manifests: round trip, manifests of older compilers, and rejection of invalid values.
#include "artifact/manifest.h"

#include "base/memory.h"
#include "tests/support/check.h"
#include "tests/support/contract.h"

#define SHA256 "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

static mlx_manifest_t example(void) {
  return (mlx_manifest_t){.contract = MLX_CONTRACT_VERSION,
                          .iree = "3.13",
                          .compiler = "3.13.0",
                          .architecture = "llama",
                          .source = "tiny",
                          .source_digest = SHA256,
                          .license = "apache-2.0",
                          .vocab = 320,
                          .context = 64,
                          .eos = {2},
                          .eos_count = 1,
                          .variants = {{.target = "cuda:sm_90",
                                        .dtype = "bf16",
                                        .formats = {"Q4_K", "GPTQ 4-bit", "F32"},
                                        .format_count = 3,
                                        .module = "model.vmfb",
                                        .weights = "weights.irpa",
                                        .kv = "bf16",
                                        .activations = "f32",
                                        .steps = {{1, 1}, {16, 16}, {512, 64}},
                                        .step_count = 3,
                                        .burst = 128,
                                        .ragged = true,
                                        .samples = true,
                                        .chunk_positions = 256,
                                        .page_bytes = 32768,
                                        .window_page_bytes = 8192,
                                        .kv_row = 128,
                                        .hidden = 64,
                                        .kernels = {"decode", "linear", "attention"},
                                        .kernel_count = 3,
                                        .kernels_digest = SHA256,
                                        .ops = {{"linear", "decode", "linear", 15, 1000000},
                                                {"attention", "generic", "generic", 2, 2048}},
                                        .op_count = 2,
                                        .state_bytes = 5000000000,
                                        .step_bytes = 70000000,
                                        .kv_bytes = 2048,
                                        .window = 4096}},
                          .variant_count = 1,
                          .files = {{.name = "model.vmfb", .size = 5, .sha256 = SHA256},
                                    {.name = "weights.irpa", .size = 7, .sha256 = SHA256, .tree = SHA256}},
                          .file_count = 2};
}

TEST(manifest_survives_a_write_and_a_read) {
  mlx_manifest_t written = example(), read;
  char *json;
  size_t length;
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_OK(mlx_manifest_read("m.json", json, length, &read));
  CHECK(!memcmp(&written, &read, sizeof read));
  CHECK_TEXT(mlx_variant_kernels_text(&read.variants[0]).text, "decode, linear, attention");
  CHECK_TEXT(mlx_variant_formats_text(&read.variants[0]).text, "Q4_K, GPTQ 4-bit, F32");
  mlx_free(json);
}

// Reads the example manifest with the line of |key| replaced by |line| ("" removes it).
static void read_with(const char *key, const char *line, mlx_status_t *out_status,
                      mlx_manifest_t *out_manifest) {
  mlx_manifest_t written = example();
  char *json, search[32], changed[4096];
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

TEST(missing_fields_of_older_compilers_get_defaults) {
  static const char *const keys[] = {"dtype",  "kernels",           "state_bytes",
                                     "module", "window_page_bytes", "formats"};
  for (int i = 0; i < 6; ++i) {
    mlx_status_t status;
    mlx_manifest_t manifest;
    read_with(keys[i], "", &status, &manifest);
    CHECK_OK(status);
    const mlx_variant_t m = manifest.variants[0];
    CHECK_TEXT(m.dtype, i == 0 ? "f32" : "bf16");
    CHECK_INT(m.kernel_count, i == 1 ? 0 : 3);
    if (i == 1) CHECK_TEXT(mlx_variant_kernels_text(&m).text, "none (generic path)");
    CHECK_INT(m.state_bytes, i == 2 ? 0 : 5000000000);
    CHECK_TEXT(mlx_variant_formats_text(&m).text, i == 5 ? "bf16" : "Q4_K, GPTQ 4-bit, F32");
    CHECK_TEXT(m.module, "model.vmfb");
    CHECK_INT(m.window_page_bytes, i == 4 ? 0 : 8192);
  }
}

TEST(step_sizes_out_of_bounds_are_refused) {
  static const char *const sizes[] = {
      "[[0, 0]]",    "[[16, 17]]",           "[[16, 0]]",          "[[16]]",    "[16, 16]",    "[[65537, 1]]",
      "[[1, 1, 1]]", "[[16, 16], [16, 16]]", "[[16, 16], [1, 1]]", "[[-1, 1]]", "[[\"a\", 1]]"};
  char line[64];
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    snprintf(line, sizeof line, "\"steps\": %s,\n", sizes[i]);
    check_refused("steps", line, "field 'steps' contains sizes out of range");
  }
  check_refused("steps", "\"steps\": [],\n", "field 'steps' is not a list, is empty or has too many items");
  check_refused("steps", "\"steps\": 1,\n", "field 'steps' is not a list, is empty or has too many items");
  check_refused("steps", "\"steps\": [[1,1],[2,1],[3,1],[4,1],[5,1],[6,1],[7,1],[8,1],[9,1]],\n",
                "field 'steps' is not a list, is empty or has too many items");
  check_refused("burst", "\"burst\": 129,\n", "field 'burst' must be between 0 and 128");
  check_refused("ragged", "\"ragged\": 1,\n", "field 'ragged' is not true or false");
  check_refused("samples", "\"samples\": \"yes\",\n", "field 'samples' is not true or false");
}

// The runtime computes addresses from these numbers.
TEST(page_geometry_out_of_bounds_is_refused) {
  check_refused("page_bytes", "\"page_bytes\": 0,\n", "field 'page_bytes'");
  check_refused("page_bytes", "\"page_bytes\": 24575,\n", "field 'page_bytes' is too small for kv_bytes");
  check_refused("window_page_bytes", "\"window_page_bytes\": 8200,\n",
                "field 'window_page_bytes' is not a multiple of a row of the KV pool");
  check_refused("window", "\"window\": 0,\n", "field 'window_page_bytes' is too large, or has no window");
  check_refused("page_bytes", "\"page_bytes\": 32770,\n",
                "field 'page_bytes' is not a multiple of a row of the KV pool");
  check_refused("kv_row", "\"kv_row\": -1,\n", "field 'kv_row'");
  check_refused("kv_row", "\"kv_row\": 127,\n", "page_bytes' is not a multiple");
  check_refused("chunk_positions", "\"chunk_positions\": 8,\n", "is not a multiple of a page");
  check_refused("hidden", "\"hidden\": 0,\n", "field 'hidden'");
  check_refused("window", "\"window\": -1,\n", "field 'window'");
  check_refused("context", "\"context\": 0,\n", "field 'context'");
  mlx_manifest_t written = example(), read;
  char *json;
  size_t length;
  written.variants[0].ragged = false;
  written.variants[0].chunk_positions = 0;
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_ERROR(mlx_manifest_read("m.json", json, length, &read), MLX_INVALID_INPUT,
              "field 'chunk_positions' is 0, but the module is not ragged");
  mlx_free(json);
}

TEST(names_with_special_characters_are_refused) {
  check_refused("kernels", "\"kernels\": \"decode\",\n",
                "field 'kernels' is not a list or has too many items");
  check_refused("kernels",
                "\"kernels\": [\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
                "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"],\n",
                "is not a list or has too many items");
  check_refused("kernels", "\"kernels\": [\"\\u001b[2J\"],\n", "is not a plain name");
  check_refused("kernels", "\"kernels\": [\"\"],\n", "is not a plain name");
  check_refused("kernels", "\"kernels\": [7],\n", "is not a plain name");
  check_refused("kernels", "\"kernels\": [\"abcdefghijklmnop\"],\n", "is not a plain name");
  check_refused("formats", "\"formats\": [\"\\u001b[2J\"],\n",
                "field 'formats' contains a value that is not a");
  check_refused("formats", "\"formats\": [\"Q4_K\", \"\"],\n", "is not a plain name");
  check_refused("formats", "\"formats\": \"Q4_K\",\n", "field 'formats' is not a list");
  check_refused("state_bytes", "\"state_bytes\": -1,\n", "field 'state_bytes' must be between 0 and");
}

TEST(only_portable_targets_have_levels) {
  mlx_manifest_t written = example(), read;
  char *json;
  size_t length;
  snprintf(written.variants[0].target, sizeof written.variants[0].target, "cpu:portable");
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_ERROR(mlx_manifest_read("m.json", json, length, &read), MLX_INVALID_INPUT, "field 'levels' is empty");
  mlx_free(json);
  snprintf(written.variants[0].levels[0], sizeof written.variants[0].levels[0], "x86-64-v3");
  snprintf(written.variants[0].levels[1], sizeof written.variants[0].levels[1], "aarch64");
  written.variants[0].level_count = 2;
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_OK(mlx_manifest_read("m.json", json, length, &read));
  CHECK(!memcmp(&written, &read, sizeof read));
  CHECK_TEXT(mlx_variant_levels_text(&read.variants[0]).text, "x86-64-v3, aarch64");
  mlx_free(json);
  check_refused("kernels", "\"levels\": [\"aarch64\"],\n",
                "field 'levels' is only allowed for the target cpu:portable");
  check_refused("kernels", "\"levels\": [\"../../x\"],\n",
                "field 'levels' contains a value that is not a plain name");
}

TEST(only_known_file_names_are_bundle_files) {
  static const char *const ours[] = {"manifest.json",         "model.vmfb",     "weights.irpa",
                                     "tokenizer.json",        "chat.json",      "model.x86-64-v3.vmfb",
                                     "model.cuda-sm_90.vmfb", "weights.2.irpa", "LICENSE",
                                     "LICENSE.txt",           "NOTICE",         "manifest.json.minisig"};
  // clang-format off
  static const char *const others[] = {
      "", "model", "model..vmfb", "model.a/b.vmfb", "model.aarch64.vmfb.old", "model.aarch64.o", "notes.txt",
      "weights..irpa", "weights.x.irpa", "LICENSE/x", "../LICENSE", "LICENSE \x1b"};
  // clang-format on
  for (size_t i = 0; i < sizeof ours / sizeof *ours; ++i) CHECK(mlx_is_bundle_file(ours[i]));
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) CHECK(!mlx_is_bundle_file(others[i]));
  CHECK_TEXT(mlx_bundle_module(NULL).text, "model.vmfb");
  CHECK_TEXT(mlx_bundle_module("aarch64").text, "model.aarch64.vmfb");
  CHECK_TEXT(mlx_bundle_module("cuda:sm_90").text, "model.cuda-sm_90.vmfb");
  CHECK_TEXT(mlx_bundle_weights(0).text, "weights.irpa");
  CHECK_TEXT(mlx_bundle_weights(1).text, "weights.2.irpa");
}

TEST(invalid_file_lists_are_refused) {
  static const struct {
    const char *files, *part;
  } cases[] = {
      {"{}", "is not a list or has too many items"},
      {"[{\"name\": \"../x\", \"size\": 1, \"sha256\": \"\"}]", "'name'"},
      {"[{\"name\": \"model.vmfb\", \"size\": -1, \"sha256\": \"\"}]", "'size'"},
      {"[{\"name\": \"model.vmfb\", \"size\": 1, \"sha256\": \"zz\"}]", "'sha256'"},
      {"[{\"name\": \"weights.irpa\", \"size\": 1, \"sha256\": \"" SHA256 "\", \"tree\": \"\"}]", "'tree'"},
      {"[1]", "'name'"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_manifest_t manifest = example();
    char *json, changed[4096];
    CHECK_OK(mlx_manifest_write(&manifest, &json, NULL));
    snprintf(changed, sizeof changed, "%.*s\"files\": %s}", (int)(strstr(json, "\"files\"") - json), json,
             cases[i].files);
    mlx_free(json);
    CHECK_ERROR(mlx_manifest_read("m.json", changed, strlen(changed), &manifest), MLX_INVALID_INPUT,
                cases[i].part);
  }
}

TEST(manifest_holds_several_targets) {
  mlx_manifest_t written = example(), read;
  char *json;
  size_t length;
  written.variants[1] = written.variants[0];
  written.variant_count = 2;
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_ERROR(mlx_manifest_read("m.json", json, length, &read), MLX_INVALID_INPUT,
              "field 'target' appears twice");
  mlx_free(json);
  mlx_variant_t *second = &written.variants[1];
  snprintf(second->target, sizeof second->target, "cpu:x86-64-v3");
  snprintf(second->module, sizeof second->module, "%s", mlx_bundle_module(second->target).text);
  snprintf(second->weights, sizeof second->weights, "%s", mlx_bundle_weights(1).text);
  CHECK_OK(mlx_manifest_write(&written, &json, &length));
  CHECK_OK(mlx_manifest_read("m.json", json, length, &read));
  CHECK(!memcmp(&written, &read, sizeof read));
  CHECK_TEXT(mlx_manifest_targets_text(&read).text, "cuda:sm_90, cpu:x86-64-v3");
  mlx_free(json);
}

TEST(another_contract_is_refused_with_a_recompile_hint) {
  static const char text[] =
      "{\"format\": \"mlxcel-bundle\", \"contract\": 7, \"source\": \"m.gguf\", \"source_digest\": \"" SHA256
      "\","
      "\"iree\": \"9.9\", \"targets\": [{\"target\": \"cuda:sm_90\"}, 7, {\"target\": \"\\u001b[2J\"}, "
      "{\"target\": \"cpu:x86-64-v3\"}]}";
  mlx_manifest_t m;
  mlx_status_t status = mlx_manifest_read("m.json", text, strlen(text), &m);
  CHECK_CONTAINS(mlx_status_hint_text(status),
                 "mlxcel compile m.gguf --target cuda:sm_90,cpu:x86-64-v3 -o OUT");
  CHECK_ERROR(status, MLX_UNSUPPORTED, "compiled for contract 7; this mlxcel runs contract " CONTRACT);
  CHECK_TEXT(mlx_manifest_origin(text, strlen(text)).source, "m.gguf");
  CHECK_TEXT(mlx_manifest_origin(text, strlen(text)).source_digest, SHA256);
  CHECK_TEXT(mlx_manifest_origin(text, strlen(text)).iree, "9.9");
  CHECK_INT(mlx_manifest_origin(text, strlen(text)).contract, 7);
  CHECK_TEXT(mlx_manifest_origin("{", 1).source, "");
  CHECK_INT(mlx_manifest_origin("{}", 2).contract, -1);
}

TEST(module_and_weights_must_have_valid_names) {
  check_refused("module", "\"module\": \"weights.irpa\",\n",
                "field 'module' is not a valid module file name");
  check_refused("module", "\"module\": \"../model.vmfb\",\n",
                "field 'module' is not a valid module file name");
  check_refused("weights", "\"weights\": \"LICENSE\",\n", "field 'weights' is not a valid weights file name");
  check_refused("source", "\"source\": \"a\\u001b[2J\",\n", "field 'source' contains a control character");
}

TEST_MAIN(CASE(manifest_holds_several_targets), CASE(module_and_weights_must_have_valid_names),
          CASE(another_contract_is_refused_with_a_recompile_hint), CASE(manifest_survives_a_write_and_a_read),
          CASE(only_portable_targets_have_levels), CASE(only_known_file_names_are_bundle_files),
          CASE(invalid_file_lists_are_refused), CASE(missing_fields_of_older_compilers_get_defaults),
          CASE(step_sizes_out_of_bounds_are_refused), CASE(page_geometry_out_of_bounds_is_refused),
          CASE(names_with_special_characters_are_refused))
