// Parsing of hub references and listings, and the choice of files. tests/transfer/pull_test.c tests the
// network part.
#include "transfer/hub.h"
#include "base/memory.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

TEST(references_are_parsed) {
  mlx_hub_ref_t ref;
  CHECK_OK(mlx_hub_ref_parse("hf:acme/tiny", &ref));
  CHECK_TEXT(ref.org, "acme");
  CHECK_TEXT(ref.name, "tiny");
  CHECK_TEXT(ref.revision, "main");
  CHECK_TEXT(ref.selector, "");
  CHECK_OK(mlx_hub_ref_parse("hf:a.b-c/Tiny_1.5@refs/pr/7:sub/x-Q4_K_M.gguf", &ref));
  CHECK_TEXT(ref.name, "Tiny_1.5");
  CHECK_TEXT(ref.revision, "refs/pr/7");
  CHECK_TEXT(ref.selector, "sub/x-Q4_K_M.gguf");
  // clang-format off
  static const char *const bad[] = {
      "hf:", "hf:acme", "hf:acme/", "hf:/tiny", "hf:acme/ti ny", "hf:../tiny", "hf:acme/..", "hf:acme/tiny@",
      "hf:acme/tiny:", "hf:acme/tiny@../x", "hf:acme/tiny:../x", "hf:acme/tiny/more", "acme/tiny", "hf:-a/b"};
  // clang-format on
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
    CHECK_ERROR(mlx_hub_ref_parse(bad[i], &ref), MLX_USAGE, "is not a valid hub reference");
}

TEST(addresses_that_users_paste_are_references) {
  static const struct {
    const char *text, *revision, *selector;
  } cases[] = {{"hf://acme/tiny", "main", ""},
               {"hf.co/acme/tiny", "main", ""},
               {"hf.co/acme/tiny:Q4_K_M", "main", "Q4_K_M"},
               {"huggingface.co/acme/tiny:Q8_0", "main", "Q8_0"},
               {"https://huggingface.co/acme/tiny", "main", ""},
               {"https://HuggingFace.co/acme/tiny/", "main", ""},
               {"https://hf.co/acme/tiny?not-for-all-audiences=true", "main", ""},
               {"https://huggingface.co/acme/tiny/tree/v1.0", "v1.0", ""},
               {"https://huggingface.co/acme/tiny/blob/main/Q4/a-Q4_0.gguf", "main", "Q4/a-Q4_0.gguf"},
               {"https://huggingface.co/acme/tiny/resolve/v2/a.gguf?download=true", "v2", "a.gguf"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_hub_ref_t ref;
    CHECK(mlx_is_hub_ref(cases[i].text));
    CHECK_OK(mlx_hub_ref_parse(cases[i].text, &ref));
    CHECK_TEXT(ref.org, "acme");
    CHECK_TEXT(ref.name, "tiny");
    CHECK_TEXT(ref.revision, cases[i].revision);
    CHECK_TEXT(ref.selector, cases[i].selector);
  }
  static const char *const others[] = {
      "https://huggingface.co/acme/tiny/resolve/main/m.mlxb",  // a bundle on a web server
      "https://huggingface.co.example.org/acme/tiny",
      "https://example.org/hf.co/acme/tiny",
      "hf.com/a/b",
      "acme/tiny",
      "huggingface.co"};
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) CHECK(!mlx_is_hub_ref(others[i]));
  static const char *const bad[] = {
      "https://huggingface.co/acme", "hf.co/acme/tiny/more", "https://huggingface.co/acme/tiny/blob/main",
      "https://huggingface.co/acme/tiny/blob/../a.gguf", "https://huggingface.co/acme/tiny/discussions/1"};
  mlx_hub_ref_t ref;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
    CHECK_ERROR(mlx_hub_ref_parse(bad[i], &ref), MLX_USAGE, "is not a valid hub reference");
}

// Chooses among the files in |names|, a space-separated list, and writes the chosen names to |out| in the
// same form.
static mlx_status_t choose(const char *names, const char *selector, char out[512], char main_file[128]) {
  mlx_text_t json = {0};
  mlx_text_puts(&json, "{\"sha\": \"" COMMIT "\", \"siblings\": [");
  char copy[1024], *rest = copy;
  snprintf(copy, sizeof copy, "%s", names);
  for (char *name, *comma = ""; (name = strtok_r(rest, " ", &rest)); comma = ",") {
    mlx_text_printf(&json, "%s{\"rfilename\": \"%s\", \"size\": 9, \"blobId\": \"" COMMIT "\"}", comma, name);
  }
  mlx_text_puts(&json, "]}");
  mlx_hub_listing_t listing;
  const char *opened = NULL;
  bool by_default;
  mlx_status_t status = mlx_hub_listing_read("answer", json.data, json.length, &listing);
  if (!status) status = mlx_hub_select(&listing, selector, &opened, &by_default);
  *out = 0;
  for (size_t i = 0; i < listing.count; ++i) {
    if (listing.files[i].chosen) sprintf(out + strlen(out), "%s%s", *out ? " " : "", listing.files[i].name);
  }
  snprintf(main_file, 128, "%s", opened ? opened : "");
  mlx_hub_listing_free(&listing);
  mlx_text_clear(&json);
  return status;
}

TEST(only_needed_files_are_chosen) {
  static const struct {
    const char *names, *selector, *chosen, *opened;
  } cases[] = {
      {"README.md config.json model.safetensors pytorch_model.bin tokenizer.json onnx/model.onnx", "",
       "config.json model.safetensors tokenizer.json", ""},
      {"config.json consolidated.safetensors model-00001-of-00002.safetensors "
       "model-00002-of-00002.safetensors model.safetensors.index.json tokenizer_config.json",
       "",
       "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
       "model.safetensors.index.json tokenizer_config.json",
       ""},
      {"config.json model.safetensors modules.json 1_Pooling/config.json 2_Dense/model.safetensors "
       "2_Dense/config.json 2_Dense/pytorch_model.bin onnx/model.safetensors 1_Pooling/x.json "
       "_Pooling/config.json",
       "",
       "config.json model.safetensors modules.json 1_Pooling/config.json 2_Dense/model.safetensors "
       "2_Dense/config.json",
       ""},
      {"config.json model.safetensors additional_chat_templates/tool_use.jinja chat_template.jinja "
       "additional_chat_templates/evil.py",
       "", "config.json model.safetensors additional_chat_templates/tool_use.jinja chat_template.jinja", ""},
      {"a-Q4_K_M.gguf a-Q4_K_S.gguf a-Q8_0.gguf", "q4_k_m", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf"},
      {"a-Q4_K_M.gguf a-Q4_K_S.gguf a-Q8_0.gguf", "", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf"},
      {"config.json a.gguf", "", "a.gguf", "a.gguf"},
      {"a-Q4_0.gguf a-Q8_0.gguf", "", "a-Q4_0.gguf", "a-Q4_0.gguf"},
      {"a-Q4_K_M.gguf b-Q4_K_M.gguf", "", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf"},
      {"mmproj-F16.gguf b-Q8_0-00002-of-00002.gguf b-Q8_0-00001-of-00002.gguf c.gguf", "",
       "b-Q8_0-00002-of-00002.gguf b-Q8_0-00001-of-00002.gguf", "b-Q8_0-00001-of-00002.gguf"},
      {"tiny_q4_k_m.gguf tiny_q8_0.gguf", "Q4_K_M", "tiny_q4_k_m.gguf", "tiny_q4_k_m.gguf"},
      {"a.Q8_0.gguf mmproj-a-Q8_0.gguf", "Q8_0", "a.Q8_0.gguf", "a.Q8_0.gguf"},
      {"Q8/a-Q8_0-00002-of-00002.gguf Q8/a-Q8_0-00001-of-00002.gguf b-Q4_0.gguf", "Q8_0",
       "Q8/a-Q8_0-00002-of-00002.gguf Q8/a-Q8_0-00001-of-00002.gguf", "Q8/a-Q8_0-00001-of-00002.gguf"},
      {"Q8/a-Q8_0-00002-of-00002.gguf Q8/a-Q8_0-00001-of-00002.gguf", "Q8/a-Q8_0-00002-of-00002.gguf",
       "Q8/a-Q8_0-00002-of-00002.gguf Q8/a-Q8_0-00001-of-00002.gguf", "Q8/a-Q8_0-00001-of-00002.gguf"},
      {"config.json model.safetensors a-Q4_0.gguf", "Q4_0", "a-Q4_0.gguf", "a-Q4_0.gguf"}};
  char chosen[512], opened[128];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    CHECK_OK(choose(cases[i].names, cases[i].selector, chosen, opened));
    CHECK_TEXT(chosen, cases[i].chosen);
    CHECK_TEXT(opened, cases[i].opened);
  }
}

TEST(failed_choices_name_the_available_files) {
  static const struct {
    const char *names, *selector;
    mlx_code_t code;
    const char *part, *hint;
  } cases[] = {
      {"config.json pytorch_model.bin", "", MLX_UNSUPPORTED, "'pytorch_model.bin', a pickle",
       "never downloads pickles"},
      {"README.md", "", MLX_UNSUPPORTED, "neither model.safetensors", ""},
      {"a-Q4_0.gguf b-Q4_0.gguf", "Q4_0", MLX_USAGE, "matches several", "a-Q4_0.gguf, b-Q4_0.gguf"},
      {"a-Q4_K_M.gguf", "Q4_K", MLX_NOT_FOUND, "'Q4_K'", "it has these quantizations: Q4_K_M"},
      {"a-Q4_0.gguf mmproj-F16.gguf a-IQ2_XS-00001-of-00002.gguf a-IQ2_XS-00002-of-00002.gguf b.gguf", "Q5_0",
       MLX_NOT_FOUND, "'Q5_0'", "it has these quantizations: Q4_0, IQ2_XS, b.gguf"},
      {"config.json model.safetensors", "Q4_K", MLX_NOT_FOUND, "'Q4_K'", "no GGUF files"},
      {"config.json model.safetensors", "config.json", MLX_UNSUPPORTED, "not a GGUF",
       "leave out the file name"},
      {"a-Q8_0-00001-of-00003.gguf a-Q8_0-00003-of-00003.gguf", "Q8_0", MLX_INVALID_INPUT,
       "only 2 of its 3 parts", ""}};
  char chosen[512], opened[128];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_status_t status = choose(cases[i].names, cases[i].selector, chosen, opened);
    if (mlx_status_code(status) != cases[i].code)
      CHECK_FAIL("case %zu: code %d, '%s'", i, mlx_status_code(status), mlx_status_message(status));
    CHECK_CONTAINS(mlx_status_message(status), cases[i].part);
    CHECK_CONTAINS(mlx_status_hint_text(status), cases[i].hint);
    mlx_status_free(status);
  }
}

TEST(invalid_listings_are_refused) {
  static const struct {
    const char *json, *part;
  } cases[] = {{"[]", "answer"},
               {"{\"siblings\": []}", "'sha'"},
               {"{\"sha\": \"main\", \"siblings\": []}", "is not a commit hash"},
               {"{\"sha\": \"" COMMIT "\"}", "'siblings'"},
               {"{\"sha\": \"" COMMIT "\", \"siblings\": [3]}", "not an object"},
               {"{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\"}]}", "'size'"},
               {"{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\", \"size\": -1}]}", "'size'"},
               {"{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"../a\", \"size\": 1}]}",
                "points outside the model's folder"},
               {"{\"sha\": \"" COMMIT
                "\", \"siblings\": [{\"rfilename\": \"a\", \"size\": 1, \"lfs\": {\"sha256\": \"zz\"}}]}",
                "not a SHA-256"}};
  mlx_hub_listing_t listing;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    CHECK_ERROR(mlx_hub_listing_read("answer", cases[i].json, strlen(cases[i].json), &listing),
                MLX_INVALID_INPUT, cases[i].part);
  }
}

TEST(out_of_memory_leaks_nothing) {
  static const char json[] = "{\"sha\": \"" COMMIT
                             "\", \"siblings\": [{\"rfilename\": \"a-Q8_0.gguf\", \"size\": 1}, "
                             "{\"rfilename\": \"b\", \"size\": 1}]}";
  for (long n = 1;; ++n) {
    memory.count = memory.live = 0;
    memory.target = n;
    mlx_memory_set_calls(&counting_memory);
    mlx_hub_listing_t listing;
    mlx_status_t status = mlx_hub_listing_read("answer", json, strlen(json), &listing);
    if (!status) mlx_hub_listing_free(&listing);
    mlx_memory_set_calls(NULL);
    CHECK_INT(memory.live, 0);
    const mlx_code_t code = mlx_status_code(status);
    mlx_status_free(status);
    if (memory.count < n) return;  // no allocation failed
    CHECK_INT(code, MLX_OUT_OF_MEMORY);
  }
}

TEST_MAIN(CASE(out_of_memory_leaks_nothing), CASE(references_are_parsed),
          CASE(addresses_that_users_paste_are_references), CASE(only_needed_files_are_chosen),
          CASE(failed_choices_name_the_available_files), CASE(invalid_listings_are_refused))
