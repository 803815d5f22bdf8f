// Values of arguments that a model wrote as plain text, as JSON of the type that the tool's schema has.
#ifndef MLXCEL_OUTPUT_VALUE_H_
#define MLXCEL_OUTPUT_VALUE_H_

#include <yyjson.h>

#include "base/text.h"

// The schema of the argument |key| of a tool, its "function" object; NULL if the tool or the key is unknown.
yyjson_val *mlx_argument_schema(yyjson_val *function, const char *key, size_t length);
// True if values of |schema| are always strings.
bool mlx_argument_is_string(yyjson_val *schema);
// Appends |text| as JSON: a value of the schema's type if the text is one, else a string. Without a schema, a
// text that is JSON but not a string is that value.
void mlx_argument_put(mlx_text_t *out, yyjson_val *schema, const char *text, size_t length);
// Appends |text|, which ends with a character, as the inside of a JSON string.
void mlx_argument_put_part(mlx_text_t *out, const char *text, size_t length);

#endif  // MLXCEL_OUTPUT_VALUE_H_
