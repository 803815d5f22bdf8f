// Reads the normalizer, pre_tokenizer and decoder of a tokenizer.json.
#ifndef MLXCEL_TOKENIZER_READ_STEPS_H_
#define MLXCEL_TOKENIZER_READ_STEPS_H_

#include "base/json.h"
#include "tokenizer/components.h"

// Needs tokenizer->model.kind. Also sets tokenizer->model.byte_level, which the ByteLevel pre-tokenizer
// implies.
mlx_status_t mlx_tokenizer_read_steps(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_READ_STEPS_H_
