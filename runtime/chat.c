// Chat templates: renders a conversation as the text that a model was trained to read.
//
// This is the part of transformers' apply_chat_template around jinja2. It selects a template, passes
// messages, tools and the model's special tokens as variables, and renders.
//
// A compiled model contains chat.json for this (written by mlx_source_chat_json):
//   {"templates": {"default": "...", "tool_use": "..."}, "tokens": {"bos_token": "<s>", "eos_token": "</s>"}}
// A model without a template still lists its tokens there, for a template that the user supplies.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/engine_internal.h"
#include "runtime/rooms.h"
#include "template/template.h"

#define MAX_VARIABLES 64
#define MAX_DEPTH 64  // of values in messages whose special tokens are marked

struct mlx_chat {
  mlx_json_t json;
  // Owned; in the order of "templates". NULL for a template that does not parse: only using it is an error.
  mlx_template_t **parsed;
  size_t count;
  char *name;  // owned; for error messages
};

#define MAX_CHAT ((size_t)32 << 20)  // bytes of chat.json

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t read_chat(mlx_chat_t *chat, const char *name, const char *json, size_t length) {
  yyjson_val *templates, *key, *value;
  size_t index, count;
  // Servers show errors with this name to their clients, who must not learn the folder.
  MLX_TRY(mlx_format(&chat->name, "%s: chat template", mlx_file_name(name).text));
  MLX_TRY(mlx_json_parse(chat->name, json, length, &chat->json));
  MLX_TRY(mlx_json_need(&chat->json, chat->json.root, "templates", &templates));
  if (!yyjson_is_obj(templates)) return mlx_json_error(&chat->json, "templates", "must be an object");
  yyjson_obj_foreach(templates, index, count, key, value) {
    if (!yyjson_is_str(value)) return mlx_json_error(&chat->json, "templates", "must hold strings");
  }
  yyjson_val *tokens = mlx_json_find(chat->json.root, "tokens");
  if (tokens && !yyjson_is_obj(tokens)) return mlx_json_error(&chat->json, "tokens", "must be an object");
  MLX_TRY(mlx_alloc(yyjson_obj_size(templates), sizeof *chat->parsed, &chat->parsed));
  yyjson_obj_foreach(templates, index, count, key, value) {
    mlx_status_free(mlx_template_create(chat->name, yyjson_get_str(value), yyjson_get_len(value),
                                        &chat->parsed[chat->count++]));
  }
  return NULL;
}

mlx_status_t mlx_chat_create(const char *name, const char *json, size_t length, mlx_chat_t **out_chat) {
  mlx_chat_t *chat;
  *out_chat = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *chat, &chat));
  mlx_status_t status = read_chat(chat, name, json, length);
  if (status || !chat->count) {
    mlx_chat_free(chat);
    return status;
  }
  *out_chat = chat;
  return NULL;
}

// Writes a chat.json with |source| as its only template and the special tokens of |json|.
static mlx_status_t replace_template(const char *name, const char *source, size_t source_length,
                                     const char *json, size_t length, char **out_json, size_t *out_length) {
  mlx_json_t old = {0};
  char *tokens = NULL;
  mlx_text_t text = {0};
  mlx_json_writer_t writer = {.out = &text};
  if (json) MLX_TRY(mlx_json_parse(name, json, length, &old));
  yyjson_val *known = old.root ? mlx_json_find(old.root, "tokens") : NULL;
  mlx_status_t status = NULL;
  if (known && !(tokens = yyjson_val_write(known, 0, NULL)))
    status = mlx_error(MLX_OUT_OF_MEMORY, "out of memory: %s", name);
  mlx_json_begin_object(&writer, NULL, MLX_JSON_ONE_LINE);
  mlx_json_begin_object(&writer, "templates", MLX_JSON_ONE_LINE);
  mlx_json_put_bytes(&writer, "default", source, source_length);
  mlx_json_end(&writer);
  mlx_json_put_raw(&writer, "tokens", tokens ? tokens : "{}", tokens ? strlen(tokens) : 2);
  mlx_json_end(&writer);
  status = mlx_status_join(status, mlx_text_take(&text, out_json, out_length));
  mlx_text_clear(&text);
  free(tokens);
  mlx_json_close(&old);
  return status;
}

mlx_status_t mlx_chat_create_from_source(const char *name, const char *source, size_t source_length,
                                         const char *json, size_t length, mlx_chat_t **out_chat) {
  char *whole = NULL;
  size_t whole_length;
  mlx_template_t *parsed;
  *out_chat = NULL;
  MLX_TRY(mlx_template_create(name, source, source_length, &parsed));  // reports a syntax error now
  mlx_template_free(parsed);
  mlx_status_t status = replace_template(name, source, source_length, json, length, &whole, &whole_length);
  if (!status) status = mlx_chat_create(name, whole, whole_length, out_chat);
  mlx_free(whole);
  return status;
}

mlx_status_t mlx_chat_missing_error(const char *name) {
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "%s has no chat template", name),
      "supply one with --chat-template NAME; if an older mlxcel compiled the model, compile it "
      "again");
}

mlx_status_t mlx_chat_read_bundle(const char *path, char **out_json, size_t *out_length) {
  mlx_bundle_t *bundle;
  *out_json = NULL;
  *out_length = 0;
  MLX_TRY(mlx_bundle_open(path, &bundle));
  mlx_status_t status = mlx_bundle_lists(bundle, MLX_BUNDLE_CHAT)
                            ? mlx_bundle_read(bundle, MLX_BUNDLE_CHAT, MAX_CHAT, out_json, out_length)
                            : NULL;
  mlx_bundle_close(bundle);
  return status;
}

void mlx_chat_free(mlx_chat_t *chat) {
  if (!chat) return;
  for (size_t i = 0; i < chat->count; ++i) mlx_template_free(chat->parsed[i]);
  mlx_free(chat->parsed);
  mlx_json_close(&chat->json);
  mlx_free(chat->name);
  mlx_free(chat);
}

// ----------------------------------------------------------------------------------------------------------
// Selecting a template

static yyjson_val *templates_of(const mlx_chat_t *chat) {
  return yyjson_obj_get(chat->json.root, "templates");
}

static mlx_status_t no_template_error(const mlx_chat_t *chat, const char *wanted) {
  char names[512] = "";
  size_t index, count;
  yyjson_val *key, *value;
  yyjson_obj_foreach(templates_of(chat), index, count, key, value) {
    size_t length = strlen(names);
    snprintf(names + length, sizeof names - length, "%s%s", index ? ", " : "", yyjson_get_str(key));
  }
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "%s '%s' does not exist", chat->name, wanted),
                         "the templates are: %s", names);
}

static yyjson_val *select_template(const mlx_chat_t *chat, const char *template_name, bool has_tools) {
  yyjson_val *templates = templates_of(chat), *found = NULL;
  if (template_name) return yyjson_obj_get(templates, template_name);
  if (has_tools) found = yyjson_obj_get(templates, "tool_use");
  return found ? found : yyjson_obj_get(templates, "default");
}

const char *mlx_chat_source(const mlx_chat_t *chat, const char *template_name, bool has_tools) {
  return yyjson_get_str(select_template(chat, template_name, has_tools));
}

// Finds the parsed template of |source|. Fails with the syntax error if it did not parse.
static mlx_status_t find_parsed(const mlx_chat_t *chat, yyjson_val *source, const mlx_template_t **out) {
  yyjson_val *key, *value;
  size_t index, count;
  mlx_template_t *again;
  *out = NULL;
  yyjson_obj_foreach(templates_of(chat), index, count, key, value) {
    if (value == source) *out = chat->parsed[index];
  }
  if (*out) return NULL;
  MLX_TRY(mlx_template_create(chat->name, yyjson_get_str(source), yyjson_get_len(source), &again));
  mlx_template_free(again);
  return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: %s",
                   chat->name);  // creating the chat ran out of memory
}

// ----------------------------------------------------------------------------------------------------------
// Variables

// Parses JSON from the caller; |what| names it in error messages.
static mlx_status_t read_json(const char *what, const char *text, size_t length, yyjson_doc **out) {
  yyjson_read_err error;
  char *copy;
  MLX_TRY(mlx_copy_text(text, length, &copy));
  *out = yyjson_read_opts(copy, length, 0, NULL, &error);
  mlx_free(copy);
  if (*out) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s: not JSON at byte %zu: %s", what, error.pos, error.msg);
}

// A message may have its reasoning under one of three names. Templates read two of them, so the copy gets
// both.
static mlx_status_t alias_reasoning(yyjson_mut_doc *doc, yyjson_val *message, yyjson_mut_val **out) {
  static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
  yyjson_val *reasoning = NULL, *key, *value;
  size_t index, count;
  for (size_t i = 0; i < 3 && !reasoning; ++i) reasoning = mlx_json_find(message, names[i]);
  if (!reasoning) {
    *out = yyjson_val_mut_copy(doc, message);
    return *out ? NULL : mlx_error(MLX_OUT_OF_MEMORY, "out of memory: a message");
  }
  yyjson_mut_val *copy = yyjson_mut_obj(doc);
  bool ok = copy != NULL;
  if (ok && !yyjson_obj_get(message, "thinking"))
    ok = yyjson_mut_obj_add_val(doc, copy, "thinking", yyjson_val_mut_copy(doc, reasoning));
  yyjson_obj_foreach(message, index, count, key, value) {
    yyjson_val *given = yyjson_equals_str(key, "reasoning_content") ? reasoning : value;
    ok = ok && yyjson_mut_obj_add(copy, yyjson_val_mut_copy(doc, key), yyjson_val_mut_copy(doc, given));
    // As Python's {"thinking": reasoning, **message}: the key comes first, with the value of the message.
    if (ok && yyjson_equals_str(key, "thinking")) {
      yyjson_mut_val *moved = yyjson_mut_obj_remove_key(copy, "thinking");
      ok = moved && yyjson_mut_obj_insert(copy, yyjson_mut_str(doc, "thinking"), moved, 0);
    }
  }
  if (ok && !yyjson_obj_get(message, "reasoning_content")) {
    ok = yyjson_mut_obj_add_val(doc, copy, "reasoning_content", yyjson_val_mut_copy(doc, reasoning));
  }
  *out = copy;
  return ok ? NULL : mlx_error(MLX_OUT_OF_MEMORY, "out of memory: a message");
}

// Marks the special tokens in all strings of |value| (tokenizer/plain_marks.h), except roles.
static mlx_status_t mark_strings(const mlx_engine_t *engine, yyjson_mut_doc *doc, yyjson_mut_val *value,
                                 int depth) {
  yyjson_mut_val *key, *item;
  size_t index, count;
  if (depth > MAX_DEPTH)
    return mlx_error(MLX_INVALID_INPUT, "messages: values are nested more than %d levels deep", MAX_DEPTH);
  if (yyjson_mut_is_arr(value)) {
    yyjson_mut_arr_foreach(value, index, count, item) MLX_TRY(mark_strings(engine, doc, item, depth + 1));
  } else if (yyjson_mut_is_obj(value)) {
    yyjson_mut_obj_foreach(value, index, count, key, item) {
      if (!yyjson_mut_equals_str(key, "role")) MLX_TRY(mark_strings(engine, doc, item, depth + 1));
    }
  } else if (yyjson_mut_is_str(value)) {
    mlx_text_t text = {0};
    mlx_status_t status =
        mlx_tokenizer_mark(engine->tokenizer, yyjson_mut_get_str(value), yyjson_mut_get_len(value), &text);
    yyjson_mut_val *copy = status ? NULL : yyjson_mut_strncpy(doc, text.data, text.length);
    if (!status && !copy) status = mlx_error(MLX_OUT_OF_MEMORY, "out of memory: a message");
    if (!status) yyjson_mut_set_strn(value, yyjson_mut_get_str(copy), text.length);
    mlx_text_clear(&text);
    return status;
  }
  return NULL;
}

static mlx_status_t alias_messages(yyjson_val *messages, const mlx_engine_t *plain, yyjson_mut_doc *doc) {
  yyjson_mut_val *list = yyjson_mut_arr(doc), *copy;
  yyjson_val *message;
  size_t index, count;
  if (!yyjson_is_arr(messages)) return mlx_error(MLX_INVALID_INPUT, "messages: expected a list of objects");
  yyjson_arr_foreach(messages, index, count, message) {
    if (!yyjson_is_obj(message))
      return mlx_error(MLX_INVALID_INPUT, "messages: message %zu is not an object", index + 1);
    MLX_TRY(alias_reasoning(doc, message, &copy));
    if (plain && !yyjson_equals_str(yyjson_obj_get(message, "role"), "assistant"))
      MLX_TRY(mark_strings(plain, doc, copy, 0));
    if (!yyjson_mut_arr_append(list, copy)) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: messages");
  }
  yyjson_mut_doc_set_root(doc, list);
  return NULL;
}

// The variables of one rendering.
typedef struct inputs {
  yyjson_doc *given, *messages, *tools, *extra;  // owned
  yyjson_mut_doc *aliased;                       // owned
  mlx_template_variable_t variables[MAX_VARIABLES];
  size_t count;
} inputs_t;

static mlx_status_t add_variable(inputs_t *in, const char *name, yyjson_val *value) {
  if (in->count == MAX_VARIABLES)
    return mlx_error(MLX_INVALID_INPUT, "a template takes at most %d variables", MAX_VARIABLES);
  in->variables[in->count++] = (mlx_template_variable_t){name, value};
  return NULL;
}

static mlx_status_t add_object(inputs_t *in, yyjson_val *object) {
  yyjson_val *key, *value;
  size_t index, count;
  yyjson_obj_foreach(object, index, count, key, value) MLX_TRY(add_variable(in, yyjson_get_str(key), value));
  return NULL;
}

static mlx_status_t read_inputs(const mlx_chat_t *chat, const char *messages, size_t length,
                                const mlx_chat_options_t *options, inputs_t *in) {
  MLX_TRY(read_json("messages", messages, length, &in->given));
  in->aliased = yyjson_mut_doc_new(NULL);
  if (!in->aliased) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: messages");
  MLX_TRY(alias_messages(yyjson_doc_get_root(in->given), options->plain, in->aliased));
  in->messages = yyjson_mut_doc_imut_copy(in->aliased, NULL);
  if (!in->messages) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: messages");
  if (options->tools) {
    MLX_TRY(read_json("tools", options->tools, options->tools_length, &in->tools));
    if (!yyjson_is_arr(yyjson_doc_get_root(in->tools)))
      return mlx_error(MLX_INVALID_INPUT, "tools: expected a list of objects");
  }
  const char *extra = options->variables ? options->variables : "{}";
  MLX_TRY(read_json("variables", extra, strlen(extra), &in->extra));
  if (!yyjson_is_obj(yyjson_doc_get_root(in->extra)))
    return mlx_error(MLX_INVALID_INPUT, "variables: expected an object");
  MLX_TRY(add_variable(in, "messages", yyjson_doc_get_root(in->messages)));
  MLX_TRY(add_variable(in, "tools", yyjson_doc_get_root(in->tools)));
  MLX_TRY(add_variable(in, "documents", NULL));
  MLX_TRY(add_object(in, yyjson_obj_get(chat->json.root, "tokens")));
  return add_object(in, yyjson_doc_get_root(in->extra));
}

static void clear_inputs(inputs_t *in) {
  yyjson_doc_free(in->given);
  yyjson_doc_free(in->messages);
  yyjson_doc_free(in->tools);
  yyjson_doc_free(in->extra);
  yyjson_mut_doc_free(in->aliased);
}

// ----------------------------------------------------------------------------------------------------------
// Rendering

void mlx_chat_options_initialize(mlx_chat_options_t *out_options) {
  *out_options = (mlx_chat_options_t){.add_generation_prompt = true};
}

mlx_status_t mlx_chat_render(const mlx_chat_t *chat, const char *messages, size_t length,
                             const mlx_chat_options_t *options, char **out_text, size_t *out_length) {
  *out_text = NULL;
  *out_length = 0;
  yyjson_val *source = select_template(chat, options->template_name, options->tools != NULL);
  if (!source) return no_template_error(chat, options->template_name ? options->template_name : "default");
  inputs_t in = {0};
  const mlx_template_t *template;
  yyjson_doc *flags = yyjson_read("[false, true]", 13, 0);
  mlx_status_t status = flags ? NULL : mlx_error(MLX_OUT_OF_MEMORY, "out of memory: a template's variables");
  if (!status)
    status = add_variable(&in, "add_generation_prompt",
                          yyjson_arr_get(yyjson_doc_get_root(flags), options->add_generation_prompt));
  if (!status) status = read_inputs(chat, messages, length, options, &in);
  if (!status) status = find_parsed(chat, source, &template);
  if (!status) {
    const mlx_template_input_t input = {
        .variables = in.variables, .variable_count = in.count, .now = options->now};
    status = mlx_template_render(template, &input, out_text, out_length);
  }
  clear_inputs(&in);
  yyjson_doc_free(flags);
  return status;
}

void mlx_chat_free_text(char *text) { mlx_free(text); }
