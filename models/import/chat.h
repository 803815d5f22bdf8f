// chat.json from a model's files: its chat templates and the special tokens that they may use. runtime/chat.c
// defines the format.
//
// *|out_json| is NULL if the model has neither chat templates nor special tokens. Release with mlx_free.
#ifndef MLXCEL_MODELS_IMPORT_CHAT_H_
#define MLXCEL_MODELS_IMPORT_CHAT_H_

#include "models/import/gguf.h"
#include "models/import/hf.h"

// Templates come from chat_template.jinja and additional_chat_templates/NAME.jinja, else from
// tokenizer_config.json, as in transformers. Tokens come from tokenizer_config.json or
// special_tokens_map.json.
mlx_status_t mlx_hf_chat_json(const mlx_hf_t *hf, char **out_json, size_t *out_length) MLX_MUST_USE;
// Calls |visit| with the name of each of those files that exists.
mlx_status_t mlx_hf_chat_files(const mlx_hf_t *hf, mlx_visit_fn_t visit, void *user) MLX_MUST_USE;
// Reads tokenizer.chat_template, tokenizer.chat_template.NAME and the ids of the special tokens.
mlx_status_t mlx_gguf_chat_json(const mlx_gguf_t *gguf, char **out_json, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_CHAT_H_
