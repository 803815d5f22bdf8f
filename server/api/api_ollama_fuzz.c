// Fuzz target: an untrusted body of POST /api/chat and /api/generate. What parses has messages and tools that
// are JSON, or a prompt.
#include <stdint.h>

#include "base/json.h"
#include "server/api/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(const char *json, size_t length) {
  yyjson_doc *doc = yyjson_read(json, length, 0);
  if (!yyjson_is_arr(yyjson_doc_get_root(doc))) __builtin_trap();
  yyjson_doc_free(doc);
}

static void parse(const mlx_api_t *api, const char *body, size_t length) {
  mlx_api_call_t call;
  mlx_status_t status = mlx_api_call_initialize(&call);
  if (!status) status = api->parse(body, length, "", &call);
  if (!status && call.messages) check_list(call.messages, call.messages_length);
  if (!status && call.tools) check_list(call.tools, call.tools_length);
  if (!status && !call.messages && call.prompt_count != 1) __builtin_trap();
  mlx_status_free(status);
  api->free_details(call.details);
  mlx_api_call_clear(&call);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  parse(&mlx_api_ollama_chat, (const char *)data, size);
  parse(&mlx_api_ollama_generate, (const char *)data, size);
  return 0;
}
