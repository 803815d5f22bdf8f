// Token fields: fields of requests that are about token ids, with vLLM's names, and about the experts of
// tokens, with SGLang's. For APIs only.
#ifndef MLXCEL_SERVER_API_TOKEN_FIELDS_H_
#define MLXCEL_SERVER_API_TOKEN_FIELDS_H_

#include "base/json_writer.h"
#include "output/answer.h"
#include "server/api/fields.h"

// Rows of what mlx_token_fields_read reads.
#define MLX_TOKEN_FIELDS                                                                                    \
  MLX_READ("stop_token_ids"), MLX_READ("min_tokens"), MLX_READ("bad_words"), MLX_READ("allowed_token_ids"), \
      MLX_READ("return_token_ids"), MLX_READ("prompt_logprobs"), MLX_READ("truncate_prompt_tokens"),        \
      MLX_READ("return_routed_experts"), MLX_READ("routed_experts_start_len")

// After |stream| of the call was read.
mlx_status_t mlx_token_fields_read(const mlx_place_t *root, mlx_api_call_t *call) MLX_MUST_USE;

// Writes what the answer has beside its text: the ids of a choice ("token_ids") and its experts ("sgl_ext"),
// and the ids and log-probabilities of its prompt ("prompt_token_ids", "prompt_logprobs").
void mlx_token_fields_put_choice(mlx_json_writer_t *json, const mlx_api_call_t *call,
                                 const mlx_answer_choice_t *choice);
void mlx_token_fields_put_routes(mlx_json_writer_t *json, const mlx_api_call_t *call,
                                 const mlx_answer_routes_t *routes);
void mlx_token_fields_put_prompt(mlx_json_writer_t *json, const mlx_api_call_t *call,
                                 const mlx_answer_choice_t *choice, size_t prompt);

#endif  // MLXCEL_SERVER_API_TOKEN_FIELDS_H_
