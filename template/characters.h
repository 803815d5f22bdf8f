// Text as Python's str handles it: length in characters, stripping and case.
//
// Every function expects valid UTF-8.
#ifndef MLXCEL_TEMPLATE_CHARACTERS_H_
#define MLXCEL_TEMPLATE_CHARACTERS_H_

#include "template/sink.h"
#include "unicode/python.h"
#include "unicode/utf8.h"

size_t mlx_span_characters(mlx_span_t span);
// Removes |characters| from either side; NULL: whitespace.
mlx_span_t mlx_span_strip(mlx_span_t text, const mlx_span_t *characters, bool left, bool right);

typedef enum mlx_letter_case { MLX_LOWER, MLX_UPPER, MLX_CAPITALIZE, MLX_TITLE } mlx_letter_case_t;
void mlx_sink_case(mlx_sink_t *sink, mlx_span_t text, mlx_letter_case_t letter_case);

#endif  // MLXCEL_TEMPLATE_CHARACTERS_H_
