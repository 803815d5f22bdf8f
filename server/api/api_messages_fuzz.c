// Fuzz target: an untrusted body of POST /v1/messages. What parses has messages and tools that are JSON.
#include <stdint.h>

#include "base/json.h"
#include "server/api/anthropic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(const char *json, size_t length) {
  yyjson_doc *doc = yyjson_read(json, length, 0);
  if (!yyjson_is_arr(yyjson_doc_get_root(doc))) __builtin_trap();
  yyjson_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_api_call_t call;
  mlx_status_t status = mlx_api_call_initialize(&call);
  if (!status) status = mlx_anthropic_parse_count((const char *)data, size, "beta=true", &call);
  if (!status) check_list(call.messages, call.messages_length);
  if (!status && call.tools) check_list(call.tools, call.tools_length);
  mlx_status_free(status);
  mlx_api_messages.free_details(call.details);
  mlx_api_call_clear(&call);
  return 0;
}
