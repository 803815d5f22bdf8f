// What all APIs share: streams and errors.
#include "server/api/api.h"

#include <string.h>

#include "base/memory.h"

mlx_status_t mlx_api_stream_open(const mlx_api_t *api, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                 void **out_stream, mlx_text_t *out) {
  MLX_TRY(mlx_alloc(1, api->stream_size, out_stream));
  return api->stream_open(*out_stream, call, answer, out);
}

void mlx_api_stream_free(const mlx_api_t *api, void *stream) {
  if (stream && api->stream_clear) api->stream_clear(stream);
  mlx_free(stream);
}

void mlx_api_error_path(const char *message, char *out_path, size_t size) {
  const char *end = strstr(message, ": ");
  const size_t length = end ? (size_t)(end - message) : 0;
  const bool is_path = length && length < size && !memchr(message, ' ', length);
  if (is_path) memcpy(out_path, message, length);
  if (size) out_path[is_path ? length : 0] = 0;
}
