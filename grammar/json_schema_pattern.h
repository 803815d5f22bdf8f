// Regular expressions of a JSON schema as GBNF.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_PATTERN_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_PATTERN_H_

#include "base/text.h"

// Writes the content of a JSON string, without its quotes, in which |pattern| matches. *|out_problem| is
// the reason if the pattern is not supported, or NULL.
void mlx_gbnf_put_pattern(mlx_text_t *out, const char *pattern, size_t length, const char **out_problem);

// A grammar (GBNF) of the texts that |regex| matches as a whole. Fails with MLX_UNSUPPORTED and the reason;
// |name| is the beginning of the message. Release with mlx_free.
mlx_status_t mlx_regex_to_gbnf(const char *name, const char *regex, size_t length, char **out_gbnf,
                               size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_PATTERN_H_
