// Conversation: messages in order. Each message keeps its original JSON, so that a template sees all of its
// fields (tool calls, reasoning, content parts) unchanged.
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/text.h"
#include "template/conversation.h"

typedef struct message {
  char *role, *text, *json;  // owned
} message_t;

struct mlx_conversation {
  message_t *messages;  // owned
  size_t count, capacity;
};

static void clear_message(message_t *message) {
  mlx_free(message->role);
  mlx_free(message->text);
  mlx_free(message->json);
}

mlx_status_t mlx_conversation_create(mlx_conversation_t **out) { return mlx_alloc(1, sizeof **out, out); }

void mlx_conversation_free(mlx_conversation_t *conversation) {
  if (!conversation) return;
  mlx_conversation_cut(conversation, 0);
  mlx_free(conversation->messages);
  mlx_free(conversation);
}

void mlx_conversation_cut(mlx_conversation_t *conversation, size_t count) {
  while (conversation->count > count) clear_message(&conversation->messages[--conversation->count]);
}

// ----------------------------------------------------------------------------------------------------------
// Messages

static mlx_status_t make_message(const char *role, const char *text, size_t length, message_t *out) {
  mlx_text_t written = {0};
  mlx_json_writer_t json = {.out = &written};
  *out = (message_t){0};
  mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(&json, "role", role);
  mlx_json_put_bytes(&json, "content", text, length);
  mlx_json_end(&json);
  mlx_status_t status = mlx_text_take(&written, &out->json, NULL);
  mlx_text_clear(&written);
  if (!status) status = mlx_copy_text(role, strlen(role), &out->role);
  if (!status) status = mlx_copy_text(text, length, &out->text);
  if (status) clear_message(out);
  return status;
}

// Takes ownership of the message, also on failure.
static mlx_status_t insert(mlx_conversation_t *conversation, size_t index, message_t *message) {
  mlx_status_t status = mlx_reserve(conversation->count + 1, sizeof *conversation->messages,
                                    &conversation->capacity, &conversation->messages);
  if (status) {
    clear_message(message);
    return status;
  }
  memmove(conversation->messages + index + 1, conversation->messages + index,
          (conversation->count - index) * sizeof *message);
  conversation->messages[index] = *message;
  ++conversation->count;
  return NULL;
}

mlx_status_t mlx_conversation_add(mlx_conversation_t *conversation, const char *role, const char *text,
                                  size_t length) {
  message_t message;
  MLX_TRY(make_message(role, text, length, &message));
  return insert(conversation, conversation->count, &message);
}

static bool has_role(const mlx_conversation_t *conversation, size_t index, const char *role) {
  return index < conversation->count && !strcmp(conversation->messages[index].role, role);
}

mlx_status_t mlx_conversation_set_system(mlx_conversation_t *conversation, const char *text, size_t length) {
  message_t message = {0};
  if (text) MLX_TRY(make_message("system", text, length, &message));
  if (has_role(conversation, 0, "system")) {
    clear_message(&conversation->messages[0]);
    memmove(conversation->messages, conversation->messages + 1, --conversation->count * sizeof message);
  }
  return text ? insert(conversation, 0, &message) : NULL;
}

const char *mlx_conversation_system(const mlx_conversation_t *conversation) {
  return has_role(conversation, 0, "system") ? conversation->messages[0].text : NULL;
}

size_t mlx_conversation_count(const mlx_conversation_t *conversation) { return conversation->count; }
const char *mlx_conversation_role(const mlx_conversation_t *conversation, size_t index) {
  return conversation->messages[index].role;
}
const char *mlx_conversation_text(const mlx_conversation_t *conversation, size_t index) {
  return conversation->messages[index].text;
}

size_t mlx_conversation_next_turn(const mlx_conversation_t *conversation, size_t index) {
  do ++index;
  while (index < conversation->count && !has_role(conversation, index, "user"));
  return index < conversation->count ? index : conversation->count;
}

// ----------------------------------------------------------------------------------------------------------
// JSON

mlx_status_t mlx_conversation_json(const mlx_conversation_t *conversation, size_t first, char **out_json,
                                   size_t *out_length) {
  mlx_text_t json = {0};
  const char *separator = "[\n";
  for (size_t i = 0; i < conversation->count; ++i) {
    if (i < first && !(i == 0 && has_role(conversation, 0, "system"))) continue;
    mlx_text_printf(&json, "%s  %s", separator, conversation->messages[i].json);
    separator = ",\n";
  }
  mlx_text_puts(&json, json.length ? "\n]\n" : "[]\n");
  mlx_status_t status = mlx_text_take(&json, out_json, out_length);
  mlx_text_clear(&json);
  return status;
}

static mlx_status_t message_error(const char *name, size_t index, const char *what) {
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s: message %zu %s", name, index + 1, what),
                         "write a conversation as a list of {\"role\": \"user\", \"content\": \"...\"}");
}

static mlx_status_t read_message(const char *name, size_t index, yyjson_val *value, message_t *out) {
  *out = (message_t){0};
  yyjson_val *role = yyjson_obj_get(value, "role"), *content = yyjson_obj_get(value, "content");
  if (!yyjson_is_obj(value)) return message_error(name, index, "is not an object");
  if (!yyjson_is_str(role) || !yyjson_get_len(role)) return message_error(name, index, "has no role");
  if (strlen(yyjson_get_str(role)) != yyjson_get_len(role))
    return message_error(name, index, "has a zero byte in its role");
  if (content && !yyjson_is_str(content) && !yyjson_is_arr(content) && !yyjson_is_null(content))
    return message_error(name, index, "has a content that is not a string, a list or null");
  const bool is_text = yyjson_is_str(content);
  mlx_status_t status = mlx_copy_text(yyjson_get_str(role), yyjson_get_len(role), &out->role);
  if (!status)
    status = mlx_copy_text(is_text ? yyjson_get_str(content) : "", is_text ? yyjson_get_len(content) : 0,
                           &out->text);
  char *json = status ? NULL : yyjson_val_write(value, 0, NULL);
  if (!status && !json) status = mlx_error(MLX_OUT_OF_MEMORY, "out of memory: %s", name);
  if (!status) status = mlx_copy_text(json, strlen(json), &out->json);
  free(json);
  if (status) clear_message(out);
  return status;
}

static mlx_status_t read_messages(const mlx_json_t *json, mlx_conversation_t *conversation) {
  yyjson_val *list = yyjson_is_arr(json->root) ? json->root : yyjson_obj_get(json->root, "messages"), *value;
  size_t index, count;
  message_t message;
  if (!yyjson_is_arr(list)) return mlx_json_error(json, "messages", "must be a list of messages");
  yyjson_arr_foreach(list, index, count, value) {
    MLX_TRY(read_message(json->name, index, value, &message));
    MLX_TRY(insert(conversation, conversation->count, &message));
  }
  return NULL;
}

mlx_status_t mlx_conversation_parse(const char *name, const char *text, size_t length,
                                    mlx_conversation_t **out) {
  mlx_json_t json;
  mlx_conversation_t *conversation = NULL;
  *out = NULL;
  MLX_TRY(mlx_json_parse_any(name, text, length, &json));
  mlx_status_t status = mlx_conversation_create(&conversation);
  if (!status) status = read_messages(&json, conversation);
  mlx_json_close(&json);
  if (status) {
    mlx_conversation_free(conversation);
    return status;
  }
  *out = conversation;
  return NULL;
}
