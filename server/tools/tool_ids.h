// Tool ids: ids of tool calls that a template accepts.
#ifndef MLXCEL_SERVER_TOOLS_TOOL_IDS_H_
#define MLXCEL_SERVER_TOOLS_TOOL_IDS_H_

#include "base/status.h"

// Replaces the ids of tool calls and results in a JSON list of messages that are not 9 letters and digits.
// Mistral's templates refuse any other id, but a conversation may have begun with another model. Equal ids
// stay equal. Release *out_json with mlx_free.
mlx_status_t mlx_tool_ids_shorten(const char *messages, size_t length, char **out_json,
                                  size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_TOOLS_TOOL_IDS_H_
