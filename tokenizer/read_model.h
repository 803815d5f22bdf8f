// Reads the model and the added_tokens of a tokenizer.json.
#ifndef MLXCEL_TOKENIZER_READ_MODEL_H_
#define MLXCEL_TOKENIZER_READ_MODEL_H_

#include "base/json.h"
#include "tokenizer/components.h"

// Sets tokenizer->model.kind.
mlx_status_t mlx_tokenizer_read_kind(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) MLX_MUST_USE;
// Fills in the rest. It must come after mlx_tokenizer_read_steps: added tokens are normalized, and byte-level
// tokens are spelled differently. |meter| counts tokens and merges.
mlx_status_t mlx_tokenizer_read_model(const mlx_json_t *json, mlx_budget_t *budget, mlx_meter_t *meter,
                                      mlx_tokenizer_t *tokenizer) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_READ_MODEL_H_
