// JSON schema to GBNF: every text of the grammar is JSON that the schema accepts.
//
// The grammar may accept fewer texts than the schema, never more. Properties come in the schema's order,
// additional properties only if additionalProperties allows them, and numbers have at most 15 digits. A
// keyword that cannot be enforced is an error with its name and path. Annotations (title, default ...)
// are ignored. docs/sampling.md lists the keywords.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_H_

#include "base/text.h"

// Release *out_gbnf with mlx_free.
mlx_status_t mlx_json_schema_to_gbnf(const char *name, const char *json, size_t length, char **out_gbnf,
                                     size_t *out_length) MLX_MUST_USE;
// The same, but keywords that cannot be enforced are annotations: the grammar accepts what they exclude.
// Appends "NAME#PATH: KEYWORD" for each of them, and for formats of strings that are unknown, to |notes|,
// separated by ", ".
mlx_status_t mlx_json_schema_to_gbnf_relaxed(const char *name, const char *json, size_t length,
                                             mlx_text_t *notes, char **out_gbnf,
                                             size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_H_
