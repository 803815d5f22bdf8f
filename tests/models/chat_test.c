// Chat templates end to end: importing them from model files, bundling them, `mlxcel template` and `mlxcel
// run`.
#include "models/import/chat.h"
#include "base/json.h"
#include "runtime/rooms.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/import_files.h"
#include "tokenizer/tokenizer.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TEMPLATE                                                                                     \
  "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\\n{% endfor %}{% if " \
  "add_generation_prompt "                                                                           \
  "%}[assistant]{% endif %}"

static void put_file(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(in_folder(name), text, strlen(text)));
}

static mlx_status_t link_name(void *user, const char *name) {
  (void)user;
  char from[256], to[160];
  snprintf(from, sizeof from, "%s/%s", TINY, name);
  snprintf(to, sizeof to, "%s/m/%s", folder, name);
  CHECK(!symlink(from, to));
  return NULL;
}

// Makes a copy of the tiny model (symlinks) to which tests can add files.
static void make_model(void) {
  strcpy(folder, "/tmp/mlxcel-chat-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_make_dirs(in_folder("m"), 0700));
  CHECK_OK(mlx_list_dir(TINY, link_name, NULL));
}

static void remove_model(void) { CHECK_OK(mlx_remove_tree(folder)); }

// Imports the model and checks the member |key| of |group| in its chat.json; NULL: absent.
static void check_chat_json(const char *group, const char *key, const char *expected) {
  mlx_hf_t *hf;
  char *text;
  size_t length;
  mlx_json_t json;
  CHECK_OK(mlx_hf_open(in_folder("m"), &hf));
  CHECK_OK(mlx_hf_chat_json(hf, &text, &length));
  CHECK(text);
  CHECK_OK(mlx_json_parse("chat.json", text, length, &json));
  const char *have = yyjson_get_str(yyjson_obj_get(yyjson_obj_get(json.root, group), key));
  if (expected) {
    CHECK_TEXT(have, expected);
  } else {
    CHECK(!have);
  }
  mlx_json_close(&json);
  mlx_free(text);
  mlx_hf_close(hf);
}

TEST(import_reads_templates_and_tokens_of_a_hugging_face_directory) {
  make_model();
  mlx_hf_t *hf;
  char *text;
  size_t length;
  CHECK_OK(mlx_hf_open(in_folder("m"), &hf));
  CHECK_OK(mlx_hf_chat_json(hf, &text, &length));
  CHECK(!text);  // the model has no template
  mlx_hf_close(hf);
  put_file("m/chat_template.json", "{\"chat_template\": \"P\"}");  // of a multimodal model's processor
  check_chat_json("templates", "default", "P");
  put_file("m/tokenizer_config.json",
           "{\"chat_template\": \"A\", \"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"},"
           " \"pad_token\": null}");
  check_chat_json("templates", "default", "A");
  check_chat_json("tokens", "bos_token", "<s>");
  check_chat_json("tokens", "eos_token", "</s>");
  check_chat_json("tokens", "pad_token", NULL);
  put_file("m/special_tokens_map.json", "{\"pad_token\": \"<pad>\", \"bos_token\": \"other\"}");
  check_chat_json("tokens", "pad_token", "<pad>");
  check_chat_json("tokens", "bos_token", "<s>");
  put_file("m/tokenizer_config.json",
           "{\"chat_template\": [{\"name\": \"default\", \"template\": \"B\"}, {\"name\": \"tool_use\","
           " \"template\": \"C\"}]}");
  check_chat_json("templates", "default", "B");
  check_chat_json("templates", "tool_use", "C");
  put_file("m/chat_template.jinja", "D\n");
  check_chat_json("templates", "default", "D\n");
  check_chat_json("templates", "tool_use", NULL);  // as in transformers, the files replace the list
  CHECK_OK(mlx_make_dirs(in_folder("m/additional_chat_templates"), 0700));
  put_file("m/additional_chat_templates/rag.jinja", "E");
  check_chat_json("templates", "rag", "E");
  put_file("m/tokenizer_config.json", "{\"chat_template\": 5}");
  CHECK_OK(mlx_remove_tree(in_folder("m/chat_template.jinja")));
  CHECK_OK(mlx_remove_tree(in_folder("m/additional_chat_templates")));
  CHECK_OK(mlx_hf_open(in_folder("m"), &hf));
  CHECK_ERROR(mlx_hf_chat_json(hf, &text, &length), MLX_INVALID_INPUT,
              "tokenizer_config.json: field 'chat_template' must be a string or a list");
  mlx_hf_close(hf);
  remove_model();
}

TEST(import_reads_templates_and_tokens_of_gguf_metadata) {
  bytes_t file = {0};
  static const char *const names[] = {"tool_use"};
  put_header(&file, 3, 0, 11);
  put_field_string(&file, "general.architecture", "llama");
  put_tokenizer(&file, "smollm");
  put_field(&file, "tokenizer.ggml.bos_token_id", MLX_GGUF_U32, 1, 4);
  // An id beyond the vocabulary is ignored.
  put_field(&file, "tokenizer.ggml.eos_token_id", MLX_GGUF_U32, 9999, 4);
  put_field_string(&file, "tokenizer.chat_template", "A");
  put_field_strings(&file, "tokenizer.chat_templates", names, 1);
  put_field_string(&file, "tokenizer.chat_template.tool_use", "B \"x\"");
  put_padding(&file, 32);
  mlx_gguf_t *gguf;
  char *text, wanted[256];
  size_t length;
  CHECK_OK(mlx_gguf_parse("x.gguf", (const uint8_t *)file.data, file.length, &gguf));
  CHECK_OK(mlx_gguf_chat_json(gguf, &text, &length));
  snprintf(wanted, sizeof wanted,
           "{\n  \"templates\": {\n    \"default\": \"A\",\n    \"tool_use\": \"B \\\"x\\\"\"\n  },\n"
           "  \"tokens\": {\"bos_token\": \"%s\"}\n}\n",
           sample_tokens[1]);
  CHECK_TEXT(text, wanted);
  mlx_free(text);
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
}

static void put_tiny_template(void) {
  put_file("m/tokenizer_config.json", "{\"chat_template\": \"" TEMPLATE "\", \"bos_token\": \"<B>\"}");
}

TEST(template_verb_prints_the_rendered_prompt) {
  command_t run;
  make_model();
  put_tiny_template();
  put_file(
      "messages.json",
      "[{\"role\": \"system\", \"content\": \"Be <kind>.\"}, {\"role\": \"user\", \"content\": \" Hi é \"}]");
  RUN(&run, "template", "-m", in_folder("m"), "--messages", in_folder("messages.json"));
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "");
  CHECK_TEXT(run.out, "<B>[system] Be <kind>.\n[user] Hi é\n");
  command_free(&run);
  RUN(&run, "template", "-m", in_folder("m"), "--messages", in_folder("messages.json"),
      "--add-generation-prompt", "--variables", "{\"bos_token\": \"\"}");
  CHECK_TEXT(run.out, "[system] Be <kind>.\n[user] Hi é\n[assistant]");
  command_free(&run);
  RUN(&run, "template", "-m", in_folder("m"), "--show");
  CHECK_CONTAINS(run.out, "{% for m in messages %}[{{ m.role }}]");
  command_free(&run);
  remove_model();
}

TEST(a_real_gguf_file_renders_with_its_template) {
  static const char model[] = MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf";
  command_t run;
  strcpy(folder, "/tmp/mlxcel-chat-XXXXXX");
  CHECK(mkdtemp(folder));
  put_file("messages.json", "[{\"role\": \"user\", \"content\": \"Hi\"}]");
  RUN(&run, "template", "-m", model, "--messages", in_folder("messages.json"), "--add-generation-prompt");
  CHECK_TEXT(
      run.out,
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  command_free(&run);
  remove_model();
}

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

TEST(failed_renders_report_the_cause) {
  command_t run;
  RUN(&run, "template", "-m", TINY, "--show");
  check_refused(&run, MLX_NOT_FOUND, "tiny-llama has no chat template");
  RUN(&run, "template", "-m", TINY);
  check_refused(&run, MLX_USAGE, "no conversation was given");
  RUN(&run, "template", "--show");
  check_refused(&run, MLX_USAGE, "no model was given");
  RUN(&run, "run", "-m", TINY, "--tools", "/dev/null", "-p", "x");
  check_refused(&run, MLX_NOT_FOUND, "tiny-llama has no chat template");
  RUN(&run, "run", "-m", TINY, "-sys", "x", "-p", "x");
  check_refused(&run, MLX_NOT_FOUND, "tiny-llama has no chat template");
  RUN(&run, "run", TINY, "x", "-sys", "x", "--raw");
  check_refused(&run, MLX_USAGE, "--raw completes the text without the chat template, so -sys has no effect");
  make_model();
  put_file("m/tokenizer_config.json",
           "{\"chat_template\": \"a\\n{{ raise_exception('no ' ~ messages[0].role) }}\"}");
  put_file("messages.json", "[{\"role\": \"user\"}]");
  RUN(&run, "template", "-m", in_folder("m"), "--messages", in_folder("messages.json"));
  check_refused(&run, MLX_INVALID_INPUT,
                "m: chat template, line 2: the template refuses the conversation: no user");
  RUN(&run, "run", "-m", in_folder("m"), "-p", "x");
  check_refused(&run, MLX_INVALID_INPUT, "the template refuses the conversation: no user");
  put_file("m/tokenizer_config.json", "{\"chat_template\": \"{% for %}\"}");
  RUN(&run, "run", in_folder("m"), "x");
  CHECK_CONTAINS(run.err, "hint: --raw completes the prompt without the chat template");
  check_refused(&run, MLX_INVALID_INPUT, "m: chat template, line 1: ");
  RUN(&run, "run", in_folder("m"), "the", "--raw", "-n", "1", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  put_tiny_template();
  put_file("messages.json", "{}");
  RUN(&run, "template", "-m", in_folder("m"), "--messages", in_folder("messages.json"));
  check_refused(&run, MLX_INVALID_INPUT, "messages: expected a list of objects");
  RUN(&run, "template", "-m", in_folder("m"), "--show", "--name", "rag");
  check_refused(&run, MLX_NOT_FOUND, "has no chat template named 'rag'");
  remove_model();
}

// prompt_ids of a run with --json.
static yyjson_val *prompt_ids(const command_t *run, mlx_json_t *out_json) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  CHECK_OK(mlx_json_parse("stdout", run->out, run->out_length, out_json));
  return yyjson_obj_get(out_json->root, "prompt_ids");
}

// The rendered text is the whole prompt: no BOS token is added.
static void check_chat_prompt(const char *model) {
  command_t run;
  mlx_json_t json;
  mlx_tokenizer_t *tokenizer;
  static const char text[] = "<B>[system] the\n[user] quick\n[assistant]";
  char *file;
  int32_t *ids;
  size_t length, count;
  CHECK_OK(mlx_read_file(TINY "/tokenizer.json", SIZE_MAX, &file, &length));
  CHECK_OK(mlx_tokenizer_create("tiny", file, length, &tokenizer));
  CHECK_OK(mlx_tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &count));
  RUN(&run, "run", "-m", model, "-sys", "the", "-p", "quick", "-n", "2", "--json", "--device", "cpu");
  yyjson_val *list = prompt_ids(&run, &json);
  CHECK_INT(yyjson_arr_size(list), count);
  for (size_t i = 0; i < count; ++i) CHECK_INT(yyjson_get_sint(yyjson_arr_get(list, i)), ids[i]);
  mlx_json_close(&json);
  command_free(&run);
  mlx_free(ids);
  mlx_free(file);
  mlx_tokenizer_free(tokenizer);
}

TEST(a_chat_runs_from_a_directory_and_from_a_bundle_with_its_template) {
  command_t run;
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  make_model();
  put_tiny_template();
  check_chat_prompt(in_folder("m"));
  RUN(&run, "compile", in_folder("m"), "-o", in_folder("c.mlxb"));
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  check_chat_prompt(in_folder("c.mlxb"));
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  CHECK_OK(mlx_engine_open_bundle(in_folder("c.mlxb"), &options, &engine));
  CHECK_CONTAINS(mlx_chat_source(mlx_engine_chat(engine), NULL, false), "{{ bos_token }}");
  mlx_engine_close(engine);
  // Overwrites the bundle with one that has no template.
  RUN(&run, "compile", TINY, "-o", in_folder("c.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  CHECK_OK(mlx_engine_open_bundle(in_folder("c.mlxb"), &options, &engine));
  CHECK(!mlx_engine_chat(engine));
  mlx_engine_close(engine);
  remove_model();
}

// A model without a chat template still provides its special tokens to a built-in format.
TEST(a_built_in_format_uses_the_special_tokens_of_the_model) {
  command_t run;
  make_model();
  put_file("m/tokenizer_config.json", "{\"bos_token\": \"<B>\", \"eos_token\": \"<E>\"}");
  put_file("messages.json",
           "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Ho\"}]");
  RUN(&run, "template", "-m", in_folder("m"), "--show");
  check_refused(&run, MLX_NOT_FOUND, "has no chat template");
  RUN(&run, "compile", in_folder("m"), "-o", in_folder("c.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "template", "-m", in_folder("c.mlxb"), "--show");
  check_refused(&run, MLX_NOT_FOUND, "has no chat template");
  RUN(&run, "run", "-m", in_folder("c.mlxb"), "-p", "the", "-n", "1", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  for (int i = 0; i < 2; ++i) {
    RUN(&run, "template", "-m", in_folder(i ? "c.mlxb" : "m"), "--messages", in_folder("messages.json"),
        "--chat-template", "llama2");
    CHECK_TEXT(run.err, "");
    CHECK_TEXT(run.out, "<B>[INST] Hi [/INST] Ho <E>");
    command_free(&run);
  }
  remove_model();
}

TEST_MAIN(CASE(import_reads_templates_and_tokens_of_a_hugging_face_directory),
          CASE(import_reads_templates_and_tokens_of_gguf_metadata),
          CASE(template_verb_prints_the_rendered_prompt), CASE(a_real_gguf_file_renders_with_its_template),
          CASE(failed_renders_report_the_cause),
          CASE(a_chat_runs_from_a_directory_and_from_a_bundle_with_its_template),
          CASE(a_built_in_format_uses_the_special_tokens_of_the_model))
