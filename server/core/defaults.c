// Sampling options and template variables of requests that give none.
#include "server/core/defaults.h"

#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"

mlx_status_t mlx_request_defaults_check(const char *reasoning) {
  static const char *const words[] = {"on",     "off",  "none",  "minimal", "low",
                                      "medium", "high", "xhigh", "max"};
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (!strcmp(reasoning, words[i])) return NULL;
  }
  return mlx_error(MLX_USAGE,
                   "option --reasoning expects on, off, none, minimal, low, medium, high, xhigh "
                   "or max, not '%s'",
                   reasoning);
}

void mlx_request_defaults_begin(const mlx_request_defaults_t *defaults, mlx_api_call_t *call) {
  const uint64_t seed = call->sampling.seed;
  if (!defaults->sampling) return;
  call->sampling = *defaults->sampling;
  call->sampling.seed = seed;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c) {
  return !strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c);
}

// The variables of a request have priority. Any of these means that it chose.
static bool has_choice(yyjson_val *variables) {
  return yyjson_obj_get(variables, "reasoning_effort") || yyjson_obj_get(variables, "enable_thinking") ||
         yyjson_obj_get(variables, "thinking");
}

mlx_status_t mlx_request_defaults_end(const mlx_request_defaults_t *defaults, mlx_api_call_t *call) {
  const char *word = defaults->reasoning;
  if (!word || !call->messages) return NULL;
  yyjson_doc *doc = call->variables ? yyjson_read(call->variables, strlen(call->variables), 0) : NULL;
  yyjson_val *given = yyjson_doc_get_root(doc), *key, *value;
  const bool is_on = !is_one_of(word, "off", "none", "minimal");
  size_t index, max;
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_status_t status = NULL;
  if (has_choice(given)) {
    yyjson_doc_free(doc);
    return NULL;
  }
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  if (!is_one_of(word, "on", "off", "off")) mlx_json_put_text(&json, "reasoning_effort", word);
  mlx_json_put_bool(&json, "enable_thinking", is_on);
  mlx_json_put_bool(&json, "thinking", is_on);
  yyjson_obj_foreach(given, index, max, key, value) {
    if (!status)
      status = mlx_json_put(value, mlx_json_put_member(&json, yyjson_get_str(key), yyjson_get_len(key)));
  }
  mlx_json_end(&json);
  yyjson_doc_free(doc);
  mlx_free(call->variables);
  call->variables = NULL;
  if (!status) status = mlx_text_take(&text, &call->variables, NULL);
  mlx_text_clear(&text);
  return status;
}
