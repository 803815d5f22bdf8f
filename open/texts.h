// Texts: the tokenizer and the chat template of a model, without loading it. Paths are those of mlx_locate.
#ifndef MLXCEL_OPEN_TEXTS_H_
#define MLXCEL_OPEN_TEXTS_H_

#include "compiler/compile.h"
#include "runtime/mlxcel.h"
#include "tokenizer/tokenizer.h"

// Opens the tokenizer of a bundle or a source model. Compiles nothing and reads no weights. Release with
// mlx_tokenizer_free.
mlx_status_t mlx_open_tokenizer(const char *path, mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;
// The same of a model that the compiler has opened. |cache| and |report| may be NULL.
mlx_status_t mlx_open_model_tokenizer(const mlx_model_tokenizer_t *model, mlx_cache_t *cache,
                                      const mlx_report_t *report,
                                      mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;

// Reads the model's own chat template or, if |chat_template| is not NULL, that format or file. *|out_chat| is
// NULL if there is none; release it with mlx_chat_free. With |options|.allow_unsigned, an unsigned bundle of
// another version may name the source model that has the template.
mlx_status_t mlx_find_chat(const char *path, const mlx_engine_options_t *options, const char *chat_template,
                           mlx_chat_t **out_chat) MLX_MUST_USE;

#endif  // MLXCEL_OPEN_TEXTS_H_
