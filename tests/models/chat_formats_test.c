// The built-in chat formats render as in jinja2 and match the formats that the models were trained on.
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "tests/support/check.h"

#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/chat_formats.json"

static mlx_json_t open_goldens(void) {
  char *text;
  size_t length;
  mlx_json_t json;
  CHECK_OK(mlx_read_file(GOLDENS, SIZE_MAX, &text, &length));
  CHECK_OK(mlx_json_parse("chat_formats.json", text, length, &json));
  mlx_free(text);
  return json;
}

static char *as_json(yyjson_val *value, size_t *out_length) {
  char *text = yyjson_val_write(value, 0, out_length);
  CHECK(text);
  return text;
}

// A chat with the built-in format |name| and the special tokens of |tokens|, a JSON object.
static mlx_chat_t *create_chat(const char *name, const char *tokens) {
  char json[256];
  mlx_chat_t *chat;
  const char *source = mlx_chat_format(name);
  if (!source) CHECK_FAIL("unknown format %s", name);
  const int length = snprintf(json, sizeof json, "{\"templates\": {}, \"tokens\": %s}", tokens);
  CHECK_OK(mlx_chat_create_from_source(name, source, strlen(source), json, (size_t)length, &chat));
  return chat;
}

static void check_format(yyjson_val *format, yyjson_val *conversations, const char *tokens) {
  const char *name = yyjson_get_str(yyjson_obj_get(format, "name"));
  mlx_chat_t *chat = create_chat(name, tokens);
  size_t index, count;
  yyjson_val *conversation;
  CHECK_TEXT(mlx_chat_format(name), yyjson_get_str(yyjson_obj_get(format, "source")));
  yyjson_arr_foreach(conversations, index, count, conversation) {
    mlx_chat_options_t options;
    size_t messages_length, length;
    char *messages = as_json(yyjson_obj_get(conversation, "messages"), &messages_length), *text;
    mlx_chat_options_initialize(&options);
    options.add_generation_prompt = yyjson_get_bool(yyjson_obj_get(conversation, "add_generation_prompt"));
    CHECK_OK(mlx_chat_render(chat, messages, messages_length, &options, &text, &length));
    const char *expected = yyjson_get_str(yyjson_arr_get(yyjson_obj_get(format, "texts"), index));
    if (!expected || strcmp(text, expected))
      CHECK_FAIL("%s, conversation %zu:\n%s\n  expected\n%s", name, index, text, expected);
    mlx_chat_free_text(text);
    free(messages);
  }
  mlx_chat_free(chat);
}

TEST(every_format_renders_as_in_jinja2) {
  mlx_json_t json = open_goldens();
  char *tokens = as_json(yyjson_obj_get(json.root, "tokens"), NULL);
  yyjson_val *formats = yyjson_obj_get(json.root, "formats"), *format;
  size_t index, count, known = 0;
  yyjson_arr_foreach(formats, index, count, format)
      check_format(format, yyjson_obj_get(json.root, "conversations"), tokens);
  for (const char *const *name = mlx_chat_format_names(); *name; ++name) ++known;
  CHECK_INT(known, yyjson_arr_size(formats));
  free(tokens);
  mlx_json_close(&json);
}

// The expected texts come from the model authors' documentation.
TEST(every_format_matches_the_format_its_models_were_trained_on) {
  static const char *const expected[][2] = {
      {"chatml",
       "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n"
       "B<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"deepseek2", "<s>S\n\nUser: A\n\nAssistant: B</s>User: C\n\nAssistant:"},
      {"gemma",
       "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
       "<start_of_turn>user\nC<end_of_turn>\n"
       "<start_of_turn>model\n"},
      {"llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"},
      {"llama3",
       "<s><|start_header_id|>system<|end_header_id|>\n\n"
       "S<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
       "A<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
       "B<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
       "C<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"mistral", "<s>[INST] S\n\nA[/INST] B</s>[INST] C[/INST]"},
      {"phi3",
       "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n"
       "<|assistant|>\n"},
      {"vicuna", "<s>S\n\nUSER: A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:"},
      {"zephyr",
       "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n<|assistant|>\n"},
  };
  static const char messages[] =
      "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"A\"},"
      " {\"role\": \"assistant\", \"content\": \"B\"}, {\"role\": \"user\", \"content\": \"C\"}]";
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    mlx_chat_t *chat = create_chat(expected[i][0], "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    mlx_chat_options_t options;
    char *text;
    size_t length;
    mlx_chat_options_initialize(&options);
    CHECK_OK(mlx_chat_render(chat, messages, strlen(messages), &options, &text, &length));
    CHECK_TEXT(text, expected[i][1]);
    mlx_chat_free_text(text);
    mlx_chat_free(chat);
  }
}

static char *render(const mlx_chat_t *chat, const char *messages) {
  mlx_chat_options_t options;
  char *text;
  size_t length;
  mlx_chat_options_initialize(&options);
  CHECK_OK(mlx_chat_render(chat, messages, strlen(messages), &options, &text, &length));
  return text;
}

// These models have a chat template of the same format; ./build.sh test fetches it.
TEST(formats_match_the_templates_of_real_models) {
  static const char *const pairs[][2] = {{"chatml", "Qwen-Qwen2.5-7B-Instruct"},
                                         {"gemma", "google-gemma-2-2b-it"},
                                         {"phi3", "microsoft-Phi-3.5-mini-instruct"}};
  static const char tokens[] =
      "{\"templates\": {}, \"tokens\": {\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}}";
  const char *folder = getenv("MLXCEL_TEMPLATES") ? getenv("MLXCEL_TEMPLATES")
                                                  : MLXCEL_MODELS "/../deps/llama.cpp/models/templates";
  for (size_t i = 0; i < 3; ++i) {
    char path[512], *source;
    size_t length;
    mlx_chat_t *from_model,
        *built_in = create_chat(pairs[i][0], "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    snprintf(path, sizeof path, "%s/%s.jinja", folder, pairs[i][1]);
    CHECK_OK(mlx_read_file(path, SIZE_MAX, &source, &length));
    CHECK_OK(mlx_chat_create_from_source(path, source, length, tokens, strlen(tokens), &from_model));
    const bool system = strcmp(pairs[i][0], "gemma");  // the Gemma template refuses a system message
    char messages[256];
    snprintf(messages, sizeof messages,
             "[%s{\"role\": \"user\", \"content\": \"A\"}, {\"role\": \"assistant\", \"content\": \"B\"},"
             " {\"role\": \"user\", \"content\": \"C\"}]",
             system ? "{\"role\": \"system\", \"content\": \"S\"}, " : "");
    char *expected = render(from_model, messages), *text = render(built_in, messages);
    CHECK_TEXT(text, expected);
    mlx_chat_free_text(text);
    mlx_chat_free_text(expected);
    mlx_chat_free(built_in);
    mlx_chat_free(from_model);
    mlx_free(source);
  }
}

TEST(a_user_template_is_checked_when_it_is_loaded) {
  static const char bad[] = "a\nb\n{% if %}",
                    json[] = "{\"templates\": {\"default\": \"x\"}, \"tokens\": {\"bos_token\": \"<s>\"}}";
  mlx_chat_t *chat;
  mlx_chat_options_t options;
  char *text;
  size_t length;
  CHECK_ERROR(mlx_chat_create_from_source("my.jinja", bad, strlen(bad), NULL, 0, &chat), MLX_INVALID_INPUT,
              "my.jinja, line 3: ");
  CHECK_ERROR(mlx_chat_create_from_source("my.jinja", "x", 1, "{", 1, &chat), MLX_INVALID_INPUT,
              "my.jinja: not valid JSON");
  CHECK_OK(mlx_chat_create_from_source("my.jinja", "{{ bos_token }}{{ eos_token }}y", 31, json, strlen(json),
                                       &chat));
  mlx_chat_options_initialize(&options);
  CHECK_OK(mlx_chat_render(chat, "[]", 2, &options, &text, &length));
  CHECK_TEXT(text, "<s>y");  // replaces the model's template and keeps its tokens
  mlx_chat_free_text(text);
  mlx_chat_free(chat);
  CHECK_OK(mlx_chat_create("x", "{\"templates\": {}, \"tokens\": {}}", 31, &chat));
  CHECK(!chat);
}

TEST_MAIN(CASE(every_format_renders_as_in_jinja2),
          CASE(every_format_matches_the_format_its_models_were_trained_on),
          CASE(formats_match_the_templates_of_real_models),
          CASE(a_user_template_is_checked_when_it_is_loaded))
