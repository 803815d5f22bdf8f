// The verbs that inspect models without running them: tokenize, detokenize, list, show.
#include "base/json.h"
#include "base/text.h"
#include "compiler/compile.h"
#include "tests/support/check.h"
#include "tests/support/columns.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-inspect-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

static void check_prints(command_t *run, const char *out) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  CHECK_TEXT(run->out, out);
  command_free(run);
}

// ----------------------------------------------------------------------------------------------------------
// tokenize and detokenize

TEST(tokenize_prints_one_id_per_line_and_detokenize_restores_the_text) {
  command_t run;
  RUN(&run, "tokenize", "-m", TINY, "-p", "the quick brown");
  CHECK_INT(run.exit_code, 0);
  char *ids = strdup(run.out);
  command_free(&run);
  CHECK(!strncmp(ids, "315\n223\n310\n", 12));
  RUN(&run, "tokenize", "-m", TINY_GGUF, "-p", "the quick brown");
  check_prints(&run, ids);
  RUN(&run, "detokenize", "-m", TINY, ids);
  check_prints(&run, "the quick brown");
  RUN(&run, "detokenize", "-m", TINY, "[315,", "223]");
  check_prints(&run, "the ");
  command_start(&run,
                (const char *const[]){"/bin/sh", "-c",
                                      "printf 'a <|im_end|>\\n' | '" MLXCEL_BINARY "' tokenize -m '" TINY
                                      "' | '" MLXCEL_BINARY "' detokenize -m '" TINY "'",
                                      NULL});
  command_wait(&run);
  check_prints(&run, "a <|im_end|>\n");
  RUN(&run, "detokenize", "--skip-special", "-m", TINY, "1", "315", "2");
  check_prints(&run, "the");
  RUN(&run, "tokenize", "--show-count", "-m", TINY, "-p", "");
  check_prints(&run, "0\n");
  free(ids);
}

TEST(tokenize_json_has_the_byte_range_of_each_token) {
  command_t run;
  // "ö" is not a token, but each of its two bytes is.
  RUN(&run, "tokenize", "-m", TINY, "-p", "the \xc3\xb6", "--json");
  CHECK_CONTAINS(run.out, "{\"id\": 315, \"piece\": \"the\", \"start\": 0, \"end\": 3}");
  CHECK_CONTAINS(run.out, "\"piece\": \"\\ufffd\", \"start\": 4, \"end\": 5}");
  CHECK_CONTAINS(run.out, "\"start\": 5, \"end\": 6}");
  command_free(&run);
}

// A copy of the model whose tokenizer adds <|im_start|> as BOS.
static void make_model_with_bos(void) {
  char *json;
  CHECK_OK(mlx_make_dirs(in_folder("m"), 0700));
  static const char *const files[] = {"config.json", "model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors", "model.safetensors.index.json"};
  for (int i = 0; i < 4; ++i) {
    char from[256], to[128];
    snprintf(from, sizeof from, "%s/%s", TINY, files[i]);
    snprintf(to, sizeof to, "%s/m/%s", folder, files[i]);
    CHECK_OK(mlx_copy_file(from, to));
  }
  CHECK_OK(mlx_read_file(TINY "/tokenizer.json", 1 << 20, &json, NULL));
  static const char none[] = "\"post_processor\": null";
  char *found = strstr(json, none);
  CHECK(found);
  mlx_text_t text = {0};
  mlx_text_append(&text, json, (size_t)(found - json));
  mlx_text_puts(&text,
                "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
                "{\"id\": \"<|im_start|>\", \"type_id\": 0}}, "
                "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "
                "{\"<|im_start|>\": {\"id\": \"<|im_start|>\", "
                "\"ids\": [1], \"tokens\": [\"<|im_start|>\"]}}}");
  mlx_text_puts(&text, found + strlen(none));
  CHECK_OK(mlx_write_file(in_folder("m/tokenizer.json"), text.data, text.length));
  mlx_text_clear(&text);
  mlx_free(json);
}

TEST(an_added_bos_differs_from_the_same_token_in_the_text) {
  make_folder();
  make_model_with_bos();
  command_t run;
  RUN(&run, "tokenize", "-m", in_folder("m"), "-p", "<|im_start|>the", "--json");
  check_prints(&run,
               "[\n  {\"id\": 1, \"piece\": \"<|im_start|>\", \"start\": null, \"end\": null},\n"
               "  {\"id\": 1, \"piece\": \"<|im_start|>\", \"start\": 0, \"end\": 12},\n"
               "  {\"id\": 315, \"piece\": \"the\", \"start\": 12, \"end\": 15}\n]\n");
  RUN(&run, "tokenize", "-m", in_folder("m"), "-p", "the", "--no-bos");
  check_prints(&run, "315\n");
  remove_folder();
}

TEST(invalid_ids_and_options_are_refused) {
  command_t run;
  RUN(&run, "detokenize", "-m", TINY, "315", "many");
  check_refused(&run, MLX_USAGE, "'many' is not a token id");
  RUN(&run, "detokenize", "-m", TINY, "320");
  check_refused(&run, MLX_USAGE, "token id 320 is out of range: the tokenizer has 0 to 319");
  RUN(&run, "detokenize", "-m", TINY, "--", "-1");
  check_refused(&run, MLX_USAGE, "token id -1 is out of range");
  RUN(&run, "detokenize", "-m", TINY, "99999999999999999999");
  check_refused(&run, MLX_USAGE, "is not a token id");
  command_start(
      &run, (const char *const[]){"/bin/sh", "-c",
                                  "printf '1 \\0 2' | '" MLXCEL_BINARY "' detokenize -m '" TINY "'", NULL});
  command_wait(&run);
  check_refused(&run, MLX_USAGE, "stdin contains a NUL byte");
  RUN(&run, "tokenize", "-m", TINY, "-p", "x", "-f", "y");
  check_refused(&run, MLX_USAGE, "the text is given twice: with -p and -f");
  RUN(&run, "tokenize", "-p", "x");
  check_refused(&run, MLX_USAGE, "no model was given");
  RUN(&run, "tokenize", "-m", "/nowhere", "-p", "x");
  check_refused(&run, MLX_NOT_FOUND, "/nowhere");
}

// ----------------------------------------------------------------------------------------------------------
// list

TEST(cache_titles_are_parsed) {
  mlx_title_t title;
  CHECK(mlx_compiled_title("a model as good for as bf16 for cuda:sm_90, context 4096", &title));
  CHECK_TEXT(title.model, "a model as good for");
  CHECK_TEXT(title.dtype, "bf16");
  CHECK_TEXT(title.target, "cuda:sm_90");
  CHECK_INT(title.context, 4096);
  CHECK(!mlx_compiled_title("a small module for cpu", &title));
  CHECK(!mlx_compiled_title("", &title));
}

static yyjson_val *find_item(yyjson_val *list, const char *kind, const char *model) {
  yyjson_val *item;
  size_t i, count;
  yyjson_arr_foreach(list, i, count, item) {
    if (!strcmp(yyjson_get_str(yyjson_obj_get(item, "kind")), kind) &&
        !strcmp(yyjson_get_str(yyjson_obj_get(item, "model")), model))
      return item;
  }
  CHECK_FAIL("there is no %s '%s'", kind, model);
}

// Compiles with a fake iree-compile, which is enough for list and show.
static void compile_fake(const char *option, const char *value, const char *bundle) {
  static const char script[] =
      "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
      "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo fake > \"$2\"; shift; done\n";
  command_t run;
  CHECK_OK(mlx_write_file(in_folder("fake"), script, strlen(script)));
  CHECK(!chmod(in_folder("fake"), 0755));
  RUN(&run, "compile", TINY, "-c", "64", option, value, "--iree-compile", in_folder("fake"), "-o", bundle);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
}

TEST(list_shows_models_and_compiled_artifacts) {
  make_folder();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  command_t run;
  RUN(&run, "list");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, "");
  command_free(&run);
  RUN(&run, "list", "--json");
  check_prints(&run, "[]\n");
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/org/name"), 0700));
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/ours"), 0700));
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/org/name/0123456789abcdef0123456789abcdef01234567"), 0700));
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/org/name/0123456789abcdef0123456789abcdef01234567+Q8.part"),
                         0700));
  CHECK_OK(mlx_write_file(
      in_folder("cache/models/org/name/0123456789abcdef0123456789abcdef01234567+Q8.part/x.gguf"), "GG", 2));
  CHECK_OK(mlx_copy_file(TINY_GGUF,
                         in_folder("cache/models/org/name/0123456789abcdef0123456789abcdef01234567/t.gguf")));
  CHECK_OK(mlx_write_file(in_folder("cache/models/org/name/b-00002-of-00002.gguf"), "GGUF", 4));
  CHECK_OK(mlx_write_file(in_folder("cache/models/org/bad.gguf"), "GGUF\x03", 5));
  compile_fake("--dtype", "auto", in_folder("cache/models/ours/x.mlxb"));
  RUN(&run, "list", "--json");
  CHECK_INT(run.exit_code, 0);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(doc);
  yyjson_val *list = yyjson_doc_get_root(doc);
  CHECK_INT(yyjson_arr_size(list), 5);
  yyjson_val *item = find_item(list, "model", "org/name/t.gguf");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(item, "format")), "gguf");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(item, "dtype")), "F32");
  CHECK_INT(yyjson_get_int(yyjson_obj_get(item, "context")), 2048);
  CHECK(yyjson_get_int(yyjson_obj_get(item, "bytes")) > 100000);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(find_item(list, "model", "org/bad.gguf"), "dtype")), "?");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(find_item(list, "bundle", "ours/x.mlxb"), "target")), "cpu:host");
  CHECK(yyjson_is_null(yyjson_obj_get(find_item(list, "weights", "tiny-llama"), "target")));
  item = find_item(list, "compiled", "tiny-llama");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(item, "target")), "cpu:host");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(item, "dtype")), "f32");
  CHECK_INT(yyjson_get_int(yyjson_obj_get(item, "context")), 2048);
  CHECK(yyjson_get_sint(yyjson_obj_get(item, "last_used")) > 1700000000);
  yyjson_doc_free(doc);
  command_free(&run);
  RUN(&run, "list");
  CHECK_CONTAINS(run.out,
                 "kind      model            dtype    target               context       size  last used\n");
  CHECK_CONTAINS(run.out, "compiled  tiny-llama       f32      cpu:host                2048 ");
  command_free(&run);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  remove_folder();
}

// Names of other scripts are wider than their number of characters, and longer than their cells.
TEST(list_aligns_wide_and_long_cells) {
  command_t run;
  make_folder();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/ours"), 0700));
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder("cache/models/ours/通义千问模型.gguf")));
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder("cache/models/ours/modèle.gguf")));
  compile_fake("--dtype", "auto", in_folder("cache/models/ours/x.mlxb"));
  RUN(&run, "list");
  CHECK_INT(run.exit_code, 0);
  int line = 0, end = 0;
  for (const char *at = run.out; *at; at = strchr(at, '\n') + 1, ++line) {
    // The last column has a fixed width: it begins at the same place in every line.
    const size_t length = strcspn(at, "\n"), last = line ? strlen("2026-11-18 08:15") : strlen("last used");
    const int column = column_of(at, length - last);
    if (!line) end = column;
    CHECK_INT(column, end);
  }
  CHECK_INT(line, 6);
  command_free(&run);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  remove_folder();
}

TEST(show_names_the_formats_of_a_bundle) {
  static const char *const rows[][3] = {
      {"--quantize", "q4", "Q8_0, Q4_1, F32"}, {"--dtype", "bf16", "BF16, F32"}, {"--dtype", "f32", "F32"}};
  command_t run;
  char expected[64];
  make_folder();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  for (size_t i = 0; i < 3; ++i) {
    compile_fake(rows[i][0], rows[i][1], in_folder("m.mlxb"));
    RUN(&run, "show", in_folder("m.mlxb"));
    CHECK_INT(run.exit_code, 0);
    snprintf(expected, sizeof expected, "\nquantization   %s\n", rows[i][2]);
    CHECK_CONTAINS(run.out, expected);
    snprintf(expected, sizeof expected, "\nstored as     %s; activations ", rows[i][2]);
    CHECK_CONTAINS(run.out, expected);
    command_free(&run);
  }
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  remove_folder();
}

// Using an entry updates its time.
TEST(list_shows_when_an_entry_was_last_used) {
  make_folder();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/ours"), 0700));
  compile_fake("--dtype", "auto", in_folder("cache/models/ours/x.mlxb"));
  command_t run;
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            "touch -d 2001-01-01 \"$0\"/vmfb/*/entry.json && '" MLXCEL_BINARY
                                            "' list | grep -c 'compiled .*2001-01-01'",
                                            in_folder("cache"), NULL});
  command_wait(&run);
  check_prints(&run, "1\n");
  compile_fake("--dtype", "auto", in_folder("cache/models/ours/x.mlxb"));
  RUN(&run, "list");
  CHECK_CONTAINS(run.out, "compiled  tiny-llama ");
  CHECK(!strstr(run.out, "2001-01-01"));
  command_free(&run);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// show

TEST(show_sums_the_memory_for_a_context_length) {
  command_t run;
  RUN(&run, "show", TINY, "-c", "100", "--json");
  mlx_json_t json;
  CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(json.root, "architecture")), "llama");
  CHECK_INT(yyjson_get_int(yyjson_obj_get(json.root, "parameters")), 39072);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(json.root, "bytes")), 39072 * 4);
  const int64_t kv = 2 * 2 * 16 * 100;  // keys and values of 2 layers with 2 heads of 8
  yyjson_val *memory = yyjson_obj_get(json.root, "memory");
  CHECK_INT(yyjson_get_int(yyjson_obj_get(memory, "positions")), 100);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(memory, "f32")), (39072 + kv) * 4);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(memory, "bf16")), (39072 + kv) * 2);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(memory, "quantized")), (39072 + kv) * 4);
  mlx_json_close(&json);
  command_free(&run);
  RUN(&run, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/gpt_oss-mxfp4");
  CHECK_CONTAINS(run.out, "\nwith weights quantized as stored, if a kernel supports it: ");
  command_free(&run);
}

// Latent attention keeps 512 + 64 numbers of each layer, whatever the number of heads.
TEST(show_has_one_row_per_position_of_latent_attention) {
  command_t run;
  mlx_json_t json;
  RUN(&run, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/deepseek_v3-row", "-c", "100", "--json");
  CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
  const int64_t parameters = yyjson_get_int(yyjson_obj_get(json.root, "parameters")), kv = 2 * 576 * 100;
  yyjson_val *memory = yyjson_obj_get(json.root, "memory");
  CHECK(parameters > 0);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(memory, "f32")), (parameters + kv) * 4);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(memory, "bf16")), (parameters + kv) * 2);
  mlx_json_close(&json);
  command_free(&run);
  RUN(&run, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/deepseek_v3-row");
  CHECK_CONTAINS(run.out, "4 heads of 72 (keys and values in a row of 512 + 64)\n");
  command_free(&run);
}

// The keys of the summary are the same for every kind of model.
static void check_summary_json(const char *model, bool with_template) {
  static const char *const keys[] = {"name",          "size",    "parameters", "quantization", "license",
                                     "chat_template", "context", "multimodal", "target",       "kernels"};
  command_t run;
  mlx_json_t json;
  RUN(&run, "show", model, "--json");
  CHECK_INT(run.exit_code, 0);
  CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) CHECK(yyjson_obj_get(json.root, keys[i]));
  CHECK(yyjson_get_bool(yyjson_obj_get(json.root, "chat_template")) == with_template);
  CHECK(yyjson_get_int(yyjson_obj_get(json.root, "size")) > 39072);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(json.root, "parameters")), 39072);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(json.root, "context")), 2048);
  yyjson_val *op = yyjson_arr_get_first(yyjson_obj_get(json.root, "kernels"));
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(op, "op")), "embed");
  CHECK(yyjson_is_bool(yyjson_obj_get(op, "kernel")));
  mlx_json_close(&json);
  command_free(&run);
}

static mlx_status_t copy_file(void *user, const char *name) {
  char from[512], to[64], *bytes;
  size_t length;
  (void)user;
  snprintf(from, sizeof from, TINY "/%s", name);
  snprintf(to, sizeof to, "m/%s", name);
  MLX_TRY(mlx_read_file(from, 1 << 20, &bytes, &length));
  mlx_status_t status = mlx_write_file(in_folder(to), bytes, length);
  mlx_free(bytes);
  return status;
}

#define BASE "chat template  no\n               base model: no chat template; `run` completes text\n"

// Three layers, each with a state of 4 * 16 * 24 numbers and 3 rows of a convolution of 160 channels.
TEST(show_has_the_recurrent_state_of_a_sequence) {
  command_t c;
  RUN(&c, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/qwen3_5");
  CHECK_CONTAINS(c.out, "recurrent     3 of 4 layers: a state of 24.2 kB per sequence instead of KV cache\n");
  command_free(&c);
  RUN(&c, "show", "--json", MLXCEL_SOURCE_DIR "/tests/fixtures/qwen3_5");
  CHECK_CONTAINS(c.out, "\"recurrent_bytes\": 24192,");
  command_free(&c);
}

TEST(show_begins_with_a_summary_of_any_kind_of_model) {
  command_t run;
  make_folder();
  RUN(&run, "show", TINY);
  CHECK_CONTAINS(run.out, "name           tiny-llama\nsize           ");
  CHECK_CONTAINS(run.out, " kB on disk, ");
  CHECK(!strstr(run.out, "iB"));  // the units of `list` and `rm`
  CHECK_CONTAINS(run.out, " on disk, 39072 parameters\nquantization   F32\nlicense        not declared\n" BASE
                          "context        2048 tokens\nkernels        cpu: ");
  command_free(&run);
  RUN(&run, "show", TINY ".gguf");
  CHECK_CONTAINS(run.out, "quantization   F32\n");
  CHECK_CONTAINS(run.out, BASE);
  CHECK(!strstr(run.out, "launches: "));
  command_free(&run);
  RUN(&run, "show", TINY, "-v");
  CHECK_CONTAINS(run.out, "\nlaunches: step_512: 1 network embed: embedded\n");
  command_free(&run);
  check_summary_json(TINY, false);
  check_summary_json(TINY ".gguf", false);
  // A bundle on the generic path, of a directory with a license and a chat template.
  CHECK_OK(mlx_make_dirs(in_folder("m"), 0700));
  CHECK_OK(mlx_list_dir(TINY, copy_file, NULL));
  CHECK_OK(mlx_write_file(in_folder("m/chat_template.jinja"), "{{ messages }}", 14));
  CHECK_OK(mlx_write_file(in_folder("m/README.md"), "---\nlicense: mit\n---\n", 21));
  RUN(&run, "compile", in_folder("m"), "--kernels", "off", "-o", in_folder("m.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "show", in_folder("m.mlxb"));
  CHECK_CONTAINS(run.out, "name           m\nsize           ");
  CHECK_CONTAINS(run.out,
                 "license        mit\nchat template  yes\ncontext        2048 tokens\n"
                 "kernels        cpu:host: no op has a kernel; generic path: embed, rmsnorm, linear, rope,"
                 " attention, add, gated\n");
  command_free(&run);
  check_summary_json(in_folder("m.mlxb"), true);
  RUN(&run, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/mistral3");
  CHECK_CONTAINS(run.out, "\nimages         not supported: the text model of a mistral3 model runs\n");
  command_free(&run);
  remove_folder();
}

TEST_MAIN(CASE(tokenize_prints_one_id_per_line_and_detokenize_restores_the_text),
          CASE(tokenize_json_has_the_byte_range_of_each_token),
          CASE(an_added_bos_differs_from_the_same_token_in_the_text),
          CASE(invalid_ids_and_options_are_refused), CASE(cache_titles_are_parsed),
          CASE(list_shows_models_and_compiled_artifacts), CASE(list_aligns_wide_and_long_cells),
          CASE(show_names_the_formats_of_a_bundle), CASE(list_shows_when_an_entry_was_last_used),
          CASE(show_sums_the_memory_for_a_context_length),
          CASE(show_has_one_row_per_position_of_latent_attention),
          CASE(show_has_the_recurrent_state_of_a_sequence),
          CASE(show_begins_with_a_summary_of_any_kind_of_model))
