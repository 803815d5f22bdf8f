// The checks of the runtime name no option and no file. These do, with an example of a correct value.
#include "cli/chat_input.h"

#include <string.h>

#include "base/json.h"

mlx_status_t mlx_cli_check_variables(const char *option, const char *text) {
  mlx_json_t json;
  mlx_status_t status = mlx_json_parse(option, text, strlen(text), &json);
  if (!status) mlx_json_close(&json);
  return mlx_status_hint(status, "give a JSON object in quotes: %s '{\"enable_thinking\": false}'", option);
}

mlx_status_t mlx_cli_check_tools(const char *path, const char *text, size_t length) {
  mlx_json_t json;
  mlx_status_t status = length ? mlx_json_parse_any(path, text, length, &json)
                               : mlx_error(MLX_INVALID_INPUT, "%s: the file of --tools is empty", path);
  if (!status) {
    if (!yyjson_is_arr(json.root))
      status = mlx_error(MLX_INVALID_INPUT, "%s: the file of --tools must be a JSON list", path);
    mlx_json_close(&json);
  }
  return mlx_status_hint(
      status,
      "its content is a list of tools: [{\"type\": \"function\", \"function\": {\"name\": \"add\", "
      "\"parameters\": {\"type\": \"object\"}}}]");
}
