// Chat: a conversation as the text that a model was trained to read. What transformers' apply_chat_template does around jinja2: it
// picks the template, gives it messages, tools and the model's special tokens as variables, and renders.
//
// A compiled model carries chat.json for this (mlx_source_chat_json makes it):
//   {"templates": {"default": "...", "tool_use": "..."}, "tokens": {"bos_token": "<s>", "eos_token": "</s>"}}
// The public part of it is in mlxcel.h.
#ifndef MLXCEL_RUNTIME_CHAT_H_
#define MLXCEL_RUNTIME_CHAT_H_

#include "runtime/mlxcel.h"

// Reads a chat.json; |name| is what errors call it. Release with mlx_chat_free.
mlx_status_t mlx_chat_create(const char *name, const char *json, size_t length, mlx_chat_t **out_chat) MLX_MUST_USE;
void mlx_chat_free(mlx_chat_t *chat);  // NULL is fine

#endif  // MLXCEL_RUNTIME_CHAT_H_
