// Conversation: messages with roles, in memory and in a file. Part of the public interface: runtime/mlxcel.h
// includes it.
#ifndef MLXCEL_TEMPLATE_CONVERSATION_H_
#define MLXCEL_TEMPLATE_CONVERSATION_H_

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mlx_conversation mlx_conversation_t;

// Creates an empty conversation. Release with mlx_conversation_free.
mlx_status_t mlx_conversation_create(mlx_conversation_t **out_conversation) MLX_MUST_USE;
void mlx_conversation_free(mlx_conversation_t *conversation);  // NULL is fine
// Parses a JSON list of messages, or an object with such a list as "messages". A message is an object whose
// "role" is a string and whose optional "content" is a string, a list or null. Its other fields are kept.
// |name| appears in errors.
mlx_status_t mlx_conversation_parse(const char *name, const char *json, size_t length,
                                    mlx_conversation_t **out_conversation) MLX_MUST_USE;

mlx_status_t mlx_conversation_add(mlx_conversation_t *conversation, const char *role, const char *text,
                                  size_t length) MLX_MUST_USE;
// Sets or replaces the system message, which is the first message; NULL removes it.
mlx_status_t mlx_conversation_set_system(mlx_conversation_t *conversation, const char *text,
                                         size_t length) MLX_MUST_USE;
const char *mlx_conversation_system(const mlx_conversation_t *conversation);  // borrowed; NULL: none
size_t mlx_conversation_count(const mlx_conversation_t *conversation);
// The role and the text of message |index|; "" if its content is not a string. Borrowed until the
// conversation changes.
const char *mlx_conversation_role(const mlx_conversation_t *conversation, size_t index);
const char *mlx_conversation_text(const mlx_conversation_t *conversation, size_t index);
// Removes message |count| and all after it.
void mlx_conversation_cut(mlx_conversation_t *conversation, size_t count);
// The index of the next user message after |index|, where the next turn begins; the count if there is none.
size_t mlx_conversation_next_turn(const mlx_conversation_t *conversation, size_t index);
// Writes a JSON list of the system message, if any, and the messages from |first| on. Release with mlx_free.
mlx_status_t mlx_conversation_json(const mlx_conversation_t *conversation, size_t first, char **out_json,
                                   size_t *out_length) MLX_MUST_USE;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_TEMPLATE_CONVERSATION_H_
