// chat.json from a model's files: its chat templates and the special tokens that they may name
// (runtime/chat.c has the format).
// *|out_json| is NULL when the model has neither a chat template nor special tokens. Release with mlx_free.
#ifndef MLXCEL_MODELS_IMPORT_CHAT_H_
#define MLXCEL_MODELS_IMPORT_CHAT_H_

#include "models/import/gguf.h"
#include "models/import/hf.h"

// From chat_template.jinja and additional_chat_templates/NAME.jinja, else from tokenizer_config.json, as
// transformers has it; tokens are in that or in special_tokens_map.json.
mlx_status_t mlx_hf_chat_json(const mlx_hf_t *hf, char **out_json, size_t *out_length) MLX_MUST_USE;
// Calls |visit| with each of those files that is there, by its name in the folder.
mlx_status_t mlx_hf_chat_files(const mlx_hf_t *hf, mlx_visit_fn_t visit, void *user) MLX_MUST_USE;
// From tokenizer.chat_template, tokenizer.chat_template.NAME and the ids of special tokens.
mlx_status_t mlx_gguf_chat_json(const mlx_gguf_t *gguf, char **out_json, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_CHAT_H_
