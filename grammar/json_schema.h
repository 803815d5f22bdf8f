// JSON schema -> GBNF: a grammar whose every text is JSON that the schema accepts.
//
// It may have fewer texts than the schema accepts, never others: properties come in the schema's order, those
// that are not named come only where additionalProperties says so, numbers have at most 15 digits. A keyword
// that it cannot keep is refused by its name and place; none is ignored but those that only describe (title,
// description, default ...). docs/sampling.md lists them.
#ifndef MLXCEL_GRAMMAR_JSON_SCHEMA_H_
#define MLXCEL_GRAMMAR_JSON_SCHEMA_H_

#include "base/status.h"

// Release *out_gbnf with mlx_free.
mlx_status_t mlx_json_schema_to_gbnf(const char *name, const char *json, size_t length, char **out_gbnf,
                                     size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_GRAMMAR_JSON_SCHEMA_H_
