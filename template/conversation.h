// Conversation: messages with roles, in memory and in a file. Part of the public interface: runtime/mlxcel.h
// includes it.
#ifndef MLXCEL_TEMPLATE_CONVERSATION_H_
#define MLXCEL_TEMPLATE_CONVERSATION_H_

#include <stddef.h>

#include "base/status.h"

typedef struct mlx_conversation mlx_conversation_t;

mlx_status_t mlx_conversation_create(mlx_conversation_t **out_conversation)
    MLX_MUST_USE;                                              // empty; release with mlx_conversation_free
void mlx_conversation_free(mlx_conversation_t *conversation);  // NULL is fine
// From a JSON list of messages, or an object that has one as its "messages". A message is an object with a
// string as its "role" and, where it has a "content", a string, a list or null there; what else is in it
// stays. |name| is what errors call the text.
mlx_status_t mlx_conversation_parse(const char *name, const char *json, size_t length,
                                    mlx_conversation_t **out_conversation) MLX_MUST_USE;

mlx_status_t mlx_conversation_add(mlx_conversation_t *conversation, const char *role, const char *text,
                                  size_t length) MLX_MUST_USE;
// Puts a system message at the beginning, or in the place of the one that is there; NULL takes it away.
mlx_status_t mlx_conversation_set_system(mlx_conversation_t *conversation, const char *text,
                                         size_t length) MLX_MUST_USE;
const char *mlx_conversation_system(const mlx_conversation_t *conversation);  // NULL: there is none. Borrowed
size_t mlx_conversation_count(const mlx_conversation_t *conversation);
// The role and the text of message |index|; "" for a text that is none. Borrowed, until the conversation
// changes.
const char *mlx_conversation_role(const mlx_conversation_t *conversation, size_t index);
const char *mlx_conversation_text(const mlx_conversation_t *conversation, size_t index);
void mlx_conversation_cut(mlx_conversation_t *conversation,
                          size_t count);  // drops every message from |count| on
// Where the turn after the one at |index| begins: the next message of a user's; the count when there is none.
size_t mlx_conversation_next_turn(const mlx_conversation_t *conversation, size_t index);
// A JSON list of the system message, where there is one, and the messages from |first| on. Release with
// mlx_free.
mlx_status_t mlx_conversation_json(const mlx_conversation_t *conversation, size_t first, char **out_json,
                                   size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_CONVERSATION_H_
