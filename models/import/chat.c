// Collects chat templates and special tokens and writes chat.json; see chat.h.
#include "models/import/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/text.h"

#define MAX_CONFIG ((size_t)64 << 20)
#define MAX_TEMPLATE ((size_t)4 << 20)
#define MAX_TEMPLATES 32
#define TEMPLATE_FILE "chat_template.jinja"
#define PROCESSOR_FILE "chat_template.json"  // older multimodal directories
#define NAMED_TEMPLATES "additional_chat_templates"
#define CONFIG_FILE "tokenizer_config.json"
#define TOKENS_FILE "special_tokens_map.json"

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
#define TOKEN_NAMES (sizeof token_names / sizeof *token_names)

// ----------------------------------------------------------------------------------------------------------
// Writing: named templates, of which the first with a name wins, and special tokens

typedef struct chat_template {
  char *name, *text;  // owned
  size_t length;
} chat_template_t;

typedef struct chat {
  chat_template_t templates[MAX_TEMPLATES];
  size_t count;
  mlx_text_t tokens;       // a JSON object without its end; "": no tokens
  mlx_json_writer_t json;  // of |tokens|
} chat_t;

static mlx_status_t add_template(chat_t *chat, const char *name, size_t name_length, const char *text,
                                 size_t length) {
  for (size_t i = 0; i < chat->count; ++i) {
    if (strlen(chat->templates[i].name) == name_length && !memcmp(chat->templates[i].name, name, name_length))
      return NULL;
  }
  if (chat->count == MAX_TEMPLATES)
    return mlx_error(MLX_UNSUPPORTED, "the model has more than %d chat templates", MAX_TEMPLATES);
  chat_template_t *added = &chat->templates[chat->count++];
  added->length = length;
  MLX_TRY(mlx_copy_text(name, name_length, &added->name));
  return mlx_copy_text(text, length, &added->text);
}

static void add_token(chat_t *chat, const char *name, const char *text, size_t length) {
  chat->json.out = &chat->tokens;
  if (!chat->json.depth) mlx_json_begin_object(&chat->json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_bytes(&chat->json, name, text, length);
}

static mlx_status_t write_chat(chat_t *chat, char **out_json, size_t *out_length) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  *out_json = NULL;
  *out_length = 0;
  if (!chat->count && !chat->json.depth) return NULL;
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_begin_object(&json, "templates", MLX_JSON_LINES);
  for (size_t i = 0; i < chat->count; ++i)
    mlx_json_put_bytes(&json, chat->templates[i].name, chat->templates[i].text, chat->templates[i].length);
  mlx_json_end(&json);
  if (chat->json.depth) mlx_json_end(&chat->json);
  mlx_status_t status = mlx_text_finish(&chat->tokens);
  if (chat->tokens.length)
    mlx_json_put_raw(&json, "tokens", chat->tokens.data, chat->tokens.length);
  else
    mlx_json_put_raw(&json, "tokens", "{}", 2);
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  status = mlx_status_join(status, mlx_text_take(&text, out_json, out_length));
  mlx_text_clear(&text);
  return status;
}

static void clear_chat(chat_t *chat) {
  for (size_t i = 0; i < chat->count; ++i) {
    mlx_free(chat->templates[i].name);
    mlx_free(chat->templates[i].text);
  }
  mlx_text_clear(&chat->tokens);
}

// ----------------------------------------------------------------------------------------------------------
// Hugging Face

typedef struct folder {
  const char *path;
  chat_t *chat;
} folder_t;

static mlx_status_t add_file(chat_t *chat, const char *folder, const char *file, const char *name,
                             size_t name_length) {
  char *path, *text = NULL;
  size_t length;
  MLX_TRY(mlx_join_path(folder, file, &path));
  mlx_status_t status = NULL;
  if (mlx_is_file(path)) {
    status = mlx_read_file(path, MAX_TEMPLATE, &text, &length);
    if (!status) status = add_template(chat, name, name_length, text, length);
  }
  mlx_free(text);
  mlx_free(path);
  return status;
}

// The start of the ".jinja" extension; NULL if |file| is not a template.
static const char *template_extension(const char *file) {
  const char *dot = strrchr(file, '.');
  return dot && dot != file && !strcmp(dot, ".jinja") ? dot : NULL;
}

static mlx_status_t add_named_file(void *user, const char *file) {
  const folder_t *folder = user;
  const char *dot = template_extension(file);
  if (!dot) return NULL;
  return add_file(folder->chat, folder->path, file, file, (size_t)(dot - file));
}

static mlx_status_t add_named_files(chat_t *chat, const char *model) {
  char *path;
  MLX_TRY(mlx_join_path(model, NAMED_TEMPLATES, &path));
  folder_t folder = {path, chat};
  mlx_status_t status = mlx_is_dir(path) ? mlx_list_dir(path, add_named_file, &folder) : NULL;
  mlx_free(path);
  return status;
}

// chat_template is one template or a list of {"name": ..., "template": ...}.
static mlx_status_t add_config_templates(chat_t *chat, const mlx_json_t *json) {
  yyjson_val *value = mlx_json_find(json->root, "chat_template"), *item;
  size_t index, count;
  if (!value) return NULL;
  if (yyjson_is_str(value))
    return add_template(chat, "default", 7, yyjson_get_str(value), yyjson_get_len(value));
  if (!yyjson_is_arr(value)) return mlx_json_error(json, "chat_template", "must be a string or a list");
  yyjson_arr_foreach(value, index, count, item) {
    yyjson_val *name = yyjson_obj_get(item, "name"), *text = yyjson_obj_get(item, "template");
    if (!yyjson_is_str(name) || !yyjson_is_str(text))
      return mlx_json_error(json, "chat_template", "must be a list of objects with 'name' and 'template'");
    MLX_TRY(add_template(chat, yyjson_get_str(name), yyjson_get_len(name), yyjson_get_str(text),
                         yyjson_get_len(text)));
  }
  return NULL;
}

// A token is a string or an object with the string as "content".
static bool add_config_token(chat_t *chat, const mlx_json_t *json, const char *name) {
  yyjson_val *value = json->root ? mlx_json_find(json->root, name) : NULL;
  if (yyjson_is_obj(value)) value = yyjson_obj_get(value, "content");
  if (!yyjson_is_str(value)) return false;
  add_token(chat, name, yyjson_get_str(value), yyjson_get_len(value));
  return true;
}

// Leaves *|out_json| empty if the file does not exist.
static mlx_status_t open_json(const char *folder, const char *name, char **out_path, mlx_json_t *out_json) {
  char *text = NULL;
  size_t length;
  MLX_TRY(mlx_join_path(folder, name, out_path));
  if (!mlx_is_file(*out_path)) return NULL;
  mlx_status_t status = mlx_read_file(*out_path, MAX_CONFIG, &text, &length);
  if (!status) status = mlx_json_parse(*out_path, text, length, out_json);
  mlx_free(text);
  return status;
}

static mlx_status_t add_processor_templates(chat_t *chat, const char *folder) {
  char *path = NULL;
  mlx_json_t json = {0};
  mlx_status_t status = open_json(folder, PROCESSOR_FILE, &path, &json);
  if (!status && json.root) status = add_config_templates(chat, &json);
  mlx_json_close(&json);
  mlx_free(path);
  return status;
}

static mlx_status_t read_folder(chat_t *chat, const char *folder, const mlx_json_t *config,
                                const mlx_json_t *map) {
  MLX_TRY(add_file(chat, folder, TEMPLATE_FILE, "default", 7));
  MLX_TRY(add_named_files(chat, folder));
  if (!chat->count && config->root) MLX_TRY(add_config_templates(chat, config));
  if (!chat->count) MLX_TRY(add_processor_templates(chat, folder));
  for (size_t i = 0; i < TOKEN_NAMES; ++i) {
    if (!add_config_token(chat, config, token_names[i])) add_config_token(chat, map, token_names[i]);
  }
  return NULL;
}

mlx_status_t mlx_hf_chat_json(const mlx_hf_t *hf, char **out_json, size_t *out_length) {
  chat_t chat = {0};
  mlx_json_t config = {0}, map = {0};
  char *config_path = NULL, *map_path = NULL;
  *out_json = NULL;
  mlx_status_t status = open_json(hf->folder, CONFIG_FILE, &config_path, &config);
  if (!status) status = open_json(hf->folder, TOKENS_FILE, &map_path, &map);
  if (!status) status = read_folder(&chat, hf->folder, &config, &map);
  if (!status) status = write_chat(&chat, out_json, out_length);
  mlx_json_close(&config);
  mlx_json_close(&map);
  mlx_free(config_path);
  mlx_free(map_path);
  clear_chat(&chat);
  return status;
}

typedef struct visitor {
  const char *folder;
  mlx_visit_fn_t visit;
  void *user;
} visitor_t;

// Visits the file |name| if it exists.
static mlx_status_t visit_file(const visitor_t *visitor, const char *name) {
  char *path;
  MLX_TRY(mlx_join_path(visitor->folder, name, &path));
  const bool exists = mlx_is_file(path);
  mlx_free(path);
  return exists ? visitor->visit(visitor->user, name) : NULL;
}

static mlx_status_t visit_template(void *user, const char *file) {
  char name[sizeof NAMED_TEMPLATES + 256];
  if (!template_extension(file)) return NULL;
  snprintf(name, sizeof name, NAMED_TEMPLATES "/%s", file);
  return visit_file(user, name);
}

mlx_status_t mlx_hf_chat_files(const mlx_hf_t *hf, mlx_visit_fn_t visit, void *user) {
  static const char *const files[] = {TEMPLATE_FILE, CONFIG_FILE, PROCESSOR_FILE, TOKENS_FILE};
  visitor_t visitor = {.folder = hf->folder, .visit = visit, .user = user};
  char *path;
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) MLX_TRY(visit_file(&visitor, files[i]));
  MLX_TRY(mlx_join_path(hf->folder, NAMED_TEMPLATES, &path));
  mlx_status_t status = mlx_is_dir(path) ? mlx_list_dir(path, visit_template, &visitor) : NULL;
  mlx_free(path);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// GGUF

static mlx_status_t add_gguf_template(chat_t *chat, const mlx_gguf_t *gguf, const char *key, const char *name,
                                      size_t name_length) {
  const char *text;
  bool found;
  MLX_TRY(mlx_gguf_string(gguf, key, &text, &found));
  return found ? add_template(chat, name, name_length, text, strlen(text)) : NULL;
}

// llama.cpp's converter writes the template "rerank" as text with {query} and {document}. It becomes a Jinja
// template, which drops a newline at its end.
static mlx_status_t add_rerank_template(chat_t *chat, const char *text) {
  static const struct {
    const char *mark, *jinja;
  } roles[] = {
      {"{query}",
       "{{ messages | selectattr('role', 'equalto', 'query') | map(attribute='content') | first }}"},
      {"{document}",
       "{{ messages | selectattr('role', 'equalto', 'document') | map(attribute='content') | first }}"}};
  mlx_text_t jinja = {0};
  while (*text) {
    size_t mark = 0;
    for (int i = 0; i < 2 && !mark; ++i) {
      if (strncmp(text, roles[i].mark, strlen(roles[i].mark))) continue;
      mark = strlen(roles[i].mark);
      mlx_text_puts(&jinja, roles[i].jinja);
    }
    if (!mark) mlx_text_append(&jinja, text, 1);
    text += mark ? mark : 1;
  }
  mlx_text_puts(&jinja, "\n");
  mlx_status_t status = mlx_text_finish(&jinja);
  if (!status) status = add_template(chat, "rerank", 6, jinja.data, jinja.length);
  mlx_text_clear(&jinja);
  return status;
}

static mlx_status_t add_gguf_rerank_template(chat_t *chat, const mlx_gguf_t *gguf) {
  const char *text;
  bool found;
  MLX_TRY(mlx_gguf_string(gguf, "tokenizer.chat_template.rerank", &text, &found));
  return found && strstr(text, "{query}") && strstr(text, "{document}") && !strstr(text, "{{") &&
                 !strstr(text, "{%") && !strstr(text, "{#")
             ? add_rerank_template(chat, text)
             : NULL;
}

static mlx_status_t add_gguf_templates(chat_t *chat, const mlx_gguf_t *gguf) {
  const mlx_gguf_field_t *names = mlx_gguf_find(gguf, "tokenizer.chat_templates");
  MLX_TRY(add_gguf_template(chat, gguf, "tokenizer.chat_template", "default", 7));
  MLX_TRY(add_gguf_rerank_template(chat, gguf));
  if (!names || !names->is_array || names->type != MLX_GGUF_STRING) return NULL;
  const uint8_t *cursor = names->data;
  for (uint64_t i = 0; i < names->count; ++i) {
    size_t length;
    char key[256];
    const char *name = mlx_gguf_next_string(&cursor, &length);
    if (length > 128)
      return mlx_gguf_error(gguf, "tokenizer.chat_templates", MLX_INVALID_INPUT,
                            "has a name longer than 128 bytes");
    snprintf(key, sizeof key, "tokenizer.chat_template.%.*s", (int)length, name);
    MLX_TRY(add_gguf_template(chat, gguf, key, name, length));
  }
  return NULL;
}

static mlx_status_t add_gguf_tokens(chat_t *chat, const mlx_gguf_t *gguf) {
  static const char *const keys[TOKEN_NAMES] = {"bos",     "eos", "unknown", "seperator",
                                                "padding", "cls", "mask"};
  const mlx_gguf_field_t *tokens = mlx_gguf_find(gguf, "tokenizer.ggml.tokens");
  if (!tokens || !tokens->is_array || tokens->type != MLX_GGUF_STRING) return NULL;
  for (size_t i = 0; i < TOKEN_NAMES; ++i) {
    char key[64];
    int64_t id;
    bool found;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", keys[i]);
    MLX_TRY(mlx_gguf_int(gguf, key, 0, UINT32_MAX, &id, &found));
    if (!found || (uint64_t)id >= tokens->count) continue;
    const uint8_t *cursor = tokens->data;
    const char *token = NULL;
    size_t length = 0;
    for (int64_t n = 0; n <= id; ++n) token = mlx_gguf_next_string(&cursor, &length);
    add_token(chat, token_names[i], token, length);
  }
  return NULL;
}

mlx_status_t mlx_gguf_chat_json(const mlx_gguf_t *gguf, char **out_json, size_t *out_length) {
  chat_t chat = {0};
  *out_json = NULL;
  mlx_status_t status = add_gguf_templates(&chat, gguf);
  if (!status) status = add_gguf_tokens(&chat, gguf);
  if (!status) status = write_chat(&chat, out_json, out_length);
  clear_chat(&chat);
  return status;
}
