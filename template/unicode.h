// Unicode: characters of UTF-8 text as Python's str classifies and maps them.
//
// Every function expects valid UTF-8.
#ifndef MLXCEL_TEMPLATE_UNICODE_H_
#define MLXCEL_TEMPLATE_UNICODE_H_

#include "template/sink.h"

uint32_t mlx_codepoint_decode(const char *bytes, size_t *out_length);  // the first character of |bytes|
bool mlx_codepoint_is_space(uint32_t c);                               // str.isspace
bool mlx_codepoint_is_printable(uint32_t c);                           // str.isprintable
bool mlx_codepoint_is_alpha(uint32_t c);                               // str.isalpha
bool mlx_codepoint_is_decimal(uint32_t c);                             // str.isdecimal
bool mlx_codepoint_is_digit(uint32_t c);                               // str.isdigit
bool mlx_codepoint_is_numeric(uint32_t c);                             // str.isnumeric
bool mlx_codepoint_is_cased(uint32_t c);                               // has lower and upper case

size_t mlx_span_characters(mlx_span_t span);
// Removes |characters| from either side; NULL: whitespace.
mlx_span_t mlx_span_strip(mlx_span_t text, const mlx_span_t *characters, bool left, bool right);

typedef enum mlx_letter_case { MLX_LOWER, MLX_UPPER, MLX_CAPITALIZE, MLX_TITLE } mlx_letter_case_t;
void mlx_sink_case(mlx_sink_t *sink, mlx_span_t text, mlx_letter_case_t letter_case);

#endif  // MLXCEL_TEMPLATE_UNICODE_H_
