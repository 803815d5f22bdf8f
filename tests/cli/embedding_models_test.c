// mlxcel embed against sentence-transformers in fp32: the directories of tests/fixtures/embedders, with their
// own tokenizers, prompts and limits.
#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"
#include "tests/support/listed.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/embedders/"

static bool has_prompt(yyjson_val *result) { return yyjson_is_str(yyjson_obj_get(result, "prompt")); }

// Writes the texts of the golden that have the prompt for queries, or those that have none. The id is the
// index of the result.
static void write_texts(const golden_t *golden, bool prompted) {
  mlx_text_t lines = {0};
  size_t index, count;
  yyjson_val *result;
  yyjson_arr_foreach(golden->results, index, count, result) {
    mlx_json_writer_t json = {.out = &lines};
    if (has_prompt(result) != prompted) continue;
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_uint(&json, "id", index);
    mlx_json_put_text(&json, "text", yyjson_get_str(yyjson_obj_get(result, "text")));
    mlx_json_end(&json);
    mlx_text_puts(&lines, "\n");
  }
  CHECK_OK(mlx_text_finish(&lines));
  CHECK_OK(mlx_write_file(in_folder("texts.jsonl"), lines.data, lines.length));
  mlx_text_clear(&lines);
}

static double check_vector(const char *name, yyjson_val *actual, yyjson_val *expected) {
  yyjson_val *ours = yyjson_obj_get(actual, "embedding"), *theirs = yyjson_obj_get(expected, "embedding");
  double worst = 0, square = 0;
  CHECK_INT(yyjson_get_uint(yyjson_obj_get(actual, "tokens")),
            yyjson_get_uint(yyjson_obj_get(expected, "tokens")));
  CHECK_INT(yyjson_arr_size(ours), yyjson_arr_size(theirs));
  for (size_t i = 0; i < yyjson_arr_size(theirs); ++i) {
    const double b = yyjson_get_num(yyjson_arr_get(theirs, i));
    worst = fmax(worst, fabs(yyjson_get_num(yyjson_arr_get(ours, i)) - b));
    square += b * b;
  }
  worst /= sqrt(square);
  if (!(worst < 1e-5))
    CHECK_FAIL("%s, text %s: a number differs by %g", name, yyjson_get_str(yyjson_obj_get(actual, "id")),
               worst);
  return worst;
}

static double check_texts(const char *name, const char *model, const golden_t *golden, const char *prompt) {
  double worst = 0;
  command_t run;
  size_t index, count;
  yyjson_val *item;
  write_texts(golden, prompt != NULL);
  RUN(&run, "embed", model, "-f", in_folder("texts.jsonl"), "--device", "cpu", prompt);
  if (run.exit_code) CHECK_FAIL("%s: exit status %d: %s", name, run.exit_code, run.err);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(yyjson_arr_size(yyjson_doc_get_root(doc)) > 0);
  yyjson_arr_foreach(yyjson_doc_get_root(doc), index, count, item) {
    const size_t number = strtoul(yyjson_get_str(yyjson_obj_get(item, "id")), NULL, 10);
    worst = fmax(worst, check_vector(name, item, yyjson_arr_get(golden->results, number)));
  }
  yyjson_doc_free(doc);
  command_free(&run);
  return worst;
}

// The texts of texts.jsonl have the same bits from the GGUF file of the model, and each alone.
static void check_same_bits(const char *name, const golden_t *golden) {
  char path[512], gguf[512];
  command_t run, same;
  snprintf(path, sizeof path, FIXTURES "%s", name);
  snprintf(gguf, sizeof gguf, FIXTURES "%s/model.gguf", name);
  RUN(&run, "embed", path, "-f", in_folder("texts.jsonl"), "--device", "cpu", "--format", "csv");
  CHECK_INT(run.exit_code, 0);
  if (mlx_is_file(gguf)) {
    RUN(&same, "embed", gguf, "-f", in_folder("texts.jsonl"), "--device", "cpu", "--format", "csv");
    if (same.exit_code) CHECK_FAIL("%s: exit status %d: %s", gguf, same.exit_code, same.err);
    if (strcmp(same.out, run.out)) CHECK_FAIL("%s: other numbers than from the directory", gguf);
    command_free(&same);
  }
  const char *text = yyjson_get_str(yyjson_obj_get(yyjson_arr_get(golden->results, 3), "text"));
  RUN(&same, "embed", path, text, "--device", "cpu", "--format", "csv");
  const char *line = strstr(run.out, "\n3,");
  CHECK(line && same.out_length > 2);
  if (strncmp(line + 3, same.out + 2, same.out_length - 2))
    CHECK_FAIL("%s: a text has other numbers alone", name);
  command_free(&same);
  command_free(&run);
}

static mlx_status_t check_model(void *user, const char *name) {
  size_t *checked = user;
  char path[512];
  snprintf(path, sizeof path, FIXTURES "%s/golden.json", name);
  golden_t golden = golden_open(path);
  char model[512];
  snprintf(model, sizeof model, FIXTURES "%s", name);
  const double prompted = check_texts(name, model, &golden, "--query"),
               plain = check_texts(name, model, &golden, NULL);
  check_same_bits(name, &golden);
  printf("%s: difference %.1e, with the prompt %.1e\n", name, plain, prompted);
  golden_close(&golden);
  ++*checked;
  return NULL;
}

static void check_refused(command_t *run, const char *message) {
  CHECK_INT(run->exit_code, MLX_UNSUPPORTED);
  CHECK_CONTAINS(run->err, message);
  command_free(run);
}

// Copies the fixture |name| with its vocabulary as vocab.txt in place of tokenizer.json.
static void copy_with_vocab(const char *name, const char *class_name) {
  static const char *const files[] = {"config.json", "model.safetensors", "modules.json",
                                      "config_sentence_transformers.json", "1_Pooling/config.json"};
  char from[512], *text;
  size_t length, index, count;
  mlx_json_t json;
  yyjson_val *key, *value;
  const char *lines[1024] = {0};
  mlx_text_t vocab = {0};
  CHECK_OK(mlx_make_dirs(in_folder("1_Pooling"), 0755));
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    snprintf(from, sizeof from, FIXTURES "%s/%s", name, files[i]);
    CHECK_OK(mlx_copy_file(from, in_folder(files[i])));
  }
  snprintf(from, sizeof from, FIXTURES "%s/tokenizer.json", name);
  CHECK_OK(mlx_read_file(from, 1 << 24, &text, &length));
  CHECK_OK(mlx_json_parse(from, text, length, &json));
  yyjson_val *words = yyjson_obj_get(yyjson_obj_get(json.root, "model"), "vocab");
  CHECK(yyjson_obj_size(words) < 1024);
  yyjson_obj_foreach(words, index, count, key, value) lines[yyjson_get_uint(value)] = yyjson_get_str(key);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(&vocab, "%s%s", lines[i], i % 2 ? "\n" : "\r\n");
  CHECK_OK(mlx_write_file(in_folder("vocab.txt"), vocab.data, vocab.length));
  mlx_text_clear(&vocab);
  mlx_text_printf(&vocab, "{\"do_lower_case\": %s, \"tokenizer_class\": \"%s\", \"model_max_length\": 128}",
                  strcmp(name, "bert") ? "false" : "true", class_name);
  CHECK_OK(mlx_write_file(in_folder("tokenizer_config.json"), vocab.data, vocab.length));
  mlx_text_clear(&vocab);
  mlx_json_close(&json);
  mlx_free(text);
}

// With and without capital letters; the vocabularies are those of the fixtures' tokenizers.
TEST(a_directory_with_vocab_txt_equals_sentence_transformers) {
  static const char *const names[] = {"bert", "bert-cased"};
  command_t run;
  for (int i = 0; i < 3; ++i) {
    strcpy(folder, "/tmp/mlxcel-embedders-XXXXXX");
    CHECK(mkdtemp(folder));
    copy_with_vocab(names[i % 2], i < 2 ? "BertTokenizer" : "MPNetTokenizer");
    if (i < 2) {
      char path[512];
      snprintf(path, sizeof path, FIXTURES "%s/golden.json", names[i]);
      golden_t golden = golden_open(path);
      check_texts(names[i], folder, &golden, NULL);
      golden_close(&golden);
    } else {
      RUN(&run, "embed", folder, "a text", "--device", "cpu");
      check_refused(&run, "the tokenizer_class 'MPNetTokenizer' is not BERT's");
    }
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(every_model_equals_sentence_transformers) {
  size_t checked = 0;
  strcpy(folder, "/tmp/mlxcel-embedders-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_list_dir(FIXTURES, check_model, &checked));
  CHECK_INT(checked, listed_files("fixtures/embedders/", "/golden.json"));
  CHECK_OK(mlx_remove_tree(folder));
}

// Copies |name| of the fixture |model| into the folder.
static void link_file(const char *model, const char *name) {
  char from[512];
  snprintf(from, sizeof from, FIXTURES "%s/%s", model, name);
  CHECK(!symlink(from, in_folder(name)));
}

TEST(a_decoder_without_a_head_generates_no_text) {
  command_t run;
  RUN(&run, "run", FIXTURES "mistral", "a text", "--device", "cpu");
  check_refused(&run, "the model has no output head: it computes embeddings and generates no text");
}

// The folder becomes a copy of the fixture |model| without the folders of its modules.
static void link_model(const char *model) {
  static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "modules.json"};
  strcpy(folder, "/tmp/mlxcel-embedders-XXXXXX");
  CHECK(mkdtemp(folder));
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) link_file(model, files[i]);
}

TEST(a_decoder_pools_its_last_token_only) {
  static const char pooling[] = "{\"pooling_mode_mean_tokens\": true}";
  command_t run;
  link_model("qwen3");
  CHECK_OK(mlx_make_dirs(in_folder("1_Pooling"), 0700));
  CHECK_OK(mlx_write_file(in_folder("1_Pooling/config.json"), pooling, strlen(pooling)));
  RUN(&run, "embed", folder, "a text", "--device", "cpu");
  check_refused(&run, "pools by 'mean', and qwen3 is a decoder");
  CHECK_OK(mlx_remove_tree(folder));
}

static void write_dense(const char *act) {
  char config[256];
  snprintf(config, sizeof config,
           "{\"in_features\": 32, \"out_features\": 64, \"bias\": false, \"activation_function\": "
           "\"torch.nn.modules.%s\"}",
           act);
  CHECK_OK(mlx_write_file(in_folder("2_Dense/config.json"), config, strlen(config)));
}

TEST(layers_after_the_pool_belong_to_the_model) {
  command_t run, changed;
  char *bytes;
  size_t length;
  link_model("embeddinggemma");
  link_file("embeddinggemma", "1_Pooling");
  link_file("embeddinggemma", "3_Dense");
  CHECK_OK(mlx_make_dirs(in_folder("2_Dense"), 0700));
  CHECK_OK(mlx_read_file(FIXTURES "embeddinggemma/2_Dense/model.safetensors", 1 << 20, &bytes, &length));
  CHECK_OK(mlx_write_file(in_folder("2_Dense/model.safetensors"), bytes, length));
  write_dense("linear.Identity");
  RUN(&run, "embed", folder, "a text", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  bytes[length - 1] ^= 0x80;  // the sign of a weight
  CHECK_OK(mlx_write_file(in_folder("2_Dense/model.safetensors"), bytes, length));
  RUN(&changed, "embed", in_folder(""), "a text", "--device", "cpu");
  CHECK_INT(changed.exit_code, 0);
  CHECK(strcmp(run.out, changed.out) != 0);
  command_free(&run);
  write_dense("activation.Tanh");
  RUN(&run, "embed", folder, "a text", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  CHECK(strcmp(run.out, changed.out) != 0);
  command_free(&run);
  command_free(&changed);
  write_dense("activation.Softsign");
  RUN(&run, "embed", folder, "a text", "--device", "cpu");
  CHECK_CONTAINS(run.err, "2_Dense/config.json: field 'activation_function' must be Identity, Tanh");
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  command_free(&run);
  CHECK(!unlink(in_folder("2_Dense/model.safetensors")));
  RUN(&run, "embed", folder, "a text", "--device", "cpu");
  CHECK_CONTAINS(run.err, "2_Dense/model.safetensors");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  command_free(&run);
  mlx_free(bytes);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(a_directory_with_vocab_txt_equals_sentence_transformers),
          CASE(every_model_equals_sentence_transformers), CASE(a_decoder_without_a_head_generates_no_text),
          CASE(a_decoder_pools_its_last_token_only), CASE(layers_after_the_pool_belong_to_the_model))
