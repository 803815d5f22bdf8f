// Prompt fields: the prompts of completions, and the text after a gap that the model fills. For APIs only.
#ifndef MLXCEL_SERVER_API_PROMPT_FIELDS_H_
#define MLXCEL_SERVER_API_PROMPT_FIELDS_H_

#include "server/api/fields.h"

// A string, a list of token ids or of token ids and strings (one prompt), a list of any of these, or
// llama.cpp's {"prompt_string": ...}.
mlx_status_t mlx_prompt_fields_read(const mlx_place_t *place, mlx_api_call_t *call) MLX_MUST_USE;
// The text after the gap, at |key|; the text before it is the only prompt. "" and a missing key are no gap.
mlx_status_t mlx_prompt_fields_read_suffix(const mlx_place_t *root, const char *key,
                                           mlx_api_call_t *call) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_PROMPT_FIELDS_H_
