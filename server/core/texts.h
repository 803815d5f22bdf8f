// Texts: endpoints that use a model's tokenizer, template or properties, but do not run it: /tokenize,
// /detokenize, /apply-template, /v1/messages/count_tokens,
// /v1/responses/input_tokens, /v1/chat/completions/input_tokens, /props, /model_info, /info and /api/show.
#ifndef MLXCEL_SERVER_CORE_TEXTS_H_
#define MLXCEL_SERVER_CORE_TEXTS_H_

#include "server/core/job.h"

typedef struct mlx_text_endpoint mlx_text_endpoint_t;  // one of them, as constant data
extern const mlx_text_endpoint_t mlx_text_tokenize, mlx_text_detokenize, mlx_text_template, mlx_text_count,
    mlx_text_input_tokens, mlx_text_chat_tokens, mlx_text_props, mlx_text_model_info, mlx_text_tei_info,
    mlx_text_show;

// Loop thread: begins the stages of |job|.
mlx_status_t mlx_text_start(mlx_job_t *job, const mlx_text_endpoint_t *endpoint) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_TEXTS_H_
