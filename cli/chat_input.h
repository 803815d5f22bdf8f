// Chat input: checks the values of --tools and --chat-template-kwargs before a model is opened.
#ifndef MLXCEL_CLI_CHAT_INPUT_H_
#define MLXCEL_CLI_CHAT_INPUT_H_

#include <stddef.h>

#include "base/status.h"

// Fails unless |text| is a JSON object. |option| is the flag that gave it.
mlx_status_t mlx_cli_check_variables(const char *option, const char *text) MLX_MUST_USE;
// Fails unless |text|, the content of the file |path|, is a JSON list.
mlx_status_t mlx_cli_check_tools(const char *path, const char *text, size_t length) MLX_MUST_USE;

#endif  // MLXCEL_CLI_CHAT_INPUT_H_
